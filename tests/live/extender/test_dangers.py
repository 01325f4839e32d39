"""What extenders are known to bring about (kube-scheduler 1.36), and that we are not exposed to it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.live.extender.conftest import DEEP, WIDE
from tests.live.extender.front import Front
from tests.live.extender.gangs import bound, epoch, foreign_pod, gang, planned_nodes, released, rolled_back, runs_whole
from tests.live.extender.process import ExtenderProcess
from tests.live.extender.stand_in import Answer, StandIn, every_node, no_node
from tests.live.harness import ControllerProcess, Live, eventually

from trimtab import names
from trimtab.apply import write
from trimtab.kube.client import KubeClient
from trimtab.kube.discovery import pod_group_kind
from trimtab.kube.resources import POD_GROUPS
from trimtab.settings import KubeSettings

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

PRIORITIES = [
    {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value}
    for name, value in (("low", 1), ("high", 1000))
]


def pinned_to(node: str) -> dict[str, Any]:
    fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
    required = {"nodeSelectorTerms": [{"matchFields": fields}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def says(live: Live, pod: str) -> str:
    """What kube-scheduler says of a pod."""
    conditions = live.get("pod", pod).get("status", {}).get("conditions", [])
    return next(
        (c.get("message", "") for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"), ""
    )


# --- preemption ----------------------------------------------------------------------------------------------------
async def test_nobody_is_killed_for_a_pod_that_is_refused(live: Live, stand_in: Callable[[Answer], StandIn]) -> None:
    """The stock profile beside it would kill: the same pod under that name shows it."""
    stand_in(no_node)
    live.apply(*PRIORITIES)
    live.apply(*(foreign_pod(f"victim-{node}", node, gpus=8, priorityClassName="low") for node in DEEP))
    await eventually(lambda: live.get("pod", "victim-deep-0")["status"].get("phase") == "Running", what="a victim")
    wish: dict[str, Any] = {"gpus": 8, "priorityClassName": "high"}
    try:
        live.apply(
            foreign_pod("pinned", scheduler="trimtab", affinity=pinned_to("deep-0"), **wish),
            foreign_pod("roaming", scheduler="trimtab", nodeSelector={"pool": "deep"}, **wish),
            foreign_pod("small", scheduler="trimtab", gpus=1, priorityClassName="high"),
        )
        await eventually(lambda: all(says(live, pod) for pod in ("pinned", "roaming", "small")), what="three refusals")
        assert "not by me" in says(live, "small"), "a filter's refusal, which would set preemption off"
        phases = [live.get("pod", f"victim-{node}").get("status", {}).get("phase") for node in DEEP]
        assert phases == ["Running"] * 4
        live.apply(foreign_pod("killer", affinity=pinned_to("deep-0"), **wish))
        await eventually(lambda: not live.get("pod", "victim-deep-0"), what="the stock scheduler to kill for its pod")
    finally:
        pods = ["pinned", "roaming", "small", "killer", *(f"victim-{node}" for node in DEEP)]
        live.cluster.kubectl("delete", "pod", *pods, "--ignore-not-found", "--force", "--grace-period=0")


# --- spinning ------------------------------------------------------------------------------------------------------
async def churn(live: Live, times: int) -> None:
    """Changes to nodes, each of which makes kube-scheduler think again."""
    for turn in range(times):
        live.cluster.kubectl("label", "node", *WIDE[:10], f"churn={turn}", "--overwrite")


async def test_pods_that_wait_cost_no_call_however_busy_the_cluster(
    live: Live, stand_in: Callable[[Answer], StandIn]
) -> None:
    asked = stand_in(no_node).asked
    gate = [{"name": names.SCHEDULING_GATE}]
    pods = [foreign_pod(f"gated-{i}", scheduler="trimtab", gpus=1, schedulingGates=gate) for i in range(10)]
    live.apply(*pods)
    await churn(live, 10)
    assert asked == []
    live.cluster.kubectl("delete", "pod", *(pod["metadata"]["name"] for pod in pods), "--wait=false")


async def test_pods_that_were_refused_wait_out_their_back_off(
    live: Live, stand_in: Callable[[Answer], StandIn]
) -> None:
    """100 events may cost no more calls than the back-off of 1, 2, 4, ... s lets through."""
    asked = stand_in(no_node).asked
    pods = [foreign_pod(f"refused-{i}", scheduler="trimtab", gpus=1) for i in range(10)]
    began = time.monotonic()
    live.apply(*pods)
    await eventually(lambda: len(asked) >= 10, what="each to be asked about")
    await churn(live, 10)
    attempts = 2 + (time.monotonic() - began)
    assert len(asked) <= 10 * attempts
    live.cluster.kubectl("delete", "pod", *(pod["metadata"]["name"] for pod in pods), "--wait=false")


# --- sampling ------------------------------------------------------------------------------------------------------
async def test_a_pinned_pod_is_asked_about_with_one_name_and_any_other_with_all_of_them(
    live: Live, patient_controller: ControllerProcess, stand_in: Callable[[Answer], StandIn]
) -> None:
    asked = stand_in(every_node).asked
    live.apply(gang("pinned", 8))
    await runs_whole(live, "pinned")
    plan = planned_nodes(live, "pinned")
    assert {request["Pod"]["metadata"]["name"]: request["NodeNames"] for request in asked} == {
        f"pinned-1-{rank}": [node] for rank, node in enumerate(plan)
    }
    asked.clear()
    live.apply(foreign_pod("stray", scheduler="trimtab", gpus=1))
    await eventually(lambda: bool(asked), what="the stray to be asked about")
    assert len(asked[0]["NodeNames"]) == len(WIDE) + len(DEEP) - 8, "not a sample: all that have a GPU free"
    live.cluster.kubectl("delete", "pod", "stray", "--wait=false")
    await live.gone("pinned")


async def test_a_scheduler_that_looks_at_a_sample_of_nodes_binds_as_planned_all_the_same(
    live: Live, tmp_path: Path
) -> None:
    """The stock one: of 116 nodes it takes the first 100 that suit a pod, and begins each time where it left off."""
    settings = {"binding": {"mode": "Extender", "scheduler_name": "default-scheduler"}}
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, **settings):
        live.apply(gang("sampled", 64))
        await runs_whole(live, "sampled")
        await live.gone("sampled")


# --- the way back --------------------------------------------------------------------------------------------------
async def test_a_gang_that_waits_for_kube_scheduler_is_bound_directly_after_a_change_of_mode(
    live: Live, extender: ExtenderProcess, front: Front, tmp_path: Path
) -> None:
    front.down()
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, binding={"mode": "Extender"}):
        live.apply(gang("changed", 2))
        await released(live, "changed", 2)
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path):
        await rolled_back(live, "changed", "BindingChanged")
        await runs_whole(live, "changed")
        assert epoch(live, "changed") == 2
        await live.gone("changed")


async def test_direct_binding_beside_a_scheduler_for_the_same_pods_is_not_disturbed(
    live: Live, extender: ExtenderProcess, tmp_path: Path
) -> None:
    """Both may bind; the extender sees to it that they agree."""
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path):
        live.apply(gang("both", 64))
        await runs_whole(live, "both")
        await live.gone("both")


# --- releasing and PodGroups, at the API server itself ---------------------------------------------------------------
async def test_a_release_is_safe_to_repeat_and_meant_for_one_pod_only(live: Live, tmp_path: Path) -> None:
    gates = [{"name": names.SCHEDULING_GATE}, {"name": "example.com/quota"}]
    live.apply(foreign_pod("guarded", scheduler="trimtab", gpus=1, schedulingGates=gates))
    uid = live.get("pod", "guarded")["metadata"]["uid"]
    async with await KubeClient.connect(KubeSettings(kubeconfig=live.kubeconfig(tmp_path))) as client:
        with pytest.raises(write.WriteRefused, match="releasing pod guarded"):
            await write.release(client, "default", "guarded", "another-uid")
        for _ in range(2):
            answer = json.loads(await write.release(client, "default", "guarded", uid))
            assert answer["spec"]["schedulingGates"] == gates[1:]
        live.cluster.kubectl("delete", "pod", "guarded")
        with pytest.raises(write.WriteRefused):
            await write.release(client, "default", "guarded", uid)


async def test_a_gang_whose_pod_group_is_refused_is_held_together_by_its_gates(
    live: Live, fresh_scheduler: None, patient_controller: ControllerProcess, extender: ExtenderProcess
) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "groups", "namespace": "default"}}
    live.apply({**quota, "spec": {"hard": {"count/podgroups.scheduling.k8s.io": "0"}}})
    try:
        live.apply(gang("ungrouped", 8))
        await runs_whole(live, "ungrouped")
        assert epoch(live, "ungrouped") == 1
        assert len(bound(live, "ungrouped")) == 8
        assert not any("schedulingGroup" in pod["spec"] for pod in live.pods("ungrouped"))
        assert patient_controller.metric("trimtab_pod_groups_refused_total") == 1
    finally:
        live.delete("resourcequota", "groups")
        await live.gone("ungrouped")


async def test_pod_groups_are_used_where_they_are_served(live: Live) -> None:
    async with await KubeClient.connect(KubeSettings(kubeconfig=live.cluster.kubeconfig)) as client:
        assert await pod_group_kind(client) == POD_GROUPS
