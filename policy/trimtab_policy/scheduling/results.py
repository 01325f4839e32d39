"""What a decision has come to, once all who have a say in it were heard."""

from __future__ import annotations

from msgspec import Struct

from trimtab_policy.scheduling.isolation import Isolated
from trimtab_policy.scheduling.reservations import Reservation
from trimtab_policy.scheduling.shield import BrokenRule
from trimtab_policy.types import Doubt, Grant, Pending, Placement, Stop, StopCause


class Fallback(Struct, frozen=True):
    """A policy, or a stage of the decision, failed."""

    policy: str
    reason: str
    """`unloadable`, `deadline`, `busy`, `error`, `invalid` or `nan`: a metric label."""
    message: str
    jobs: tuple[str, ...]
    """UIDs of the jobs that it was asked about."""
    instead: str = "another one decided"
    """What was done about it."""
    kind: str = ""
    """Type of the error, where one was raised."""


class Move(Struct, frozen=True):
    """A running job goes on with another placement."""

    placement: Placement
    policy: str
    """Who wants it."""
    cause: StopCause
    beneficiary: str = ""
    """UID of the waiting job that it moves for; empty where it moves for its own good."""


class Outcome(Struct, frozen=True):
    """A decision that has passed the shield, and how it came about."""

    policies: dict[str, str]
    """UID of a waiting job -> name of the policy that answered for it."""
    placements: tuple[Placement, ...]
    """Of jobs that waited."""
    pending: tuple[Pending, ...]
    """Exactly one for every waiting job that has no placement."""
    refused: tuple[BrokenRule, ...]
    fallbacks: tuple[Fallback, ...]
    seconds: dict[str, float]
    """Policy -> time it took."""
    stops: tuple[Stop, ...] = ()
    """Running jobs that give way, each for a beneficiary."""
    moves: tuple[Move, ...] = ()
    """Running jobs that go on elsewhere, or with other GPUs."""
    waits: dict[str, tuple[str, ...]] = {}
    """UID of a job with a placement -> UIDs of those whose pods must be gone before its pods come."""
    grants: dict[str, tuple[Grant, ...]] = {}
    """UID of a job with a placement, or that moves -> its GPUs in the order in which it was given them."""
    reserved: tuple[Reservation, ...] = ()
    """What is kept for jobs that came first."""
    stages: dict[str, float] = {}
    """Stage after the policies -> time it took."""
    isolated: tuple[Isolated, ...] = ()
    """Jobs that were set aside because the decision fails with them."""
    doubts: dict[str, tuple[Doubt, ...]] = {}
    """Policy -> where it did without what it has learned."""
