"""The CRDs as files: up to date, structural, documented, bounded; and the models that they were made from."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trimtab.api import schema
from trimtab.api.v1alpha1 import JobSpec
from trimtab_policy import catalog

Schema = dict[str, Any]

CRDS = schema.definitions()
VERSIONS = {name: crd["spec"]["versions"][0] for name, crd in CRDS.items()}


def fields(node: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    """Every schema below `node`, with its path."""
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from fields(child, f"{path}.{name}")
    for word, step in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(node.get(word), dict):
            yield from fields(node[word], path + step)


FIELDS = [
    (path, node)
    for name, version in VERSIONS.items()
    for path, node in fields(version["schema"]["openAPIV3Schema"], name.partition(".")[0])
]


def breaches(broken: Callable[[Schema], bool]) -> list[str]:
    return [path for path, node in FIELDS if broken(node)]


def test_the_files_are_those_that_the_models_give(repository: Path) -> None:
    check = subprocess.run(
        [sys.executable, str(repository / "hack" / "generate"), "--check"], capture_output=True, text=True, check=False
    )
    assert (check.stderr, check.returncode) == ("", 0)


def test_a_stale_file_is_noticed(repository: Path, tmp_path: Path) -> None:
    script = tmp_path / "hack" / "generate"
    script.parent.mkdir()
    script.write_text((repository / "hack" / "generate").read_text())
    run = [sys.executable, str(script)]
    assert subprocess.run([*run, "--check"], capture_output=True, check=False).returncode == 1
    assert subprocess.run(run, check=False).returncode == 0
    assert subprocess.run([*run, "--check"], capture_output=True, check=False).returncode == 0
    (tmp_path / "manifests" / "crds" / "old.yaml").write_text("left over\n")
    check = subprocess.run([*run, "--check"], capture_output=True, text=True, check=False)
    assert (check.returncode, check.stderr) == (1, "manifests/crds/old.yaml is stale: run hack/generate\n")


def test_schemas_are_structural() -> None:
    """https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema"""
    assert breaches(lambda node: not ("type" in node or node.get("x-kubernetes-int-or-string"))) == []
    assert breaches(lambda node: bool({"$ref", "$defs", "title", "allOf", "const"} & node.keys())) == []
    assert breaches(lambda node: "properties" in node and "additionalProperties" in node) == []
    assert breaches(lambda node: "anyOf" in node and not node.get("x-kubernetes-int-or-string")) == []


def test_there_are_no_floats() -> None:
    assert breaches(lambda node: node.get("type") == "number") == []


def test_everything_that_users_may_fill_without_end_is_bounded() -> None:
    """An unbounded list or text could exhaust etcd, and makes CEL rules too expensive to be accepted."""
    bounds = {"array": ("maxItems",), "string": ("maxLength", "enum", "format")}
    own = [(path, node) for path, node in FIELDS if path.rpartition(".")[2] not in ("apiVersion", "kind")]
    assert [
        path for path, node in own if node.get("type") in bounds and not set(bounds[node["type"]]) & node.keys()
    ] == []
    assert breaches(lambda node: "additionalProperties" in node and "maxProperties" not in node) == []


def test_every_list_says_how_it_is_merged() -> None:
    assert breaches(lambda node: node.get("type") == "array" and "x-kubernetes-list-type" not in node) == []


def test_every_field_is_explained_in_sentences() -> None:
    named = {path: node for path, node in FIELDS if path[-1] not in "]}"}
    standard = ("apiVersion", "kind", "metadata", "metadata.name")
    silent = [
        path
        for path, node in named.items()
        if path.partition(".")[2] not in standard and not node.get("description", "").endswith(".")
    ]
    assert silent == []


def test_defaults_are_told_because_kubectl_explain_shows_none() -> None:
    of = dict(FIELDS)
    assert of["llmtrainingjobs.spec.training.precision"]["description"].endswith("MI300X. Default: BF16.")
    assert of["llmtrainingjobs.spec.suspend"]["description"].endswith(" Default: false.")
    assert (
        breaches(lambda node: not isinstance(node.get("default", {}), dict) and "Default:" not in node["description"])
        == []
    )


def test_every_rule_blames_a_field_in_words() -> None:
    rules = [(path, rule) for path, node in FIELDS for rule in node.get("x-kubernetes-validations", [])]
    assert [path for path, rule in rules if not (rule["message"] and rule["fieldPath"])] == []
    assert len(rules) > 40


def test_presets_are_those_of_the_catalogue() -> None:
    preset = dict(FIELDS)["llmtrainingjobs.spec.model.preset"]
    assert preset["enum"] == list(catalog.model_names())


def test_names_users_type() -> None:
    jobs, queues = CRDS["llmtrainingjobs.trimtab.dev"]["spec"], CRDS["queues.trimtab.dev"]["spec"]
    assert (jobs["scope"], jobs["names"]["shortNames"], jobs["names"]["categories"]) == (
        "Namespaced",
        ["ltj"],
        ["trimtab"],
    )
    assert (queues["scope"], queues["names"]["shortNames"]) == ("Cluster", ["ltq"])
    assert VERSIONS["llmtrainingjobs.trimtab.dev"]["subresources"] == {"status": {}}


def test_a_template_keeps_what_the_schema_does_not_know(job: Callable[..., Any]) -> None:
    pod = {
        "hostNetwork": True,
        "volumes": [{"name": "data", "nfs": {"server": "s", "path": "/"}}],
        "containers": [{"name": "trainer", "image": "i", "ports": [{"containerPort": 80}], "args": ["--x"]}],
    }
    spec = JobSpec.model_validate(job({"spec.template": {"spec": pod}})["spec"])
    assert spec.template.spec.model_dump(by_alias=True, exclude_unset=True, mode="json") == pod
