"""Fine-tuning of trained weights on logged decisions, bounded: what was shipped stays in sight.

Logged decisions are few, and were made by one policy. What tuning on them may do is bounded in two ways: by the
distance of the weights from those before, as a part of their own length, and by the share of the logged decisions that
would now be others. A tuned network that goes too far is drawn back on the straight line to the old one until it
keeps both. Whether what is left is better decides the trial that follows (`drift`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from trimtab_policy.observation.encode import Floats, Ints, Offers

Weights = Mapping[str, NDArray[Any]]
Answer = Callable[[Weights, Offers], Ints]

_HALVINGS = 20
"""After which the old weights are taken instead: not even a millionth of the way was near enough."""


class Log(NamedTuple):
    """n decisions in order of time, and what followed: the transitions of `trimtab/Offers-v0`."""

    offers: Offers
    answers: Ints
    """(n,) as of `Offers`."""
    rewards: Floats
    """(n,) of the time until the next decision."""
    discounts: Floats
    """(n,) what the future counts after it; 0 where there is none."""
    following: Offers
    """What was on offer next."""


class Bound(Struct, frozen=True, forbid_unknown_fields=True):
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


class Tunable(Protocol):
    """A learner that can learn from logs. It takes its usual update, `bound.updates` times, on batches of the log
    instead of its replay, from its present weights on and without changing them, and returns what `bounded` leaves."""

    def weights(self) -> dict[str, NDArray[Any]]:
        """As of `Learner`."""
        ...

    def fine_tune(self, log: Log, bound: Bound) -> dict[str, NDArray[Any]]:
        """The tuned weights, within the bound."""
        ...


def bounded(before: Weights, tuned: Weights, answer: Answer, offers: Offers, bound: Bound) -> dict[str, NDArray[Any]]:
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


def _between(before: Weights, tuned: Weights, part: float) -> dict[str, NDArray[Any]]:
    return {name: (array + part * (tuned[name] - array)).astype(array.dtype) for name, array in before.items()}
