"""What one job could run on: its plan options per GPU type, and which of them have room right now.

Shared by all heuristics, so that they differ only in what they choose.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from trimtab_policy.capacity import Capacity
from trimtab_policy.perf.plans import Offer, Option, options_by_type
from trimtab_policy.types import Alternative, GpuSpec, Job, NodeShare, Placement, Precision, Requirements, Snapshot


class Candidate(Struct, frozen=True):
    """One option of one job on one GPU type."""

    gpu: GpuSpec
    option: Option
    tokens_per_second: float
    cost: float
    """GPUs weighted by their peak 16-bit FLOP/s: an H100 is not a T4."""

    def describe(self) -> str:
        """Short form for people: `8×A100-SXM4-80GB`."""
        return f"{self.option.gpus}×{self.gpu.name}"


Fitting = tuple[Candidate, tuple[NodeShare, ...]]
"""A candidate and the nodes that have room for it."""


def weight(gpu: GpuSpec) -> float:
    """Relative worth of one GPU: its dense peak in the fastest 16-bit (else 32-bit) format, FLOP/s."""
    return max(peak for precision, peak in gpu.peak_flops.items() if precision is not Precision.FP8)


def allowed_types(snapshot: Snapshot, requirements: Requirements) -> list[GpuSpec]:
    """GPU types of the cluster that are allowed, by name."""
    wanted = requirements.gpu_types
    return [spec for name, spec in sorted(snapshot.gpu_types.items()) if not wanted or name in wanted]


def candidates(snapshot: Snapshot, capacity: Capacity, job: Job) -> list[Candidate]:
    """Every feasible option of the job on the GPU types of the cluster, whether there is room for it or not."""
    offers = tuple(
        Offer(gpu, size) for gpu in allowed_types(snapshot, job.requirements) if (size := capacity.node_gpus(gpu.name))
    )
    found = options_by_type(job.model, job.training, job.requirements, offers)
    return [
        Candidate(gpu, option, option.prediction.tokens_per_second, option.gpus * worth)
        for (gpu, _), of_type in zip(offers, found, strict=True)
        for worth in (weight(gpu),)
        for option in of_type
    ]


def has_room(capacity: Capacity, job: Job, candidate: Candidate) -> bool:
    """Whether the candidate fits at this moment."""
    return capacity.fits(job, candidate.gpu.name, candidate.option.nodes, candidate.option.gpus_per_node)


def with_room(capacity: Capacity, job: Job, ordered: Iterable[Candidate]) -> Iterator[Fitting]:
    """Those of the candidates that fit at this moment, with their nodes, in the given order."""
    for candidate in ordered:
        option = candidate.option
        if shares := capacity.find(job, candidate.gpu.name, option.nodes, option.gpus_per_node):
            yield candidate, shares


def placement(
    job: Job,
    chosen: Candidate,
    shares: tuple[NodeShare, ...],
    reason: str,
    alternatives: tuple[Alternative, ...] = (),
) -> Placement:
    """Turn a chosen candidate into the placement that a decision carries."""
    option = chosen.option
    return Placement(
        job=job.uid,
        gpu_type=chosen.gpu.name,
        shares=shares,
        plan=option.plan,
        prediction=option.prediction,
        reason=reason,
        alternatives=alternatives,
    )
