"""One look at a live cluster, for commands that answer and end."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from trimtab.doctor.collect import OURS
from trimtab.doctor.findings import some
from trimtab.doctor.gpu_nodes import binds_directly
from trimtab.doctor.inventory import Pod
from trimtab.errors import Forbidden, NotFound, PolicyError
from trimtab.kube.client import KubeClient
from trimtab.kube.listing import list_all
from trimtab.kube.objects import (
    ConfigMapObject,
    DeviceClassObject,
    DeviceTaintRuleObject,
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
    DEVICE_TAINT_RULES,
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
from trimtab.printable import say
from trimtab.settings import KubeSettings, MonitorSettings, PolicySettings, TelemetrySettings, TopologySettings

if TYPE_CHECKING:
    from trimtab_policy.scheduling.choice import Choice

_CONFIG_MAP = msgspec.json.Decoder(ConfigMapObject)


async def look(kube: KubeSettings, topology: TopologySettings | None = None) -> Observation:
    """Observe the cluster as the controller does, once. Needs only read access.

    What agents report is taken as it is: a card that is slow at this moment counts as slow. What is left out, and may
    be seen otherwise by the controller, is told on standard error.
    """
    unreadable: list[str] = []
    async with await KubeClient.connect(kube) as client:
        nodes, pods, jobs, queues, classes, reports = await asyncio.gather(
            list_all(client, NODES, NodeObject, unreadable),
            list_all(client, PODS, PodObject, unreadable),
            list_all(client, JOBS, JobObject, unreadable),
            list_all(client, QUEUES, QueueObject, unreadable),
            list_all(client, PRIORITY_CLASSES, PriorityClassObject, unreadable),
            _reports(client, unreadable),
        )
        own = await list_all(client, PODS, Pod, [], params={"labelSelector": OURS})
        slices, claims, device_classes = await _devices(client, unreadable)
        rules = await _taint_rules(client, unreadable)
    if unreadable:
        say(f"left out, since they cannot be read: {some(unreadable)}", error=True)
    heard, telemetry = GpuNodes(TelemetrySettings()), TelemetrySettings()
    for report in reports:
        heard.take(report)
    slow = Stragglers(StragglerRules(telemetry.straggler_speed, seconds=0.0))
    levels = (topology or TopologySettings()).levels
    observer = ClusterObserver(levels, heard, slow, allocates=not binds_directly(own))
    caches = Caches(nodes, pods, jobs, queues, classes, slices, claims, device_classes, rules)
    seen = observer.observe(caches, time.time())
    return replace(seen, snapshot=replace(seen.snapshot, speedup=speedup_of(seen.jobs.values())))


async def labelled_nodes(kube: KubeSettings, selector: str) -> list[str]:
    """Names of nodes with these labels."""
    async with await KubeClient.connect(kube) as client:
        found = await list_all(client, NODES, NodeObject, [], params={"labelSelector": selector})
    return [node.metadata.name for node in found]


async def deciding(kube: KubeSettings, own: PolicySettings, monitor: MonitorSettings) -> str:
    """The policy that decides in the live cluster (`deciders`)."""
    return (await deciders(kube, own, monitor))[0]


async def deciders(kube: KubeSettings, own: PolicySettings, monitor: MonitorSettings) -> tuple[str, Choice]:
    """The policy that decides in the live cluster, and what was chosen: as its ConfigMap says, else as the settings do;
    the fallback decides where it has been found to do better."""
    from trimtab.decide import choice
    from trimtab.decide.standing import read_standing
    from trimtab_policy.scheduling.choice import Choice

    where, chosen = own.config_map, Choice(own.name, own.fallback)
    async with await KubeClient.connect(kube) as client:
        with suppress(NotFound, Forbidden, PolicyError):  # then the settings' choice is the best answer that there is
            found = _CONFIG_MAP.decode(await client.get(CONFIG_MAPS.path(where.namespace, where.name)))
            chosen = choice.read_choice(found.data, chosen)
        if monitor.period_seconds:
            with suppress(NotFound, Forbidden, PolicyError):
                path = CONFIG_MAPS.path(monitor.namespace, monitor.config_map)
                standing = read_standing(_CONFIG_MAP.decode(await client.get(path)).data)
                if standing.fallen and standing.concerns(chosen.policy, chosen.fallback):
                    return chosen.fallback, chosen
    return chosen.policy, chosen


async def _reports(client: KubeClient, unreadable: list[str]) -> list[GpuNodeObject]:
    """What agents report; nothing where the kind is not installed, or not for this user to read."""
    try:
        return await list_all(client, GPUNODES, GpuNodeObject, unreadable)
    except (NotFound, Forbidden):
        return []


async def _taint_rules(client: KubeClient, unreadable: list[str]) -> list[DeviceTaintRuleObject]:
    """Taints that others than the drivers put on devices; none where the kind is not served, or not to be read."""
    try:
        return await list_all(client, DEVICE_TAINT_RULES, DeviceTaintRuleObject, unreadable)
    except (NotFound, Forbidden):
        return []


async def _devices(
    client: KubeClient, unreadable: list[str]
) -> tuple[list[ResourceSliceObject], list[ResourceClaimObject], list[DeviceClassObject]]:
    """What drivers of dynamic resource allocation offer and who has it. As for the controller, none of it where any of
    it is not served, or not to be read: without the claims, GPUs of others would look free."""
    try:
        return await asyncio.gather(
            list_all(client, RESOURCE_SLICES, ResourceSliceObject, unreadable),
            list_all(client, RESOURCE_CLAIMS, ResourceClaimObject, unreadable),
            list_all(client, DEVICE_CLASSES, DeviceClassObject, unreadable),
        )
    except NotFound:
        return [], [], []
    except Forbidden as error:
        say(f"nodes whose GPUs come by dynamic resource allocation look empty: {error}", error=True)
        return [], [], []
