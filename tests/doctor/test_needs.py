"""One source of rights: what the doctor asks for is what manifests/ give, rule by rule."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from trimtab import names
from trimtab.doctor import rbac
from trimtab.doctor.rbac import Need, Right

MANIFESTS = Path(__file__).resolve().parents[2] / "manifests"
Atom = tuple[str, str, str, str, bool]
"""Verb, group, resource, name, only in the own namespace."""


def given(file: str, account: str) -> Counter[Atom]:
    """What the roles of one name in a manifest give, verb by verb."""
    found: Counter[Atom] = Counter()
    for obj in yaml.safe_load_all((MANIFESTS / file).read_text()):
        if obj["kind"] in ("Role", "ClusterRole") and obj["metadata"]["name"] == account:
            for rule in obj["rules"]:
                found.update(atoms(rule, own=obj["kind"] == "Role"))
    return found


def atoms(rule: dict[str, Any], *, own: bool) -> list[Atom]:
    return [
        (verb, group, resource, name, own)
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    ]


@pytest.mark.parametrize(
    ("file", "account", "wanted"),
    [
        ("rbac.yaml", names.CONTROLLER_ACCOUNT, rbac.OF_CONTROLLER),
        ("extender.yaml", names.EXTENDER_ACCOUNT, rbac.OF_EXTENDER),
        ("agent.yaml", names.AGENT_ACCOUNT, rbac.OF_AGENT),
    ],
)
def test_what_is_asked_for_is_what_the_manifest_gives(file: str, account: str, wanted: tuple[Need, ...]) -> None:
    asked = Counter(atom for need in wanted for atom in atoms(need.rule(), own=need.own))
    assert sum(asked.values()) > 3
    assert asked == given(file, account)


def test_a_right_is_told_as_kubectl_would() -> None:
    own = Right("get", "coordination.k8s.io", "leases", "trimtab-controller", "trimtab-system")
    assert own.told() == "get leases.coordination.k8s.io 'trimtab-controller' in trimtab-system"
    assert Right("create", "", "pods/binding").told() == "create pods/binding"
    assert Right("patch", "trimtab.dev", "llmtrainingjobs/status").told() == "patch llmtrainingjobs.trimtab.dev/status"


def test_the_roles_of_the_doctor_are_bound_where_they_hold_and_write_nothing() -> None:
    made = rbac.roles_of_doctor("ops", "system:serviceaccount:ops:checker")
    rules = [rule for obj in made for rule in obj.get("rules", [])]
    writes = {
        (verb, resource)
        for rule in rules
        for verb in rule["verbs"]
        for resource in rule["resources"]
        if verb not in rbac.READ
    }
    assert writes == {("create", "subjectaccessreviews")}
    assert not {"secrets", "*"} & {resource for rule in rules for resource in rule["resources"]}
    assert [(obj["kind"], obj["metadata"].get("namespace")) for obj in made] == [
        ("ClusterRole", None), ("ClusterRoleBinding", None), ("Role", "ops"), ("RoleBinding", "ops"),
        ("Role", "kube-node-lease"), ("RoleBinding", "kube-node-lease"),
    ]  # fmt: skip
    assert all(obj["roleRef"]["kind"] in obj["kind"] for obj in made if "roleRef" in obj)
