"""LLM jobs: how fast a plan is, on the nodes that it got, says the performance model, in error by a known amount.

The truth of a (job, GPU type) pair is what the model predicts times a log-normal error of spread sigma, or an error
that is given for each placement: policies see the prediction, the simulator goes by the truth. What a job states of its
length may be in error as well. A gang that leaves its
nearest topology domain has the network's bandwidth divided by the oversubscription of the levels above, and of one that
leaves its link domain only the smallest share has the link to itself. A restart saves a checkpoint, schedules the pods,
starts the processes and loads it again; both ways are bounded by the storage, so that large models pay more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from trimtab_policy.perf import plans
from trimtab_policy.perf.restarts import (
    SCHEDULE_SECONDS,
    STARTUP_SECONDS,
    STORAGE_BANDWIDTH,
    STORAGE_LIMIT,
    checkpoint_bytes,
)
from trimtab_policy.placement.topology import link_domains, linked_gpus
from trimtab_policy.sim.job import Alone
from trimtab_policy.sim.steady import SteadyJob
from trimtab_policy.specs import GpuSpec, ModelSpec, ParallelPlan, TrainingSpec
from trimtab_policy.types import Job, Node, Placement, Snapshot

Mistake = Callable[[Job, Placement], float]
"""True step time of a job as placed over the predicted one."""


class LlmRules(Struct, frozen=True):
    """What manifests of jobs do not say."""

    preemptible: bool = True
    restarts_told: bool = False
    """What a restart costs policies read in the job (`restart_seconds`), as the live controller has written it there;
    else it is worked out from the checkpoint. The truth is worked out in any case."""
    schedule_seconds: float = SCHEDULE_SECONDS
    """From the decision to running pods: gang creation, image that is there already."""
    startup_seconds: float = STARTUP_SECONDS
    """Python, process groups, warm-up of the first steps."""
    storage_bandwidth: float = STORAGE_BANDWIDTH
    """Bytes/s that one node reads or writes of a checkpoint."""
    storage_limit: float = STORAGE_LIMIT
    """Bytes/s of the storage as a whole."""
    checkpoint_seconds: float = 1800.0
    """A failure costs the work since the last one."""
    error_sigma: float = 0.0
    """Spread of ln(true step time / predicted), drawn once for each job and GPU type."""
    size_sigma: float = 0.0
    """Spread of ln(steps that a job states / true ones), drawn once for each job."""
    oversubscription: float = 1.0
    """Of the network above the nearest topology domain."""

    def __post_init__(self) -> None:
        """Raise ValueError naming the field."""
        for name in ("schedule_seconds", "startup_seconds", "error_sigma", "size_sigma"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be finite and not negative, got {getattr(self, name)}")
        for name in ("storage_bandwidth", "storage_limit", "checkpoint_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")
        if not 1 <= self.oversubscription < math.inf:
            raise ValueError(f"oversubscription must be at least 1, got {self.oversubscription}")


class LlmJob(SteadyJob):
    """A job of the live API; implements `sim.job.SimJob`."""

    def __init__(
        self, job: Job, submitted: float, nodes: Mapping[str, Node], sizes: Mapping[GpuSpec, int],
        errors: Mapping[str, float], rules: LlmRules, mistake: Mistake | None = None, stated: float = 1.0,
    ) -> None:  # fmt: skip
        """`nodes` are the cluster's by name, `sizes` maps GPU types to GPUs per node, `errors` types to true / said;
        `stated` is the part of its steps that the job states."""
        self._mistake = mistake
        self._rules, self._nodes, self._sizes, self._errors = rules, nodes, sizes, errors
        self._bytes = checkpoint_bytes(job.model, job.training)
        self._gpus = {gpu.name: gpu for gpu in sizes}
        self._failed = False
        restart = rules.schedule_seconds + rules.startup_seconds + 2 * self._storage_seconds(1)
        told = job.restart_seconds if rules.restarts_told else restart
        seen = replace(job, preemptible=rules.preemptible, restart_seconds=told, placement=None)
        self._true, steps = job.training, job.training.steps
        if stated != 1:
            seen = replace(seen, training=replace(job.training, steps=max(1, round(stated * steps))))
        super().__init__(seen, submitted, float(steps), float(min(job.steps_done, steps)), rules.checkpoint_seconds)

    def steps_done(self) -> int:
        return int(self._done)

    def pause(self, before: Placement | None, after: Placement) -> float:
        """A first start loads nothing, one after a failure saves nothing."""
        rules = self._rules
        launch = rules.schedule_seconds + rules.startup_seconds
        if before is None and self._done == 0:
            return launch
        ways = 1 if self._failed else 2
        return launch + ways * self._storage_seconds(len(after.shares))

    def place(self, placement: Placement | None, speed: float = 1.0) -> None:
        super().place(placement, speed)
        self._failed = self._failed and placement is None

    def fail(self) -> float:
        self._failed = True
        return super().fail()

    def rate(self, placement: Placement) -> float:
        shares, nodes = placement.shares, self._nodes
        homes = {nodes[share.node].topology if share.node in nodes else () for share in shares}
        spread = self._rules.oversubscription if len(homes) > 1 else 1.0
        job, width = self._job, shares[0].gpus
        gpu = self._gpus[placement.gpu_type]
        linked = linked_gpus(shares, link_domains(gpu, shares, nodes))
        linked = max(linked, placement.plan.tensor)  # of a node that is gone nobody knows what it was linked with
        software = job.requirements.software
        said = _predicted(job.model, job.training, placement.plan, gpu, width, spread, software, linked)
        mistake = self._mistake(job, placement) if self._mistake else 1.0
        return 1 / (said * self._errors.get(placement.gpu_type, 1.0) * mistake)

    def ends_in_sight(self, placement: Placement, seconds: float) -> None:
        """What runs is expected to end in so many seconds: the error of its GPU type is what makes that true."""
        said = (self._total - self._done) / self.rate(placement)
        if said > 0:
            known = self._errors.get(placement.gpu_type, 1.0)
            self._errors = {**self._errors, placement.gpu_type: known * max(1.0, seconds) / said}

    def alone(self, gpu_type: str) -> Mapping[int, Alone]:
        gpu, job = self._gpus[gpu_type], self._job
        need = job.requirements
        if need.gpu_types and gpu_type not in need.gpu_types:
            return {}
        error, best = self._errors.get(gpu_type, 1.0), dict[int, float]()
        for each in plans.options(job.model, self._true, need, gpu, self._sizes[gpu]):
            best[each.gpus] = min(best.get(each.gpus, math.inf), each.prediction.run_seconds * error)
        return {gpus: Alone(seconds, 1 / seconds) for gpus, seconds in best.items()}

    def _storage_seconds(self, nodes: int) -> float:
        """A checkpoint, one way."""
        return self._bytes / min(nodes * self._rules.storage_bandwidth, self._rules.storage_limit)


def jobs(
    described: Iterable[Job],
    cluster: Snapshot,
    rules: LlmRules | None = None,
    seed: int = 0,
    *,
    mistake: Mistake | None = None,
) -> list[LlmJob]:
    """Simulated jobs for jobs of the live API; each is submitted when it was `created`, at 0 at the earliest.

    The time of the cluster becomes 0: in a live snapshot it is a POSIX time, and what was created before it is older.
    `seed` draws the errors of the performance model, by job and type, in the order of the jobs, and in a stream of its
    own those of what jobs state; `mistake` is what true step times are besides, over the predicted ones (not in what a
    job would take `alone`).
    """
    rules = rules or LlmRules()
    sizes: dict[GpuSpec, int] = {}
    for node in cluster.nodes:
        gpu = cluster.gpu_types[node.gpu_type]
        sizes[gpu] = max(node.gpus, sizes.get(gpu, 0))
    nodes = {node.name: node for node in cluster.nodes}
    random, random_sizes = np.random.default_rng(seed), np.random.default_rng([seed, 1])
    found = []
    for job in described:
        drawn = np.exp(rules.error_sigma * random.standard_normal(len(sizes))).tolist()
        errors = dict(zip((gpu.name for gpu in sizes), drawn, strict=True))
        deadline = None if job.deadline is None else job.deadline - cluster.time
        waits = None if job.waits_since is None else job.waits_since - cluster.time
        since = replace(job, created=job.created - cluster.time, deadline=deadline, waits_since=waits, not_before=0.0)
        since = replace(since, movable_from=0.0, stoppable_from=None)
        submitted = max(0.0, since.created, job.not_before - cluster.time)
        stated = math.exp(rules.size_sigma * random_sizes.standard_normal())
        found.append(LlmJob(since, submitted, nodes, sizes, errors, rules, mistake, stated))
    return found


@lru_cache(maxsize=4096)
def _predicted(
    model: ModelSpec, training: TrainingSpec, plan: ParallelPlan, gpu: GpuSpec, width: int, spread: float,
    software: str, linked: int,
) -> float:  # fmt: skip
    said = plans.predict(model, training, plan, gpu, width, spread=spread, software=software, linked=linked)
    return said.step_seconds
