"""Policies that show where another one's lead comes from. Evaluations know them by name (`contestant.CONTROLS`); nobody
else should run them, so they are not registered, and no list of policies shows them.

- `sized_sia`: Sia told how long jobs will take, at events. The published one does not know; this is what knowing is
  worth by itself, and what is left to whoever decides better.
- `analytic_rudder`: rudder's form with the constants from before any training, and without its network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from trimtab_policy import policy as registry
from trimtab_policy.heuristics.sia import Sia
from trimtab_policy.learned.rudder import Rudder
from trimtab_policy.learned.worth import analytic
from trimtab_policy.placement.options import OptionMenu
from trimtab_policy.policy import Kind, Policy, RegisteredPolicy
from trimtab_policy.solvers.knapsack import FloatArray

_LEAST_SECONDS = 30.0
"""Added to what a job has left, so that one about to end does not outweigh all others together."""


class SizedSia(Sia):
    """Sia whose costs count the more, the less a job has left on its best option: T^-1, over the mean of all."""

    name = "sized_sia"
    source = "Trimtab, after Jayaram Subramanya et al., SOSP 2023"

    def weights(self, menus: Sequence[OptionMenu]) -> FloatArray:
        """As of `Sia`."""
        short = np.array([1.0 / (_seconds_left(menu) + _LEAST_SECONDS) for menu in menus])
        return short / short.mean() if short.size else short


class AnalyticRudder(Rudder):
    """Rudder before any training."""

    name = "analytic_rudder"
    kind = Kind.OPTIMISER

    def __init__(self) -> None:
        super().__init__(analytic())


_CONTROLS: Mapping[str, type[SizedSia | AnalyticRudder]] = {each.name: each for each in (SizedSia, AnalyticRudder)}


def load(name: str) -> Policy:
    """The control or registered policy of that name. Raises `policy.UnknownPolicy`."""
    return _CONTROLS[name]() if name in _CONTROLS else registry.load(name)


def entry(name: str) -> RegisteredPolicy:
    """What is known of a control or a registered policy. Raises `policy.UnknownPolicy`."""
    if name not in _CONTROLS:
        return registry.entry(name)
    made = _CONTROLS[name]
    return RegisteredPolicy(f"{__name__}:{name}", made.kind, made.source)


def _seconds_left(menu: OptionMenu) -> float:
    """On its fastest option; of a job that has none, as long as it takes no part."""
    if not menu.options:
        return 0.0
    return max(0.0, menu.job.training.steps - menu.job.steps_done) / float(menu.rate.max())
