"""Tell how queues are used: the status of each Queue, and metrics.

Nothing depends on either. They are brought up to date from the last round at most every few seconds, all queues one
after the other, and a status is written only where it would say something new.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec
import structlog

from trimtab import names
from trimtab.api.v1alpha1 import QueueStatus, QueueUse
from trimtab.controller.cluster import Cluster
from trimtab.errors import ApiError, Conflict, NotFound
from trimtab.kube.client import KubeClient
from trimtab.kube.resources import QUEUES
from trimtab.observe.queues import QueueFacts, Usage, usage
from trimtab.observe.snapshot import Observation
from trimtab.telemetry import metrics

log = structlog.get_logger(__name__)


class QueueStatusWriter:
    """Writes statuses in the background while this controller leads. `leader_epoch` fences them."""

    def __init__(self, client: KubeClient, cluster: Cluster, leader_epoch: Callable[[], int], seconds: float) -> None:
        self._client = client
        self._cluster = cluster
        self._leader_epoch = leader_epoch
        self._seconds = seconds
        self._last: Observation | None = None
        self._news = asyncio.Event()

    def tell(self, observation: Observation) -> None:
        """Note what a round has found; returns at once."""
        self._last = observation
        self._news.set()

    async def run(self) -> None:
        """Bring everything up to date, pause, and again when there is news, until cancelled. Raises LeadershipLost."""
        while True:
            await self._news.wait()
            self._news.clear()
            if self._last:
                await self._update(self._last)
            await asyncio.sleep(self._seconds)

    async def _update(self, seen: Observation) -> None:
        uses = usage(seen.queues.values(), seen.jobs.values(), seen.snapshot)
        _gauge(uses)
        for name, queue in seen.queues.items():
            status = _status(uses[name], self._leader_epoch())
            if _says(queue.status, status):
                continue
            try:
                await self._write(queue, status)
            except (NotFound, Conflict) as error:
                log.info("status of a queue not written", queue=name, error=str(error))  # deleted, or another by now
            except ApiError as error:
                log.warning("status of a queue not written, again later", queue=name, error=str(error))
                self._news.set()

    async def _write(self, queue: QueueFacts, status: QueueStatus) -> None:
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.QUEUE_KIND,
            "metadata": {"name": queue.meta.name, "uid": queue.meta.uid},
            "status": status.to_wire(),
        }
        answer = await self._client.apply(QUEUES.path(name=queue.meta.name), body, subresource="status")
        try:
            self._cluster.queues.apply_written(answer)
        except msgspec.DecodeError as error:
            log.warning("the answer to a queue's status cannot be read", error=str(error))


def _says(told: QueueStatus | None, new: QueueStatus) -> bool:
    """Whether it was told already, by whichever controller."""
    if told is None or told.leader_epoch is None:
        return False
    return told.model_copy(update={"leader_epoch": new.leader_epoch}) == new


def _status(used: Usage, leader_epoch: int) -> QueueStatus:
    held = used.holding
    return QueueStatus(
        running_jobs=used.running,
        pending_jobs=used.pending,
        gpus=sum(held.gpus.values()),
        share_permille=round(1000 * held.share),
        uses=tuple(
            QueueUse(gpu_type=gpu_type, gpus=gpus, borrowed=held.borrowed.get(gpu_type, 0))
            for gpu_type, gpus in sorted(held.gpus.items())
        ),
        leader_epoch=leader_epoch,
    )


def _gauge(uses: Mapping[str, Usage]) -> None:
    gpus: dict[tuple[str, ...], float] = {
        (name, kind): count for name, used in uses.items() for kind, count in used.holding.gpus.items()
    }
    metrics.replace(metrics.QUEUE_GPUS, gpus)
    metrics.replace(metrics.QUEUE_SHARE, {(name,): used.holding.share for name, used in uses.items()})
    metrics.replace(metrics.QUEUE_PENDING_JOBS, {(name,): used.pending for name, used in uses.items()})
