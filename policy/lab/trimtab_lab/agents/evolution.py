"""CMA-ES: a normal distribution over parameters learns where good ones are, and along which directions to look.

Hansen, "The CMA evolution strategy: a tutorial", arXiv:1604.00772, with its default constants; candidates come in pairs
that mirror each other (Brockhoff et al., "Mirrored sampling and sequential selection for evolution strategies", PPSN
2010), which takes out half of the noise of their comparison. The state is arrays, so that a search that was stopped
goes on bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


class EvolutionStrategy:
    """One search for the least value."""

    def __init__(self, start: FloatArray, step: float, pairs: int) -> None:
        """`start` (d,); `step`: standard deviation of the first candidates; 2 x `pairs` candidates a generation."""
        d, self.mean = len(start), start.copy()
        self._population = 2 * pairs
        weights = math.log(pairs + 0.5) - np.log(np.arange(1, pairs + 1))
        self._weights: FloatArray = weights / weights.sum()
        self._effective = 1.0 / float((self._weights**2).sum())
        mu = self._effective
        self._cumulation = (4 + mu / d) / (d + 4 + 2 * mu / d)
        self._step_cumulation = (mu + 2) / (d + mu + 5)
        self._rank_one = 2 / ((d + 1.3) ** 2 + mu)
        self._rank_mu = min(1 - self._rank_one, 2 * (mu - 2 + 1 / mu) / ((d + 2) ** 2 + mu))
        self._damping = 1 + 2 * max(0.0, math.sqrt((mu - 1) / (d + 1)) - 1) + self._step_cumulation
        self._usual = math.sqrt(d) * (1 - 1 / (4 * d) + 1 / (21 * d * d))
        self._covariance = np.eye(d)
        self._path, self._step_path = np.zeros(d), np.zeros(d)
        self._step, self._generation = step, 0

    def ask(self, random: Generator) -> FloatArray:
        """Candidates, (2 x pairs, d): the second half mirrors the first."""
        scales, axes = self._axes()
        drawn = random.standard_normal((self._population // 2, len(self.mean)))
        steps = (np.concatenate([drawn, -drawn]) * scales) @ axes.T
        found: FloatArray = self.mean + self._step * steps
        return found

    def tell(self, candidates: FloatArray, found: FloatArray) -> None:
        """Learn from the values of these candidates, (2 x pairs,)."""
        d, mu = len(self.mean), self._effective
        best = np.argsort(found, kind="stable")[: len(self._weights)]
        steps = (candidates[best] - self.mean) / self._step
        move = self._weights @ steps
        scales, axes = self._axes()
        self.mean = self.mean + self._step * move
        self._generation += 1
        c = self._step_cumulation
        self._step_path = (1 - c) * self._step_path + math.sqrt(c * (2 - c) * mu) * (axes @ ((axes.T @ move) / scales))
        length = float(np.linalg.norm(self._step_path))
        short = length / math.sqrt(1 - (1 - c) ** (2 * self._generation)) < (1.4 + 2 / (d + 1)) * self._usual
        c = self._cumulation
        self._path = (1 - c) * self._path + short * math.sqrt(c * (2 - c) * mu) * move
        self._covariance = (
            (1 - self._rank_one - self._rank_mu) * self._covariance
            + self._rank_one * np.outer(self._path, self._path)
            + self._rank_mu * (steps.T * self._weights) @ steps
        )
        self._step *= math.exp(min(0.6, self._step_cumulation / self._damping * (length / self._usual - 1)))

    def _axes(self) -> tuple[FloatArray, FloatArray]:
        squares, axes = np.linalg.eigh(self._covariance)
        return np.sqrt(np.maximum(squares, 1e-12)), axes

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All that the next generation depends on."""
        return {
            "mean": self.mean,
            "covariance": self._covariance,
            "path": self._path,
            "step_path": self._step_path,
            "step": np.array([self._step]),
            "generation": np.array([self._generation]),
        }

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `arrays` gave."""
        self.mean, self._covariance = arrays["mean"].copy(), arrays["covariance"].copy()
        self._path, self._step_path = arrays["path"].copy(), arrays["step_path"].copy()
        self._step, self._generation = float(arrays["step"][0]), int(arrays["generation"][0])
