"""All caches -> one `Observation`: the snapshot that policies see, and the facts that the other stages need.

GPUs are counted from two sources that together never miss one: every pod that is on a node and has not ended, and
every rank of a standing plan whose pod is not on a node yet. A plan that was decided but is not written yet
(`promised`) counts the same, so that two rounds never give one GPU twice. What of this comes after the end of other
pods, `node_usage` settles.

Facts of single objects are remembered for as long as the object is the same, and what was made of them for as long as
they are (`kept`), so that a round after a small change costs the change, not the cluster.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from trimtab import names
from trimtab.kube.objects import (
    DeviceClassObject,
    DeviceTaintRuleObject,
    Identity,
    JobObject,
    NodeObject,
    PodObject,
    PriorityClassObject,
    QueueObject,
    ResourceClaimObject,
    ResourceSliceObject,
)
from trimtab.observe import jobs, nodes, pods, queues, resources, running, stragglers
from trimtab.observe.claimed_gpus import ClaimedGpus
from trimtab.observe.eligibility import eligible
from trimtab.observe.ends import Ends
from trimtab.observe.facts_memo import FactsMemo
from trimtab.observe.failures import Failures, Held
from trimtab.observe.gpunodes import GpuNodes, Look
from trimtab.observe.jobs import JobFacts
from trimtab.observe.kept import Each, Kept, Same
from trimtab.observe.node_devices import DeviceFacts
from trimtab.observe.node_usage import Charges, Claim, NodeUsage, Pages
from trimtab.observe.nodes import NodeFacts
from trimtab.observe.pods import PodFacts
from trimtab.observe.problems import Problem
from trimtab.observe.queues import QueueFacts, Queues
from trimtab.observe.running import Mobility, Running, UsualRatio
from trimtab.observe.shown_jobs import ShownJobs, Surroundings, preempts, priority_of
from trimtab.observe.stragglers import Stragglers, Verdict, members
from trimtab.telemetry.isolation import isolated
from trimtab_policy.specs import GpuSpec
from trimtab_policy.types import Job, Pending, PendingReason, Requirements, Snapshot

RETURN_SECONDS = 60.0
"""A job that may start again so soon is in line already: else others take its other nodes when it has lost one."""

NOTHING_REPORTED = Look()


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
    what takes time to be believed, or not: the verdicts on slow GPUs, and what gangs have said of their `ends`.

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
        ends: Ends | None = None,
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
        self._running: FactsMemo[JobFacts, Running] = FactsMemo(
            "running", lambda job: running.read_running(job, self._mobility), running.broken
        )
        self._shown = ShownJobs(ends, self._mobility.speedup)
        self._charges = Charges()
        self._set_aside: dict[str, str] = {}
        self._kept = _Steps()

    def job(self, job: JobObject) -> JobFacts:
        """Facts of one job."""
        return self._jobs.one(job)

    def node(self, node: NodeObject | None) -> NodeFacts | None:
        """Facts of one node; None when it is gone. What its driver offers is as it was at the last look."""
        return (self._facts(node) or nodes.without_gpus(node, self._levels)) if node else None

    def look(self, caches: Caches) -> dict[str, NodeFacts]:
        """Take the nodes and devices of this moment. Facts by name of the nodes that have GPUs."""
        self._devices.look(caches.slices, caches.device_classes, caches.taint_rules)
        every = self._nodes.all(caches.nodes)
        return self._kept.offering.of((every, self._devices.inventory), lambda: self._offering(every))

    def _offering(self, every: list[tuple[NodeObject, NodeFacts | None]]) -> dict[str, NodeFacts]:
        found = {facts.name: facts for node, own in every if (facts := self._devices.of(node) or own)}
        self._set_aside = self._kept.set_aside.of(resources.set_aside(found.values()))
        return found

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
        every = self._jobs.all(objects)

        def anew() -> dict[str, JobFacts]:
            found = {facts.meta.uid: facts for _, facts in every}
            self._latest = dict(found)  # which changes as jobs do
            return _but(found, self._kept.others.of(found, lambda facts: not facts.ours or None))

        return self._kept.ours.of((every,), anew)

    def _known(self, ours: dict[str, JobFacts], limited: Mapping[str, JobFacts]) -> dict[str, JobFacts]:
        """Those that are not being deleted; with what Kueue leaves them where that is less than their specs allow."""
        less = self._kept.limited.of(dict(limited))
        leaving = self._kept.leaving.of(ours, lambda facts: facts.meta.deletion_timestamp)
        present = self._kept.present.of((ours, leaving), lambda: _but(ours, leaving))
        if not less:
            return present
        return self._kept.known.of(
            (present, less), lambda: present | {uid: facts for uid, facts in less.items() if uid in present}
        )

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
        steps, ours = self._kept, self._ours(caches.jobs)
        known = self._known(ours, limited or {})
        gpu_nodes = self._gpu_nodes(caches, known)
        runs = self._running.all(known.values())
        used = self._books(gpu_nodes, ours, known, runs, promised, caches, now)
        lines = self._lines(caches.queues)
        priorities = steps.priorities.of({each.metadata.name: each for each in caches.priority_classes})
        kept_back = steps.held_back.of(dict(held_back or {}))
        refusals = steps.refusals.of(known, lambda facts: _refusal(facts, lines, priorities), lines, priorities)
        refused = steps.refused.of((known, kept_back, refusals), lambda: _held_back(kept_back, known) | refusals)
        reports = self._reports(gpu_nodes, used)
        held, unavailable = self._unavailable(gpu_nodes, known, reports, used, now)
        takes = steps.takes.of((gpu_nodes, unavailable), lambda: _without(gpu_nodes, unavailable))
        slow = steps.slow.of(dict(self._slow(gpu_nodes, reports, used, now)))
        holding = [each for each in runs if each[0].meta.uid in used.placements]
        waiting = _in_line(runs, {*used.placements, *refused, *kept_back}, now)
        beyond = lines.beyond(((f, priority_of(f, priorities)) for f, _ in waiting), now, self._considered)
        turn = (*holding, *(each for each in waiting if each[0].meta.uid not in beyond))
        self._shown.forget(known)
        usual, leavers = self._usual_ratio(runs), steps.leavers.of(used.leavers)
        around = Surroundings(takes, priorities, lines, slow, held, usual, leavers)
        shown, failed = self._shown.look(turn, around, used, avoided or {}, now)
        snapshot = Snapshot(
            time=now,
            nodes=self._pages.turn(takes, used, reports, steps.speeds.of((slow,), lambda: _speeds(slow))),
            jobs=(*shown, *_lingering(used, ours, lines)),
            gpu_types=steps.gpu_types.of((takes,), lambda: _gpu_types(takes.values())),
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
            overallocated=steps.overallocated.of((used,), used.beyond),
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
            return NOTHING_REPORTED
        return self._kept.reports.of(
            isolated("reports", lambda: heard.look(gpu_nodes, used.requested), lambda _: Look())
        )

    def _unavailable(
        self,
        gpu_nodes: Mapping[str, NodeFacts],
        known: Mapping[str, JobFacts],
        reports: Look,
        used: NodeUsage,
        now: float,
    ) -> tuple[Held, dict[str, str]]:
        """What failures say of nodes, and why nodes take no pods: by themselves, their agents' word, or failures."""
        steps, aside = self._kept, self._set_aside
        unfit = steps.unfit.of(
            (gpu_nodes, aside), lambda: aside | {name: f.unavailable for name, f in gpu_nodes.items() if f.unavailable}
        )

        def look() -> Held:
            return self._failures.look(gpu_nodes, known, unfit, reports, used.requested, now)

        parts = gpu_nodes, known, unfit, reports, used
        held = isolated("failures", lambda: steps.held_anew.of(parts, look, now), lambda _: Held())
        held = steps.held.of(held)
        return held, steps.unavailable.of({**held.unavailable, **reports.unavailable, **unfit})

    def _slow(
        self, gpu_nodes: Mapping[str, NodeFacts], reports: Look, used: NodeUsage, now: float
    ) -> Mapping[str, Verdict]:
        """Nodes with slow GPUs."""
        seen = members(reports.telemetry, gpu_nodes, used.placements, used.requested)
        nothing: dict[str, Verdict] = {}
        return isolated("stragglers", lambda: self._stragglers.judge(seen, gpu_nodes, now), lambda _: nothing)

    def _problems(self, gpu_nodes: Mapping[str, NodeFacts], lines: Queues) -> tuple[Problem, ...]:
        aside = self._set_aside
        return (
            *self._kept.problems.of((gpu_nodes, aside, lines), lambda: tuple(_standing(gpu_nodes, aside, lines))),
            *stragglers.problems(self._stragglers.cards(), gpu_nodes),
        )

    def _lines(self, objects: Iterable[QueueObject]) -> Queues:
        every = self._queues.all(objects)
        return self._kept.lines.of((every,), lambda: Queues(queue for _, queue in every))

    def _usual_ratio(self, runs: Iterable[tuple[JobFacts, Running]]) -> UsualRatio:
        """What restarts cost here over what the model says."""
        measured = self._kept.measured.of([job for _, job in runs if job.restart_ratio is not None])
        return self._kept.usual.of((measured,), lambda: UsualRatio(measured))

    def _books(
        self,
        gpu_nodes: Mapping[str, NodeFacts],
        ours: Mapping[str, JobFacts],
        known: Mapping[str, JobFacts],
        runs: Iterable[tuple[JobFacts, Running]],
        promised: Iterable[Claim],
        caches: Caches,
        now: float,
    ) -> NodeUsage:
        """Who has what of the nodes: the very same where neither claims nor pods have changed, nor what these need."""
        steps = self._kept
        held = [claim for _, job in runs for claim in job.claims]
        seen = {(claim.job, claim.epoch) for claim in held}
        news = [claim for claim in promised if claim.job in known and (claim.job, claim.epoch) not in seen]
        claims = steps.claims.of([*held, *news])
        needs = steps.needs.of({claim.job: known[claim.job].asks for claim in claims})
        present = self._present(caches.pods, ours)
        devices = steps.device_claims.of(list(caches.claims))

        def count() -> NodeUsage:
            used = NodeUsage(gpu_nodes, claims, now)
            self._count(used, present, devices, needs)
            return used

        return steps.used.of((gpu_nodes, claims, needs, present, devices, self._devices.inventory), count, now)

    def _present(self, objects: Iterable[PodObject], ours: Mapping[str, JobFacts]) -> list[PodFacts]:
        """These pods; of no job those that say that they are of one whose name or namespace is another."""
        steps, listed = self._kept, self._pods.all(objects)
        said = steps.said_jobs.of((listed,), lambda: {pod.member[0] for _, pod in listed if pod.member})
        named = steps.identities.of(ours, lambda facts: facts.meta.identity if facts.meta.uid in said else None, said)
        return steps.present_pods.of(
            steps.own_pods.of((listed, named), lambda: _of_own_jobs([pod for _, pod in listed], named))
        )

    def _count(
        self,
        used: NodeUsage,
        present: list[PodFacts],
        devices: Iterable[ResourceClaimObject],
        needs: Mapping[str, Requirements | None],
    ) -> None:
        charged, without_pods = self._charged(present, devices, used)
        self._charges.turn(charged)
        used.pods(self._charges)
        for node, gpus in without_pods.items():
            used.devices(node, gpus)
        used.settle(needs)

    def _charged(
        self, present: list[PodFacts], claims: Iterable[ResourceClaimObject], used: NodeUsage
    ) -> tuple[list[PodFacts], Mapping[str, int]]:
        """The pods with the GPUs that they have by claims, and GPUs by node that claims hold for no pod."""
        holdings = self._devices.holdings(claims)
        if not holdings and not any(pod.claims for pod in present):
            return present, {}
        claimed = ClaimedGpus(holdings, present, used.standing_shares())
        return [claimed.charged(pod) for pod in present], claimed.without_pods

    def _gpu_nodes(self, caches: Caches, known: Mapping[str, JobFacts]) -> dict[str, NodeFacts]:
        """Facts by name of the nodes that have GPUs, and of those that have none any more but a plan that lies there:
        they are there, and only who is gone takes its gangs along."""
        offering = self.look(caches)
        plans = self._kept.plans.of(known, lambda facts: facts.plan_nodes or None)
        lacking = self._kept.lacking.of(
            (plans, offering), lambda: frozenset(chain.from_iterable(plans.values())).difference(offering)
        )
        if not lacking:
            return offering
        every = self._nodes.all(caches.nodes)
        bare = self._kept.bare.of([node for node, _ in every if node.metadata.name in lacking])
        return self._kept.gpu_nodes.of(
            (offering, bare),
            lambda: offering | {node.metadata.name: nodes.without_gpus(node, self._levels) for node in bare},
        )


class _Steps:
    """The last results of all steps of a look."""

    def __init__(self) -> None:
        self.others: Each[bool] = Each()
        self.ours: Kept[dict[str, JobFacts]] = Kept()
        self.leaving: Each[str] = Each()
        self.present: Kept[dict[str, JobFacts]] = Kept()
        self.limited: Same[dict[str, JobFacts]] = Same()
        self.known: Kept[dict[str, JobFacts]] = Kept()
        self.plans: Each[tuple[str, ...]] = Each()
        self.offering: Kept[dict[str, NodeFacts]] = Kept()
        self.set_aside: Same[dict[str, str]] = Same()
        self.lacking: Kept[frozenset[str]] = Kept()
        self.bare: Same[list[NodeObject]] = Same()
        self.gpu_nodes: Kept[dict[str, NodeFacts]] = Kept()
        self.claims: Same[list[Claim]] = Same()
        self.needs: Same[dict[str, Requirements | None]] = Same()
        self.said_jobs: Kept[set[str]] = Kept()
        self.identities: Each[Identity] = Each()
        self.own_pods: Kept[list[PodFacts]] = Kept()
        self.present_pods: Same[list[PodFacts]] = Same()
        self.device_claims: Same[list[ResourceClaimObject]] = Same()
        self.used: Kept[NodeUsage] = Kept(until=lambda used: used.until)
        self.overallocated: Kept[dict[str, int]] = Kept()
        self.lines: Kept[Queues] = Kept()
        self.priorities: Same[dict[str, PriorityClassObject]] = Same()
        self.held_back: Same[dict[str, Pending | None]] = Same()
        self.refusals: Each[Pending] = Each()
        self.refused: Kept[dict[str, Pending]] = Kept()
        self.reports: Same[Look] = Same()
        self.unfit: Kept[dict[str, str]] = Kept()
        self.held_anew: Kept[Held] = Kept(until=lambda held: held.until)
        self.held: Same[Held] = Same()
        self.unavailable: Same[dict[str, str]] = Same()
        self.takes: Kept[dict[str, NodeFacts]] = Kept()
        self.slow: Same[dict[str, Verdict]] = Same()
        self.speeds: Kept[dict[str, float]] = Kept()
        self.gpu_types: Kept[dict[str, GpuSpec]] = Kept()
        self.measured: Same[list[Running]] = Same()
        self.usual: Kept[UsualRatio] = Kept()
        self.leavers: Same[dict[str, int]] = Same()
        self.problems: Kept[tuple[Problem, ...]] = Kept()


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
        priority=priority_of(facts, priorities),
        preempts=preempts(facts, priorities),
        eligible=eligible(facts.template["spec"], takes),
    )


def _but(jobs: dict[str, JobFacts], some: Collection[str]) -> dict[str, JobFacts]:
    """The jobs but for some, by UID; the very same where it is none."""
    return {uid: facts for uid, facts in jobs.items() if uid not in some} if some else jobs


def _of_own_jobs(pods: list[PodFacts], named: Mapping[str, Identity]) -> list[PodFacts]:
    """The pods; of no job those of which the one that they name, by UID, is another one."""
    return [
        pod
        if pod.member is None or (job := named.get(pod.member[0])) is None or job is pod.job or job == pod.job
        else replace(pod, seat=None, member=None, job=None)
        for pod in pods
    ]


def _standing(gpu_nodes: Mapping[str, NodeFacts], set_aside: Mapping[str, str], lines: Queues) -> Iterator[Problem]:
    """Problems of nodes and queues, whatever happens on them."""
    for facts in gpu_nodes.values():
        yield from facts.problems
    for name, why in set_aside.items():
        yield Problem("Node", "", name, gpu_nodes[name].uid, "OtherResource", why)
    yield from lines.problems(gpu_nodes.values())


def _without(nodes: Mapping[str, NodeFacts], unavailable: Mapping[str, str]) -> dict[str, NodeFacts]:
    return {name: facts for name, facts in nodes.items() if name not in unavailable}


def _speeds(slow: Mapping[str, Verdict]) -> dict[str, float]:
    return {name: card.speed for name, card in slow.items()}


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


def _in_line(jobs: Iterable[tuple[JobFacts, Running]], kept: Set[str], now: float) -> list[tuple[JobFacts, Running]]:
    """Jobs that a policy is to decide about, but for those that are kept from it."""
    return [each for each in jobs if each[0].meta.uid not in kept and _waits(each[0], now)]


def _held_back(held_back: Mapping[str, Pending | None], known: Collection[str]) -> dict[str, Pending]:
    """Of these jobs, by UID, those that are held back for a reason that is known."""
    return {uid: why for uid, why in held_back.items() if why and uid in known}


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
