"""What was learned from running jobs, as a ConfigMap keeps it: text, and back.

One key holds all of it as JSON with a version. What cannot be understood is an error that says why, never a new start:
what another version, or a person, has written there is not ours to overwrite.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from trimtab.errors import TrimtabError
from trimtab_policy.perf.correction import Corrections
from trimtab_policy.perf.lessons import State
from trimtab_policy.types import Snapshot

KEY: Final = "state.json"
LARGEST: Final = 900_000
"""Bytes; a ConfigMap holds a MiB."""


class NotUnderstood(TrimtabError):
    """The ConfigMap holds what this Trimtab cannot read."""


def read_calibration(data: Mapping[str, str]) -> State:
    """What was learned. Raises NotUnderstood."""
    text = data.get(KEY)
    if text is None:
        raise NotUnderstood(f"it has no key {KEY}: delete it, to start anew")
    try:
        return msgspec.json.decode(text, type=State)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise NotUnderstood(f"{KEY}: {error}; delete the ConfigMap, to start anew") from error


def written(state: State) -> dict[str, str]:
    """The data of the ConfigMap. Should it ever be too long, those keys go that were not seen for longest."""
    while len(text := msgspec.json.encode(state)) > LARGEST:
        state = replace(state, known=state.known[len(state.known) // 8 + 1 :])
    return {KEY: text.decode()}


def corrected(snapshot: Snapshot, known: Corrections) -> Snapshot:
    """The snapshot with jobs that wait for a plan knowing what their predictions are to be corrected by.

    Those that run do not: what nothing was seen of would seem better than what they have, and they would move for it.
    """
    if not known.known:
        return snapshot
    jobs = (job if job.placement else replace(job, corrections=known.of(job)) for job in snapshot.jobs)
    return replace(snapshot, jobs=tuple(jobs))
