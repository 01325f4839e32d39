"""What a policy is, and how one is found by name.

A policy maps a `Snapshot` to a `Decision` and keeps no state that matters: asked twice, it may answer twice the same.
It need not be trusted: whatever it returns passes the shield of the operator before anything is done.
"""

from __future__ import annotations

from importlib import import_module
from typing import Protocol

from trimtab_policy.types import Decision, Snapshot

_POLICIES = {
    "best_fit": "trimtab_policy.heuristics.best_fit:BestFit",
    "easy_backfill": "trimtab_policy.heuristics.easy_backfill:EasyBackfill",
    "fcfs": "trimtab_policy.heuristics.fcfs:Fcfs",
    "fgd": "trimtab_policy.heuristics.fgd:Fgd",
    "fixed": "trimtab_policy.heuristics.fixed:Fixed",
    "gavel": "trimtab_policy.heuristics.gavel:MaxSumThroughput",
    "gavel_fifo": "trimtab_policy.heuristics.gavel:Fifo",
    "gavel_ftf": "trimtab_policy.heuristics.gavel:FinishTimeFairness",
    "gavel_max_min": "trimtab_policy.heuristics.gavel:MaxMinFairness",
    "gavel_min_jct": "trimtab_policy.heuristics.gavel:MinJct",
    "las": "trimtab_policy.heuristics.las:Las",
    "pollux": "trimtab_policy.heuristics.pollux:Pollux",
    "random": "trimtab_policy.heuristics.random:Random",
    "round_robin": "trimtab_policy.heuristics.round_robin:RoundRobin",
    "sia": "trimtab_policy.heuristics.sia:Sia",
    "sjf": "trimtab_policy.heuristics.sjf:Sjf",
    "srsf": "trimtab_policy.heuristics.srsf:Srsf",
    "srtf": "trimtab_policy.heuristics.srtf:Srtf",
    "static_affinity": "trimtab_policy.heuristics.static_affinity:StaticAffinity",
    "themis": "trimtab_policy.heuristics.themis:Themis",
}


class Policy(Protocol):
    """Decides for all jobs of a snapshot at once."""

    name: str

    def decide(self, snapshot: Snapshot) -> Decision:
        """Return placements for some waiting jobs, and for every other one the reason why it waits.

        Running jobs may be moved (a placement) or stopped (`stops`) if they are preemptible, and only then.
        """
        ...


class UnknownPolicy(ValueError):
    """No policy of that name is registered."""


def names() -> list[str]:
    """Names of all registered policies."""
    return sorted(_POLICIES)


def load(name: str) -> Policy:
    """Return the policy of that name, importing its module only now. Raises `UnknownPolicy`."""
    if name not in _POLICIES:
        raise UnknownPolicy(f"unknown policy {name!r}; registered are: {', '.join(names())}")
    module, _, attribute = _POLICIES[name].partition(":")
    policy: Policy = getattr(import_module(module), attribute)()
    return policy
