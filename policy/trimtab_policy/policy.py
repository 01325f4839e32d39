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
    "fcfs": "trimtab_policy.heuristics.fcfs:Fcfs",
    "fixed": "trimtab_policy.heuristics.fixed:Fixed",
}


class Policy(Protocol):
    """Decides for all waiting jobs of a snapshot at once."""

    name: str

    def decide(self, snapshot: Snapshot) -> Decision:
        """Return placements for some waiting jobs, and for every other one the reason why it waits."""
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
