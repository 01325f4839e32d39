"""What the network of rudder makes of a worth, feature by feature, and in words; and what it was not trained on.

Nothing of this decides: it tells why.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from trimtab_policy.learned.worth import LARGEST_CHANGE, SAID, Network
from trimtab_policy.types import DoubtReason

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

SWITCHES = {5: "that it stays", 6: "that it is a change", 16: "that it cannot be moved later"}
"""Those in words, but for the constant one."""
CLUSTER_FEATURES = np.array([7, 13, 14, 15])
"""The features that are of the cluster: the same of all options."""
USUAL = "what it says of a usual job"
"""What it is at the reference, in words."""
MOST_NAMED = 2
"""Features that are named."""


def contributions(network: Network, z: FloatArray, reference: FloatArray) -> tuple[FloatArray, float]:
    """What each feature adds to the logarithm of `change`, for what the network sees of one option, (17,) each, and
    what it would be at the `reference`: together they are that logarithm.

    These are integrated gradients on the straight way from the reference (Sundararajan et al., "Axiomatic attribution
    for deep networks", 2017), which a single layer of tanh has in closed form. Where the change is bounded by
    `worth.LARGEST_CHANGE`, all parts are made less by the same factor.
    """
    way = z - reference
    start = network.hidden @ reference + network.bias
    rise = network.hidden @ way
    flat = np.abs(rise) < 1e-9
    slope = np.where(
        flat, 1.0 - np.tanh(start) ** 2, (np.tanh(start + rise) - np.tanh(start)) / np.where(flat, 1.0, rise)
    )
    parts = way * (network.skip + (network.out * slope) @ network.hidden)
    base = float(network.skip @ reference + network.out @ np.tanh(start))
    total = float(parts.sum()) + base
    bounded = LARGEST_CHANGE / abs(total) if abs(total) > LARGEST_CHANGE else 1.0
    return parts * bounded, base * bounded


def usual(ranges: FloatArray) -> FloatArray:
    """What `contributions` are counted from, (17,): the middle of what was seen in training, of a job that is new; 1
    for the constant, 0 for what is 0 or 1, and for what has no bounds."""
    found = np.where(np.isfinite(ranges).all(axis=0), ranges, 0.0).mean(axis=0)
    found[[*SWITCHES, SAID.index("age"), SAID.index("restarts")]] = 0.0
    found[0] = 1.0
    return np.asarray(found, dtype=np.float64)


def by_network(parts: FloatArray, base: float) -> str:
    """By how much the network has changed a worth, and what of it mostly, for `contributions`; empty where it has not
    to speak of."""
    total = float(parts.sum()) + base
    factor = math.exp(total)
    if abs(factor - 1.0) < 0.005:
        return ""
    toward = np.append(parts, base) * (1.0 if total > 0 else -1.0)
    most = [k for k in np.argsort(-toward, kind="stable").tolist() if toward[k] > 0][:MOST_NAMED]
    names = " and ".join(USUAL if k == len(parts) else SWITCHES.get(k) or SAID[k] for k in most)
    change = "raised" if total > 0 else "lowered"
    return f"the network has {change} its worth by {abs(factor - 1.0):.0%}, mostly because of: {names}"


def unlike(strange: BoolArray) -> tuple[DoubtReason, str]:
    """Why a job that has such features is doubted: because of itself, or only because of what the cluster is like."""
    own = strange.copy()
    own[CLUSTER_FEATURES] = False
    names = ", ".join(name for name, odd in zip(SAID, strange.tolist(), strict=True) if odd and name)
    if own.any():
        told = f"unlike all jobs of the training ({names or 'the kind of job'}): scored without the network"
        return DoubtReason.OUT_OF_TRAINING, told
    return (
        DoubtReason.CLUSTER_OUT_OF_TRAINING,
        f"the cluster is unlike those of the training ({names}): scored without the network",
    )
