"""Replay: what an off-policy learner has seen, drawn again evenly or by how much it still surprises.

`ReplayBuffer` (Lin 1992) is a ring of transitions: numpy arrays of equal length, one for each field.
`PrioritisedReplay` is Schaul et al. 2016 (ICLR, section 3.3, the proportional variant): transition i is drawn with
probability p_i^alpha / sum_k p_k^alpha, where p_i = |TD error| + epsilon; a new one gets the largest priority so far,
so that each is seen. What is drawn too often counts less in turn: importance weights (N P(i))^-beta, over the largest
of the batch. A sum tree finds, in log2(capacity) array operations, whom a random point of the total falls on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
Floats = NDArray[np.float64]
Places = NDArray[np.int64]


class TransitionBatch(NamedTuple):
    """Transitions drawn from a replay."""

    places: Places
    """(n,) where they lie, to say later how they turned out."""
    fields: Arrays
    """(n, ...) each."""
    weights: NDArray[np.float32]
    """(n,) in (0, 1], what each counts in a mean over the batch."""


class SumTree:
    """Numbers >= 0, and who a point of their sum falls on.

    A complete binary tree in one array: node i is the sum of nodes 2 i and 2 i + 1, the root is node 1. Nodes are only
    ever sums of their children, never changed by a difference: no error builds up, and a tree that is filled anew is
    the same bit for bit.
    """

    def __init__(self, capacity: int) -> None:
        """Raise ValueError below 1."""
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self._levels = (capacity - 1).bit_length()
        self._first = 1 << self._levels
        self._nodes = np.zeros(2 * self._first)

    @property
    def total(self) -> float:
        """Sum of all."""
        return float(self._nodes[1])

    def get(self, places: Places | slice) -> Floats:
        """The numbers at these places."""
        found: Floats = self._nodes[self._first :][places]
        return found

    def put(self, places: Places, values: Floats) -> None:
        """Set the numbers at `places` (n,); of equal places the last counts."""
        nodes = places + self._first
        self._nodes[nodes] = values
        for _ in range(self._levels):
            nodes = nodes >> 1
            self._nodes[nodes] = self._nodes[2 * nodes] + self._nodes[2 * nodes + 1]

    def find(self, points: Floats) -> Places:
        """For each of the points (n,) in [0, total) the place i with sum before i <= point < sum through i.

        Never one that is 0, however the sums were rounded, as long as the total is above 0.
        """
        nodes, left_over = np.ones(len(points), dtype=np.int64), points.copy()
        for _ in range(self._levels):
            left = self._nodes[2 * nodes]
            right = (left_over >= left) & (self._nodes[2 * nodes + 1] > 0)
            left_over -= np.where(right, left, 0.0)
            nodes = 2 * nodes + right
        return nodes - self._first


class ReplayBuffer:
    """The last `capacity` transitions, drawn evenly and with replacement."""

    def __init__(self, capacity: int, fields: Mapping[str, tuple[int, ...]]) -> None:
        """`fields` maps names to shapes, without the first axis; all are float32. Raises ValueError below 1."""
        if capacity < 1:
            raise ValueError(f"buffer_size must be at least 1, got {capacity}")
        self.capacity = capacity
        self.size = 0
        self._next = 0
        self._fields = {name: np.zeros((capacity, *shape), dtype=np.float32) for name, shape in fields.items()}

    def add(self, fields: Mapping[str, NDArray[Any]]) -> Places:
        """Store n <= capacity transitions, each field (n, ...), in place of the oldest. Returns where."""
        count = len(next(iter(fields.values())))
        places = (self._next + np.arange(count)) % self.capacity
        for name, column in self._fields.items():
            column[places] = fields[name]
        self._next = (self._next + count) % self.capacity
        self.size = min(self.size + count, self.capacity)
        return places

    def sample(self, random: np.random.Generator, count: int, beta: float = 1.0) -> TransitionBatch:
        """Draw `count`; all weights are 1. Raises ValueError while there is none."""
        self._require_some()
        return self._batch(random.integers(self.size, size=count), np.ones(count, dtype=np.float32))

    def update(self, places: Places, errors: NDArray[Any]) -> None:
        """Say what the errors of these transitions were: of no interest here."""

    def arrays(self) -> Arrays:
        """All that it holds, copied, as far as it is filled."""
        held = {f"field/{name}": column[: self.size].copy() for name, column in self._fields.items()}
        return held | {"next": np.array(self._next), "size": np.array(self.size)}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Become the one whose `arrays` these are. Raises ValueError if it was larger, KeyError for a missing one."""
        size = int(arrays["size"])
        if size > self.capacity:
            raise ValueError(f"buffer_size is {self.capacity}: too small for the {size} transitions of the checkpoint")
        self.size, self._next = size, int(arrays["next"])
        for name, column in self._fields.items():
            column[:size] = arrays[f"field/{name}"]

    def _batch(self, places: Places, weights: NDArray[np.float32]) -> TransitionBatch:
        return TransitionBatch(places, {name: column[places] for name, column in self._fields.items()}, weights)

    def _require_some(self) -> None:
        if not self.size:
            raise ValueError("nothing to draw from: the replay is empty")


class PrioritisedReplay(ReplayBuffer):
    """Transitions drawn by how wrong the last estimate of their value was; see the module."""

    def __init__(
        self, capacity: int, fields: Mapping[str, tuple[int, ...]], alpha: float = 0.6, epsilon: float = 1e-3
    ) -> None:
        """`alpha` 0 draws evenly, 1 in proportion to the error; `epsilon` is the priority of no error at all."""
        super().__init__(capacity, fields)
        self._alpha, self._epsilon = alpha, epsilon
        self._tree = SumTree(capacity)
        self._largest = 1.0

    def add(self, fields: Mapping[str, NDArray[Any]]) -> Places:
        """As of `ReplayBuffer`, with the largest priority so far."""
        places = super().add(fields)
        self._tree.put(places, np.full(len(places), self._largest))
        return places

    def sample(self, random: np.random.Generator, count: int, beta: float = 1.0) -> TransitionBatch:
        """Draw `count` by priority, one from each of as many equal parts of the total (stratified).

        `beta` 1 corrects all of the bias, 0 none. Raises ValueError while there is none.
        """
        self._require_some()
        points = (np.arange(count) + random.random(count)) * (self._tree.total / count)
        places = self._tree.find(points)
        chances = self._tree.get(places) / self._tree.total
        weights = (self.size * chances) ** -beta
        return self._batch(places, (weights / weights.max()).astype(np.float32))

    def update(self, places: Places, errors: NDArray[Any]) -> None:
        """Set the priorities of these transitions by their TD errors (n,), of either sign."""
        priorities = (np.abs(np.asarray(errors, dtype=np.float64)) + self._epsilon) ** self._alpha
        self._tree.put(places, priorities)
        self._largest = max(self._largest, float(priorities.max()))

    def arrays(self) -> Arrays:
        """All that it holds, copied, as far as it is filled."""
        priorities = self._tree.get(slice(self.size)).copy()
        return super().arrays() | {"priorities": priorities, "largest": np.array(self._largest)}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """As of `ReplayBuffer`. What is behind the filled part keeps no priority."""
        super().restore(arrays)
        self._tree = SumTree(self.capacity)
        self._tree.put(np.arange(self.size), arrays["priorities"])
        self._largest = float(arrays["largest"])
