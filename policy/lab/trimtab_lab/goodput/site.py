"""One application on one cluster: which configurations it can have there, and how fast they really are.

Shared by all jobs of the application, and memoised: the truth depends on the GPU type, the split over nodes, the batch
and the epoch only.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab_lab.goodput.batching import Batching, BatchLimits, Ways, ways
from trimtab_lab.goodput.profiles import GPUS, Application, MicroStepTime, ProfileError, Split, repacked
from trimtab_policy.sim.job import Alone
from trimtab_policy.types import Snapshot, Speed

MOST_GPUS = 64
"""Of one job: the artifact's simulator has no larger ones."""
REFERENCE = "T4"
"""GPU type whose limits Pollux takes for those of all, in the artifact."""


class TypePool(NamedTuple):
    """The nodes of one GPU type."""

    gpu_type: str
    nodes: int
    per_node: int

    @property
    def gpus(self) -> int:
        return self.nodes * self.per_node


class Virtual(NamedTuple):
    """The cluster as Pollux sees it: equal nodes, as small as the smallest one."""

    most_gpus: int
    """That no job may exceed: those of the smallest pool, by the artifact."""
    configurations: list[tuple[int, int]]
    """(nodes, GPUs) of all gangs, ascending by GPUs; then a single node with any number of GPUs."""
    ways: Ways


class Truth(NamedTuple):
    """The best that a split allows, per epoch."""

    rates: list[float]
    """Progress per second."""
    batchings: list[Batching]


def pools(cluster: Snapshot) -> tuple[TypePool, ...]:
    """Profiled GPU types of a cluster, in the artifact's order. Raises ProfileError when there are none."""
    sizes: dict[str, list[int]] = {}
    for node in cluster.nodes:
        sizes.setdefault(node.gpu_type, []).append(node.gpus)
    found = [
        TypePool(gpu.gpu_type, len(sizes[gpu.gpu_type]), max(sizes[gpu.gpu_type]))
        for gpu in GPUS
        if gpu.gpu_type in sizes
    ]
    if not found:
        known = ", ".join(gpu.gpu_type for gpu in GPUS)
        raise ProfileError(f"the cluster has none of the profiled GPU types, which are {known}")
    return tuple(found)


def configurations(pool: TypePool, max_nodes: int) -> tuple[tuple[int, int], ...]:
    """Sia's (nodes, GPUs): powers of two within a node, the whole node, then whole nodes, up to `MOST_GPUS`."""
    within = [1 << power for power in range(pool.per_node.bit_length()) if 1 << power < pool.per_node]
    inside = [(1, gpus) for gpus in (*within, pool.per_node)]
    whole = [(nodes, nodes * pool.per_node) for nodes in range(2, min(pool.nodes, max_nodes) + 1)]
    return tuple(each for each in (*inside, *whole) if each[1] <= MOST_GPUS)


class Site:
    """An application on a cluster."""

    def __init__(self, application: Application, cluster: tuple[TypePool, ...]) -> None:
        """Raises ProfileError or FileError for a GPU type whose profile is missing or damaged."""
        self.application, self.pools = application, cluster
        self.configurations = {
            pool.gpu_type: configurations(pool, application.on(pool.gpu_type).max_nodes) for pool in cluster
        }
        self._splits: dict[tuple[str, Split], Split] = {}
        self._ways: dict[tuple[str, Split], Ways] = {}
        self._truths: dict[tuple[str, Split], Truth] = {}
        self._true_speeds: dict[int, tuple[Speed, ...]] = {}
        self._estimates: dict[tuple[str, str, int], Ways] = {}

    def split(self, gpu_type: str, gpus_per_node: Split) -> Split:
        """A gang's split as it is looked up: packed on as many nodes as were profiled."""
        if (found := self._splits.get((gpu_type, gpus_per_node))) is None:
            found = repacked(gpus_per_node, self.application.on(gpu_type).max_nodes)
            self._splits[gpu_type, gpus_per_node] = found
        return found

    def even(self, gpu_type: str, nodes: int, gpus: int) -> Split:
        """The split of a configuration: as even as can be, larger parts first."""
        each, more = divmod(gpus, nodes)
        return self.split(gpu_type, tuple(each + (node < more) for node in range(nodes)))

    def limits(self, gpu_type: str, split: Split | None = None, max_batch: int | None = None) -> BatchLimits:
        """Batches on a GPU type, or on one split of it."""
        app, measured = self.application, self.application.on(gpu_type)
        max_local = measured.max_local if split is None else measured.largest_local(split)
        return BatchLimits(app.init_batch, max_batch or app.max_batch, measured.min_local, max_local)

    def ways_on(self, gpu_type: str, split: Split) -> Ways:
        """All ways to divide a step there."""
        if (found := self._ways.get((gpu_type, split))) is None:
            found = ways([(len(split), sum(split))], self.limits(gpu_type, split))
            self._ways[gpu_type, split] = found
        return found

    def estimates(self, known: str, asked: str, max_batch: int) -> Ways:
        """Ways on the configurations of one type as if they were of another, on which the job has run."""
        key = known, asked, max_batch
        if key not in self._estimates:
            per_node = next(pool.per_node for pool in self.pools if pool.gpu_type == known)
            rows = self.configurations[asked]
            if known != asked:
                rows = tuple((-(-gpus // per_node), gpus) for _, gpus in rows)
            self._estimates[key] = ways(rows, self.limits(known, max_batch=max_batch))
        return self._estimates[key]

    def fitting(self, gpu_type: str, split: Split, batching: Batching) -> Batching:
        """The same with fewer samples per GPU, where they would not fit or make the batch too large."""
        gpus = sum(split)
        most = self.application.on(gpu_type).largest_local_by_gpus.get(gpus, batching.local)
        largest = self.application.max_batch // (gpus * (batching.accumulations + 1))
        return Batching(min(batching.local, most, largest), batching.accumulations)

    def time(self, gpu_type: str, split: Split, batching: Batching) -> MicroStepTime:
        """Measured time of one micro-batch."""
        return self.application.on(gpu_type).time(split, batching.local)

    def truth(self, gpu_type: str, split: Split) -> Truth:
        """What the best batch of every epoch achieves. Raises ProfileError when no batch was profiled."""
        if (found := self._truths.get((gpu_type, split))) is None:
            found = self._truths[gpu_type, split] = self._truth(gpu_type, split)
        return found

    def ratio(self, asked: str, known: str) -> float:
        """Speed of one GPU of a type relative to another: how Sia guesses at types that a job has not run on."""
        return self._single[asked] / self._single[known]

    @cached_property
    def _single(self) -> dict[str, float]:
        return {pool.gpu_type: self.application.on(pool.gpu_type).single_gpu_samples_per_second for pool in self.pools}

    def largest(self, gpu_type: str) -> int:
        """Most GPUs among which the largest batch can be divided."""
        return min(MOST_GPUS, self.application.max_batch // self.application.on(gpu_type).min_local)

    def packed(self, gpu_type: str, gpus: int) -> Split:
        """The split that fills one node after the other."""
        per_node = next(pool.per_node for pool in self.pools if pool.gpu_type == gpu_type)
        return self.split(gpu_type, tuple(min(per_node, gpus - begun) for begun in range(0, gpus, per_node)))

    def splits(self, gpu_type: str, gpus: int) -> list[Split]:
        """Ways to spread so many GPUs over nodes: the one that fills them, and what else was profiled of them."""
        pool = next(pool for pool in self.pools if pool.gpu_type == gpu_type)
        profiled = [
            split
            for split in self.application.on(gpu_type).splits
            if sum(split) == gpus and len(split) <= pool.nodes and max(split) <= pool.per_node
        ]
        return list(dict.fromkeys([self.packed(gpu_type, gpus), *profiled]))

    def true_speeds(self, epoch: int) -> tuple[Speed, ...]:
        """The true goodput of every configuration in an epoch, in progress per second."""
        if epoch not in self._true_speeds:
            slowdown = self.application.facts.slowdown
            self._true_speeds[epoch] = tuple(
                Speed(gpu_type, gpus, nodes, truth.rates[epoch] / slowdown)
                for gpu_type, rows in self._profiled.items()
                for nodes, gpus, truth in rows
            )
        return self._true_speeds[epoch]

    @cached_property
    def virtual(self) -> Virtual:
        """For the form of the workload that does not tell GPU types apart."""
        app = self.application
        total, per_node = sum(pool.gpus for pool in self.pools), min(pool.per_node for pool in self.pools)
        widest = (pool.per_node * min(pool.nodes, app.on(pool.gpu_type).max_nodes) for pool in self.pools)
        most = min(*widest, self.largest(REFERENCE))
        gangs = [
            (nodes, gpus)
            for gpus in range(1, most + 1)
            for nodes in range(1, min(gpus, total // per_node) + 1)
            if nodes == 1 or gpus <= nodes * per_node
        ]
        rows = gangs + [(1, gpus) for gpus in range(most + 1, total + 1)]
        return Virtual(most, rows, ways(rows, self.limits(REFERENCE)))

    @cached_property
    def alone(self) -> dict[str, dict[int, Alone]]:
        """GPU type -> GPUs -> the whole training on its configuration, with the best batches."""
        return {
            gpu_type: {gpus: self._whole(np.array(truth.rates)) for _, gpus, truth in rows}
            for gpu_type, rows in self._profiled.items()
        }

    def alone_with(self, gpu_type: str, split: Split, batching: Batching) -> Alone:
        """The whole training with one batch."""
        step = self.time(gpu_type, split, batching).total(batching.accumulations)
        return self._whole(np.array(self.application.gains(batching.batch(sum(split)))) / step)

    def _whole(self, rates: NDArray[np.float64]) -> Alone:
        """All epochs on whole seconds, at these rates of progress per second before the slowdown, (epochs,)."""
        app = self.application
        work = np.diff(app.milestones)
        seconds = np.maximum(1.0, np.rint(work * app.facts.slowdown / rates))
        return Alone(float(seconds.sum()), float((work / seconds).max() / app.work))

    @cached_property
    def _profiled(self) -> dict[str, list[tuple[int, int, Truth]]]:
        """GPU type -> (nodes, GPUs, truth) of its configurations that were profiled and are not too large."""
        found: dict[str, list[tuple[int, int, Truth]]] = {}
        for gpu_type, rows in self.configurations.items():
            splits = [(*row, self.even(gpu_type, *row)) for row in rows if row[1] <= self.largest(gpu_type)]
            able = (each for each in splits if self._able(gpu_type, each[2]))
            found[gpu_type] = [(nodes, gpus, self.truth(gpu_type, split)) for nodes, gpus, split in able]
        return found

    def _able(self, gpu_type: str, split: Split) -> bool:
        """Whether any batch can run there."""
        try:
            self.truth(gpu_type, split)
        except ProfileError:
            return False
        return True

    def _truth(self, gpu_type: str, split: Split) -> Truth:
        app, measured, gpus = self.application, self.application.on(gpu_type), sum(split)
        options = self.ways_on(gpu_type, split)
        fitting = dict.fromkeys(self.fitting(gpu_type, split, options.at(way)) for way in range(len(options.local)))
        able = [each for each in fitting if each.batch(gpus) >= app.init_batch and measured.covers(split, each.local)]
        if not able:
            raise ProfileError(f"{app.name} on {gpu_type}: no batch was profiled on {split}")
        gains = np.array([app.gains(each.batch(gpus)) for each in able])
        rates = gains / np.array([[self.time(gpu_type, split, each).total(each.accumulations)] for each in able])
        chosen = rates.argmax(axis=0)
        return Truth(rates.max(axis=0).tolist(), [able[way] for way in chosen])
