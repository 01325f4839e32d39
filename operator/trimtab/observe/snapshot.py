"""All caches -> one `Observation`: the snapshot that policies see, and the facts that the other stages need.

GPUs are counted from two sources that together never miss one: every pod that is on a node and has not ended, and
every rank of a standing plan whose pod is not on a node yet. A plan that was decided but is not written yet
(`promised`) counts the same, so that two rounds never give one GPU twice. What of this comes after the end of other
pods, `node_usage` settles.

Facts of single objects are remembered for as long as the object is the same, so that a round after a small change costs
the change, not the cluster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from trimtab import names
from trimtab.kube.objects import (
    DeviceClassObject,
    DeviceTaintRuleObject,
    JobObject,
    NodeObject,
    PodObject,
    PriorityClassObject,
    QueueObject,
    ResourceClaimObject,
    ResourceSliceObject,
)
from trimtab.observe import eligibility, jobs, nodes, pods, queues, resources, running, stragglers
from trimtab.observe.claimed_gpus import ClaimedGpus
from trimtab.observe.ends import Ends
from trimtab.observe.facts_memo import FactsMemo
from trimtab.observe.failures import Failures, Held
from trimtab.observe.gpunodes import GpuNodes, Look
from trimtab.observe.jobs import JobFacts
from trimtab.observe.node_devices import DeviceFacts
from trimtab.observe.node_usage import Claim, NodeUsage, Pages
from trimtab.observe.nodes import NodeFacts
from trimtab.observe.pods import PodFacts, Seat
from trimtab.observe.problems import Problem
from trimtab.observe.queues import QueueFacts, Queues
from trimtab.observe.running import Mobility, Running, UsualRatio
from trimtab.observe.stragglers import Stragglers, Verdict, members
from trimtab.telemetry.isolation import isolated
from trimtab_policy.placement.runtime import holder
from trimtab_policy.specs import GpuSpec
from trimtab_policy.types import Job, Pending, PendingReason, Placement, Snapshot

NEVER = "Never"
"""`preemptionPolicy` of a PriorityClass whose jobs stop nobody."""
RETURN_SECONDS = 60.0
"""A job that may start again so soon is in line already: else others take its other nodes when it has lost one."""
CANNOT_BE_SHOWN = "its spec, status or template make no sense together: this is a bug of Trimtab, please report it"


class Caches(Struct, frozen=True):
    """The raw objects of one moment, as the reflectors hold them."""

    nodes: Iterable[NodeObject]
    pods: Iterable[PodObject]
    jobs: Iterable[JobObject]
    queues: Iterable[QueueObject] = ()
    priority_classes: Iterable[PriorityClassObject] = ()
    slices: Iterable[ResourceSliceObject] = ()
    claims: Iterable[ResourceClaimObject] = ()
    device_classes: Iterable[DeviceClassObject] = ()
    taint_rules: Iterable[DeviceTaintRuleObject] = ()


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
    deleted: tuple[str, ...] = ()
    """UIDs of jobs of ours that are being deleted: their gangs go, whatever keeps the objects."""

    def problems_of(self, node: str) -> list[Problem]:
        """What is wrong about a node, itself or what its agent says."""
        about = ("Node", names.GPUNODE_KIND)
        return [problem for problem in self.problems if problem.name == node and problem.kind in about]


class ClusterObserver:
    """Turns caches into observations. Holds only what it has computed before, never anything it was told once, but for
    one thing that takes time to be believed: the verdicts on slow GPUs.

    `gpunodes` are what agents report, kept by whoever hears them; `slow` judges which GPUs are slow; `mobility` says
    which running jobs may be moved. Of each queue, or namespace without one, `considered` waiting jobs are at most.
    `allocates` says whether somebody allocates devices to the pods of gangs: kube-scheduler, where it binds them.
    """

    def __init__(
        self,
        levels: Sequence[Sequence[str]],
        gpunodes: GpuNodes | None = None,
        slow: Stragglers | None = None,
        mobility: Mobility | None = None,
        failures: Failures | None = None,
        considered: int = 1 << 20,
        *,
        allocates: bool = True,
    ) -> None:
        self._levels = levels
        self._devices = DeviceFacts(levels, allocates=allocates)
        self._gpunodes = gpunodes
        self._stragglers = slow or Stragglers()
        self._failures = failures or Failures()
        self._considered = considered
        self._mobility = mobility or Mobility()
        self._pages = Pages()
        self._nodes: FactsMemo[NodeObject, NodeFacts | None] = FactsMemo(
            "node", lambda node: nodes.facts(node, levels), nodes.broken
        )
        self._pods: FactsMemo[PodObject, PodFacts] = FactsMemo("pod", pods.facts, pods.broken)
        self._jobs: FactsMemo[JobObject, JobFacts] = FactsMemo("job", self._understood, jobs.broken)
        self._latest: dict[str, JobFacts] = {}
        """UID -> what its latest version was understood as."""
        self._queues: FactsMemo[QueueObject, QueueFacts] = FactsMemo("queue", queues.facts, queues.broken)
        self._ends = Ends()
        self._running: FactsMemo[JobFacts, Running] = FactsMemo(
            "running", lambda job: running.read_running(job, self._mobility), running.broken
        )
        self._usual = UsualRatio()
        self._charged_of: tuple[object, ...] = ()
        self._known_charged: list[PodFacts] = []
        self._without_pods: dict[str, int] = {}
        self._offering: tuple[NodeFacts, ...] = ()
        self._set_aside: dict[str, str] = {}
        """Of those: nodes that offer their GPUs in another way than most of their type -> why that is no use."""
        self._candidates: tuple[NodeFacts, ...] = ()
        self._types: frozenset[str] = frozenset()
        """GPU types of the candidates: of others policies know nothing, also not what a gang there is worth."""
        self._eligible: dict[str, tuple[JobFacts, tuple[NodeFacts, ...], tuple[str, ...] | None]] = {}

    def job(self, job: JobObject) -> JobFacts:
        """Facts of one job."""
        return self._jobs.one(job)

    def node(self, node: NodeObject | None) -> NodeFacts | None:
        """Facts of one node; None when it is gone. What its driver offers is as it was at the last look."""
        return (self._facts(node) or nodes.without_gpus(node, self._levels)) if node else None

    def look(self, caches: Caches) -> dict[str, NodeFacts]:
        """Take the nodes and devices of this moment. Facts by name of the nodes that have GPUs."""
        return self._look(caches)[1]

    def _look(self, caches: Caches) -> tuple[list[NodeObject], dict[str, NodeFacts]]:
        self._devices.look(caches.slices, caches.device_classes, caches.taint_rules)
        every = self._nodes.all(caches.nodes)
        found = {facts.name: facts for node, own in every if (facts := self._devices.of(node) or own)}
        offering = tuple(found.values())
        if offering != self._offering:
            self._offering, self._set_aside = offering, resources.set_aside(offering)
        return [node for node, _ in every], found

    @property
    def set_aside(self) -> Mapping[str, str]:
        """Nodes that took no pods at the last look because most of their type offer their GPUs in another way."""
        return self._set_aside

    def _facts(self, node: NodeObject) -> NodeFacts | None:
        return self._devices.of(node) or self._nodes.one(node)

    def _understood(self, job: JobObject) -> JobFacts:
        uid = job.metadata.uid
        found = self._latest[uid] = jobs.facts(job, self._latest.get(uid))
        return found

    def _ours(self, objects: Iterable[JobObject]) -> dict[str, JobFacts]:
        """UID -> facts, of exactly these jobs as far as this controller is in charge of them."""
        self._latest = {facts.meta.uid: facts for _, facts in self._jobs.all(objects)}
        return {uid: facts for uid, facts in self._latest.items() if facts.ours}

    def next_deadline(self, now: float) -> float:
        """Seconds until a GPU is to be judged slow, or no longer, though nothing is reported."""
        return self._stragglers.next_deadline(now)

    def observe(
        self,
        caches: Caches,
        now: float,
        promised: Iterable[Claim] = (),
        avoided: Mapping[str, Set[str]] | None = None,
        held_back: Mapping[str, Pending | None] | None = None,
        limited: Mapping[str, JobFacts] | None = None,
    ) -> Observation:
        """One look. `promised` is what was decided and is about to be written; `avoided` are nodes, by job UID, that
        kube-scheduler would not take for that job lately. `held_back`, by job UID, must not be planned: why, or None
        where that is not known yet. `limited` are the facts of jobs that Kueue gives less than their spec allows."""
        ours = self._ours(caches.jobs)
        known = {uid: facts for uid, facts in ours.items() if not facts.meta.deletion_timestamp}
        gpu_nodes = self._gpu_nodes(caches, known.values())
        known |= {uid: facts for uid, facts in (limited or {}).items() if uid in known}
        used = self._books(gpu_nodes, ours, known, promised, caches, now)
        lines = Queues(queue for _, queue in self._queues.all(caches.queues))
        priorities = {c.metadata.name: c for c in caches.priority_classes}
        refused = _refused(known, held_back or {}, lines, priorities)
        reports = self._reports(gpu_nodes, used)
        held, unavailable = self._unavailable(gpu_nodes, known, reports, used, now)
        takes = {name: facts for name, facts in gpu_nodes.items() if name not in unavailable}
        slow = self._slow(gpu_nodes, reports, used, now)
        self._remember(tuple(takes.values()), known)

        def show(facts: JobFacts) -> Job:
            without = (avoided or {}).get(facts.meta.uid, frozenset())
            return self._job(facts, now, used, takes, priorities, lines, without, slow, held)

        holding = [f for uid, f in known.items() if uid in used.placements]
        waiting = _in_line(known, {*used.placements, *refused, *(held_back or ())}, now)
        beyond = lines.beyond(((f, _priority(f, priorities)) for f in waiting), now, self._considered)
        turn = (*holding, *(f for f in waiting if f.meta.uid not in beyond))
        shown, failed = _shown(turn, show, used.placements, lines)
        snapshot = Snapshot(
            time=now,
            nodes=self._pages.turn(takes, used, reports, {name: card.speed for name, card in slow.items()}),
            jobs=(*shown, *_lingering(used, ours, lines)),
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
            refused=refused | failed | beyond,
            overallocated=used.beyond(),
            problems=(*self._problems(gpu_nodes, lines), *reports.problems, *held.problems),
            reports=reports,
            held=held,
            stragglers=tuple(self._stragglers.cards()),
            queues=lines.by_name,
            deleted=tuple(ours.keys() - known.keys()),
        )

    def _reports(self, gpu_nodes: Mapping[str, NodeFacts], used: NodeUsage) -> Look:
        """What agents say."""
        heard = self._gpunodes
        if heard is None:
            return Look()
        return isolated("reports", lambda: heard.look(gpu_nodes, used.requested), lambda _: Look())

    def _unavailable(
        self,
        gpu_nodes: Mapping[str, NodeFacts],
        known: Mapping[str, JobFacts],
        reports: Look,
        used: NodeUsage,
        now: float,
    ) -> tuple[Held, dict[str, str]]:
        """What failures say of nodes, and why nodes take no pods: by themselves, their agents' word, or failures."""
        unfit = self._set_aside | {name: facts.unavailable for name, facts in gpu_nodes.items() if facts.unavailable}
        held = isolated(
            "failures",
            lambda: self._failures.look(gpu_nodes, known.values(), unfit, reports, used.requested, now),
            lambda _: Held(),
        )
        return held, {**held.unavailable, **reports.unavailable, **unfit}

    def _slow(
        self, gpu_nodes: Mapping[str, NodeFacts], reports: Look, used: NodeUsage, now: float
    ) -> Mapping[str, Verdict]:
        """Nodes with slow GPUs."""
        seen = members(reports.telemetry, gpu_nodes, used.placements, used.requested)
        nothing: dict[str, Verdict] = {}
        return isolated("stragglers", lambda: self._stragglers.judge(seen, gpu_nodes, now), lambda _: nothing)

    def _problems(self, gpu_nodes: Mapping[str, NodeFacts], lines: Queues) -> tuple[Problem, ...]:
        return (
            *(problem for facts in gpu_nodes.values() for problem in facts.problems),
            *(
                Problem("Node", "", name, gpu_nodes[name].uid, "OtherResource", why)
                for name, why in self._set_aside.items()
            ),
            *lines.problems(gpu_nodes.values()),
            *stragglers.problems(self._stragglers.cards(), gpu_nodes),
        )

    def _books(
        self,
        gpu_nodes: Mapping[str, NodeFacts],
        ours: Mapping[str, JobFacts],
        known: Mapping[str, JobFacts],
        promised: Iterable[Claim],
        caches: Caches,
        now: float,
    ) -> NodeUsage:
        runs = [job for _, job in self._running.all(known.values())]
        self._usual = UsualRatio(runs)
        held = [claim for job in runs for claim in job.claims]
        seen = {(claim.job, claim.epoch) for claim in held}
        news = [claim for claim in promised if claim.job in known and (claim.job, claim.epoch) not in seen]
        used = NodeUsage(gpu_nodes, (*held, *news), now)
        seats: set[Seat] = set()
        ended: set[Seat] = set()
        leavers = used.leavers
        present = [_of_own_job(pod, ours) for _, pod in self._pods.all(caches.pods)]
        charged, without_pods = self._charged(present, caches.claims, used)
        for pod in charged:
            if pod.node:
                used.pod(pod)
            if pod.seat and pod.job:
                leaves = bool(leavers) and pod.job.digest in leavers
                # who is waited for has left; what any other gang held is its own until it is given up or complete
                (seats if leaves or pod.node else ended).add(pod.seat)
                if leaves:
                    used.leaves(pod)
        for node, gpus in without_pods.items():
            used.devices(node, gpus)
        used.settle({uid: facts.asks for uid, facts in known.items()}, seats, ended)
        return used

    def _charged(
        self, present: list[PodFacts], claims: Iterable[ResourceClaimObject], used: NodeUsage
    ) -> tuple[list[PodFacts], Mapping[str, int]]:
        """The pods with the GPUs that they have by claims, and GPUs by node that claims hold for no pod. The very same
        where neither claims nor pods nor plans have changed."""
        holdings = self._devices.holdings(claims)
        if not holdings and not any(pod.claims for pod in present):
            return present, {}
        made_of = holdings, present, used.standing_shares()
        if made_of != self._charged_of:
            claimed = ClaimedGpus(*made_of)
            self._charged_of, self._known_charged = made_of, [claimed.charged(pod) for pod in present]
            self._without_pods = claimed.without_pods
        return self._known_charged, self._without_pods

    def _gpu_nodes(self, caches: Caches, known: Iterable[JobFacts]) -> dict[str, NodeFacts]:
        """Facts by name of the nodes that have GPUs, and of those that have none any more but a plan that lies there:
        they are there, and only who is gone takes its gangs along."""
        every, found = self._look(caches)
        planned = {node.name for job in known if job.status.plan for node in job.status.plan.nodes}
        if lacking := planned - found.keys():
            bare = (node for node in every if node.metadata.name in lacking)
            found |= {node.metadata.name: nodes.without_gpus(node, self._levels) for node in bare}
        return found

    def _job(
        self,
        facts: JobFacts,
        now: float,
        used: NodeUsage,
        takes: Mapping[str, NodeFacts],
        priorities: Mapping[str, PriorityClassObject],
        lines: Queues,
        avoided: Set[str],
        slow: Mapping[str, Verdict],
        held: Held,
    ) -> Job:
        uid, plan, status, runs = facts.meta.uid, facts.status.plan, facts.status, self._running.one(facts)
        leaves = plan is not None and plan.epoch <= used.leavers.get(facts.meta.identity.digest, 0)
        kept = leaves or uid in held.deaf
        movable_from = math.inf if kept else runs.movable_from
        movable = movable_from <= now
        left = _without(avoided, self._eligible_nodes(facts), takes)
        admitted = held.leave(uid, facts.meta.namespace, left, takes) if movable else None
        usual = 1.0 if runs.restart_ratio else self._usual.of(facts.meta.namespace)
        returns = self._ends.expected(facts, slow, runs.since, now) if math.isnan(runs.returns or 0.0) else runs.returns
        return facts.as_job(
            requirements=runs.requirements,
            queue=lines.of(facts),
            created=facts.created,
            priority=_priority(facts, priorities),
            preempts=_preempts(facts, priorities),
            placement=used.placements.get(uid),
            grants=used.grants.get(uid, ()),
            started=status.start_time.timestamp() if status.start_time and plan else None,
            expected_finish=None if leaves else returns,
            steps_done=facts.steps_done(),
            steps_beyond=facts.steps_beyond(),
            eligible=admitted,
            elastic=runs.elastic,
            preemptible=runs.elastic and movable and plan is not None and plan.gpu_type in self._types,
            movable_from=movable_from,
            stoppable_from=None if kept else runs.stoppable_from,
            lost_seconds=runs.lost_seconds(now),
            restart_seconds=runs.restart_seconds * usual,
            restarts=status.restarts + len(status.stops),
            served=runs.served_until(now),
            not_before=facts.retry_at(),
            waits_since=facts.waits_since,
        )

    def _eligible_nodes(self, facts: JobFacts) -> tuple[str, ...] | None:
        known = self._eligible.get(facts.meta.uid)
        if known and known[0] is facts and known[1] is self._candidates:
            return known[2]
        admitted = eligibility.eligible(facts.template["spec"], self._candidates)
        self._eligible[facts.meta.uid] = facts, self._candidates, admitted
        return admitted

    def _remember(self, candidates: tuple[NodeFacts, ...], known: Mapping[str, JobFacts]) -> None:
        """Take note of the nodes that take pods, and forget what was known of jobs that are gone."""
        if self._candidates != candidates:
            self._candidates = candidates
            self._types = frozenset(facts.gpu.name for facts in candidates if facts.gpu)
        self._ends.forget(known)
        for uid in self._eligible.keys() - known.keys():
            del self._eligible[uid]


def asked_about(facts: JobFacts, seen: Observation, priority_classes: Iterable[PriorityClassObject]) -> Job | Pending:
    """A job that is not among those that are decided about, as policies would be shown it if it were submitted now; or
    why none could help it."""
    lines, priorities = Queues(seen.queues.values()), {each.metadata.name: each for each in priority_classes}
    if refusal := _refusal(facts, lines, priorities):
        return refusal
    takes = [seen.nodes[node.name] for node in seen.snapshot.nodes]
    return facts.as_job(
        queue=lines.of(facts),
        created=seen.snapshot.time,
        priority=_priority(facts, priorities),
        preempts=_preempts(facts, priorities),
        eligible=eligibility.eligible(facts.template["spec"], takes),
    )


def _of_own_job(pod: PodFacts, ours: Mapping[str, JobFacts]) -> PodFacts:
    """The pod; of no job where it says that it is of one whose name or namespace is another."""
    facts = ours.get(pod.member[0]) if pod.member else None
    return replace(pod, seat=None, member=None, job=None) if facts and facts.meta.identity != pod.job else pod


def _shown(
    wanted: Iterable[JobFacts],
    show: Callable[[JobFacts], Job],
    placements: Mapping[str, Placement],
    lines: Queues,
) -> tuple[list[Job], dict[str, Pending]]:
    """The jobs as policies see them, and why those are left out for which that fails. What a job holds is shown in any
    case, with nothing else where its spec makes no sense: it counts."""
    shown: list[Job] = []
    failed: dict[str, Pending] = {}
    for facts in wanted:
        uid, held = facts.meta.uid, placements.get(facts.meta.uid)
        known: Job | None = None
        if facts.spec:
            known = isolated("show", partial(show, facts), lambda _: None, facts.meta.key)
            if known is None:
                failed[uid] = Pending(uid, PendingReason.DECISION_FAILED, CANNOT_BE_SHOWN)
        if known:
            shown.append(known)
        elif held:
            meta, queue = facts.meta, lines.of(facts)
            shown.append(
                holder(uid, meta.namespace, meta.name, queue=queue, gpu_type=held.gpu_type, shares=held.shares)
            )
    return shown, failed


def _without(
    avoided: Set[str], admitted: tuple[str, ...] | None, takes: Mapping[str, NodeFacts]
) -> tuple[str, ...] | None:
    """The admitted nodes (None: all) less those to be avoided; where none is left, they are tried again."""
    if not avoided:
        return admitted
    left = tuple(name for name in (takes if admitted is None else admitted) if name not in avoided)
    return left or admitted


def _namespace(pod: PodFacts) -> str:
    return pod.job.key.partition("/")[0] if pod.job else ""


def _lingering(used: NodeUsage, ours: Mapping[str, JobFacts], lines: Queues) -> list[Job]:
    """What gangs still hold that have no plan any more."""

    def queue_of(pod: PodFacts) -> str:
        facts = ours.get(pod.seat[0]) if pod.seat else None
        return pod.queue or (lines.of(facts) if facts else lines.default(_namespace(pod)))

    return used.lingering(queue_of, lambda uid: lines.of(ours[uid]))


def _gpu_types(takes: Iterable[NodeFacts]) -> dict[str, GpuSpec]:
    """Facts per type. Where labels make nodes of one unknown product differ, the smallest memory counts."""
    specs = [facts.gpu for facts in takes if facts.gpu]
    return {spec.name: spec for spec in sorted(specs, key=lambda spec: -spec.memory_bytes)}


def _waits(facts: JobFacts, now: float) -> bool:
    """Whether a policy should decide about the job now, or in a moment."""
    return not (facts.finished or facts.suspended or facts.holds_gpus or facts.retry_at() > now + RETURN_SECONDS)


def _in_line(known: Mapping[str, JobFacts], kept: Set[str], now: float) -> list[JobFacts]:
    """Jobs that a policy is to decide about, but for those that are kept from it."""
    return [facts for uid, facts in known.items() if uid not in kept and _waits(facts, now)]


def _refused(
    known: Mapping[str, JobFacts],
    held_back: Mapping[str, Pending | None],
    lines: Queues,
    priorities: Mapping[str, PriorityClassObject],
) -> dict[str, Pending]:
    """Jobs that no policy can help, by UID, and those that are held back for a reason that is known."""
    refused = {uid: why for uid, why in held_back.items() if why and uid in known}
    return refused | {uid: why for uid, f in known.items() if (why := _refusal(f, lines, priorities))}


def _refusal(facts: JobFacts, lines: Queues, priorities: Mapping[str, PriorityClassObject]) -> Pending | None:
    """Why no policy can help the job."""
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
