"""Carry every job forward: one driver per job that takes step after step until there is nothing left to do.

What a step is, `trimtab.apply.steps` decides from a `JobContext`; here the view is put together from the caches, the
step is sent, and its answers are fed back into the caches, so that the next step follows at once. A job whose requests
hang or fail holds up nobody else. All that is kept between steps is what the API server has confirmed but not shown
yet; losing it (a restart) costs a repeated request, nothing more.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial

import structlog

from trimtab import names
from trimtab.api.status import JobStatus, Leaving, Plan
from trimtab.apply import steps, stops, transitions, waits, write
from trimtab.apply.actions import (
    Action,
    AdoptPod,
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
    ResumeJob,
    Step,
    SuspendJob,
    WriteStatus,
)
from trimtab.apply.gang_failures import GangFailure
from trimtab.apply.patience import foretold
from trimtab.apply.steps import JobContext
from trimtab.apply.stops import StopOrder
from trimtab.controller.cluster import Cluster
from trimtab.controller.event_recorder import EventRecorder
from trimtab.controller.jobs.attention import Attention, is_quiet
from trimtab.controller.jobs.gang_objects import GangObjects
from trimtab.controller.jobs.orphans import Orphans
from trimtab.controller.loop.priority_semaphore import PrioritySemaphore, Urgency
from trimtab.controller.place.their_jobs import TheirJobs
from trimtab.controller.views import DriverState, PlannedPlacement, Promise, Rest, ShadowDecision, Views
from trimtab.errors import ApiError, Conflict, LeadershipLost, NotFound
from trimtab.kube.backoff import Backoff
from trimtab.kube.client import KubeClient
from trimtab.kube.objects import Meta
from trimtab.kube.resources import JOBS, PODS, SERVICES
from trimtab.observe.jobs import JobFacts, posix
from trimtab.observe.node_usage import Claim
from trimtab.observe.nodes import NodeFacts
from trimtab.observe.queues import QueueFacts
from trimtab.plan import objects
from trimtab.plan.objects import GangPlan
from trimtab.settings import Settings
from trimtab.telemetry import metrics
from trimtab_policy.types import Pending

MISTAKE_SECONDS = 10.0
MOST_TOLD = 64
"""Jobs of a namespace that are told at the same time why they wait: drivers that stand in line for a turn take memory,
and thousands of jobs may come at once. The next begins when one has ended, which starts a round."""
REST_SECONDS = 10.0
"""How long a job without a gang is not looked at while nothing happens to it: thousands may wait, or be suspended."""

log = structlog.get_logger(__name__)


class Gangs:
    """Drivers of all jobs."""

    def __init__(
        self,
        client: KubeClient,
        cluster: Cluster,
        views: Views,
        recorder: EventRecorder,
        settings: Settings,
        *,
        leader_epoch: Callable[[], int],
        wake: Callable[[], None],
        fail: Callable[[BaseException], None],
        wall: Callable[[], float] = time.time,
        their_jobs: TheirJobs | None = None,
        attention: Attention | None = None,
    ) -> None:
        """`their_jobs` are those of other kinds behind stand-ins; None where nobody places them. `attention` knows
        which gangs need no look, and is told what is heard of jobs; None: all are looked at in every round."""
        self._their_jobs = their_jobs
        self._attention = attention
        self._client = client
        self._cluster = cluster
        self._views = views
        self._recorder = recorder
        self._settings = settings
        self._leader_epoch = leader_epoch
        self._wake = wake
        self._fail = fail
        self._wall = wall
        self._objects = GangObjects(client, cluster, recorder)
        self._gangs: dict[str, DriverState] = {}
        self._turns = PrioritySemaphore(settings.kube.connections)
        self._orphans = Orphans(client, cluster, views, self._turns, wake)
        self._told: Counter[str | None] = Counter()
        """Drivers by namespace of those jobs that are only told something; None: all others."""
        self._next = 0
        """Place in the line of jobs at which the next round begins to look."""

    def promised(self) -> list[Claim]:
        """What counts as taken although no status shows it yet."""
        return [promise.claim() for gang in self._gangs.values() if (promise := gang.promise)]

    def promise(self, facts: JobFacts, decided: PlannedPlacement, waits_for: tuple[Leaving, ...] = ()) -> None:
        """Give a waiting job its placement, once those are gone that hold some of its GPUs."""
        gang = self._gang(facts.meta.uid)
        epoch = (facts.status.last_epoch or 0) + 1
        gang.promise = Promise(
            decided.placement,
            decided.policy,
            decided.terms,
            generation=facts.meta.generation,
            epoch=epoch,
            waits_for=waits_for,
        )
        gang.pending = gang.watched = None
        self.attend(facts.meta.uid)

    def explain(self, pending: Pending) -> None:
        """Note why a job has to wait."""
        self._gang(pending.job).pending = pending
        self.attend(pending.job)

    def watch(self, uid: str, watched: ShadowDecision) -> bool:
        """Note what the shadow policy would have done with a job; says whether that is news."""
        gang = self._gang(uid)
        self.attend(uid)
        known, gang.watched = gang.watched, watched
        return known is None or (known.epoch, known.shadow.says()) != (watched.epoch, watched.shadow.says())

    def answered(self, uids: Iterable[str]) -> bool:
        """Whether the last decision still stands for all these jobs: a plan that was given up asks for another one."""
        return all((gang := self._gang(uid)).promise or gang.pending for uid in uids)

    def set_back(self, uid: str, setback: GangFailure) -> None:
        """Make a gang give up its plan for a reason that its own pods do not show."""
        self._gang(uid).setback = setback
        self.attend(uid)

    def order_stop(self, uid: str, order: StopOrder) -> None:
        """Have a gang asked to save its state and then stopped; may be repeated in every round.

        Nothing happens while it is asked already, and the order is dropped once another plan stands, or none.
        """
        gang = self._gang(uid)
        gang.order, gang.unwanted = order, None
        self.attend(uid)

    def withdraw_stop(self, uid: str, epoch: int) -> None:
        """Let the gang of this plan go on, if it was asked to stop for somebody's sake and has not done so yet."""
        gang = self._gang(uid)
        gang.order, gang.unwanted = None, epoch
        self.attend(uid)

    def attend(self, uid: str) -> None:
        """Have the job looked at in the next round, for something was heard of it."""
        if self._attention:
            self._attention.attend(uid)

    def see(self, nodes: Mapping[str, NodeFacts], queues: Mapping[str, QueueFacts]) -> None:
        """Have all gangs looked at that may have something to do because of the nodes and queues of this round."""
        if self._attention:
            self._attention.see(nodes, queues, self._views.suspects)

    def advance(self, uids: Iterable[str]) -> None:
        """Start a driver for every job that has something to do and none yet; forget jobs that are gone, once their
        pods are taken down."""
        line = tuple(uids)
        if self._attention:
            self._attention.sweep(self._wall())
        self.look_at(line)
        for uid in self._gangs.keys() - set(line):
            if self._gangs[uid].task is None and not self._cluster.job(uid):
                del self._gangs[uid]
        self._orphans.advance()

    def look_at(self, uids: Sequence[str]) -> None:
        """Start a driver for each of these jobs that has something to do and none yet."""
        start = self._next % max(1, len(uids))  # else those who come first are told every change, and the last nothing
        self._next += MOST_TOLD
        turn = (*uids[start:], *uids[:start])
        for uid in self._attention.restless(turn) if self._attention else turn:
            self.look(uid)

    def look(self, uid: str) -> None:
        """Start a driver for the job if it has something to do and none yet."""
        gang = self._gang(uid)
        if gang.task is None and self._has_work(uid, gang):
            rest = self._views.rest(uid, gang)
            namespace = rest.job.metadata.namespace if rest else None
            self._told[namespace] += 1
            gang.task = asyncio.create_task(self._drive(uid, namespace), name=f"drive {uid}")

    async def follow(self, news: asyncio.Queue[str]) -> None:
        """Look at once at every job (by UID) that something was heard of, until cancelled."""
        while True:
            self.look(await news.get())

    def next_deadline(self) -> float:
        """Seconds until a gang runs out of time, half bound or asked to stop; infinite when none does.

        A driver at work looks by itself, and wakes the next round when it is done.
        """
        gangs = [gang for gang in self._gangs.values() if gang.task is None]
        ends = [gang.binding_since + gang.binding_limit for gang in gangs if gang.binding_since is not None]
        bound = min(ends, default=float("inf")) - time.monotonic()
        due = min((gang.due for gang in gangs), default=float("inf"))
        return max(0.0, min(bound, min(due, self._orphans.next_deadline()) - self._wall()))

    def refused(self) -> dict[str, frozenset[str]]:
        """Nodes by job UID that kube-scheduler would not take for the job lately."""
        some = [(uid, gang) for uid, gang in self._gangs.items() if gang.refused]
        return {uid: nodes for uid, gang in some if (nodes := self._views.refused_nodes(gang))}

    async def stop(self) -> None:
        """Let running requests end."""
        tasks = [gang.task for gang in self._gangs.values() if gang.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, self._orphans.stop(), return_exceptions=True)

    def _has_work(self, uid: str, gang: DriverState) -> bool:
        try:
            rest, now = self._views.rest(uid, gang), self._wall()
            if rest and (_rests(gang, rest, now) or self._told[rest.job.metadata.namespace] >= MOST_TOLD):
                return False
            self.attend(uid)
            found = self._next_step(uid, gang)
            work = found is not None and bool(found[1])
            gang.rest = (rest, now) if rest and not work else None
            if found and not work:
                self._leave_alone(uid, gang, found[0])
            return work
        except Exception:  # noqa: BLE001 - a mistake of ours about one job must not stop the others
            _mistaken(uid)
            gang.due = math.inf
            return False

    def _leave_alone(self, uid: str, gang: DriverState, view: JobContext) -> None:
        """There is nothing to do for the job: nor need it be looked at before something happens, if it runs well."""
        plan = view.status.plan
        if self._attention and plan and is_quiet(view, self._attention.seconds):
            self._attention.settle(uid, (node.name for node in plan.nodes), gang.due)

    def _next_step(self, uid: str, gang: DriverState) -> tuple[JobContext, Step] | None:
        """Bring what is remembered of the job up to date. Returns its next step, which is empty where there is nothing
        to do, with what that was decided by; None of a job that is gone, or not ours."""
        sight = self._views.sight(uid)
        self._views.remember(gang, sight)
        if sight is None:
            return None
        view = self._views.view(gang, sight)
        return view, steps.next_step(view)

    # --- one driver -----------------------------------------------------------------------------------------------
    async def _drive(self, uid: str, told: str | None) -> None:
        """`told` is the namespace of a job that has no gang, and is only told something."""
        gang = self._gangs[uid]
        backoff, contention = Backoff(initial=0.2, cap=5.0), Backoff(initial=0.01, cap=1.0)
        try:
            while (found := self._next_step(uid, gang)) and found[1]:
                view, step = found
                try:
                    await self._take(view, gang, step)
                except write.WriteRefused as refusal:
                    gang.setback = GangFailure(refusal.reason, str(refusal))
                except NotFound:
                    return  # the job itself is gone: the watch will say so
                except ApiError as error:
                    log.info("look again", job=view.meta.key, error=str(error), kind=type(error).__name__)
                    pauses = contention if isinstance(error, Conflict) else backoff
                    await asyncio.sleep(pauses.next(error.retry_after))
                    await self._refresh(view)
        except LeadershipLost as lost:
            self._fail(lost)
        except Exception:  # noqa: BLE001 - as in _has_work; the pause keeps the mistake from being made all the time
            _mistaken(uid)
            await asyncio.sleep(MISTAKE_SECONDS)
        finally:
            gang.task = None
            self._told[told] -= 1
            self._wake()

    async def _take(self, view: JobContext, gang: DriverState, step: Step) -> None:
        """Send all writes of a step at once; a refusal counts more than any other error."""
        started = time.perf_counter()
        plan = cache(partial(self._views.gang_plan, view))
        outcomes = await asyncio.gather(*(self._act(view, gang, a, plan) for a in step), return_exceptions=True)
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        binds = sum(isinstance(action, BindPod) for action in step)
        if binds:
            metrics.GANG_BINDS.labels("refused" if errors else "bound").inc()
            metrics.GANG_BIND_SECONDS.observe(time.perf_counter() - started)
        for kind in (write.WriteRefused, LeadershipLost, BaseException):
            for error in errors:
                if isinstance(error, kind):
                    raise error

    async def _act(self, view: JobContext, gang: DriverState, action: Action, plan: Callable[[], GangPlan]) -> None:
        async with self._turns.turn(_urgency(action, view.status.plan), view.meta.namespace):
            match action:
                case WriteStatus():
                    await self._write_status(view, gang, action)
                case BindPod(name, uid, node):
                    self._views.begin_binding(gang, len(view.pods))
                    await write.bind(self._client, view.meta.namespace, name, uid, node)
                    gang.assumed[uid] = node
                case ReleasePod(name, uid):
                    self._views.begin_binding(gang, len(view.pods))
                    answer = await write.release(self._client, view.meta.namespace, name, uid)
                    self._cluster.pods.apply_written(answer)
                case AdoptPod(name, uid, rank, leader):
                    patch = partial(objects.adopted, plan(), rank, leader)
                    answer = await write.adopt(self._client, view.meta.namespace, name, uid, patch)
                    self._cluster.pods.apply_written(answer)
                case SuspendJob(why):
                    await self._theirs.suspend(view.meta, why)
                case ResumeJob(shape):
                    await self._theirs.resume(view.meta, shape)
                case AnnotatePod(name, uid, deadline):
                    answer = await write.annotate(self._client, view.meta.namespace, name, uid, deadline)
                    self._cluster.pods.apply_written(answer)
                case DeletePod(uid=uid, why=why):
                    await write.delete_pod(self._client, view.meta.namespace, action)
                    gang.deleted[uid] = action.force
                    if why:
                        told = transitions.JobEvent("Warning", names.REASON_FORCED, why, view.status.last_epoch or 0)
                        self._recorder.job(view.meta, told)
                case DeletePodGroup() | DeleteClaimTemplate() | DeleteComputeDomain():
                    await self._objects.delete(view, gang, action)
                case CreatePodGroup() | CreateClaimTemplate() | CreateComputeDomain():
                    await self._objects.create(view, gang, action, plan())
                case CreateService():
                    made = objects.service(plan())
                    self._cluster.services.apply_written(
                        await write.create(self._client, SERVICES, made, view.meta.identity)
                    )
                case CreatePod(rank):
                    made = objects.pod(plan(), rank)
                    self._cluster.pods.apply_written(await write.create(self._client, PODS, made, view.meta.identity))

    async def _write_status(self, view: JobContext, gang: DriverState, action: WriteStatus) -> None:
        epoch = self._leader_epoch()
        answer = await write.write_status(self._client, view.meta, view.status, action.status, epoch)
        self._cluster.jobs.apply_written(answer)
        if gang.binding_since is not None and transitions.is_scheduled(action.status):
            metrics.GANG_SCHEDULE_SECONDS.observe(time.monotonic() - gang.binding_since)
        plan, after = view.status.plan, action.status.plan
        if after is None or (plan and plan.epoch != after.epoch):
            self._views.refuse(gang, action.refused)
            gang.setback = gang.binding_since = None
        if plan is None and after and (came := foretold(view.status.pending, view.now)):
            metrics.STARTS_FORETOLD.labels(came.when).inc()
            metrics.START_ERROR_SECONDS.observe(came.seconds)
        outcome = action.outcome or stops.outcome(view.status, action.status, view.now)
        if outcome:
            metrics.STOPS.labels(outcome.cause.value, outcome.result).inc()
            metrics.STOP_SECONDS.labels(outcome.cause.value).observe(outcome.seconds)
            metrics.LOST_GPU_SECONDS.labels(outcome.cause.value).inc(outcome.lost_gpu_seconds)
        if (last := _last_failed(action.status)) and last != _last_failed(view.status):
            metrics.FAILURES.labels(view.meta.namespace, action.status.failures[-1].cause).inc()
        _time(view.meta, view.status, action.status, view.now)
        if action.happening:
            self._recorder.job(view.meta, action.happening)
            if plan and not after and not action.outcome:
                metrics.ROLLBACKS.labels(view.meta.namespace, action.happening.reason).inc()

    async def _refresh(self, view: JobContext) -> None:
        """Read the job itself: whether an unanswered write arrived, and what somebody else has changed."""
        try:
            path = JOBS.path(view.meta.namespace, view.meta.name)
            self._cluster.jobs.apply_written(await self._client.get(path))
        except ApiError as error:
            log.info("job not read back", job=view.meta.key, error=str(error))

    @property
    def _theirs(self) -> TheirJobs:
        """A step speaks of jobs of other kinds only where there are any."""
        assert self._their_jobs
        return self._their_jobs

    def _gang(self, uid: str) -> DriverState:
        return self._gangs.setdefault(uid, DriverState())


def _rests(gang: DriverState, rest: Rest, now: float) -> bool:
    """Whether there was nothing to do for the job a moment ago, and nothing has happened since."""
    if gang.rest is None or now >= gang.due:
        return False
    before, since = gang.rest
    return rest.same(before) and 0 <= now - since < REST_SECONDS


def _time(meta: Meta, before: JobStatus, after: JobStatus, now: float) -> None:
    """Count how long a job has waited, or taken, once that is written."""
    terms = after.plan.terms if after.plan else None
    queue, created = metrics.QUEUE_VALUES.of(terms.queue if terms else ""), posix(meta.creation_timestamp)
    if (seconds := waits.waited(before, after, created, now)) is not None:
        metrics.WAIT_SECONDS.labels(queue).observe(seconds)
    if (seconds := waits.took(before, after, created, now)) is not None:
        metrics.COMPLETION_SECONDS.labels(queue).observe(seconds)


def _last_failed(status: JobStatus) -> int:
    """Epoch of the gang that has failed last: what is said of that failure may be corrected later."""
    return status.failures[-1].epoch if status.failures else 0


def _mistaken(uid: str) -> None:
    log.exception("a job cannot be driven: this is a bug, please report it", uid=uid)
    metrics.DRIVER_ERRORS.inc()


def _urgency(action: Action, plan: Plan | None) -> Urgency:
    match action:
        case BindPod() | ReleasePod() | DeletePod() | AnnotatePod() | AdoptPod() | SuspendJob() | ResumeJob():
            return Urgency.COMPLETE
        case WriteStatus(status):
            return Urgency.REPORT if plan or status.plan else Urgency.EXPLAIN
        case _:
            return Urgency.BEGIN
