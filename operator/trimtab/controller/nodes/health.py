"""Tell how nodes are judged by what their agents report: the condition Healthy of each GPUNode, events and metrics.

The conditions are also what a successor of this controller goes on from. They are written only where they change, by
the leader alone, one after the other with a pause between them: when a whole rack fails, acting comes before telling.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from datetime import UTC, datetime

import msgspec
import structlog

from trimtab import names
from trimtab.apply.transitions import JobEvent
from trimtab.controller.cluster import Cluster
from trimtab.controller.event_recorder import EventRecorder
from trimtab.errors import ApiError, Conflict, NotFound
from trimtab.kube.backoff import Backoff
from trimtab.kube.client import KubeClient
from trimtab.kube.resources import GPUNODES
from trimtab.observe.gpunodes import GpuNodes
from trimtab.observe.health import WITHDRAWN, HealthCondition
from trimtab.observe.snapshot import Observation
from trimtab.observe.telemetry import NodeTelemetry
from trimtab.telemetry import metrics

PAUSE_SECONDS = 0.05
"""Between two conditions written."""

log = structlog.get_logger(__name__)


class Health:
    """Writes conditions in the background while this controller leads."""

    def __init__(self, client: KubeClient, cluster: Cluster, gpunodes: GpuNodes, recorder: EventRecorder) -> None:
        self._client = client
        self._cluster = cluster
        self._gpunodes = gpunodes
        self._recorder = recorder
        self._outbox: OrderedDict[str, tuple[NodeTelemetry, HealthCondition, float]] = OrderedDict()
        self._filled = asyncio.Event()

    def tell(self, observation: Observation) -> None:
        """Note what a round has found; returns at once."""
        for told, verdict, since in self._gpunodes.untold():
            self._outbox[told.name] = told, verdict, since
        if self._outbox:
            self._filled.set()
        _gauge(observation)

    def next_deadline(self) -> float:
        """Seconds until a judgement is due without any news."""
        return self._gpunodes.next_deadline()

    async def run(self) -> None:
        """Write what is to be told, until cancelled. Raises LeadershipLost."""
        backoff = Backoff(initial=0.2, cap=10.0)
        while True:
            await self._filled.wait()
            while self._outbox:
                name, (told, verdict, since) = self._outbox.popitem(last=False)
                try:
                    await self._write(told, verdict, since)
                    backoff.reset()
                    await asyncio.sleep(PAUSE_SECONDS)
                except (NotFound, Conflict) as error:
                    log.info("condition not written", gpunode=name, error=str(error))  # deleted, or another one by now
                except ApiError as error:
                    log.warning("condition not written, again later", gpunode=name, error=str(error))
                    self._outbox.setdefault(name, (told, verdict, since))
                    await asyncio.sleep(backoff.next(error.retry_after))
            self._filled.clear()

    async def _write(self, told: NodeTelemetry, verdict: HealthCondition, since: float) -> None:
        """Apply our own conditions; what the agent has written is not touched."""
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.GPUNODE_KIND,
            "metadata": {"name": told.name, "uid": told.uid},
            "status": {"conditions": conditions(verdict, since)},
        }
        answer = await self._client.apply(GPUNODES.path(name=told.name), body, subresource="status")
        self._take(answer)
        if happening := _happening(told, verdict, since):
            self._recorder.gpu_node(told.name, told.uid, happening)

    def _take(self, answer: bytes) -> None:
        try:
            if self._cluster.gpunodes:
                self._cluster.gpunodes.apply_written(answer)
        except msgspec.DecodeError as error:
            log.warning("the answer to a condition cannot be read", error=str(error))


def conditions(verdict: HealthCondition, since: float) -> list[dict[str, str]]:
    """What a GPUNode says of a verdict that holds since that POSIX time."""
    time = datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    said = [(names.HEALTHY, verdict.status, verdict.reason, verdict.message)]
    if verdict.contained:
        said.append((names.FAULT_CONTAINED, "True", names.REASON_DEVICE_PLUGIN, WITHDRAWN))
    fields = ("type", "status", "reason", "message")
    return [{**dict(zip(fields, each, strict=True)), "lastTransitionTime": time} for each in said]


def _happening(told: NodeTelemetry, verdict: HealthCondition, since: float) -> JobEvent | None:
    """What is worth an event: faults, and their end. All else that is wrong is told as a problem."""
    before, epoch = told.judged, int(since)
    if verdict.status == "False":
        held = "those on the GPU" if verdict.contained else "the node takes no jobs, those on the GPU"
        message = f"{verdict.message}; {held} are moved"
        return JobEvent("Warning", verdict.reason, message, epoch)
    ill = before is not None and (before.status == "False" or before.reason == names.REASON_RECOVERING)
    if not ill or verdict.reason not in (names.REASON_RECOVERING, names.REASON_HEALTHY):
        return None
    recovered = verdict.reason == names.REASON_HEALTHY
    said = "its GPUs take jobs again" if recovered else f"no fault any more: {verdict.message}"
    return JobEvent("Normal", verdict.reason, said, epoch)


def _gauge(observation: Observation) -> None:
    reports = observation.reports

    def kind(node: str) -> str:
        facts = observation.nodes.get(node)
        return facts.gpu.name if facts and facts.gpu else "unknown"

    faulty: Counter[tuple[str, ...]] = Counter((kind(node), reason) for node, reason in reports.faulty)
    metrics.replace(metrics.UNHEALTHY_GPUS, faulty)
    foreign: Counter[tuple[str, ...]] = Counter()
    for node, gpus in reports.foreign.items():
        foreign[(kind(node),)] += gpus
    metrics.replace(metrics.FOREIGN_GPUS, foreign)
    metrics.STALE_GPUNODES.set(reports.stale)
