"""Jobs as policies see them: what their own objects say, and what the rest of the cluster makes of it.

Of a gang that runs and of which nothing has changed there is nothing new but the time: what it would lose by a stop,
and what it has had of the cluster. So a job is kept as it was shown, and put together anew when one of the things that
it is made of is another one, or when a time has come that it depends on. What grows with the time is brought up to date
every few seconds: as long as it is not, a running job is the very same one, and all that others make of it is, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Set
from functools import partial
from typing import Any

from msgspec import Raw, Struct
from msgspec.structs import replace

from trimtab.kube.objects import PriorityClassObject
from trimtab.observe.eligibility import Eligibility
from trimtab.observe.ends import Ends
from trimtab.observe.failures import Held
from trimtab.observe.jobs import JobFacts
from trimtab.observe.kept import Kept, changed
from trimtab.observe.node_usage import NodeUsage
from trimtab.observe.nodes import NodeFacts
from trimtab.observe.queues import Queues
from trimtab.observe.running import Running, UsualRatio
from trimtab.observe.stragglers import Verdict
from trimtab.telemetry.isolation import isolated
from trimtab_policy.placement.runtime import holder
from trimtab_policy.types import Job, Pending, PendingReason

NEVER = "Never"
"""`preemptionPolicy` of a PriorityClass whose jobs stop nobody."""
CANNOT_BE_SHOWN = "its spec, status or template make no sense together: this is a bug of Trimtab, please report it"

GROWS_SECONDS = 10.0
"""How old at most what grows with the time may be: minutes are what decides about a stop. Where pods run faster than
predicted, so much sooner."""

NO_NODES: frozenset[str] = frozenset()


class Surroundings(Struct, frozen=True):
    """What a job is shown by that is the same for all jobs."""

    takes: Mapping[str, NodeFacts]
    """Nodes that take pods."""
    priorities: Mapping[str, PriorityClassObject]
    lines: Queues
    slow: Mapping[str, Verdict]
    """Nodes with slow GPUs."""
    held: Held
    usual: UsualRatio
    leavers: Mapping[str, int]
    """Digest of a job's identity -> epoch up to which somebody waits for the end of its pods."""

    def same(self, other: Surroundings | None) -> bool:
        """Whether these are the very same."""
        return other is not None and all(getattr(self, name) is getattr(other, name) for name in self.__struct_fields__)


class _Shown(Struct):
    """A job as it was shown last, and what it was made of."""

    of: tuple[JobFacts, Running]
    job: Job
    runs: Running
    made: float
    until: float
    """POSIX time from which something else follows of the same."""
    grown: float = -math.inf
    """POSIX time of what grows with it."""

    def by_now(self, now: float, oldest: float) -> Job:
        """The job with what grows with the time, which is to be no older than so many seconds."""
        if not self.grown <= now < self.grown + oldest:
            runs, self.grown = self.runs, now
            self.job = replace(self.job, lost_seconds=runs.lost_seconds(now), served=runs.served_until(now))
        return self.job


class ShownJobs:
    """The jobs of all looks. `ends` is what gangs have said of their ends; pods run `speedup` times as fast as
    predicted."""

    def __init__(self, ends: Ends | None = None, speedup: float = 1.0) -> None:
        self._ends, self._oldest = ends or Ends(), GROWS_SECONDS / speedup
        self._around: Surroundings | None = None
        self._used: NodeUsage | None = None
        self._avoided: Mapping[str, Set[str]] = {}
        self._shown: dict[str, _Shown] = {}
        self._types: Kept[frozenset[str]] = Kept()
        self._rules: dict[str, tuple[Raw, Mapping[str, Any] | None, Eligibility]] = {}
        """UID of a job -> its spec, what Kueue makes of its template, and what follows for nodes."""
        self._admitted_by: Kept[dict[bytes, tuple[str, ...] | None]] = Kept()

    def look(
        self,
        wanted: Iterable[tuple[JobFacts, Running]],
        around: Surroundings,
        used: NodeUsage,
        avoided: Mapping[str, Set[str]],
        now: float,
    ) -> tuple[list[Job], dict[str, Pending]]:
        """These jobs, and why those are left out for which that fails. What a job holds is shown in any case, with
        nothing else where its spec makes no sense: it counts."""
        before = self._shown if around.same(self._around) else {}
        others = self._others(used, avoided)
        self._around, self._used, self._avoided, self._shown = around, used, dict(avoided), {}
        shown: list[Job] = []
        failed: dict[str, Pending] = {}
        keep, show = self._shown, shown.append
        for each in wanted:  # of thousands of gangs in every round: the first lines are as tight as they look
            uid = each[0].meta.uid
            known = before.get(uid)
            if known and (known.of is not each or not known.made <= now < known.until or uid in others):
                known = None
            if known is None and each[0].spec:
                make = partial(self._show, each, around, used, avoided.get(uid, NO_NODES), now)
                known = isolated("show", make, lambda _: None, each[0].meta.key)
                if known is None:
                    failed[uid] = Pending(uid, PendingReason.DECISION_FAILED, CANNOT_BE_SHOWN)
            if known:
                keep[uid] = known
                show(known.by_now(now, self._oldest))
            elif held := used.placements.get(uid):
                meta, queue = each[0].meta, around.lines.of(each[0])
                show(holder(uid, meta.namespace, meta.name, queue=queue, gpu_type=held.gpu_type, shares=held.shares))
        return shown, failed

    def _others(self, used: NodeUsage, avoided: Mapping[str, Set[str]]) -> Set[str]:
        """UIDs of jobs that hold something else than at the last look, or were given it in another order, or are not to
        have other nodes."""
        last = self._used
        if last is None or (last is used and self._avoided == avoided):
            return NO_NODES
        both = ((last.placements, used.placements), (last.grants, used.grants), (self._avoided, avoided))
        return set().union(*(changed(before, now) for before, now in both))

    def forget(self, present: Mapping[str, JobFacts]) -> None:
        """Drop what was known of jobs that are gone."""
        self._ends.forget(present)
        for uid in self._rules.keys() - present.keys():
            del self._rules[uid]

    def _show(
        self,
        of: tuple[JobFacts, Running],
        around: Surroundings,
        used: NodeUsage,
        avoided: Set[str],
        now: float,
    ) -> _Shown:
        facts, runs = of
        uid, plan, status = facts.meta.uid, facts.status.plan, facts.status
        leaves = plan is not None and plan.epoch <= around.leavers.get(facts.meta.identity.digest, 0)
        kept = leaves or uid in around.held.deaf
        movable_from = math.inf if kept else runs.movable_from
        movable = movable_from <= now
        admitted = self._admitted(facts, around, avoided) if movable else None
        usual = 1.0 if runs.restart_ratio else around.usual.of(facts.meta.namespace)
        returns, until = runs.returns, math.inf
        if math.isnan(returns or 0.0):
            returns, until = self._ends.expected(facts, around.slow, runs.since, now)
        types = self._types.of((around.takes,), lambda: frozenset(n.gpu.name for n in around.takes.values() if n.gpu))
        job = facts.as_job(
            requirements=runs.requirements,
            queue=around.lines.of(facts),
            created=facts.created,
            priority=priority_of(facts, around.priorities),
            preempts=preempts(facts, around.priorities),
            placement=used.placements.get(uid),
            grants=used.grants.get(uid, ()),
            started=status.start_time.timestamp() if status.start_time and plan else None,
            expected_finish=None if leaves else returns,
            steps_done=facts.steps_done(),
            steps_beyond=facts.steps_beyond(),
            eligible=admitted,
            elastic=runs.elastic,
            preemptible=runs.elastic and movable and plan is not None and plan.gpu_type in types,
            movable_from=movable_from,
            stoppable_from=None if kept else runs.stoppable_from,
            restart_seconds=runs.restart_seconds * usual,
            restarts=status.restarts + len(status.stops),
            not_before=facts.retry_at(),
            waits_since=facts.waits_since,
        )
        return _Shown(of, job, runs, now, until if movable else min(until, movable_from))

    def _admitted(self, facts: JobFacts, around: Surroundings, avoided: Set[str]) -> tuple[str, ...] | None:
        """Nodes that the job may have; None for all."""
        left = _without(avoided, self._eligible_nodes(facts, around.takes), around.takes)
        return around.held.leave(facts.meta.uid, facts.meta.namespace, left, around.takes)

    def _eligible_nodes(self, facts: JobFacts, takes: Mapping[str, NodeFacts]) -> tuple[str, ...] | None:
        """What the job's template admits: of most jobs it asks for the same nodes, if for any, and it is the larger
        part of a job that is never edited."""
        known = self._rules.get(facts.meta.uid)
        if known is None or known[0] != facts.source or known[1] is not facts.equipped:
            rules = Eligibility(facts.template["spec"])
            known = self._rules[facts.meta.uid] = facts.source, facts.equipped, rules
        admitted = self._admitted_by.of((takes,), dict)
        rules = known[2]
        if rules.same_for not in admitted:
            admitted[rules.same_for] = rules.among(takes.values())
        return admitted[rules.same_for]


def _without(
    avoided: Set[str], admitted: tuple[str, ...] | None, takes: Mapping[str, NodeFacts]
) -> tuple[str, ...] | None:
    """The admitted nodes (None: all) less those to be avoided; where none is left, they are tried again."""
    if not avoided:
        return admitted
    left = tuple(name for name in (takes if admitted is None else admitted) if name not in avoided)
    return left or admitted


def priority_of(facts: JobFacts, priorities: Mapping[str, PriorityClassObject]) -> int:
    """What the class that is named is worth. A gang keeps the value that its class had, as its pods do: a class that is
    deleted, or made anew with another value, concerns those that are started later."""
    named, terms = (facts.spec.priority_class_name if facts.spec else None) or "", facts.terms
    if terms and (named == terms.priority_class or (named and named not in priorities)):
        return terms.priority
    found = _class_of(named, priorities)
    return found.value if found else 0


def preempts(facts: JobFacts, priorities: Mapping[str, PriorityClassObject]) -> bool:
    """Whether the job's class lets it stop others; one that says `preemptionPolicy: Never` is only first in line."""
    found = _class_of((facts.spec.priority_class_name if facts.spec else None) or "", priorities)
    return found is None or found.preemption_policy != NEVER


def _class_of(named: str, priorities: Mapping[str, PriorityClassObject]) -> PriorityClassObject | None:
    """The class of this name; of none, the default one, of several that of the lowest value, as for pods."""
    if named:
        return priorities.get(named)
    return min((c for c in priorities.values() if c.global_default), key=lambda c: c.value, default=None)
