"""A small world in which it is plain what is right, for tests of learners: each must find it in seconds.

One GPU type, two nodes of four GPUs, two families of equally long jobs: `wide` ones are as many times faster as they
have GPUs, `narrow` ones no faster on four than on one. At a load where GPUs must not be wasted the right thing is to
give narrow jobs one GPU and wide ones more. `right_size`, `largest` and `smallest` are the rules to compare with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab_lab.environments.cluster_jobs import Families
from trimtab_lab.environments.offers import OffersVectorEnv
from trimtab_policy import catalog
from trimtab_policy.observation.encode import Ints, OfferBatch
from trimtab_policy.types import Node, Snapshot

Rule = Callable[[OfferBatch], Ints]

_LOAD = 0.7
_SCALES = 0.5
"""Scaling exponent that tells wide from narrow jobs."""


def toy(num_envs: int, **given: Any) -> OffersVectorEnv:
    """The world; arguments as of `OffersVectorEnv`."""
    gpu = catalog.gpu("T4")
    nodes = tuple(Node(f"node-{number}", gpu.name, 4, 4, 1 << 40, 1 << 60, 1 << 20) for number in range(2))
    world: dict[str, Any] = {"cluster": Snapshot(0.0, nodes, (), {gpu.name: gpu}), "families": _families()}
    return OffersVectorEnv(num_envs, **{**world, "load": _LOAD, "jobs": 40, "largest_gang": 4, **given})


def right_size(offers: OfferBatch) -> Ints:
    """One GPU for narrow jobs, as many as there are for wide ones."""
    wide = offers.job[:, 10] > _SCALES
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


def _families() -> Families:
    speed = np.array([[1.0, 2.0, 4.0], [1.0, 1.0, 1.0]])
    return Families(
        names=("wide", "narrow"),
        share=np.array([0.5, 0.5]),
        speed=speed,
        gpu_hours=np.array([[0.5, 2.0], [0.5, 2.0]]),
        start_seconds=np.zeros(2),
        restart_seconds=np.zeros(speed.shape),
    )
