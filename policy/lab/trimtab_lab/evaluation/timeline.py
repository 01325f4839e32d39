"""Who held which GPUs when, laid out to be drawn: bars on GPUs (a Gantt chart), and shares of nodes over time.

A run says how many GPUs of a node a job held; which of them they were, nobody said. Bars are laid on the lowest GPUs
that were free, and a job that is resized keeps those that it had.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from trimtab_policy.sim.result import Span
from trimtab_policy.types import Node, Snapshot

SAME_MOMENT = 1e-6
"""Seconds: what ends and what begins within it follow upon each other."""


class Timeline(Struct, frozen=True):
    """All that is drawn of one run. Make them with `timelines`."""

    nodes: tuple[Node, ...]
    """Those of one GPU type next to each other."""
    spans: tuple[Span, ...]
    names: tuple[str, ...]
    """Of the jobs, which spans name by number."""
    end: float
    """Seconds up to which it is drawn, above 0."""


def timelines(cluster: Snapshot, runs: Mapping[str, Sequence[Span]], names: Sequence[str]) -> dict[str, Timeline]:
    """Runs on the same cluster, drawn up to the same moment: that in which the last GPU was given back."""
    types = list(dict.fromkeys(node.gpu_type for node in cluster.nodes))
    nodes = tuple(sorted(cluster.nodes, key=lambda node: types.index(node.gpu_type)))
    end = max((span.end for spans in runs.values() for span in spans), default=1.0)
    return {name: Timeline(nodes, tuple(spans), tuple(names), end) for name, spans in runs.items()}


class JobSpanBar(NamedTuple):
    """Neighbouring GPUs that one job held without a change."""

    first: int
    """Of the lanes, one for each GPU of the cluster, in the order of its nodes."""
    lanes: int
    begin: float
    end: float
    job: int


def bars(run: Timeline) -> Iterator[JobSpanBar]:
    """All bars, node by node. Raises ValueError when more was held than there is."""
    below = np.cumsum([0, *(node.gpus for node in run.nodes)]).tolist()
    held = _by_node(run)
    for node, lowest in zip(run.nodes, below, strict=False):
        lanes = [(0.0, -1)] * node.gpus  # when each is free, and the job that it had last
        for begin, end, gpus, job in sorted(held[node.name]):
            free = [lane for lane, (until, _) in enumerate(lanes) if until <= begin + SAME_MOMENT]
            taken = sorted(sorted(free, key=lambda lane: (lanes[lane][1] != job, lane))[:gpus])
            if len(taken) < gpus:
                raise ValueError(f"{node.name} has {node.gpus} GPUs, and more were held at {begin:.0f} s")
            for lane in taken:
                lanes[lane] = (end, job)
            yield from (JobSpanBar(lowest + first, count, begin, end, job) for first, count in _neighbours(taken))


def edges(run: Timeline, intervals: int) -> NDArray[np.float64]:
    """Ends of so many equal intervals of the time that is drawn, (intervals + 1,) seconds."""
    return np.linspace(0.0, run.end, intervals + 1)


def in_use(run: Timeline, edges: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """Share of each node's GPU time that jobs held, (nodes, intervals); `edges` are the intervals' ends, ascending."""
    times, held = np.asarray(edges, dtype=np.float64), _by_node(run)
    shares = np.zeros((len(run.nodes), len(times) - 1))
    for row, node in enumerate(run.nodes):
        if held[node.name]:
            begin, end, gpus, _ = np.array(held[node.name]).T
            until = np.clip(times, begin[:, None], end[:, None]) - begin[:, None]
            shares[row] = np.diff(gpus @ until) / (node.gpus * np.diff(times))
    return shares


def holders(run: Timeline, edges: Sequence[float] | NDArray[np.float64]) -> NDArray[np.int64]:
    """Which job held most of each node's GPU time, (nodes, intervals); -1 where all of it was idle."""
    times, held = np.asarray(edges, dtype=np.float64), _by_node(run)
    found = np.full((len(run.nodes), len(times) - 1), -1)
    for row, node in enumerate(run.nodes):
        if held[node.name]:
            begin, end, gpus, job = np.array(held[node.name]).T
            owners, owner = np.unique(job, return_inverse=True)
            parts = np.diff(np.clip(times, begin[:, None], end[:, None])) * gpus[:, None]
            sums = np.zeros((len(owners), len(times) - 1))
            np.add.at(sums, owner, parts)
            found[row] = np.where(sums.any(axis=0), owners[sums.argmax(axis=0)], -1)
    return found


def _by_node(run: Timeline) -> dict[str, list[tuple[float, float, int, int]]]:
    """Node -> (begin, end, GPUs, job) of everything that was held for more than a moment."""
    held: dict[str, list[tuple[float, float, int, int]]] = {node.name: [] for node in run.nodes}
    for span in run.spans:
        if span.end - span.begin > SAME_MOMENT:
            for share in span.shares:
                held[share.node].append((span.begin, span.end, share.gpus, span.job))
    return held


def _neighbours(lanes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(first, count) of every run of consecutive numbers, which are ascending."""
    first = 0
    for place in range(1, len(lanes) + 1):
        if place == len(lanes) or lanes[place] != lanes[place - 1] + 1:
            yield lanes[first], place - first
            first = place
