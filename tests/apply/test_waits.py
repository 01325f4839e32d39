"""How long jobs have waited: from when they wanted GPUs until they had them, whatever happened in between."""

from __future__ import annotations

from tests.builders import placement, plan_of

from trimtab.api.status import JobStatus, PendingStatus
from trimtab.apply import transitions
from trimtab.apply.gang_failures import GangFailure
from trimtab.apply.stops import StopOrder, requested, stopped
from trimtab.apply.waits import took, waited
from trimtab.kube.objects import Meta
from trimtab_policy.types import PendingReason, StopCause

META = Meta(name="job", namespace="default", uid="uid-job", generation=1)
CREATED = 1_767_323_000.0
PENDING = PendingStatus(reason=PendingReason.INSUFFICIENT_GPUS, message="all are held")


def plan(status: JobStatus, epoch: int, at: float) -> JobStatus:
    return transitions.planned(status, META, plan_of(placement(), epoch), at)


def bind(status: JobStatus, at: float) -> tuple[JobStatus, float | None]:
    """The status once all pods run, and how long it had waited."""
    after = transitions.scheduled(status, META, at, all_running=True)
    return after, waited(status, after, CREATED, at)


def first(at: float = CREATED + 100) -> JobStatus:
    """A job that runs, bound at this time."""
    status = transitions.waiting(JobStatus(), META, PENDING, CREATED + 1)
    return bind(plan(status, 1, at - 2), at)[0]


def test_a_new_job_has_waited_since_it_was_created() -> None:
    status = plan(transitions.waiting(JobStatus(), META, PENDING, CREATED + 1), 1, CREATED + 50)
    after, seconds = bind(status, CREATED + 60)
    assert seconds == 60
    assert waited(after, after, CREATED, CREATED + 70) is None, "once"


def test_a_gang_that_could_not_be_bound_goes_on_waiting() -> None:
    status = plan(transitions.waiting(JobStatus(), META, PENDING, CREATED + 1), 1, CREATED + 50)
    status = transitions.set_back(status, META, GangFailure("BindTimeout", "late"), CREATED + 80, (1.0, 300.0))
    assert bind(plan(status, 2, CREATED + 90), CREATED + 95)[1] == 95


def test_one_that_lost_its_gang_waits_from_then_on() -> None:
    status = transitions.set_back(first(), META, GangFailure("PodFailed", "x"), CREATED + 500, (1.0, 300.0))
    assert bind(plan(status, 2, CREATED + 530), CREATED + 540)[1] == 40


def preempted(*, successor: bool) -> JobStatus:
    running = first()
    then = plan_of(placement(nodes={"n2": 8}), 2) if successor else None
    order = StopOrder(epoch=1, cause=StopCause.PREEMPTED, message="for another", successor=then)
    asked = requested(running, META, order, 30.0, CREATED + 500)
    assert asked.stop
    return stopped(asked, META, asked.stop, "stopped", None, CREATED + 510, successor=then)


def test_so_does_one_that_was_stopped_for_others_but_none_that_was_moved() -> None:
    assert bind(plan(preempted(successor=False), 2, CREATED + 700), CREATED + 710)[1] == 200
    moved = preempted(successor=True)
    assert moved.plan
    assert bind(moved, CREATED + 530)[1] is None


def test_time_for_which_a_job_was_suspended_is_no_waiting() -> None:
    status = transitions.suspended(JobStatus(), META, CREATED + 1)
    status = transitions.waiting(status, META, PENDING, CREATED + 1000)
    assert bind(plan(status, 1, CREATED + 1020), CREATED + 1030)[1] == 30
    status = transitions.waiting(transitions.suspended(first(), META, CREATED + 200), META, PENDING, CREATED + 900)
    assert bind(plan(status, 2, CREATED + 950), CREATED + 960)[1] == 60


def test_clocks_that_differ_make_no_wait_negative() -> None:
    status = plan(JobStatus(), 1, CREATED - 5)
    assert bind(status, CREATED - 4)[1] == 0


def test_what_a_job_took_in_all_is_told_once() -> None:
    running = first()
    done = transitions.completed(running, META, CREATED + 900)
    assert took(running, done, CREATED, CREATED + 900) == 900
    assert took(done, done, CREATED, CREATED + 950) is None
    assert took(running, running, CREATED, CREATED + 900) is None
