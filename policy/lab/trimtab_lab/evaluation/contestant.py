"""Who takes part in a comparison: a policy, what breaks its ties, how it decides, and by what.

`NAME`, `NAME@SEED`, and behind either `+controller` or `+paper`. Under the controller a policy is one stage of the
pipeline that decides live (`sim.controller`), with the settings that Trimtab has by default. As in its paper it decides
alone: nothing is reserved, nobody makes room, and it touches whom it likes, in rounds where its authors have them.

A policy that is told the run times of all jobs plays another game than one that does without, even if both stand in
one table since both could have known the same; so tables mark who uses them. Decisions of the others do not change
whatever run times they are told, which a test asserts of all that are registered.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Decider(StrEnum):
    """What turns a policy's answers into decisions."""

    CONTROLLER = "controller"
    PAPER = "paper"

    @property
    def described(self) -> str:
        """In words, for notes below tables."""
        return _DESCRIBED[self]


_DESCRIBED = {
    Decider.CONTROLLER: "as the controller does, with its default settings",
    Decider.PAPER: "alone, as published",
}


class Contestant(NamedTuple):
    """A policy as it takes part."""

    name: str
    """As registered."""
    seed: int | None
    """Breaks ties; None: the policy's own way."""
    decider: Decider | None
    """None: whatever is usual for the workload."""


def contestant(text: str) -> Contestant:
    """Raises ValueError for what is not written as above; whether such a policy is registered is not looked at."""
    said, plus, how = text.partition("+")
    name, at, seed = said.partition("@")
    if at and not seed.isdecimal():
        raise ValueError(f"{text!r}: write NAME@SEED, such as {name}@3")
    if plus and how not in set(Decider):
        raise ValueError(f"{text!r}: write {said}+controller or {said}+paper, or {said} alone for what is usual")
    return Contestant(name, int(seed) if at else None, Decider(how) if plus else None)


_LEARNED = frozenset({"dqn_cnn", "rudder", "sac_imitation", "vdn"})
CONTROLS = {
    "analytic_rudder": "trimtab_lab.evaluation.analytic_rudder:AnalyticRudder",
    "sized_sia": "trimtab_lab.evaluation.sized_sia:SizedSia",
}
"""Policies that only evaluations know (`evaluation.controls`) -> `module:class`."""
_USE_SIZES = _LEARNED | set(CONTROLS) | {"easy_backfill", "gavel_ftf", "gavel_min_jct", "sjf", "srsf", "srtf", "themis"}


def uses_sizes(policy: str) -> bool:
    """Whether the policy, named as a contestant, decides by the work that jobs have or have left."""
    return contestant(policy).name in _USE_SIZES
