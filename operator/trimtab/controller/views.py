"""What the next step of a job depends on, put together from the caches: the one place where the stages meet.

`apply` must not know how nodes are read or how specs are judged; here the facts of `observe`, the rules of `decide`
and the objects of `plan` are brought into the terms of `trimtab.apply.steps`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from msgspec import Struct, field, structs

from trimtab import names
from trimtab.api.convert import to_grants, to_plan
from trimtab.api.history import FailureCause
from trimtab.api.status import JobStatus, Leaving, Plan, PlanTerms, Shadow
from trimtab.apply import steps, theirs, transitions
from trimtab.apply.gang_failures import FAILED, SUCCEEDED, GangFailure
from trimtab.apply.gates import released
from trimtab.apply.idleness import IdleGang
from trimtab.apply.steps import JobContext
from trimtab.apply.stops import StopOrder
from trimtab.apply.theirs import TheirJob
from trimtab.controller.cluster import Cluster
from trimtab.controller.compute_domains import spans_domain
from trimtab.controller.jobs import pending_status, stop_triggers
from trimtab.controller.loop.mass_failure import GONE, MassFailureGuard
from trimtab.controller.reports.progress import ProgressReports
from trimtab.errors import NotFound
from trimtab.kube.objects import JobObject, Meta, PodObject
from trimtab.observe import pods as observed_pods
from trimtab.observe import queues
from trimtab.observe.gpunodes import GpuNodes
from trimtab.observe.jobs import JobFacts
from trimtab.observe.node_usage import Claim
from trimtab.observe.nodes import NodeFacts
from trimtab.observe.queues import Queues
from trimtab.observe.snapshot import ClusterObserver
from trimtab.plan import fake
from trimtab.plan.gang import gang_plan
from trimtab.plan.objects import GangPlan, class_of
from trimtab.settings import Settings
from trimtab_policy.types import Pending, Placement

SCHEDULED_PER_SECOND = 50
"""Pods that kube-scheduler is sure to bind in a second while others wait, too: it was seen to bind 360 to 500 that are
pinned, and 180 with an extended resource is what upstream holds it to."""
TAKEN_OVER_SECONDS = 5.0
"""What is left to a gang that another controller had released, however long ago: caches are new, clocks differ."""
HOLD_SECONDS = 5.0
"""A program that fails is not blamed before: agents read their GPUs every second, and report faults at once."""
LAST_SECONDS = 60.0
"""Nor is a job without restarts given up before, where another pod of the gang does not tell of its end: its node may
have died, which Kubernetes says after 50 s. All other failures can be corrected then
(`trimtab.apply.unreachable_nodes`)."""
REFUSED_SECONDS = 300.0
"""A node that kube-scheduler would not take is left out of that job's plans for so long. What it looks at (volumes,
other pods' anti-affinity) is not ours to judge, and may have changed by then. Forgotten by a restart."""


class PlannedPlacement(Struct, frozen=True):
    """A placement, and what its plan says besides."""

    placement: Placement
    policy: str
    terms: PlanTerms | None = None


class Promise(PlannedPlacement, frozen=True, kw_only=True):
    """A placement that is decided and not written yet."""

    generation: int
    """Generation of the spec that it was decided for."""
    epoch: int
    """That its plan will have."""
    waits_for: tuple[Leaving, ...] = ()
    """Gangs that hold some of its GPUs still, and are asked to stop once the plan is written."""

    def claim(self) -> Claim:
        """What counts as taken although no status shows it yet."""
        after = tuple((left.digest, left.epoch) for left in self.waits_for if left.digest)
        return Claim(self.placement.job, self.epoch, self.placement, after, to_grants(self.terms))


class ShadowDecision(Struct, frozen=True):
    """What the shadow policy would have done, and instead of what."""

    shadow: Shadow
    epoch: int | None
    """Of the plan that was decided at the same time; None where the job had to wait."""


class Rest(NamedTuple):
    """All that the next step of a job depends on that has no gang, and nothing of one, but for the time."""

    job: JobObject
    pending: Pending | None
    watched: ShadowDecision | None

    def same(self, other: Rest) -> bool:
        """Whether nothing has happened in between."""
        return self.job is other.job and (self.pending, self.watched) == (other.pending, other.watched)


class DriverState(Struct):
    """What is remembered of one job between two looks: confirmed by the API server, but not visible yet."""

    task: asyncio.Task[None] | None = None
    promise: Promise | None = None
    pending: Pending | None = None
    setback: GangFailure | None = None
    order: StopOrder | None = None
    due: float = math.inf
    """POSIX time at which its next step changes though nothing else does."""
    unwanted: int | None = None
    """Epoch of the plan that need not end any more for somebody's sake."""
    watched: ShadowDecision | None = None
    assumed: dict[str, str] = field(default_factory=dict)
    """Pod UID -> node of answered bindings."""
    deleted: dict[str, bool] = field(default_factory=dict)
    """UID -> whether by force, of answered deletions of pods, and of what a gang has besides."""
    binding_since: float | None = None
    """Monotonic time of the first binding, or release, of a gang that is not wholly bound."""
    binding_limit: float = 0.0
    """Seconds that it may take from then."""
    failed_since: float | None = None
    """Monotonic time at which a pod of it was first seen to have failed."""
    ungrouped: int | None = None
    """Epoch of the plan whose PodGroup was refused."""
    unlinked: int | None = None
    """Epoch of the plan whose ComputeDomain was refused."""
    domain_failed: tuple[int, float] | None = None
    """Epoch of the plan whose ComputeDomain could not be created, and the monotonic time of the first attempt."""
    refused: dict[str, float] = field(default_factory=dict)
    """Node -> monotonic time until which it is left out of this job's plans: kube-scheduler would not take it."""
    rest: tuple[Rest, float] | None = None
    """When there was last found to be nothing to do for it, as a POSIX time, and in which state."""


def own_template(facts: JobFacts) -> Mapping[str, Any]:
    """What the pods of a job are made of where nothing is added to its template."""
    return facts.template


def nobody_idle(_uid: str, _facts: JobFacts) -> IdleGang | None:
    """Where nobody watches what gangs do."""
    return None


class JobSight(Struct, frozen=True):
    """What the caches show of one job at a moment."""

    meta: Meta
    status: JobStatus
    now: float
    """POSIX time."""
    pods: tuple[PodObject, ...]
    silent: dict[str, float]
    """Nodes of the pods that do not answer -> since when, as a POSIX time."""
    facts: JobFacts | None = None
    """None of a job that is being deleted, or gone."""
    groups: tuple[Meta, ...] | None = None
    """PodGroups; None where there is no such kind."""
    claim_templates: tuple[Meta, ...] | None = None
    """ResourceClaimTemplates; None where there is no such kind, or they are not listed yet."""
    compute_domains: tuple[Meta, ...] | None = None
    """The same of ComputeDomains."""

    theirs: TheirJob | None = None
    """The job of another kind that it stands in for."""
    change: stop_triggers.Edited | None = None
    run: fake.FakeRun | None = None

    @property
    def owned(self) -> set[str]:
        """UIDs of PodGroups, claim templates and ComputeDomains."""
        every = (*(self.groups or ()), *(self.claim_templates or ()), *(self.compute_domains or ()))
        return {each.uid for each in every}


class Views:
    """Puts views together, and brings what is remembered of jobs up to date: looking at a job changes nothing.

    Remembers nothing itself but since when each node is down (`mass_failures`).
    """

    def __init__(
        self,
        cluster: Cluster,
        observer: ClusterObserver,
        settings: Settings,
        wall: Callable[[], float] = time.time,
        *,
        gpunodes: GpuNodes | None = None,
        progress: ProgressReports | None = None,
        template: Callable[[JobFacts], Mapping[str, Any]] = own_template,
        idle: Callable[[str, JobFacts], IdleGang | None] = nobody_idle,
        theirs: Callable[[Meta], TheirJob | None] = lambda meta: None,
    ) -> None:
        """`gpunodes` is what agents report, and `progress` what running gangs do; None where nobody listens. `idle`
        says of a job (UID, facts) whether its gang does nothing.

        `template` is what the pods of a job are made of: its own template, and what Kueue's quota adds to it. `theirs`
        is the job of another kind behind a stand-in, as far as it is known.
        """
        self._theirs = theirs
        self._cluster = cluster
        self._observer = observer
        self._settings = settings
        self._wall = wall
        self._gpunodes = gpunodes
        self._progress = progress
        self._template = template
        self._idle = idle
        self._by_scheduler = settings.binding.mode == "Extender"
        self.mass_failures = MassFailureGuard(settings.gang, settings.failures, wall=wall)

    def rest(self, uid: str, gang: DriverState) -> Rest | None:
        """What the next step of a job without a gang depends on; None where it depends on more."""
        job = self._cluster.job(uid)
        facts = self._observer.job(job) if job else None
        if job is None or facts is None or facts.holds_gpus:
            return None
        if gang.promise or gang.setback or gang.order or gang.refused or facts.stands_in:
            return None
        identity = facts.meta.identity
        if self._cluster.pods_of(identity.digest) or self._cluster.pod_groups_of(identity):
            return None
        if self._cluster.claim_templates_of(identity) or self._cluster.compute_domains_of(identity):
            return None
        return Rest(job, gang.pending, gang.watched)

    def sight(self, uid: str) -> JobSight | None:
        """What the caches show of the job; None for one that is gone, not ours, or unreadable."""
        job = self._cluster.job(uid)
        facts = self._observer.job(job) if job else None
        if facts is None or not facts.ours:
            return None
        if facts.meta.deletion_timestamp:
            return self._with_objects(self.last_sight(facts.meta, facts.status))
        if facts.unreadable:
            return None
        sight = self.last_sight(facts.meta, facts.status)
        if facts.stands_in:
            if (behind := self._theirs(facts.meta)) is None:
                return None  # nothing is done before it is known what that job itself says
            pods = theirs.of_gang(sight.pods, facts.status.plan)
            sight = structs.replace(sight, pods=pods, theirs=behind)
        return structs.replace(
            sight if sight.theirs else self._with_objects(sight),
            facts=facts,
            change=stop_triggers.edited(facts, self._lines),
            run=self._fake_run(facts),
        )

    def _with_objects(self, sight: JobSight) -> JobSight:
        """With what its gangs have besides pods."""
        job = sight.meta.identity
        return structs.replace(
            sight,
            groups=self._cluster.pod_groups_of(job),
            claim_templates=self._cluster.claim_templates_of(job),
            compute_domains=self._cluster.compute_domains_of(job),
        )

    def last_sight(self, meta: Meta, status: JobStatus) -> JobSight:
        """That of a job which is being deleted, or gone: what is left to do is to take its gang down. The garbage
        collector does so, too, but not before all finalizers are gone, and anybody may have put one there; nor before
        it knows the kind, and not at all while any API of the cluster does not answer."""
        pods = self._cluster.pods_of(meta.identity.digest)
        return JobSight(meta, status, self._wall(), pods, self._silent(pods))

    def remember(self, gang: DriverState, sight: JobSight | None) -> None:
        """Bring what is remembered of a job up to what the caches show: drop what has become visible, or void; start
        the clocks of what has begun; and note when the next step changes though nothing else does."""
        if sight is None:
            gang.due, gang.binding_since = math.inf, None  # nothing is done for it when its time comes
            return
        known = {pod.metadata.uid for pod in sight.pods}
        gang.due = steps.due(sight.pods, sight.silent, self._settings.failures, sight.now)
        if (facts := sight.facts) is None:
            gang.deleted = {each: force for each, force in gang.deleted.items() if each in known | sight.owned}
            gang.binding_since = gang.promise = None
            return
        _settle(gang, facts, known | sight.owned)
        plan, now = facts.status.plan, time.monotonic()
        gang.refused = {node: until for node, until in gang.refused.items() if until > now}
        if plan and self._by_scheduler and not transitions.is_scheduled(facts.status) and released(sight.pods):
            self.begin_binding(gang, len(plan.nodes), plan.created_time.timestamp())  # by a controller before us
        failed = plan is not None and any(pod.status.phase == FAILED for pod in sight.pods)
        gang.failed_since = (gang.failed_since or now) if failed else None
        starts = stop_triggers.start_due(facts, sight.now, self._settings.failures.start_timeout_seconds)
        gang.due = min(gang.due, stop_triggers.due(facts, sight.change, sight.run), starts)
        if (left := self._held_until(gang, sight) - now) > 0:
            gang.due = min(gang.due, sight.now + left)

    def view(self, gang: DriverState, sight: JobSight) -> JobContext:
        """What the next step of the job depends on, by what the caches show and what is remembered of it."""
        if (facts := sight.facts) is None:
            return self._last_view(gang, sight)
        plan, change = facts.status.plan, sight.change
        nodes = {node.name: self._node(node.name) for node in plan.nodes} if plan else {}
        return JobContext(
            meta=facts.meta,
            status=facts.status,
            suspended=facts.suspended or bool(sight.theirs and sight.theirs.suspended_by_user),
            finished=facts.finished,
            max_restarts=facts.spec.max_restarts if facts.spec else 0,
            now=sight.now,
            backoff=(self._settings.gang.backoff_initial_seconds, self._settings.gang.backoff_max_seconds),
            pods=sight.pods,
            assumed=gang.assumed,
            deleted=gang.deleted,
            has_service=self._cluster.has_service(facts.meta.identity),
            gated=self._by_scheduler,
            pod_groups=None if plan and gang.ungrouped == plan.epoch else sight.groups,
            claim_templates=sight.claim_templates,
            compute_domains=sight.compute_domains,
            linked=self._linked(gang, sight, nodes),
            by_claim=plan is not None and bool(class_of(plan.gpu_resource)),
            plan=self._promised(facts, gang.promise),
            pending=pending_status.told(gang.pending, facts, self.refused_nodes(gang)),
            order=gang.order or (change.order(sight.now) if change else None),
            unwanted=plan is not None and gang.unwanted == plan.epoch,
            unfit=self._unfit(facts),
            grace_seconds=stop_triggers.grace(facts, gang.order, self._settings.preemption.most_grace_seconds),
            leaving=stop_triggers.leaving(plan, self._cluster.pods_of) if plan else (),
            outdated=change.note(sight.now) if change else "",
            setback=gang.setback
            or self._broken(facts, sight.pods)
            or self._without_room(facts, sight.now)
            or _without_pods(sight),
            unavailable=self._unavailable_of(plan, nodes) if plan else {},
            lost={name: why for name, node in nodes.items() if (why := self.mass_failures.lost(name, node))},
            unready=frozenset(name for name, node in nodes.items() if node is None or not node.ready),
            spared=self.mass_failures.spared(nodes),
            holding=self._held_until(gang, sight) > time.monotonic(),
            rules=self._settings.failures,
            gone_nodes=self._gone(sight.pods),
            silent=sight.silent,
            binding_overdue=self._overdue(gang),
            progress=fake.progress(sight.run, sight.now) if sight.run else None,
            report=(self._progress.report(facts.meta.uid, facts) if self._progress else None)
            or stop_triggers.answer(facts, sight.run, sight.pods, sight.now),
            idle=self._idle(facts.meta.uid, facts),
            shadow=_said(gang.watched, plan),
            theirs=sight.theirs,
        )

    def _linked(self, gang: DriverState, sight: JobSight, nodes: Mapping[str, NodeFacts | None]) -> bool:
        """Whether the gang of the plan is to have a ComputeDomain. A template with claims of its own is left as it is:
        one of them may be for a channel."""
        facts, plan = sight.facts, sight.status.plan
        if facts is None or plan is None or sight.compute_domains is None or sight.pods or gang.unlinked == plan.epoch:
            return False
        return spans_domain(plan, nodes) and not facts.template["spec"].get("resourceClaims")

    def _last_view(self, gang: DriverState, sight: JobSight) -> JobContext:
        return JobContext(
            meta=sight.meta,
            status=sight.status,
            suspended=False,
            finished=False,
            max_restarts=0,
            now=sight.now,
            backoff=(self._settings.gang.backoff_initial_seconds, self._settings.gang.backoff_max_seconds),
            being_deleted=True,
            pods=sight.pods,
            pod_groups=sight.groups,
            claim_templates=sight.claim_templates,
            compute_domains=sight.compute_domains,
            deleted=gang.deleted,
            rules=self._settings.failures,
            gone_nodes=self._gone(sight.pods),
            silent=sight.silent,
        )

    def _gone(self, pods: Iterable[PodObject]) -> frozenset[str]:
        """Nodes of the pods that do not exist any more."""
        return frozenset(n for pod in pods if (n := pod.spec.node_name) and n not in self._cluster.nodes.items)

    def gang_plan(self, view: JobContext) -> GangPlan:
        """What the objects of a planned job are made of."""
        job = self._cluster.job(view.meta.uid)
        plan = view.status.plan
        facts = self._observer.job(job) if job else None
        if plan is None or facts is None or facts.spec is None or facts.training is None:
            raise NotFound(f"job {view.meta.key} is gone, or can no longer be understood")
        speedup = self._settings.fake.speedup
        faked = self._settings.fake.enabled
        annotations = fake.pod_annotations(facts.meta, plan, speedup, stop_triggers.left(facts)) if faked else None
        epoch, reports = str(plan.epoch), self._settings.reports
        return gang_plan(
            facts.meta,
            facts.spec,
            self._template(facts),
            facts.training,
            plan,
            annotations,
            report_url=reports.url if reports.listens else "",
            report_ca=reports.ca,
            scheduler=self._settings.binding.scheduler_name if self._by_scheduler else "",
            resume_step=stop_triggers.saved_step(facts),
            grouped=any(group.labels.get(names.LABEL_EPOCH) == epoch for group in view.pod_groups or ()),
            domained=any(domain.labels.get(names.LABEL_EPOCH) == epoch for domain in view.compute_domains or ()),
        )

    @property
    def suspects(self) -> Collection[str]:
        """Nodes that gangs may have to leave soon, as time goes on, because of what their agents say."""
        return self._gpunodes.unhealthy if self._gpunodes else ()

    def begin_binding(self, gang: DriverState, pods: int, planned: float | None = None) -> None:
        """Start the clock of a gang whose first pod is about to be bound, unless it runs already.

        `planned` is the POSIX time of the plan of a gang that a controller before us has released: its clock is lost,
        and controllers that come and go must not let the gang wait for ever. What is left is a few seconds at least.
        """
        if gang.binding_since is not None:
            return
        limit = self._settings.gang.bind_timeout_seconds
        if self._by_scheduler:
            limit = max(self._settings.binding.timeout_seconds, pods / SCHEDULED_PER_SECOND)
        waited = 0.0 if planned is None else max(0.0, min(self._wall() - planned, limit - TAKEN_OVER_SECONDS))
        gang.binding_since, gang.binding_limit = time.monotonic() - waited, limit

    def refuse(self, gang: DriverState, nodes: Iterable[str]) -> None:
        """Leave nodes that kube-scheduler would not take out of the job's next plans, for a while."""
        until = time.monotonic() + REFUSED_SECONDS
        gang.refused |= dict.fromkeys(nodes, until)

    def refused_nodes(self, gang: DriverState) -> frozenset[str]:
        """Nodes that are left out of the job's plans now."""
        now = time.monotonic()
        return frozenset(node for node, until in gang.refused.items() if until > now)

    def next_progress(self, jobs: Iterable[JobFacts]) -> float:
        """Seconds until the progress of a fake gang is to be noted; infinite outside fake mode."""
        if not self._settings.fake.enabled:
            return math.inf
        now = self._wall()
        runs = (run for facts in jobs if facts.holds_gpus and (run := self._fake_run(facts)))
        return min((fake.next_progress(run, now) for run in runs), default=math.inf)

    def _fake_run(self, facts: JobFacts) -> fake.FakeRun | None:
        if not self._settings.fake.enabled or facts.training is None:
            return None
        return fake.run_of(facts.status, facts.training.steps, self._settings.fake.speedup)

    def _promised(self, facts: JobFacts, promise: Promise | None) -> Plan | None:
        return self.next_plan(facts, promise, promise.waits_for) if promise else None

    def next_plan(self, facts: JobFacts, decided: PlannedPlacement, waits_for: tuple[Leaving, ...] = ()) -> Plan | None:
        """The next plan of the job as it is written; None where the first of its nodes is gone, or has no GPUs."""
        placement = decided.placement
        node = self._node(placement.shares[0].node)
        if node is None or not node.resource:
            return None
        return to_plan(
            placement,
            epoch=(facts.status.last_epoch or 0) + 1,
            policy=decided.policy,
            resource=node.resource,
            generation=facts.meta.generation,
            now=datetime.fromtimestamp(int(self._wall()), UTC),
            speedup=self._settings.fake.speedup if self._settings.fake.enabled else 1.0,
            left=stop_triggers.left(facts),
            waits_for=waits_for,
            terms=decided.terms,
        )

    def _lines(self) -> Queues:
        return Queues(queues.facts(queue) for queue in self._cluster.queues.items.values())

    def _unfit(self, facts: JobFacts) -> str:
        """Why pods of the plan that is to follow could not be made where it says, if one is to follow."""
        stop = facts.status.stop
        if stop is None or stop.successor is None:
            return ""
        nodes = {node.name: self._node(node.name) for node in stop.successor.nodes}
        return next((f"node {at}: {why}" for at, why in self._unavailable_of(stop.successor, nodes).items()), "")

    def _node(self, name: str) -> NodeFacts | None:
        return self._observer.node(self._cluster.nodes.items.get(name))

    def _unavailable_of(self, plan: Plan, nodes: Mapping[str, NodeFacts | None]) -> dict[str, str]:
        """Nodes of the plan that take no new pods of it -> why."""
        found = {name: self._unavailable(name, node, plan.gpu_resource) for name, node in nodes.items()}
        return {name: why for name, why in found.items() if why}

    def _unavailable(self, name: str, node: NodeFacts | None, resource: str) -> str:
        """Why the node takes no new pods that ask for GPUs by this resource; empty when it does."""
        if node is None:
            return GONE
        if node.gpu and node.resource != resource:
            return f"its GPUs are asked for by {node.resource} now, the pods of its plan ask for {resource}"
        closed = node.barred if self.mass_failures.late(name, node) else node.unavailable
        return closed or (self._gpunodes.unavailable(name) if self._gpunodes else "")

    def _silent(self, pods: Iterable[PodObject]) -> dict[str, float]:
        """Nodes of the pods that do not answer, and since when. Of one without a time nobody knows how long."""
        if self.mass_failures.holds:
            return {}
        found = {name: self._node(name) for pod in pods if (name := pod.spec.node_name)}
        return {name: node.turned for name, node in found.items() if node and node.silent and node.turned}

    def _held_until(self, gang: DriverState, sight: JobSight) -> float:
        """Monotonic time until which a failure of the training is not to be judged: what has caused it may be told a
        moment later. Minus infinity where nothing has failed."""
        facts, plan = sight.facts, sight.status.plan
        if gang.failed_since is None or facts is None or plan is None:
            return -math.inf
        heard = self._gpunodes and any(self._gpunodes.follows(node.name) for node in plan.nodes)
        last = facts.spec is not None and facts.status.restarts >= facts.spec.max_restarts
        answers = all(pod.status.phase in (FAILED, SUCCEEDED) for pod in sight.pods)
        return gang.failed_since + (LAST_SECONDS if last and not answers else HOLD_SECONDS if heard else 0.0)

    def _broken(self, facts: JobFacts, pods: Iterable[PodObject]) -> GangFailure | None:
        """A GPU that the gang runs on is unhealthy, and has been for as long as a grace, or has ended a pod of it: that
        on the GPU hangs as often as it ends, and those on other nodes end in its place."""
        plan = facts.status.plan
        if plan is None or self._gpunodes is None or not self._gpunodes.unhealthy:
            return None
        failed = any(pod.status.phase == FAILED for pod in pods)
        for node in plan.nodes:
            if node.name not in self._gpunodes.unhealthy:
                continue
            here, planned = _on(node.name, pods), plan.created_time.timestamp()
            if why := self._gpunodes.must_leave(node.name, here, planned, grace=not failed):
                return GangFailure(names.REASON_GPU_UNHEALTHY, why, cause=FailureCause.GPU, node=node.name)
        return None

    def _without_room(self, facts: JobFacts, now: float) -> GangFailure | None:
        """Pods that the plan waits for do not go, though they should have long since."""
        plan = facts.status.plan
        if plan is None or transitions.is_scheduled(facts.status):
            return None
        most = self._settings.preemption.most_grace_seconds
        for left, pod in stop_triggers.held_by(plan, self._cluster.pods_of):
            holder = self._cluster.job_named(left.job)
            same = holder is not None and holder.metadata.identity.digest == left.digest
            known = self._observer.job(holder) if holder and same else None
            if told := stop_triggers.without_room(plan, pod, known, now, most):
                return told
        return None

    def suffers(self, facts: JobFacts, node: str) -> bool:
        """Whether the job's pods on the node may be those that have a broken GPU of it."""
        plan = facts.status.plan
        if plan is None or self._gpunodes is None:
            return False
        pods = _on(node, self._cluster.pods_of(facts.meta.identity.digest))
        return bool(self._gpunodes.must_leave(node, pods, plan.created_time.timestamp(), grace=False))

    def _overdue(self, gang: DriverState) -> bool:
        return gang.binding_since is not None and time.monotonic() - gang.binding_since >= gang.binding_limit


def _on(node: str, pods: Iterable[PodObject]) -> list[str]:
    """`namespace/name` of those that are on a node."""
    return [pod.metadata.key for pod in pods if pod.spec.node_name == node]


def _said(watched: ShadowDecision | None, plan: Plan | None) -> Shadow | None:
    """What the shadow policy has said about this very plan, or about a job that has none."""
    return watched.shadow if watched and watched.epoch == (plan.epoch if plan else None) else None


def _without_pods(sight: JobSight) -> GangFailure | None:
    """The pods of a stand-in's plan are not made, or are not those that it is for."""
    plan, job = sight.status.plan, sight.theirs
    if plan is None or job is None or transitions.is_scheduled(sight.status):
        return None
    waiting = {} if theirs.other_shape(job, plan) else job.waiting
    asked = ((rank, pod, observed_pods.request(pod, plan.gpu_resource)) for rank, pod in waiting.items())
    others = (theirs.different(pod, gpus, plan, rank) for rank, pod, gpus in asked if rank < len(plan.nodes))
    return next(filter(None, others), None) or theirs.never_made(job, plan, sight.pods, sight.now)


def _settle(gang: DriverState, facts: JobFacts, known: set[str]) -> None:
    """Drop what was remembered and has become visible, or void."""
    gang.deleted = {pod: force for pod, force in gang.deleted.items() if pod in known}
    gang.assumed = {pod: node for pod, node in gang.assumed.items() if pod in known}
    if facts.status.plan or facts.suspended or facts.finished:
        gang.promise = gang.pending = None
    elif gang.promise and gang.promise.generation != facts.meta.generation:
        gang.promise = None
    if facts.status.plan is None:
        gang.setback = gang.order = gang.unwanted = None
    elif gang.order and gang.order.epoch != facts.status.plan.epoch:
        gang.order = None
    if facts.status.plan is None or transitions.is_scheduled(facts.status):
        gang.binding_since = None
