"""Random: waiting jobs in random order, each on a random one of the candidates that have room.

The least that any other policy must beat. The dice are cast by what the snapshot says (time, nodes, jobs), so that the
same snapshot always gives the same decision.
"""

from __future__ import annotations

from hashlib import blake2b
from random import Random as Dice

import msgspec

from trimtab_policy.placement.candidates import candidates, placement, with_room
from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.placement.queueing import serve
from trimtab_policy.policy import Kind
from trimtab_policy.types import Decision, Job, Placement, Snapshot


class Random:
    """Uniform among what fits."""

    name = "random"
    kind = Kind.RULE
    source = "baseline"

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def decide(self, snapshot: Snapshot) -> Decision:
        """Start jobs as the dice fall; nobody blocks anybody."""
        dice = Dice(self._digest(snapshot))  # noqa: S311 - reproducible by its seed

        def choose(snapshot: Snapshot, capacity: Capacity, job: Job) -> Placement | None:
            known = candidates(snapshot, capacity, job)
            for candidate, shares in with_room(capacity, job, dice.sample(known, len(known))):
                what = candidate.describe_with_plan()
                return placement(capacity, job, candidate, shares, f"{what}: by chance")
            return None

        waiting = snapshot.waiting()
        return serve(self.name, snapshot, Capacity(snapshot), dice.sample(waiting, len(waiting)), choose)

    def _digest(self, snapshot: Snapshot) -> bytes:
        free = [(node.name, node.free_gpus) for node in snapshot.nodes]
        said = self.seed, snapshot.time, free, [job.uid for job in snapshot.jobs]
        return blake2b(msgspec.msgpack.encode(said), digest_size=16).digest()
