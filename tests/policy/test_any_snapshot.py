"""Whatever the cluster looks like: every policy answers for every job, keeps every rule, and can be carried out."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, note, settings
from tests.builders import MOMENT, job_object, plan_of
from tests.strategies import snapshots

from trimtab.api.status import JobStatus
from trimtab.api.v1alpha1 import JobSpec
from trimtab.observe.jobs import facts
from trimtab.plan import objects
from trimtab.plan.gang import gang_plan
from trimtab_policy import policy
from trimtab_policy.scheduling.shield import check
from trimtab_policy.types import Decision, Placement, Snapshot

LAUNCHERS = ["Torchrun", "Torchtitan", "Megatron", "DeepSpeed", "Custom"]


@pytest.mark.timeout(900)
@given(snapshots())
@settings(max_examples=100, deadline=None)
def test_every_policy_answers_for_every_job_and_keeps_every_rule(now: Snapshot) -> None:
    """All decide about each snapshot: to draw one costs as much as most decisions."""
    for name in policy.names():
        note(name)
        assert_keeps_every_rule(name, now)


def assert_keeps_every_rule(name: str, now: Snapshot) -> None:
    decision = policy.load(name).decide(now)
    assert decision.policy == name
    answered = [answer.job for answer in (*decision.placements, *decision.pending)]
    assert sorted(answered) == sorted(waiting.uid for waiting in now.waiting())
    assert check(now, decision).refused == ()
    assert all(pending.message for pending in decision.pending)
    assert msgspec.json.decode(msgspec.json.encode(decision), type=Decision) == decision
    for number, placed in enumerate(decision.placements):
        assert_can_be_carried_out(placed, LAUNCHERS[number % len(LAUNCHERS)])


def assert_can_be_carried_out(placed: Placement, launcher: str) -> None:
    plan = plan_of(placed, epoch=10**9)
    status = JobStatus(plan=plan, last_epoch=plan.epoch)
    assert JobStatus.model_validate(status.to_wire()) == status
    known = facts(job_object("j" * 40, {"spec.launcher": launcher}))
    assert isinstance(known.spec, JobSpec)
    assert known.training
    gang = gang_plan(known.meta, known.spec, known.template, known.training, plan)
    pods = [objects.pod(gang, rank) for rank in range(len(placed.shares))]
    assert len({pod["metadata"]["name"] for pod in pods}) == len(pods)
    assert all(len(pod["metadata"]["name"]) <= 63 for pod in pods)
    limits = [pod["spec"]["containers"][0]["resources"]["limits"] for pod in pods]
    assert sum(int(limit["nvidia.com/gpu"]) for limit in limits) == placed.gpus == placed.plan.gpus
    assert plan.created_time == MOMENT
