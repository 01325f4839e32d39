"""From wishes to nodes: a policy says which job shall hold how many GPUs of which type, this says where.

Running jobs that have what is wished for them stay where they are. All others are placed largest first, on as few nodes
as can be. A gang that the free GPUs are too scattered for pushes out smaller preemptible jobs where that moves the
fewest of them; these are placed after it, because they are smaller. So gangs of powers of two always fit on nodes of
powers of two if their GPUs do: what the larger ones leave of a node is a multiple of the next size. Sia (SOSP 2023,
section 3.5) places by the same rule, partial nodes apart from whole ones. Only then is a gang of unequal parts spread
over more nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from heapq import heapify, heappop, heappush

from trimtab_policy.placement.candidates import Candidate, candidates, has_room, holding, nodes_for, placement
from trimtab_policy.placement.capacity import Capacity, IntArray, uneven
from trimtab_policy.placement.pending_reasons import why_pending
from trimtab_policy.types import (
    Alternative,
    Decision,
    Job,
    NodeShare,
    Pending,
    PendingReason,
    Placement,
    Snapshot,
    Stop,
)

Shares = tuple[NodeShare, ...]
Holders = dict[int, dict[str, int]]
"""Node index -> UID of a job -> GPUs that it holds there."""
Describe = Callable[[Job, Candidate], tuple[str, tuple[Alternative, ...]]]
"""Why a job gets this, in words, and the choices that lost."""


def realise(
    policy: str,
    snapshot: Snapshot,
    wanted: Mapping[str, Candidate],
    reasons: Callable[[Job], Pending | None] | None = None,
    *,
    keep: Collection[str] = (),
    scatter: bool = False,
    capacity: Capacity | None = None,
    describe: Describe | None = None,
) -> Decision:
    """The decision under which each job of `wanted` (by UID) holds what it says, and no other preemptible job anything.

    Jobs that run and are not preemptible go on, whatever is wished. Where a wish does not fit its job waits, or is
    stopped. `reasons` says why a job waits for which nothing is wished, where it knows better. The jobs of `keep` go on
    with what they have, as if that were wished for them. `scatter` spreads uneven gangs over more nodes before it moves
    anybody: for jobs that are as fast on scattered GPUs. `capacity` is that of the snapshot, if it is at hand; it is
    spent. `describe` says why a job gets what it gets, and what lost.
    """
    fulfilled = fulfil(snapshot, wanted, keep=keep, scatter=scatter, capacity=capacity)
    return fulfilled.decision(policy, reasons, describe)


def fulfil(
    snapshot: Snapshot,
    wanted: Mapping[str, Candidate],
    *,
    keep: Collection[str] = (),
    scatter: bool = False,
    capacity: Capacity | None = None,
) -> Fulfilment:
    """Nodes for what is wished, as `realise` finds them: for policies that may wish for something else then."""
    found = Fulfilment(snapshot, capacity or Capacity(snapshot), wanted, keep, scatter)
    found.settle()
    return found


def waits(policy: str, snapshot: Snapshot, capacity: Capacity, job: Job) -> Pending:
    """Why a job waits that the policy has left out: it does not fit what is left, or others come first."""
    if job.speeds is None and not any(has_room(capacity, job, known) for known in candidates(snapshot, capacity, job)):
        return why_pending(snapshot, capacity, job)
    return Pending(job.uid, PendingReason.BEHIND_OTHERS, f"{policy} gives the GPUs to other jobs first")


def keeps(held: Placement, wish: Candidate) -> bool:
    """Whether the wish is what the job has: no need to touch it."""
    option, nodes = wish.option, len(held.shares)
    return (
        held.gpu_type == wish.gpu.name
        and option.nodes <= nodes <= max(wish.spread, option.nodes)
        and held.plan == option.plan
    )


class Fulfilment:
    """Who holds which nodes, while wishes are being fulfilled and afterwards."""

    def __init__(
        self,
        snapshot: Snapshot,
        capacity: Capacity,
        wanted: Mapping[str, Candidate],
        keep: Collection[str],
        scatter: bool,
    ) -> None:
        self.capacity = capacity
        self.found: dict[str, Shares] = {}
        """Nodes of the jobs whose wishes are fulfilled."""
        self._snapshot = snapshot
        self._asked, self._wanted = wanted, dict(wanted)
        self._scatter = scatter
        self._jobs = {job.uid: job for job in snapshot.jobs if job.preemptible or job.placement is None}
        self._order = {uid: number for number, uid in enumerate(self._jobs)}
        self._queue: list[tuple[int, int, int, str]] = []
        for uid, job in self._jobs.items():
            if uid in keep and job.placement:
                self.found[uid] = job.placement.shares
            else:
                self._sort_in(job, wanted.get(uid))

    def settle(self) -> None:
        """Fulfil all wishes that can be."""
        scattered: list[str] = []
        heapify(self._queue)
        while self._queue:
            *_, uid = heappop(self._queue)
            if not self._place(uid, scatter=self._scatter) and not (
                self._push_out_for(uid) and self._place(uid, scatter=self._scatter)
            ):
                scattered.append(uid)
        for uid in scattered:
            self._place(uid, scatter=True)

    def decision(
        self, policy: str, reasons: Callable[[Job], Pending | None] | None = None, describe: Describe | None = None
    ) -> Decision:
        """What is to be done for that; arguments as of `realise`."""
        described = describe or (lambda job, wish: (_reason(policy, wish), ()))
        snapshot, wanted = self._snapshot, self._asked
        placements = [
            placement(self.capacity, job, wish, self.found[job.uid], *described(job, wish))
            for job in self.changed()
            for wish in (self.wish(job.uid),)
        ]
        stops = [_stop(policy, job, wanted) for job in self.stopped()]
        pending = [
            why_pending(snapshot, self.capacity, job)
            if job.uid in wanted
            else (reasons and reasons(job)) or waits(policy, snapshot, self.capacity, job)
            for job in snapshot.waiting()
            if job.uid not in self.found
        ]
        return Decision(policy, tuple(placements), tuple(pending), tuple(stops))

    def wish(self, uid: str) -> Candidate:
        """What a job shall have; one that is kept, what it has."""
        held = self._jobs[uid].placement
        if uid not in self._wanted and held:
            self._wanted[uid] = holding(self._snapshot, self._jobs[uid], held)
        return self._wanted[uid]

    def changed(self) -> list[Job]:
        """Jobs that start, move or get another size or plan."""
        return [job for uid, job in self._jobs.items() if uid in self.found and not self._as_before(job)]

    def stopped(self) -> list[Job]:
        """Jobs that ran and shall not, or cannot."""
        return [job for uid, job in self._jobs.items() if job.placement and uid not in self.found]

    def _as_before(self, job: Job) -> bool:
        held = job.placement
        if held is None or held.shares != self.found[job.uid]:
            return False
        return job.uid not in self._wanted or keeps(held, self._wanted[job.uid])

    def _sort_in(self, job: Job, wish: Candidate | None) -> None:
        held = job.placement
        if held and wish and keeps(held, wish):
            self.found[job.uid] = held.shares
            return
        if held:
            self.capacity.give(job, held.gpu_type, held.shares)
        if wish:
            self._queue.append(self._turn(job.uid))

    def _turn(self, uid: str) -> tuple[int, int, int, str]:
        """Largest first, in the order of the snapshot between equals."""
        option = self.wish(uid).option
        return -option.gpus, -option.gpus_per_node, self._order[uid], uid

    def _place(self, uid: str, *, scatter: bool) -> bool:
        job, wish = self._jobs[uid], self.wish(uid)
        shares = nodes_for(self.capacity, job, wish, scatter=scatter, slow=True)
        if not shares:
            return False
        if job.placement and set(job.placement.shares) == set(shares):
            shares = job.placement.shares  # the same split in another rank order would be a restart for nothing
        self.capacity.take(job, wish.gpu.name, shares)
        self.found[uid] = shares
        return True

    def _push_out_for(self, uid: str) -> bool:
        """Free nodes that together hold the gang from smaller jobs, as few as can be; False where that is no help."""
        job, wish = self._jobs[uid], self.wish(uid)
        rows = self.capacity.eligible(job, wish.gpu.name)
        holders = self._smaller(wish)
        room = self.capacity.free[rows]
        for position, row in enumerate(rows.tolist()):
            room[position] += sum(holders.get(row, {}).values())
        parts = _parts(wish, room)
        left = dict(zip(rows.tolist(), room.tolist(), strict=True))
        for part in parts:
            able = (row for row, gpus in left.items() if gpus >= part)
            node, victims = min(((row, self._victims(row, part, holders)) for row in able), key=_fewest_moves)
            del left[node]
            for victim in victims:
                self._push_out(victim, holders)
        return bool(parts)

    def _smaller(self, wish: Candidate) -> Holders:
        holders: Holders = {}
        for uid, shares in self.found.items():
            other = self.wish(uid)
            if other.gpu.name == wish.gpu.name and other.option.gpus < wish.option.gpus:
                for share in shares:
                    if share.node in self.capacity.index:  # not on a node that has been taken out of service
                        holders.setdefault(self.capacity.index[share.node], {})[uid] = share.gpus
        return holders

    def _victims(self, row: int, part: int, holders: Holders) -> list[str]:
        """Jobs of a node that make way for a part of a gang: the smallest that is enough, else the largest ones."""
        lacking = part - int(self.capacity.free[row])
        here = sorted(holders.get(row, {}).items(), key=lambda held: held[1])
        enough = [uid for uid, gpus in here if gpus >= lacking]
        if enough and lacking > 0:
            return enough[:1]
        victims = []
        while lacking > 0:
            uid, gpus = here.pop()
            lacking -= gpus
            victims.append(uid)
        return victims

    def _push_out(self, uid: str, holders: Holders) -> None:
        shares = self.found.pop(uid)
        self.capacity.give(self._jobs[uid], self.wish(uid).gpu.name, shares)
        for held in holders.values():
            held.pop(uid, None)
        heappush(self._queue, self._turn(uid))


def _fewest_moves(way: tuple[int, list[str]]) -> tuple[int, int]:
    node, victims = way
    return len(victims), node


def _parts(wish: Candidate, room: IntArray) -> list[int]:
    """What the gang takes of each node where so many GPUs (n,) could be had; empty where it does not fit."""
    option = wish.option
    if wish.spread:
        found = uneven(room, option.gpus, option.nodes, option.nodes)
        return found[1] if found else []
    fits = int((room >= option.gpus_per_node).sum()) >= option.nodes
    return [option.gpus_per_node] * option.nodes if fits else []


def _reason(policy: str, wish: Candidate) -> str:
    return f"{wish.describe_with_plan()}: chosen by {policy}"


def _stop(policy: str, job: Job, wanted: Mapping[str, Candidate]) -> Stop:
    if wish := wanted.get(job.uid):
        return Stop(job.uid, f"no room for the {wish.describe()} that {policy} has chosen")
    return Stop(job.uid, f"{policy} gives its GPUs to other jobs")
