"""A made-up application in the file format of the Sia artifact, small enough to check by hand.

Two epochs, batches 16 to 128. On one T4 a micro-batch of `a` samples takes 0.13 + 0.007·a s; each GPU beside the first
adds 0.02 s of synchronisation, 0.05 s on another node. An RTX-2080-Ti is twice as fast in everything.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from pathlib import Path

from trimtab_lab.goodput.profiles import ApplicationFacts, Profiles
from trimtab_policy import catalog
from trimtab_policy.specs import ParallelPlan, Prediction
from trimtab_policy.types import Node, NodeShare, Placement, Snapshot

FACTS = {"toy": ApplicationFacts(epochs=2, slowdown=2.0, restart_seconds=40, assumed_restart_seconds=30)}
SPLITS = {"aws": ("1", "2", "3", "4", "12", "22", "44"), "rtx": ("1", "2", "4", "8", "88")}
SPEED = {"aws": 1.0, "rtx": 2.0}
LOCALS = (8, 16, 32)
PLENTY = 1 << 40


def seconds(split: Iterable[int], local: int, speed: float = 1.0) -> tuple[float, float]:
    """(step, sync) of the toy."""
    nodes = tuple(split)
    sync = (0.05 if len(nodes) > 1 else 0.02) * (sum(nodes) - 1)
    return (0.13 + 0.007 * local + sync) / speed, sync / speed


def write(directory: Path) -> Path:
    """All files of the application; returns the directory of profiles."""
    toy = directory / "toy"
    toy.mkdir()
    for gpu, splits in SPLITS.items():
        rows = [
            f"{local},{step:.9g},{sync:.9g},{split}"
            for split, local in product(splits, LOCALS)
            for step, sync in [seconds(map(int, split), local, SPEED[gpu])]
        ]
        (toy / f"placements-{gpu}.csv").write_text("\n".join(["local_bsz,step_time,sync_time,placement", *rows]) + "\n")
        rows = [
            f"{nodes},{gpus},{local},{step:.9g},{sync:.9g}"
            for (nodes, gpus), local in product(((1, 1), (2, 2), (3, 3), (3, 12), (2, 16), (3, 24)), LOCALS)
            for step, sync in [seconds([gpus // nodes] * nodes, local, SPEED[gpu])]
        ]
        header = "num_nodes,num_replicas,local_bsz,step_time,sync_time"
        (toy / f"scalability-{gpu}.csv").write_text("\n".join([header, *rows]) + "\n")
    for batch in (16, 32, 64, 128):
        rows = ["1000.0,500,10.0,1.0,3.0", f"{2000.0 + batch},{16000 // batch},20.0,1.0,7.0"]
        header = "progress,iteration,metric,grad_sqr,grad_var"
        (toy / f"validation-{batch}.csv").write_text("\n".join([header, *rows]) + "\n")
    return directory


def profiles(directory: Path) -> Profiles:
    """The toy, written and opened."""
    return Profiles(write(directory), FACTS)


def cluster(t4: int = 4, rtx: int = 2) -> Snapshot:
    """So many nodes with 4 T4 and with 8 RTX-2080-Ti."""
    each = [Node(f"t{i}", "T4", 4, 4, PLENTY, PLENTY, PLENTY) for i in range(t4)]
    each += [Node(f"r{i}", "RTX-2080-Ti", 8, 8, PLENTY, PLENTY, PLENTY) for i in range(rtx)]
    types = {node.gpu_type: catalog.gpu(node.gpu_type) for node in each}
    return Snapshot(time=0, nodes=tuple(each), jobs=(), gpu_types=types)


def placed(gpu_type: str, *gpus: int, first_node: int = 0) -> Placement:
    """So many GPUs on each of some nodes of one type."""
    letter = "t" if gpu_type == "T4" else "r"
    shares = tuple(NodeShare(f"{letter}{first_node + i}", count) for i, count in enumerate(gpus))
    return Placement("toy-0", gpu_type, shares, ParallelPlan(data=sum(gpus)), Prediction(1, 1, 0, 1), "because")
