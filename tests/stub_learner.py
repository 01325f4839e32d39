"""An agent for tests of what surrounds agents: numpy alone, milliseconds a segment, everything it does is seeded.

It follows noisy gradients with momentum towards a point, so that its weights depend on every step before, in order.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from trimtab_lab.agents.learner import segment_seed

SCORES = {"point": "minus the distance from the goal"}


class Training(Struct, frozen=True, forbid_unknown_fields=True):
    segments: int = 8
    learning_rate: float = 0.1
    size: int = 16
    """Numbers that it learns: how long a checkpoint takes to write."""
    seconds: float = 0.0
    """That a segment takes at least; more where the environment says STUB_SECONDS, which changes nothing else."""
    wrong: str = ""
    """What goes wrong in the last segment: `diverge` or `die`."""


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    task: str = "point"
    training: Training = field(default_factory=Training)


class Stub:
    """Momentum descent on half the squared distance."""

    schema = "stub/1"

    def __init__(self, config: Config, seed: int) -> None:
        self._training, self._seed = config.training, seed
        self.segments = config.training.segments
        self._goal = np.linspace(-1, 1, config.training.size)
        self._at = np.random.default_rng(seed).normal(size=config.training.size)
        self._momentum = np.zeros_like(self._at)
        self._steps = 0

    def learn(self, segment: int) -> dict[str, float]:
        time.sleep(float(os.environ.get("STUB_SECONDS", self._training.seconds)))
        rng = np.random.default_rng(segment_seed(self._seed, segment))
        for _ in range(3):
            gradient = self._at - self._goal + rng.normal(size=self._at.size)
            self._momentum = 0.9 * self._momentum + gradient
            self._at -= self._training.learning_rate * self._momentum
            self._steps += 1
        if self._training.wrong and segment == self.segments - 1:
            self._go_wrong()
        loss = float(np.mean((self._at - self._goal) ** 2))
        return {"steps": self._steps, "return": float("nan") if segment == 0 else -loss, "loss": loss}

    def _go_wrong(self) -> None:
        if self._training.wrong == "die":
            os._exit(7)
        self._at[:] = np.nan

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"at": self._at, "momentum": self._momentum, "steps": np.array(self._steps)}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._at, self._momentum, self._steps = arrays["at"], arrays["momentum"], int(arrays["steps"])

    def weights(self) -> dict[str, NDArray[Any]]:
        return {"at": self._at}

    def validate(self) -> dict[str, float]:
        # Not by BLAS: that adds up in another order where it has another number of threads.
        distance = float(np.sqrt(np.sum((self._at - self._goal) ** 2)))
        return {"score": -distance, "distance": distance}


def make(config: Config, seed: int) -> Stub:
    return Stub(config, seed)
