"""HyperScore of the ADLRO paper (section 7): one figure for a policy, stretched where it is good.

    HyperScore = 100 * (1 + sigma(beta ln V + gamma)^kappa)      beta = 5, gamma = -ln 2, kappa = 2.1

The paper leaves open what V is: "the value score". Here V is the geometric mean of three parts in (0, 1], one for each
column of its Table 1, each the achieved over the best that is possible:

- completion time: lower bound of the mean JCT over the mean JCT
- throughput: lower bound of the makespan over the makespan, the jobs being the same
- utilisation: productive GPU-time over all GPU-time there

A geometric mean, since ln V adds their logarithms up: to halve any of them costs the same, and no good part outweighs a
bad one as it could in a sum. V = 1 cannot be surpassed, so no unit and no opponent sets the scale. With these constants
the score goes from 100 (V to 0) to 100 + 100 / 3^2.1 = 109.96 (V = 1): small differences are what it shows.
"""

from __future__ import annotations

import math

BETA = 5.0
GAMMA = -math.log(2)
KAPPA = 2.1
_ROUNDING = 1e-6
"""By which a part may exceed 1: what simulated times are off by rounding."""


def hyperscore(value: float) -> float:
    """The score of a value V > 0, e.g. of `value`. Raises ValueError for one that is not positive and finite."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"V is {value:g}: the HyperScore takes its logarithm, it must be positive and finite")
    sigmoid = 1 / (1 + math.exp(-(BETA * math.log(value) + GAMMA)))
    return float(100 * (1 + sigmoid**KAPPA))


def value(
    mean_jct: float, least_mean_jct: float, makespan: float, least_makespan: float, goodput_utilisation: float
) -> float:
    """V of a run, in (0, 1]: times in any unit, each in that of its bound (`bounds.Bound`, `metrics.Summary`).

    Raises ValueError where a part is not in (0, 1]: a time below its bound, or nothing that was done.
    """
    parts = {
        "least_mean_jct / mean_jct": least_mean_jct / mean_jct if mean_jct > 0 else math.nan,
        "least_makespan / makespan": least_makespan / makespan if makespan > 0 else math.nan,
        "goodput_utilisation": goodput_utilisation,
    }
    for name, part in parts.items():
        if not 0 < part <= 1 + _ROUNDING:
            raise ValueError(f"{name} is {part:g}: must be above 0 and at most 1")
    return math.prod(min(1.0, part) for part in parts.values()) ** (1 / len(parts))
