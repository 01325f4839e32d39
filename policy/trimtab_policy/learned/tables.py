"""The policies of Q-learning and SARSA (seed 000): a table over cells of what is known of an offer.

The seed's action is GPU count x {Data, Model, Hybrid}; here the count is one of 1, 2-3, 4-7, 8-15, 16-31, 32 or more.
It says nothing of GPU types: of the options of that count and mode the fastest that has room is taken. The last action
is to wait. In a cell where no option on offer was ever tried, the fastest one is taken: that nothing else is known does
not make it right to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab_policy.learned import store
from trimtab_policy.learned.offers import Answers, BadAnswer, OfferPolicy
from trimtab_policy.observation.encode import MODES, SCHEMA, Bools, Floats, Ints, OfferBatch, Single
from trimtab_policy.policy import Kind

COUNTS = (1, 2, 4, 8, 16, 32)
"""Smallest number of GPUs of each class."""
ACTIONS = len(COUNTS) * len(MODES) + 1
WAIT = ACTIONS - 1
NOTHING = -1
ARRAYS = ("bins", "q", "tried")
"""What weights consist of: bins (features,), q and tried (states, ACTIONS)."""


class GridFeature(NamedTuple):
    """One axis of the grid: a number for each of n offers, between two limits."""

    of: Callable[[OfferBatch], Single]
    low: float = 0.0
    high: float = 1.0


def _free_of_best(offers: OfferBatch) -> Single:
    """(n,) free share of the GPU type on which the job runs best."""
    best = offers.pools[:, :, 0].argmax(axis=1)
    free: Single = offers.pools[np.arange(len(best)), best, 3]
    return free


FEATURES = {
    "scaling": GridFeature(lambda offers: offers.job[:, 10], 0.35),
    "length": GridFeature(lambda offers: offers.job[:, 0], 0.35, 0.6),
    "rank": GridFeature(lambda offers: offers.job[:, 6]),
    "waiting": GridFeature(lambda offers: offers.cluster[:, 1], 0.03, 0.6),
    "free": GridFeature(lambda offers: offers.cluster[:, 2]),
    "best_free": GridFeature(_free_of_best),
    "crowd": GridFeature(lambda offers: offers.cluster[:, 3]),
}
"""Scaling exponent, run time left, its rank among those that wait, jobs that wait, free share of all GPUs, of those of
its best type, and jobs per GPU."""


def cells(offers: OfferBatch, bins: Sequence[int]) -> Ints:
    """(n,) cells of n offers on a grid of so many equal bins between the limits of each of FEATURES."""
    sizes = np.array(bins, dtype=np.int64)[:, None]
    parts = np.stack([(each.of(offers) - each.low) / (each.high - each.low) for each in FEATURES.values()])
    places = np.clip((parts * sizes).astype(np.int64), 0, sizes - 1)
    found: Ints = np.ravel_multi_index(tuple(places), tuple(bins))
    return found


def states(bins: Sequence[int]) -> int:
    """Number of cells."""
    return int(np.prod(bins))


def menu(offers: OfferBatch) -> Ints:
    """(n, ACTIONS) the answer that each action is: an option, to wait, or NOTHING where it may not be done."""
    count = np.searchsorted(COUNTS, offers.gpus, side="right") - 1
    action = count * len(MODES) + offers.mode
    speed = np.where(offers.mask[:, :-1], offers.options[:, :, 0], -1.0)
    mine = np.where(action[:, None, :] == np.arange(WAIT)[:, None], speed[:, None, :], -1.0)
    fastest = np.where(mine.max(axis=2) >= 0, mine.argmax(axis=2), NOTHING)
    waits = np.where(offers.mask[:, -1:], offers.wait, NOTHING)
    answers: Ints = np.concatenate([fastest, waits], axis=1)
    return answers


def greedy(q: Floats, tried: Bools, answers: Ints, offers: OfferBatch) -> Answers:
    """(n,) the answers of the best actions, of their values (n, ACTIONS) and whether they were ever tried."""
    known = np.where(tried & (answers != NOTHING), q, -np.inf)
    best = np.take_along_axis(answers, known.argmax(axis=1)[:, None], axis=1)[:, 0]
    started = np.isfinite(known[:, :WAIT]).any(axis=1)
    speed = np.where(offers.mask[:, :-1], offers.options[:, :, 0], -1.0)
    fastest = np.where(speed.max(axis=1) >= 0, speed.argmax(axis=1), offers.wait)
    found: Answers = np.where(started, best, fastest)
    return found


class TablePolicy(OfferPolicy):
    """The action of the highest value; weights by default those of the package."""

    def __init__(self, weights: Mapping[str, NDArray[Any]] | None = None) -> None:
        self._weights = weights

    @cached_property
    def _table(self) -> Mapping[str, NDArray[Any]]:
        return store.load(self.name, SCHEMA, ARRAYS).arrays if self._weights is None else self._weights

    def choose(self, offers: OfferBatch) -> Answers:
        """As of `OfferPolicy`. Raises BadAnswer for values that are no numbers, `store.WeightsError` for no table."""
        here = cells(offers, self._table["bins"].tolist())
        q = self._table["q"][here]
        if not np.isfinite(q).all():
            raise BadAnswer(f"{self.name}: its table holds a value that is no number; its weights are broken")
        return greedy(q, self._table["tried"][here], menu(offers), offers)


class QLearningPolicy(TablePolicy):
    """What `agents.q_learning` learned."""

    name = "q_learning"
    kind = Kind.LEARNED
    source = "Dadizadeh Dargiry, MSES 2025"


class SarsaPolicy(TablePolicy):
    """What `agents.sarsa` learned."""

    name = "sarsa"
    kind = Kind.LEARNED
    source = "Dadizadeh Dargiry, MSES 2025"
