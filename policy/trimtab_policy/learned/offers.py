"""What all learned policies have in common: they are asked about one waiting job at a time (`encode`).

The order of the queue, quotas, selectors and where gangs go are the same as for every other policy; running jobs go on.
Whoever has waited for `PATIENCE_SECONDS` is given something as soon as there is anything, whatever was learned.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from trimtab_policy.observation.encode import OfferBatch, OfferScene
from trimtab_policy.placement.candidates import nodes_for, placement
from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.placement.pending_reasons import why_pending
from trimtab_policy.placement.queueing import serve
from trimtab_policy.types import Decision, Job, Pending, PendingReason, Placement, Snapshot

Answers = NDArray[np.int64]

PATIENCE_SECONDS = 86400.0
"""Age from which a job is no longer left waiting while something that it could run on is free: against starvation."""


class BadAnswer(ValueError):
    """A learned policy has chosen what may not be chosen, or computed what is no number."""


class OfferPolicy(ABC):
    """A policy that answers offers; subclasses say how."""

    name: str

    @abstractmethod
    def choose(self, offers: OfferBatch) -> Answers:
        """(n,) the option that each of n jobs shall have, or `offers.wait`; only what `offers.mask` allows."""

    def decide(self, snapshot: Snapshot) -> Decision:
        """Offer every waiting job in turn. Raises BadAnswer, and what loading the weights raises."""
        capacity = Capacity(snapshot)
        scene = OfferScene(snapshot, capacity)
        refused: set[str] = set()

        def choose(snapshot: Snapshot, capacity: Capacity, job: Job) -> Placement | None:
            found = scene.offer(job)
            if found is None:
                return None
            offers, options = found
            if snapshot.time - job.created >= PATIENCE_SECONDS:
                offers = _must_start(offers)
            answer = checked(self.name, offers, self.choose(offers))
            if answer == offers.wait:
                refused.add(job.uid)
                return None
            chosen = options[answer]
            shares = nodes_for(capacity, job, chosen)
            if shares is None:
                raise BadAnswer(f"{self.name}: {chosen.describe()} of {job.name} was on offer and has no room")
            scene.started(job)
            what = f"{chosen.describe()}, {chosen.option.plan.describe()}"
            return placement(capacity, job, chosen, shares, f"{what}: chosen by {self.name}")

        def explain(snapshot: Snapshot, capacity: Capacity, job: Job) -> Pending:
            if job.uid not in refused:
                return why_pending(snapshot, capacity, job)
            message = f"{self.name} keeps the free GPUs for other jobs, or waits for better ones"
            return Pending(job.uid, PendingReason.BEHIND_OTHERS, message)

        return serve(self.name, snapshot, capacity, snapshot.waiting(), choose, explain=explain)


def _must_start(offers: OfferBatch) -> OfferBatch:
    mask = offers.mask.copy()
    mask[:, offers.wait] = False
    return offers._replace(mask=mask)


def checked(name: str, offers: OfferBatch, answers: Answers) -> int:
    """The answer to a single offer. Raises BadAnswer for one that was not on offer."""
    answer = int(answers[0])
    if not 0 <= answer <= offers.wait or not offers.mask[0, answer]:
        raise BadAnswer(f"{name} answered {answer}, which was not on offer")
    return answer


def best(name: str, values: NDArray[np.float32], offers: OfferBatch) -> Answers:
    """(n,) what is allowed and worth most, of values (n, options + 1). Raises BadAnswer if one is no number."""
    if not np.isfinite(values[offers.mask]).all():
        raise BadAnswer(f"{name}: its network computed a value that is no number; its weights or inputs are broken")
    found: Answers = np.where(offers.mask, values, -np.inf).argmax(axis=1)
    return found
