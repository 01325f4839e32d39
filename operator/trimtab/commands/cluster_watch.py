"""A copy of the cluster that stays true, for the console and for `--watch`: one reflector for each kind, and looks at
all of them.

Objects arrive in the event loop; looks are made in a thread of their own, for a look at thousands of nodes would keep
viewers waiting. So whatever a look reads is copied for it in the loop, and what agents report is handed over in turn.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from msgspec.structs import replace

from trimtab import names
from trimtab.commands.reach import EVERYWHERE, Reach
from trimtab.doctor.gpu_nodes import binds_directly
from trimtab.doctor.inventory import Pod
from trimtab.kube.cache import OnChange, T
from trimtab.kube.client import KubeClient
from trimtab.kube.devices import DeviceCaches, TaintRuleCache
from trimtab.kube.metrics_hooks import FactsObserver, Silent
from trimtab.kube.objects import GpuNodeObject, JobObject, NodeObject, PodObject, PriorityClassObject, QueueObject
from trimtab.kube.reflector import Reflector
from trimtab.kube.resources import GPUNODES, JOBS, NODES, PODS, PRIORITY_CLASSES, QUEUES, Resource
from trimtab.observe.gpunodes import GpuNodes
from trimtab.observe.jobs import speedup_of
from trimtab.observe.snapshot import Caches, ClusterObserver, Observation
from trimtab.observe.stragglers import StragglerRules, Stragglers
from trimtab.settings import Settings

OPTIONAL_SECONDS = 10.0
"""How long the first look waits for what may be missing: reports of agents, devices."""


class ClusterWatch:
    """What is known of the cluster. `on_change` is called for every change, in the event loop."""

    def __init__(
        self,
        client: KubeClient,
        settings: Settings,
        on_change: Callable[[], None],
        observer: FactsObserver | None = None,
        reach: Reach = EVERYWHERE,
    ) -> None:
        """`reach` says which kinds may be followed, and where: there is nothing of the others."""
        self._on_change = on_change
        self.reach = reach
        heard, how = observer or Silent(), settings.reflector

        def reflect(resource: Resource, kind: type[T], changed: OnChange[T]) -> list[Reflector[T]]:
            return [
                Reflector(client, resource, kind, how, only=(space, ""), on_change=changed, observer=heard)
                for space in reach.of(resource)
            ]

        self._nodes = reflect(NODES, NodeObject, self._changed)
        self._pods = reflect(PODS, PodObject, self._pod_changed)
        self._jobs = reflect(JOBS, JobObject, self._changed)
        self._queues = reflect(QUEUES, QueueObject, self._changed)
        self._classes = reflect(PRIORITY_CLASSES, PriorityClassObject, self._changed)
        self._reports = reflect(GPUNODES, GpuNodeObject, self._reported)
        self._devices = DeviceCaches(client, settings.reflector, on_change, heard)
        self._rules = TaintRuleCache(client, settings.reflector, on_change, heard)
        self._job_of: dict[str, str] = {}
        """Pod (`namespace/name`) -> the job that it says it is of (the same)."""
        self._news: dict[str, GpuNodeObject | None] = {}
        """What agents have reported since the last look; None where the GPUNode is gone."""
        self._gpunodes = GpuNodes(settings.telemetry)
        slow = Stragglers(StragglerRules(settings.telemetry.straggler_speed, seconds=0.0))
        self._levels = settings.topology.levels
        self._observers = {
            allocates: ClusterObserver(self._levels, self._gpunodes, slow, allocates=allocates)
            for allocates in (True, False)
        }
        self._own: list[Pod] = []

    @property
    def trouble(self) -> str:
        """Why what is known may be out of date; empty when all is well."""
        needed = self._needed
        waiting = [each.resource.plural for each in needed if not each.synced.is_set()]
        told = next((f"{each.resource.plural}: {each.trouble}" for each in needed if each.trouble), "")
        return told or (f"not listed yet: {', '.join(waiting)}" if waiting else "")

    @property
    def _needed(self) -> tuple[Reflector[Any], ...]:
        return *self._nodes, *self._pods, *self._jobs, *self._queues, *self._classes

    async def run(self) -> None:
        """Keep all copies true until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for each in (*self._needed, *self._reports):
                tasks.create_task(each.run(), name=f"reflect {each.resource.plural}")
            if self._nodes:
                tasks.create_task(self._devices.run())
                tasks.create_task(self._rules.run())

    async def synced(self) -> None:
        """Wait until every kind has been listed once; for what may be missing, only a while."""
        for each in self._needed:
            await each.synced.wait()
        wanted = [each.synced for each in self._reports] + ([self._devices.known] if self._nodes else [])
        for event in wanted:
            try:
                await asyncio.wait_for(event.wait(), OPTIONAL_SECONDS)
            except TimeoutError:
                continue  # shown without it until it comes

    def job_of_pod(self, pod: str) -> str:
        """The job (`namespace/name`) of a pod (the same); empty where it is not of one of ours."""
        return self._job_of.get(pod, "")

    def prepared(self) -> Callable[[], tuple[Observation, frozenset[str]]]:
        """A look at this moment, and the namespaces that have jobs or pods: to be made in the one thread that looks.
        Call this in the event loop."""
        devices = self._devices if self._devices.listed else None
        caches = Caches(
            nodes=_all(self._nodes),
            pods=_all(self._pods),
            jobs=_all(self._jobs),
            queues=_all(self._queues),
            priority_classes=_all(self._classes),
            slices=tuple(devices.offered) if devices else (),
            claims=tuple(devices.claims.items.values()) if devices else (),
            device_classes=tuple(devices.classes.items.values()) if devices else (),
            taint_rules=tuple(self._rules.known_rules),
        )
        news, self._news = self._news, {}
        return partial(self._look, caches, news, not binds_directly(self._own), time.time())

    def controllers(self, pods: list[Pod]) -> None:
        """Pods of Trimtab itself, which say who binds."""
        self._own = pods

    def _look(
        self, caches: Caches, news: dict[str, GpuNodeObject | None], allocates: bool, now: float
    ) -> tuple[Observation, frozenset[str]]:
        for name, report in news.items():
            if report is None:
                self._gpunodes.forget(name)
            else:
                self._gpunodes.take(report)
        seen = self._observers[allocates].observe(caches, now)
        namespaces = frozenset(each.metadata.namespace for kind in (caches.jobs, caches.pods) for each in kind)
        return replace(seen, snapshot=replace(seen.snapshot, speedup=speedup_of(seen.jobs.values()))), namespaces

    def _changed(self, old: object, new: object) -> None:
        self._on_change()

    def _pod_changed(self, old: PodObject | None, new: PodObject | None) -> None:
        if old:
            self._job_of.pop(old.metadata.key, None)
        if new and (job := new.metadata.labels.get(names.LABEL_JOB)):
            self._job_of[new.metadata.key] = f"{new.metadata.namespace}/{job}"
        self._on_change()

    def _reported(self, old: GpuNodeObject | None, new: GpuNodeObject | None) -> None:
        if (report := new or old) is not None:
            self._news[report.metadata.name] = new
            self._on_change()


def _all(copies: Iterable[Reflector[T]]) -> tuple[T, ...]:
    return tuple(each for copy in copies for each in copy.items.values())
