"""What each option is worth to the cluster: an analytic form, and a small network that changes it (`learned.rudder`).

Everything here is plain arrays, and only such numpy as numba compiles, too: the simulator of the training runs these
very functions as machine code (`trimtab_lab.kernel.rescaling`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab_policy.learned.guards import LONGEST_WAIT

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

LEFT, BEST, THRIFTY, COST, AGE, RESTARTS, URGENCY, SPAN = range(8)
"""Columns of jobs: steps left; steps/s of the fastest and of the thriftiest option; price of a step per second there;
seconds since submission; starts after the first; factor of the worth; seconds over which speed counts (0: H)."""
RATE, PRICE, PAUSE, STAYS, CHANGES, GPUS = range(6)
"""Columns of options: steps/s; part of the cluster that it takes, GPUs weighted by their peak; seconds until it
computes; whether the job holds it (0 or 1); whether the job holds another one; GPUs."""
CONSTANTS = (
    "q", "kappa", "b", "log_h", "pause", "reference", "age", "q_load", "b_load", "thrift", "thrift_load", "keep",
    "restarts", "patience", "q_fixed", "kappa_fixed",
)  # fmt: skip
"""`..._fixed` is added for jobs that cannot be moved later; `patience`: what comes later is worth so much of what is
there, because others may have taken it by then."""
ANALYTIC = np.array([0.2, 4.5, 0.5, math.log(300.0), 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.9, 0.0, 0.0])
"""Constants before any training, in the order of `CONSTANTS`."""
PATIENCE = CONSTANTS.index("patience")
FEATURES, HIDDEN = 17, 12
SHAPES = {
    "constants": (len(CONSTANTS),),
    "skip": (FEATURES,),
    "hidden": (HIDDEN, FEATURES),
    "bias": (HIDDEN,),
    "out": (HIDDEN,),
}
"""Arrays of the weights."""
RANGES = "ranges"
"""Array of a file of weights besides: lowest and highest value of each feature in training, (2, 17)."""
WORK, LOAD, MEAN_WORK, SPREAD_OF_WORK = 1, 7, 13, 14
"""Features: the work that a job has left, and three of the cluster as a whole."""
WORK_SCALE = 4.0  # logarithm of seconds by which a feature of work grows by one
SAID = (
    "", "work left", "speed beside the fastest option", "speed for the GPUs", "part of the cluster", "", "",
    "load of the cluster", "place among the jobs", "pause beside the work left", "age", "restarts", "number of GPUs",
    "mean work of all jobs", "spread of the work of all jobs", "part of the cluster that stays", "",
)  # fmt: skip
"""The features in words; empty for those that are 0 or 1."""
LARGEST_CHANGE = 2.0
"""Of the logarithm of a worth, by the network."""


ALMOST_NOTHING = 1e-6
"""What the best option is worth of a job of which none is worth anything."""


class Network(NamedTuple):
    """What was learned; every array is float64."""

    constants: FloatArray
    """(16,), see `CONSTANTS`."""
    skip: FloatArray
    """(17,)"""
    hidden: FloatArray
    """(12, 17)"""
    bias: FloatArray
    """(12,)"""
    out: FloatArray
    """(12,)"""


class Trained(NamedTuple):
    """A network, and what it was trained on."""

    network: Network
    ranges: FloatArray
    """(2, 17), see `RANGES`."""


def analytic() -> Network:
    """The network of zeros."""
    return Network(ANALYTIC.copy(), *(np.zeros(shape) for name, shape in SHAPES.items() if name != "constants"))


def values(network: Network, jobs: FloatArray, options: FloatArray, owner: IntArray) -> FloatArray:
    """What each option is worth, (m,): n jobs (n, 8) and their m options (m, 6), `owner` (m,) the row of each's job."""
    load, log_w = pressure(network, jobs)
    worth = analytic_worth(network, load, log_w, jobs, options, owner)
    if not learned(network):
        return worth
    return worth * change(network, features(load, log_w, jobs, options, owner))


# None of what follows calls the other, so that each can be compiled by itself.


def pressure(network: Network, jobs: FloatArray) -> tuple[float, FloatArray]:
    """ln of the part of the cluster that all jobs would take at their thriftiest; ln of how urgent each is, (n,), by
    the work that it has left and by its age, over the mean of all."""
    constants = network.constants
    load = np.log(np.sum(jobs[:, 3] * jobs[:, 2]) + 0.05)
    seconds = jobs[:, 0] / jobs[:, 1] + 30.0
    log_w = constants[6] * np.log(1.0 + jobs[:, 4] / seconds) - (constants[2] + constants[8] * load) * np.log(seconds)
    return load, log_w - np.mean(log_w)


def analytic_worth(
    network: Network, load: float, log_w: FloatArray, jobs: FloatArray, options: FloatArray, owner: IntArray
) -> FloatArray:
    """The form at the top of this module, (m,); `load` and `log_w` as of `pressure`, the others as of `values`."""
    constants = network.constants
    left, best, thrifty = jobs[:, 0], jobs[:, 1], jobs[:, 2]
    age, restarts, span = jobs[:, 4], jobs[:, 5], jobs[:, 7]
    rate, price, pause = options[:, 0], options[:, 1], options[:, 2]
    stays, changes = options[:, 3], options[:, 4]

    fixed = np.where(span > 0.0, 1.0, 0.0)[owner]
    power = constants[0] + constants[7] * load + constants[14] * fixed
    power = np.where(np.abs(power) < 1e-3, 1e-3, power)
    w = np.exp(np.minimum(log_w, 30.0)) * jobs[:, 6]
    reference = (1.0 - constants[5]) * np.log(thrifty) + constants[5] * np.log(best)
    horizon = np.where(span > 0.0, span, math.exp(min(constants[3], 14.0)))
    kept = np.maximum((age - restarts * 60.0) / (age + 60.0), 1e-3)

    computing = np.minimum(left[owner] / rate, horizon[owner])
    delay = pause * np.where(changes > 0.0, constants[4], 1.0)
    log_x = np.log(rate * computing / (computing + delay)) - reference[owner]
    log_x = log_x + constants[12] * changes * np.log(kept[owner])
    gain = (np.exp(np.minimum(power * log_x, 30.0)) - 1.0) / power
    worth: FloatArray = w[owner] * (gain + constants[1] + constants[15] * fixed + constants[11] * stays)
    worth -= constants[9] * math.exp(min(constants[10] * load, 30.0)) * price
    return worth


def at_least_something(first: IntArray, worth: FloatArray) -> FloatArray:
    """The worth of all options, (m,), where a job of which none is worth anything has almost nothing instead: it is
    over sooner than it begins, or worth less than its GPUs, and would else wait for ever beside idle ones. What anybody
    else wants of them is worth more. The order of its options stays. `first` (n + 1,): options of job j are those from
    first[j] to first[j + 1]."""
    found = worth.copy()
    for j in range(len(first) - 1):
        best = worth[first[j] : first[j + 1]].max()
        if best <= 0.0:
            for k in range(first[j], first[j + 1]):
                found[k] = ALMOST_NOTHING * math.exp(worth[k] - best)
    return found


def learned(network: Network) -> bool:
    """Whether the network does anything."""
    return bool(np.any(network.skip) or np.any(network.out))


def features(load: float, log_w: FloatArray, jobs: FloatArray, options: FloatArray, owner: IntArray) -> FloatArray:
    """What the network sees of each option, (17, m); arguments as of `analytic_worth`."""
    left, best, age = jobs[:, 0], jobs[:, 1], jobs[:, 4]
    rate, price = options[:, 0], options[:, 1]
    seconds = left / best + 30.0
    log_seconds = np.log(seconds)
    ranks = np.empty(len(log_w))
    ranks[np.argsort(log_w)] = np.arange(len(log_w)) / len(log_w)
    z = np.empty((FEATURES, len(rate)))
    z[0] = 1.0
    z[1] = log_seconds[owner] / WORK_SCALE - 2.0
    z[2] = np.log(rate / best[owner]) / 2.0
    z[3] = np.log(jobs[:, 3][owner] * rate / price)
    z[4] = np.log(price) / 4.0 + 1.0
    z[5] = options[:, 3]
    z[6] = options[:, 4]
    z[7] = load
    z[8] = 2.0 * ranks[owner] - 1.0
    z[9] = np.log(options[:, 2] * rate / left[owner] + 0.01) / 3.0
    z[10] = np.log(1.0 + age[owner] / seconds[owner])
    z[11] = np.minimum(jobs[:, 5][owner], 10.0) / 5.0
    z[12] = np.log(options[:, 5]) / 2.0 - 1.0
    z[13] = np.mean(log_seconds) / WORK_SCALE - 2.0
    z[14] = np.std(log_seconds) - 1.0
    z[15] = np.sum(price * options[:, 3])
    z[16] = np.where(jobs[:, 7] > 0.0, 1.0, 0.0)[owner]
    return z


def change(network: Network, z: FloatArray) -> FloatArray:
    """Factor of each worth, (m,), for what the network sees of it, (17, m)."""
    act = np.zeros(z.shape[1])
    for k in range(FEATURES):
        act += network.skip[k] * z[k]
    for h in range(HIDDEN):
        if network.out[h] != 0.0:
            inner = np.full(z.shape[1], network.bias[h])
            for k in range(FEATURES):
                inner += network.hidden[h, k] * z[k]
            act += network.out[h] * np.tanh(inner)
    found: FloatArray = np.exp(np.minimum(np.maximum(act, -LARGEST_CHANGE), LARGEST_CHANGE))
    return found


def on_purpose(
    jobs: FloatArray, options: FloatArray, owner: IntArray, waits: FloatArray, waited: FloatArray
) -> BoolArray:
    """Options that a job could wait for, (m,): only if it cannot be moved later, for the others can start at once; and
    only for what comes before it has waited, in all, for `LONGEST_WAIT` or for as long as it would take on what is
    there now, whichever is more: so it ends at most twice as late as that, and has the better GPUs from then on.

    `waits` (m,): seconds until there are GPUs for an option, 0 where there are now, infinite where that is not in
    sight. `waited`: seconds that each job has waited already, (n,).
    """
    now = np.zeros(len(jobs))
    for k in range(len(owner)):
        if waits[k] <= 0.0 and options[k, 0] > now[owner[k]]:
            now[owner[k]] = options[k, 0]
    longest = np.maximum(LONGEST_WAIT, np.where(now > 0.0, jobs[:, 0] / np.where(now > 0.0, now, 1.0), 0.0))
    found: BoolArray = (waits > 0.0) & (waits + waited[owner] <= longest[owner]) & (jobs[:, 7][owner] > 0.0)
    return found


def best_later(
    patience: float, count: int, owner: IntArray, asked: BoolArray, then: FloatArray
) -> tuple[FloatArray, IntArray]:
    """What waiting is worth to each of `count` jobs, and the option that it is for (-1: none), (count,) each.

    `then` (m,): what the options are worth that are `asked` for, if the job waits for them.
    """
    later, choice = np.zeros(count), np.full(count, -1)
    for k in range(len(owner)):
        if asked[k] and then[k] * patience > later[owner[k]]:
            later[owner[k]], choice[owner[k]] = then[k] * patience, k
    return later, choice
