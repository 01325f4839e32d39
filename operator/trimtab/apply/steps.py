"""The next step of one job: a pure function of its status, its pods and what stands in their way.

A job's life is a sequence of small steps, each a set of writes that may be sent in parallel and repeated without harm.
No step depends on memory: the plan in the status says what must exist, the pods say what does, and the difference is
the step. A controller that dies between any two writes leaves a state from which this same function goes on.

    plan written -> Service and pods created -> all pods bound -> GangScheduled -> PodsReady -> Complete

Who binds is a setting. Direct: we do, all pods at once. Extender: kube-scheduler does; pods are born behind a gate, and
when all of them exist the gates of all are taken away at once.

All or none: whatever stops a gang before it runs as a whole (a node gone, a refusal, a pod deleted, a time-out) takes
the plan out of the status in one write; pods without a plan are deleted in the next step, and the job is planned anew
after a back-off. A plan is thus never changed, only replaced by one of a higher epoch. A gang that is to stop for any
other reason is asked first (`stops`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from trimtab import names
from trimtab.api import conditions
from trimtab.api.status import JobStatus, PendingStatus, Plan, Shadow
from trimtab.apply import idleness, stops, theirs, transitions, unreachable_nodes
from trimtab.apply.actions import (
    AnnotatePod,
    BindPod,
    CreateClaimTemplate,
    CreateComputeDomain,
    CreatePod,
    CreatePodGroup,
    CreateService,
    DeleteClaimTemplate,
    DeleteComputeDomain,
    DeletePod,
    DeletePodGroup,
    ReleasePod,
    Step,
    WriteStatus,
)
from trimtab.apply.gang_failures import FAILED, RUNNING, SUCCEEDED, GangFailure, GangState, last_word, setback_of
from trimtab.apply.gates import waits
from trimtab.apply.idleness import IdleGang
from trimtab.apply.stops import StopOrder
from trimtab.apply.theirs import TheirJob
from trimtab.apply.transitions import GangReport, JobEvent
from trimtab.kube.objects import Meta, PodObject
from trimtab.settings import FailureSettings

HUNG_SECONDS = 15.0
"""A pod that has not ended so long after it should have is told of: kubelets are late by seconds."""


class JobContext(Struct, frozen=True):
    """All that the next step of a job depends on."""

    meta: Meta
    status: JobStatus
    suspended: bool
    finished: bool
    max_restarts: int
    now: float
    """POSIX seconds."""
    backoff: tuple[float, float]
    """Seconds of pause after the first setback in a row, and at most."""
    being_deleted: bool = False
    """Its object goes, and with it its gang: now, whatever finalizers keep the object for."""
    pods: tuple[PodObject, ...] = ()
    """Pods that the job controls, of any epoch."""
    assumed: Mapping[str, str] = {}
    """Pod UID -> node, of bindings that were answered and are not visible yet."""
    has_service: bool = False
    gated: bool = False
    """Extender binding: pods are made with a gate, and kube-scheduler binds them."""
    pod_groups: tuple[Meta, ...] | None = None
    """PodGroups that the job controls, of any epoch; None where gangs have none."""
    claim_templates: tuple[Meta, ...] | None = None
    """ResourceClaimTemplates that the job controls, of any epoch; None where there are none, or not known yet."""
    compute_domains: tuple[Meta, ...] | None = None
    """ComputeDomains that the job controls, of any epoch; None where there are none, or not known yet."""
    linked: bool = False
    """Nodes of the standing plan share an NVLink domain, and the gang has them for itself."""
    by_claim: bool = False
    """Pods of the standing plan claim their GPUs."""
    plan: Plan | None = None
    """A plan that was decided for a job without one."""
    pending: PendingStatus | None = None
    """Why a job without a plan has none."""
    order: StopOrder | None = None
    """Why the gang of the standing plan is to be asked to stop, if it is."""
    unwanted: bool = False
    """The gang was asked to stop for somebody who does not want that any more."""
    unfit: str = ""
    """Why the plan that is to follow cannot be carried out, where one is."""
    grace_seconds: float = 0.0
    """What it is given to save its state."""
    outdated: str = ""
    """Why the standing plan no longer meets the spec, where the gang runs on for now."""
    leaving: tuple[str, ...] = ()
    """Jobs (`namespace/name`) whose pods hold GPUs that the standing plan waits for."""
    setback: GangFailure | None = None
    """Why the standing plan cannot be carried out any longer, if the reason lies outside its pods and nodes."""
    unavailable: Mapping[str, str] = {}
    """Node of the plan -> why it takes no new pods."""
    lost: Mapping[str, str] = {}
    """Node of the plan -> why what runs there must be given up."""
    unready: frozenset[str] = frozenset()
    """Nodes of the plan that are not ready, however short."""
    spared: str = ""
    """Why nothing is given up though nodes of the plan are lost: too many are lost at once."""
    holding: bool = False
    """A failure of the training is not judged yet: what has caused it may be told a moment later."""
    rules: FailureSettings = FailureSettings()
    """How long a gang may take to start, and how often its user's mistakes are tried again."""
    gone_nodes: frozenset[str] = frozenset()
    """Nodes of the gang's pods that do not exist any more."""
    silent: Mapping[str, float] = {}
    """Node of the gang's pods that Kubernetes hears nothing of -> the POSIX time at which it noticed. None of them
    while so many are silent that it is not they who have failed."""
    deleted: Mapping[str, bool] = {}
    """UID -> whether by force, of pods whose deletion was answered and which are still visible."""
    binding_overdue: bool = False
    """Some pods of the gang have been bound for longer than the others may take."""
    progress: int | None = None
    """Per cent, where it is known without the trainer's report."""
    report: GangReport | None = None
    """What the training has reported last, if it does."""
    idle: IdleGang | None = None
    """The gang of the standing plan, if it does nothing."""
    shadow: Shadow | None = None
    """What the shadow policy would have decided where the plan stands, or the job waits."""
    theirs: TheirJob | None = None
    """The job of another kind that it stands in for, whose controller makes the pods; None of jobs of our own."""


def next_step(view: JobContext) -> Step:
    """Writes to send now; empty when there is nothing to do until something changes."""
    if view.being_deleted:
        return _clear(view, view.pods) or _remnants(view)
    if view.theirs and view.theirs.end and not view.finished:
        return _status(view, theirs.ended(view.theirs, view.status, view.meta, view.now))
    if view.finished:  # pods that have ended stay, for their logs
        made = view.theirs.waiting.values() if view.theirs and not view.theirs.stays else ()
        return _clear(view, (*_living(view.pods), *made)) or _remnants(view)
    if view.status.plan:
        return _carry_out(view, view.status.plan)
    if view.suspended:
        told = _status(view, transitions.suspended(view.status, view.meta, view.now))
        return told or _clear(view, view.pods) or _remnants(view)
    unheard = {**dict.fromkeys(view.gone_nodes, view.now), **view.silent}
    if corrected := unreachable_nodes.excused(view.status, view.pods, unheard):
        return _status(view, *corrected)
    return _clear(view, view.pods) or (*_remnants(view), *_wait_or_plan(view))


def due(pods: Collection[PodObject], silent: Mapping[str, float], rules: FailureSettings, now: float) -> float:
    """POSIX time at which pods that are to end change the next step though nothing happens: by still being there."""
    return min(unreachable_nodes.due(pods, silent, rules, now), stops.hangs_at(pods, now - HUNG_SECONDS) + HUNG_SECONDS)


def _wait_or_plan(view: JobContext) -> Step:
    if view.pods:  # pods of an earlier epoch are still ending: two gangs of one job must never run at once
        return _held_up(view)
    if view.plan:
        return _status(view, transitions.planned(view.status, view.meta, view.plan, view.now))
    if view.pending is None:
        return ()
    status = transitions.waiting(view.status, view.meta, view.pending, view.now)
    return _status(view, transitions.shadowed(status, view.shadow))


def _held_up(view: JobContext) -> Step:
    """Say so where pods should have ended long ago."""
    late = stops.hung(view.pods, view.now - HUNG_SECONDS)
    if not late:
        return ()
    forced = unreachable_nodes.due(view.pods, view.silent, view.rules, view.now - HUNG_SECONDS)
    return _status(view, *transitions.held_up(view.status, view.meta, late, forced, view.now))


def _carry_out(view: JobContext, plan: Plan) -> Step:
    gang = _Gang(view, plan)
    if gang.ended_well and not gang.unfinished:
        return _status(view, transitions.completed(view.status, view.meta, view.now))
    starts = not conditions.holds(view.status.conditions, names.PODS_READY)
    setback = setback_of(gang.standing(), view.setback or gang.left_behind)
    if setback and not (view.suspended and starts) and not stops.answered(view.status, view.report):
        return _give_up(view, setback)
    if change := stops.next_change(gang.asked()):
        return (WriteStatus(change.status, change.happening, outcome=change.outcome),)
    return gang.untold() or _clear(view, gang.strays) or (*_remnants(view), *_go_on(view, gang, plan))


def _go_on(view: JobContext, gang: _Gang, plan: Plan) -> Step:
    """Bring the gang to where it runs, and note how it does."""
    meta, now = view.meta, view.now
    leaving = stops.hung(gang.strays, now) or (() if gang.exists else view.leaving)
    status = transitions.standing(view.status, meta, plan, now, leaving, view.outdated)
    if gang.strays or (not gang.exists and (view.leaving or status != view.status)):
        return _status(view, status)
    step = gang.missing_objects() or gang.bindings()
    if step or not gang.all_bound:
        return step
    status = transitions.scheduled(status, meta, now, all_running=gang.all_running)
    status = transitions.spared(status, meta, view.spared, now)
    if not status.stop:
        status = idleness.judged(status, meta, view.idle, now)
    if view.report:
        status = transitions.reported(status, meta, view.report, now)
    else:
        status = transitions.progressed(status, view.progress, now)
    status = transitions.shadowed(status, view.shadow)
    return _status(view, status, transitions.what_happened(view.status, status))


def _give_up(view: JobContext, setback: GangFailure) -> Step:
    """Take the plan away; for good where trying again does not help, or has not helped often enough."""
    before = transitions.heard(view.status, view.report)
    if end := last_word(setback, view.status, view.max_restarts, view.rules.user_error_attempts):
        return _status(view, transitions.failed(before, view.meta, setback, end, view.now))
    status = transitions.set_back(before, view.meta, setback, view.now, view.backoff)
    news = transitions.gave_up(setback.reason, setback.brief, view.status)
    return (WriteStatus(status, news, setback.refused),)


def _clear(view: JobContext, pods: Iterable[PodObject]) -> Step:
    """Delete pods that no plan wants, unless they are going already: by force where no kubelet would let them go."""
    if view.theirs and not view.theirs.stays and not view.being_deleted:
        pods = tuple(pods)
        if asked := theirs.let_go(view.theirs, pods, _why_not(view.status)):
            return asked
        pods = theirs.left_alone(view.theirs, pods, view.now)
    abandoned = unreachable_nodes.abandoned(view.pods, view.silent, view.rules, view.now)
    return tuple(
        DeletePod(pod.metadata.name, pod.metadata.uid, force, abandoned.get(pod.metadata.uid, ""), pod.grace)
        for pod in pods
        if not _goes(view, pod, force := pod.spec.node_name in view.gone_nodes or pod.metadata.uid in abandoned)
    )


def _why_not(status: JobStatus) -> str:
    """Why the gang is not to run, as its own conditions say it."""
    ended = conditions.holds(status.conditions, names.FAILED)
    told = conditions.find(status.conditions, names.FAILED if ended else names.PLANNED)
    return f"{told.reason}: {told.message}" if told and told.message else "it has no plan"


def _remnants(view: JobContext) -> Step:
    """Delete the PodGroups, claim templates and ComputeDomains of gangs that are no more: a plan that follows another
    one at once has its own. Those of an epoch serve its pods until the last of them has ended: of a ComputeDomain the
    daemons on the nodes, too."""
    ends = view.finished or view.being_deleted
    used = {pod.metadata.labels.get(names.LABEL_EPOCH) for pod in (_living(view.pods) if view.finished else view.pods)}
    if view.status.plan and not ends:
        used.add(str(view.status.plan.epoch))

    def unused(owned: Iterable[Meta] | None) -> list[Meta]:
        return [each for each in owned or () if _stays(view, each) and each.labels.get(names.LABEL_EPOCH) not in used]

    return (
        *(DeletePodGroup(each.name, each.uid) for each in unused(view.pod_groups)),
        *(DeleteClaimTemplate(each.name, each.uid) for each in unused(view.claim_templates)),
        *(DeleteComputeDomain(each.name, each.uid) for each in unused(view.compute_domains)),
    )


def _living(pods: Iterable[PodObject]) -> list[PodObject]:
    """Those that have not ended."""
    return [pod for pod in pods if pod.status.phase not in (SUCCEEDED, FAILED)]


def _stays(view: JobContext, owned: Meta) -> bool:
    return owned.uid not in view.deleted and not owned.deletion_timestamp


def _goes(view: JobContext, pod: PodObject, force: bool) -> bool:
    asked = view.deleted.get(pod.metadata.uid)
    if force:
        return asked is True
    return asked is not None or (pod.metadata.deletion_timestamp is not None and not pod.given_longer)


def _status(view: JobContext, status: JobStatus, happening: JobEvent | None = None) -> Step:
    if status == view.status:
        return ()
    return (WriteStatus(status, happening or transitions.what_happened(view.status, status)),)


class _Gang:
    """The pods of the standing plan, by rank."""

    def __init__(self, view: JobContext, plan: Plan) -> None:
        self._view = view
        self._plan = plan
        self._ranks = range(len(plan.nodes))
        places = {(str(plan.epoch), str(rank)): rank for rank in self._ranks}
        self._by_rank: dict[int, PodObject] = {}
        self.strays: list[PodObject] = []
        for pod in view.pods:
            labels = pod.metadata.labels
            rank = places.get((labels.get(names.LABEL_EPOCH, ""), labels.get(names.LABEL_RANK, "")))
            if rank is None or rank in self._by_rank:
                self.strays.append(pod)
            else:
                self._by_rank[rank] = pod
        asked = {rank: pod for rank, pod in self._by_rank.items() if stops.was_asked(view.status, pod)}
        self._asked = [pod.metadata.name for pod in asked.values()]
        self._left = [rank for rank, pod in asked.items() if stops.ended_on_request(pod)]
        self._by_rank |= {rank: _as_succeeded(asked[rank]) for rank in self._left}
        self._in_order = sorted(self._by_rank.items())

    @property
    def ended_well(self) -> bool:
        return self.exists and all(pod.status.phase == SUCCEEDED for pod in self._by_rank.values())

    @property
    def unfinished(self) -> bool:
        """Whether the training ended only because it was asked to. A fake one ends when it is done."""
        unsaid = self._asked and self._view.progress is None
        return bool(self._left or (unsaid and stops.steps_left(self._view.status, self._plan, self._view.report)))

    @property
    def left_behind(self) -> GangFailure | None:
        """Where a request was taken back that the training had acted on already."""
        if self._view.status.stop or not (self._left or (self.ended_well and self.unfinished)):
            return None
        name = self._by_rank[self._left[0]].metadata.name if self._left else self._asked[0]
        return GangFailure(transitions.CHECKPOINTED, f"pod {name} had been asked to save its state, and has ended")

    @property
    def exists(self) -> bool:
        """Whether every rank has its pod."""
        return len(self._by_rank) == len(self._ranks)

    @property
    def all_bound(self) -> bool:
        return self.exists and all(self._node_of(pod) for pod in self._by_rank.values())

    @property
    def all_running(self) -> bool:
        return self.exists and all(pod.status.phase in (RUNNING, SUCCEEDED) for pod in self._by_rank.values())

    def standing(self) -> GangState:
        """What its setbacks are judged by."""
        view = self._view
        return GangState(
            plan=self._plan,
            pods=self._by_rank,
            bound={rank: node for rank, pod in self._by_rank.items() if (node := self._node_of(pod))},
            now=view.now,
            bound_seconds=transitions.seconds_of(view.status, names.GANG_SCHEDULED, view.now),
            start_timeout=view.rules.start_timeout_seconds,
            started=conditions.holds(view.status.conditions, names.PODS_READY),
            gated=view.gated,
            binding_overdue=view.binding_overdue,
            unavailable=view.unavailable,
            lost=view.lost,
            unready=view.unready,
            asked=view.status.stop is not None,
            holding=view.holding,
        )

    def asked(self) -> stops.PlannedGang:
        """What its being asked to stop is judged by."""
        view = self._view
        return stops.PlannedGang(
            meta=view.meta,
            status=view.status,
            plan=self._plan,
            pods=self._by_rank,
            now=view.now,
            grace_seconds=view.grace_seconds,
            suspended=view.suspended,
            order=view.order,
            unwanted=view.unwanted,
            unfit=view.unfit,
            row_seconds=view.backoff[1],
            report=view.report,
        )

    def untold(self) -> Step:
        """Tell pods that they are asked to save their state, or are not any more."""
        deadlines = stops.untold(self._view.status, self._by_rank.values())
        pods = {pod.metadata.uid: pod.metadata.name for pod in self._by_rank.values()}
        return tuple(AnnotatePod(pods[uid], uid, deadline) for uid, deadline in deadlines.items())

    def missing_objects(self) -> Step:
        if job := self._view.theirs:
            return theirs.take_in(job, self._plan, self._by_rank)
        service: Step = () if self._view.has_service else (CreateService(),)
        lacking = [rank for rank in self._ranks if rank not in self._by_rank]
        if lacking and self._view.by_claim and self._view.claim_templates is None:
            return ()  # to be listed: whether there is a template is not known before
        before: Step = (CreatePodGroup(),) if lacking and self._lacks_group else ()
        before += (CreateClaimTemplate(),) if self._lacks_template else ()
        before += (CreateComputeDomain(),) if self._lacks_domain else ()
        if before:  # pods name all these from birth, so whether they are there comes first
            return (*service, *before)
        return service + tuple(CreatePod(rank) for rank in lacking)

    def bindings(self) -> Step:
        if self._view.theirs and not self.exists:
            return ()  # its controller is to make the others first
        held = tuple(ReleasePod(pod.metadata.name, pod.metadata.uid) for _, pod in self._unbound if waits(pod))
        if self._view.gated or held:
            return held
        return tuple(
            BindPod(pod.metadata.name, pod.metadata.uid, self._plan.nodes[rank].name) for rank, pod in self._unbound
        )

    @property
    def _unbound(self) -> list[tuple[int, PodObject]]:
        return [(rank, pod) for rank, pod in self._in_order if not self._node_of(pod)]

    @property
    def _lacks_group(self) -> bool:
        groups = self._view.pod_groups
        return groups is not None and not self._has_own(groups)

    @property
    def _lacks_template(self) -> bool:
        """Not once all pods are bound: each has its claim then."""
        templates = self._view.claim_templates
        wanted = self._view.by_claim and templates is not None and not self.all_bound
        return wanted and not self._has_own(templates or ())

    @property
    def _lacks_domain(self) -> bool:
        """Not once there is a pod: all of a gang have a channel, or none."""
        domains = self._view.compute_domains
        return self._view.linked and domains is not None and not self._by_rank and not self._has_own(domains)

    def _has_own(self, owned: Iterable[Meta]) -> bool:
        """Whether one of these is of the standing plan."""
        epoch = str(self._plan.epoch)
        return any(each.labels.get(names.LABEL_EPOCH) == epoch for each in owned)

    def _node_of(self, pod: PodObject) -> str:
        return pod.spec.node_name or self._view.assumed.get(pod.metadata.uid, "")


def _as_succeeded(pod: PodObject) -> PodObject:
    """A pod whose training has ended as it was asked to: that is no failure."""
    return replace(pod, status=replace(pod.status, phase=SUCCEEDED))
