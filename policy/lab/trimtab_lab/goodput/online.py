"""Goodput as a job estimates it while it runs: Sia's and Pollux's bootstrap, fit and extrapolation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trimtab_lab.goodput.batching import Batching, best, given
from trimtab_lab.goodput.knowledge import Experience
from trimtab_lab.goodput.profiles import Gradient, Split
from trimtab_lab.goodput.site import MOST_GPUS, Site
from trimtab_lab.goodput.throughput_fit import Floats
from trimtab_policy.placement.capacity import ALL_TYPES
from trimtab_policy.sim.job import Alone
from trimtab_policy.types import Bounds, Speed


class OnlineFit:
    """FIT and POOLED: throughput models of what was seen, and the gradient of the last step.

    `experience` is the job's own, or that of all jobs of its application. Speeds are Sia's: before anything is known
    one GPU of each type, all of equal speed; afterwards the estimated goodput of every configuration within the limit.
    """

    def __init__(self, site: Site, experience: Experience, max_batch: int, *, project: bool = True) -> None:
        """`max_batch` caps the batches whose goodput policies see."""
        self.site, self.experience = site, experience
        self._max_batch, self._project = max_batch, project
        self._gradient: Gradient | None = None
        self._speeds: tuple[Speed, ...] = ()
        self._speeds_of: object = None
        self._batching = Batching(0, 0)
        self._batching_of: object = None

    def learn(self, gpu_type: str, split: Split, batching: Batching, epoch: int) -> None:
        gradients = self.site.application.gradients(batching.batch(sum(split)))
        self._gradient = gradients[epoch]
        self.experience.first_gradient = self.experience.first_gradient or self._gradient
        self.experience.add(self.kind(gpu_type), split, batching.local, self.site.time(gpu_type, split, batching))

    def divide(self, gpu_type: str, split: Split, epoch: int) -> Batching:
        key = gpu_type, split, self.experience.version, self._gradient
        if key != self._batching_of:
            self._batching_of = key
            self._batching = self.site.fitting(gpu_type, split, self._choose(gpu_type, split))
        return self._batching

    def speeds(self, epoch: int) -> tuple[Speed, ...]:
        key = self.experience.version, self._gradient
        if key != self._speeds_of:
            self._speeds_of = key
            self._speeds = tuple(self._estimated())
        return self._speeds

    def gpus(self) -> Bounds:
        return Bounds(1, max(self._limits().values()))

    def alone(self, gpu_type: str) -> Mapping[int, Alone]:
        return self.site.alone.get(gpu_type, {})

    def kind(self, gpu_type: str) -> str:
        """What observations on a GPU type are kept under."""
        return gpu_type

    @property
    def gradient(self) -> Gradient | None:
        return self._gradient or self.experience.first_gradient

    def _choose(self, gpu_type: str, split: Split) -> Batching:
        """The batch of most estimated goodput; the smallest possible one while nothing is known."""
        gpus = sum(split)
        limits = self.site.limits(gpu_type, split)
        parameters, gradient = self.experience.parameters(self.kind(gpu_type)), self.gradient
        if parameters is not None and gradient is not None:
            options = self.site.ways_on(gpu_type, split)
            rates, chosen = best(parameters, gradient, limits.init_batch, 1, options)
            if rates[0] > 0:
                return options.at(chosen[0])
        return given(max(limits.init_batch, limits.min_local * gpus), gpus, limits)

    def _limits(self) -> dict[str, int]:
        """GPU type -> most GPUs: twice as many as were tried."""
        found = {
            pool.gpu_type: min(
                MOST_GPUS, max(1, 2 * self.experience.largest(pool.gpu_type)), self.site.largest(pool.gpu_type)
            )
            for pool in self.site.pools
        }
        return dict.fromkeys(found, max(found.values())) if self._project else found

    def _estimated(self) -> Iterable[Speed]:
        types, gradient = [pool.gpu_type for pool in self.site.pools], self.gradient
        found = ((gpu_type, self.experience.parameters(gpu_type)) for gpu_type in types)
        models = {gpu_type: parameters for gpu_type, parameters in found if parameters is not None}
        if gradient is None or not models:
            return [Speed(gpu_type, 1, 1, 1.0) for gpu_type in types]
        limits, rows = self._limits(), []
        for asked in types if self._project else models:
            known = asked if asked in models else next(iter(models))
            rows += self._rows(asked, known, models[known], gradient, limits[asked])
        slowest = min((row.steps_per_second for row in rows), default=1.0)
        untried = [] if self._project else [gpu_type for gpu_type in types if gpu_type not in models]
        return [*rows, *(Speed(gpu_type, 1, 1, slowest) for gpu_type in untried)]

    def _rows(self, asked: str, known: str, parameters: Floats, gradient: Gradient, limit: int) -> list[Speed]:
        """Estimated speeds on one type, by the model of the same or another one."""
        app, rows = self.site.application, [each for each in self.site.configurations[asked] if each[1] <= limit]
        options = self.site.estimates(known, asked, self._max_batch)
        rates, _ = best(parameters, gradient, app.init_batch, len(rows), options)
        factor = self.site.ratio(asked, known) / app.facts.slowdown
        return [
            Speed(asked, gpus, nodes, rate * factor)
            for (nodes, gpus), rate in zip(rows, rates.tolist(), strict=True)
            if rate > 0
        ]


class UnawareFit(OnlineFit):
    """Pollux: one model for all GPU types, fed with the steps of whichever type the job runs on.

    Speeds are of GPU type `*` (`capacity.ALL_TYPES`), over virtual nodes of as many GPUs as the smallest node of the
    cluster has:

    - one for every (nodes, GPUs) that such a gang can have, up to `requirements.gpus.high` GPUs, and
    - one for every number of GPUs of the whole cluster on a single node. Those above the limit, or above a virtual
      node, cannot be had: Pollux divides goodputs by that of (1, ceil(all GPUs / jobs)), the fair share.

    Until something is known, speed is the number of GPUs. What really runs depends on the type and the true split.
    """

    def __init__(self, site: Site, experience: Experience) -> None:
        super().__init__(site, experience, site.application.max_batch)

    def kind(self, gpu_type: str) -> str:
        return ALL_TYPES

    def gpus(self) -> Bounds:
        return Bounds(1, min(max(1, 2 * self.experience.largest(ALL_TYPES)), self.site.virtual.most_gpus))

    def _estimated(self) -> Iterable[Speed]:
        parameters, gradient = self.experience.parameters(ALL_TYPES), self.gradient
        rows, app = self.site.virtual.configurations, self.site.application
        if parameters is None or gradient is None:
            return [Speed(ALL_TYPES, gpus, nodes, float(gpus)) for nodes, gpus in rows]
        rates, _ = best(parameters, gradient, app.init_batch, len(rows), self.site.virtual.ways)
        speeds = (rates / app.facts.slowdown).tolist()
        return [Speed(ALL_TYPES, gpus, nodes, rate) for (nodes, gpus), rate in zip(rows, speeds, strict=True)]
