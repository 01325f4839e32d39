"""All caches -> one `Observation`: the snapshot that policies see, and the facts that the other stages need.

GPUs are counted from two sources that together never miss one: every pod that is on a node and has not ended, and
every rank of a standing plan whose pod is not on a node yet. A plan that was decided but is not written yet
(`promised`) counts the same, so that two rounds never give one GPU twice. What of this comes after the end of other
pods, `books` settles.

Facts of single objects are remembered for as long as the object is the same, so that a round after a small change costs
the change, not the cluster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Generic, TypeVar

from msgspec import Struct

from trimtab import names
from trimtab.kube.objects import JobObject, NodeObject, PodObject, PriorityClassObject, QueueObject
from trimtab.observe import eligibility, jobs, nodes, pods, queues, running, stragglers
from trimtab.observe.books import Books, Claim, Pages
from trimtab.observe.failures import Failures, Held
from trimtab.observe.gpunodes import GpuNodes, Look
from trimtab.observe.jobs import JobFacts
from trimtab.observe.nodes import NodeFacts
from trimtab.observe.pods import PodFacts, Seat
from trimtab.observe.problems import Problem
from trimtab.observe.queues import QueueFacts, Queues
from trimtab.observe.running import Mobility, Running, usual_ratio
from trimtab.observe.stragglers import Stragglers, Verdict, members
from trimtab_policy.specs import GpuSpec
from trimtab_policy.types import (
    Job,
    Pending,
    PendingReason,
    Snapshot,
)

NEVER = "Never"
"""`preemptionPolicy` of a PriorityClass whose jobs stop nobody."""
RETURN_SECONDS = 60.0
"""A job that may start again so soon is in line already: else others take its other nodes when it has lost one."""

Object = TypeVar("Object")
Facts = TypeVar("Facts")


class Caches(Struct, frozen=True):
    """The raw objects of one moment, as the reflectors hold them."""

    nodes: Iterable[NodeObject]
    pods: Iterable[PodObject]
    jobs: Iterable[JobObject]
    queues: Iterable[QueueObject] = ()
    priority_classes: Iterable[PriorityClassObject] = ()


class Observation(Struct, frozen=True):
    """What one look at the cluster gives."""

    snapshot: Snapshot
    jobs: dict[str, JobFacts]
    """UID -> facts, of every job that is ours."""
    nodes: dict[str, NodeFacts]
    """Every node with GPUs, whether it takes pods or not."""
    refused: dict[str, Pending]
    """Jobs that no policy can help: malformed, or referring to what does not exist."""
    overallocated: dict[str, int]
    """Node -> GPUs requested beyond what it has."""
    problems: tuple[Problem, ...]
    reports: Look = Look()
    """What agents say about the nodes: fresh readings, foreign load, faults."""
    stragglers: tuple[Verdict, ...] = ()
    """Slow GPUs."""
    held: Held = Held()
    """Nodes that are kept from waiting jobs because of failures."""
    queues: dict[str, QueueFacts] = {}
    """Queues by name."""

    def problems_of(self, node: str) -> list[Problem]:
        """What is wrong about a node, itself or what its agent says."""
        about = ("Node", names.GPUNODE_KIND)
        return [problem for problem in self.problems if problem.name == node and problem.kind in about]


class Memo(Generic[Object, Facts]):
    """Facts per object, computed anew only when the object was replaced by another one."""

    def __init__(self, compute: Callable[[Object], Facts]) -> None:
        self._compute = compute
        self._known: dict[int, tuple[Object, Facts]] = {}

    def one(self, item: Object) -> Facts:
        """Facts of one object."""
        known = self._known.get(id(item))
        if known is None or known[0] is not item:
            known = self._known[id(item)] = (item, self._compute(item))
        return known[1]

    def all(self, objects: Iterable[Object]) -> list[tuple[Object, Facts]]:
        """Facts of exactly these objects; those of all others are forgotten."""
        before, now = self._known, {}
        for item in objects:
            known = before.get(id(item))
            now[id(item)] = known if known is not None and known[0] is item else (item, self._compute(item))
        self._known = now
        return list(now.values())


class Observer:
    """Turns caches into observations. Holds only what it has computed before, never anything it was told once, but for
    one thing that takes time to be believed: the verdicts on slow GPUs.

    `gpunodes` are what agents report, kept by whoever hears them; `slow` judges which GPUs are slow; `mobility` says
    which running jobs may be moved.
    """

    def __init__(
        self,
        levels: Sequence[Sequence[str]],
        gpunodes: GpuNodes | None = None,
        slow: Stragglers | None = None,
        mobility: Mobility | None = None,
        failures: Failures | None = None,
    ) -> None:
        self._gpunodes = gpunodes
        self._stragglers = slow or Stragglers()
        self._failures = failures or Failures()
        self._mobility = mobility or Mobility()
        self._pages = Pages()
        self._nodes: Memo[NodeObject, NodeFacts | None] = Memo(lambda node: nodes.facts(node, levels))
        self._pods: Memo[PodObject, PodFacts] = Memo(pods.facts)
        self._jobs: Memo[JobObject, JobFacts] = Memo(jobs.facts)
        self._queues: Memo[QueueObject, QueueFacts] = Memo(queues.facts)
        self._running: Memo[JobFacts, Running] = Memo(lambda job: running.read(job, self._mobility))
        self._usual = 1.0
        """What restarts cost over what the model says, for jobs that were never stopped themselves."""
        self._candidates: tuple[NodeFacts, ...] = ()
        self._eligible: dict[str, tuple[JobFacts, tuple[NodeFacts, ...], tuple[str, ...] | None]] = {}

    def job(self, job: JobObject) -> JobFacts:
        """Facts of one job."""
        return self._jobs.one(job)

    def node(self, node: NodeObject | None) -> NodeFacts | None:
        """Facts of one node; None when it is gone or has no GPUs."""
        return self._nodes.one(node) if node else None

    def next_deadline(self, now: float) -> float:
        """Seconds until a GPU is to be judged slow, or no longer, though nothing is reported."""
        return self._stragglers.next_deadline(now)

    def observe(
        self,
        caches: Caches,
        now: float,
        promised: Iterable[Claim] = (),
        avoided: Mapping[str, Set[str]] | None = None,
        held_back: Mapping[str, Pending] | None = None,
        limited: Mapping[str, JobFacts] | None = None,
    ) -> Observation:
        """One look. `promised` is what was decided and is about to be written; `avoided` are nodes, by job UID, that
        kube-scheduler would not take for that job lately. `held_back` and `limited`, by job UID, are what Kueue
        says: who must not be planned yet, and the facts of jobs that may have less than their own spec allows."""
        gpu_nodes = {facts.name: facts for _, facts in self._nodes.all(caches.nodes) if facts}
        known = {f.meta.uid: f for _, f in self._jobs.all(caches.jobs) if f.ours and not f.meta.deletion_timestamp}
        known |= {uid: facts for uid, facts in (limited or {}).items() if uid in known}
        used = self._books(gpu_nodes, known, promised, caches.pods, now)
        placements = used.placements
        lines = Queues(queue for _, queue in self._queues.all(caches.queues))
        priorities = {c.metadata.name: c for c in caches.priority_classes}
        refused = {uid: why for uid, why in (held_back or {}).items() if uid in known}
        refused |= {uid: why for uid, f in known.items() if (why := _refusal(f, lines, priorities))}
        reports = self._gpunodes.look(gpu_nodes, used.requested) if self._gpunodes else Look()
        unfit = {name: facts.unavailable for name, facts in gpu_nodes.items() if facts.unavailable}
        held = self._failures.look(gpu_nodes, known.values(), unfit, reports, used.requested, now)
        unavailable = {**held.unavailable, **reports.unavailable, **unfit}
        takes = {name: facts for name, facts in gpu_nodes.items() if name not in unavailable}
        if self._candidates != (candidates := tuple(takes.values())):
            self._candidates = candidates
        slow = self._stragglers.judge(members(reports.telemetry, gpu_nodes, placements, used.requested), gpu_nodes, now)
        self._forget_templates(known)
        shown = [
            self._job(facts, now, used, takes, priorities, lines, (avoided or {}).get(uid, frozenset()), slow, held)
            for uid, facts in known.items()
            if facts.spec and (uid in placements or (uid not in refused and _waits(facts, now)))
        ]
        refused |= (beyond := lines.beyond(shown, known, now))
        snapshot = Snapshot(
            time=now,
            nodes=self._pages.turn(takes, used, reports, {name: card.speed for name, card in slow.items()}),
            jobs=tuple(job for job in shown if job.uid not in beyond),
            gpu_types=_gpu_types(takes.values()),
            quotas=lines.quotas,
            weights=lines.weights,
            unavailable=unavailable,
            ending=used.ending,
            speedup=self._mobility.speedup,
            granted=used.granted,
        )
        return Observation(
            snapshot=snapshot,
            jobs=known,
            nodes=gpu_nodes,
            refused=refused,
            overallocated=used.beyond(),
            problems=(*self._problems(gpu_nodes, lines), *reports.problems, *held.problems),
            reports=reports,
            held=held,
            stragglers=tuple(self._stragglers.cards()),
            queues=lines.by_name,
        )

    def _problems(self, gpu_nodes: Mapping[str, NodeFacts], lines: Queues) -> tuple[Problem, ...]:
        return (
            *(problem for facts in gpu_nodes.values() for problem in facts.problems),
            *lines.problems(gpu_nodes.values()),
            *stragglers.problems(self._stragglers.cards(), gpu_nodes),
        )

    def _books(
        self,
        gpu_nodes: Mapping[str, NodeFacts],
        known: Mapping[str, JobFacts],
        promised: Iterable[Claim],
        members: Iterable[PodObject],
        now: float,
    ) -> Books:
        runs = [job for _, job in self._running.all(known.values())]
        self._usual = usual_ratio(runs)
        held = [claim for job in runs for claim in job.claims]
        seen = {(claim.job, claim.epoch) for claim in held}
        news = [claim for claim in promised if claim.job in known and (claim.job, claim.epoch) not in seen]
        used = Books(gpu_nodes, (*held, *news), now)
        seats: set[Seat] = set()
        for _, pod in self._pods.all(members):
            if pod.node:
                used.pod(pod)
            if pod.seat:
                leaves = pod.seat[0] in used.leavers
                if leaves or not pod.failed:  # else what it held is its gang's until that is given up, and starts anew
                    seats.add(pod.seat)
                if leaves:
                    used.leaves(pod)
        used.settle({uid: facts.asks for uid, facts in known.items()}, seats)
        return used

    def _job(
        self,
        facts: JobFacts,
        now: float,
        used: Books,
        takes: Mapping[str, NodeFacts],
        priorities: Mapping[str, PriorityClassObject],
        lines: Queues,
        avoided: Set[str],
        slow: Mapping[str, Verdict],
        held: Held,
    ) -> Job:
        uid, plan, status, runs = facts.meta.uid, facts.status.plan, facts.status, self._running.one(facts)
        leaves = plan is not None and plan.epoch <= used.leavers.get(uid, 0)
        kept = leaves or uid in held.deaf
        movable_from = math.inf if kept else runs.movable_from
        movable = movable_from <= now
        admitted = held.leave(uid, _without(avoided, self._eligible_nodes(facts), takes), takes) if movable else None
        finish = stragglers.expected_finish(facts, slow) if runs.returns != runs.returns else runs.returns
        return facts.as_job(
            requirements=runs.requirements,
            queue=lines.of(facts),
            created=facts.created,
            priority=_priority(facts, priorities),
            preempts=_preempts(facts, priorities),
            placement=used.placements.get(uid),
            grants=used.grants.get(uid, ()),
            started=status.start_time.timestamp() if status.start_time and plan else None,
            expected_finish=None if leaves else finish,
            steps_done=facts.steps_done(),
            eligible=admitted,
            elastic=runs.elastic,
            preemptible=runs.elastic and movable and plan is not None,
            movable_from=movable_from,
            stoppable_from=None if kept else runs.stoppable_from,
            lost_seconds=runs.lost_seconds(now),
            restart_seconds=runs.restart_seconds * (self._usual if runs.restart_ratio is None else 1.0),
            restarts=status.restarts + len(status.stops),
            served=runs.served_until(now),
            not_before=facts.retry_at(),
            waits_since=facts.waits_since(),
        )

    def _eligible_nodes(self, facts: JobFacts) -> tuple[str, ...] | None:
        known = self._eligible.get(facts.meta.uid)
        if known and known[0] is facts and known[1] is self._candidates:
            return known[2]
        admitted = eligibility.eligible(facts.template["spec"], self._candidates)
        self._eligible[facts.meta.uid] = facts, self._candidates, admitted
        return admitted

    def _forget_templates(self, known: Mapping[str, JobFacts]) -> None:
        for uid in self._eligible.keys() - known.keys():
            del self._eligible[uid]


def _without(
    avoided: Set[str], admitted: tuple[str, ...] | None, takes: Mapping[str, NodeFacts]
) -> tuple[str, ...] | None:
    """The admitted nodes (None: all) less those to be avoided; where none is left, they are tried again."""
    if not avoided:
        return admitted
    left = tuple(name for name in (takes if admitted is None else admitted) if name not in avoided)
    return left or admitted


def _gpu_types(takes: Iterable[NodeFacts]) -> dict[str, GpuSpec]:
    """Facts per type. Where labels make nodes of one unknown product differ, the smallest memory counts."""
    specs = [facts.gpu for facts in takes if facts.gpu]
    return {spec.name: spec for spec in sorted(specs, key=lambda spec: -spec.memory_bytes)}


def _waits(facts: JobFacts, now: float) -> bool:
    """Whether a policy should decide about the job now, or in a moment."""
    return not (facts.finished or facts.suspended or facts.holds_gpus or facts.retry_at() > now + RETURN_SECONDS)


def _refusal(facts: JobFacts, lines: Queues, priorities: Mapping[str, PriorityClassObject]) -> Pending | None:
    uid = facts.meta.uid
    if facts.error or facts.spec is None:
        return Pending(uid, PendingReason.INVALID_SPEC, facts.error, alternatives=("correct the field",))
    if refusal := lines.refusal(facts):
        return refusal
    priority_class = facts.spec.priority_class_name
    if priority_class and priority_class not in priorities:
        message = f"spec.priorityClassName: there is no PriorityClass {priority_class!r}"
        hint = f"create PriorityClass {priority_class}, or name another one"
        return Pending(uid, PendingReason.PRIORITY_CLASS_NOT_FOUND, message, alternatives=(hint,))
    return None


def _priority(facts: JobFacts, priorities: Mapping[str, PriorityClassObject]) -> int:
    """What the class that is named is worth. A gang keeps the value that its class had, as its pods do: a class that is
    deleted, or made anew with another value, concerns those that are started later."""
    named, terms = (facts.spec.priority_class_name if facts.spec else None) or "", facts.terms
    if terms and (named == terms.priority_class or (named and named not in priorities)):
        return terms.priority
    found = _class_of(named, priorities)
    return found.value if found else 0


def _preempts(facts: JobFacts, priorities: Mapping[str, PriorityClassObject]) -> bool:
    """Whether the job's class lets it stop others; one that says `preemptionPolicy: Never` is only first in line."""
    found = _class_of((facts.spec.priority_class_name if facts.spec else None) or "", priorities)
    return found is None or found.preemption_policy != NEVER


def _class_of(named: str, priorities: Mapping[str, PriorityClassObject]) -> PriorityClassObject | None:
    """The class of this name; of none, the default one, of several that of the lowest value, as for pods."""
    if named:
        return priorities.get(named)
    return min((c for c in priorities.values() if c.global_default), key=lambda c: c.value, default=None)
