"""What kube-scheduler sees and we do not: it refuses, nothing half stays, the user reads why, the next plan is another.

The extender is out of reach while a plan is made and released, so that the world can change between plan and binding.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.live.extender.conftest import DEEP
from tests.live.extender.front import Front
from tests.live.extender.gangs import (
    bound,
    foreign_pod,
    gang,
    planned_nodes,
    released,
    rolled_back,
    runs_whole,
)
from tests.live.extender.process import ExtenderProcess
from tests.live.harness import ControllerProcess, Live, eventually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


@pytest.fixture
def after_the_plan(front: Front, extender: ExtenderProcess) -> Any:
    """Nothing is bound before `front.to(extender.port)`."""
    front.down()
    return lambda: front.to(extender.port)


async def test_a_node_that_is_tainted_between_plan_and_binding_is_not_used(
    live: Live, controller: ControllerProcess, after_the_plan: Any
) -> None:
    live.apply(gang("tainted", 2, pool="deep"))
    await released(live, "tainted", 2)
    tainted = planned_nodes(live, "tainted")[1]
    live.cluster.kubectl("taint", "node", tainted, "test=true:NoSchedule")
    try:
        after_the_plan()
        await rolled_back(live, "tainted", "BindTimeout", "untolerated taint")
        await runs_whole(live, "tainted")
        assert tainted not in bound(live, "tainted")
    finally:
        live.cluster.kubectl("taint", "node", tainted, "test-")
        await live.gone("tainted")


def local_volume(name: str, node: str, mode: str) -> list[dict[str, Any]]:
    """A volume of one node, and a claim on it."""
    terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}]
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": name}
    return [
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": name},
            "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": mode,
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                **common,
                "capacity": {"storage": "1Gi"},
                **({"claimRef": {"namespace": "default", "name": name}} if mode == "Immediate" else {}),
                "local": {"path": "/data"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {**common, "resources": {"requests": {"storage": "1Gi"}}},
        },
    ]


@pytest.mark.parametrize("mode", ["Immediate", "WaitForFirstConsumer"])
async def test_a_gang_finds_the_one_node_that_its_volume_is_on(
    live: Live, controller: ControllerProcess, extender: ExtenderProcess, mode: str
) -> None:
    job = f"volume-{mode.lower()}"
    live.apply(*local_volume(job, DEEP[-1], mode))
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": job}}]
    live.apply(gang(job, 1, pool="deep", volumes=volumes))
    try:
        await rolled_back(live, job, "BindTimeout", "volume")
        await runs_whole(live, job, 60)
        assert bound(live, job) == [DEEP[-1]]
        assert live.get("pvc", job)["status"]["phase"] == "Bound"
    finally:
        await live.gone(job)
        for kind in ("pvc", "pv", "storageclass"):
            live.delete(kind, job, "--wait=false")


async def test_a_pod_that_wants_no_neighbours_gets_none(
    live: Live, controller: ControllerProcess, extender: ExtenderProcess
) -> None:
    term = {
        "labelSelector": {"matchExpressions": [{"key": "trimtab.dev/job", "operator": "Exists"}]},
        "topologyKey": "kubernetes.io/hostname",
    }
    alone = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    live.apply(*(foreign_pod(f"alone-{node}", node, affinity=alone) for node in DEEP[:3]))
    live.apply(gang("neighbour", 1, pool="deep"))
    try:
        await rolled_back(live, "neighbour", "BindTimeout", "anti-affinity")
        await runs_whole(live, "neighbour", 60)
        assert bound(live, "neighbour") == [DEEP[3]]
    finally:
        live.cluster.kubectl("delete", "pod", *(f"alone-{node}" for node in DEEP[:3]), "--wait=false")
        await live.gone("neighbour")


async def test_a_quota_that_admits_only_part_of_the_gang_lets_none_of_it_stay(
    live: Live, controller: ControllerProcess, extender: ExtenderProcess
) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few", "namespace": "default"}}
    live.apply({**quota, "spec": {"hard": {"pods": "3"}}})
    try:
        live.apply(gang("over-quota", 8))
        await rolled_back(live, "over-quota", "CreateRefused", "exceeded quota")
        assert bound(live, "over-quota") == []
        await eventually(lambda: not live.pods("over-quota"), what="the admitted pods to be taken back")
    finally:
        live.delete("resourcequota", "few")
    await runs_whole(live, "over-quota")
    await live.gone("over-quota")


async def test_a_node_that_is_filled_between_plan_and_binding_is_not_used(
    live: Live, controller: ControllerProcess, after_the_plan: Any
) -> None:
    live.apply(gang("filled", 2, pool="deep"))
    await released(live, "filled", 2)
    full = planned_nodes(live, "filled")[0]
    live.apply(foreign_pod("filler", full, gpus=4))
    try:
        after_the_plan()
        await rolled_back(live, "filled", "NodeOverallocated")
        await runs_whole(live, "filled")
        assert full not in bound(live, "filled")
    finally:
        live.delete("pod", "filler")
        await live.gone("filled")


async def test_a_node_that_is_cordoned_or_gone_before_the_binding_is_not_used(
    live: Live, controller: ControllerProcess, after_the_plan: Any
) -> None:
    live.apply(gang("cordoned", 2, pool="deep"))
    await released(live, "cordoned", 2)
    cordoned = planned_nodes(live, "cordoned")[1]
    live.cluster.kubectl("cordon", cordoned)
    try:
        await rolled_back(live, "cordoned", "NodeUnavailable")
        after_the_plan()
        await runs_whole(live, "cordoned")
        assert cordoned not in bound(live, "cordoned")
    finally:
        live.cluster.kubectl("uncordon", cordoned)
        await live.gone("cordoned")
