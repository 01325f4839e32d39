"""Offers of any content, to hold two implementations of one function against each other."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trimtab_policy.observation.encode import CLUSTER, JOB, OPTION, POOL, OfferBatch


def random_offers(count: int, options: int = 6, types: int = 3, seed: int = 0) -> OfferBatch:
    """Offers of any content; at least one option of each may be chosen."""
    random = np.random.default_rng(seed)

    def features(*shape: int) -> NDArray[np.float32]:
        return random.random((count, *shape), dtype=np.float32)

    mask = random.random((count, options + 1)) < 0.6
    mask[:, 0] |= ~mask[:, :-1].any(axis=1)
    numbers = random.integers(0, [types, 9, 3], (count, options, 3))
    return OfferBatch(
        features(JOB), features(CLUSTER), features(types, POOL), features(options, OPTION),
        numbers[..., 0], numbers[..., 1] + 1, numbers[..., 2], mask,
    )  # fmt: skip
