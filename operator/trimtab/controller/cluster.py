"""The controller's copy of the cluster: one reflector per kind, and indexes from a job to what it controls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import structlog

from trimtab import names
from trimtab.controller.compute_domains import ComputeDomainCache
from trimtab.controller.kueue.caches import KueueCaches
from trimtab.controller.other_jobs import OtherJobs
from trimtab.controller.pods_by_job import PodsByJob
from trimtab.kube.client import KubeClient
from trimtab.kube.devices import DeviceCaches, TaintRuleCache
from trimtab.kube.discovery import pod_group_kind
from trimtab.kube.metrics_hooks import FactsObserver
from trimtab.kube.objects import (
    AnyObject,
    ConfigMapObject,
    Controlling,
    GpuNodeObject,
    Identity,
    JobObject,
    Meta,
    NodeObject,
    PodObject,
    PriorityClassObject,
    QueueObject,
)
from trimtab.kube.owned import OwnedObjects
from trimtab.kube.reflector import Reflector
from trimtab.kube.resources import (
    CONFIG_MAPS,
    GPUNODES,
    JOBS,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    QUEUES,
    SERVICES,
    Resource,
)
from trimtab.observe.gpunodes import GpuNodes
from trimtab.observe.snapshot import Caches
from trimtab.settings import ConfigMapSettings, ReflectorSettings

JOBS_PER_PAGE = 100
"""Of a list: a job may have 72 KiB, and a page is in memory several times for a moment."""
OPTIONAL_SECONDS = 10.0
"""How long the first round waits for what may be missing: the ConfigMap that chooses policies, PodGroups, devices."""

log = structlog.get_logger(__name__)


class Cluster:
    """Everything that the controller knows of the cluster. `on_change` is called for every relevant change.

    `policy` is where the ConfigMap is that chooses policies; an onlooker needs none. With `pod_groups` the PodGroups of
    our gangs are followed, too, where the API server serves that kind, and with `kueue` what Kueue says, while it is
    installed. `gpunodes` hears what agents report, if anybody wants to know; their heartbeats are no change. With
    `devices` what drivers of dynamic resource allocation offer is followed where that is served, and with
    `claim_templates` the templates by which our gangs ask for it, and their ComputeDomains. `other_jobs` are the jobs
    of other kinds that are to be placed.
    """

    def __init__(
        self,
        client: KubeClient,
        settings: ReflectorSettings,
        on_change: Callable[[], None],
        observer: FactsObserver,
        policy: ConfigMapSettings | None = None,
        *,
        pod_groups: bool = False,
        kueue: bool = False,
        gpunodes: GpuNodes | None = None,
        devices: bool = False,
        claim_templates: bool = False,
        other_jobs: OtherJobs | None = None,
    ) -> None:
        self._client = client
        self.other_jobs = other_jobs
        """Jobs of other kinds that are to be placed; None where nobody places them."""
        self._heard = gpunodes
        self._on_change = on_change
        self._pods_by_job = PodsByJob()
        self._job_keys: dict[str, str] = {}
        self._services: set[Identity] = set()
        self._ownerless: dict[str, Identity] = {}  # digest -> job that pods belong to, and that is not known
        self._listener: Callable[[str], None] = lambda _: None

        def reflect(resource: Resource, kind: type[Any], changed: Callable[[Any, Any], None]) -> Reflector[Any]:
            return Reflector(client, resource, kind, settings, on_change=changed, observer=observer)

        self.nodes: Reflector[NodeObject] = reflect(NODES, NodeObject, self._changed)
        self.pods: Reflector[PodObject] = reflect(PODS, PodObject, self._pod_changed)
        few = settings.model_copy(update={"page_size": min(settings.page_size, JOBS_PER_PAGE)})
        self.jobs: Reflector[JobObject] = Reflector(
            client, JOBS, JobObject, few, on_change=self._job_changed, observer=observer
        )
        self.queues: Reflector[QueueObject] = reflect(QUEUES, QueueObject, self._changed)
        self.priority_classes: Reflector[PriorityClassObject] = reflect(
            PRIORITY_CLASSES, PriorityClassObject, self._changed
        )
        self.services: Reflector[AnyObject] = reflect(SERVICES, AnyObject, self._service_changed)
        self.reflectors: tuple[Reflector[Any], ...] = (
            self.nodes, self.pods, self.jobs, self.queues, self.priority_classes, self.services,
        )  # fmt: skip
        self._config_maps = self._reflect_policy(policy, settings, observer) if policy else None
        self.gpunodes = reflect(GPUNODES, GpuNodeObject, self._gpunode_changed) if gpunodes else None
        self.reflectors += tuple(each for each in (self._config_maps, self.gpunodes) if each)
        self._groups = OwnedObjects(on_change)
        self._groups_known = asyncio.Event()
        self.pod_groups: Reflector[AnyObject] | None = None
        """Only where PodGroups are wanted and served: which version, is asked first."""
        self._grouping = pod_groups
        self._reflect_groups = partial(reflect, kind=AnyObject, changed=self._groups.changed)
        self.kueue = KueueCaches(client, settings, on_change, observer) if kueue else None
        """What Kueue's objects say; None where nobody wants to know."""
        self.devices = (
            DeviceCaches(client, settings, on_change, observer, templates=claim_templates) if devices else None
        )
        """What drivers of dynamic resource allocation offer; None where nobody wants to know."""
        self.taint_rules = TaintRuleCache(client, settings, on_change, observer) if devices else None
        self.compute_domains = ComputeDomainCache(client, settings, on_change, observer) if claim_templates else None

    def _reflect_policy(
        self, policy: ConfigMapSettings, settings: ReflectorSettings, observer: FactsObserver
    ) -> Reflector[ConfigMapObject]:
        """The one ConfigMap that chooses policies."""
        return Reflector(
            self._client,
            CONFIG_MAPS,
            ConfigMapObject,
            settings,
            on_change=self._changed,
            only=(policy.namespace, policy.name),
            observer=observer,
        )

    def listen(self, listener: Callable[[str], None]) -> None:
        """Have somebody told the UID of every job that something is heard of: itself, or what it controls."""
        self._listener = listener
        owned = (self._groups, self.devices.owned if self.devices else None)
        for each in (*owned, self.compute_domains.owned if self.compute_domains else None):
            if each:
                each.listener = lambda job: listener(job.uid)

    async def run(self) -> None:
        """Keep all copies true until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for reflector in self.reflectors:
                tasks.create_task(reflector.run(), name=f"reflect {reflector.resource.plural}")
            if self._grouping:
                tasks.create_task(self._follow_pod_groups(), name="reflect podgroups")
            for name, kinds in (
                ("workloads", self.kueue),
                ("devices", self.devices),
                ("devicetaintrules", self.taint_rules),
                ("computedomains", self.compute_domains),
                ("other kinds", self.other_jobs),
            ):
                if kinds:
                    tasks.create_task(kinds.run(), name=f"reflect {name}")

    async def _follow_pod_groups(self) -> None:
        kind = await pod_group_kind(self._client)
        log.info("kube-scheduler is told of gangs", by=f"{kind.api_version} PodGroups and gates" if kind else "gates")
        if kind is None:
            self._groups_known.set()
            return
        reflector = self.pod_groups = self._reflect_groups(kind)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(reflector.run())
            await reflector.synced.wait()
            self._groups_known.set()

    async def synced(self) -> None:
        """Wait until every kind has been listed once; for what may be missing, only a while.

        That is the ConfigMap of policies and what agents report: a right, or a kind, that is missing, e.g. after an
        upgrade, must not keep a controller from leading.
        """
        for reflector in self.needed:
            await reflector.synced.wait()
        for event, otherwise in self._awaited():
            try:
                await asyncio.wait_for(event.wait(), OPTIONAL_SECONDS)
            except TimeoutError:
                log.warning(otherwise)

    def _awaited(self) -> Iterator[tuple[asyncio.Event, str]]:
        """What may be missing: when it is known, and what is done until then."""
        if self._config_maps:
            yield (
                self._config_maps.synced,
                "the ConfigMap of policies could not be read yet: deciding as started until it can",
            )
        if self.gpunodes:
            yield (
                self.gpunodes.synced,
                "GPUNodes could not be listed yet: deciding without what agents report until they can",
            )
        if self.devices:
            yield (
                self.devices.known,
                "ResourceSlices and ResourceClaims could not be listed yet: deciding without them until they can",
            )
        if self.compute_domains:
            yield (
                self.compute_domains.known,
                "ComputeDomains could not be listed yet: gangs that start go without until they can",
            )
        if self.kueue:
            yield (
                self.kueue.known,
                "Workloads and ResourceFlavors could not be listed yet: jobs of Kueue's queues wait until they can",
            )
        if self._grouping:
            yield (
                self._groups_known,
                "PodGroups could not be listed yet: gangs are held together by gates alone until they can",
            )

    @property
    def needed(self) -> tuple[Reflector[Any], ...]:
        """Kinds without which nothing can be decided."""
        return tuple(each for each in self.reflectors if each not in (self._config_maps, self.gpunodes))

    def caches(self) -> Caches:
        """The raw objects of this moment."""
        devices = self.devices if self.devices and self.devices.listed else None
        return Caches(
            nodes=self.nodes.items.values(),
            pods=self.pods.items.values(),
            jobs=self.jobs.items.values(),
            queues=self.queues.items.values(),
            priority_classes=self.priority_classes.items.values(),
            slices=devices.offered if devices else (),
            claims=devices.claims.items.values() if devices else (),
            device_classes=devices.classes.items.values() if devices else (),
            taint_rules=self.taint_rules.known_rules if self.taint_rules else (),
        )

    def policy(self) -> ConfigMapObject | None:
        """The ConfigMap that chooses policies, if it exists."""
        return next(iter(self._config_maps.items.values()), None) if self._config_maps else None

    def job(self, uid: str) -> JobObject | None:
        """The job with this UID, if it exists."""
        key = self._job_keys.get(uid)
        return self.jobs.items.get(key) if key else None

    def job_named(self, key: str) -> JobObject | None:
        """The job `namespace/name`, if it exists."""
        return self.jobs.items.get(key)

    def pods_of(self, job: str) -> tuple[PodObject, ...]:
        """Pods that the job with this digest of its identity controls, which may be gone."""
        pods = self.pods.items
        return tuple(pods[key] for key in self._pods_by_job.of(job))

    def job_of_pod(self, pod: str) -> str:
        """`namespace/name` of the job whose gang a pod (the same) is of; empty where it is of none."""
        return self._pods_by_job.job_of(pod)

    def made_by(self, maker: Controlling) -> tuple[PodObject, ...]:
        """Pods for Trimtab to place that a job of another kind, or what has its pods, controls, and that are of no gang
        yet; all that name a group are its."""
        pods = self.pods.items
        return tuple(pods[key] for key in self._pods_by_job.made_by(maker))

    def without_job(self) -> list[Identity]:
        """Jobs that pods say they belong to, and that are not among those that are known: gone, or not seen yet."""
        return list(self._ownerless.values())

    def reports(self, key: str, uid: str) -> bool:
        """Whether the pod `namespace/name` is there with this UID, and of node rank 0 of a job."""
        pod = self.pods.items.get(key)
        if pod is None or pod.metadata.uid != uid or pod.metadata.job is None:
            return False
        return pod.metadata.labels.get(names.LABEL_RANK) == "0"

    def pod_groups_of(self, job: Identity) -> tuple[Meta, ...] | None:
        """PodGroups that the job controls; None where there is no such kind, or it is not listed yet."""
        if self.pod_groups is None or not self.pod_groups.synced.is_set():
            return None
        return self._groups.of(job)

    def claim_templates_of(self, job: Identity) -> tuple[Meta, ...] | None:
        """ResourceClaimTemplates that the job controls; None where gangs have none, or they are not listed yet."""
        return self.devices.templates_of(job) if self.devices else None

    def compute_domains_of(self, job: Identity) -> tuple[Meta, ...] | None:
        """ComputeDomains that the job controls; None where gangs have none, or they are not listed yet."""
        return self.compute_domains.of(job) if self.compute_domains else None

    def has_service(self, job: Identity) -> bool:
        """Whether the job controls the Service that its gang is found by."""
        return job in self._services

    # --- indexes ------------------------------------------------------------------------------------------------------
    def _changed(self, old: object, new: object) -> None:
        self._on_change()

    def _pod_changed(self, old: PodObject | None, new: PodObject | None) -> None:
        self._pods_by_job.changed(old, new)
        if self.other_jobs and (pod := new or old) and pod.group:
            self.other_jobs.on_change()
        for pod in (old, new):
            if pod and pod.metadata.job:
                self._heard_of(pod.metadata.job)
        self._on_change()

    def _gpunode_changed(self, old: GpuNodeObject | None, new: GpuNodeObject | None) -> None:
        if self._heard is None:
            return
        if new:
            if self._heard.take(new):
                self._on_change()
        elif old:
            self._heard.forget(old.metadata.name)
            self._on_change()

    def _job_changed(self, old: JobObject | None, new: JobObject | None) -> None:
        if old:
            self._job_keys.pop(old.metadata.uid, None)
        if new:
            self._job_keys[new.metadata.uid] = new.metadata.key
        for job in (old, new):
            if job:
                self._heard_of(job.metadata.identity)
        self._on_change()

    def _heard_of(self, job: Identity) -> None:
        """Something has happened to a job, or to a pod that says it belongs to it."""
        self._listener(job.uid)
        known = self.jobs.items.get(job.key)
        if job.digest in self._pods_by_job.owners and (known is None or known.metadata.uid != job.uid):
            self._ownerless[job.digest] = job
        else:
            self._ownerless.pop(job.digest, None)

    def _service_changed(self, old: AnyObject | None, new: AnyObject | None) -> None:
        before, after = _gang_of(old), _gang_of(new)
        if before:
            self._services.discard(before)
        if after:
            self._services.add(after)
        for job in (before, after):
            if job:
                self._listener(job.uid)
        if before or after:
            self._on_change()


def _gang_of(service: AnyObject | None) -> Identity | None:
    """The job whose gang is found by this Service: that is called like the job, as hostnames say."""
    job = service.metadata.job if service else None
    return job if job and service and service.metadata.key == job.key else None
