"""Delete the pods of jobs that are gone: until they end they hold GPUs that no job, and so no quota, accounts for.

Kubernetes' garbage collector does the same, but it learns of a new kind within 30 s only, and stands still for as long
as any API that is served through the API server does not answer. As it does, we ask for the owner itself before
anything is deleted: what a watch does not show may be a job that it has not shown yet.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable

import structlog

from trimtab.api.status import JobStatus
from trimtab.apply import steps, write
from trimtab.apply.actions import DeletePod
from trimtab.controller.cluster import Cluster
from trimtab.controller.loop.priority_semaphore import PrioritySemaphore, Urgency
from trimtab.controller.views import DriverState, Views
from trimtab.errors import ApiError, NotFound
from trimtab.kube.client import KubeClient
from trimtab.kube.objects import Identity, Meta
from trimtab.kube.resources import JOBS
from trimtab.telemetry import metrics

AT_ONCE = 64
"""Gone jobs whose pods are deleted at the same time: a namespace may go with thousands."""
AGAIN_SECONDS = 5.0
"""Pause after a request that failed, and before a job is asked for again that exists, and is not seen yet."""

log = structlog.get_logger(__name__)


class Orphans:
    """Pods whose job does not exist."""

    def __init__(
        self, client: KubeClient, cluster: Cluster, views: Views, turns: PrioritySemaphore, wake: Callable[[], None]
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._views = views
        self._turns = turns
        self._wake = wake
        self._left: dict[Identity, DriverState] = {}
        """Who was looked at last is last in line: a job that is there, but cannot be read, is asked for again and
        again, and must not be in the way of others."""

    def advance(self) -> None:
        """Start deleting where there is something to delete and nobody does; forget jobs without pods."""
        here = dict.fromkeys(self._cluster.without_job())
        self._left = {job: gang for job, gang in self._left.items() if job in here or gang.task}
        for job in here:
            self._left.setdefault(job, DriverState())
        at_work = sum(gang.task is not None for gang in self._left.values())
        for job, gang in self._left.items():
            if at_work < AT_ONCE and gang.task is None and self._has_work(job, gang):
                gang.task = asyncio.create_task(self._collect(job, gang), name=f"collect {job.key}")
                at_work += 1

    def next_deadline(self) -> float:
        """POSIX time at which a pod that is to end may have to be forced to; infinite when none does."""
        return min((gang.due for gang in self._left.values() if gang.task is None), default=math.inf)

    async def stop(self) -> None:
        """Let running requests end."""
        tasks = [gang.task for gang in self._left.values() if gang.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _has_work(self, job: Identity, gang: DriverState) -> bool:
        try:
            return bool(self._deletions(job, gang))
        except Exception:  # noqa: BLE001 - as in Gangs: a mistake of ours about one job must not stop the others
            _mistaken(job)
            gang.due = math.inf
            return False

    def _deletions(self, job: Identity, gang: DriverState) -> list[DeletePod]:
        namespace, _, name = job.key.partition("/")
        sight = self._views.last_sight(Meta(name=name, namespace=namespace, uid=job.uid), JobStatus())
        self._views.remember(gang, sight)
        return [each for each in steps.next_step(self._views.view(gang, sight)) if isinstance(each, DeletePod)]

    async def _collect(self, job: Identity, gang: DriverState) -> None:
        try:
            if await self._exists(job):
                await asyncio.sleep(AGAIN_SECONDS)
                return
            namespace = job.key.partition("/")[0]
            deletions = self._deletions(job, gang)
            log.info("pods of a job that is gone are deleted", job=job.key, uid=job.uid, pods=len(deletions))
            await asyncio.gather(*(self._delete(namespace, gang, each) for each in deletions))
        except ApiError as error:
            log.info("pods of a job that is gone are looked at again", job=job.key, error=str(error))
            await asyncio.sleep(error.retry_after or AGAIN_SECONDS)
        except Exception:  # noqa: BLE001 - the pause keeps the mistake from being made all the time
            _mistaken(job)
            await asyncio.sleep(AGAIN_SECONDS)
        finally:
            gang.task = None
            self._left[job] = self._left.pop(job, gang)
            self._wake()

    async def _exists(self, job: Identity) -> bool:
        """Whether the job itself is there, as the API server's store has it. Another one of its name is not it."""
        namespace, _, name = job.key.partition("/")
        async with self._turns.turn(Urgency.COMPLETE, namespace):
            try:
                found = json.loads(await self._client.get(JOBS.path(namespace, name)))
            except NotFound:
                return False
        return bool(found["metadata"]["uid"] == job.uid)

    async def _delete(self, namespace: str, gang: DriverState, pod: DeletePod) -> None:
        async with self._turns.turn(Urgency.COMPLETE, namespace):
            await write.delete_pod(self._client, namespace, pod)
            gang.deleted[pod.uid] = pod.force
        if pod.why:
            log.warning("a pod of a job that is gone was deleted by force", pod=f"{namespace}/{pod.name}", why=pod.why)


def _mistaken(job: Identity) -> None:
    log.exception("pods of a job that is gone cannot be deleted: this is a bug, please report it", job=job.key)
    metrics.DRIVER_ERRORS.inc()
