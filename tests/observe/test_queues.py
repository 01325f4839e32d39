"""Queues: whose jobs count against which, who may wait, and what somebody should mend."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.builders import (
    A100,
    H100,
    NOW,
    T4,
    job_object,
    node_object,
    placement,
    plan_of,
    priority_class,
    queue_object,
)

from trimtab.api.status import JobStatus, PendingStatus
from trimtab.kube.objects import JobObject, NodeObject, QueueObject
from trimtab.observe.jobs import facts
from trimtab.observe.queues import TURN_SECONDS, Queues
from trimtab.observe.queues import facts as queue_facts
from trimtab.observe.snapshot import Caches, ClusterObserver, Observation
from trimtab_policy.types import PendingReason, Quota

N1 = node_object("n1")
IN_VAIN = JobStatus(
    pending=PendingStatus(reason=PendingReason.NO_FEASIBLE_PLAN, message="large"), observed_generation=1
)


def look(
    queues: Sequence[QueueObject], jobs: Sequence[JobObject] = (), nodes: Sequence[NodeObject] = (N1,), **others: Any
) -> Observation:
    return ClusterObserver(()).observe(Caches(nodes, [], jobs, queues, **others), NOW)


def queue_of(queues: Sequence[QueueObject], namespace: str = "default", named: str | None = None) -> str:
    """The queue that a waiting job counts against."""
    [job] = look(queues, [job_object(spec={"queue": named}, namespace=namespace)]).snapshot.jobs
    return job.queue


def problems(seen: Observation) -> list[tuple[str, str]]:
    return [(problem.name, problem.reason) for problem in seen.problems]


# --- whose jobs -------------------------------------------------------------------------------------------------------
def test_a_job_counts_against_the_queue_that_it_names() -> None:
    assert queue_of([queue_object("q"), queue_object("mine", namespaces=["default"])], named="q") == "q"


def test_a_job_that_names_none_counts_against_the_one_of_its_namespace() -> None:
    queues = [queue_object("open"), queue_object("mine", namespaces=["default", "other"])]
    assert queue_of(queues) == "mine"
    assert queue_of(queues, "elsewhere") == ""


def test_of_two_queues_of_a_namespace_the_first_by_name_counts_and_somebody_is_told() -> None:
    queues = [queue_object("b", namespaces=["default"]), queue_object("a", namespaces=["default", "x"])]
    assert queue_of(queues) == "a"
    seen = look(queues)
    assert problems(seen) == [("b", "NamespaceClaimed")]
    assert seen.problems[0].message == (
        "spec.namespaces: default is listed by Queue a, too, which comes first by name: "
        "its jobs that name no queue count against that"
    )


def test_a_job_of_another_namespace_may_not_name_it() -> None:
    queues = [
        queue_object("theirs", namespaces=["theirs"]),
        queue_object("open"),
        queue_object("ours", namespaces=["default"]),
    ]
    seen = look(queues, [job_object(spec={"queue": "theirs"})])
    assert seen.snapshot.jobs == ()
    said = seen.refused["uid-job"]
    assert said.reason is PendingReason.QUEUE_NOT_ALLOWED
    assert said.message == "spec.queue: Queue theirs is not for jobs of namespace default (its spec.namespaces)"
    assert said.alternatives == ("name a queue that the namespace may use: open, ours", "add default to Queue theirs")


def test_a_job_that_runs_goes_on_when_its_namespace_is_taken_off_the_list() -> None:
    runs = JobStatus(plan=plan_of(placement(nodes={"n1": 8})), last_epoch=1)
    seen = look([queue_object("q", namespaces=["theirs"])], [job_object(spec={"queue": "q"}, status=runs)])
    assert [(job.queue, job.placement is not None) for job in seen.snapshot.jobs] == [("q", True)]


# --- how many may wait ------------------------------------------------------------------------------------------------
def jobs_of(queue: str, count: int) -> list[JobObject]:
    return [
        job_object(f"j{i:03}", {"queue": queue}, creation_timestamp=f"2026-01-02T02:{i // 60:02}:{i % 60:02}Z")
        for i in range(count)
    ]


def test_jobs_beyond_the_cap_are_not_looked_at_and_told_their_place() -> None:
    seen = look([queue_object("q", maxPendingJobs=2)], jobs_of("q", 4)[::-1])
    assert sorted(job.name for job in seen.snapshot.jobs) == ["j000", "j001"]
    assert {uid: said.reason for uid, said in seen.refused.items()} == {
        "uid-j002": PendingReason.QUEUE_FULL,
        "uid-j003": PendingReason.QUEUE_FULL,
    }
    assert seen.refused["uid-j003"].message == (
        "queue q takes 2 waiting jobs at a time (spec.maxPendingJobs); it is number 4 in line"
    )
    assert "raise spec.maxPendingJobs of Queue q" in seen.refused["uid-j003"].alternatives


def test_far_behind_the_place_is_told_roughly_so_that_it_need_not_be_written_anew_all_the_time() -> None:
    before, after = (
        {
            said.message
            for said in look([queue_object("q", maxPendingJobs=5)], jobs_of("q", 500)[gone:]).refused.values()
        }
        for gone in (0, 1)
    )
    assert "queue q takes 5 waiting jobs at a time (spec.maxPendingJobs); at least 400 others are before it" in before
    assert len(before) < 30
    assert before == after


def test_the_most_urgent_count_first() -> None:
    urgent = job_object("late", {"queue": "q", "priorityClassName": "high"})
    classes = {"priority_classes": [priority_class("high", 10)]}
    seen = look([queue_object("q", maxPendingJobs=1)], [*jobs_of("q", 2), urgent], **classes)
    assert [job.name for job in seen.snapshot.jobs] == ["late"]


def test_jobs_that_run_take_no_place_and_other_queues_have_their_own() -> None:
    runs = job_object("runs", {"queue": "q"}, JobStatus(plan=plan_of(placement(nodes={"n1": 8})), last_epoch=1))
    others = [job_object(f"o{i}", {"queue": "other"}) for i in range(3)]
    queues = [queue_object("q", maxPendingJobs=1), queue_object("other")]
    assert len(look(queues, [runs, *jobs_of("q", 1), *others]).snapshot.jobs) == 5


def test_jobs_that_no_time_helps_do_not_close_the_queue_to_others() -> None:
    bad = [job_object(f"a{i}", {"queue": "q"}, IN_VAIN) for i in range(3)]
    seen = look([queue_object("q", maxPendingJobs=1)], [*bad, *jobs_of("q", 2)])
    assert sorted(job.name for job in seen.snapshot.jobs) == ["a0", "a1", "a2", "j000"]
    assert set(seen.refused) == {"uid-j001"}


def test_one_that_was_mended_is_no_longer_among_them() -> None:
    mended = job_object("a", {"queue": "q"}, IN_VAIN, generation=2)
    seen = look([queue_object("q", maxPendingJobs=0)], [mended])
    assert {uid: said.reason for uid, said in seen.refused.items()} == {"uid-a": PendingReason.QUEUE_FULL}


def test_where_they_are_too_many_they_take_turns_and_others_notice_nothing() -> None:
    """The cluster may have changed in favour of any of them."""
    bad = [facts(job_object(f"a{i}", {"queue": "q"}, IN_VAIN)) for i in range(5)]
    good = [facts(each) for each in jobs_of("q", 3)]
    waiting = [(job, 0) for job in (*bad, *good)]
    line = Queues([queue_facts(queue_object("q"))])
    turns = [set(line.beyond(waiting, NOW + turn * TURN_SECONDS, 2)) for turn in range(5)]
    assert [out & {"uid-j000", "uid-j001", "uid-j002"} for out in turns] == [{"uid-j002"}] * 5
    considered = Counter(job.meta.uid for out in turns for job in bad if job.meta.uid not in out)
    assert considered == {f"uid-a{i}": 2 for i in range(5)}


def test_who_has_failed_and_comes_back_in_a_moment_keeps_its_place() -> None:
    soon, later = (datetime.fromtimestamp(NOW + seconds, UTC) for seconds in (30, 300))
    back = [job_object(name, {"queue": "q"}, JobStatus(retry_time=time)) for name, time in (("b", soon), ("c", later))]
    seen = look([queue_object("q", maxPendingJobs=1)], [*back, *jobs_of("q", 1)])
    assert [(job.name, job.not_before > NOW) for job in seen.snapshot.line()] == [("j000", False), ("b", True)]
    assert [job.name for job in seen.snapshot.waiting()] == ["j000"]


def test_a_queue_for_no_waiting_jobs_is_closed() -> None:
    seen = look([queue_object("q", maxPendingJobs=0)], jobs_of("q", 1))
    assert seen.snapshot.jobs == ()
    assert "takes no waiting jobs" in seen.refused["uid-j000"].message


# --- what they promise ------------------------------------------------------------------------------------------------
def test_policies_are_told_guarantees_and_weights() -> None:
    queues = [
        queue_object("q", {"gpuType": "t4", "guaranteed": 4}, weight=3),
        queue_object("p", {"gpuType": "*", "gpus": 8}),
    ]
    seen = look(queues).snapshot
    assert seen.quotas == (Quota("p", "*", 8), Quota("q", T4, 1 << 20, 4))
    assert seen.weights == {"p": 1.0, "q": 3.0}


def test_guarantees_that_cannot_all_be_kept_are_told_on_each_queue_that_has_one() -> None:
    queues = [
        queue_object("a", {"gpuType": A100, "guaranteed": 6}),
        queue_object("b", {"gpuType": A100, "guaranteed": 4}, {"gpuType": H100, "guaranteed": 0, "gpus": 1}),
        queue_object("c", {"gpuType": "*", "guaranteed": 4}),
    ]
    seen = look(queues)
    assert problems(seen) == [("a", "GuaranteeTooLarge"), ("b", "GuaranteeTooLarge"), ("c", "GuaranteeTooLarge")]
    said = f"spec.quotas: the guarantees of all queues come to 10 GPUs {A100}, and there are 8"
    assert seen.problems[0].message == f"{said}: not all of them can be kept"
    assert "come to 14 GPUs of all types, and there are 8" in seen.problems[2].message
    assert problems(look(queues[:1])) == []


def test_what_a_queue_is_guaranteed_by_type_is_part_of_what_it_is_guaranteed_altogether() -> None:
    both = queue_object("q", {"gpuType": A100, "guaranteed": 6}, {"gpuType": "*", "guaranteed": 8})
    assert problems(look([both])) == []


@pytest.mark.parametrize("away", [{"spec": {"unschedulable": True}}, {"ready": "False"}], ids=["cordoned", "not ready"])
def test_a_node_that_is_away_for_a_while_makes_no_promise_too_large(away: dict[str, Any]) -> None:
    queue = queue_object("q", {"gpuType": A100, "guaranteed": 8})
    assert problems(look([queue], nodes=[node_object("n1", **away)])) == []


# --- what makes no sense ----------------------------------------------------------------------------------------------
def test_a_malformed_queue_keeps_its_namespaces_so_that_nobody_gets_round_it() -> None:
    broken = queue_object("q", {"gpuType": "*", "gpus": "many"}, namespaces=["default"])
    seen = look([broken], [job_object()])
    assert [job.queue for job in seen.snapshot.jobs] == ["q"]
    assert seen.snapshot.quotas == (Quota("q", "*", 0),)
    assert problems(seen) == [("q", "MalformedQueue")]


def test_a_queue_whose_namespaces_make_no_sense_has_none() -> None:
    assert queue_of([queue_object("q", namespaces=7)]) == ""


def test_a_status_that_cannot_be_read_is_as_good_as_none() -> None:
    seen = look([queue_object("q", status={"gpus": "lots"}), queue_object("p", status={"gpus": 3})])
    assert [queue.status and queue.status.gpus for queue in seen.queues.values()] == [3, None]
