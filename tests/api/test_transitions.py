"""What may change and what may not, and what `kubectl get` shows: against the real API server.

The jobs here are managed by nobody (`spec.managedBy`), so that no controller of the same session touches them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from trimtab import names
from trimtab.api import conditions, convert
from trimtab.api.status import Condition, JobStatus, PendingStatus, TrainerStatus
from trimtab.apply.write import merge_patch
from trimtab.errors import LocalClusterError
from trimtab_local.control_plane.kubeconfig import kubectl
from trimtab_policy.specs import ParallelPlan, Prediction
from trimtab_policy.types import NodeShare, PendingReason, Placement

pytestmark = pytest.mark.cluster

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
PLACEMENT = Placement(
    job="uid",
    gpu_type="A100-SXM4-80GB",
    shares=(NodeShare("n1", 4), NodeShare("n2", 4)),
    plan=ParallelPlan(data=2, tensor=4, zero_stage=1),
    prediction=Prediction(step_seconds=1.5, tokens_per_second=41200.4, memory_bytes=1 << 35, run_seconds=3600.0),
    reason="8×A100-SXM4-80GB on rack r2: 41.2k tokens/s, 1.7× the next best",
)


class LiveJob:
    """A job in the cluster, patched as users (`spec`) and the controller (`status`) do."""

    def __init__(self, kubeconfig: Path, name: str) -> None:
        self.name = name
        self._kubeconfig = kubeconfig

    def edit(self, **spec: Any) -> None:
        self._patch({"spec": spec})

    def report(self, **status: Any) -> None:
        self._patch({"status": status}, "--subresource=status")

    def columns(self, *options: str) -> dict[str, str]:
        """Return the row that `kubectl get` prints, by column; cells without value are absent."""
        header, row = self._run("get", "ltj", self.name, *options).splitlines()
        starts = [header.index(title) for title in header.split()]
        cells = [row[a:b].strip() for a, b in zip(starts, [*starts[1:], None], strict=True)]
        return {title: cell for title, cell in zip(header.split(), cells, strict=True) if cell}

    def drop_status(self) -> None:
        self._patch({"status": None}, "--subresource=status")

    def delete(self) -> None:
        self._run("delete", "ltj", self.name)

    def _patch(self, patch: dict[str, Any], *options: str) -> None:
        self._run("patch", "ltj", self.name, "--type=merge", "-p", json.dumps(patch), *options)

    def _run(self, *arguments: str) -> str:
        return kubectl(self._kubeconfig, *arguments)


@pytest.fixture
def live(kubeconfig: Path, job: Callable[..., dict[str, Any]], request: pytest.FixtureRequest) -> Iterator[LiveJob]:
    manifest = job({"metadata.name": f"transition-{abs(hash(request.node.name)) % 10**8}"})
    manifest["spec"] |= {"managedBy": "tests.trimtab.dev/nobody", "queue": "research"}
    kubectl(kubeconfig, "create", "-f", "-", stdin=json.dumps(manifest))
    created = LiveJob(kubeconfig, manifest["metadata"]["name"])
    yield created
    created.delete()


def planned(epoch: int, leader: int = 1, degrees: ParallelPlan = PLACEMENT.plan) -> dict[str, Any]:
    made = replace(PLACEMENT, plan=degrees)
    plan = convert.to_plan(made, epoch=epoch, policy="best_fit", resource="nvidia.com/gpu", generation=1, now=NOW)
    return JobStatus(plan=plan, last_epoch=epoch, leader_epoch=leader).to_wire()


def condition(kind: str, status: conditions.Status, reason: str, message: str = "") -> Condition:
    return Condition(type=kind, status=status, reason=reason, message=message, last_transition_time=NOW)


def test_a_controller_that_lost_its_leadership_cannot_write_status(live: LiveJob) -> None:
    live.report(leaderEpoch=7)
    live.report(leaderEpoch=7, restarts=1)
    with pytest.raises(LocalClusterError, match=r"status\.leaderEpoch: .*leaderEpoch may never decrease"):
        live.report(leaderEpoch=6, restarts=2)
    with pytest.raises(LocalClusterError, match="leaderEpoch may never decrease"):
        live.report(leaderEpoch=None)


def test_an_epoch_is_never_used_twice(live: LiveJob) -> None:
    live.report(**planned(epoch=2))
    live.report(plan=None)
    with pytest.raises(LocalClusterError, match=r"status\.lastEpoch: .*epochs are never used twice"):
        live.report(**planned(epoch=2))
    with pytest.raises(LocalClusterError, match="lastEpoch may never decrease"):
        live.report(**planned(epoch=1))
    live.report(**planned(epoch=3))


def test_the_plan_of_an_epoch_never_changes(live: LiveJob) -> None:
    live.report(**planned(epoch=1))
    with pytest.raises(LocalClusterError, match=r"status\.plan\.epoch: .*a plan never changes"):
        live.report(plan={"gpus": 16})
    with pytest.raises(LocalClusterError, match=r"status\.lastEpoch: .*plan\.epoch must equal lastEpoch"):
        live.report(plan={"epoch": 2})


@pytest.mark.parametrize(
    ("degrees", "refusal"),
    [
        (ParallelPlan(data=2, pipeline=4, virtual=3), None),
        (ParallelPlan(data=8, virtual=3), r"parallelism\.virtualPipeline: .*needs a pipeline degree above 1"),
        (ParallelPlan(data=4, context=2, zero_stage=3, shard=4), None),
        (ParallelPlan(data=8, zero_stage=1, shard=4), r"parallelism\.shard: .*needs zeroStage 3"),
        (ParallelPlan(data=8, zero_stage=3, shard=3), r"parallelism\.shard: .*must divide data x context"),
    ],
    ids=lambda given: given.describe() if isinstance(given, ParallelPlan) else "",
)
def test_interleaving_and_hybrid_sharding_only_where_they_exist(
    live: LiveJob, degrees: ParallelPlan, refusal: str | None
) -> None:
    status = planned(1, degrees=degrees)
    if refusal is None:
        live.report(**status)
        return
    with pytest.raises(LocalClusterError, match=refusal):
        live.report(**status)


def test_a_shadow_policy_either_starts_a_job_or_lets_it_wait(live: LiveJob) -> None:
    starts = convert.to_shadow("sia", PLACEMENT, now=NOW, difference_seconds=-600).to_wire()
    live.report(shadow=starts)
    with pytest.raises(LocalClusterError, match=r"status\.shadow\.gpuType: .*either starts the job or lets it wait"):
        live.report(shadow={"pendingReason": "InsufficientGpus"})
    waits = convert.to_shadow("sia", PendingReason.INSUFFICIENT_GPUS, now=NOW).to_wire()
    live.report(shadow=merge_patch(starts, waits))
    with pytest.raises(LocalClusterError, match="either starts the job or lets it wait"):
        live.report(shadow={"pendingReason": None})


def test_status_cannot_be_taken_away(live: LiveJob) -> None:
    live.report(leaderEpoch=7)
    with pytest.raises(LocalClusterError, match=r"status: .*status cannot be taken away"):
        live.drop_status()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", {"preset": "gpt2", "architecture": None}),
        ("training", {"steps": 7}),
        ("launcher", "Megatron"),
        ("template", {"spec": {"hostNetwork": True}}),
    ],
)
def test_what_a_plan_was_made_for_changes_only_without_a_plan(live: LiveJob, field: str, value: Any) -> None:
    live.report(**planned(epoch=1))
    with pytest.raises(LocalClusterError, match=rf"spec\.{field}: .*{field} cannot change under a plan"):
        live.edit(**{field: value})
    live.edit(suspend=True)
    live.report(plan=None)
    live.edit(**{field: value}, suspend=False)


def test_limits_may_change_under_a_plan(live: LiveJob) -> None:
    live.report(**planned(epoch=1))
    live.edit(resources={"gpus": {"min": 4, "max": 8}}, priorityClassName="high", queue="prod", maxRestarts=9)


@pytest.mark.parametrize("value", [None, "other.example/controller"])
def test_the_manager_never_changes(live: LiveJob, value: str | None) -> None:
    with pytest.raises(LocalClusterError, match=r"spec\.managedBy: .*managedBy is immutable"):
        live.edit(managedBy=value)


def test_get_shows_why_a_job_waits(live: LiveJob) -> None:
    waiting = condition(names.PLANNED, "False", PendingReason.INSUFFICIENT_GPUS, "8 GPUs wanted, 4 free")
    pending = PendingStatus(
        reason=PendingReason.INSUFFICIENT_GPUS, message="8 GPUs wanted, 4 free", blockers=("n1 is full",)
    )
    seen = conditions.merge(conditions.initial(1, NOW), [waiting])
    live.report(**JobStatus(conditions=seen, pending=pending).to_wire())
    row = live.columns()
    assert row == {"NAME": live.name, "STATE": "InsufficientGpus", "AGE": row["AGE"]}


def test_get_shows_how_a_job_runs(live: LiveJob) -> None:
    so_far = [
        condition(names.PLANNED, "True", names.REASON_BINDING),
        condition(names.GANG_SCHEDULED, "True", names.REASON_STARTING),
        condition(names.PODS_READY, "True", names.REASON_RUNNING, "2 of 2 pods run"),
    ]
    progress = TrainerStatus(progress_percentage=42, last_updated_time=NOW)
    shadow = convert.to_shadow("sia", PLACEMENT, now=NOW, difference_seconds=-600)
    seen = conditions.merge(conditions.initial(1, NOW), so_far)
    status = JobStatus(conditions=seen, trainer_status=progress, shadow=shadow)
    live.report(**planned(epoch=1) | status.to_wire())
    row = live.columns("-o", "wide")
    assert row == {
        "NAME": live.name,
        "TYPE": "A100-SXM4-80GB",
        "GPUS": "8",
        "PARALLELISM": "dp=2 tp=4 pp=1 zero=1",
        "NODES": "2",
        "PROGRESS%": "42",
        "STATE": "Running",
        "AGE": row["AGE"],
        "POLICY": "best_fit",
        "QUEUE": "research",
        "ETA": "2026-01-02T04:04:05Z",
        "SHADOW": "8×A100-SXM4-80GB dp=2 tp=4 pp=1 zero=1",
        "DIFFERENCE": "-600",
        "REASON": "2 of 2 pods run",
    }


def test_the_status_of_a_queue_cannot_be_written_by_a_controller_of_an_earlier_epoch(kubeconfig: Path) -> None:
    queue = {"apiVersion": "trimtab.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "transition"}, "spec": {}}
    kubectl(kubeconfig, "create", "-f", "-", stdin=json.dumps(queue))

    def report(**status: Any) -> None:
        patch = json.dumps({"status": status})
        kubectl(kubeconfig, "patch", "ltq", "transition", "--type=merge", "-p", patch, "--subresource=status")

    try:
        report(leaderEpoch=7, gpus=8)
        with pytest.raises(LocalClusterError, match=r"status\.leaderEpoch: .*leaderEpoch may never decrease"):
            report(leaderEpoch=6)
    finally:
        kubectl(kubeconfig, "delete", "ltq", "transition")
