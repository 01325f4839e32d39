"""What a job that waits is told: the words of whoever decided, and what only its own history explains."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from itertools import chain

import msgspec
from msgspec.structs import replace

from trimtab.api.base import LONG_TEXT, TEXT
from trimtab.api.convert import to_degrees, to_start_time, to_time
from trimtab.api.status import MAX_ITEMS, WORDING_HASH
from trimtab.api.status import PendingStatus as WirePending
from trimtab.observe.jobs import JobFacts
from trimtab.observe.queues import fits_nowhere
from trimtab.observe.running import pinned, startable
from trimtab_policy.types import Pending, PendingReason, Wording

OF_ITS_SHAPE = (
    PendingReason.NO_FEASIBLE_PLAN,
    PendingReason.NO_SUCH_GPU,
    PendingReason.NO_ELIGIBLE_NODE,
    PendingReason.CLUSTER_TOO_SMALL,
    PendingReason.INSUFFICIENT_GPUS,
    PendingReason.FRAGMENTED,
    PendingReason.QUOTA_EXCEEDED,
)
"""Reasons that fewer GPUs, or other degrees, might remove."""


def told(pending: Pending | None, facts: JobFacts, refused: Iterable[str]) -> WirePending | None:
    """Why the job waits, cut to what the API takes: policies may be talkative. `refused` are nodes that kube-scheduler
    would not take for it."""
    if pending is None:
        return None
    if pending.reason is PendingReason.NOT_CONSIDERED and fits_nowhere(facts):
        # It stands in line by what it was told last: forgotten, it would take the place of another job, be told the
        # same again, and give the place back, round after round.
        return facts.status.pending
    message, alternatives = pending.message, pending.alternatives
    wording = pending.wordings.get(message, Wording(message))
    if pending.reason in OF_ITS_SHAPE and (pin := _pin(facts)):
        message = f"{message[: LONG_TEXT // 2]}; {pin}"
        wording = replace(wording, timeless=f"{wording.timeless}; {pin}")
        hint = "set spec.elasticity.checkpoint.resharding if its checkpoints can be loaded with other degrees"
        alternatives = (hint, *alternatives)
    blockers = (*(f"node {node} is left out: kube-scheduler refused it" for node in sorted(refused)), *pending.blockers)
    blockers, alternatives = blockers[:MAX_ITEMS], alternatives[:MAX_ITEMS]
    lists = [[pending.wordings.get(text, Wording(text)) for text in texts] for texts in (blockers, alternatives)]
    wordings = [[wording], *lists]
    return WirePending(
        reason=pending.reason,
        message=message[:LONG_TEXT],
        blockers=tuple(item[:TEXT] for item in blockers),
        alternatives=tuple(item[:TEXT] for item in alternatives),
        start_time=to_start_time(pending.eta) if pending.eta else None,
        times=tuple(to_time(moment) for each in chain(*wordings) for moment in each.times)[:MAX_ITEMS],
        wording_hash=_hash([[each.timeless for each in listed] for listed in wordings]),
    )


def _hash(texts: list[list[str]]) -> str:
    return hashlib.sha256(msgspec.json.encode(texts)).hexdigest()[:WORDING_HASH]


def _pin(facts: JobFacts) -> str:
    """What of its past leaves it less than its spec allows; empty where nothing does."""
    saved = pinned(facts)
    if saved is None or startable(facts) == facts.requirements:
        return ""
    degrees = to_degrees(saved)
    return f"its checkpoint was saved on {degrees.gpus} GPUs with {degrees.describe()}, and is loaded on the same only"
