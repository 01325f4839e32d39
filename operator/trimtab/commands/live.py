"""One look at a live cluster, for commands that answer and end."""

from __future__ import annotations

import asyncio
import time

import msgspec
from msgspec.structs import replace

from trimtab.decide import choice
from trimtab.errors import Forbidden, NotFound, PolicyError
from trimtab.kube.client import KubeClient
from trimtab.kube.listing import list_all
from trimtab.kube.objects import (
    ConfigMapObject,
    DeviceClassObject,
    GpuNodeObject,
    JobObject,
    NodeObject,
    PodObject,
    PriorityClassObject,
    QueueObject,
    ResourceClaimObject,
    ResourceSliceObject,
)
from trimtab.kube.resources import (
    CONFIG_MAPS,
    DEVICE_CLASSES,
    GPUNODES,
    JOBS,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    QUEUES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from trimtab.observe.gpunodes import GpuNodes
from trimtab.observe.jobs import speedup_of
from trimtab.observe.snapshot import Caches, ClusterObserver, Observation
from trimtab.observe.stragglers import StragglerRules, Stragglers
from trimtab.settings import KubeSettings, PolicySettings, TelemetrySettings, TopologySettings
from trimtab_policy.scheduling.choice import Choice

_CONFIG_MAP = msgspec.json.Decoder(ConfigMapObject)


async def look(kube: KubeSettings, topology: TopologySettings | None = None) -> Observation:
    """Observe the cluster as the controller does, once. Needs only read access.

    What agents report is taken as it is: a card that is slow at this moment counts as slow.
    """
    async with await KubeClient.connect(kube) as client:
        nodes, pods, jobs, queues, classes, reports = await asyncio.gather(
            list_all(client, NODES, NodeObject),
            list_all(client, PODS, PodObject),
            list_all(client, JOBS, JobObject),
            list_all(client, QUEUES, QueueObject),
            list_all(client, PRIORITY_CLASSES, PriorityClassObject),
            _reports(client),
        )
        slices, claims, device_classes = await _devices(client)
    heard, telemetry = GpuNodes(TelemetrySettings()), TelemetrySettings()
    for report in reports:
        heard.take(report)
    slow = Stragglers(StragglerRules(telemetry.straggler_speed, seconds=0.0))
    observer = ClusterObserver((topology or TopologySettings()).levels, heard, slow)
    seen = observer.observe(Caches(nodes, pods, jobs, queues, classes, slices, claims, device_classes), time.time())
    return replace(seen, snapshot=replace(seen.snapshot, speedup=speedup_of(seen.jobs.values())))


async def deciding(kube: KubeSettings, own: PolicySettings) -> str:
    """The policy that decides in the live cluster: as its ConfigMap says, else as the settings do."""
    where, started = own.config_map, Choice(own.name, own.fallback)
    async with await KubeClient.connect(kube) as client:
        try:
            found = _CONFIG_MAP.decode(await client.get(CONFIG_MAPS.path(where.namespace, where.name)))
            return choice.read_choice(found.data, started).policy
        except (NotFound, Forbidden, PolicyError):
            return started.policy


async def _reports(client: KubeClient) -> list[GpuNodeObject]:
    """What agents report; nothing where the kind is not installed, or not for this user to read."""
    try:
        return await list_all(client, GPUNODES, GpuNodeObject)
    except (NotFound, Forbidden):
        return []


async def _devices(
    client: KubeClient,
) -> tuple[list[ResourceSliceObject], list[ResourceClaimObject], list[DeviceClassObject]]:
    """What drivers of dynamic resource allocation offer and who has it. Nothing where any of it is not to be read:
    without the claims, GPUs of others would look free."""
    try:
        return await asyncio.gather(
            list_all(client, RESOURCE_SLICES, ResourceSliceObject),
            list_all(client, RESOURCE_CLAIMS, ResourceClaimObject),
            list_all(client, DEVICE_CLASSES, DeviceClassObject),
        )
    except (NotFound, Forbidden):
        return [], [], []
