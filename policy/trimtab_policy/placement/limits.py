"""What a job's owner has limited: held against every placement, live and simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from trimtab_policy.specs import ParallelPlan
from trimtab_policy.types import Bounds, Placement, Requirements

Violation = tuple[str, str]
"""Name of a rule, low cardinality, and what breaks it."""


def user_limits(need: Requirements, placement: Placement) -> Iterator[Violation]:
    """Limits of the job's spec that the placement breaks: also how an edited spec is held against a standing plan."""
    if need.gpu_types and placement.gpu_type not in need.gpu_types:
        yield "gpu_type_not_allowed", f"{placement.gpu_type} is not in spec.resources.gpuTypes"
    if not need.gpus.admits(placement.gpus):
        yield "gpu_count", f"{placement.gpus} GPUs are outside spec.resources.gpus"
    if need.max_nodes is not None and len(placement.shares) > need.max_nodes:
        yield "too_many_nodes", f"{len(placement.shares)} nodes are more than spec.resources.maxNodes"
    yield from degree_limits(need, placement.plan)


def degree_limits(need: Requirements, plan: ParallelPlan) -> Iterator[Violation]:
    """Of these the ones about how the work is divided."""
    if plan.mode not in need.modes:
        yield "mode_not_allowed", f"mode {plan.mode} is not allowed by spec.parallelism.mode"
    degrees: tuple[tuple[str, Callable[[], bool]], ...] = (
        ("tensor", lambda: need.tensor.admits(plan.tensor)),
        ("pipeline", lambda: need.pipeline.admits(plan.pipeline)),
        ("context", lambda: need.context.admits(plan.context)),
        ("expert", lambda: need.expert.admits(plan.expert)),
        ("zeroStage", lambda: need.zero_stage in (None, plan.zero_stage)),
        ("recompute", lambda: need.recompute in (None, plan.recompute)),
    )
    for name, kept in degrees:
        if not kept():
            yield "degree_not_allowed", f"the plan breaks spec.parallelism.{name}"
    if not need.virtual.admits(plan.virtual):
        yield "launcher_cannot", f"spec.launcher does not interleave {plan.virtual} chunks per pipeline stage"
    if plan.shard and not need.hybrid_sharding:
        yield "launcher_cannot", f"spec.launcher does not shard over groups of {plan.shard} ranks"


def narrowed(need: Requirements, saved: ParallelPlan) -> Requirements:
    """What is left to a job whose checkpoint can be loaded only with the degrees that it was saved with.

    Where its owner has ruled these out since, the owner's word counts: the job must be able to start again.
    """
    if not need.gpus.admits(saved.gpus) or any(degree_limits(need, saved)):
        return need
    return replace(
        need,
        gpus=Bounds(saved.gpus, saved.gpus),
        tensor=Bounds(saved.tensor, saved.tensor),
        pipeline=Bounds(saved.pipeline, saved.pipeline),
        virtual=Bounds(saved.virtual, saved.virtual),
        context=Bounds(saved.context, saved.context),
        expert=Bounds(saved.expert, saved.expert),
        zero_stage=saved.zero_stage,
        hybrid_sharding=saved.shard > 0,
    )
