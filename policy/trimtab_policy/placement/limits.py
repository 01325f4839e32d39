"""What no placement may break, whatever else is decided: of the gang, its nodes, its owner, its plan and its figures.

Whether there is room for it depends on what else is decided (`scheduling.accounts`). Live and simulated placements are
held against the same rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from msgspec.structs import replace

from trimtab_policy.perf import plans
from trimtab_policy.placement.capacity import ALL_TYPES
from trimtab_policy.placement.topology import link_domains, linked_gpus
from trimtab_policy.specs import GpuSpec, ParallelPlan
from trimtab_policy.types import Bounds, Job, Node, Placement, Requirements, Snapshot

LARGEST_FIGURE = 1e18
"""Nothing that is predicted (seconds, tokens/s, bytes) comes near it, and it is still an int64 in the status."""

Violation = tuple[str, str]
"""Name of a rule, low cardinality, and what breaks it."""


def broken_rules(job: Job, placement: Placement, nodes: Mapping[str, Node], snapshot: Snapshot) -> Iterator[Violation]:
    """Rules that a placement breaks, the most basic first. `nodes` are those that take pods, by name.

    A job that brings speeds of its own, as traces do, has no model that could be divided: it needs a speed instead.
    """
    yield from _shape(job, placement)
    yield from _nodes(job, placement, nodes, snapshot)
    yield from user_limits(job.requirements, placement)
    if job.speeds is None:
        yield from _degrees(job, placement, nodes, snapshot.gpu_types[placement.gpu_type])
        yield from _gpu(job, placement, snapshot)
    elif not any(
        speed.gpus == placement.gpus and speed.gpu_type in (placement.gpu_type, ALL_TYPES) for speed in job.speeds
    ):
        yield "no_speed", f"it has no speed on {placement.gpus} {placement.gpu_type}"
    yield from _numbers(placement)


def _shape(job: Job, placement: Placement) -> Iterator[Violation]:
    shares = placement.shares
    if not shares or any(share.gpus < 1 for share in shares):
        yield "empty_share", "every node of a gang must give at least one GPU"
    elif job.speeds is None and len({share.gpus for share in shares}) > 1:
        yield "unequal_gpus", "all pods of a gang need the same number of GPUs (torchrun's LOCAL_WORLD_SIZE)"
    if len({share.node for share in shares}) < len(shares):
        yield "repeated_node", "a gang has one pod per node"
    if placement.plan.gpus != placement.gpus:
        yield "degrees_mismatch", f"the degrees use {placement.plan.gpus} GPUs, the nodes give {placement.gpus}"


def _nodes(job: Job, placement: Placement, nodes: Mapping[str, Node], snapshot: Snapshot) -> Iterator[Violation]:
    for share in placement.shares:
        node = nodes.get(share.node)
        if node is None:
            why = snapshot.unavailable.get(share.node, "no such GPU node")
            yield "node_unavailable", f"node {share.node}: {why}"
        elif node.gpu_type != placement.gpu_type:
            yield "wrong_gpu_type", f"node {share.node} has {node.gpu_type}, the placement says {placement.gpu_type}"
        elif job.eligible is not None and share.node not in job.eligible:
            yield "node_not_eligible", f"the job's selectors or tolerations do not admit node {share.node}"


def _degrees(job: Job, placement: Placement, nodes: Mapping[str, Node], gpu: GpuSpec) -> Iterator[Violation]:
    width, tensor = placement.shares[0].gpus, placement.plan.tensor
    domains = link_domains(gpu, placement.shares, nodes)
    linked, group = linked_gpus(placement.shares, domains), max(1, tensor // width)
    if tensor > linked:
        yield "tensor_across_nodes", f"tensor degree {tensor} does not fit the {linked} GPUs that share a link"
    elif any(len(set(domains[first : first + group])) > 1 for first in range(0, len(domains), group)):
        yield "tensor_across_nodes", f"a group of tensor degree {tensor} lies in more than one link domain"
    try:
        plans.check(job.model, job.training, placement.plan, width, linked)
    except plans.InvalidPlan as invalid:
        yield "indivisible", str(invalid)
    need, stage = job.requirements, placement.plan.zero_stage
    if need.zero_stage is None and not need.zero_stages.admits(stage):  # that is no limit of the user's
        yield "launcher_cannot", f"spec.launcher could not load its checkpoints with ZeRO {stage}"


def _gpu(job: Job, placement: Placement, snapshot: Snapshot) -> Iterator[Violation]:
    gpu, plan = snapshot.gpu_types[placement.gpu_type], placement.plan
    if job.training.precision not in gpu.peak_flops:
        yield "precision", f"{gpu.name} has no {job.training.precision}"
    if not plans.fits(job.model, job.training, plan, gpu, job.requirements.software):
        yield "memory", f"the plan {plan.describe()} does not fit in the {gpu.memory_bytes >> 30} GiB of {gpu.name}"


def _numbers(placement: Placement) -> Iterator[Violation]:
    predicted = placement.prediction
    values = (predicted.step_seconds, predicted.tokens_per_second, predicted.run_seconds, predicted.memory_bytes)
    if not all(math.isfinite(value) and 0 < value < LARGEST_FIGURE for value in values):
        yield "not_a_number", f"the prediction has a figure that is not between 0 and {LARGEST_FIGURE:g}"


def user_limits(need: Requirements, placement: Placement) -> Iterator[Violation]:
    """Limits of the job's spec that the placement breaks: also how an edited spec is held against a standing plan."""
    if need.gpu_types and placement.gpu_type not in need.gpu_types:
        yield "gpu_type_not_allowed", f"{placement.gpu_type} is not in spec.resources.gpuTypes"
    if not need.gpus.admits(placement.gpus):
        yield "gpu_count", f"{placement.gpus} GPUs are outside spec.resources.gpus"
    if need.max_nodes is not None and len(placement.shares) > need.max_nodes:
        yield "too_many_nodes", f"{len(placement.shares)} nodes are more than spec.resources.maxNodes"
    if odd := next((share for share in placement.shares if not need.gpus_per_node.admits(share.gpus)), None):
        yield "gpus_per_node", f"{odd.gpus} GPUs of node {odd.node} are outside spec.resources.gpusPerNode"
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
