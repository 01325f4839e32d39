"""What Q-learning and SARSA share: the table, the learning rate, epsilon-greedy, and the tasks cut into cells.

Seed 000 (Dadizadeh Dargiry 2025) names both algorithms and gives neither parameters nor pseudo-code. Chosen here, after
Sutton and Barto (2018, sections 6.4, 6.5): learning rates that fall with the visits of a cell, first * visits^-power,
so that the table converges (Robbins and Monro); exploration that falls linearly; values that begin at `initial_value`,
which is optimistic where it is above what can be had. The rules by which the two algorithms learn are in their files.

Several environments run at once. Where they meet in a cell, it moves once towards the mean of their targets, as far as
so many moves one after the other would take it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from trimtab_lab.agents.learner import Arrays, segment_seed

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

EXPLORATION = 1
"""Stream of `segment_seed` for the agent's own dice; that of the environments is 0."""
VALIDATION = 1 << 32
"""First seed of validation episodes. Those of training are below 2^31 plus the number of environments."""
SCORE = "mean return of greedy episodes"


class TableTraining(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Hyperparameters of a tabular agent."""

    segments: int
    steps: int
    """Of every environment, in a segment."""
    environments: int = 64
    """Of each cluster, where there are several."""
    learning_rate: float = 1.0
    """Of the first visit."""
    learning_rate_power: float = 0.6
    """How fast it falls with the visits: above 0.5 and up to 1 for convergence."""
    least_learning_rate: float = 0.0
    first_epsilon: float = 1.0
    last_epsilon: float = 0.02
    epsilon_share: float = 0.7
    """Part of the training over which epsilon falls from the first to the last."""
    initial_value: float = 0.0
    validation_episodes: int = 64

    def __post_init__(self) -> None:
        """Raise ValueError naming the field."""
        for name in ("segments", "steps", "environments", "validation_episodes"):
            if getattr(self, name) < 1:
                raise ValueError(f"training.{name} must be at least 1, got {getattr(self, name)}")
        for name in ("learning_rate", "least_learning_rate", "first_epsilon", "last_epsilon", "epsilon_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"training.{name} must lie between 0 and 1, got {getattr(self, name)}")
        if self.learning_rate_power < 0 or not np.isfinite(self.initial_value):
            raise ValueError("training.learning_rate_power must not be negative, initial_value must be finite")

    def epsilon(self, done: float) -> float:
        """Part of the actions that are random when this part of the training is done."""
        fallen = min(1.0, done / self.epsilon_share) if self.epsilon_share else 1.0
        return self.first_epsilon + fallen * (self.last_epsilon - self.first_epsilon)

    def rates(self, visits: Ints) -> Floats:
        """Learning rate of cells that were visited so often before."""
        falling = self.learning_rate * (visits + 1.0) ** -self.learning_rate_power
        found: Floats = np.maximum(self.least_learning_rate, falling)
        return found


class TableObservation(NamedTuple):
    """What a tabular agent sees of n environments."""

    cells: Ints
    """(n,)"""
    allowed: Bools
    """(n, actions)"""


class TableStep(NamedTuple):
    """What a step led to in n environments."""

    seen: TableObservation
    earned: Floats
    """(n,) what the environment gives: returns are sums of it."""
    rewards: Floats
    """(n,) what is learned from: the same, or what has the same best policy."""
    discounts: Floats
    """(n,) what the future counts."""
    ended: Bools
    """(n,) where there is none."""
    happened: Bools
    """(n,) False where an episode has begun instead: nothing to learn from."""
    over: Bools
    """(n,) whether the episode has ended; the next step begins another."""


class TableWorld(Protocol):
    """n environments whose states are cells of a grid."""

    states: int
    actions: int
    environments: int
    schema: str
    bins: tuple[int, ...]
    """Of the grid; weights carry them."""

    def reset(self, seed: int) -> TableObservation:
        """Begin anew; everything that is random follows from the seed."""
        ...

    def step(self, actions: Ints) -> TableStep:
        """One step of each."""
        ...


class ValueTable:
    """A value for every cell and action, and how often it was moved."""

    def __init__(self, states: int, actions: int, initial: float) -> None:
        self.q: Floats = np.full((states, actions), initial)
        self.visits: Ints = np.zeros((states, actions), dtype=np.int64)

    def values(self, seen: TableObservation) -> Floats:
        """(n, actions) values; minus infinity for what is not allowed."""
        found: Floats = np.where(seen.allowed, self.q[seen.cells], -np.inf)
        return found

    def move(self, cells: Ints, actions: Ints, targets: Floats, training: TableTraining) -> float:
        """Move the values of these actions in these cells (n,) towards targets; returns the mean squared error."""
        if not len(cells):
            return 0.0
        errors = targets - self.q[cells, actions]
        where, inverse, counts = np.unique(cells * self.q.shape[1] + actions, return_inverse=True, return_counts=True)
        means = np.bincount(inverse, errors) / counts
        rates = 1 - (1 - training.rates(self.visits.flat[where])) ** counts
        self.q.flat[where] += rates * means
        self.visits.flat[where] += counts
        return float((errors**2).mean())


def epsilon_greedy(table: ValueTable, seen: TableObservation, epsilon: float, random: np.random.Generator) -> Ints:
    """(n,) allowed actions: random ones with probability epsilon, else those of the highest value."""
    greedy = table.values(seen).argmax(axis=1)
    anything = (random.random(seen.allowed.shape) * seen.allowed).argmax(axis=1)
    chosen: Ints = np.where(random.random(len(greedy)) < epsilon, anything, greedy)
    return chosen


class SegmentLog:
    """Figures of one segment."""

    def __init__(self, environments: int) -> None:
        self._running = np.zeros(environments)
        self._returns: list[float] = []
        self._losses: list[float] = []

    def add(self, after: TableStep, loss: float) -> None:
        """Count a step."""
        self._running += after.earned
        self._returns += self._running[after.over].tolist()
        self._running[after.over] = 0.0
        self._losses.append(loss)

    def figures(self, steps: int, epsilon: float) -> dict[str, float]:
        """As of `Learner.learn`; the return is NaN when no episode has ended."""
        ended = float(np.mean(self._returns)) if self._returns else float("nan")
        return {"steps": float(steps), "return": ended, "loss": float(np.mean(self._losses)), "epsilon": epsilon}


class Tabular:
    """Everything of a tabular `Learner` but how it learns."""

    def __init__(self, world: TableWorld, trial: TableWorld, training: TableTraining, seed: int) -> None:
        """`trial` are the environments for validation: each plays one episode."""
        self.world, self.training, self.seed = world, training, seed
        self.schema, self.segments = world.schema, training.segments
        self.table = ValueTable(world.states, world.actions, training.initial_value)
        self.steps = 0
        self._trial = trial

    def begin(self, segment: int) -> tuple[TableObservation, np.random.Generator, SegmentLog]:
        """What a segment starts with."""
        random = np.random.default_rng(segment_seed(self.seed, segment, EXPLORATION))
        return self.world.reset(segment_seed(self.seed, segment)), random, SegmentLog(self.world.environments)

    @property
    def epsilon(self) -> float:
        """Part of the actions that are random now."""
        whole = self.training.segments * self.training.steps * self.world.environments
        return self.training.epsilon(self.steps / whole)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """As of `Learner`."""
        return {"q": self.table.q.copy(), "visits": self.table.visits.copy(), "steps": np.array([self.steps])}

    def restore(self, arrays: Arrays) -> None:
        """As of `Learner`. Raises ValueError for arrays of another table."""
        if arrays["q"].shape != self.table.q.shape:
            raise ValueError(f"a table of {arrays['q'].shape} cannot go on as one of {self.table.q.shape}")
        self.table.q, self.table.visits = arrays["q"].copy(), arrays["visits"].copy()
        self.steps = int(arrays["steps"][0])

    def weights(self) -> dict[str, NDArray[Any]]:
        """The table, which of it was ever tried, and the grid that it is of."""
        bins = np.array(self.world.bins, dtype=np.int64)
        return {"bins": bins, "q": self.table.q.copy(), "tried": self.table.visits > 0}

    def validate(self) -> dict[str, float]:
        """Mean return of greedy episodes, as `score`."""
        returns = play(self._trial, VALIDATION, lambda seen: self.table.values(seen).argmax(axis=1))
        return {"score": float(returns.mean())}


def play(world: TableWorld, seed: int, act: Callable[[TableObservation], Ints]) -> Floats:
    """(n,) returns, not discounted, of one episode of each environment."""
    seen = world.reset(seed)
    running: Bools = np.ones(len(seen.cells), dtype=np.bool_)
    returns: Floats = np.zeros(len(running))
    while running.any():
        after = world.step(act(seen))
        returns += after.earned * running
        running &= ~after.over
        seen = after.seen
    return returns
