"""Fine-tuning of trained weights on logged decisions, bounded: what was shipped stays in sight.

Logged decisions are few, and were made by one policy. What tuning on them may do is bounded in two ways: by the
distance of the weights from those before, as a part of their own length, and by the share of the logged decisions that
would now be others. A tuned network that goes too far is drawn back on the straight line to the old one until it
keeps both.

Whether what is left is better decides the trial that follows: on the next decisions old and new weights are compared in
pairs. A bet that the new ones are worse (Waudby-Smith and Ramdas 2023) grows whenever they are; at 1 / risk, which
weights that are not worse reach with probability `risk` at most however often one looks, the old ones are back. They
also are if the new ones have not been better on average when the trial of `window` decisions ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from trimtab_policy.observation.encode import Floats, Ints, OfferBatch

Weights = Mapping[str, NDArray[Any]]
Answer = Callable[[Weights, OfferBatch], Ints]

_HALVINGS = 20
"""After which the old weights are taken instead: not even a millionth of the way was near enough."""
_BOLDEST = 0.5
"""Largest part of the stake in one bet: no single decision can lose more than half of it."""


class TransitionLog(NamedTuple):
    """n decisions in order of time, and what followed: the transitions of `trimtab/Offers-v0`."""

    offers: OfferBatch
    answers: Ints
    """(n,) as of `OfferBatch`."""
    rewards: Floats
    """(n,) of the time until the next decision."""
    discounts: Floats
    """(n,) what the future counts after it; 0 where there is none."""
    following: OfferBatch
    """What was on offer next."""


class TuningBound(Struct, frozen=True, forbid_unknown_fields=True):
    """How far fine-tuning may go."""

    distance: float = 0.1
    """Euclidean, of all weights together, as a part of the length of the old ones."""
    changed: float = 0.1
    """Share of the logged decisions that may be others."""
    updates: int = 500
    """Steps of the optimizer."""

    def __post_init__(self) -> None:
        """Raise ValueError naming the field."""
        if not 0 <= self.distance < math.inf:
            raise ValueError(f"distance must be finite and not negative, got {self.distance}")
        if not 0 <= self.changed <= 1:
            raise ValueError(f"changed must lie between 0 and 1, got {self.changed}")
        if self.updates < 1:
            raise ValueError(f"updates must be at least 1, got {self.updates}")


class TuningVerdict(StrEnum):
    """What a trial says so far."""

    OPEN = "Open"
    KEPT = "Kept"
    ROLLED_BACK = "RolledBack"


class Judged(Struct, frozen=True):
    """What one decision cost under the tuned weights and under those before: regret or prediction error, 0 or more."""

    tuned: float
    before: float

    def __post_init__(self) -> None:
        """Raise ValueError naming the field."""
        for name in ("tuned", "before"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be finite and not negative, got {getattr(self, name)}")


class Trial(Struct, frozen=True):
    """Tuned weights against those before them: a bet that they are worse."""

    risk: float = 0.05
    """Probability of rolling back, within the window, weights that are not worse."""
    window: int = 200
    """Decisions that it takes at most."""
    count: int = 0
    total: float = 0.0
    """Of the outcomes."""
    squares: float = 0.0
    wealth: float = 0.0
    """ln of the stake, 0 at first."""

    def __post_init__(self) -> None:
        """Raise ValueError naming the field."""
        if not 0 < self.risk < 1:
            raise ValueError(f"risk must lie between 0 and 1, got {self.risk}")
        if self.window < 1:
            raise ValueError(f"window must be at least 1, got {self.window}")

    @property
    def verdict(self) -> TuningVerdict:
        """Whether the tuned weights stay."""
        if self.wealth >= -math.log(self.risk):
            return TuningVerdict.ROLLED_BACK
        if self.count < self.window:
            return TuningVerdict.OPEN
        return TuningVerdict.KEPT if self.total <= 0 else TuningVerdict.ROLLED_BACK


def bounded(
    before: Weights, tuned: Weights, answer: Answer, offers: OfferBatch, bound: TuningBound
) -> dict[str, NDArray[Any]]:
    """The weights nearest to the tuned ones, on the line to those before, that keep the bound.

    `answer` are greedy answers by weights. Raises ValueError for weights of different shapes.
    """
    if {name: array.shape for name, array in before.items()} != {name: array.shape for name, array in tuned.items()}:
        raise ValueError("tuned weights have other names or shapes than those before: tune the same network")
    away = distance(before, tuned)
    part = 1.0 if away <= bound.distance else bound.distance / away
    said = answer(before, offers)
    for _ in range(_HALVINGS):
        between = _between(before, tuned, part)
        if float((answer(between, offers) != said).mean()) <= bound.changed:
            return between
        part /= 2
    return _between(before, tuned, 0.0)


def distance(before: Weights, after: Weights) -> float:
    """Euclidean distance of all weights together, as a part of the length of those before."""
    moved = sum(float(((after[name] - array).astype(np.float64) ** 2).sum()) for name, array in before.items())
    length = sum(float((array.astype(np.float64) ** 2).sum()) for array in before.values())
    return math.sqrt(moved / length)


def returns(rewards: Floats, discounts: Floats) -> Floats:
    """(n,) what each of n consecutive decisions was followed by: the truth that predicted values are held against.

    The last ones see too little of what followed: leave out those from which the product of the discounts to the end
    is not small.
    """
    found, ahead = np.zeros(len(rewards)), 0.0
    for row in range(len(rewards) - 1, -1, -1):
        ahead = rewards[row] + discounts[row] * ahead
        found[row] = ahead
    return found


def bet(trial: Trial, event: Judged) -> Trial:
    """The trial with one more decision. What is bet on it follows from those before it only.

    The outcome is (tuned - before) / (tuned + before), in [-1, 1]; the part of the stake is mean / (variance + mean^2)
    so far, at least 0 and at most a half (Waudby-Smith and Ramdas 2023, section B.2), with a first outcome of 0 and a
    variance of 1/4 taken for seen.
    """
    both = event.tuned + event.before
    outcome = (event.tuned - event.before) / both if both > 0 else 0.0
    mean = trial.total / (trial.count + 1)
    raw_second = (0.25 + trial.squares) / (trial.count + 1)
    part = max(0.0, min(_BOLDEST, mean / raw_second))
    return replace(
        trial,
        count=trial.count + 1,
        total=trial.total + outcome,
        squares=trial.squares + outcome**2,
        wealth=trial.wealth + math.log1p(part * outcome),
    )


def _between(before: Weights, tuned: Weights, part: float) -> dict[str, NDArray[Any]]:
    return {name: (array + part * (tuned[name] - array)).astype(array.dtype) for name, array in before.items()}
