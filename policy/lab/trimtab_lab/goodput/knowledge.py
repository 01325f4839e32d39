"""What a job knows about its own goodput: the information regimes, which are never mixed in one table.

An `Estimator` answers two questions: how fast is every configuration (that is what policies see), and which batch
should run on the GPUs that the job has. `online.OnlineFit` answers from what was seen so far, `oracle.Oracle` from the
profiles themselves, `oracle.FixedRequest` has nothing to decide.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from trimtab_lab.goodput.batching import Batching
from trimtab_lab.goodput.profiles import Gradient, MicroStepTime, Split
from trimtab_lab.goodput.throughput_fit import Floats, StepObservation, fit
from trimtab_policy.sim.job import Alone
from trimtab_policy.types import Bounds, Speed


class Regime(StrEnum):
    """Where a job's idea of its goodput comes from."""

    FIT = "Fit"
    """The artifact's: its own observations, and at most twice the GPUs that it tried so far."""
    POOLED = "Pooled"
    """The same with the observations of all jobs of its application."""
    MODEL = "Model"
    """The truth times an error per job and GPU type and in scaling, corrected by what is observed; no limit of GPUs."""
    EXACT = "Exact"
    """The truth of the present epoch; no limit of GPUs."""


class Knowledge(Struct, frozen=True):
    """A regime with its parameters."""

    regime: Regime = Regime.FIT
    capped: bool = True
    """FIT and POOLED: whether what policies see is capped at the batch that the trace asks for. Execution never is."""
    project: bool = True
    """FIT and POOLED: whether GPU types that a job has not run on are guessed from those that it has, by the ratio of
    one-GPU speeds, and share their limit of GPUs (`--project_throughput --share_max_replicas` of the artifact)."""
    sigma: float = 0.0
    """MODEL: spread of ln(estimate / truth) per job and GPU type, and of its growth from 1 to 8 GPUs."""
    seed: int = 0
    """MODEL: of the errors."""

    def __post_init__(self) -> None:
        """Raise ValueError naming the field."""
        if not 0 <= self.sigma < math.inf:
            raise ValueError(f"sigma must be finite and not negative, got {self.sigma}")
        if self.sigma and self.regime is not Regime.MODEL:
            raise ValueError(f"sigma is the error of regime {Regime.MODEL}, the regime is {self.regime}")


class Estimator(Protocol):
    """A job's idea of its goodput."""

    def learn(self, gpu_type: str, split: Split, batching: Batching, epoch: int) -> None:
        """It runs like this in this epoch."""
        ...

    def divide(self, gpu_type: str, split: Split, epoch: int) -> Batching:
        """The batch to run there."""
        ...

    def speeds(self, epoch: int) -> tuple[Speed, ...]:
        """What policies may know of its configurations; the same object for as long as nothing has changed."""
        ...

    def gpus(self) -> Bounds:
        """How many GPUs policies may give it."""
        ...

    def alone(self, gpu_type: str) -> Mapping[int, Alone]:
        """The truth, which it does not look at (`SimJob.alone`)."""
        ...


class Experience:
    """Step times that were observed, by GPU type or whatever else is told apart, and the models fitted to them."""

    def __init__(self) -> None:
        self.version = 0
        """Changes with what is known."""
        self.first_gradient: Gradient | None = None
        """Of the first step that was ever observed: all that a job knows that has not run yet."""
        self._seen: dict[str, dict[tuple[int, int, int], StepObservation]] = {}
        self._largest: dict[str, int] = {}
        self._fits: dict[str, Floats] = {}

    def add(self, kind: str, split: Split, local: int, time: MicroStepTime) -> None:
        """A step with `local` samples per GPU; the first one of its kind counts, as in the artifact."""
        nodes, gpus = len(split), sum(split)
        seen = self._seen.setdefault(kind, {})
        if (nodes, gpus, local) in seen:
            return
        seen[nodes, gpus, local] = StepObservation(nodes, gpus, local, time.step - time.sync, time.step)
        self._largest[kind] = max(gpus, self.largest(kind))
        self._fits.pop(kind, None)
        self.version += 1

    def parameters(self, kind: str) -> Floats | None:
        """Of the throughput model, fitted when it is asked for; None before the first observation."""
        if kind not in self._fits and kind in self._seen:
            self._fits[kind] = fit(tuple(sorted(self._seen[kind].values())))
        return self._fits.get(kind)

    def largest(self, kind: str) -> int:
        """Most GPUs that were tried."""
        return self._largest.get(kind, 0)
