"""A job whose template names what is not there holds no GPUs, says what is missing, and starts once it is there."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.live.accounts import clear, controlling
from tests.live.harness import NAMESPACE, ControllerProcess, Live, eventually, training_job

from trimtab import names

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

POD: dict[str, Any] = {
    "serviceAccountName": "absent-account",
    "volumes": [
        {"name": "data", "persistentVolumeClaim": {"claimName": "absent-claim"}},
        {"name": "may-be", "secret": {"secretName": "absent-and-optional", "optional": True}},
        {"name": "keys", "secret": {"secretName": "absent-keys"}},
    ],
    "containers": [
        {"name": "trainer", "image": "example.test/trainer:1", "envFrom": [{"configMapRef": {"name": "absent-config"}}]}
    ],
}
MISSING = {
    "ServiceAccount": "spec.template.spec.serviceAccountName",
    "PersistentVolumeClaim": "spec.template.spec.volumes[0].persistentVolumeClaim.claimName",
    "Secret": "spec.template.spec.volumes[2].secret.secretName",
    "ConfigMap": "spec.template.spec.containers[0].envFrom[0].configMapRef.name",
}
NAMES = {
    "ServiceAccount": "absent-account",
    "Secret": "absent-keys",
    "PersistentVolumeClaim": "absent-claim",
    "ConfigMap": "absent-config",
}


def planned(live: Live, job: str) -> dict[str, str]:
    """The condition Planned, or an empty object."""
    found = live.status(job).get("conditions", [])
    return next((each for each in found if each["type"] == names.PLANNED), {})


async def says_first(live: Live, wanted: str) -> None:
    """Wait until this is the first thing that the job waits for."""
    await eventually(
        lambda: planned(live, "refers").get("message", "").split("; ")[0] == wanted,
        what=lambda: f"{wanted}: {live.status('refers')}",
    )


def absent(kind: str) -> dict[str, Any]:
    """One of the missing objects."""
    storage = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    made = {"apiVersion": "v1", "kind": kind, "metadata": {"name": NAMES[kind], "namespace": NAMESPACE}}
    return made | ({"spec": storage} if kind == "PersistentVolumeClaim" else {})


@pytest.fixture
def clean(live_cluster: Live) -> Iterator[None]:
    yield
    clear(live_cluster)
    for kind in MISSING:
        live_cluster.delete(kind, NAMES[kind], "--wait=false")


@pytest.fixture
async def controller(live: Live, clean: None, tmp_path: Path) -> AsyncIterator[ControllerProcess]:
    async with controlling(live, tmp_path) as process:
        yield process


async def test_it_waits_for_each_of_them_in_turn_and_starts_with_the_last(
    live: Live, controller: ControllerProcess
) -> None:
    job = training_job("refers", gpus=8, seconds=600.0, template={"spec": POD})
    live.apply(job)
    for kind, field in MISSING.items():
        await says_first(live, f"{field}: there is no {kind} '{NAMES[kind]}' in namespace {NAMESPACE}")
        said = planned(live, "refers")
        assert (said["status"], said["reason"]) == ("False", "ObjectNotFound")
        assert live.status("refers").get("plan") is None
        assert live.pods("refers") == []
        live.apply(absent(kind))
    await live.until("refers", names.PODS_READY)
    assert live.status("refers").get("restarts", 0) == 0
    secrets = json.loads(live.cluster.kubectl("get", "secrets,configmaps", "-n", NAMESPACE, "-o", "json"))["items"]
    here = {each["metadata"]["name"] for each in secrets} - {"kube-root-ca.crt"}
    assert here == {"absent-keys", "absent-config"}, "asking makes nothing"
