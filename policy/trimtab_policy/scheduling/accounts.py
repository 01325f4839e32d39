"""Who has what while a decision is made: the snapshot, and what was decided about it so far.

A node has what is free now, and what running jobs will give back that this decision stops or moves. A placement takes
of the former first (a job that moves, of its own GPUs), and waits for exactly those jobs of whose resources, or whose
part of a quota, it takes some. So whatever comes when, a node never holds more than it has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from trimtab_policy.placement.capacity import ALL_TYPES
from trimtab_policy.placement.grants import granted, highest
from trimtab_policy.placement.limits import Violation
from trimtab_policy.placement.node_columns import Amounts, columns
from trimtab_policy.placement.runtime import within_reach
from trimtab_policy.types import Decision, Grant, Job, Node, Placement, Quota, Snapshot

NOTHING: Amounts = (0, 0, 0, 0)
_RULES = (
    ("oversubscribed_gpus", "GPUs"),
    ("oversubscribed_cpu", "CPU millicores"),
    ("oversubscribed_memory", "bytes of memory"),
    ("oversubscribed_pods", "pod slots"),
)


class Freed(Struct, frozen=True):
    """What a job that goes leaves on one node, as far as nobody has it yet."""

    job: str
    """UID."""
    beneficiary: str
    """UID of the job that it goes for; empty where none is named."""
    amounts: Amounts
    paid: bool = False
    """Whether a part went to what the node has given out beyond its own: without it nothing of the rest was free."""


class Accounts:
    """Who has what during one decision. `give` and `take` change it, a `copy` may be thrown away."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.jobs = {job.uid: job for job in snapshot.jobs}
        known = columns(snapshot.nodes)
        self.nodes = known.by_name
        self.placed: dict[str, Placement] = {}
        """By job UID, what was decided."""
        self.left: set[str] = set()
        """UIDs of running jobs that are stopped or moved."""
        self._at_first = known.amounts
        self._free = dict(known.amounts)
        self._freed: dict[str, tuple[Freed, ...]] = {}
        self._waits: dict[str, tuple[str, ...]] = {}
        self._queue_use: dict[tuple[str, str], int] = {}
        for job in snapshot.jobs if snapshot.quotas else ():
            if job.placement:
                self._charge(job, job.placement, 1)

    def copy(self) -> Accounts:
        """The same, to be changed on its own."""
        other = object.__new__(Accounts)
        other.__dict__.update(
            {name: value.copy() if name in _CHANGING else value for name, value in self.__dict__.items()}
        )
        return other

    def give(self, uid: str, beneficiary: str = "") -> None:
        """A running job gives back what it holds."""
        job = self.jobs[uid]
        if uid in self.left or job.placement is None:
            return
        self.left.add(uid)
        self._charge(job, job.placement, -1)
        for share in job.placement.shares:
            if share.node in self._free:
                gives = needs(job, share.gpus)
                lacking = _minus(NOTHING, self._free[share.node])
                rest, owed = _spend(gives, lacking)  # what is beyond the node's own first
                self._free[share.node] = _minus(NOTHING, owed)
                freed = Freed(uid, beneficiary, rest, paid=rest != gives)
                self._freed[share.node] = (*self._freed.get(share.node, ()), freed)

    def lacks(self, placement: Placement) -> Violation | None:
        """What the nodes of a placement, or the quota of its queue, have too little of."""
        job = self.jobs[placement.job]
        if job.uid in self.placed:
            return "already_placed", "the job has a placement already"
        for share in placement.shares:
            wanted, room = needs(job, share.gpus), self._room(share.node)
            for (rule, what), asked, there in zip(_RULES, wanted, room, strict=True):
                if asked and asked > there:
                    return rule, f"node {share.node} has {there} {what} free, {asked} are needed"
        return self._beyond_quota(job, placement)

    def take(self, placement: Placement) -> None:
        """A job gets its GPUs: those that are free now, and those of jobs that go."""
        job = self.jobs[placement.job]
        waits = dict.fromkeys(self._count_on(job, placement))
        for share in placement.shares:
            waits |= dict.fromkeys(self._draw(job, share.node, needs(job, share.gpus)))
        self.placed[job.uid] = placement
        self._waits[job.uid] = tuple(waits)
        self._charge(job, placement, 1)

    def waits_of(self, placements: Iterable[Placement]) -> dict[str, tuple[str, ...]]:
        """UID of a job -> UIDs of those that must be gone before it comes; only where there are any."""
        return {placed.job: waits for placed in placements if (waits := self._waits[placed.job])}

    def awaited(self) -> dict[str, list[str]]:
        """UID of a job that goes -> UIDs of those that wait for it."""
        found: dict[str, list[str]] = {}
        for uid, waits in self._waits.items():
            for left in waits:
                found.setdefault(left, []).append(uid)
        return found

    def view(self, *, stopped: bool = False) -> Snapshot:
        """The snapshot as if all of it were done. Nobody is touched again who is placed. Those that stop are not there,
        so that they are not decided about again; with `stopped` they are, and wait."""
        if not self.placed and not self.left:
            return self.snapshot
        first = self._at_first
        touched = self._freed.keys() | {name for name, free in self._free.items() if free is not first[name]}
        nodes = tuple(self._shown(node) if node.name in touched else node for node in self.snapshot.nodes)
        given = self.grants()
        top = highest(self.snapshot.granted, given.values())
        return replace(self.snapshot, nodes=nodes, jobs=tuple(self._jobs(given, stopped)), granted=top)

    def _shown(self, node: Node) -> Node:
        gpus, cpu, memory, pods = self._room(node.name)
        if (gpus, cpu, memory, pods) == self._at_first[node.name]:
            return node
        return replace(node, free_gpus=gpus, free_cpu_milli=cpu, free_memory=memory, free_pods=pods)

    def grants(self) -> dict[str, tuple[Grant, ...]]:
        """UID of a job with a placement -> the GPUs that it will have, in the order in which it was given them."""
        return granted(self.snapshot, self.placed.values())

    def _jobs(self, given: Mapping[str, tuple[Grant, ...]], stopped: bool) -> Iterator[Job]:
        for job in self.snapshot.jobs:
            if placement := self.placed.get(job.uid):
                yield _placed(self.snapshot, job, placement, given[job.uid])
            elif job.uid not in self.left:
                yield job
            elif stopped:
                yield _stopped(job)

    def _room(self, node: str) -> Amounts:
        """What is free, or will be."""
        found = self._free[node]
        for freed in self._freed.get(node, ()):
            found = _plus(found, freed.amounts)
        return found

    def _draw(self, job: Job, node: str, wanted: Amounts) -> list[str]:
        """Spend what a pod needs; returns the jobs of which it takes something."""
        if node not in self._freed:
            _, self._free[node] = _spend(wanted, self._free[node])
            return []
        freed = sorted(self._freed[node], key=lambda each: (each.job != job.uid, each.beneficiary != job.uid))
        left: list[Freed] = []
        waits: list[str] = []
        own, others = [f for f in freed if f.job == job.uid], [f for f in freed if f.job != job.uid]
        for each in own:
            wanted, kept = _spend(wanted, each.amounts)
            left.append(replace(each, amounts=kept))
        wanted, self._free[node] = _spend(wanted, self._free[node])
        for each in others:
            rest, kept = _spend(wanted, each.amounts)
            if rest != wanted:
                waits.append(each.job)
            wanted = rest
            left.append(replace(each, amounts=kept))
        waits += [each.job for each in others if waits and each.paid and each.job not in waits]
        self._freed[node] = tuple(left)
        return waits

    def _beyond_quota(self, job: Job, placement: Placement) -> Violation | None:
        for quota in self.snapshot.quotas:
            if quota.queue == job.queue and quota.gpu_type in (placement.gpu_type, ALL_TYPES):
                used = self._queue_use.get((quota.queue, quota.gpu_type), 0)
                if used + placement.gpus > quota.gpus:
                    return "quota", f"queue {quota.queue} allows {quota.gpus} {quota.gpu_type} GPUs and uses {used}"
        return None

    def _count_on(self, job: Job, placement: Placement) -> Iterator[str]:
        """Jobs that go and whose part of a quota this takes; those that go for it first."""
        for_whom = {freed.job: freed.beneficiary for each in self._freed.values() for freed in each}
        going = sorted(self.left - {job.uid}, key=lambda uid: (for_whom.get(uid) != job.uid, uid))
        for quota in self.snapshot.quotas:
            if quota.queue != job.queue or quota.gpu_type not in (placement.gpu_type, ALL_TYPES):
                continue
            parts = [(uid, self._counts(uid, quota)) for uid in going]
            used = self._queue_use.get((quota.queue, quota.gpu_type), 0) + sum(gpus for _, gpus in parts)
            beyond = used + placement.gpus - quota.gpus
            for uid, gpus in parts:
                if beyond > 0 and gpus:
                    yield uid
                    beyond -= gpus

    def _counts(self, uid: str, quota: Quota) -> int:
        """GPUs of a running job that count against a quota."""
        job = self.jobs[uid]
        if job.queue != quota.queue or job.placement is None:
            return 0
        return job.placement.gpus if quota.gpu_type in (job.placement.gpu_type, ALL_TYPES) else 0

    def _charge(self, job: Job, placement: Placement, sign: int) -> None:
        for gpu_type in (placement.gpu_type, ALL_TYPES):
            key = job.queue, gpu_type
            self._queue_use[key] = self._queue_use.get(key, 0) + sign * placement.gpus


def after(snapshot: Snapshot, decision: Decision) -> Snapshot:
    """The snapshot once a decision is carried out: all placements made, all stops over, and who was stopped waits."""
    accounts = Accounts(snapshot)
    for stop in decision.stops:
        accounts.give(stop.job)
    for placement in decision.placements:
        accounts.give(placement.job)
    for placement in decision.placements:
        accounts.take(placement)
    return accounts.view(stopped=True)


def _placed(snapshot: Snapshot, job: Job, placement: Placement, grants: tuple[Grant, ...]) -> Job:
    """A job with what it was given. It is just being started: nobody touches it."""
    now, left = snapshot.time, 1 - job.steps_done / job.training.steps
    seconds = left * placement.prediction.run_seconds + (job.restart_seconds if job.placement else 0.0)
    finish = within_reach(now + seconds / snapshot.speedup, now)
    never = {"preemptible": False, "movable_from": math.inf, "stoppable_from": None}
    begun = {"started": now, "lost_seconds": 0.0, "expected_finish": finish}
    return replace(job, placement=placement, grants=grants, **begun, **never)


def _stopped(job: Job) -> Job:
    waits = {"placement": None, "started": None, "expected_finish": None, "stoppable_from": None}
    return replace(job, grants=(), movable_from=0.0, lost_seconds=0.0, **waits)


_CHANGING = ("placed", "left", "_free", "_freed", "_waits", "_queue_use")


def needs(job: Job, gpus: int) -> Amounts:
    """What a pod of the job with so many GPUs takes of its node."""
    return gpus, job.requirements.cpu_milli(gpus), job.requirements.memory(gpus), 1


# Written out: these are most of what it costs to hold a decision against the rules.
def _spend(wanted: Amounts, there: Amounts) -> tuple[Amounts, Amounts]:
    """What is wanted still, and what is left there."""
    spent = (
        min(wanted[0], max(0, there[0])),
        min(wanted[1], max(0, there[1])),
        min(wanted[2], max(0, there[2])),
        min(wanted[3], max(0, there[3])),
    )
    return _minus(wanted, spent), _minus(there, spent)


def _plus(one: Amounts, other: Amounts) -> Amounts:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2], one[3] + other[3]


def _minus(whole: Amounts, part: Amounts) -> Amounts:
    return whole[0] - part[0], whole[1] - part[1], whole[2] - part[2], whole[3] - part[3]
