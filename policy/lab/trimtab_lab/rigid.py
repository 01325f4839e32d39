"""Rigid jobs: a trace says how many GPUs each one held, and for how long.

The whole work is the time that the trace reports, on the GPUs that the job asked for; what it runs on changes nothing
unless `speeds` says how much faster one GPU type is than another. Policies see the work as steps of a millisecond, or
an estimate of it (information regimes O and E): what the users of the trace expected, where it says so
(`Trace.without_estimates` forgets that), or the truth times a log-normal error of spread sigma.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
from msgspec import Struct

from trimtab_lab.workloads.trace import Submission, Trace
from trimtab_policy.sim.job import Alone
from trimtab_policy.sim.steady import SteadyJob
from trimtab_policy.specs import ModelSpec, TrainingSpec
from trimtab_policy.types import Bounds, Job, Placement, Requirements, Snapshot, Speed

STEPS_PER_SECOND = 1000
"""Policies see whole steps: milliseconds of the trace."""


class RigidRules(Struct, frozen=True):
    """What traces do not say."""

    preemptible: bool = True
    restart_seconds: float = 0.0
    """GPU time that every start but the first costs."""
    first_start_costs: bool = False
    """Whether the first start costs it, too."""
    estimate_sigma: float = 0.0
    """Spread of ln(estimate / truth); 0: policies know the truth, or what the users expected."""
    checkpoint_seconds: float = 1800.0
    """A failure costs the work since the last one."""
    type_speeds: Mapping[str, float] = {}
    """Speed of one GPU type relative to what the trace ran on; 1 where not given."""

    def __post_init__(self) -> None:
        """Raise ValueError naming the field."""
        for name in ("restart_seconds", "estimate_sigma"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be finite and not negative, got {getattr(self, name)}")
        if not self.checkpoint_seconds > 0:
            raise ValueError(f"checkpoint_seconds must be above 0, got {self.checkpoint_seconds}")
        if bad := {name: speed for name, speed in self.type_speeds.items() if not 0 < speed < math.inf}:
            raise ValueError(f"type_speeds must be above 0, got {bad}")


class RigidJob(SteadyJob):
    """One job of a trace; implements `sim.job.SimJob`."""

    def __init__(self, job: Job, seconds: float, submitted: float, rules: RigidRules) -> None:
        super().__init__(job, submitted, seconds, 0.0, rules.checkpoint_seconds)
        self._rules = rules
        self._rates = {speed.gpu_type: speed.steps_per_second / STEPS_PER_SECOND for speed in job.speeds or ()}

    def steps_done(self) -> int:
        return int(self._done * STEPS_PER_SECOND)

    def pause(self, before: Placement | None, after: Placement) -> float:
        fresh = before is None and self._done == 0
        return 0.0 if fresh and not self._rules.first_start_costs else self._rules.restart_seconds

    def rate(self, placement: Placement) -> float:
        return self._rates[placement.gpu_type]

    def alone(self, gpu_type: str) -> Mapping[int, Alone]:
        if not (rate := self._rates.get(gpu_type)):
            return {}
        return {self._job.requirements.gpus.low: Alone(self._total / rate, rate / self._total)}


def jobs(trace: Trace, cluster: Snapshot, rules: RigidRules | None = None, seed: int = 0) -> list[RigidJob]:
    """The jobs of a trace for a cluster. `seed` draws the errors of the estimates.

    Raises ValueError for a job without a run time: Sia workloads need profiles.
    """
    rules = rules or RigidRules()
    sizes = _sizes(cluster)
    if len(trace) and math.isnan(float(np.min(trace.seconds))):
        raise ValueError(f"{trace.source or 'the trace'}: has jobs without a run time: such workloads need --profiles")
    errors = np.exp(rules.estimate_sigma * np.random.default_rng(seed).standard_normal(len(trace)))
    speeds: dict[tuple[int, tuple[str, ...]], tuple[Speed, ...]] = {}
    found = []
    for each, error in zip(trace, errors.tolist(), strict=True):
        key = each.gpus, each.gpu_types
        if key not in speeds:
            speeds[key] = tuple(_speeds(each, sizes, rules))
        found.append(RigidJob(_job(each, speeds[key], error, rules), each.seconds, each.submitted, rules))
    return found


def _job(each: Submission, speeds: tuple[Speed, ...], error: float, rules: RigidRules) -> Job:
    told = each.estimate if each.estimate > 0 and rules.estimate_sigma == 0 else each.seconds * error
    return Job(
        uid=each.name,
        namespace=each.queue or "default",
        name=each.name,
        model=_model(each.application),
        training=TrainingSpec(1, 1, steps=max(1, round(told * STEPS_PER_SECOND))),
        requirements=Requirements(gpus=Bounds(each.gpus, each.gpus), gpu_types=each.gpu_types),
        created=each.submitted,
        queue=each.queue,
        speeds=speeds,
        preemptible=rules.preemptible,
        restart_seconds=rules.restart_seconds,
        deadline=None if math.isnan(each.deadline) else each.deadline,
    )


def _model(application: str) -> ModelSpec:
    """A trace says nothing about the model but, at best, its name."""
    return ModelSpec(application or "job", 1, 1, 1, 1, 1, 1, 1)


def _speeds(each: Submission, sizes: Mapping[str, int], rules: RigidRules) -> Iterable[Speed]:
    for name, per_node in sizes.items():
        if not each.gpu_types or name in each.gpu_types:
            nodes = -(-each.gpus // per_node)
            yield Speed(name, each.gpus, nodes, rules.type_speeds.get(name, 1.0) * STEPS_PER_SECOND)


def _sizes(cluster: Snapshot) -> dict[str, int]:
    """GPU type -> GPUs of its largest node."""
    sizes: dict[str, int] = {}
    for node in cluster.nodes:
        sizes[node.gpu_type] = max(node.gpus, sizes.get(node.gpu_type, 0))
    return sizes
