"""Tell the world: every happening becomes an event, a line in the log and a count in a metric."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable

import structlog

from trimtab import names
from trimtab.apply import events
from trimtab.apply.transitions import JobEvent
from trimtab.errors import ApiError
from trimtab.kube.client import KubeClient
from trimtab.kube.objects import Meta
from trimtab.kube.resources import CONFIG_MAPS
from trimtab.observe.problems import Problem
from trimtab.telemetry import metrics

QUEUE_LIMIT = 10_000
"""Events that may wait to be posted; when the API server is away for long, later ones are dropped and counted."""
TOLD_LIMIT = 50_000

log = structlog.get_logger(__name__)


class EventRecorder:
    """Posts events one after the other in the background, so that telling never delays acting."""

    def __init__(self, client: KubeClient, instance: str, wall: Callable[[], float] = time.time) -> None:
        self._client = client
        self._instance = instance
        self._wall = wall
        self._queue: asyncio.Queue[dict[str, object]] = asyncio.Queue(QUEUE_LIMIT)
        self._told: OrderedDict[str, None] = OrderedDict()
        self._problems: set[Problem] = set()

    def job(self, meta: Meta, happening: JobEvent) -> None:
        """Something happened to a job; told once for each of its epochs."""
        regarding = {
            "apiVersion": names.API_VERSION,
            "kind": names.JOB_KIND,
            "namespace": meta.namespace,
            "name": meta.name,
            "uid": meta.uid,
        }
        if self._post(regarding, happening, "Reconcile"):
            level = log.warning if happening.type == "Warning" else log.info
            level(happening.reason, job=meta.key, uid=meta.uid, epoch=happening.epoch, message=happening.message)
            metrics.HAPPENINGS.labels(happening.reason).inc()

    def choice(self, config_map: Meta, happening: JobEvent) -> None:
        """Something about which policies decide, told on the ConfigMap that says so; its version is the epoch."""
        regarding = {
            "apiVersion": CONFIG_MAPS.api_version,
            "kind": "ConfigMap",
            "namespace": config_map.namespace,
            "name": config_map.name,
            "uid": config_map.uid,
        }
        self._post(regarding, happening, "Decide")

    def problem(self, problem: Problem) -> None:
        """An object in the cluster is wrong; told once for as long as it is wrong in the same way."""
        if problem in self._problems:
            return  # asked in every round, and thousands of agents may be silent at once
        if len(self._problems) >= TOLD_LIMIT:
            self._problems.clear()
        self._problems.add(problem)
        regarding = {
            "apiVersion": "v1" if problem.kind == "Node" else names.API_VERSION,
            "kind": problem.kind,
            "name": problem.name,
            "uid": problem.uid,
        } | ({"namespace": problem.namespace} if problem.namespace else {})
        happening = JobEvent("Warning", problem.reason, problem.message, 0)
        if self._post(regarding, happening, "Observe"):
            log.warning(problem.reason, kind=problem.kind, name=problem.name, message=problem.message)

    def gpu_node(self, name: str, uid: str, happening: JobEvent) -> None:
        """How a node's GPUs are judged has changed."""
        regarding = {"apiVersion": names.API_VERSION, "kind": names.GPUNODE_KIND, "name": name, "uid": uid}
        if self._post(regarding, happening, "Judge"):
            level = log.warning if happening.type == "Warning" else log.info
            level(happening.reason, gpunode=name, message=happening.message)

    def other(self, regarding: dict[str, str], happening: JobEvent, action: str = "Advise") -> None:
        """What is advised about, or done with, a training job of another kind."""
        if self._post(regarding, happening, action):
            log.info(happening.reason, kind=regarding["kind"], job=regarding["name"], message=happening.message)

    async def run(self) -> None:
        """Post what is told, until cancelled."""
        while True:
            obj = await self._queue.get()
            try:
                await events.post(self._client, obj)
            except ApiError as error:
                metrics.EVENTS_LOST.inc()
                log.warning("event not posted", reason=obj["reason"], error=str(error))

    def _post(self, regarding: dict[str, str], happening: JobEvent, action: str) -> bool:
        """Queue an event unless the same one was told before; says whether it is news."""
        obj = events.event(regarding, happening, action=action, instance=self._instance, now=self._wall())
        name = obj["metadata"]["name"]
        if name in self._told:
            return False
        self._told[name] = None
        if len(self._told) > TOLD_LIMIT:
            self._told.popitem(last=False)
        try:
            self._queue.put_nowait(obj)
        except asyncio.QueueFull:
            metrics.EVENTS_LOST.inc()
        return True
