"""What a pod template refers to: each way in which it can, and what need not be there."""

from __future__ import annotations

from typing import Any

import pytest

from trimtab.observe.references import MOST, Reference, references_of

TRAINER = {"name": "trainer", "image": "i:1"}


def of(**pod: Any) -> list[tuple[str, str, str]]:
    """Kind, name and field below `spec.template.spec`."""
    found = references_of({"containers": [TRAINER], **pod})
    assert all(each.field.startswith("spec.template.spec.") for each in found)
    return [(each.kind, each.name, each.field.removeprefix("spec.template.spec.")) for each in found]


def volume(**source: Any) -> dict[str, Any]:
    return {"volumes": [{"name": "v", **source}]}


def variable(**source: Any) -> dict[str, Any]:
    return {"containers": [TRAINER | {"env": [{"name": "V", "valueFrom": source}]}]}


WAYS: dict[str, tuple[dict[str, Any], str]] = {
    "claim": (
        volume(persistentVolumeClaim={"claimName": "x"}),
        "PersistentVolumeClaim volumes[0].persistentVolumeClaim.claimName",
    ),
    "secret": (volume(secret={"secretName": "x"}), "Secret volumes[0].secret.secretName"),
    "config map": (volume(configMap={"name": "x"}), "ConfigMap volumes[0].configMap.name"),
    "projected secret": (
        volume(projected={"sources": [{"downwardAPI": {}}, {"secret": {"name": "x"}}]}),
        "Secret volumes[0].projected.sources[1].secret.name",
    ),
    "projected config map": (
        volume(projected={"sources": [{"configMap": {"name": "x"}}]}),
        "ConfigMap volumes[0].projected.sources[0].configMap.name",
    ),
    "csi": (
        volume(csi={"driver": "d", "nodePublishSecretRef": {"name": "x"}}),
        "Secret volumes[0].csi.nodePublishSecretRef.name",
    ),
    "variable of a secret": (
        variable(secretKeyRef={"name": "x", "key": "k"}),
        "Secret containers[0].env[0].valueFrom.secretKeyRef.name",
    ),
    "variable of a config map": (
        variable(configMapKeyRef={"name": "x", "key": "k"}),
        "ConfigMap containers[0].env[0].valueFrom.configMapKeyRef.name",
    ),
    "variables of a secret": (
        {"initContainers": [TRAINER | {"envFrom": [{"secretRef": {"name": "x"}}]}]},
        "Secret initContainers[0].envFrom[0].secretRef.name",
    ),
    "variables of a config map": (
        {"containers": [TRAINER, TRAINER | {"envFrom": [{"prefix": "P"}, {"configMapRef": {"name": "x"}}]}]},
        "ConfigMap containers[1].envFrom[1].configMapRef.name",
    ),
    "account": ({"serviceAccountName": "x"}, "ServiceAccount serviceAccountName"),
    "account, by its old name": ({"serviceAccount": "x"}, "ServiceAccount serviceAccount"),
}


@pytest.mark.parametrize(("pod", "told"), WAYS.values(), ids=WAYS)
def test_a_reference_is_found_with_the_field_that_names_it(pod: dict[str, Any], told: str) -> None:
    kind, _, field = told.partition(" ")
    assert of(**pod) == [(kind, "x", field)]


@pytest.mark.parametrize(
    "pod",
    [
        volume(secret={"secretName": "x", "optional": True}),
        volume(configMap={"name": "x", "optional": True}),
        volume(projected={"sources": [{"secret": {"name": "x", "optional": True}}, {"serviceAccountToken": {}}]}),
        variable(secretKeyRef={"name": "x", "key": "k", "optional": True}),
        variable(configMapKeyRef={"name": "x", "key": "k", "optional": True}),
        variable(fieldRef={"fieldPath": "status.podIP"}),
        {"containers": [TRAINER | {"envFrom": [{"configMapRef": {"name": "x", "optional": True}}]}]},
        volume(emptyDir={}),
        volume(ephemeral={"volumeClaimTemplate": {}}),
        {"serviceAccountName": ""},
    ],
)
def test_what_need_not_be_there_is_no_reference(pod: dict[str, Any]) -> None:
    assert of(**pod) == []


def test_an_object_is_asked_for_once_however_often_it_is_named() -> None:
    twice = [{"name": name, "persistentVolumeClaim": {"claimName": "data"}} for name in ("a", "b")]
    assert [field for _, _, field in of(volumes=twice)] == ["volumes[0].persistentVolumeClaim.claimName"]


def test_kubelets_start_pods_without_their_pull_secrets() -> None:
    assert of(imagePullSecrets=[{"name": "x"}]) == []


def test_one_job_is_asked_about_so_many_at_most() -> None:
    many = [{"name": f"v{index}", "secret": {"secretName": f"s{index}"}} for index in range(10 * MOST)]
    assert len(of(volumes=many)) == MOST


@pytest.mark.parametrize("junk", [None, 7, "x", [], {}, [None], ["x"], [[]], {"x": 1}])
def test_a_template_may_hold_anything_anywhere(junk: object) -> None:
    fields = ("volumes", "serviceAccountName", "initContainers", "containers")
    for field in fields:
        assert all(kind == "ServiceAccount" for kind, _, _ in of(**{field: junk}))
    for source in ("secret", "configMap", "projected", "persistentVolumeClaim", "csi"):
        assert of(**volume(**{source: junk})) == []
    assert of(containers=[TRAINER | {"env": junk, "envFrom": junk}]) == []


@pytest.mark.parametrize(
    ("name", "possible"),
    [
        ("data", True),
        ("team.data-1", True),
        ("a" * 253, True),
        ("a" * 254, False),
        ("Data", False),
        ("../../secrets/x", False),
        ("a..b", False),
        ("a/b", False),
        ("a?b", False),
        ("-a", False),
        ("a\n", False),
    ],
)
def test_only_names_that_an_object_can_have_are_asked_for(name: str, possible: bool) -> None:
    assert Reference("Secret", name, "f").possible is possible
