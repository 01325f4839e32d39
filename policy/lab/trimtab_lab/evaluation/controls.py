"""Policies that show where another one's lead comes from. Evaluations know them by name (`contestant.CONTROLS`); nobody
else should run them, so they are not registered, and no list of policies shows them.

They are imported when they are asked for, and each has a module of its own: what a run follows from (`sources`) is what
its policy imports, and runs of the others are good whatever becomes of one of them.
"""

from __future__ import annotations

from importlib import import_module

from trimtab_lab.evaluation.contestant import CONTROLS
from trimtab_policy import policy as registry
from trimtab_policy.policy import Policy


def load(name: str) -> Policy:
    """The control or registered policy of that name. Raises `policy.UnknownPolicy`."""
    if name not in CONTROLS:
        return registry.load(name)
    module, _, attribute = CONTROLS[name].partition(":")
    found: Policy = getattr(import_module(module), attribute)()
    return found


def module(name: str) -> str:
    """Where the control or registered policy of that name is. Raises `policy.UnknownPolicy`."""
    where = CONTROLS[name] if name in CONTROLS else registry.entry(name).where
    return where.partition(":")[0]
