"""What a running job's status tells of stopping it: from when on that may be, what it costs, what it may have next."""

from __future__ import annotations

from datetime import timedelta
from math import inf
from typing import Any

import pytest
from tests.builders import MOMENT, NOW, job_object, node_object, placement, plan_of

from trimtab import names
from trimtab.api.history import StopRecord
from trimtab.api.status import Condition, JobStatus, Observed, StopRequest
from trimtab.kube.objects import JobObject
from trimtab.observe.running import COMES_UP_SECONDS, HOUR, Mobility
from trimtab.observe.snapshot import Caches, ClusterObserver
from trimtab_policy.perf.restarts import restart_seconds
from trimtab_policy.types import Bounds, Job, StopCause

ELASTIC = {"elasticity.policy": "Elastic"}


def ago(seconds: float) -> Any:
    return MOMENT - timedelta(seconds=seconds)


def runs(since: float = 60.0) -> tuple[Condition, ...]:
    """All pods run."""
    ready = {"type": names.PODS_READY, "status": "True", "reason": "Running", "last_transition_time": ago(since)}
    return (Condition(**ready),)


def record(
    seconds: float, cause: StopCause = StopCause.PREEMPTED, epoch: int = 1, beneficiary: str | None = "team/other"
) -> StopRecord:
    return StopRecord(time=ago(seconds), epoch=epoch, cause=cause, beneficiary=beneficiary)


def shown(
    spec: dict[str, Any] | None = None,
    *,
    epoch: int = 1,
    now: float = NOW,
    rules: Mobility | None = None,
    **status: Any,
) -> Job:
    """The running job as policies see it; planned an hour ago."""
    plan = plan_of(placement(nodes={"n1": 8}), epoch, now=ago(HOUR))
    given = {"plan": plan, "last_epoch": epoch, "conditions": runs()} | status
    waiting = job_object(spec=spec, status=JobStatus(**given))
    [job] = ClusterObserver((), mobility=rules).observe(Caches([node_object("n1")], [], [waiting]), now).snapshot.jobs
    return job


def test_a_gang_may_be_moved_once_its_plan_has_stood_for_long_enough() -> None:
    assert shown().movable_from == NOW - HOUR + 600
    assert shown({"elasticity.minRuntimeSeconds": 1800}).movable_from == NOW - HOUR + 1800


def test_no_job_is_spared_for_longer_than_the_operator_lets_it_be() -> None:
    year = {"elasticity.minRuntimeSeconds": 31_536_000}
    assert shown(year).movable_from == NOW
    assert shown(year, rules=Mobility(most_runtime=7200)).movable_from == NOW + HOUR


@pytest.mark.parametrize(
    "status",
    [
        {"conditions": ()},
        {
            "stop": StopRequest(
                epoch=1, cause=StopCause.PREEMPTED, message="x", requested_time=MOMENT, deadline_time=MOMENT
            )
        },
    ],
    ids=["it does not run yet", "it is being stopped"],
)
def test_a_gang_that_comes_or_goes_is_left_alone(status: dict[str, Any]) -> None:
    job = shown(ELASTIC, **status)
    assert (job.movable_from, job.preemptible) == (inf, False)


def comes(bound: float = 60.0, ready: str = "False") -> tuple[Condition, ...]:
    """All pods are bound."""
    known = ((names.GANG_SCHEDULED, "True", bound), (names.PODS_READY, ready, 1.0))
    given = ({"type": t, "status": s, "reason": "Because", "last_transition_time": ago(at)} for t, s, at in known)
    return tuple(Condition(**each) for each in given)


def test_a_gang_that_should_run_by_now_and_does_not_may_be_stopped_and_not_be_resized() -> None:
    job = shown(ELASTIC, conditions=comes(bound=60.0))
    assert job.stoppable_from == NOW - 60 + COMES_UP_SECONDS
    assert (job.movable_from, job.preemptible) == (inf, False)


def test_one_that_runs_or_waits_for_others_or_is_being_stopped_may_not_be_stopped_for_not_running() -> None:
    stop = StopRequest(epoch=1, cause=StopCause.PREEMPTED, message="x", requested_time=MOMENT, deadline_time=MOMENT)
    assert shown(conditions=comes(ready="True")).stoppable_from is None
    assert shown(conditions=()).stoppable_from is None
    assert shown(conditions=comes(), stop=stop).stoppable_from is None


def test_one_that_had_to_give_way_too_often_is_let_come_up() -> None:
    before = (record(seconds, epoch=epoch) for epoch, seconds in ((1, 3000), (2, 600)))
    twice = tuple(each.model_copy(update={"beneficiary": "default/other"}) for each in before)
    assert shown(epoch=3, stops=twice, conditions=comes()).stoppable_from == NOW - 3000 + HOUR
    assert shown(rules=Mobility(per_hour=0), conditions=comes()).stoppable_from is None


def test_a_job_gives_way_only_so_often_in_an_hour() -> None:
    twice = tuple(record(seconds, epoch=epoch) for epoch, seconds in ((1, 5000), (2, 3000), (3, 600)))
    assert shown(epoch=4, stops=twice).movable_from == NOW - 3000 + HOUR
    assert shown(epoch=4, stops=twice, now=NOW + 601.0).movable_from < NOW + 601.0
    assert shown(epoch=4, stops=(twice[1], record(600, StopCause.SUSPENDED, 3))).movable_from < NOW
    assert shown(rules=Mobility(per_hour=0)).movable_from == inf


def test_what_a_job_gains_by_itself_is_no_giving_way() -> None:
    own = tuple(record(3000 - 1000 * epoch, StopCause.RESIZED, epoch, beneficiary=None) for epoch in (1, 2))
    assert shown(epoch=4, stops=own).movable_from < NOW
    moved = tuple(stop.model_copy(update={"beneficiary": "team/other"}) for stop in own)
    assert shown(epoch=4, stops=moved).movable_from == NOW - 2000 + HOUR


def test_a_request_that_was_taken_back_is_none_of_these() -> None:
    before, again = record(3000), record(600, epoch=2)
    assert shown(epoch=2, stops=(before, again)).movable_from < NOW  # epoch 2 goes on: it was not stopped
    assert shown(epoch=3, stops=(before, again)).movable_from == NOW - 3000 + HOUR
    assert shown(epoch=3, stops=(record(700, epoch=2), again)).movable_from < NOW  # asked twice, stopped once
    degrees = plan_of(placement(nodes={"n1": 4})).parallelism
    served = shown(epoch=2, stops=(before, again), start_time=ago(3200), degrees=degrees).served
    assert served["*"] == 4 * 200


def test_policies_may_touch_elastic_jobs_only_and_only_where_that_is_wanted() -> None:
    assert shown(ELASTIC).preemptible
    assert not shown().preemptible
    assert not shown(ELASTIC, rules=Mobility(elastic=False)).preemptible


def test_what_a_stop_would_lose_is_the_work_since_the_last_checkpoint() -> None:
    assert shown(conditions=runs(400)).lost_seconds == 400
    saved = Observed(epoch=1, steps_done=9, last_checkpoint_step=8, last_checkpoint_time=ago(50))
    assert shown(conditions=runs(400), observed=saved).lost_seconds == 50
    assert shown(conditions=runs(400), observed=saved.model_copy(update={"epoch": 2})).lost_seconds == 400


def test_steps_beyond_those_that_it_stated_are_told_apart() -> None:
    stated = shown().training.steps
    told = shown(observed=Observed(epoch=1, steps_done=stated + 7))
    assert (told.steps_done, told.steps_beyond) == (stated, 7)
    told = shown(observed=Observed(epoch=1, steps_done=stated - 7))
    assert (told.steps_done, told.steps_beyond) == (stated - 7, 0)


def modelled(job: Job) -> float:
    return restart_seconds(job.model, job.training, 1)


def timed(save: int | None, start: int | None, epoch: int = 1) -> StopRecord:
    return record(3000, epoch=epoch).model_copy(update={"save_seconds": save, "start_seconds": start})


def test_a_restart_costs_what_the_simulator_takes_it_to_cost_until_it_was_measured() -> None:
    assert shown().restart_seconds == modelled(shown())
    half_known = (timed(20, None), timed(None, 300, 2))
    assert shown(epoch=3, stops=half_known).restart_seconds == modelled(shown())


def test_then_it_costs_the_median_of_what_its_own_restarts_took() -> None:
    stops = (timed(20, 100), timed(30, 270, 2), timed(10, 90, 3), timed(None, 9, 4))
    assert shown(epoch=5, stops=stops).restart_seconds == 120
    fake = shown(epoch=5, stops=stops, rules=Mobility(fake=True))
    assert fake.restart_seconds == modelled(fake)


def test_jobs_that_were_never_stopped_go_by_what_those_of_others_took() -> None:
    def planned(name: str, node: str, stops: tuple[StopRecord, ...] = ()) -> JobObject:
        plan = plan_of(placement(f"uid-{name}", {node: 8}), 2, now=ago(HOUR))
        return job_object(name, status=JobStatus(plan=plan, last_epoch=2, conditions=runs(), stops=stops))

    known, never = planned("known", "n1", (timed(50, 250),)), planned("never", "n2")
    nodes = [node_object("n1"), node_object("n2")]
    jobs = {job.name: job for job in ClusterObserver(()).observe(Caches(nodes, [], [known, never]), NOW).snapshot.jobs}
    assert jobs["known"].restart_seconds == 300
    assert jobs["never"].restart_seconds == pytest.approx(300)


def test_gpu_hours_count_over_all_gangs_of_a_job() -> None:
    assert shown(conditions=runs(100)).served == {"A100-SXM4-80GB": 800}
    degrees = plan_of(placement(nodes={"n1": 4})).parallelism
    before = {"stops": (record(500),), "start_time": ago(700), "degrees": degrees}
    assert shown(epoch=2, conditions=runs(100), **before).served == {"*": 800, "A100-SXM4-80GB": 800}


def test_a_checkpoint_that_cannot_be_resharded_fixes_the_degrees() -> None:
    degrees = plan_of(placement(nodes={"n1": 4})).parallelism
    kept = waits(degrees=degrees).requirements
    assert (kept.gpus, kept.tensor, kept.zero_stage) == (Bounds(4, 4), Bounds(1, 1), 1)
    assert waits({"elasticity.checkpoint.resharding": True}, degrees=degrees).requirements.gpus == Bounds(1, 8)
    edited = waits({"resources.gpus": {"min": 8, "max": 8}}, degrees=degrees).requirements
    assert edited.gpus == Bounds(8, 8), "what the owner says now counts more"


def test_a_megatron_checkpoint_of_sharded_weights_stays_with_what_can_load_it() -> None:
    spec = {"elasticity.checkpoint.resharding": True, "launcher": "Megatron"}
    assert waits(spec).requirements.zero_stages == Bounds(0, 1)
    plan = plan_of(placement(nodes={"n1": 4})).parallelism
    assert waits(spec, degrees=plan.model_copy(update={"zero_stage": 1})).requirements.zero_stages == Bounds(0, 1)
    assert waits(spec, degrees=plan.model_copy(update={"zero_stage": 3})).requirements.zero_stages == Bounds(2, 3)


def test_a_gang_that_runs_will_save_what_it_is_divided_into() -> None:
    four = plan_of(placement(nodes={"n1": 4})).parallelism
    assert shown(degrees=four).requirements.gpus == Bounds(8, 8)
    assert shown(degrees=four, conditions=()).requirements.gpus == Bounds(4, 4), "it may not be able to load them"
    assert shown().requirements.gpus == Bounds(8, 8)
    assert shown({"elasticity.checkpoint.resharding": True}).requirements.gpus == Bounds(1, 8)


def waits(spec: dict[str, Any] | None = None, **status: Any) -> Job:
    """The job without a gang, as policies see it."""
    return shown(spec, plan=None, conditions=(), **status)
