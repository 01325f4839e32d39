"""Whether a snapshot from a file can be reckoned with: policies take what they are told for true, and divide by it.

The live controller makes snapshots of facts that it has checked. A dump may have been edited: a figure that was
edited, or cut off, is found here, with the path of its field, and not as a ZeroDivisionError hours later.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from trimtab_policy.catalog import is_known
from trimtab_policy.specs import GpuSpec, ModelSpec, ParallelPlan, Prediction, TrainingSpec
from trimtab_policy.types import Job, Node, NodeShare, Placement, Quota, Readings, Snapshot, Speed

LARGEST = 1e18
"""Of anything that is told as a number: more is no amount of anything, and some products of two are still finite."""
_ONE = math.ulp(1.0)
_ABOVE_ZERO = 1e-9
_BOUNDS: Mapping[type[Struct], Mapping[str, tuple[float, float]]] = {
    ModelSpec: {
        **dict.fromkeys(ModelSpec.__struct_fields__, (0, 1 << 24)),
        **dict.fromkeys(
            ("layers", "hidden_size", "attention_heads", "kv_heads", "head_dim", "ffn_hidden_size", "vocab_size"),
            (1, 1 << 24),
        ),
    },
    TrainingSpec: {
        "sequence_length": (1, 1 << 24), "global_batch_size": (1, 1 << 20), "steps": (1, 10**15),
    },
    GpuSpec: {
        "memory_bytes": (1, 1 << 50), "link_domain": (0, 1 << 20), "power_watts": (1, 1e6), "peak_flops": (1e6, 1e18),
        **dict.fromkeys(("memory_bandwidth", "link_bandwidth", "network_bandwidth"), (1e3, 1e15)),
    },
    ParallelPlan: {
        **dict.fromkeys(ParallelPlan.__struct_fields__, (1, 1 << 20)), "zero_stage": (0, 3), "shard": (0, 1 << 20),
    },
    Prediction: {
        **dict.fromkeys(("step_seconds", "tokens_per_second", "run_seconds", "correction"), (_ABOVE_ZERO, LARGEST)),
        "uncertainty": (1 - _ONE, 1e6), "memory_bytes": (0, 1 << 60),
    },
    Node: {
        "gpus": (0, 1 << 16), "free_gpus": (-(1 << 16), 1 << 16), "foreign_gpus": (0, 1 << 16),
        "speed": (_ABOVE_ZERO, 1),
    },
    NodeShare: {"gpus": (1, 1 << 16)},
    Placement: {"speed": (_ABOVE_ZERO, 1)},
    Quota: {"gpus": (0, 1 << 40), "guaranteed": (0, 1 << 40)},
    Speed: {"gpus": (1, 1 << 20), "nodes": (1, 1 << 20), "steps_per_second": (_ABOVE_ZERO, 1e15)},
    Job: {
        "priority": (-(1 << 31), 1 << 31), "steps_done": (0, 10**15), "steps_beyond": (0, 10**15),
        "restarts": (0, 1 << 31), "served": (0, LARGEST),
        **dict.fromkeys(("restart_seconds", "resuming", "lost_seconds", "share"), (0, 1e12)),
    },
    Snapshot: {"speedup": (1e-6, 1e6), "weights": (_ABOVE_ZERO, 1e9), "ending": (0, 1 << 16)},
}  # fmt: skip
_MAY_BE_INFINITE = ("movable_from",)


def problem(now: Snapshot) -> str:
    """The first thing that cannot be: the path of a field, and why; empty where there is none."""
    return next(_figures("", now), "") or next(_references(now), "")


def _figures(path: str, value: Any, bounds: tuple[float, float] = (-LARGEST, LARGEST)) -> Iterator[str]:
    if isinstance(value, Struct):
        if isinstance(value, Readings):
            return  # NaN is what is not known
        limits = _BOUNDS.get(type(value), {})
        for name in value.__struct_fields__:
            yield from _figures(f"{path}.{name}", getattr(value, name), limits.get(name, (-LARGEST, LARGEST)))
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from _figures(f"{path}[{name!r}]", each, bounds)
    elif isinstance(value, tuple):
        for number, each in enumerate(value):
            yield from _figures(f"{path}[{number}]", each, bounds)
    elif isinstance(value, float | int) and not isinstance(value, bool):
        never = value == math.inf and path.endswith(_MAY_BE_INFINITE)
        if not (never or bounds[0] <= value <= bounds[1]):
            yield f"{path.lstrip('.')}: {value} does not lie between {bounds[0]:.16g} and {bounds[1]:.16g}"


def _references(now: Snapshot) -> Iterator[str]:
    for what, keys in (("nodes", [node.name for node in now.nodes]), ("jobs", [job.uid for job in now.jobs])):
        if len(set(keys)) < len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            yield f"{what}: {twice!r} is there twice"
    types = [(f"nodes[{n}]", node.gpu_type) for n, node in enumerate(now.nodes)]
    here = {node.name for node in now.nodes}
    for number, job in enumerate(now.jobs):
        if job.placement:
            # Nodes that take no pods now are not told of, nor what they have: the catalogue may know it.
            gone = here.isdisjoint(share.node for share in job.placement.shares)
            if not (gone and is_known(job.placement.gpu_type)):
                types.append((f"jobs[{number}].placement", job.placement.gpu_type))
            if not job.placement.shares:
                yield f"jobs[{number}].placement.shares: is empty"
    for path, name in types:
        if name not in now.gpu_types:
            yield f"{path}.gpu_type: gpu_types does not tell what a {name!r} is"
    for name, spec in now.gpu_types.items():
        if spec.name != name:
            yield f"gpu_types[{name!r}].name: is {spec.name!r}"
