"""Rules for the toy world: what is right there, and what is wrong, for learners to be compared with."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from trimtab_lab.environments.offers import OffersVectorEnv
from trimtab_policy.observation.encode import Ints, OfferBatch

Rule = Callable[[OfferBatch], Ints]

SCALES = 0.5
"""Scaling exponent that tells wide from narrow jobs."""


def right_size(offers: OfferBatch) -> Ints:
    """One GPU for narrow jobs, as many as there are for wide ones."""
    wide = offers.job[:, 10] > SCALES
    return np.where(wide, largest(offers), smallest(offers))


def largest(offers: OfferBatch) -> Ints:
    """Always the most GPUs that can be had."""
    return _first(offers, offers.gpus)


def smallest(offers: OfferBatch) -> Ints:
    """Always the fewest."""
    return _first(offers, -offers.gpus)


def returns(env: OffersVectorEnv, rule: Rule, seed: int) -> NDArray[np.float64]:
    """(n,) what a rule earns in one episode of each environment of a vector."""
    env.reset(seed=seed)
    earned, running = np.zeros(env.num_envs), np.ones(env.num_envs, dtype=np.bool_)
    while running.any():
        _, reward, terminated, truncated, _ = env.step(rule(env.offers))
        earned += reward * running
        running &= ~(terminated | truncated)
    return earned


def _first(offers: OfferBatch, order: Ints) -> Ints:
    allowed = offers.mask[:, :-1]
    found: Ints = np.where(allowed, order, np.iinfo(np.int64).min).argmax(axis=1)
    return np.where(allowed.any(axis=1), found, offers.wait)
