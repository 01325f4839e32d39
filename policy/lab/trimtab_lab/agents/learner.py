"""What a learner is to everything around it: training, checkpoints, the store.

Training is cut into segments. What a segment does follows from the configuration, the seed, the segment's number and
`arrays()` alone: it resets its environments and its randomness with `segment_seed`. So a run that was killed and taken
up again from its last checkpoint ends bit for bit where the run ends that was never killed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]


class Learner(Protocol):
    """One training run of one algorithm."""

    schema: str
    """What its weights take as observations, e.g. `offers/1`: weights of another schema are refused."""
    segments: int
    """How many there are in all; each some seconds of work."""

    def learn(self, segment: int) -> dict[str, float]:
        """Go through one segment, from 0 on. Returns figures for logs: `steps` so far, `return` (mean of the episodes
        that ended), `loss` where there is one."""
        ...

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All that the next segment depends on: weights, moments of the optimizer, replay, counters."""
        ...

    def restore(self, arrays: Arrays) -> None:
        """Go on from what `arrays` gave."""
        ...

    def weights(self) -> dict[str, NDArray[Any]]:
        """What inference needs."""
        ...

    def validate(self) -> dict[str, float]:
        """How good the present weights are, on seeds that are never trained on; in `score` higher is better."""
        ...


def segment_seed(seed: int, segment: int, stream: int = 0) -> int:
    """A seed for one segment of one run, below 2^31; `stream` tells apart what is random within it."""
    return int(np.random.SeedSequence([seed, segment, stream]).generate_state(1)[0] >> 1)
