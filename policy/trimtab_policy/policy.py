"""What a policy is, and how one is found by name: any distribution may offer some (`trimtab.policies`).

A policy maps a `Snapshot` to a `Decision` and keeps no state that matters: asked twice, it may answer twice the same.
It need not be trusted: whatever it returns passes the shield of the operator before anything is done.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from trimtab_policy.inputs.nearest import did_you_mean
from trimtab_policy.inputs.plugins import offered

if TYPE_CHECKING:  # `trimtab.errors` imports this, and with it every command
    from trimtab_policy.types import Decision, Snapshot


GROUP = "trimtab.policies"
"""Entry points by which distributions offer policies: `name = "module:Class"`."""


class Kind(StrEnum):
    """How a policy comes to its decisions."""

    RULE = "rule"
    OPTIMISER = "optimiser"
    LEARNED = "learned"


class RegisteredPolicy(NamedTuple):
    """A registered policy."""

    where: str
    """`module:attribute` of its class."""
    kind: Kind
    source: str
    """Who described it first, for `trimtab policies`; the module says the rest."""
    rescales: bool = False
    """Whether it decides about elastic jobs that run as it does about those that wait: it is asked although nobody
    waits, and nobody else resizes them (`scheduling.resize`)."""
    schema: str = ""
    """What its weights take as input, as their card has it; empty for offers (`observation.encode`)."""


class Policy(Protocol):
    """Decides for all jobs of a snapshot at once. What is registered is a class that takes no arguments."""

    name: str
    """As registered."""

    def decide(self, snapshot: Snapshot) -> Decision:
        """Return placements for some waiting jobs, and for every other one the reason why it waits.

        Running jobs may be moved (a placement) or stopped (`stops`) if they are preemptible, and only then.
        """
        ...


@runtime_checkable
class Weighs(Protocol):
    """A policy that can say what an option is worth to a job beside what it decides."""

    def weigh(self, snapshot: Snapshot, job: str, gpu_type: str, gpus: int) -> str | None:
        """In words; `job` is a UID. None for a job that it does not decide about, or an option that it does not have.

        Raises like `decide`.
        """
        ...


@runtime_checkable
class Solves(Protocol):
    """A policy that can say how far its assignments may be from the best."""

    largest_gap: float
    """The largest certified gap of all its decisions, as a part of the worth."""


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
    return sorted(offered(GROUP))


@cache
def entry(name: str) -> RegisteredPolicy:
    """What is registered under that name; its module is imported. Raises `UnknownPolicy`."""
    found, where = _registered(name), offered(GROUP)[name].value
    kind, source = getattr(found, "kind", None), getattr(found, "source", "")
    if not isinstance(kind, Kind) or not isinstance(source, str):
        raise UnknownPolicy(f"policy {name!r} ({where}) does not say what it is: its class needs `kind`, a policy.Kind")
    return RegisteredPolicy(
        where, kind, source, getattr(found, "rescales", False) is True, str(getattr(found, "schema", ""))
    )


def rescales(name: str) -> bool:
    """`RegisteredPolicy.rescales` of a policy; False for one that is not registered, or cannot be imported."""
    try:
        return entry(name).rescales
    except UnknownPolicy:
        return False


def load(name: str) -> Policy:
    """Return the policy of that name, importing its module only now. Raises `UnknownPolicy`."""
    policy: Policy = _registered(name)()
    return policy


def _registered(name: str) -> Any:
    if name not in offered(GROUP):
        near = did_you_mean(name, names())
        raise UnknownPolicy(f"unknown policy {name!r}{near or ';'} registered are: {', '.join(names())}")
    where = offered(GROUP)[name]
    try:
        return where.load()
    except Exception as error:  # whatever somebody else's module raises while it is imported
        raise UnknownPolicy(f"policy {name!r} cannot be imported from {where.value}: {error}") from error
