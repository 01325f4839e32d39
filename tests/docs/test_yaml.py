"""YAML that the documentation shows: jobs and queues that the API takes, parts of a pod, settings that there are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from trimtab.api.v1alpha1 import JobSpec, QueueSpec
from trimtab.errors import SettingsError
from trimtab.settings import load
from trimtab_local.checkout import checkout

ROOT = checkout()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
SHOWN = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
APPLIED = re.compile(r"<<'?END'?\n(apiVersion: trimtab.*?)^END$", re.MULTILINE | re.DOTALL)
SPECS = {"LLMTrainingJob": JobSpec, "Queue": QueueSpec}
BLOCKS = [(page, text) for page in PAGES for pattern in (SHOWN, APPLIED) for text in pattern.findall(page.read_text())]


@cache
def schema(kind: str) -> dict[str, Any]:
    """Of the spec, as the API server has it."""
    found: dict[str, Any]
    [found] = (
        crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
        for crd in (yaml.safe_load(path.read_text()) for path in (ROOT / "manifests/crds").glob("*.yaml"))
        if crd["spec"]["names"]["kind"] == kind
    )
    return found


def unknown(value: Any, of: dict[str, Any]) -> Iterator[str]:
    """Fields that the schema does not name."""
    if isinstance(value, list):
        for each in value:
            yield from unknown(each, of.get("items", {}))
    elif isinstance(value, dict) and "properties" in of:
        yield from value.keys() - of["properties"].keys()
        for name in value.keys() & of["properties"].keys():
            yield from unknown(value[name], of["properties"][name])


def wrong(content: dict[str, Any], folder: Path) -> list[str]:
    """Fields that nobody knows. Raises ValidationError, SettingsError for values."""
    if "apiVersion" in content:
        SPECS[content["kind"]].model_validate(content["spec"])
        return list(unknown(content["spec"], schema(content["kind"])))
    pod = schema("LLMTrainingJob")["properties"]["template"]["properties"]["spec"]
    if content.keys() <= pod["properties"].keys():
        return list(unknown(content, pod))
    (folder / "settings.yaml").write_text(yaml.safe_dump(content))
    load(folder / "settings.yaml")
    return []


@pytest.mark.parametrize(("page", "text"), BLOCKS, ids=[page.stem for page, _ in BLOCKS])
def test_what_is_shown_is_understood(page: Path, text: str, tmp_path: Path) -> None:
    assert wrong(yaml.safe_load(text), tmp_path) == []


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("{apiVersion: trimtab.dev/v1alpha1, kind: Queue, spec: {weigth: 2}}", "weigth"),
        ("{tolerations: [{kye: pool}]}", "kye"),
    ],
)
def test_a_field_that_is_misspelt_would_be_found(text: str, field: str, tmp_path: Path) -> None:
    assert wrong(yaml.safe_load(text), tmp_path) == [field]


def test_so_would_a_setting(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="stopp"):
        wrong({"idle": {"stopp": "AfterNotice"}}, tmp_path)
