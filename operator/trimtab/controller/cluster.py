"""The controller's copy of the cluster: one reflector per kind, and indexes from a job to what it controls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import structlog

from trimtab.kube.client import KubeClient
from trimtab.kube.objects import (
    AnyObject,
    ConfigMapObject,
    JobObject,
    Meta,
    NodeObject,
    PodObject,
    PriorityClassObject,
    QueueObject,
)
from trimtab.kube.observer import Observer
from trimtab.kube.reflector import Reflector
from trimtab.kube.resources import CONFIG_MAPS, JOBS, NODES, PODS, PRIORITY_CLASSES, QUEUES, SERVICES, Resource
from trimtab.observe.snapshot import Caches
from trimtab.settings import ConfigMapSettings, ReflectorSettings

CONFIG_MAP_SECONDS = 10.0
"""How long the first round waits for the ConfigMap that chooses policies."""

log = structlog.get_logger(__name__)


class Cluster:
    """Everything that the controller knows of the cluster. `on_change` is called for every relevant change.

    `policy` is where the ConfigMap is that chooses policies; an onlooker needs none.
    """

    def __init__(
        self,
        client: KubeClient,
        settings: ReflectorSettings,
        on_change: Callable[[], None],
        observer: Observer,
        policy: ConfigMapSettings | None = None,
    ) -> None:
        self._on_change = on_change
        self._pods_of: dict[str, dict[str, PodObject]] = {}
        self._job_keys: dict[str, str] = {}
        self._services: dict[str, str] = {}

        def reflect(resource: Resource, kind: type[Any], changed: Callable[[Any, Any], None]) -> Reflector[Any]:
            return Reflector(client, resource, kind, settings, on_change=changed, observer=observer)

        self.nodes: Reflector[NodeObject] = reflect(NODES, NodeObject, self._changed)
        self.pods: Reflector[PodObject] = reflect(PODS, PodObject, self._pod_changed)
        self.jobs: Reflector[JobObject] = reflect(JOBS, JobObject, self._job_changed)
        self.queues: Reflector[QueueObject] = reflect(QUEUES, QueueObject, self._changed)
        self.priority_classes: Reflector[PriorityClassObject] = reflect(
            PRIORITY_CLASSES, PriorityClassObject, self._changed
        )
        self.services: Reflector[AnyObject] = reflect(SERVICES, AnyObject, self._service_changed)
        self.reflectors: tuple[Reflector[Any], ...] = (
            self.nodes, self.pods, self.jobs, self.queues, self.priority_classes, self.services,
        )  # fmt: skip
        self._config_maps: Reflector[ConfigMapObject] | None = None
        if policy:
            only = policy.namespace, policy.name
            self._config_maps = Reflector(
                client, CONFIG_MAPS, ConfigMapObject, settings, on_change=self._changed, only=only, observer=observer
            )
            self.reflectors += (self._config_maps,)

    async def run(self) -> None:
        """Keep all copies true until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for reflector in self.reflectors:
                tasks.create_task(reflector.run(), name=f"reflect {reflector.resource.plural}")

    async def synced(self) -> None:
        """Wait until every kind has been listed once; for the ConfigMap of policies, which may be there, only a while.

        A right that is missing for it, e.g. after an upgrade, must not keep a controller from leading.
        """
        for reflector in self.reflectors:
            if reflector is not self._config_maps:
                await reflector.synced.wait()
        if self._config_maps:
            try:
                await asyncio.wait_for(self._config_maps.synced.wait(), CONFIG_MAP_SECONDS)
            except TimeoutError:
                log.warning("the ConfigMap of policies could not be read yet: deciding as started until it can")

    def caches(self) -> Caches:
        """The raw objects of this moment."""
        return Caches(
            nodes=self.nodes.items.values(),
            pods=self.pods.items.values(),
            jobs=self.jobs.items.values(),
            queues=self.queues.items.values(),
            priority_classes=self.priority_classes.items.values(),
        )

    def policy(self) -> ConfigMapObject | None:
        """The ConfigMap that chooses policies, if it exists."""
        return next(iter(self._config_maps.items.values()), None) if self._config_maps else None

    def job(self, uid: str) -> JobObject | None:
        """The job with this UID, if it exists."""
        key = self._job_keys.get(uid)
        return self.jobs.items.get(key) if key else None

    def pods_of(self, uid: str) -> tuple[PodObject, ...]:
        """Pods that the job controls."""
        return tuple(self._pods_of.get(uid, {}).values())

    def has_service(self, uid: str) -> bool:
        """Whether the job controls a Service."""
        return uid in self._services

    # --- indexes ------------------------------------------------------------------------------------------------------
    def _changed(self, old: object, new: object) -> None:
        self._on_change()

    def _pod_changed(self, old: PodObject | None, new: PodObject | None) -> None:
        for uid in _controllers(old):
            of_owner = self._pods_of[uid]
            del of_owner[old.metadata.uid if old else ""]
            if not of_owner:
                del self._pods_of[uid]
        for uid in _controllers(new):
            if new:
                self._pods_of.setdefault(uid, {})[new.metadata.uid] = new
        self._on_change()

    def _job_changed(self, old: JobObject | None, new: JobObject | None) -> None:
        if old:
            self._job_keys.pop(old.metadata.uid, None)
        if new:
            self._job_keys[new.metadata.uid] = new.metadata.key
        self._on_change()

    def _service_changed(self, old: AnyObject | None, new: AnyObject | None) -> None:
        ours = False
        for uid in _controllers(old):
            ours = self._services.pop(uid, None) is not None or ours
        for uid in _controllers(new):
            self._services[uid] = new.metadata.key if new else ""
            ours = True
        if ours:
            self._on_change()


def _controllers(obj: AnyObject | PodObject | None) -> Iterable[str]:
    if obj is None:
        return ()
    meta: Meta = obj.metadata
    return tuple(owner.uid for owner in meta.owner_references if owner.controller)
