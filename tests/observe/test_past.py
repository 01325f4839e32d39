"""The last day's jobs as they turned out: as long as they held GPUs, whatever they said of themselves."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from msgspec.structs import replace
from tests.builders import MOMENT, NOW, gang_pod, job_object, node_object, placement, plan_of

from trimtab import names
from trimtab.api.status import Condition, JobStatus, Observed, PlanTerms
from trimtab.kube.objects import JobObject
from trimtab.observe import past
from trimtab.observe.snapshot import Caches, ClusterObserver, Observation
from trimtab_policy.types import Job

HOUR, DAY = 3600.0, 86400.0


def look(*jobs: JobObject, pods: Any = ()) -> Observation:
    return ClusterObserver(()).observe(Caches([node_object("n1"), node_object("n2")], pods, jobs), NOW)


def status(began: float, ended: float | None = None, **changes: Any) -> JobStatus:
    """Of a job whose gang began, and ended, so many hours ago; a step takes half a second."""
    at = [MOMENT - timedelta(hours=hours) for hours in (began, ended or 0.0)]
    told = [("PodsReady", at[0]), *([("Complete", at[1])] if ended is not None else [])]
    conditions = tuple(
        Condition(type=kind, status="True", reason="Told", last_transition_time=when) for kind, when in told
    )
    fields: dict[str, Any] = {
        "plan": plan_of(placement(nodes={"n1": 8})),
        "last_epoch": 1,
        "start_time": at[0],
        "completion_time": at[1] if ended is not None else None,
        "conditions": conditions,
    }
    return JobStatus(**(fields | changes))


def ago(hours: float) -> str:
    return (MOMENT - timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%SZ")


def jobs_of(*objects: JobObject, pods: Any = ()) -> dict[str, Job]:
    return {each.name: each for each in past.window(look(*objects, pods=pods), DAY).jobs}


def test_a_job_is_as_long_as_it_held_gpus_not_as_it_stated() -> None:
    spec = {"training.steps": 10**9}
    [found] = jobs_of(job_object("liar", spec, status(5, 4), creation_timestamp=ago(6))).values()
    assert found.training.steps == HOUR / 0.5
    assert found.created == NOW - 6 * HOUR


def test_what_a_training_reported_changes_nothing() -> None:
    said = Observed(epoch=1, steps_done=10**9, step_milliseconds=1)
    plain, told = (status(5, 4, observed=each) for each in (None, said))
    first, second = (jobs_of(job_object("j", {"training.steps": 10**9}, each)) for each in (plain, told))
    assert first == second


def test_of_a_job_that_came_before_the_window_only_what_it_did_in_it_counts() -> None:
    [found] = jobs_of(job_object("old", status=status(40, 22), creation_timestamp=ago(41))).values()
    assert found.training.steps == 2 * HOUR / 0.5


def test_a_job_that_ended_before_the_window_is_not_in_it() -> None:
    objects = job_object("gone", status=status(40, 30), creation_timestamp=ago(41))
    assert jobs_of(objects) == {}
    assert past.there_since(look(objects), NOW - DAY) == 0
    assert past.there_since(look(objects), NOW - 2 * DAY) == 1


def test_a_job_that_runs_counts_with_what_it_has_done_so_far_and_its_gpus_are_free_at_first() -> None:
    runs = job_object("runs", {"training.steps": 10**9}, status(3), creation_timestamp=ago(4))
    seen = look(runs, pods=[gang_pod("runs", 1, 0, "n1", phase="Running")])
    assert {each.name: each.free_gpus for each in seen.snapshot.nodes} == {"n1": 0, "n2": 8}
    window = past.window(seen, DAY)
    assert {each.name: each.free_gpus for each in window.nodes} == {"n1": 8, "n2": 8}
    [found] = window.jobs
    assert (found.training.steps, found.placement) == (3 * HOUR / 0.5, None)


def test_of_a_job_that_has_never_run_what_it_states_is_all_there_is() -> None:
    [found] = jobs_of(job_object("waits", {"training.steps": 777})).values()
    assert found.training.steps == 777


def test_jobs_that_never_wanted_gpus_or_make_no_sense_are_left_out() -> None:
    suspended = job_object("asleep", {"suspend": True})
    broken = job_object("broken", {"model.preset": "no-such-model"})
    elsewhere = job_object("lost", {"queue": "nowhere"})
    assert jobs_of(suspended, broken, elsewhere) == {}


def test_an_ended_job_keeps_the_priority_and_queue_that_it_had_and_its_elasticity() -> None:
    terms = PlanTerms(queue="research", priority=70)
    plan = plan_of(placement(nodes={"n1": 8})).model_copy(update={"terms": terms})
    spec = {"elasticity": {"policy": "Elastic"}}
    [found] = jobs_of(job_object("done", spec, status(5, 4, plan=plan))).values()
    assert (found.queue, found.priority, found.elastic) == ("research", 70, True)
    assert found.restart_seconds > 0


def test_where_a_job_may_run_is_what_its_template_says() -> None:
    spec = {"template.spec.nodeSelector": {names.HOSTNAME: "n2"}}
    [found] = jobs_of(job_object("choosy", spec, status(5, 4))).values()
    assert found.eligible == ("n2",)


def test_nobody_chooses_the_policy_that_is_compared() -> None:
    own = job_object("own", annotations={names.ANNOTATION_POLICY: "random"})
    [found] = jobs_of(own).values()
    assert found == replace(found, policy=None)
