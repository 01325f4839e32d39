"""`trimtab agent --fake-nodes`: one process that plays the agents of all fake nodes of a cluster.

For every node that KWOK keeps (annotation `kwok.x-k8s.io/node: fake`) and whose GPUs are known it simulates them, with
the pods that are bound to the node running on them, and writes its GPUNode when a real agent would: when something
moved, and every period. The nodes' heartbeats are spread evenly over it. Nodes are read when they change, and otherwise
every `least_report_seconds`: sampling 40,000 GPUs every second would tell nobody more.

Something goes wrong where a node has the annotation `fake.trimtab.dev/gpu-faults`, a YAML list as in a profile:

    kubectl annotate node h100-0 'fake.trimtab.dev/gpu-faults=[{kind: xid, gpu: 3, code: 79}]'

It is somebody's own account that does so: the agents' may write only the GPUNode of the node that they run on.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Final

import structlog
from msgspec import Struct, field

from trimtab import names
from trimtab.agent.digest import Digest, report
from trimtab.agent.profile import FakeNode, RunningPod, parse_faults
from trimtab.agent.publish import Previous, Publisher, all_previous, reason
from trimtab.agent.schedule import Cause, Schedule
from trimtab.agent.simulation import SimulatedNode
from trimtab.agent.start import refuse_authentication
from trimtab.agent.wire import MAX_GPUS
from trimtab.errors import ApiError, QuantityError
from trimtab.kube.backoff import Backoff
from trimtab.kube.client import KubeClient
from trimtab.kube.objects import NodeObject, PodObject
from trimtab.kube.quantity import to_int
from trimtab.kube.reflector import Reflector
from trimtab.kube.resources import NODES, PODS
from trimtab.observe import gpus
from trimtab.settings import Settings
from trimtab.telemetry import agent_metrics as metrics
from trimtab.telemetry import logs
from trimtab.telemetry.server import TelemetryServer

IN_FLIGHT: Final = 32
"""Reports that are written at once."""
TICK_SECONDS: Final = 0.1
BUSY_SECONDS: Final = 0.5
START_SECONDS: Final = 1.0
ENDED: Final = ("Succeeded", "Failed")
NVLINK_FROM: Final = 200e9
"""Bytes/s between GPUs from which on it is NVLink, not PCI Express."""
NVLINK_EACH: Final = 25e9

log = structlog.get_logger(__name__)


class FleetMember(Struct):
    """One fake node and its agent."""

    node: NodeObject
    simulated: SimulatedNode
    digest: Digest
    schedule: Schedule
    publisher: Publisher
    boot_id: str
    backoff: Backoff = field(default_factory=lambda: Backoff(initial=1.0, cap=30.0))
    carried: bool = False
    busy: bool = False
    look_at: float = math.inf


async def run_fleet(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT."""
    refuse_authentication(settings)
    logs.configure(settings.log)
    stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    async with await KubeClient.connect(settings.kube) as client:
        fleet = Fleet(settings, client)
        served = settings.metrics, lambda: "", fleet.unready, metrics.REGISTRY, metrics.PORTS
        async with TelemetryServer(*served) as server:
            log.info("playing the agents of fake nodes", metrics=f"{server.url}/metrics")
            await fleet.run(stop)


class Fleet:
    """All fake nodes of a cluster."""

    def __init__(self, settings: Settings, client: KubeClient, clock: Callable[[], float] = time.monotonic) -> None:
        self.members: dict[str, FleetMember] = {}
        self._settings = settings.agent
        self._client = client
        self._clock = clock
        self._bound: dict[str, dict[str, RunningPod]] = {}
        """Node -> its pods that have GPUs, by `namespace/name`."""
        self._previous: dict[str, Previous | None] = {}
        """What agents before us left, of nodes that have not been reported yet."""
        self._due: list[tuple[float, str]] = []
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self._writes: set[asyncio.Task[None]] = set()
        reflector = settings.reflector
        self._nodes = Reflector(client, NODES, NodeObject, reflector, on_change=self._node_changed)
        self._pods = Reflector(client, PODS, PodObject, reflector, on_change=self._pod_changed)

    def unready(self) -> str:
        """What is not listed yet."""
        missing = [each.resource.plural for each in (self._nodes, self._pods) if not each.synced.is_set()]
        return f"not listed yet: {', '.join(missing)}" if missing else ""

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set."""
        tasks = [asyncio.create_task(each.run()) for each in (self._nodes, self._pods)]
        tasks.append(asyncio.create_task(self._tick()))
        stopping = asyncio.create_task(stop.wait())
        try:
            done, _ = await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for each in done - {stopping}:
                each.result()
        finally:
            for each in (stopping, *tasks, *self._writes):
                each.cancel()
            await asyncio.gather(stopping, *tasks, *self._writes, return_exceptions=True)

    # --- what the cluster says --------------------------------------------------------------------------------------
    def _node_changed(self, old: NodeObject | None, new: NodeObject | None) -> None:
        if new is None:
            if old is not None:
                self.members.pop(old.metadata.name, None)
        elif new.metadata.annotations.get(names.ANNOTATION_KWOK) == "fake":
            self._node_is(new)
        metrics.NODES.set(len(self.members))

    def _node_is(self, node: NodeObject) -> None:
        name = node.metadata.name
        member = self.members.get(name)
        if member is None or _machine(member.node) != _machine(node):
            if (made := self._made(node)) is None:
                self.members.pop(name, None)
                return
            self.members[name] = member = made
            self._settle(member)
            self._look(member, self._clock() + self._offset(name))
        elif _faults(member.node) != _faults(node):
            self._look(member, self._clock())
        member.node = node
        self._injected(member)

    def _made(self, node: NodeObject) -> FleetMember | None:
        """A member for a node; None where it has no GPUs that could be simulated."""
        if (profile := _profile(node)) is None:
            return None
        name, settings = node.metadata.name, self._settings
        found = gpus.read_gpus(node.metadata.labels, node.status.capacity)
        assert found is not None
        assert found.spec is not None, "_profile looked"
        return FleetMember(
            node=node,
            simulated=SimulatedNode(profile, found.spec, name),
            digest=Digest(settings.report_seconds),
            schedule=Schedule(settings.report_seconds, settings.least_report_seconds),
            publisher=Publisher(self._client, name, node.metadata.uid),
            boot_id=str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{node.metadata.uid}.boot")),
        )

    def _injected(self, member: FleetMember) -> None:
        text = _faults(member.node)
        try:
            member.simulated.faults = parse_faults(text, member.simulated.profile.gpus)
        except ValueError as error:
            log.error("the annotation cannot be used", node=member.node.metadata.name, reason=str(error))

    def _pod_changed(self, old: PodObject | None, new: PodObject | None) -> None:
        for pod, there in ((old, False), (new, True)):
            if pod is None or not pod.spec.node_name:
                continue
            node, key = pod.spec.node_name, pod.metadata.key
            member = self.members.get(node)
            running = self._bound.setdefault(node, {})
            before = running.get(key)
            if there and pod.status.phase not in ENDED and (count := _gpus_of(pod)):
                running[key] = RunningPod(key, count)
            else:
                running.pop(key, None)
            if member and running.get(key) != before:
                self._settle(member)
                self._look(member, self._clock() + START_SECONDS)  # a training takes its time to start

    def _settle(self, member: FleetMember) -> None:
        member.simulated.running = tuple(self._bound.get(member.node.metadata.name, {}).values())

    def _offset(self, name: str) -> float:
        """Spreads first reports, and with them all heartbeats, over a period."""
        return self._settings.report_seconds * (uuid.uuid5(uuid.NAMESPACE_DNS, name).int % 10_000) / 10_000

    # --- reports ----------------------------------------------------------------------------------------------------
    def _look(self, member: FleetMember, at: float) -> None:
        """Have the node looked at then, unless that happens earlier anyway."""
        if at < member.look_at:
            member.look_at = at
            heapq.heappush(self._due, (at, member.node.metadata.name))

    async def _tick(self) -> None:
        await asyncio.gather(self._nodes.synced.wait(), self._pods.synced.wait())
        try:
            found = await all_previous(self._client)  # one list instead of a request for each
            self._previous = {name: found.get(name) for name in self.members}
        except ApiError as error:
            log.warning("GPUNodes are not listed, asking for each", error=str(error))
        while True:
            for member in self._now_due():
                await self._slots.acquire()
                task = asyncio.create_task(self._turn(member))
                self._writes.add(task)
                task.add_done_callback(self._ended)
            await asyncio.sleep(TICK_SECONDS)

    def _now_due(self) -> Iterator[FleetMember]:
        now = self._clock()
        while self._due and self._due[0][0] <= now:
            at, name = heapq.heappop(self._due)
            if (member := self.members.get(name)) and at == member.look_at:
                if member.busy:
                    member.look_at = math.inf
                    self._look(member, now + BUSY_SECONDS)
                else:
                    member.busy, member.look_at = True, math.inf
                    yield member

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._writes.discard(task)
        self._slots.release()
        if not task.cancelled() and (error := task.exception()):
            log.error("a fake agent failed", error=repr(error))

    async def _turn(self, member: FleetMember) -> None:
        """Read one node, write its report if it is due, and say when to look again."""
        try:
            await self._report(member, self._clock())
        finally:
            member.busy = False
            now = self._clock()
            later, heartbeat = now + self._settings.least_report_seconds, member.schedule.heartbeat_at
            self._look(
                member, min(later, heartbeat) if heartbeat > now else later
            )  # overdue: it failed, or may not write

    async def _report(self, member: FleetMember, now: float) -> None:
        if member.simulated.hanging(now):
            return
        cause: Cause = "first"
        try:
            if not member.carried:
                await self._carry(member)
            reading = member.simulated.read(now)
            metrics.SAMPLES.labels("error" if reading.error else "read").inc()
            state = member.digest.take(reading, now, time.time())
            if not (cause := member.schedule.due(state, now)):
                return
            status = report(state, backend="fake", period=self._settings.report_seconds, boot_id=member.boot_id)
            repaired = await member.publisher.write(status)
        except ApiError as error:
            wait = member.backoff.next(error.retry_after)
            member.schedule.failed(self._clock() + wait)
            member.publisher.forget()
            metrics.REPORTS.labels(cause, reason(error)).inc()
            log.warning("not reported", node=member.node.metadata.name, error=str(error))
            return
        member.backoff.reset()
        member.schedule.wrote(state, now)
        metrics.REPORTS.labels(cause, "written").inc()
        if repaired:
            member.digest.faults.mend(repaired)

    async def _carry(self, member: FleetMember) -> None:
        name = member.node.metadata.name
        previous = self._previous.pop(name) if name in self._previous else await member.publisher.previous()
        carried = member.digest.faults.carry(previous.status if previous else None, member.boot_id)
        if previous and carried:
            member.digest.faults.mend(previous.repaired)
        member.carried = True


def _profile(node: NodeObject) -> FakeNode | None:
    """The GPUs that a node's labels speak of; None where it has none, or none that we know."""
    found = gpus.read_gpus(node.metadata.labels, node.status.capacity)
    if found is None or found.spec is None:
        return None
    spec = found.spec
    linked = spec.vendor == "NVIDIA" and spec.link_bandwidth >= NVLINK_FROM
    product = node.metadata.labels.get("nvidia.com/gpu.product") or spec.name
    links = min(18, round(spec.link_bandwidth / NVLINK_EACH)) if linked else 0
    return FakeNode(product=product, gpus=min(found.count, MAX_GPUS), nvlinks=links, driver=_driver(node))


def _driver(node: NodeObject) -> str:
    return node.metadata.labels.get("nvidia.com/cuda.driver-version.full", "")


def _machine(node: NodeObject) -> tuple[object, ...]:
    """What makes it another machine."""
    return node.metadata.uid, _profile(node)


def _faults(node: NodeObject) -> str:
    return node.metadata.annotations.get(names.ANNOTATION_FAKE_GPU_FAULTS, "")


def _gpus_of(pod: PodObject) -> int:
    """GPUs that a pod asks for."""
    try:
        return sum(
            to_int(container.resources.requests.get(resource, container.resources.limits.get(resource, "0")))
            for container in pod.spec.containers
            for resource in names.GPU_RESOURCES
        )
    except QuantityError:
        return 0
