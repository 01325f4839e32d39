"""The extender's own copy of nodes and pods, and the accounts of GPUs that it keeps of them.

Held by a pod is what it asked for once it is bound, until it has ended; a pod that is being deleted holds on. Promised
is what pods of ours will take that have their place in a plan and are not bound yet. All of it is read from the
cluster: two extenders know the same, and one that was just started knows all.
"""

from __future__ import annotations

import asyncio
import gc
import re
from collections.abc import Iterable
from typing import TypeVar

from msgspec import Struct

from trimtab import names
from trimtab.extender.checks import GpuAvailability, claim
from trimtab.kube.metrics_hooks import FactsObserver
from trimtab.kube.objects import NodeObject, PodObject
from trimtab.kube.reflector import Reflector, Source
from trimtab.kube.resources import NODES, PODS
from trimtab.observe import nodes as observed_nodes
from trimtab.observe import pods as observed_pods
from trimtab.settings import ReflectorSettings

T = TypeVar("T")


class NodeEntry(Struct, frozen=True):
    """What the index knows of a node."""

    name: str
    gpu_type: str
    """As the catalog calls it; empty where it is not known, or there is none."""
    gpus: int
    unavailable: str
    """Why it takes no pods; empty when it does."""
    counted: bool = True
    """Whether its object says how many GPUs it has. Not where they come by dynamic resource allocation, or there are
    none: then kube-scheduler alone counts."""


class GangMember(Struct, frozen=True):
    """A pod of a gang that has not ended."""

    namespace: str
    job: str
    epoch: str
    rank: str
    pod: str
    node: str
    """Of the plan."""
    bound: str
    """Where it is; empty until it is bound."""
    gpus: int
    gang: int
    """Pods of the gang; 0 where the pod does not say."""
    state: str
    """Gated, Waiting, Bound, or the phase of a pod that runs; Deleting."""

    @property
    def gang_name(self) -> str:
        """`namespace/job`."""
        return f"{self.namespace}/{self.job}"

    @property
    def place(self) -> str:
        """The node that it is on, or else that of the plan."""
        return self.bound or self.node


class PodIndex:
    """Accounts of GPUs by node. Fed by `node_changed` and `pod_changed`: everything at first, and then the news."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeEntry] = {}
        self.members: dict[str, GangMember] = {}
        """Pods of ours that have not ended, by UID."""
        self.gangs: dict[str, dict[str, GangMember]] = {}
        """The same by job (`namespace/job`) and UID."""
        self.on_node: dict[str, dict[str, GangMember]] = {}
        """The same by node and UID: where they are, or else where they are planned."""
        self._held: dict[str, dict[str, int]] = {}
        self._waiting: list[asyncio.Future[None]] = []

    def availability(self, node: str, uid: str) -> GpuAvailability | None:
        """The node as the pod with this UID would find it; None when there is no such node."""
        if (entry := self.nodes.get(node)) is None:
            return None
        others = sum(gpus for holder, gpus in self._held.get(node, {}).items() if holder != uid)
        return GpuAvailability(entry.unavailable, entry.gpus, max(entry.gpus - others, 0) if entry.counted else None)

    def held(self, node: str) -> int:
        """GPUs of a node that pods hold."""
        return sum(self._held.get(node, {}).values())

    async def news(self, seconds: float) -> bool:
        """Wait until anything changes; False when nothing did."""
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(changed)
        try:
            await asyncio.wait_for(changed, seconds)
        except TimeoutError:
            return False
        finally:
            if changed in self._waiting:
                self._waiting.remove(changed)
        return True

    def node_changed(self, old: NodeObject | None, new: NodeObject | None) -> None:
        """Take news of a node: None stands for not being there."""
        if old:
            self.nodes.pop(old.metadata.name, None)
        if new:
            self.nodes[new.metadata.name] = _entry(new)
        self._tell()

    def pod_changed(self, old: PodObject | None, new: PodObject | None) -> None:
        """Take news of a pod: None stands for not being there."""
        if old:
            self._forget(old)
        if new:
            self._note(new)
        self._tell()

    def _note(self, pod: PodObject) -> None:
        uid = pod.metadata.uid
        gpus = observed_pods.use(pod).gpus
        if gpus and observed_pods.holds_resources(pod):
            self._held.setdefault(pod.spec.node_name, {})[uid] = gpus
        if (member := _member(pod, gpus)) is not None:
            self.members[uid] = member
            self.gangs.setdefault(member.gang_name, {})[uid] = member
            self.on_node.setdefault(member.place, {})[uid] = member

    def _forget(self, pod: PodObject) -> None:
        uid = pod.metadata.uid
        _drop(self._held, pod.spec.node_name, uid)
        if (member := self.members.pop(uid, None)) is not None:
            _drop(self.gangs, member.gang_name, uid)
            _drop(self.on_node, member.place, uid)

    def _tell(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()


class BooksWatch:
    """Keeps `index` equal to the cluster."""

    def __init__(self, source: Source, settings: ReflectorSettings, observer: FactsObserver) -> None:
        self.index = PodIndex()
        self.nodes: Reflector[NodeObject] = Reflector(
            source, NODES, NodeObject, settings, on_change=self.index.node_changed, observer=observer
        )
        self.pods: Reflector[PodObject] = Reflector(
            source, PODS, PodObject, settings, on_change=self.index.pod_changed, observer=observer
        )

    @property
    def reflectors(self) -> Iterable[Reflector[NodeObject] | Reflector[PodObject]]:
        """Of both kinds."""
        return self.nodes, self.pods

    @property
    def synced(self) -> bool:
        """Whether everything was listed once."""
        return self.nodes.synced.is_set() and self.pods.synced.is_set()

    @property
    def trouble(self) -> str:
        """Why the index may be out of date right now; empty when all is well."""
        if not self.synced:
            return "nodes and pods are not listed yet"
        return self.nodes.trouble or self.pods.trouble

    async def run(self) -> None:
        """Until cancelled."""
        settling = asyncio.create_task(self._settle(), name="settle")
        try:
            await self._follow()
        finally:
            settling.cancel()

    async def _settle(self) -> None:
        """What is there now mostly stays: a full collection of it would stop the loop for tens of milliseconds."""
        await asyncio.gather(self.nodes.synced.wait(), self.pods.synced.wait())
        gc.collect()
        gc.freeze()

    async def _follow(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.nodes.run(), name="reflect nodes")
            tasks.create_task(self.pods.run(), name="reflect pods")


def _entry(node: NodeObject) -> NodeEntry:
    facts = observed_nodes.facts(node, ())
    if facts is None or facts.obstacle in observed_nodes.NOT_OFFERED:
        return NodeEntry(node.metadata.name, "", 0, observed_nodes.closed(node), counted=False)
    return NodeEntry(facts.name, facts.gpu.name if facts.gpu else "", facts.gpus, facts.unavailable)


def _drop(index: dict[str, dict[str, T]], key: str, uid: str) -> None:
    """Take one pod out of an index that keeps nothing empty."""
    if (pods := index.get(key)) is not None:
        pods.pop(uid, None)
        if not pods:
            del index[key]


def _member(pod: PodObject, gpus: int) -> GangMember | None:
    meta = pod.metadata
    if pod.status.phase in observed_pods.TERMINAL or (place := claim(meta)) is None:
        return None
    return GangMember(
        namespace=meta.namespace,
        job=place.job,
        epoch=meta.labels.get(names.LABEL_EPOCH, ""),
        rank=meta.labels.get(names.LABEL_RANK, ""),
        pod=meta.name,
        node=place.node,
        bound=pod.spec.node_name,
        gpus=gpus,
        gang=_count(meta.annotations.get(names.ANNOTATION_GANG, "")),
        state=_state(pod),
    )


def _count(text: str) -> int:
    """A number that anybody may have written."""
    return int(text) if re.fullmatch("[0-9]{1,6}", text) else 0


def _state(pod: PodObject) -> str:
    if pod.metadata.deletion_timestamp:
        return "Deleting"
    if pod.status.phase not in ("", "Pending"):
        return pod.status.phase
    if pod.spec.node_name:
        return "Bound"
    return "Gated" if pod.spec.scheduling_gates else "Waiting"
