"""Which GPUs gangs hold, each once, and what agents say of them: used, idle, or nothing."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import NOW, gang_pod, job, job_object, leaving, node_object, placement, plan_of

from trimtab import names
from trimtab.api.status import Condition, JobStatus, Plan
from trimtab.kube.objects import JobObject
from trimtab.observe.gpu_use import GpuUse, gangs, use_of
from trimtab.observe.node_usage import Claim
from trimtab.observe.snapshot import Caches, ClusterObserver, Observation
from trimtab.observe.telemetry import GpuFacts, NodeTelemetry

LEAST = 0.02
JOBS = {
    "default/job-3-0": "default/job",
    "default/other-1-0": "default/other",
    "default/theirs-0-x7k2p": "default/theirs-5f1c2",
}
"""Pod -> its job; all others are of none."""


def gpu(index: int, utilization: float, *pods: str, asked: bool = True) -> GpuFacts:
    return GpuFacts(f"GPU-{index}", index, utilization=utilization, pods=pods if asked else None)


def told(*gpus: GpuFacts, node: str = "n1") -> dict[str, NodeTelemetry]:
    return {node: NodeTelemetry(node, f"uid-{node}", gpus=gpus)}


def use(held: int, telemetry: dict[str, NodeTelemetry], name: str = "job") -> GpuUse:
    return use_of(job(name), placement(nodes={"n1": held}), telemetry, LEAST, lambda pod: JOBS.get(pod, ""))


# --- what a gang does with its GPUs ----------------------------------------------------------------------------------
def test_each_gpu_of_a_gang_is_used_or_idle_by_what_its_agent_says() -> None:
    own = gpu(0, 0.9, "default/job-3-0"), gpu(1, 0.0, "default/job-3-0"), gpu(2, math.nan, "default/job-3-0")
    assert use(3, told(*own, gpu(3, 0.9, "default/other-1-0"))) == GpuUse(1, 1, 1)


def test_pods_that_another_controller_has_made_count_for_the_job_that_stands_in_for_theirs() -> None:
    theirs = gpu(0, 0.9, "default/theirs-0-x7k2p"), gpu(1, 0.0, "default/theirs-0-x7k2p")
    assert use(2, told(*theirs), "theirs-5f1c2") == GpuUse(1, 1)


def test_where_no_agent_reports_nothing_is_known() -> None:
    assert use(8, {}) == GpuUse(unknown=8)
    assert use(8, told(*(gpu(i, 0.0) for i in range(8)), node="n2")) == GpuUse(unknown=8)


def test_a_gang_with_a_node_for_itself_has_all_its_gpus_though_no_kubelet_was_asked() -> None:
    cards = tuple(gpu(index, 0.0, asked=False) for index in range(8))
    assert use(8, told(*cards)) == GpuUse(idle=8)
    assert use(7, told(*cards)) == GpuUse(unknown=7)


def test_where_the_kubelet_knows_of_no_pod_yet_nothing_is_known() -> None:
    assert use(8, told(*(gpu(index, 0.0) for index in range(8)))) == GpuUse(unknown=8)


@pytest.mark.parametrize(
    "pod", ["default/job-1-0-0", "default/other-1-0", "team/job-1-0", "default/job-1", "default/job-1-x"]
)
def test_pods_that_are_called_alike_are_somebody_else_s(pod: str) -> None:
    assert use(1, told(gpu(0, 0.9, pod), gpu(1, 0.9, pod))) == GpuUse(unknown=1)


@pytest.mark.parametrize(
    ("seen", "idle"),
    [
        (GpuUse(), None),
        (GpuUse(unknown=1), None),
        (GpuUse(idle=7, unknown=1), None),
        (GpuUse(used=1, unknown=7), False),
        (GpuUse(used=1, idle=7), False),
        (GpuUse(idle=8), True),
    ],
)
def test_a_gang_is_idle_where_that_is_known_of_every_gpu(seen: GpuUse, idle: bool | None) -> None:
    assert seen.verdict is idle


@st.composite
def cards(draw: st.DrawFn) -> list[GpuFacts]:
    part = st.one_of(st.floats(0, 1), st.just(math.nan))
    pod = st.sampled_from(["default/job-1-0", "default/job-2-0", "default/other-1-0"])
    pods = st.one_of(st.none(), st.lists(pod, max_size=2).map(tuple))
    count = draw(st.integers(0, 10))
    return [GpuFacts(f"GPU-{i}", i, utilization=draw(part), pods=draw(pods)) for i in range(count)]


@given(cards(), st.integers(1, 8))
def test_whatever_an_agent_says_a_gang_has_as_many_gpus_as_it_holds(reported: list[GpuFacts], held: int) -> None:
    found = use(held, told(*reported))
    assert found.used + found.idle + found.unknown == held
    assert min(found.used, found.idle, found.unknown) >= 0


# --- who holds what --------------------------------------------------------------------------------------------------
def planned(name: str, plan: Plan, *, bound: bool = False) -> JobObject:
    said: dict[str, Any] = {"status": "True", "reason": "Yes", "last_transition_time": plan.created_time}
    conditions = (Condition(type=names.GANG_SCHEDULED, **said),) if bound else ()
    return job_object(name, {}, JobStatus(plan=plan, last_epoch=plan.epoch, conditions=conditions))


def held(seen: Observation) -> dict[str, int]:
    """Name of a job -> GPUs."""
    found: dict[str, int] = {}
    for each, place in gangs(seen):
        found[each.name] = found.get(each.name, 0) + place.gpus
    return found


def look(jobs: list[JobObject], pods: list[Any] | None = None, promised: list[Claim] | None = None) -> Observation:
    nodes = [node_object("n1"), node_object("n2")]
    return ClusterObserver(()).observe(Caches(nodes, pods or [], jobs), NOW, promised or [])


def test_a_gang_holds_its_gpus_from_its_plan_on_and_its_pods_until_they_have_ended() -> None:
    assert held(look([planned("runs", plan_of(placement("uid-runs")))])) == {"runs": 8}
    assert held(look([], [gang_pod("gone", 1, 0, "n1", phase="Running")])) == {"gone": 8}
    assert held(look([job_object("waits")])) == {}


def test_what_is_only_promised_is_not_held() -> None:
    claim = Claim("uid-next", 1, placement("uid-next"))
    seen = look([job_object("next")], promised=[claim])
    assert [each.placement is not None for each in seen.snapshot.jobs] == [True]
    assert held(seen) == {}


@pytest.mark.parametrize("bound", [False, True])
def test_gpus_that_a_plan_waits_for_are_those_of_who_has_them(bound: bool) -> None:
    heir = planned("heir", plan_of(placement("uid-heir"), waits_for=(leaving("old"),)), bound=bound)
    if bound:
        assert held(look([heir], [gang_pod("heir", 1, 0, "n1", phase="Running")])) == {"heir": 8}
    else:
        old = planned("old", plan_of(placement("uid-old")))
        assert held(look([old, heir], [gang_pod("old", 1, 0, "n1", phase="Running")])) == {"old": 8}
