"""What a job learns about its own speed while it runs: seven numbers, fitted to the step times that it has seen.

The model of Pollux (OSDI'21, section 3.2; AdaptDL's `goodput.py`), which Sia uses per GPU type. With `a` samples per
GPU in a micro-batch and `K` GPUs, in seconds:

    compute = alpha_c + beta_c a
    network = 0 for K = 1, alpha_r + beta_r (K - 2)+ on one node, alpha_n + beta_n (K - 2)+ on several
    step    = (compute^gamma + network^gamma)^(1/gamma)        gamma in [1, 10]: from no overlap to nearly full

It is fitted by L-BFGS-B from a fixed start to the least sum of root-mean-square logarithmic errors of compute and step
times, plus small terms that prefer little overlap and good scaling. What nothing was seen of yet is assumed to be
free, so that jobs try it. The artifact differentiates with autograd; here the gradient is written out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, minimize

from trimtab_lab.numba_cache import jit

Floats = NDArray[np.float64]


class StepObservation(NamedTuple):
    """One measured kind of step."""

    nodes: int
    gpus: int
    local: int
    """Samples per GPU and micro-batch."""
    compute: float
    """Seconds without synchronisation."""
    step: float
    """Seconds with it."""


ALPHA_C, BETA_C, ALPHA_N, BETA_N, ALPHA_R, BETA_R, GAMMA = range(7)
"""Places of the parameters, in the artifact's order."""
NOTHING = 1e-8
"""Seconds that stand for none: logarithms of them are taken."""
START = (0.1, 0.01, 0.1, 0.01, 0.1, 0.01, 1.001)
TOLERANCE = 1e-5
"""Of the objective and of the projected gradient: the artifact stops as early, and so do its predictions."""
NETWORK_RATIO = 1.1
"""Between nodes everything takes at least so many times what it takes within one, until it was seen."""


@lru_cache(maxsize=1 << 16)
def fit(observations: tuple[StepObservation, ...]) -> Floats:
    """The seven parameters for at least one observation; the array must not be written to.

    Remembered, because jobs of one application see the same things. Raises ValueError without observations.
    """
    if not observations:
        raise ValueError("a throughput model needs at least one observation")
    nodes, gpus, local, compute, step = np.array(observations, dtype=np.float64).T
    start, low, high = _start(nodes, gpus, local, compute)
    found = minimize(
        loss,
        start,
        args=(nodes, gpus, local, np.log(compute), np.log(step)),
        jac=True,
        method="L-BFGS-B",
        bounds=Bounds(low, high),
        options={"ftol": TOLERANCE, "gtol": TOLERANCE},
    )
    parameters: Floats = found.x
    if not np.any(nodes > 1):
        parameters[ALPHA_N] = max(parameters[ALPHA_N], NETWORK_RATIO * parameters[ALPHA_R])
        parameters[BETA_N] = max(parameters[BETA_N], NETWORK_RATIO * parameters[BETA_R])
    return parameters


def _start(nodes: Floats, gpus: Floats, local: Floats, compute: Floats) -> tuple[Floats, Floats, Floats]:
    """Where to start, and the bounds; parameters without evidence are fixed where they promise most."""
    start = np.array(START)
    low = np.array([NOTHING] * GAMMA + [1.0])
    high = np.array([np.inf] * GAMMA + [10.0])
    fixed: dict[int, float] = {}
    if np.all(local == local[0]):
        # Half of the time is then taken to be constant, so that a larger batch looks worth trying.
        fixed[ALPHA_C] = float(compute.mean()) / 2
    if not np.any(nodes > 1):
        fixed |= {ALPHA_N: NOTHING, BETA_N: NOTHING}
    if not np.any((nodes == 1) & (gpus > 1)):
        fixed |= {ALPHA_R: NOTHING, BETA_R: NOTHING}
    if not np.any(gpus > 2):
        fixed |= {BETA_N: NOTHING, BETA_R: NOTHING}
    for place, value in fixed.items():
        start[place] = low[place] = high[place] = value
    return start, low, high


@jit
def loss(
    x: Floats, nodes: Floats, gpus: Floats, local: Floats, log_compute: Floats, log_step: Floats
) -> tuple[float, Floats]:
    """What is minimised over the parameters `x`, (7,), and its gradient.

    The other columns have one row per observation; times are natural logarithms of seconds.
    """
    compute_error, step_error, overlap = 0.0, 0.0, x[6]
    of_compute, of_step = np.zeros(7), np.zeros(7)
    for i in range(len(local)):
        link = 2 if nodes[i] > 1 else 4
        beyond = max(gpus[i] - 2, 1e-8)
        compute = x[0] + x[1] * local[i]
        network = x[link] + x[link + 1] * beyond if gpus[i] > 1 else 1e-8 + 1e-8 * beyond
        compute_power, network_power = compute**overlap, network**overlap
        power = compute_power + network_power
        log_total = np.log(power) / overlap
        residual = np.log(compute) - log_compute[i]
        compute_error += residual**2
        of_compute[0] += residual / compute
        of_compute[1] += residual / compute * local[i]
        residual = log_total - log_step[i]
        step_error += residual**2
        by_compute = residual * compute_power / (compute * power)
        of_step[0] += by_compute
        of_step[1] += by_compute * local[i]
        if gpus[i] > 1:
            by_network = residual * network_power / (network * power)
            of_step[link] += by_network
            of_step[link + 1] += by_network * beyond
        mean_log = (compute_power * np.log(compute) + network_power * np.log(network)) / power
        of_step[6] += residual * (mean_log - log_total) / overlap
    compute_error, step_error = np.sqrt(compute_error / len(local)), np.sqrt(step_error / len(local))
    gradient = np.zeros(7)
    if compute_error > 0:
        gradient += of_compute / (len(local) * compute_error)
    if step_error > 0:
        gradient += of_step / (len(local) * step_error)
    gradient[6] += 2e-3 * (overlap - 1)
    value = compute_error + step_error + 1e-3 * (overlap - 1) ** 2
    for link in (2, 4):
        growth = x[link + 1] / x[link]
        value += 1e-2 * growth**2
        gradient[link + 1] += 2e-2 * growth / x[link]
        gradient[link] -= 2e-2 * growth**2 / x[link]
    return value, gradient


def step_seconds(parameters: Floats, observations: Sequence[StepObservation]) -> tuple[Floats, Floats]:
    """Predicted (compute, step) seconds for the configurations of some observations; their times are not looked at."""
    nodes, gpus, local, *_ = np.array(observations, dtype=np.float64).T
    x, beyond = parameters, np.maximum(gpus - 2, NOTHING)
    within, between = x[ALPHA_R] + x[BETA_R] * beyond, x[ALPHA_N] + x[BETA_N] * beyond
    compute = x[ALPHA_C] + x[BETA_C] * local
    network = np.select([nodes > 1, gpus > 1], [between, within], NOTHING)
    return compute, (compute ** x[GAMMA] + network ** x[GAMMA]) ** (1 / x[GAMMA])
