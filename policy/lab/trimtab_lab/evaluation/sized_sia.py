"""A control (`evaluation.controls`): Sia told how long jobs will take, at events.

The published one does not know. This is what knowing is worth by itself; the rest is left to whoever decides better.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trimtab_policy.heuristics.sia import Sia
from trimtab_policy.placement.options import OptionMenu
from trimtab_policy.solvers.knapsack import FloatArray

_LEAST_SECONDS = 30.0
"""Added to what a job has left, so that one about to end does not outweigh all others together."""


class SizedSia(Sia):
    """Sia whose costs count the more, the less a job has left on its best option: T^-1, over the mean of all."""

    name = "sized_sia"

    def weights(self, menus: Sequence[OptionMenu]) -> FloatArray:
        """As of `Sia`."""
        short = np.array([1.0 / (_seconds_left(menu) + _LEAST_SECONDS) for menu in menus])
        return short / short.mean() if short.size else short


def _seconds_left(menu: OptionMenu) -> float:
    """On its fastest option; of a job that has none, 0: it takes no part."""
    if not menu.options:
        return 0.0
    return max(0.0, menu.job.training.steps - menu.job.steps_done) / float(menu.rate.max())
