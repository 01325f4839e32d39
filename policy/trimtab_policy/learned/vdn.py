"""Value decomposition for offers: every GPU pool bids for the job on offer, by what it sees of itself (`agents.vdn`).

The job goes to the highest bid above 0, else it waits. A pool sees the job and how many wait with it, its own nodes and
its own options; not how full other pools are, nor what they could offer. Inference is numpy; the same in torch,
for training, is in `agents.vdn`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab_policy.learned import store
from trimtab_policy.learned.layers import dense, relu
from trimtab_policy.learned.offers import Answers, OfferPolicy, best
from trimtab_policy.observation.encode import SCHEMA, Ints, OfferBatch, Single
from trimtab_policy.policy import Kind

Weights = Mapping[str, NDArray[Any]]

LAYERS = ("see", "think", "rest", "own", "act")
"""Affine layers, each with NAME.weight (out, in) and NAME.bias; `option` has no bias beside that of `own`."""
NAMES = (*(f"{layer}.{part}" for layer in LAYERS for part in ("weight", "bias")), "option.weight")
_OF_THE_JOB = slice(0, 11)
"""The last feature of a job tells which part of all options has room: other pools are among them."""
_WAITING = slice(1, 2)
"""Of the features of the cluster the one that tells of the queue, and of no pool."""


class Local(NamedTuple):
    """What each of k agents sees, and m options, each of one agent."""

    agents: Single
    """(n, k, features)"""
    options: Single
    """(n, m, features)"""
    owner: Ints
    """(n, m) agent that may do it."""


class VdnPolicy(OfferPolicy):
    """Pools that bid."""

    name = "vdn"
    kind = Kind.LEARNED
    source = "ADLRO (future work); Sunehag et al., AAMAS 2018"

    def __init__(self, weights: str | Path = "vdn") -> None:
        """`weights`: a file, or the name of shipped ones (`store.load`); read at the first decision."""
        self._source = weights

    @cached_property
    def _weights(self) -> Weights:
        return store.load(self._source, SCHEMA, NAMES).arrays

    def choose(self, offers: OfferBatch) -> Answers:
        """As of `Agent`. Raises BadAnswer, and `store.WeightsError` when the weights cannot be used."""
        return answers(self._weights, offers)


def answers(weights: Weights, offers: OfferBatch) -> Answers:
    """(n,) what the pools with these weights agree on. Raises BadAnswer for bids that are no numbers."""
    bids, _ = values(weights, local(offers))
    return best(VdnPolicy.name, np.append(bids, np.zeros((len(bids), 1), dtype=np.float32), axis=1), offers)


def local(offers: OfferBatch) -> Local:
    """Offers as the pools see them: (n, types, 23) and (n, options, 8)."""
    pools = offers.pools
    job = np.concatenate([offers.job[:, _OF_THE_JOB], offers.cluster[:, _WAITING]], axis=1)
    common = np.broadcast_to(job[:, None, :], (*pools.shape[:2], job.shape[1]))
    return Local(np.concatenate([common, pools], axis=2), offers.options, offers.kind)


def values(weights: Weights, seen: Local) -> tuple[Single, Single]:
    """(n, m) bids of the owners for their options, Q_i(option) - Q_i(pass), and (n, k) each agent's Q_i(pass).

    Q of a joint action is the sum over the agents of what each does (Sunehag et al. 2018): that of an option is the sum
    of all passes and its bid, that of waiting the sum of all passes. So the highest bid above 0 is the best of them.
    """
    hidden = relu(_affine(weights, "think", relu(_affine(weights, "see", seen.agents))))
    passing = _affine(weights, "rest", hidden)[..., 0]
    rows = np.arange(len(hidden))[:, None]
    own = _affine(weights, "own", hidden)[rows, seen.owner]
    bids = _affine(weights, "act", relu(own + dense(seen.options, weights["option.weight"])))[..., 0]
    return bids, passing


def predicted(weights: Weights, offers: OfferBatch, chosen: Answers) -> Single:
    """(n,) Q_tot of these answers: the discounted sum of rewards that is expected to follow them."""
    bids, passing = values(weights, local(offers))
    joint = np.append(bids, np.zeros((len(bids), 1), dtype=np.float32), axis=1)
    found: Single = passing.sum(axis=1) + joint[np.arange(len(chosen)), chosen]
    return found


def _affine(weights: Weights, layer: str, inputs: Single) -> Single:
    return dense(inputs, weights[f"{layer}.weight"], weights[f"{layer}.bias"])
