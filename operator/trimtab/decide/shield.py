"""The hard rules that no placement may break, whatever policy made it.

Policies may be wrong, stale or learned; over-allocating a GPU is not theirs to do. Every placement is checked against
the snapshot and the placements accepted before it in the same decision, and is accepted or refused as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from msgspec import Struct

from trimtab_policy.capacity import ALL_TYPES
from trimtab_policy.limits import Violation, user_limits
from trimtab_policy.perf.plans import InvalidPlan, fits
from trimtab_policy.perf.plans import check as check_degrees
from trimtab_policy.types import Decision, Job, Node, Placement, Snapshot, Stop

LARGEST_FIGURE = 1e18
"""Nothing that is predicted (seconds, tokens/s, bytes) comes near it, and it is still an int64 in the status."""


class Refusal(Struct, frozen=True):
    """A placement or a stop that broke a rule."""

    job: str
    rule: str
    """Name of the rule, low cardinality: a metric label."""
    message: str


class Verdict(Struct, frozen=True):
    """What is left of a decision."""

    accepted: tuple[Placement, ...]
    refused: tuple[Refusal, ...]


def check(snapshot: Snapshot, decision: Decision) -> Verdict:
    """Split the placements of a decision into those that keep all rules and those that do not.

    Stops are refused, and so is a new placement for a running job: no live job is preemptible.
    """
    books = _Books(snapshot)
    accepted: list[Placement] = []
    refused: list[Refusal] = [_no_stop(books, stop) for stop in decision.stops]
    for placement in decision.placements:
        broken = next(_violations(books, placement), None)
        if broken is None:
            books.enter(placement)
            accepted.append(placement)
        else:
            rule, message = broken
            refused.append(Refusal(placement.job, rule, message))
    return Verdict(tuple(accepted), tuple(refused))


class _Books:
    """What is taken: the snapshot plus the placements accepted so far."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.jobs = {job.uid: job for job in snapshot.jobs}
        self.nodes = {node.name: node for node in snapshot.nodes}
        self.free_gpus = {node.name: node.free_gpus for node in snapshot.nodes}
        self.free_cpu = {node.name: node.free_cpu_milli for node in snapshot.nodes}
        self.free_memory = {node.name: node.free_memory for node in snapshot.nodes}
        self.free_pods = {node.name: node.free_pods for node in snapshot.nodes}
        self.placed = {job.uid for job in snapshot.jobs if job.placement}
        self.queue_use: dict[tuple[str, str], int] = {}
        for job in snapshot.jobs:
            if job.placement:
                self._charge(job.queue, job.placement)

    def enter(self, placement: Placement) -> None:
        job = self.jobs[placement.job]
        self.placed.add(job.uid)
        self._charge(job.queue, placement)
        for share in placement.shares:
            self.free_gpus[share.node] -= share.gpus
            self.free_cpu[share.node] -= job.requirements.cpu_milli(share.gpus)
            self.free_memory[share.node] -= job.requirements.memory(share.gpus)
            self.free_pods[share.node] -= 1

    def _charge(self, queue: str, placement: Placement) -> None:
        for gpu_type in (placement.gpu_type, ALL_TYPES):
            self.queue_use[queue, gpu_type] = self.queue_use.get((queue, gpu_type), 0) + placement.gpus


def _no_stop(books: _Books, stop: Stop) -> Refusal:
    job = books.jobs.get(stop.job)
    if job is None:
        return Refusal(stop.job, "unknown_job", f"no job has UID {stop.job}")
    if job.placement is None:
        return Refusal(stop.job, "not_running", "the job holds no GPUs that a stop could free")
    return Refusal(stop.job, "not_preemptible", "the job runs and is not preemptible: it must not be stopped")


def _violations(books: _Books, placement: Placement) -> Iterator[Violation]:
    """Broken rules, the most basic first; later ones rely on the earlier ones being kept."""
    job = books.jobs.get(placement.job)
    if job is None:
        yield "unknown_job", f"no waiting job has UID {placement.job}"
        return
    if job.placement:
        yield "not_preemptible", "the job runs and is not preemptible: it must not be moved or resized"
        return
    if job.uid in books.placed:
        yield "already_placed", "the job has a placement already"
        return
    for rule in (_shape, _nodes, _resources, _user_limits, _quota, _degrees, _gpu, _numbers):
        yield from rule(books, job, placement)


def _shape(books: _Books, job: Job, placement: Placement) -> Iterator[Violation]:
    shares = placement.shares
    if not shares or any(share.gpus < 1 for share in shares):
        yield "empty_share", "every node of a gang must give at least one GPU"
    elif len({share.gpus for share in shares}) > 1:
        yield "unequal_gpus", "all pods of a gang need the same number of GPUs (torchrun's LOCAL_WORLD_SIZE)"
    if len({share.node for share in shares}) < len(shares):
        yield "repeated_node", "a gang has one pod per node"
    if placement.plan.gpus != placement.gpus:
        yield "degrees_mismatch", f"the degrees use {placement.plan.gpus} GPUs, the nodes give {placement.gpus}"


def _nodes(books: _Books, job: Job, placement: Placement) -> Iterator[Violation]:
    for share in placement.shares:
        node: Node | None = books.nodes.get(share.node)
        if node is None:
            why = books.snapshot.unavailable.get(share.node, "no such GPU node")
            yield "node_unavailable", f"node {share.node}: {why}"
        elif node.gpu_type != placement.gpu_type:
            yield "wrong_gpu_type", f"node {share.node} has {node.gpu_type}, the placement says {placement.gpu_type}"
        elif job.eligible is not None and share.node not in job.eligible:
            yield "node_not_eligible", f"the job's selectors or tolerations do not admit node {share.node}"


def _resources(books: _Books, job: Job, placement: Placement) -> Iterator[Violation]:
    need = job.requirements
    for share in placement.shares:
        demands = (
            ("oversubscribed_gpus", "GPUs", share.gpus, books.free_gpus),
            ("oversubscribed_cpu", "CPU millicores", need.cpu_milli(share.gpus), books.free_cpu),
            ("oversubscribed_memory", "bytes of memory", need.memory(share.gpus), books.free_memory),
            ("oversubscribed_pods", "pod slots", 1, books.free_pods),
        )
        for rule, what, wanted, free in demands:
            if wanted and wanted > free.get(share.node, 0):
                yield rule, f"node {share.node} has {free.get(share.node, 0)} {what} free, {wanted} are needed"


def _user_limits(books: _Books, job: Job, placement: Placement) -> Iterator[Violation]:
    yield from user_limits(job.requirements, placement)


def _quota(books: _Books, job: Job, placement: Placement) -> Iterator[Violation]:
    for quota in books.snapshot.quotas:
        if quota.queue == job.queue and quota.gpu_type in (placement.gpu_type, ALL_TYPES):
            used = books.queue_use.get((quota.queue, quota.gpu_type), 0)
            if used + placement.gpus > quota.gpus:
                yield "quota", f"queue {quota.queue} allows {quota.gpus} {quota.gpu_type} GPUs and uses {used}"


def _degrees(books: _Books, job: Job, placement: Placement) -> Iterator[Violation]:
    width = placement.shares[0].gpus
    if placement.plan.tensor > width:
        yield "tensor_across_nodes", f"tensor degree {placement.plan.tensor} does not fit the {width} GPUs of a pod"
    try:
        check_degrees(job.model, job.training, placement.plan, width)
    except InvalidPlan as invalid:
        yield "indivisible", str(invalid)


def _gpu(books: _Books, job: Job, placement: Placement) -> Iterator[Violation]:
    gpu, plan = books.snapshot.gpu_types[placement.gpu_type], placement.plan
    if job.training.precision not in gpu.peak_flops:
        yield "precision", f"{gpu.name} has no {job.training.precision}"
    if not fits(job.model, job.training, plan, gpu, job.requirements.software):
        yield "memory", f"the plan {plan.describe()} does not fit in the {gpu.memory_bytes >> 30} GiB of {gpu.name}"


def _numbers(books: _Books, job: Job, placement: Placement) -> Iterator[Violation]:
    predicted = placement.prediction
    values = (predicted.step_seconds, predicted.tokens_per_second, predicted.run_seconds, predicted.memory_bytes)
    if not all(math.isfinite(value) and 0 < value < LARGEST_FIGURE for value in values):
        yield "not_a_number", f"the prediction has a figure that is not between 0 and {LARGEST_FIGURE:g}"
