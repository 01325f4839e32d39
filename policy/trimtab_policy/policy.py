"""What a policy is, and how one is found by name.

A policy maps a `Snapshot` to a `Decision` and keeps no state that matters: asked twice, it may answer twice the same.
It need not be trusted: whatever it returns passes the shield of the operator before anything is done.
"""

from __future__ import annotations

from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:  # `trimtab.errors` imports this, and with it every command
    from trimtab_policy.types import Decision, Snapshot


class Kind(StrEnum):
    """How a policy comes to its decisions."""

    RULE = "rule"
    OPTIMISER = "optimiser"
    LEARNED = "learned"


class Entry(NamedTuple):
    """A registered policy."""

    where: str
    """`module:attribute`, imported when the policy is used."""
    kind: Kind
    source: str
    """Who described it first, for `trimtab policies`; the module says the rest."""


_RULE, _OPTIMISER, _LEARNED = Kind.RULE, Kind.OPTIMISER, Kind.LEARNED
_HEURISTICS, _LEARNERS = "trimtab_policy.heuristics", "trimtab_policy.learned"
_GAVEL = "Narayanan et al., OSDI 2020"

_POLICIES = {
    "best_fit": Entry(f"{_HEURISTICS}.best_fit:BestFit", _RULE, "Trimtab"),
    "easy_backfill": Entry(f"{_HEURISTICS}.easy_backfill:EasyBackfill", _RULE, "Lifka, JSSPP 1995"),
    "fcfs": Entry(f"{_HEURISTICS}.fcfs:Fcfs", _RULE, "queueing theory"),
    "fgd": Entry(f"{_HEURISTICS}.fgd:Fgd", _RULE, "Weng et al., ATC 2023"),
    "fixed": Entry(f"{_HEURISTICS}.fixed:Fixed", _RULE, "Dadizadeh Dargiry, MSES 2025 (baseline)"),
    "gavel": Entry(f"{_HEURISTICS}.gavel:MaxSumThroughput", _OPTIMISER, _GAVEL),
    "gavel_fifo": Entry(f"{_HEURISTICS}.gavel:Fifo", _OPTIMISER, _GAVEL),
    "gavel_ftf": Entry(f"{_HEURISTICS}.gavel:FinishTimeFairness", _OPTIMISER, _GAVEL),
    "gavel_max_min": Entry(f"{_HEURISTICS}.gavel:MaxMinFairness", _OPTIMISER, _GAVEL),
    "gavel_min_jct": Entry(f"{_HEURISTICS}.gavel:MinJct", _OPTIMISER, _GAVEL),
    "las": Entry(f"{_HEURISTICS}.las:Las", _RULE, "Gu et al. (Tiresias), NSDI 2019"),
    "pollux": Entry(f"{_HEURISTICS}.pollux:Pollux", _OPTIMISER, "Qiao et al., OSDI 2021"),
    "random": Entry(f"{_HEURISTICS}.random:Random", _RULE, "baseline"),
    "round_robin": Entry(f"{_HEURISTICS}.round_robin:RoundRobin", _RULE, "queueing theory"),
    "sia": Entry(f"{_HEURISTICS}.sia:Sia", _OPTIMISER, "Jayaram Subramanya et al., SOSP 2023"),
    "sjf": Entry(f"{_HEURISTICS}.sjf:Sjf", _RULE, "queueing theory"),
    "srsf": Entry(f"{_HEURISTICS}.srsf:Srsf", _RULE, "Gu et al. (Tiresias), NSDI 2019"),
    "srtf": Entry(f"{_HEURISTICS}.srtf:Srtf", _RULE, "queueing theory"),
    "static_affinity": Entry(f"{_HEURISTICS}.static_affinity:StaticAffinity", _RULE, "ADLRO, Freederia (baseline)"),
    "themis": Entry(f"{_HEURISTICS}.themis:Themis", _OPTIMISER, "Mahajan et al., NSDI 2020"),
    "dqn_cnn": Entry(f"{_LEARNERS}.dqn_cnn:DqnCnn", _LEARNED, "ADLRO, Freederia Research Archive"),
    "q_learning": Entry(f"{_LEARNERS}.tables:QLearning", _LEARNED, "Dadizadeh Dargiry, MSES 2025"),
    "sac_imitation": Entry(f"{_LEARNERS}.sac_imitation:SacImitation", _LEARNED, "RLAlloc4LM; Guo et al., IoT-J 2021"),
    "sarsa": Entry(f"{_LEARNERS}.tables:Sarsa", _LEARNED, "Dadizadeh Dargiry, MSES 2025"),
    "vdn": Entry(f"{_LEARNERS}.vdn:Vdn", _LEARNED, "ADLRO (future work); Sunehag et al., AAMAS 2018"),
}


class Policy(Protocol):
    """Decides for all jobs of a snapshot at once."""

    name: str

    def decide(self, snapshot: Snapshot) -> Decision:
        """Return placements for some waiting jobs, and for every other one the reason why it waits.

        Running jobs may be moved (a placement) or stopped (`stops`) if they are preemptible, and only then.
        """
        ...


class PolicyFailure(Exception):
    """A policy, or a stage of a decision, was late, raised, or returned something that is no decision.

    `reason` is one word of a closed list (`scheduling.results.Fallback`), `kind` the type of what was raised, if any.
    """

    def __init__(self, message: str, *, reason: str = "error", kind: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.kind = kind


class UnknownPolicy(ValueError):
    """No policy of that name is registered."""


def names() -> list[str]:
    """Names of all registered policies."""
    return sorted(_POLICIES)


def entry(name: str) -> Entry:
    """What is registered under that name. Raises `UnknownPolicy`."""
    if name not in _POLICIES:
        raise UnknownPolicy(f"unknown policy {name!r}; registered are: {', '.join(names())}")
    return _POLICIES[name]


def load(name: str) -> Policy:
    """Return the policy of that name, importing its module only now. Raises `UnknownPolicy`."""
    module, _, attribute = entry(name).where.partition(":")
    policy: Policy = getattr(import_module(module), attribute)()
    return policy
