"""The policy that `agents.sac_imitation` learns: what share of the free GPUs, cores and memory the offered job gets.

The actor's action is continuous, (3,) shares in [0, 1], as in seed 001 (RLAlloc4LM); a cluster has whole GPUs of
several types. The shares are of what the job could use: 1 is the largest of its options that has room. Nodes are bought
with cores and memory for their GPUs, so the scarcest of the three shares says how many GPUs are granted, rounded to
whole ones; the job starts on the fastest option within them, or waits when there is none.

The actor sees the offer as a flat vector, whatever the number of GPU types and options: the job's and the cluster's
features (`encode`), the GPUs of the largest option with room, and of the fastest option within each of SHARES of these
its features 0 to 4 (all 0 where there is none).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab_policy.learned import store
from trimtab_policy.learned.layers import dense, relu
from trimtab_policy.learned.offers import Answers, BadAnswer, OfferPolicy
from trimtab_policy.observation.encode import CLUSTER, JOB, SCHEMA, Bools, Ints, OfferBatch, Single
from trimtab_policy.observation.features import GPUS
from trimtab_policy.policy import Kind

SHARES = (0.125, 0.25, 0.5, 1.0)
_SUMMED = 5
FEATURES = JOB + CLUSTER + 1 + len(SHARES) * _SUMMED
DURATION_RANK, AGE_RANK = 6, 7
"""Places among the features of the job, which stand first."""
ACTIONS = 3
_MANY = np.iinfo(np.int64).max
LAYERS = ("first", "second", "mean")
"""Of the actor, affine: NAME.weight (out, in) and NAME.bias."""
NAMES = tuple(f"{layer}.{part}" for layer in LAYERS for part in ("weight", "bias"))


class SacImitationPolicy(OfferPolicy):
    """Soft actor-critic with expert imitation: the mean action of the trained actor."""

    name = "sac_imitation"
    kind = Kind.LEARNED
    source = "RLAlloc4LM; Guo et al., IoT-J 2021"

    def __init__(self, weights: str | Path = "sac_imitation") -> None:
        """`weights`: a file, or the name of shipped ones (`store.load`); read when the first job is offered."""
        self._source = weights

    @cached_property
    def _weights(self) -> Mapping[str, Single]:
        return store.load(self._source, SCHEMA, NAMES).arrays

    def choose(self, offers: OfferBatch) -> Answers:
        """As of `offers.Agent`. Raises BadAnswer where the network computes what is no number."""
        shares = mean_action(self._weights, state(offers))
        if not np.isfinite(shares).all():
            raise BadAnswer(f"{self.name}: its network computed shares that are no numbers; its weights are broken")
        return granted(offers, shares)


def mean_action(weights: Mapping[str, Single], states: Single) -> Single:
    """(n, actions) in [0, 1], of states (n, features): the actor without its noise, as in `agents.sac_imitation`."""
    hidden = states
    for layer in LAYERS[:-1]:
        hidden = relu(dense(hidden, weights[f"{layer}.weight"], weights[f"{layer}.bias"]))
    mean = dense(hidden, weights[f"{LAYERS[-1]}.weight"], weights[f"{LAYERS[-1]}.bias"])
    action: Single = np.float32(0.5) * (np.tanh(mean) + np.float32(1))
    return action


def state(offers: OfferBatch) -> Single:
    """(n, FEATURES) in [0, 1]: the vector above."""
    room, most = offers.mask[:, :-1], _most(offers)
    parts = [offers.job, offers.cluster, GPUS(most).astype(np.float32)[:, None]]
    rows = np.arange(len(most))
    for share in SHARES:
        within = room & (offers.gpus <= _whole(most, share)[:, None])
        best = offers.options[rows, _fastest(offers, within), :_SUMMED]
        parts.append(np.where(within.any(axis=1, keepdims=True), best, np.float32(0)))
    return np.concatenate(parts, axis=1)


def granted(offers: OfferBatch, shares: Single) -> Answers:
    """(n,) options, or to wait, that shares (n, 3) mean.

    A job that may not wait, because nothing runs, gets its smallest option where the shares do not suffice for one.
    """
    room = offers.mask[:, :-1]
    within = room & (offers.gpus <= _whole(_most(offers), shares.min(axis=1))[:, None])
    smallest = np.where(room, offers.gpus, _MANY).argmin(axis=1)
    forced = room.any(axis=1) & ~offers.mask[:, -1]
    otherwise = np.where(forced, smallest, offers.wait)
    answers: Answers = np.where(within.any(axis=1), _fastest(offers, within), otherwise)
    return answers


def _most(offers: OfferBatch) -> Ints:
    """(n,) GPUs of the largest option with room, 0 without one."""
    most: Ints = np.where(offers.mask[:, :-1], offers.gpus, 0).max(axis=1)
    return most


def _whole(most: Ints, share: float | NDArray[Any]) -> Ints:
    """(n,) GPUs of a share, halves rounded up."""
    whole: Ints = np.floor(most * np.asarray(share, dtype=np.float64) + 0.5).astype(np.int64)
    return whole


def _fastest(offers: OfferBatch, within: Bools) -> Ints:
    """(n,) the fastest option of those, of equals the one with the fewest GPUs; any where there is none."""
    speed = np.where(within, offers.options[:, :, 0], -1.0)
    best = speed == speed.max(axis=1, keepdims=True)
    fastest: Ints = np.where(best, offers.gpus, _MANY).argmin(axis=1)
    return fastest
