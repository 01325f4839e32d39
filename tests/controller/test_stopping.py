"""What in a job's own object makes its gang stop: edits that its plan does not survive, and when; fake answers."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import pytest
from msgspec.structs import replace
from tests.builders import A100, MOMENT, NOW, gang_pod, job_object, placement, plan_of, queue_object

from trimtab import names
from trimtab.api.history import FailureCause, StopRecord
from trimtab.api.status import JobStatus, Observed, PlanTerms
from trimtab.apply import stops, transitions
from trimtab.apply.stops import StopOrder
from trimtab.controller.jobs import stop_triggers
from trimtab.controller.jobs.gangs import Gangs
from trimtab.controller.jobs.stop_triggers import Edited
from trimtab.kube.objects import Meta, PodObject, QueueObject
from trimtab.observe.jobs import JobFacts, facts
from trimtab.observe.pods import OVERSTAY_SECONDS
from trimtab.observe.queues import Queues
from trimtab.observe.queues import facts as facts_of_queue
from trimtab.plan import fake
from trimtab.plan.gang import gang_plan
from trimtab.settings import Settings
from trimtab_policy.types import StopCause

META = Meta(name="job", namespace="default", uid="uid-job", generation=1)
PLAN = plan_of(placement(nodes={"n1": 8}))
PLANNED = transitions.planned(JobStatus(), META, PLAN, NOW)
RUNNING = transitions.scheduled(PLANNED, META, NOW + 5, all_running=True)
SMALLER = {"resources.gpus.max": 4}
LEAST = 600.0
"""Seconds, the default of `minRuntimeSeconds`."""
ORDER = StopOrder(epoch=1, cause=StopCause.PREEMPTED, message="for others")


def job(status: JobStatus = RUNNING, *, annotations: dict[str, str] | None = None, **spec: Any) -> JobFacts:
    """The job after its spec was edited: every field by dotted path is a change."""
    meta = {"generation": 2 if spec else 1, "annotations": annotations or {}}
    return facts(job_object(spec=spec, status=status, **meta))


def changed(status: JobStatus = RUNNING, **spec: Any) -> Edited:
    found = stop_triggers.edited(job(status, **spec))
    assert found
    return found


# --- edits -----------------------------------------------------------------------------------------------------------
def test_an_edit_that_the_plan_does_not_survive_stops_a_running_gang_once_it_has_run_for_a_while() -> None:
    found = changed(**SMALLER)
    assert found.why == "the plan no longer meets the spec: 8 GPUs are outside spec.resources.gpus"
    assert found.until == NOW + LEAST
    assert found.order(NOW + LEAST - 1) is None
    assert found.note(NOW + LEAST - 1) == f"{found.why}; it is replaced at 2026-01-02T03:14:05Z"
    assert found.order(NOW + LEAST) == StopOrder(epoch=1, cause=StopCause.SPEC_CHANGED, message=found.why)
    assert found.note(NOW + LEAST) == ""
    at_once = changed(**SMALLER, **{"elasticity.minRuntimeSeconds": 0})
    assert at_once.order(NOW)


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"priorityClassName": "urgent"},
        {"elasticity.checkpoint.graceSeconds": 5},
        {"elasticity.minRuntimeSeconds": 0},
        {"maxRestarts": 0},
        {"resources.gpus.max": 16},
    ],
    ids=str,
)
def test_what_the_plan_survives_stops_nobody(spec: dict[str, Any]) -> None:
    assert stop_triggers.edited(job(**spec)) is None


# --- what holds for a gang until it ends -----------------------------------------------------------------------------
TERMS = PlanTerms(queue="team-a", cpu_millis_per_gpu=8000, memory_bytes_per_gpu=64 << 30)
ASKS = {"resources.cpusPerGpu": 8, "resources.memoryPerGpu": "64Gi"}


def in_queue(**spec: Any) -> JobFacts:
    """A gang that was started in queue team-a, and whose spec says something else by now."""
    told = RUNNING.model_copy(update={"plan": PLAN.model_copy(update={"terms": TERMS})})
    return job(told, **{**ASKS, **spec})


def lines(*queues: QueueObject) -> Callable[[], Queues]:
    return lambda: Queues(facts_of_queue(queue) for queue in queues)


@pytest.mark.parametrize(
    ("queue", "why"),
    [
        (queue_object("team-c"), "spec.queue: there is no Queue 'team-b'; there are: team-c"),
        (queue_object("team-b", namespaces=["other"]), "spec.queue: Queue team-b is not for jobs of namespace default"),
        (queue_object("team-b", {"gpuType": "*", "gpus": 4}), "spec.queue: Queue team-b has 4 GPUs of type *"),
        (queue_object("team-b", {"gpuType": A100, "gpus": 0}), f"spec.queue: Queue team-b has 0 GPUs of type {A100}"),
    ],
    ids=["none of that name", "for others", "too small", "closed"],
)
def test_a_gang_whose_new_queue_would_not_have_it_is_stopped_like_after_any_other_edit(
    queue: QueueObject, why: str
) -> None:
    found = stop_triggers.edited(in_queue(queue="team-b"), lines(queue))
    assert found
    assert found.why.startswith(f"the plan no longer meets the spec: {why}")
    assert found.until == NOW + LEAST
    order = found.order(NOW + LEAST)
    assert order
    assert order.cause is StopCause.SPEC_CHANGED


def test_one_whose_new_queue_would_have_it_goes_on_at_the_cost_of_the_old_one_and_says_so() -> None:
    large = queue_object("team-b", {"gpuType": "*", "gpus": 8}, {"gpuType": "H100-SXM5-80GB", "gpus": 0})
    found = stop_triggers.edited(in_queue(queue="team-b"), lines(large))
    assert found
    assert (found.order(NOW + 1e9), found.until) == (None, math.inf)
    assert found.note(NOW) == "spec.queue is team-b now: the gang counts against queue team-a until it ends"


@pytest.mark.parametrize("spec", [{"queue": "team-a"}, {"maxRestarts": 5}], ids=str)
def test_what_becomes_of_its_own_queue_stops_no_gang(spec: dict[str, Any]) -> None:
    assert stop_triggers.edited(in_queue(**spec), lines()) is None


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"resources.cpusPerGpu": 4}, "its pods have 8000m CPUs per GPU, other than spec.resources.cpusPerGpu"),
        (
            {"resources.memoryPerGpu": "128Gi"},
            "its pods have 68719476736 bytes of memory per GPU, other than spec.resources.memoryPerGpu",
        ),
    ],
)
def test_what_pods_ask_for_besides_gpus_may_be_edited_and_the_gang_is_replaced_for_it(
    spec: dict[str, Any], why: str
) -> None:
    found = stop_triggers.edited(in_queue(**spec))
    assert found
    assert found.why == f"the plan no longer meets the spec: {why}"


def test_all_pods_of_a_gang_ask_for_the_same_whatever_is_edited_while_they_are_made() -> None:
    known = in_queue(**{"resources.cpusPerGpu": 4, "resources.memoryPerGpu": "1Gi", "priorityClassName": "other"})
    assert known.spec
    assert known.training
    assert known.status.plan
    made = gang_plan(known.meta, known.spec, known.template, known.training, known.status.plan)
    assert (made.cpus_per_gpu_milli, made.memory_per_gpu, made.priority_class) == (8000, 64 << 30, "")
    before = gang_plan(known.meta, known.spec, known.template, known.training, PLAN)
    assert (before.cpus_per_gpu_milli, before.priority_class) == (4000, "other"), "a plan of an earlier version"


def test_a_gang_that_does_not_run_yet_is_replaced_at_once() -> None:
    assert changed(status=PLANNED, **SMALLER).order(NOW)


def test_of_many_edits_in_a_row_not_each_one_ends_a_gang() -> None:
    """Twenty edits a minute, each to something that the plan of before does not allow."""
    status, ended, epoch = PLANNED, 0, 1
    for second in range(0, 3600, 3):
        now = NOW + second
        found = stop_triggers.edited(job(status, **{"resources.gpus.max": 4 if epoch % 2 else 2}))
        order = found.order(now) if found else None
        if order is None:
            continue
        ended, epoch = ended + 1, epoch + 1
        asked = stops.requested(status, META, order, 0, now)
        assert asked.stop
        over = stops.stopped(asked, META, asked.stop, "edited", None, now, successor=None)
        smaller = placement(nodes={"n1": 4 if epoch % 2 == 0 else 8})
        status = transitions.planned(over, META, plan_of(smaller, epoch), now)
        status = transitions.scheduled(status, META, now, all_running=True)
    assert 2 <= ended <= 1 + 3600 / LEAST


def test_stops_for_other_reasons_do_not_put_an_edit_off() -> None:
    moved = StopRecord(time=MOMENT + timedelta(seconds=100), epoch=1, cause=StopCause.MOVED)
    edited = StopRecord(time=MOMENT + timedelta(seconds=50), epoch=1, cause=StopCause.SPEC_CHANGED)
    status = PLANNED.model_copy(update={"stops": (edited, moved)})
    assert changed(status=status, **SMALLER).until == NOW + 50 + LEAST


def test_a_job_that_has_ended_or_cannot_be_understood_is_left_alone() -> None:
    assert stop_triggers.edited(job(transitions.completed(RUNNING, META, NOW), **SMALLER)) is None
    assert stop_triggers.edited(job(RUNNING, **{"model.preset": "unknown"})) is None
    assert stop_triggers.edited(job(JobStatus(), **SMALLER)) is None


# --- time to save ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("order", "seconds"),
    [
        (None, 86_400),
        (ORDER, 86_400),
        (replace(ORDER, beneficiary="team/urgent"), 900),
        (replace(ORDER, cause=StopCause.EVICTED), 900),
        (replace(ORDER, cause=StopCause.RESIZED), 86_400),
    ],
)
def test_others_do_not_wait_for_as_long_as_a_job_likes(order: StopOrder | None, seconds: float) -> None:
    slow = {"elasticity.checkpoint.graceSeconds": 86_400}
    assert stop_triggers.grace(job(**slow), order, 900.0) == seconds
    assert stop_triggers.grace(job(**{"elasticity.checkpoint.graceSeconds": 5}), order, 900.0) == 5
    assert stop_triggers.grace(job(**slow, suspend=True), order, 900.0) == 86_400


# --- whom a plan waits for -------------------------------------------------------------------------------------------
LATE = OVERSTAY_SECONDS
MOST = 900.0
HOLDER = {"elasticity.checkpoint.graceSeconds": 100}
SLOW = {"elasticity.checkpoint.graceSeconds": 86_400}


def anew(grace: float, told: float) -> JobStatus:
    """A gang that was told only then."""
    asked = stops.requested(RUNNING, META, ORDER, grace, NOW)
    assert asked.stop
    moment = MOMENT + timedelta(seconds=told - NOW)
    again = {"renewed_time": moment, "deadline_time": moment + timedelta(seconds=grace)}
    return asked.model_copy(update={"stop": asked.stop.model_copy(update=again)})


def held(deletion: str | None = None, seconds: int = 0) -> PodObject:
    meta = {"deletionTimestamp": deletion, "deletionGracePeriodSeconds": seconds}
    return gang_pod("old", 1, 0, "n1", phase="Running", metadata=meta)


@pytest.mark.parametrize(
    ("pod", "holder", "end"),
    [
        (held("2026-01-02T03:09:05Z"), job(**HOLDER), NOW + 300),
        (held("2311-03-16T19:09:05Z", 9_000_000_000), job(**HOLDER), NOW + 330),
        (held("1759-03-26T00:00:00Z", 10_000_000_000), job(**HOLDER), NOW),
        (held(), job(**HOLDER), NOW + 100),
        (held(), job(stops.requested(RUNNING, META, ORDER, 100, NOW + 60), **HOLDER), NOW + 160),
        (held(), job(**SLOW), NOW + MOST),
        (held(), job(stops.requested(RUNNING, META, ORDER, 86_400, NOW + 60), **SLOW), NOW + 60 + MOST),
        (held(), job(anew(86_400, NOW + 600), **SLOW), NOW + 600 + MOST),
        (held(), None, NOW),
    ],
    ids=[
        "being deleted",
        "for centuries",
        "for too many",
        "asked",
        "asked later",
        "slow",
        "slow and asked",
        "given its time anew",
        "its job is gone",
    ],
)
def test_a_plan_waits_for_a_pod_as_long_as_that_may_take_to_go_and_no_longer(
    pod: PodObject, holder: JobFacts | None, end: float
) -> None:
    assert stop_triggers.without_room(PLAN, pod, holder, end + LATE - 1, MOST) is None
    told = stop_triggers.without_room(PLAN, pod, holder, end + LATE, MOST)
    assert told
    assert (told.reason, told.cause, told.node) == ("RoomNotMade", FailureCause.OTHER, "")
    assert told.message.startswith("pod default/old-1-0 on n1 is ")
    assert "still there 120 s after its time was over" in told.message


# --- when something is due -------------------------------------------------------------------------------------------
def test_an_edit_and_a_deadline_wake_the_round() -> None:
    edited = job(**SMALLER)
    assert stop_triggers.due(edited, stop_triggers.edited(edited), None) == NOW + LEAST
    assert stop_triggers.due(job(), None, None) == math.inf
    asked = job(stops.requested(RUNNING, META, ORDER, 120, NOW + 30))
    assert stop_triggers.due(asked, None, None) == NOW + 150


def test_so_does_the_answer_of_a_fake_trainer() -> None:
    asked = stops.requested(RUNNING, META, ORDER, 120, NOW + 30)
    run = fake.run_of(asked, 1000, 1.0)
    for text, due in {"20": NOW + 50, "200": NOW + 150, fake.IGNORES: NOW + 150}.items():
        assert stop_triggers.due(job(asked, annotations={names.ANNOTATION_FAKE_CHECKPOINT: text}), None, run) == due


async def test_the_drivers_say_when_the_next_gang_is_out_of_time() -> None:
    unused = cast(Any, None)
    gangs = Gangs(unused, unused, unused, unused, Settings(), leader_epoch=unused, wake=unused, fail=unused)
    assert gangs.next_deadline() == math.inf
    gangs.order_stop("a", ORDER)
    gangs._gang("a").due = NOW
    assert gangs.next_deadline() == 0.0


# --- fake answers ----------------------------------------------------------------------------------------------------
def test_a_fake_gang_says_nothing_before_it_is_asked_and_after_it_has_ended() -> None:
    run = fake.run_of(RUNNING, 1000, 1.0)
    pods = [gang_pod("job", 1, 0, "n1", phase="Running")]
    assert stop_triggers.answer(job(), run, pods, NOW + 100) is None
    asked = job(stops.requested(RUNNING, META, ORDER, 120, NOW + 105))
    said = stop_triggers.answer(asked, run, pods, NOW + 105)
    assert said
    assert (said.epoch, said.step, said.checkpoint_step, said.acknowledged) == (1, 200, 200, True)
    assert stop_triggers.answer(asked, run, [gang_pod("job", 1, 0, "n1", phase="Succeeded")], NOW + 105) is None
    assert stop_triggers.answer(asked, None, pods, NOW + 105) is None


@pytest.mark.parametrize("text", ["60", fake.IGNORES])
def test_what_a_fake_gang_has_done_is_counted_once_however_late_it_answers(text: str) -> None:
    """Its status is written while it is asked, too; what it tells then must not be taken for where it began."""
    pods = [gang_pod("job", 1, 0, "n1", phase="Running")]
    status = stops.requested(RUNNING, META, ORDER, 90, NOW + 105)
    alone, heard = fake.run_of(RUNNING, 1000, 1.0), []
    assert alone
    for now in (NOW + 110, NOW + 150, NOW + 195):
        asked = job(status, annotations={names.ANNOTATION_FAKE_CHECKPOINT: text})
        heard.append(stop_triggers.answer(asked, fake.run_of(status, 1000, 1.0), pods, now))
        status = transitions.reported(status, META, heard[-1], now) if heard[-1] else status
    assert heard[:2] == [None, None]
    assert heard[2]
    assert heard[2].step == alone.step(NOW + 195)
    assert heard[2].checkpoint_step == (heard[2].step if text == "60" else heard[2].step // 100 * 100)


def test_what_is_left_and_saved_is_as_the_status_says() -> None:
    assert (stop_triggers.left(job()), stop_triggers.saved_step(job())) == (1.0, 0)
    saved = job(RUNNING.model_copy(update={"observed": Observed(epoch=1, steps_done=250, last_checkpoint_step=200)}))
    assert (stop_triggers.left(saved), stop_triggers.saved_step(saved)) == (0.75, 200)
