"""Which pods the API server has to hold against the template of their job."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.plan.reach import reaches

PLAIN: dict[str, dict[str, Any]] = {
    "nothing": {},
    "the default account": {"serviceAccountName": "default", "serviceAccount": "default"},
    "nothing of its host": {"hostNetwork": False, "hostPID": False, "hostIPC": None},
    "volumes of the namespace": {
        "volumes": [
            {"name": "a", "emptyDir": {}},
            {"name": "b", "persistentVolumeClaim": {"claimName": "b"}},
            {"name": "c", "configMap": {"name": "c"}},
        ]
    },
    "a user": {"securityContext": {"runAsUser": 1000, "fsGroup": 7, "seccompProfile": {"type": "RuntimeDefault"}}},
}
PLAIN_CONTAINER: dict[str, dict[str, Any]] = {
    "variables": {"env": [{"name": "A", "value": "b"}, {"name": "C", "valueFrom": {"configMapKeyRef": {}}}]},
    "ports": {"ports": [{"containerPort": 29500}, {"containerPort": 1, "hostPort": 0}]},
    "fewer rights": {
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"], "add": []}}
    },
}
REACHING: dict[str, dict[str, Any]] = {
    "an account": {"serviceAccountName": "x"},
    "an account by its old name": {"serviceAccount": "x"},
    "the network of its host": {"hostNetwork": True},
    "processes of its host": {"hostPID": True},
    "memory of its host": {"hostIPC": True},
    "a claim": {"resourceClaims": [{"name": "c", "resourceClaimName": "c"}]},
    "a secret": {"volumes": [{"name": "s", "secret": {"secretName": "x"}}]},
    "a path": {"volumes": [{"name": "s", "hostPath": {"path": "/"}}]},
    "a token": {"volumes": [{"name": "s", "projected": {"sources": []}}]},
    "a volume of a kind of tomorrow": {"volumes": [{"name": "s", "floppyDisk": {}}]},
    "sysctls": {"securityContext": {"sysctls": [{"name": "a", "value": "b"}]}},
    "a label of SELinux": {"securityContext": {"seLinuxOptions": {"type": "spc_t"}}},
    "Windows": {"securityContext": {"windowsOptions": {"hostProcess": True}}},
}
REACHING_CONTAINER: dict[str, dict[str, Any]] = {
    "a secret": {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
    "all of a secret": {"envFrom": [{"secretRef": {"name": "s"}}]},
    "a port": {"ports": [{"containerPort": 1, "hostPort": 22}]},
    "privileges": {"securityContext": {"privileged": True}},
    "a capability": {"securityContext": {"capabilities": {"add": ["NET_ADMIN"]}}},
    "unmasked": {"securityContext": {"procMount": "Unmasked"}},
    "a field of tomorrow": {"securityContext": {"godMode": True}},
}
CONTAINER = {"name": "trainer", "image": "i:1"}


@pytest.mark.parametrize("spec", PLAIN.values(), ids=PLAIN)
def test_what_every_pod_of_the_namespace_may_have_is_no_reach(spec: dict[str, Any]) -> None:
    assert not reaches({"containers": [CONTAINER], **spec})


@pytest.mark.parametrize("fields", PLAIN_CONTAINER.values(), ids=PLAIN_CONTAINER)
def test_nor_is_what_every_container_may_have(fields: dict[str, Any]) -> None:
    assert not reaches({"containers": [CONTAINER | fields], "initContainers": [CONTAINER | fields]})


@pytest.mark.parametrize("spec", REACHING.values(), ids=REACHING)
def test_what_lies_beyond_is(spec: dict[str, Any]) -> None:
    assert reaches({"containers": [CONTAINER], **spec})


@pytest.mark.parametrize("fields", REACHING_CONTAINER.values(), ids=REACHING_CONTAINER)
@pytest.mark.parametrize("place", ["containers", "initContainers"])
def test_in_any_container(place: str, fields: dict[str, Any]) -> None:
    spec = {"containers": [CONTAINER], "initContainers": [CONTAINER]}
    assert reaches(spec | {place: [CONTAINER, CONTAINER | fields]})


@given(st.sets(st.sampled_from(sorted(REACHING)), min_size=1), st.sets(st.sampled_from(sorted(PLAIN))))
def test_nothing_harmless_hides_it(reaching: set[str], plain: set[str]) -> None:
    spec: dict[str, Any] = {"containers": [CONTAINER]}
    for name in plain:
        spec |= PLAIN[name]
    for name in reaching:
        spec |= REACHING[name]
    assert reaches(spec)
