"""Carry every job forward: one driver per job that takes step after step until there is nothing left to do.

What a step is, `trimtab.apply.steps` decides from a `View`; here the view is put together from the caches, the step is
sent, and its answers are fed back into the caches, so that the next step follows at once. A job whose requests hang
or fail holds up nobody else. All that is kept between steps is what the API server has confirmed but not shown yet;
losing it (a restart) costs a repeated request, nothing more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from functools import cache, partial

import structlog

from trimtab.apply import steps, write
from trimtab.apply.steps import Action, BindPod, CreatePod, CreateService, DeletePod, Setback, View, WriteStatus
from trimtab.controller.cluster import Cluster
from trimtab.controller.recorder import Recorder
from trimtab.controller.turns import Turns, Urgency
from trimtab.controller.views import Gang, Promise, Views, Watched
from trimtab.errors import ApiError, Conflict, LeadershipLost, NotFound
from trimtab.kube.backoff import Backoff
from trimtab.kube.client import KubeClient
from trimtab.kube.resources import JOBS, PODS, SERVICES
from trimtab.observe.jobs import JobFacts
from trimtab.plan import objects
from trimtab.plan.objects import GangPlan
from trimtab.settings import Settings
from trimtab.telemetry import metrics
from trimtab_policy.types import Pending, Placement

MISTAKE_SECONDS = 10.0

log = structlog.get_logger(__name__)


class Gangs:
    """Drivers of all jobs."""

    def __init__(
        self,
        client: KubeClient,
        cluster: Cluster,
        views: Views,
        recorder: Recorder,
        settings: Settings,
        *,
        leader_epoch: Callable[[], int],
        wake: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._views = views
        self._recorder = recorder
        self._settings = settings
        self._leader_epoch = leader_epoch
        self._wake = wake
        self._fail = fail
        self._gangs: dict[str, Gang] = {}
        self._turns = Turns(settings.kube.connections)

    def promised(self) -> dict[str, Placement]:
        """Placements by job UID that count as taken although no status shows them yet."""
        return {uid: gang.promise.placement for uid, gang in self._gangs.items() if gang.promise}

    def promise(self, facts: JobFacts, placement: Placement, policy: str) -> None:
        """Give a waiting job its placement."""
        gang = self._gang(facts.meta.uid)
        gang.promise = Promise(placement, policy, facts.meta.generation)
        gang.pending = gang.watched = None

    def explain(self, pending: Pending) -> None:
        """Note why a job has to wait."""
        self._gang(pending.job).pending = pending

    def watch(self, uid: str, watched: Watched) -> bool:
        """Note what the shadow policy would have done with a job; says whether that is news."""
        gang = self._gang(uid)
        known, gang.watched = gang.watched, watched
        return known is None or (known.epoch, known.shadow.says()) != (watched.epoch, watched.shadow.says())

    def answered(self, uids: Iterable[str]) -> bool:
        """Whether the last decision still stands for all these jobs: a plan that was given up asks for another one."""
        return all((gang := self._gang(uid)).promise or gang.pending for uid in uids)

    def set_back(self, uid: str, setback: Setback) -> None:
        """Make a gang give up its plan for a reason that its own pods do not show."""
        self._gang(uid).setback = setback

    def advance(self, uids: Iterable[str]) -> None:
        """Start a driver for every job that has something to do and none yet; forget jobs that are gone."""
        for uid in uids:
            gang = self._gang(uid)
            if gang.task is None and self._has_work(uid, gang):
                gang.task = asyncio.create_task(self._drive(uid), name=f"drive {uid}")
        for uid in [uid for uid, gang in self._gangs.items() if gang.task is None and not self._cluster.job(uid)]:
            del self._gangs[uid]

    def next_deadline(self) -> float:
        """Seconds until a gang that is half bound runs out of time; infinite when none is."""
        limit = self._settings.gang.bind_timeout_seconds
        since = [gang.binding_since for gang in self._gangs.values() if gang.binding_since is not None]
        return max(0.0, min(since) + limit - time.monotonic()) if since else float("inf")

    async def stop(self) -> None:
        """Let running requests end."""
        tasks = [gang.task for gang in self._gangs.values() if gang.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _has_work(self, uid: str, gang: Gang) -> bool:
        try:
            view = self._views.view(uid, gang)
            return bool(view and steps.next_step(view))
        except Exception:  # noqa: BLE001 - a mistake of ours about one job must not stop the others
            _mistaken(uid)
            return False

    # --- one driver -----------------------------------------------------------------------------------------------
    async def _drive(self, uid: str) -> None:
        gang = self._gangs[uid]
        backoff = Backoff(initial=0.2, cap=5.0)
        try:
            while (view := self._views.view(uid, gang)) and (step := steps.next_step(view)):
                try:
                    await self._take(view, gang, step)
                except write.Refused as refusal:
                    gang.setback = Setback(refusal.reason, str(refusal))
                except NotFound:
                    return  # the job itself is gone: the watch will say so
                except ApiError as error:
                    log.info("look again", job=view.meta.key, error=str(error), kind=type(error).__name__)
                    await asyncio.sleep(0 if isinstance(error, Conflict) else backoff.next(error.retry_after))
                    await self._refresh(view)
        except LeadershipLost as lost:
            self._fail(lost)
        except Exception:  # noqa: BLE001 - as in _has_work; the pause keeps the mistake from being made all the time
            _mistaken(uid)
            await asyncio.sleep(MISTAKE_SECONDS)
        finally:
            gang.task = None
            self._wake()

    async def _take(self, view: View, gang: Gang, step: steps.Step) -> None:
        """Send all writes of a step at once; a refusal counts more than any other error."""
        started = time.perf_counter()
        plan = cache(partial(self._views.gang_plan, view))
        outcomes = await asyncio.gather(*(self._act(view, gang, a, plan) for a in step), return_exceptions=True)
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        binds = sum(isinstance(action, BindPod) for action in step)
        if binds:
            metrics.GANG_BINDS.labels("refused" if errors else "bound").inc()
            metrics.GANG_BIND_SECONDS.observe(time.perf_counter() - started)
        for kind in (write.Refused, LeadershipLost, BaseException):
            for error in errors:
                if isinstance(error, kind):
                    raise error

    async def _act(self, view: View, gang: Gang, action: Action, plan: Callable[[], GangPlan]) -> None:
        async with self._turns.turn(_urgency(action)):
            match action:
                case WriteStatus():
                    await self._write_status(view, gang, action)
                case BindPod(name, uid, node):
                    if gang.binding_since is None:
                        gang.binding_since = time.monotonic()
                    await write.bind(self._client, view.meta.namespace, name, uid, node)
                    gang.assumed[uid] = node
                case DeletePod(name, uid, force):
                    await write.delete_pod(self._client, view.meta.namespace, name, uid, force=force)
                    gang.deleted[uid] = force
                case CreateService():
                    made = objects.service(plan())
                    self._cluster.services.apply_written(
                        await write.create(self._client, SERVICES, made, view.meta.uid)
                    )
                case CreatePod(rank):
                    made = objects.pod(plan(), rank)
                    self._cluster.pods.apply_written(await write.create(self._client, PODS, made, view.meta.uid))

    async def _write_status(self, view: View, gang: Gang, action: WriteStatus) -> None:
        epoch = self._leader_epoch()
        answer = await write.write_status(self._client, view.meta, view.status, action.status, epoch)
        self._cluster.jobs.apply_written(answer)
        if action.status.plan is None:
            gang.setback = gang.binding_since = None
        if action.happening:
            self._recorder.job(view.meta, action.happening)
            if view.status.plan and not action.status.plan:
                metrics.ROLLBACKS.labels(action.happening.reason).inc()

    async def _refresh(self, view: View) -> None:
        """Read the job itself: whether an unanswered write arrived, and what somebody else has changed."""
        try:
            path = JOBS.path(view.meta.namespace, view.meta.name)
            self._cluster.jobs.apply_written(await self._client.get(path))
        except ApiError as error:
            log.info("job not read back", job=view.meta.key, error=str(error))

    def _gang(self, uid: str) -> Gang:
        return self._gangs.setdefault(uid, Gang())


def _mistaken(uid: str) -> None:
    log.exception("a job cannot be driven: this is a bug, please report it", uid=uid)
    metrics.DRIVER_ERRORS.inc()


def _urgency(action: Action) -> Urgency:
    match action:
        case BindPod() | DeletePod():
            return Urgency.COMPLETE
        case WriteStatus():
            return Urgency.REPORT
        case _:
            return Urgency.BEGIN
