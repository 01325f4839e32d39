"""Builder of jobs that bring their own speeds, as those of traces do: on A100 nodes of 4 GPUs and T4 nodes of 8."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace
from tests.builders import A100, NOW, T4, job

from trimtab_policy import catalog
from trimtab_policy.placement.candidates import weight
from trimtab_policy.specs import ParallelPlan, Prediction
from trimtab_policy.types import Job, NodeShare, Placement, Speed

NODE_GPUS = {A100: 4, T4: 8}


def traced(
    name: str,
    gpus: int | Sequence[int],
    nodes: Mapping[str, int] | None = None,
    gpu_type: str = A100,
    *,
    types: Sequence[str] = (A100,),
    seconds: float = 3600.0,
    **changes: Any,
) -> Job:
    """A preemptible job that takes `seconds` on its GPUs, fewer on better ones; `nodes` are those that it holds."""
    counts = (gpus,) if isinstance(gpus, int) else tuple(gpus)
    speeds = tuple(
        Speed(kind, count, -(-count // NODE_GPUS[kind]), rate(kind, count, counts))
        for kind in types
        for count in counts
    )
    defaults: dict[str, Any] = {"sequence_length": 1, "global_batch_size": 1, "steps": round(1000 * seconds)}
    defaults |= {"preemptible": True, "restart_seconds": 60.0, "speeds": speeds, "created": NOW - 60}
    made = job(name, gpus=(min(counts), max(counts)), **(defaults | changes))
    return _holding(made, nodes, gpu_type, counts) if nodes else made


def rate(gpu_type: str, gpus: int, counts: Sequence[int]) -> float:
    """Steps per second: 1000 on the fewest A100s, in proportion on other types and counts."""
    return 1000 * gpus / min(counts) * weight(catalog.gpu(gpu_type)) / weight(catalog.gpu(A100))


def _holding(made: Job, nodes: Mapping[str, int], gpu_type: str, counts: Sequence[int]) -> Job:
    gpus = sum(nodes.values())
    speed = rate(gpu_type, gpus, counts)
    prediction = Prediction(1 / speed, speed, catalog.gpu(gpu_type).memory_bytes, made.training.steps / speed)
    shares = tuple(NodeShare(node, count) for node, count in nodes.items())
    held = Placement(made.uid, gpu_type, shares, ParallelPlan(data=gpus), prediction, reason="because")
    left = (made.training.steps - made.steps_done) / speed
    return replace(made, placement=held, started=NOW - 30, expected_finish=NOW + left)
