"""A cluster for the tests of the console: racks of nodes whose agents report, and jobs of three namespaces."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.builders import (
    A100,
    H100,
    MOMENT,
    NOW,
    gpu_reading,
    gpunode_object,
    job_object,
    node_object,
    placement,
    plan_of,
    queue_object,
)  # fmt: skip

from trimtab.api import conditions
from trimtab.api.history import StopRecord
from trimtab.api.status import Condition, JobStatus, Observed, PendingStatus, StartTime
from trimtab.kube.objects import GpuNodeObject, JobObject, NodeObject
from trimtab.observe.gpunodes import GpuNodes
from trimtab.observe.snapshot import Caches, ClusterObserver, Observation
from trimtab.settings import QueueSettings, TelemetrySettings, TopologySettings
from trimtab.web import views
from trimtab.web.columns import Layout
from trimtab.web.console import Moment
from trimtab_policy.perf.hierarchy import Learned
from trimtab_policy.scheduling.choice import Choice
from trimtab_policy.specs import Prediction
from trimtab_policy.types import PendingReason, StopCause

RACK, LEVELS = 8, TopologySettings().levels
OPEN, SECRET = "team-open", "team-secret"
SECRET_JOB = "classified-70b"
PREDICTED = Prediction(0.5, 131_072.0, 1 << 33, 14_400.0, uncertainty=1.2)


def told(*holds: tuple[str, str]) -> tuple[Condition, ...]:
    """All conditions of a job of which some (type, reason) hold."""
    changed = [
        Condition(type=kind, status="True", reason=reason, message="", last_transition_time=MOMENT)
        for kind, reason in holds
    ]
    return conditions.merge(conditions.initial(1, MOMENT), changed)


def running_job(name: str, namespace: str, nodes: Mapping[str, int], gpu_type: str = A100, **status: Any) -> JobObject:
    """A job that holds GPUs."""
    plan = plan_of(
        placement(f"uid-{name}", dict(nodes), gpu_type, prediction=PREDICTED), now=MOMENT - timedelta(hours=1)
    )
    said = {"start_time": MOMENT - timedelta(hours=1), "last_epoch": 1, **status}
    holds = (("Planned", "Bound"), ("GangScheduled", "Starting"), ("PodsReady", "Running"))
    state = JobStatus(conditions=told(*holds), plan=plan, **said)
    return job_object(name, {"elasticity.policy": "Fixed"}, state, namespace=namespace)


def waiting_job(name: str, namespace: str, message: str, start: float = 3600.0, gpu_type: str = "") -> JobObject:
    """A job that waits for GPUs, with what the controller says of it."""
    at = datetime.fromtimestamp(NOW + start, UTC)
    eta = StartTime(earliest=at - timedelta(minutes=20), expected=at, latest=at + timedelta(minutes=40))
    pending = PendingStatus(
        reason=PendingReason.INSUFFICIENT_GPUS, message=message, blockers=(f"{SECRET}/{SECRET_JOB}",),
        alternatives=(f"wait until {SECRET_JOB} of {SECRET} ends",), start_time=eta,
    )  # fmt: skip
    planned = Condition(
        type="Planned", status="False", reason="InsufficientGpus", message=message, last_transition_time=MOMENT
    )
    state = JobStatus(conditions=conditions.merge(conditions.initial(1, MOMENT), [planned]), pending=pending)
    asks = {"resources.gpus": {"min": 8, "max": 8}, **({"resources.gpuTypes": [gpu_type]} if gpu_type else {})}
    return job_object(name, asks, state, namespace=namespace)


class Town:
    """`nodes` machines with eight GPUs each, half of them A100. Half of them are held by jobs."""

    def __init__(self, nodes: int = 16) -> None:
        self.now = NOW
        kinds = [A100 if index % (2 * RACK) < RACK else H100 for index in range(nodes)]
        self.kinds = {f"n{index}": kind for index, kind in enumerate(kinds)}
        self.nodes: dict[str, NodeObject] = {
            f"n{index}": node_object(f"n{index}", kind, labels=_where(index)) for index, kind in enumerate(kinds)
        }
        self.heard = GpuNodes(TelemetrySettings(), clock=lambda: self.now, wall=lambda: self.now)
        self.observer = ClusterObserver(LEVELS, self.heard)
        self.layout = Layout()
        self.reports = 0
        stop = StopRecord(time=MOMENT, epoch=1, cause=StopCause.PREEMPTED, beneficiary=f"{SECRET}/{SECRET_JOB}")
        self.jobs: dict[str, JobObject] = {}
        for index in range(0, nodes // 2, 2):
            held = {f"n{index}": 8, f"n{index + 1}": 8}
            kind, where = kinds[index], (OPEN, SECRET)[index // 2 % 2]
            name = SECRET_JOB if where == SECRET and SECRET_JOB not in self.jobs else f"run-{index}"
            seen = Observed(epoch=1, step_milliseconds=530, steps_done=400)
            told_of = {"stops": (stop,), "observed": seen} if where == OPEN else {}
            self.jobs[name] = running_job(name, where, held, kind, **told_of)
        behind = f"behind {SECRET}/{SECRET_JOB}, and others of {SECRET}"
        self.jobs["next-up"] = waiting_job("next-up", OPEN, behind, gpu_type=A100)
        self.jobs["hush-hush"] = waiting_job("hush-hush", SECRET, "waits")
        self.queues = [
            queue_object("shared", {"gpuType": "*", "gpus": 128, "guaranteed": 16}, namespaces=[OPEN, SECRET])
        ]

    @property
    def busy(self) -> list[str]:
        """Nodes that jobs have."""
        return sorted(self.nodes, key=lambda name: int(name[1:]))[: len(self.nodes) // 2]

    def report(self, name: str, use: list[int]) -> GpuNodeObject:
        """The agent of a node says how busy its GPUs are."""
        self.reports += 1
        gpus = [gpu_reading(index, name, smUtilizationPercent=busy) for index, busy in enumerate(use)]
        report = gpunode_object(name, gpus, observed=self.reports)
        self.heard.take(report)
        return report

    def look(self) -> Observation:
        """What is seen now."""
        caches = Caches(self.nodes.values(), [], self.jobs.values(), self.queues)
        return self.observer.observe(caches, self.now)

    def moment(self, number: int = 1) -> Moment:
        """What the console knows now."""
        seen, rules = self.look(), QueueSettings()
        runs, kept = views.expected_runs(seen, rules.reservations, rules.starvation_seconds)
        waits = views.waits_of(seen, kept)
        deciders = views.Deciders("best_fit", Choice("best_fit", "fcfs"))
        jobs = [facts.meta.key for facts in seen.jobs.values()]
        spaces = frozenset(key.partition("/")[0] for key in jobs)
        return Moment(number, seen, waits, runs, Learned(), deciders, self.layout.columns(seen, waits), jobs, spaces)


def _where(index: int) -> dict[str, str]:
    rack = index // RACK
    kinds = "zone", "block", "rack"
    values = "z0", f"b{rack // 8}", f"r{rack}"
    return {f"topology.kubernetes.io/{kind}": value for kind, value in zip(kinds, values, strict=True)}
