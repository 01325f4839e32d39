"""The manifests that ship: samples that mean what their comments say, permissions that are the least needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from trimtab import names
from trimtab.api.convert import to_model_spec, to_quotas, to_requirements, to_training
from trimtab.api.v1alpha1 import JobSpec, Queue
from trimtab_local.control_plane.kubeconfig import kubectl
from trimtab_policy import catalog

MANIFESTS = Path(__file__).resolve().parents[2] / "manifests"
SAMPLES = {path.stem: yaml.safe_load(path.read_text()) for path in sorted(MANIFESTS.glob("samples/*.yaml"))}
JOBS = {name: JobSpec.model_validate(m["spec"]) for name, m in SAMPLES.items() if m["kind"] == names.JOB_KIND}
RBAC = list(yaml.safe_load_all((MANIFESTS / "rbac.yaml").read_text()))
RULES = [rule for obj in RBAC for rule in obj.get("rules", [])]
CONTROLLER = f"system:serviceaccount:{names.SYSTEM_NAMESPACE}:trimtab-controller"


def test_samples_show_every_launcher_elasticity_and_way_to_name_a_model() -> None:
    assert {spec.launcher.value for spec in JOBS.values()} >= {"Torchrun", "Torchtitan", "Megatron", "DeepSpeed"}
    assert {spec.elasticity.policy.value for spec in JOBS.values()} == {"Fixed", "Moldable", "Elastic"}
    assert {spec.model.preset is None for spec in JOBS.values()} == {True, False}


@pytest.mark.parametrize("name", JOBS)
def test_samples_are_called_like_their_files_and_can_be_worked_with(name: str) -> None:
    spec = JOBS[name]
    assert SAMPLES[name]["metadata"]["name"] == name
    assert to_training(spec.training).steps >= 100
    assert to_model_spec(spec.model).layers > 0
    assert set(to_requirements(spec).gpu_types) <= {gpu.name for gpu in catalog.all_gpus()}


def test_the_architecture_written_out_is_the_preset_of_that_size() -> None:
    shape, preset = to_model_spec(JOBS["gpt3-13b"].model), catalog.model("gpt3-13b")
    assert catalog.parameters(shape) == catalog.parameters(preset)


def test_samples_refer_to_queues_that_exist() -> None:
    queues = {m["metadata"]["name"]: Queue.model_validate(m) for m in SAMPLES.values() if m["kind"] == names.QUEUE_KIND}
    assert {spec.queue for spec in JOBS.values() if spec.queue} <= queues.keys()
    assert all(to_quotas(name, queue.spec) for name, queue in queues.items())


def test_permissions_have_no_wildcard_and_leave_secrets_and_nodes_alone() -> None:
    said = [word for rule in RULES for words in rule.values() for word in words]
    assert "*" not in said
    assert not {"pods/exec", "impersonate", "escalate", "bind"} & set(said)
    (secrets,) = (rule for rule in RULES if "secrets" in rule["resources"])
    assert secrets["verbs"] == ["create"], "in dry runs, which admission holds it to; none is ever read"
    (nodes,) = (rule for rule in RULES if "nodes" in rule["resources"])
    assert nodes["verbs"] == ["get", "list", "watch"]


def test_of_config_maps_only_those_of_its_own_may_be_read_and_two_written() -> None:
    every = [(o, rule) for o in RBAC for rule in o.get("rules", []) if "configmaps" in rule["resources"]]
    asked = {"apiGroups": [""], "resources": ["secrets", "configmaps"], "verbs": ["create"]}  # in dry runs
    found = [(o, rule) for o, rule in every if rule != asked]
    assert len(found) == len(every) - 1
    assert {(o["kind"], o["metadata"]["namespace"]) for o, _ in found} == {("Role", names.SYSTEM_NAMESPACE)}
    assert [(rule.get("resourceNames"), rule["verbs"]) for _, rule in found] == [
        ([names.POLICY_CONFIG_MAP], ["get", "list", "watch"]),
        (None, ["create"]),  # cannot be limited by name
        ([names.MONITOR_CONFIG_MAP], ["get", "patch"]),
        ([names.CALIBRATION_CONFIG_MAP], ["get", "patch"]),
    ]


def test_users_may_be_let_see_what_was_learned_and_nothing_else() -> None:
    objects = yaml.safe_load_all((MANIFESTS / "reports.yaml").read_text())
    (role,) = (each for each in objects if each["kind"] == "Role")
    assert role["metadata"]["namespace"] == names.SYSTEM_NAMESPACE
    (rule,) = role["rules"]
    assert (rule["resources"], rule["resourceNames"], rule["verbs"]) == (
        ["configmaps"], [names.CALIBRATION_CONFIG_MAP], ["get"],
    )  # fmt: skip


def test_the_lease_of_others_is_out_of_reach() -> None:
    leases = [rule for rule in RULES if rule["resources"] == ["leases"]]
    assert [rule.get("resourceNames") for rule in leases if rule["verbs"] != ["create"]] == [[names.LEASE_NAME]]


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("verb", "group", "resource", "name", "allowed"),
    [
        ("patch", "trimtab.dev", "llmtrainingjobs/status", "", "true"),
        ("create", "", "pods/binding", "", "true"),
        ("update", "coordination.k8s.io", "leases", "trimtab-controller", "true"),
        ("update", "coordination.k8s.io", "leases", "another", "false"),
        ("update", "trimtab.dev", "llmtrainingjobs", "", "false"),
        ("patch", "", "nodes", "", "false"),
        ("get", "", "secrets", "", "false"),
        ("list", "", "secrets", "", "false"),
        ("create", "", "secrets", "", "true"),  # in dry runs: admission
        ("get", "", "persistentvolumeclaims", "", "true"),
        ("list", "", "persistentvolumeclaims", "", "false"),
        ("watch", "", "configmaps", "trimtab-policy", "true"),
        ("update", "", "configmaps", "trimtab-policy", "false"),
        ("patch", "", "configmaps", "trimtab-calibration", "true"),
        ("patch", "", "configmaps", "trimtab-monitor", "true"),
        ("update", "", "configmaps", "trimtab-calibration", "false"),
        ("list", "", "configmaps", "", "false"),
        ("patch", "trimtab.dev", "gpunodes/status", "", "true"),
        ("patch", "trimtab.dev", "gpunodes", "", "false"),
    ],
)
def test_what_the_controller_may_do(
    kubeconfig: Path, verb: str, group: str, resource: str, name: str, allowed: str
) -> None:
    kubectl(kubeconfig, "apply", "--server-side", "--force-conflicts", "-f", str(MANIFESTS / "rbac.yaml"))
    kind, _, subresource = resource.partition("/")
    what = {"verb": verb, "group": group, "resource": kind, "subresource": subresource, "name": name}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": CONTROLLER, "resourceAttributes": what | {"namespace": names.SYSTEM_NAMESPACE}},
    }
    said = kubectl(kubeconfig, "create", "-o", "jsonpath={.status.allowed}", "-f", "-", stdin=json.dumps(review))
    assert said == allowed
