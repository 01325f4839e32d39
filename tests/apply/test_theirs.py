"""A gang whose pods another controller makes: what is done next in every situation, and nothing else."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from tests.apply.test_steps import META, PENDING, PLAN, PLANNED, RUNNING, view, written
from tests.builders import MOMENT, NOW, gang_pod, leaving, pod_object

from trimtab import names
from trimtab.api import conditions
from trimtab.api.status import JobStatus
from trimtab.apply import theirs, transitions
from trimtab.apply.actions import AdoptPod, BindPod, DeletePod, ReleasePod, ResumeJob, Step, SuspendJob
from trimtab.apply.gang_failures import GangFailure
from trimtab.apply.steps import JobContext, next_step
from trimtab.apply.theirs import TheirJob
from trimtab.kube.objects import PodObject

GATES = [{"name": names.SCHEDULING_GATE}]


def made(rank: int, gpus: int = 4, **spec: Any) -> PodObject:
    """As their controller makes it: behind our gate, and of no gang."""
    labels = {names.LABEL_MANAGED: "true"}
    return pod_object(
        f"theirs-{rank}", gpus=gpus, labels=labels, phase="Pending", spec={"schedulingGates": GATES, **spec}
    )


def adopted(rank: int, node: str = "", *, epoch: int = 1, gate: bool = False, **changes: Any) -> PodObject:
    spec = {"spec": {"schedulingGates": GATES}} if gate else {}
    return gang_pod("job", epoch, rank, node, gpus=4, **spec, **changes)


BOTH = {0: made(0), 1: made(1)}
COMPLETE = transitions.completed(RUNNING, META, NOW)


def seen(status: JobStatus = PLANNED, *pods: PodObject, job: TheirJob = TheirJob(), **changes: Any) -> JobContext:  # noqa: B008 - frozen
    return view(status, *pods, theirs=job, **changes)


def step(status: JobStatus = PLANNED, *pods: PodObject, job: TheirJob = TheirJob(), **changes: Any) -> Step:  # noqa: B008 - frozen
    return next_step(seen(status, *pods, job=job, **changes))


# --- the way to a gang that runs ----------------------------------------------------------------------------------
def test_pods_are_taken_in_once_all_of_them_are_there() -> None:
    assert step() == ()
    assert step(job=TheirJob(waiting={1: made(1)})) == ()
    assert step(job=TheirJob(waiting=BOTH)) == (
        AdoptPod("theirs-0", "pod-theirs-0", 0),
        AdoptPod("theirs-1", "pod-theirs-1", 1),
    )


def test_a_gang_that_was_taken_in_by_half_is_completed_and_nobody_is_let_through_before() -> None:
    half = adopted(0, gate=True)
    assert step(PLANNED, half) == ()
    assert step(PLANNED, half, job=TheirJob(waiting={1: made(1)})) == (AdoptPod("theirs-1", "pod-theirs-1", 1),)


@pytest.mark.parametrize("is_in", [False, True])
def test_all_are_told_where_rank_0_is_if_it_has_a_name(is_in: bool) -> None:
    said = {"hostname": "theirs-0", "subdomain": "ranks"}
    first = adopted(0, spec={"schedulingGates": GATES, **said}) if is_in else made(0, **said)
    waiting = {1: made(1, subdomain="ranks")} | ({} if is_in else {0: first})
    found = step(PLANNED, *([first] if is_in else []), job=TheirJob(waiting=waiting))
    assert {action.leader for action in found if isinstance(action, AdoptPod)} == {"theirs-0.ranks"}


@pytest.mark.parametrize("gated", [False, True])
def test_gates_go_first_and_then_pods_are_bound_by_whoever_binds(gated: bool) -> None:
    annotations = {"metadata": {"annotations": {names.ANNOTATION_BINDING: "Extender"}}} if gated else {}
    waiting = [adopted(rank, gate=True, **annotations) for rank in (0, 1)]
    assert step(PLANNED, *waiting, gated=gated) == tuple(
        ReleasePod(pod.metadata.name, pod.metadata.uid) for pod in waiting
    )
    through = [adopted(rank, **annotations) for rank in (0, 1)]
    binds = tuple(
        BindPod(pod.metadata.name, pod.metadata.uid, node) for pod, node in zip(through, ("n1", "n2"), strict=True)
    )
    assert step(PLANNED, *through, gated=gated) == (() if gated else binds)


def test_once_bound_and_running_it_is_as_any_gang() -> None:
    bound = [adopted(0, "n1", phase="Running"), adopted(1, "n2", phase="Running")]
    status = written(step(PLANNED, *bound)).status
    assert conditions.holds(status.conditions, names.PODS_READY)
    done = [adopted(0, "n1", phase="Succeeded"), adopted(1, "n2", phase="Succeeded")]
    assert conditions.holds(written(step(RUNNING, *done)).status.conditions, names.COMPLETE)


# --- suspended, by whom ---------------------------------------------------------------------------------------------
def test_what_we_have_suspended_goes_on_with_its_next_plan_and_what_its_user_has_does_not() -> None:
    assert step(job=TheirJob(suspended=True, by_us=True)) == (ResumeJob(),)
    assert step(job=TheirJob(suspended=True, by_us=True), leaving=(leaving("other").job,)) != (ResumeJob(),)
    assert not any(isinstance(each, ResumeJob) for each in step(job=TheirJob(suspended=True), suspended=True))


def test_a_job_of_another_shape_is_suspended_and_resumed_with_that_of_its_plan_once_nothing_of_it_is_left() -> None:
    """The plan is of two pods with four GPUs each."""
    [action] = step(job=TheirJob(waiting=BOTH, shape=(3, 4)))
    assert isinstance(action, SuspendJob)
    assert "2 pods of 4 GPUs" in action.why
    ours = TheirJob(suspended=True, by_us=True, rests=True, shape=(3, 4))
    assert step(job=replace(ours, waiting={0: made(0)})) == (), "a pod of it is still to go"
    assert step(job=replace(ours, rests=False)) == (), "its controller has not seen that it is suspended"
    assert step(job=ours) == (ResumeJob((2, 4)),)
    assert step(job=replace(ours, shape=(2, 4), rests=False)) == (ResumeJob(),)
    assert not any(isinstance(each, ResumeJob) for each in step(job=replace(ours, by_us=False), suspended=True))


def test_without_a_plan_what_lives_ends_by_suspending_the_job_and_never_by_deleting_pods() -> None:
    living = adopted(0, "n1", phase="Running")
    [action] = step(JobStatus(), living, pending=PENDING)
    assert isinstance(action, SuspendJob)
    assert step(JobStatus(), living, job=TheirJob(suspended=True, by_us=True), pending=PENDING) == ()


@pytest.mark.parametrize("status", [JobStatus(), COMPLETE])
def test_whom_nobody_controls_any_more_is_deleted_once_others_would_have_seen_who_does(status: JobStatus) -> None:
    """His owner was taken away, and so his job's controller does not end him."""
    born = datetime.fromtimestamp(NOW - theirs.ORPHAN_SECONDS, UTC).isoformat()
    young = datetime.fromtimestamp(NOW - theirs.ORPHAN_SECONDS + 1, UTC).isoformat()
    for created, phase, orphans, going in (
        (born, "Running", {"pod-job-1-0"}, True),
        (young, "Running", {"pod-job-1-0"}, False),
        (born, "Succeeded", {"pod-job-1-0"}, False),
        (born, "Running", {"others"}, False),
    ):
        pod = adopted(0, "n1", phase=phase, metadata={"creationTimestamp": created})
        alone = frozenset({pod.metadata.uid} if "pod-job-1-0" in orphans else orphans)
        job = TheirJob(suspended=True, by_us=True, orphans=alone)
        found = step(status, pod, job=job, pending=PENDING, finished=status is COMPLETE)
        gone = [each.uid for each in found if isinstance(each, DeletePod)]
        assert gone == ([pod.metadata.uid] if going else []), (created, phase, orphans)


def test_whom_nobody_controls_is_of_the_gang_as_long_as_that_runs() -> None:
    alone = adopted(0, "n1", phase="Running"), adopted(1, "n2", phase="Running")
    job = TheirJob(orphans=frozenset(pod.metadata.uid for pod in alone))
    assert not any(isinstance(each, DeletePod | SuspendJob) for each in step(RUNNING, *alone, job=job))


def test_why_it_is_suspended_is_what_its_conditions_say() -> None:
    failure = GangFailure("NodeLost", "node n1 is gone")
    status = transitions.set_back(RUNNING, META, failure, NOW, (1.0, 300.0))
    assert step(status, adopted(1, "n2")) == (SuspendJob("NodeLost: node n1 is gone"),)


def test_pods_of_an_earlier_plan_go_before_the_next_gang_is_taken_in() -> None:
    later = transitions.planned(RUNNING, META, PLAN.model_copy(update={"epoch": 2}), NOW)
    old = adopted(0, "n1", phase="Running")
    [action] = step(later, old, job=TheirJob(waiting=BOTH))
    assert isinstance(action, SuspendJob)
    ends = TheirJob(suspended=True, by_us=True, waiting=BOTH)
    assert not any(isinstance(each, ResumeJob | AdoptPod) for each in step(later, old, job=ends))
    assert step(later, job=ends) == (ResumeJob(),)


def test_pods_that_have_ended_in_an_earlier_plan_are_nobodys_concern() -> None:
    """Their controller keeps them, to count them."""
    failed, lives = adopted(0, "n1", phase="Failed"), adopted(1, "n2", phase="Running")
    assert theirs.of_gang([failed, lives], None) == (lives,)
    assert theirs.of_gang([failed, lives], PLAN) == (failed, lives)
    assert theirs.of_gang([failed], PLAN.model_copy(update={"epoch": 2})) == ()


# --- the end -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("status", [JobStatus(), PLANNED, RUNNING])
def test_what_its_own_controller_says_of_its_end_counts(status: JobStatus) -> None:
    told = TheirJob(end="failed", message="BackoffLimitExceeded: it has reached the limit")
    after = written(step(status, job=told)).status
    failed = conditions.find(after.conditions, names.FAILED)
    assert failed
    assert failed.status == "True"
    assert "BackoffLimitExceeded" in failed.message
    assert conditions.holds(written(step(status, job=TheirJob(end="succeeded"))).status.conditions, names.COMPLETE)


def test_a_gang_that_is_given_up_for_good_leaves_nothing_to_be_made_again() -> None:
    lost = transitions.failed(RUNNING, META, GangFailure("ImageMissing", "no such image"), "mend it", NOW)
    [action] = step(lost, job=TheirJob(waiting={0: made(0)}), finished=True)
    assert isinstance(action, SuspendJob)
    assert "no such image" in action.why
    assert step(lost, job=TheirJob(end="failed"), finished=True) == ()
    assert step(lost, job=TheirJob(suspended=True, by_us=True), finished=True) == ()


# --- pods that are not as planned ------------------------------------------------------------------------------------
def test_a_plan_whose_pods_are_not_made_is_given_up_after_a_while() -> None:
    old = PLAN.model_copy(update={"created_time": MOMENT - timedelta(seconds=theirs.PODS_SECONDS)})
    job = TheirJob(waiting={0: made(0)})
    assert theirs.never_made(job, PLAN, (), NOW) is None
    found = theirs.never_made(job, old, (), NOW)
    assert found
    assert found.reason == theirs.NOT_MADE
    assert "1 of 2 pods are not there" in found.message
    assert theirs.never_made(TheirJob(waiting=BOTH), old, (), NOW) is None
    assert theirs.never_made(job, old, [adopted(1)], NOW) is None
    assert theirs.never_made(job, old, [adopted(1, epoch=0)], NOW) is None, "one is still ending"


def test_a_pod_that_asks_for_other_gpus_keeps_the_node_out_of_the_next_plan() -> None:
    assert theirs.different(made(0), 4, PLAN, 0) is None
    found = theirs.different(made(1), 0, PLAN, 1)
    assert found
    assert (found.reason, found.refused) == (theirs.DIFFERENT, ("n2",))
