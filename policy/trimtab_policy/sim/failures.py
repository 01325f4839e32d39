"""Nodes that fail, are repaired, or become slow: drawn once per run, whatever the policy does.

Each node has its own random stream, derived from the seed and its place in the cluster, so that all policies meet the
same misfortunes (common random numbers) and a further node changes nothing for the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from heapq import merge
from itertools import count

import numpy as np
from msgspec import Struct

from trimtab_policy.types import Node, Snapshot


class FailureKind(StrEnum):
    """What happens to a node."""

    FAIL = "fail"
    REPAIR = "repair"
    SLOW = "slow"
    RECOVER = "recover"


class FailureEvent(Struct, frozen=True, order=True):
    """Something that happens to one node at one moment."""

    time: float
    node: str
    what: FailureKind
    speed: float = 1.0
    """Speed of the node from now on."""


class FailureModel(Struct, frozen=True):
    """Rates of what goes wrong; the default is that nothing does."""

    gpu_mtbf_seconds: float = float("inf")
    """Mean time between failures of one GPU; a node fails when one of its GPUs does. Llama 3 405B: 466 interruptions in
    54 days on 16,384 GPUs, that is 4.6e4 GPU-hours (arXiv 2407.21783, section 3.3.4)."""
    repair_seconds: float = 3600.0
    """Mean time to repair, exponential."""
    straggler_mtbf_seconds: float = float("inf")
    """Mean time between slow spells of one node."""
    straggler_seconds: float = 1800.0
    straggler_speed: float = 0.7
    """Speed of a node in a slow spell; a gang is as slow as its slowest node."""

    def __post_init__(self) -> None:
        """Raise ValueError naming the field."""
        for name in ("gpu_mtbf_seconds", "repair_seconds", "straggler_mtbf_seconds", "straggler_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")
        if not 0 < self.straggler_speed <= 1:
            raise ValueError(f"straggler_speed must be in (0, 1], got {self.straggler_speed}")


def events(cluster: Snapshot, misfortunes: FailureModel, seed: int) -> Iterator[FailureEvent]:
    """All that happens to the nodes, in order of time, without end where something can happen at all."""
    streams = [
        stream
        for place, node in enumerate(cluster.nodes)
        for stream in (_failures(node, misfortunes, seed, place), _slow_spells(node, misfortunes, seed, place))
    ]
    return merge(*streams)


def _failures(node: Node, rates: FailureModel, seed: int, place: int) -> Iterator[FailureEvent]:
    if rates.gpu_mtbf_seconds == float("inf"):
        return
    random, now = np.random.default_rng((seed, place, 0)), 0.0
    for _ in count():
        now += float(random.exponential(rates.gpu_mtbf_seconds / node.gpus))
        yield FailureEvent(now, node.name, FailureKind.FAIL)
        now += float(random.exponential(rates.repair_seconds))
        yield FailureEvent(now, node.name, FailureKind.REPAIR)


def _slow_spells(node: Node, rates: FailureModel, seed: int, place: int) -> Iterator[FailureEvent]:
    if rates.straggler_mtbf_seconds == float("inf"):
        return
    random, now = np.random.default_rng((seed, place, 1)), 0.0
    for _ in count():
        now += float(random.exponential(rates.straggler_mtbf_seconds))
        yield FailureEvent(now, node.name, FailureKind.SLOW, rates.straggler_speed)
        now += float(random.exponential(rates.straggler_seconds))
        yield FailureEvent(now, node.name, FailureKind.RECOVER)
