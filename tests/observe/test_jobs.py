"""One job's facts: understood, or the reason why not; never an exception."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.builders import MOMENT, NOW, job_object, placement, plan_of

from trimtab import names
from trimtab.api import conditions
from trimtab.api.status import Condition, JobStatus
from trimtab.observe.jobs import JobFacts, facts, posix, speedup_of

TRAINER = {"name": "trainer", "image": "trainer:1"}


def holding(kind: str) -> JobStatus:
    condition = Condition(type=kind, status="True", reason="X", last_transition_time=MOMENT)
    return JobStatus(plan=plan_of(placement()), last_epoch=1, conditions=conditions.merge((), [condition]))


def test_a_sound_job_is_understood() -> None:
    known = facts(job_object())
    assert known.error == ""
    assert known.model
    assert known.training
    assert known.requirements
    assert (known.model.name, known.training.steps, known.requirements.gpus.high) == ("gpt2", 1000, 8)
    assert known.template == {"spec": {"containers": [{"name": "trainer", "image": "trainer:1"}]}}
    assert (known.ours, known.finished, known.suspended, known.holds_gpus, known.retry_at()) == (True, *[False] * 3, 0)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"model.preset": "gpt9"}, "spec.model.preset: unknown model preset 'gpt9'"),
        ({"training.globalBatchSize": 0}, "spec.training.globalBatchSize: "),
        ({"training.precision": "FP4"}, "spec.training.precision: "),
        ({"resources.gpus": {"min": 9, "max": 8}}, "spec.resources.gpus.min: "),
        ({"resources.memoryPerGpu": "lots"}, "spec.resources.memoryPerGpu: "),
        ({"template": None}, "spec.template: "),
        ({"template.spec.containers": []}, "spec.template.spec.containers: "),
        ({"model": 3}, "spec.model: "),
        ({"template.spec.overhead": [0]}, "spec.template.spec: "),
    ],
)
def test_what_is_wrong_is_said_with_the_field(change: dict[str, Any], field: str) -> None:
    known = facts(job_object(spec=change))
    assert known.error.startswith(field)
    assert (known.spec, known.unreadable) == (None, False)


def test_what_the_template_asks_for_in_ways_that_trimtab_does_not_count_is_left_alone() -> None:
    claims = {"claims": [{"name": "fabric"}], "newer": "x"}
    containers = [{"name": "proxy", "image": "proxy:1"}, TRAINER | {"resources": {"requests": {"cpu": "9"}, **claims}}]
    known = facts(job_object(spec={"template.spec.containers": containers, "resources.cpusPerGpu": "2"}))
    assert known.error == ""
    assert known.requirements
    assert (known.requirements.cpu_milli_per_gpu, known.requirements.cpu_milli_per_pod) == (2000, 0)
    assert known.template["spec"]["containers"] == containers


def test_a_status_of_another_version_is_never_overwritten() -> None:
    known = facts(replace(job_object(), status=msgspec.Raw(b'{"restarts": "many"}')))
    assert known.unreadable
    assert known.error.startswith("status cannot be read: status.restarts: ")
    assert known.spec is None


def test_unknown_fields_of_a_newer_version_do_no_harm() -> None:
    known = facts(replace(job_object(spec={"novelty": 1}), status=msgspec.Raw(b'{"restarts": 2, "novelty": {}}')))
    assert known.error == ""
    assert known.status.restarts == 2


@pytest.mark.parametrize(
    ("kind", "finished"), [(names.COMPLETE, True), (names.FAILED, True), (names.PODS_READY, False)]
)
def test_a_finished_job_holds_no_gpus_though_its_plan_stays(kind: str, finished: bool) -> None:
    known = facts(job_object(status=holding(kind)))
    assert (known.finished, known.holds_gpus) == (finished, not finished)


@pytest.mark.parametrize(
    ("manager", "ours"), [(None, True), (names.MANAGED_BY, True), ("kueue.x-k8s.io/multikueue", False)]
)
def test_jobs_of_other_controllers_are_not_ours(manager: str | None, ours: bool) -> None:
    assert facts(job_object(spec={"managedBy": manager} if manager else {})).ours is ours


def test_the_latest_plan_says_how_fast_fake_pods_run() -> None:
    before = MOMENT - timedelta(seconds=1)
    plans = [
        plan_of(placement(), speedup=2000.0),
        plan_of(placement(), speedup=60.0, now=before),
        plan_of(placement(), now=before),
    ]
    known = [facts(job_object(f"j{n}", status=JobStatus(plan=plan, last_epoch=1))) for n, plan in enumerate(plans)]
    assert speedup_of(known) == 2000.0
    assert speedup_of(known[2:]) == speedup_of([facts(job_object())]) == 1.0


def test_suspension_and_back_off() -> None:
    known: JobFacts = facts(job_object(spec={"suspend": True}, status=JobStatus(retry_time=MOMENT)))
    assert known.suspended
    assert known.retry_at() == NOW


def test_times_are_posix_seconds() -> None:
    assert (posix("2026-01-02T03:04:05Z"), posix(None)) == (NOW, 0.0)


def test_a_spec_is_read_again_only_when_it_has_changed() -> None:
    """Searches for plans are remembered by the objects that are made of it."""
    before = facts(job_object("a", {"maxRestarts": 3}))
    after = facts(job_object("a", {"maxRestarts": 3}, status=JobStatus(restarts=2)), before)
    assert (after.spec is before.spec, after.training is before.training) == (True, True)
    assert (before.status.restarts, after.status.restarts) == (0, 2)
    edited = facts(job_object("a", {"maxRestarts": 4}, status=JobStatus(restarts=2)), after)
    assert edited.spec is not None
    assert edited.spec.max_restarts == 4
    broken = facts(job_object("a", {"maxRestarts": "many"}), edited)
    assert (broken.spec, "maxRestarts" in broken.error) == (None, True)
    mended = facts(job_object("a", {"maxRestarts": 4}), broken)
    assert mended.spec is not None
    assert mended.template == edited.template
