"""Goodput as the profiles have it: exactly, with a stated error, or of one fixed request."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from trimtab_lab.goodput.batching import Batching, given
from trimtab_lab.goodput.profiles import ProfileError, Split
from trimtab_lab.goodput.site import Site, TypePool
from trimtab_policy.sim.job import Alone
from trimtab_policy.types import Bounds, Speed

SCALING_UNIT = math.log(8)
"""The error of scaling is one sigma from 1 GPU to 8."""
TOO_SMALL = 0.1
"""Steps per second that Gavel's front end in the artifact writes down for types with too few GPUs."""


class Oracle:
    """EXACT and MODEL: the true goodput of the present epoch, times an error that observations correct.

    The logarithm of the error of a job on a GPU type is sigma·(z + z'·ln K / ln 8) for K GPUs, with two standard normal
    numbers per job and type. Once the job has run on a type, the error there is that relative to the nearest number
    of GPUs that it ran on: none for that number itself.
    """

    def __init__(self, site: Site, sigma: float = 0.0, seed: Sequence[int] = (0,)) -> None:
        self.site, self._sigma = site, sigma
        generator = np.random.default_rng(seed)
        self._errors = {pool.gpu_type: generator.standard_normal(2).tolist() for pool in site.pools}
        self._tried: dict[str, set[int]] = {}
        self._speeds: tuple[Speed, ...] = ()
        self._speeds_of: object = None

    def learn(self, gpu_type: str, split: Split, batching: Batching, epoch: int) -> None:
        self._tried.setdefault(gpu_type, set()).add(sum(split))

    def divide(self, gpu_type: str, split: Split, epoch: int) -> Batching:
        return self.site.truth(gpu_type, split).batchings[epoch]

    def speeds(self, epoch: int) -> tuple[Speed, ...]:
        if self._sigma == 0:
            return self.site.true_speeds(epoch)
        key = epoch, sum(map(len, self._tried.values()))
        if key != self._speeds_of:
            self._speeds_of = key
            self._speeds = tuple(
                Speed(true.gpu_type, true.gpus, true.nodes, true.steps_per_second * self._factor(true))
                for true in self.site.true_speeds(epoch)
            )
        return self._speeds

    def gpus(self) -> Bounds:
        return Bounds(1, max(self.site.largest(pool.gpu_type) for pool in self.site.pools))

    def alone(self, gpu_type: str) -> Mapping[int, Alone]:
        return self.site.alone.get(gpu_type, {})

    def _factor(self, speed: Speed) -> float:
        """Estimate over truth."""
        level, slope = self._errors[speed.gpu_type]
        size = math.log(speed.gpus)
        if tried := self._tried.get(speed.gpu_type):
            nearest = min(tried, key=lambda gpus: (abs(math.log(gpus) - size), gpus))
            level, size = 0.0, size - math.log(nearest)
        return math.exp(self._sigma * (level + slope * size / SCALING_UNIT))


class FixedRequest:
    """What Gavel and rigid schedulers run: exactly the requested GPUs and global batch, at the true speed.

    Speeds count iterations at that batch, one per GPU type, `TOO_SMALL` where the cluster has too few GPUs of the type
    (more nodes than there are): what the LPs of the artifact see. Types on which the request was not profiled are
    absent. On one GPU they assume an accumulated micro-batch that execution has only above the initial batch, as there.
    """

    def __init__(self, site: Site, gpus: int, batch: int) -> None:
        """Raises ProfileError for a request that runs on no GPU type of the cluster."""
        self.site, self._gpus, self._batch = site, gpus, batch
        self._speeds = tuple(speed for pool in site.pools if (speed := self._speed(pool)))
        large_enough = {pool.gpu_type for pool in site.pools if gpus <= pool.gpus}
        self._able = large_enough & {speed.gpu_type for speed in self._speeds}
        if not self._able:
            raise ProfileError(
                f"{site.application.name}: {gpus} GPUs with a global batch of {batch} fit on no GPU type, "
                "or were not profiled"
            )
        self._batchings: dict[tuple[str, Split], Batching] = {}

    def learn(self, gpu_type: str, split: Split, batching: Batching, epoch: int) -> None:
        """It knows all that it needs."""

    def divide(self, gpu_type: str, split: Split, epoch: int) -> Batching:
        key = gpu_type, split
        if key not in self._batchings:
            batching = given(self._batch, self._gpus, self.site.limits(gpu_type, split))
            self._batchings[key] = self.site.fitting(gpu_type, split, batching)
        return self._batchings[key]

    def speeds(self, epoch: int) -> tuple[Speed, ...]:
        return self._speeds

    def gpus(self) -> Bounds:
        return Bounds(self._gpus, self._gpus)

    def alone(self, gpu_type: str) -> Mapping[int, Alone]:
        if gpu_type not in self._able:
            return {}
        measured = self.site.application.on(gpu_type)
        splits = [(split, self.divide(gpu_type, split, 0)) for split in self.site.splits(gpu_type, self._gpus)]
        able = [(split, batching) for split, batching in splits if measured.covers(split, batching.local)]
        found = [self.site.alone_with(gpu_type, *each) for each in able]
        return {self._gpus: min(found, key=lambda alone: alone.seconds)}

    def _speed(self, pool: TypePool) -> Speed | None:
        """None where the request was not profiled."""
        nodes, site = -(-self._gpus // pool.per_node), self.site
        if self._gpus > pool.gpus:
            return Speed(pool.gpu_type, self._gpus, nodes, TOO_SMALL)
        try:
            seconds = self._step_seconds(pool.gpu_type)
        except ProfileError:
            return None
        return Speed(pool.gpu_type, self._gpus, nodes, 1 / (seconds * site.application.facts.slowdown))

    def _step_seconds(self, gpu_type: str) -> float:
        """Of the requested gang on full nodes, as the artifact's `predict_throughput` has it."""
        split = self.site.packed(gpu_type, self._gpus)
        limits = self.site.limits(gpu_type, split)
        batching = given(self._batch, self._gpus, limits, always_accumulate=True)
        largest = limits.max_batch // (self._gpus * (batching.accumulations + 1))
        batching = Batching(min(batching.local, largest), batching.accumulations)
        return self.site.time(gpu_type, split, batching).total(batching.accumulations)
