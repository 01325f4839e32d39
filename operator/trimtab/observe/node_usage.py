"""Running totals per GPU node: what its pods, and those on their way, take of it.

A plan may count on GPUs that others still hold: those of gangs that were asked to stop (`plan.waitsFor`), and, where a
gang goes on with another plan, those of its own earlier pods. Such a claim and the pods that it waits for are never
there at the same time. What a node is charged is the most that can be there at one time: each leaving GPU is inherited
once at most, and no two claims ever have the same one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import chain, filterfalse, product

from msgspec import Struct

from trimtab.kube.objects import Identity
from trimtab.observe.gpunodes import Look
from trimtab.observe.kept import changed
from trimtab.observe.nodes import NodeFacts
from trimtab.observe.pods import ENDING_SECONDS, OVERSTAY_SECONDS, PodFacts, Seat
from trimtab_policy.placement.grants import highest
from trimtab_policy.placement.runtime import holder
from trimtab_policy.types import Bounds, Grant, Job, Node, NodeShare, Placement, Readings, Requirements

Totals = tuple[int, int, int, int]
"""GPUs, CPU millicores, bytes of memory, pods."""
NOTHING: Totals = (0, 0, 0, 0)
MOST_KINDS = 10
"""Gangs that wait for different others on one node, up to which all orders in which they could come are tried."""


class Claim(Struct, frozen=True):
    """GPUs that a gang has, or is about to have: a plan, or a decision that is about to be written."""

    job: str
    """UID."""
    epoch: int
    """Of its pods."""
    placement: Placement
    after: tuple[tuple[str, int], ...] = ()
    """Gangs (digest of the job's identity, epoch) whose pods, and those of earlier epochs, must be gone before its pods
    come."""
    grants: tuple[Grant, ...] = ()
    """Its GPUs in the order in which it was given them."""


Gang = tuple[str, str]
"""UID of a job, epoch of its plan."""
NO_RANKS: Mapping[str, int] = {}


class Charges:
    """What pods take of their nodes, and whose parts of which plans they are: kept from look to look, for of thousands
    of pods only a few are others."""

    def __init__(self) -> None:
        self._pods: dict[int, PodFacts] = {}
        """By identity, which no other pod has as long as it is here."""
        self.used: dict[str, Totals] = {}
        """Of nodes that any pod holds something of."""
        self.seated: dict[Gang, dict[int, PodFacts]] = {}
        """Pods that are on a node, by their identity."""
        self.ranks: dict[Gang, dict[str, int]] = {}
        """The ranks of these, and how many pods have each."""
        self.ended: dict[int, PodFacts] = {}
        """Pods of gangs that have been on a node, and hold nothing of it any more."""
        self.leaving: dict[int, PodFacts] = {}
        """Pods with GPUs that have been deleted and hold them still."""

    def turn(self, pods: Sequence[PodFacts]) -> None:
        """Take all pods of this look."""
        before, now = self._pods, dict(zip(map(id, pods), pods, strict=True))
        for pod in filterfalse(now.__contains__, before):
            self._enter(before[pod], -1)
        for pod in filterfalse(before.__contains__, now):
            self._enter(now[pod], 1)
        self._pods = now

    def _enter(self, pod: PodFacts, sign: int) -> None:
        if not pod.node:
            if pod.seat and pod.job:
                _note(self.ended, pod, sign)
            return
        before, use = self.used.get(pod.node, NOTHING), pod.use
        more = sign * use.gpus, sign * use.cpu_milli, sign * use.memory, sign
        self.used[pod.node] = before[0] + more[0], before[1] + more[1], before[2] + more[2], before[3] + more[3]
        if not self.used[pod.node][3]:
            del self.used[pod.node]
        if use.gpus and pod.ends is not None:
            _note(self.leaving, pod, sign)
        if pod.seat and pod.job:
            gang, rank = pod.seat[:2], pod.seat[2]
            ranks, pods = self.ranks.setdefault(gang, {}), self.seated.setdefault(gang, {})
            ranks[rank] = ranks.get(rank, 0) + sign
            _note(pods, pod, sign)
            if not ranks[rank]:
                del ranks[rank]
            if not pods:
                del self.ranks[gang], self.seated[gang]


def _note(pods: dict[int, PodFacts], pod: PodFacts, sign: int) -> None:
    if sign > 0:
        pods[id(pod)] = pod
    else:
        del pods[id(pod)]


class NodeUsage:
    """Totals of one moment: of the `claims` of all jobs, each job's standing plan first. Then come the pods, then
    `settle`."""

    def __init__(self, gpu_nodes: Mapping[str, NodeFacts], claims: Sequence[Claim] = (), now: float = 0.0) -> None:
        self._nodes = gpu_nodes
        self._claims = claims
        self._now = now
        self.used: dict[str, Totals] = {}
        """Of nodes of which something is taken."""
        self.placements = {claim.job: claim.placement for claim in reversed(claims)}
        """UID of a job -> what it holds, or is about to."""
        self.grants = {claim.job: claim.grants for claim in reversed(claims)}
        """UID of a job -> the same, in the order in which it was given them."""
        self.granted = highest(0, (claim.grants for claim in claims))
        """The highest order of a grant."""
        self.leavers: dict[str, int] = {}
        """Digest of a job's identity -> epoch up to which somebody waits for the end of its pods."""
        for claim in claims:
            for job, epoch in claim.after:
                self.leavers[job] = max(epoch, self.leavers.get(job, 0))
        self.ending: dict[str, int] = {}
        """Node -> GPUs of pods that have been deleted and end in a moment, and that no job counts on. Without pods that
        have overstayed: nobody is to count on theirs."""
        self.until = math.inf
        """POSIX time from which some pods count among these, or do no longer, though nothing else has changed."""
        self._leaving: dict[str, list[tuple[str, int, Totals]]] = {}
        self._vacant: dict[str, int] = {}
        """Node -> GPUs that are charged to gangs whose pods there have ended."""
        self._heirs: dict[str, list[tuple[Claim, int]]] = {}
        """Node -> claims that wait for others, and how many GPUs of theirs they are to have there."""
        self._gangs: list[Gang] = [(claim.job, str(claim.epoch)) for claim in claims]
        self._lingering: list[PodFacts] = []
        self._ranks: Mapping[Gang, Mapping[str, int]] = {}
        self._left = set[Seat]()
        """Ranks of gangs that somebody waits for, whose pods have ended: they have left."""
        self._ended = set[Seat]()
        """Ranks of other gangs whose pods have ended: what they held is theirs until they are given up or complete."""

    def standing_shares(self) -> dict[Seat, NodeShare]:
        """What every pod of every plan that stands is to have, by its seat."""
        return {
            (claim.job, str(claim.epoch), str(rank)): share
            for claim in self._claims
            for rank, share in enumerate(claim.placement.shares)
        }

    def pods(self, pods: Charges) -> None:
        """Charge those of all pods that are on a node."""
        nodes, leavers = self._nodes, self.leavers
        self._ranks = pods.ranks
        self.used = {name: used for name, used in pods.used.items() if name in nodes}
        for gang in pods.seated.keys() - self._gangs:
            self._lingering += [pod for pod in pods.seated[gang].values() if pod.node in nodes and pod.use.gpus]
        self._lingering.sort(key=lambda pod: (pod.seat or (), pod.uid))
        for pod in pods.leaving.values():
            if pod.node in nodes and pod.ends is not None and self._ends_soon(pod.ends) and not self._placed(pod):
                self.ending[pod.node] = self.ending.get(pod.node, 0) + pod.use.gpus
        for pod in pods.ended.values():
            if pod.seat and pod.job:
                (self._left if pod.job.digest in leavers else self._ended).add(pod.seat)
        for pod in chain.from_iterable(map(dict.values, pods.seated.values())) if leavers else ():
            if pod.job and pod.job.digest in leavers:
                self._leaves(pod)

    def _placed(self, pod: PodFacts) -> bool:
        """Whether the pod is of a gang that holds its GPUs still."""
        return pod.seat is not None and pod.seat[0] in self.placements

    def _ends_soon(self, moment: float) -> bool:
        """Whether a pod that is to have ended then is about to; and note when that changes."""
        begins, over = moment - ENDING_SECONDS, moment + OVERSTAY_SECONDS
        self.until = min([self.until, *(each for each in (begins, over) if each > self._now)])
        return begins <= self._now < over

    def devices(self, node: str, gpus: int) -> None:
        """Charge GPUs that claims hold for no pod on the node: of pods that are about to come, or have ended."""
        if node in self._nodes:
            self._add(node, (gpus, 0, 0, 0))

    def _leaves(self, pod: PodFacts) -> None:
        """Note a pod of one of the `leavers`, if somebody waits for its end. It is charged like all others."""
        if pod.job is None or pod.node not in self._nodes:
            return
        job, epoch = pod.job.digest, _epoch_of(pod)
        if epoch <= self.leavers[job]:
            use = pod.use
            self._leaving.setdefault(pod.node, []).append((job, epoch, (use.gpus, use.cpu_milli, use.memory, 1)))

    def settle(self, needs: Mapping[str, Requirements | None]) -> None:
        """Charge the ranks that have no pod on a node: what waits only as far as it needs more than what it waits for
        gives back. `needs` are the requirements by job UID.

        Ranks whose pods have ended are charged for as long as the plan stands: policies are shown that the gang has
        these GPUs, and would give them away a second time, once as free and once as its own.
        """
        waiting: dict[str, dict[frozenset[int], Totals]] = {}
        nodes = self._nodes
        for claim, gang in zip(self._claims, self._gangs, strict=True):
            here, shares = self._ranks.get(gang, NO_RANKS), claim.placement.shares
            # Almost all have all their pods: this is as far as thousands of gangs get.
            if len(here) >= len(shares) and here.keys() >= _ranks(len(shares)).keys():
                continue
            need, after = needs[claim.job] or Requirements(Bounds()), dict(claim.after)
            for rank, share in zip(_ranks(len(shares)), shares, strict=True):
                seat = *gang, rank
                if rank in here or seat in self._left or share.node not in nodes:
                    continue
                if after:
                    self._heirs.setdefault(share.node, []).append((claim, share.gpus))
                asked = share.gpus, need.cpu_milli(share.gpus), need.memory(share.gpus), 1
                leaving = self._leaving.get(share.node, ()) if after else ()
                first = frozenset(i for i, (other, of, _) in enumerate(leaving) if of <= after.get(other, -1))
                if first:
                    kinds = waiting.setdefault(share.node, {})
                    kinds[first] = _sum(kinds.get(first, NOTHING), asked)
                    continue
                self._add(share.node, asked)
                if seat in self._ended:
                    self._vacant[share.node] = self._vacant.get(share.node, 0) + share.gpus
        for node, kinds in waiting.items():
            going = [totals for _, _, totals in self._leaving[node]]
            stays = _less(self.used[node], _sum(*going))
            self.used[node] = _sum(stays, _peak(going, kinds))

    def lingering(self, queue_of: Callable[[PodFacts], str], queue_of_job: Callable[[str], str]) -> list[Job]:
        """What pods still hold whose plan is no more, as jobs that just hold it: those of gangs that were stopped, of
        jobs that are being deleted and of such as are gone. Their GPUs count against the queue that they were given
        for until the last one is free: else whoever deletes fast, or has a finalizer, would have more than its quota.

        Left out are GPUs that another plan of the same queue is to have, on that node: they count once. The rest of a
        large gang that makes room for a small one counts on.
        """
        held: dict[tuple[Identity, str, str], dict[str, int]] = {}
        wanted = {node: [gpus for _, gpus in heirs] for node, heirs in self._heirs.items()}
        for pod in self._lingering:
            gpu, queue, gpus = self._nodes[pod.node].gpu, queue_of(pod), pod.use.gpus
            if not (gpu and pod.job):
                continue
            for i, (claim, _) in enumerate(self._heirs.get(pod.node, ())):
                if queue == queue_of_job(claim.job) and _epoch_of(pod) <= dict(claim.after).get(pod.job.digest, -1):
                    inherited = min(wanted[pod.node][i], gpus)
                    wanted[pod.node][i] -= inherited
                    gpus -= inherited
            if gpus:
                shares = held.setdefault((pod.job, queue, gpu.name), {})
                shares[pod.node] = shares.get(pod.node, 0) + gpus
        return [_holder(*key, shares) for key, shares in held.items()]

    def requested(self, node: str) -> int:
        """GPUs that are requested of a node."""
        return self.used.get(node, NOTHING)[0]

    def beyond(self) -> dict[str, int]:
        """GPUs requested beyond what a node has. What is foreign has no part in this: nobody is to go because of it.
        Nor have pods that have ended, though their plan stands."""
        nodes, vacant = self._nodes, self._vacant
        over = {name: used[0] - nodes[name].gpus for name, used in self.used.items() if used[0] > nodes[name].gpus}
        left = {name: gpus - vacant.get(name, 0) for name, gpus in over.items() if nodes[name].gpu}
        return {name: gpus for name, gpus in left.items() if gpus > 0}

    def _add(self, node: str, more: Totals) -> None:
        before = self.used.get(node, NOTHING)
        self.used[node] = before[0] + more[0], before[1] + more[1], before[2] + more[2], before[3] + more[3]


@cache
def _ranks(pods: int) -> dict[str, None]:
    """Of a gang of so many, in order, as labels say them."""
    return dict.fromkeys(map(str, range(pods)))


def _epoch_of(pod: PodFacts) -> int:
    """Of the plan that the pod was made for; 0 where its label says none."""
    told = pod.seat[1] if pod.seat else ""
    return int(told) if told.isdecimal() else 0


def _holder(job: Identity, queue: str, gpu_type: str, gpus: Mapping[str, int]) -> Job:
    """What pods of one gang that linger hold of each node, GPUs of one type."""
    shares = tuple(NodeShare(node, count) for node, count in gpus.items())
    namespace, _, name = job.key.partition("/")
    return holder(f"{job.uid}/{gpu_type}/{queue}", namespace, name, queue=queue, gpu_type=gpu_type, shares=shares)


def _peak(leaving: list[Totals], waiting: Mapping[frozenset[int], Totals]) -> Totals:
    """The most that can be there at one time: some of what waits has come, and of the leaving pods are left those that
    it did not wait for. There are as many kinds of waiting as gangs share a node: few; of many all that could be."""
    if len(waiting) > MOST_KINDS:
        return _sum(*leaving, *waiting.values())
    most = NOTHING
    for come in product((False, True), repeat=len(waiting)):
        gone = frozenset[int]().union(*(first for first, here in zip(waiting, come, strict=True) if here))
        there = _sum(
            *(asked for asked, here in zip(waiting.values(), come, strict=True) if here),
            *(totals for i, totals in enumerate(leaving) if i not in gone),
        )
        most = max(most[0], there[0]), max(most[1], there[1]), max(most[2], there[2]), max(most[3], there[3])
    return most


def _sum(*parts: Totals) -> Totals:
    gpus, cpu, memory, pods = (sum(column) for column in zip(NOTHING, *parts, strict=True))
    return gpus, cpu, memory, pods


def _less(whole: Totals, part: Totals) -> Totals:
    return whole[0] - part[0], whole[1] - part[1], whole[2] - part[2], whole[3] - part[3]


class Pages:
    """The nodes as policies see them. Only those are made anew of which something has changed since the last look."""

    def __init__(self) -> None:
        self._made_of: tuple[Mapping[str, object], ...] = ({}, {}, {}, {}, {})
        self._known: dict[str, Node] = {}
        self._nodes: tuple[Node, ...] = ()

    def turn(
        self, takes: Mapping[str, NodeFacts], usage: NodeUsage, reports: Look, speeds: Mapping[str, float]
    ) -> tuple[Node, ...]:
        """Nodes that take pods. The very same tuple where nothing has changed."""
        used, foreign, readings = usage.used, reports.foreign, reports.readings
        before, made_of = self._made_of, (takes, used, foreign, readings, speeds)
        others = {name for was, is_now in zip(before, made_of, strict=True) for name in _otherwise(was, is_now)}
        if others or takes is not before[0]:

            def page(name: str) -> Node:
                free = used.get(name, NOTHING), speeds.get(name, 1.0), foreign.get(name, 0), readings.get(name)
                return _node(takes[name], *free)

            known = self._known
            if list(takes) == list(known):
                self._known = known | {name: page(name) for name in others & takes.keys()}
            else:
                kept = known.keys() - others
                self._known = {name: known[name] if name in kept else page(name) for name in takes}
            self._nodes = tuple(self._known.values())
        self._made_of = made_of
        return self._nodes


def _otherwise(before: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    """Names of which another thing, or nothing, is known by now. Most things are the very same objects."""
    return [name for name in changed(before, now) if name not in now or before.get(name) != now[name]]


def _node(facts: NodeFacts, used: Totals, speed: float, foreign: int, readings: Readings | None) -> Node:
    assert facts.gpu
    free = facts.gpus - used[0]
    busy = min(foreign, max(0, free))
    return Node(
        name=facts.name,
        gpu_type=facts.gpu.name,
        gpus=facts.gpus,
        free_gpus=free - busy,
        free_cpu_milli=facts.cpu_milli - used[1],
        free_memory=facts.memory - used[2],
        free_pods=facts.pods - used[3],
        topology=facts.topology,
        link_domain=facts.link_domain,
        speed=speed,
        foreign_gpus=busy,
        readings=readings,
        cpu_milli=facts.cpu_milli,
        memory=facts.memory,
    )
