"""When running gangs end: what their trainings say of it, and how far that is believed.

Others plan by it: GPUs that are free in a minute are waited for, a gang that is as good as done is left alone. So a
training that says with every report that it is about to end would never have to give way, and others would wait for it
for good. A gang is therefore held to its own word: the soonest end that it has told of. Once that is over by a quarter
of the time that it spoke of, the gang is overdue, and `runtime.due` says what is thought of such gangs. A training that
gets slower by less than that, or that errs at first because it has seen few steps, loses nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from msgspec import Struct

from trimtab.observe.jobs import JobFacts
from trimtab.observe.stragglers import Verdict, expected_finish
from trimtab_policy.placement.runtime import LONGEST, within_reach

TOLERANCE = 0.25
"""Part of the time from a gang's start to the end that it spoke of, by which it may be later."""
LEAST_SECONDS = 60.0
"""Its reports are taken every 30 seconds or so (`transitions.REPORT_SECONDS`)."""


class _Word(Struct, frozen=True):
    """What the gang of one plan has said."""

    epoch: int
    soonest: float
    """POSIX seconds."""


class Ends:
    """The ends that running gangs have told of, kept from look to look. A controller that starts anew hears of them
    again: what is forgotten then is time that a gang gets once more."""

    def __init__(self) -> None:
        self._words: dict[str, _Word] = {}

    def expected(
        self, facts: JobFacts, slow: Mapping[str, Verdict], began: float, now: float
    ) -> tuple[float | None, float]:
        """When the job's gang, which has run since `began`, will have ended; None for a job without one. And until when
        that is so if nothing else is heard of it.

        POSIX seconds, and never farther away than `runtime.LONGEST`. In the past where it is overdue.
        """
        said, plan = expected_finish(facts, slow), facts.status.plan
        if said is None or plan is None:
            return said, math.inf
        finish = within_reach(said, now)
        until = finish + LONGEST if finish == said else now  # what is out of reach comes nearer all the time
        if not facts.reports_steps:
            return finish, until
        known, uid = self._words.get(facts.meta.uid), facts.meta.uid
        soonest = min(finish, known.soonest) if known and known.epoch == plan.epoch else finish
        self._words[uid] = _Word(plan.epoch, soonest)
        late = soonest + max(LEAST_SECONDS, TOLERANCE * (soonest - min(began, soonest)))
        return (soonest, math.inf) if now > late else (finish, min(until, math.nextafter(late, math.inf)))

    def forget(self, present: Collection[str]) -> None:
        """Drop what jobs said that are gone."""
        for uid in [uid for uid in self._words if uid not in present]:
            del self._words[uid]
