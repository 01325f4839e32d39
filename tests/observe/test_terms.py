"""What a plan was decided for holds for its gang until it ends: its queue, its priority, what its pods ask for."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.builders import (
    MOMENT,
    NOW,
    gang_pod,
    job_object,
    node_object,
    placement,
    plan_of,
    priority_class,
    queue_object,
)

from trimtab import names
from trimtab.api.status import Condition, JobStatus, PlanTerms
from trimtab.kube.objects import JobObject, PriorityClassObject, QueueObject
from trimtab.observe.snapshot import Caches, ClusterObserver, Observation
from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.types import Job, PendingReason

TERMS = PlanTerms(queue="team-a", priority_class="vip", priority=1000, memory_bytes_per_gpu=64 << 30)
VIP = {"priorityClassName": "vip"}
READY = Condition(type=names.PODS_READY, status="True", reason="Running", last_transition_time=MOMENT)


def runs(spec: dict[str, Any] | None = None, terms: PlanTerms | None = TERMS) -> JobObject:
    plan = plan_of(placement(nodes={"n1": 8}), terms=terms)
    return job_object(spec=spec, status=JobStatus(plan=plan, last_epoch=1, conditions=(READY,)))


def look(
    *jobs: JobObject, queues: tuple[QueueObject, ...] = (), classes: tuple[PriorityClassObject, ...] = ()
) -> Observation:
    nodes = [node_object("n1"), node_object("n2")]
    return ClusterObserver(()).observe(Caches(nodes, [], jobs, queues, classes), NOW)


def shown(*args: Any, classes: tuple[PriorityClassObject, ...] = (), **changes: Any) -> Job:
    [job] = look(runs(*args, **changes), classes=classes).snapshot.jobs
    return job


# --- queues ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("queue", ["gone", "team-b", "team-c", None], ids=str)
def test_no_edit_takes_what_a_gang_holds_off_the_queue_that_it_was_started_in(queue: str | None) -> None:
    """Else a team with a quota of 8 GPUs holds the whole cluster, one edit after the other."""
    lines = (
        queue_object("team-a", {"gpuType": "*", "gpus": 8}),
        queue_object("team-b", namespaces=["other"]),
        queue_object("team-c", {"gpuType": "*", "gpus": 0}),
    )
    seen = look(runs({"queue": queue}), job_object("next", {"queue": "team-a"}), queues=lines)
    [held] = [job for job in seen.snapshot.jobs if job.placement]
    assert held.queue == "team-a"
    assert not Capacity(seen.snapshot).within_quota("team-a", "A100-SXM4-80GB", 1)


def test_a_gang_without_a_queue_takes_nothing_of_one_that_is_named_later_and_an_old_plan_goes_by_the_spec() -> None:
    assert shown({"queue": "team-a"}, TERMS.model_copy(update={"queue": ""})).queue == ""
    assert shown({"queue": "team-a"}, None).queue == "team-a"


def test_a_job_that_waits_counts_against_the_queue_that_it_names_now() -> None:
    waits = job_object(spec={"queue": "gone"}, status=JobStatus(last_epoch=1))
    assert look(waits).refused["uid-job"].reason is PendingReason.QUEUE_NOT_FOUND


# --- priorities ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("classes", [(), (priority_class("vip", 5),)], ids=["deleted", "made anew"])
def test_a_gang_keeps_the_value_of_its_priority_class(classes: tuple[PriorityClassObject, ...]) -> None:
    assert shown(VIP, classes=classes).priority == 1000


def test_another_class_counts_at_once_and_one_that_is_not_there_changes_nothing() -> None:
    low = priority_class("low", 3)
    assert shown({"priorityClassName": "low"}, classes=(low,)).priority == 3
    assert shown({"priorityClassName": "lwo"}, classes=(low,)).priority == 1000
    assert shown(classes=(low,)).priority == 0, "it names none any more"
    assert shown(VIP, None, classes=(priority_class("vip", 7),)).priority == 7


def test_a_new_default_class_is_for_new_gangs_and_of_several_the_lowest_counts() -> None:
    default = (priority_class("d", 9, default=True), priority_class("e", 4, default=True))
    plain = TERMS.model_copy(update={"priority_class": "", "priority": 2})
    assert shown(None, plain, classes=default).priority == 2
    assert shown(None, None, classes=default).priority == 4


@pytest.mark.parametrize(
    ("policy", "preempts"), [("Never", False), ("PreemptLowerPriority", True), (None, True)], ids=str
)
def test_jobs_of_a_class_that_never_preempts_stop_nobody(policy: str | None, preempts: bool) -> None:
    vip = replace(priority_class("vip", 1000), preemption_policy=policy)
    [job] = look(job_object(spec=VIP), classes=(vip,)).snapshot.jobs
    assert job.preempts is preempts


# --- what pods ask for -----------------------------------------------------------------------------------------------
def test_pods_that_are_not_made_yet_are_charged_what_they_will_ask_for() -> None:
    edited = runs({"resources.memoryPerGpu": "1Gi"})
    before = {node.name: node.free_memory for node in look().snapshot.nodes}
    after = {node.name: node.free_memory for node in look(edited).snapshot.nodes}
    assert before["n1"] - after["n1"] == 8 * (64 << 30)
    made = gang_pod("job", 1, 0, "n1", phase="Running")
    caches = Caches([node_object("n1")], [made], [edited])
    [node] = ClusterObserver(()).observe(caches, NOW).snapshot.nodes
    assert node.free_memory == before["n1"], "a pod is charged what it says"
