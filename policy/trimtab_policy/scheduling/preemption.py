"""Preemption and defragmentation: which running gangs stop, move or shrink so that one that fits nowhere can start.

For the first jobs in line, one after the other. GPUs are freed in two ways, for each of a few shapes of the gang:

- others move or shrink, and nobody stops (`consolidate`). They are of the same or of lower priority; what they lose by
  it must be less than a part (`PreemptionRules.max_cost`) of what the gang would lose by waiting, `wait × its GPUs`.
- others stop (`victims`): those of strictly lower priority, and, for a job whose queue holds less than it is
  guaranteed, of the same priority what their queues have borrowed (`preemption_rights`). That a gang's queue stays
  within its guarantee with it keeps reclaim from going back and forth; strict order does for priorities.

The cheaper way is taken. Victims that still fit somewhere in the end move there, or go on with fewer GPUs, instead of
stopping. All is tried on a copy of what is free before a victim is named: the whole gang can start, or nobody is
touched. Nothing is done for a gang that will fit anyway sooner than a victim would have restarted.

GPUs that are reserved (`reservations.ReservationGuard`) count as taken for jobs later in line. Neither a gang that
starts nor one that moves for it may delay a job with a reservation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from trimtab_policy.placement.candidates import Candidate, has_room, nodes_for, placement
from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.placement.queueing import seconds_left
from trimtab_policy.placement.releases import FreeTimeline, expected_ends, expected_timeline
from trimtab_policy.scheduling.consolidation import (
    ConsolidationMove,
    consolidate,
    could_move,
    moved,
    not_above,
    settle,
    spent,
)
from trimtab_policy.scheduling.preemption_rights import PreemptionRights
from trimtab_policy.scheduling.reservations import Reservation, ReservationGuard, hidden
from trimtab_policy.scheduling.shapes import Way, chosen, possible, shortlist
from trimtab_policy.scheduling.victims import Victim, choose, without
from trimtab_policy.types import Decision, Job, Node, NodeShare, Placement, Snapshot

NAME = "room"
LONGEST_WAIT = 24 * 3600.0
"""Seconds that a job is taken to wait at most, where no end is in sight."""


class PreemptionRules(Struct, frozen=True):
    """What may be done to running jobs for the good of waiting ones."""

    preempt: bool = True
    """Stop jobs of lower priority."""
    reclaim: bool = True
    """Stop jobs that hold what their queue has borrowed, for a job whose queue holds less than it is guaranteed."""
    consolidate: bool = True
    """Move jobs, divide them otherwise, or leave elastic ones fewer GPUs, where that is enough."""
    at_once: int = 16
    """Once this decision stops, moves or shrinks so many gangs no further job is helped: those that are being stopped
    already have been taken off. For the last one more may stop: half of the GPUs that a gang needs are of no use."""
    for_one: int = 256
    """Gangs that this decision may stop, move or shrink, even if all are for one job: a plan names no more."""
    looked_at: int = 16
    """Waiting jobs, first in line, for which victims are searched, of those that have any."""
    max_cost: float = 0.5
    """What moves may cost others, at most, as a part of what the gang would lose by waiting. Both in GPU-seconds times
    the peak FLOP/s of the GPUs."""


def preempt_others(
    snapshot: Snapshot, waiting: Sequence[Job], rules: PreemptionRules, guard: ReservationGuard | None = None
) -> Decision:
    """Placements of jobs that wait, of jobs that move or shrink for them, and stops with cause and beneficiary.

    `snapshot` contains what the policy has placed already; jobs that were placed just now must not be movable yet
    (`Job.movable_from`). `waiting` are the jobs that are left, in line. A placement may take GPUs that jobs of this
    decision give back. Jobs that are left waiting are not mentioned. `guard` knows what is kept, and for whom.
    """
    if not snapshot.nodes or not waiting or rules.at_once < 1:
        return Decision(NAME)
    search = _PreemptionSearch(snapshot, rules, guard)
    search.serve(waiting)
    return search.decision()


class _Start(Struct, frozen=True):
    """A waiting job that gets its GPUs."""

    job: Job
    wish: Candidate
    shares: tuple[NodeShare, ...]


class _PreemptionSearch:
    """What is free, who may be preempted, and what was decided so far."""

    def __init__(self, snapshot: Snapshot, rules: PreemptionRules, guard: ReservationGuard | None) -> None:
        self._snapshot, self._rules, self._guard = snapshot, rules, guard
        self._hidden: dict[tuple[Reservation, ...], tuple[NodeShare, ...]] = {}
        self._at_first = Capacity(snapshot)
        self._free = self._at_first.copy()
        self._rights = PreemptionRights(snapshot, rules.preempt, rules.reclaim, rules.consolidate)
        self._starts: list[_Start] = []
        self._moves: list[tuple[ConsolidationMove, Job]] = []
        self._stops: list[tuple[Victim, Job]] = []
        self._promised: list[tuple[Job, Candidate]] = []
        self._known_ahead: FreeTimeline | None = None
        self._hopeless: set[object] = set()
        self._looked = 0

    def serve(self, waiting: Sequence[Job]) -> None:
        """Look at the jobs in line until too many gangs would be touched."""
        for job in waiting:
            if self._looked >= self._rules.looked_at or self._left() < 1:
                return
            kind = _kind(job), self._before(job)
            if kind in self._hopeless or not (self._starts or self._rights.any_for(job)):
                continue
            known = possible(self._snapshot, self._free, job)
            at_first = self._open_to(job, self._at_first)
            if any(has_room(at_first, job, wish) for wish in known):
                continue  # it would have fitted, and the policy has not placed it
            if not self._help(job, known):
                self._hopeless.add(kind)

    def decision(self) -> Decision:
        """What is to be done: victims that still fit somewhere move there instead of stopping."""
        for_whom = {victim.job.uid: job for victim, job in self._stops}
        stops = self._settle(for_whom) if self._rules.consolidate else [victim for victim, _ in self._stops]
        starts = [_placement(self._free, start) for start in self._starts]
        moving = [moved(self._free, move, job) for move, job in self._needed_moves()]
        return Decision(
            NAME,
            (*starts, *moving),
            stops=tuple(self._rights.stop(victim, for_whom[victim.job.uid]) for victim in stops),
        )

    def _settle(self, for_whom: Mapping[str, Job]) -> list[Victim]:
        """Move or shrink victims onto GPUs that are free and not reserved. Returns those that stop all the same."""
        if not self._stops:
            return []
        left = self._left_by(self._guard.reservations if self._guard else (), self._free)
        able = [victim for victim, _ in self._stops if self._rights.movable(victim.job)]
        moves, stops = settle(self._snapshot, left, able, 0.0)
        for move in moves:
            whom = for_whom[move.victim.job.uid]
            if self._harmless([moved(self._free, move, whom)]):
                self._moves.append((move, whom))
            else:
                stops.append(move.victim)
        return stops + [victim for victim, _ in self._stops if not self._rights.movable(victim.job)]

    def _needed_moves(self) -> Iterator[tuple[ConsolidationMove, Job]]:
        """Moves without those that victims of later jobs have made needless: whose gang can keep what it holds."""
        for move, whom in self._moves:
            job = move.victim.job
            if held := job.placement:
                back = self._free.copy()
                back.give(job, move.wish.gpu.name, move.shares)
                if back.fits_on(job, held.gpu_type, held.shares):
                    back.take(job, held.gpu_type, held.shares)
                    self._free = back
                    continue
            yield move, whom

    def _left(self) -> int:
        return self._rules.at_once - self._given_way()

    def _given_way(self) -> int:
        return len(self._moves) + len(self._stops)

    def _help(self, job: Job, known: Sequence[Candidate]) -> bool:
        """Find GPUs for a job; whether it has them now, or will have them soon."""
        free = self._open_to(job, not_above(self._free, job, (victim for victim, _ in self._stops)))
        for wish in sorted(known, key=lambda each: -each.tokens_per_second):
            shares = nodes_for(free, job, wish)  # victims of another job have left enough
            if shares and self._harmless([_placement(self._free, start := _Start(job, wish, shares))]):
                self._start(start)
                return True
        wishes = shortlist(self._snapshot, without(free, self._rights.all_for(job)), job, known)
        if not wishes:
            return False
        self._looked += 1
        kept = [share for each in self._before(job) if not each.queue for share in each.shares]
        wait = self._wait(job, sorted(known, key=lambda each: each.cost)[:MOST_WAITED_FOR], kept)
        way = self._way(free, job, wishes, min(wait * self._snapshot.speedup, LONGEST_WAIT))
        if way is None:
            return False
        if wait <= max(victim.job.restart_seconds for victim in way.victims) / self._snapshot.speedup:
            self._promised.append((job, way.wish))
            self._promise(self._ahead, job, way.wish)
            self._rights.awaits(wait)
            return True
        return self._go(job, way)

    def _way(self, free: Capacity, job: Job, wishes: Sequence[Candidate], wait: float) -> Way | None:
        """The cheapest way to free GPUs for the best of these."""
        movable = [each for each in self._rights.may_move(job) if could_move(free, self._snapshot, each.job)]
        ways = []
        for wish in wishes:
            options = (self._by_stops(free, job, wish, wait), self._by_moves(free, job, wish, wait, movable))
            able = [way for way in options if way]
            if able:
                ways.append(min(able, key=lambda way: way.cost))
        return chosen(job, ways) if ways else None

    def _by_moves(
        self, free: Capacity, job: Job, wish: Candidate, wait: float, movable: Sequence[Victim]
    ) -> Way | None:
        budget = self._rules.max_cost * wait * wish.cost
        found = consolidate(self._snapshot, free, job, wish, movable, self._left(), budget)
        return Way(wish, found.shares, found.cost, moves=found.moves) if found else None

    def _by_stops(self, free: Capacity, job: Job, wish: Candidate, wait: float) -> Way | None:
        idle = min(wait, seconds_left(job, wish))
        victims = self._rights.may_stop(job, wish, idle)
        most = self._rules.for_one - self._given_way()
        found = choose(free, job, wish, victims, most) if victims else None
        shares = nodes_for(without(free, found), job, wish) if found else None
        if not found or not shares:
            return None
        return Way(wish, shares, sum(victim.cost for victim in found), stops=found)

    def _go(self, job: Job, way: Way) -> bool:
        """Do it, unless that delays a job with a reservation that comes first."""
        start = _Start(job, way.wish, way.shares)
        moving = [moved(self._free, move, job) for move in way.moves]
        if not self._harmless([*moving, _placement(self._free, start)]):
            return False
        self._free = spent(self._free, way.moves, way.stops)
        self._moves += [(move, job) for move in way.moves]
        self._stops += [(victim, job) for victim in way.stops]
        self._rights.gone(victim.job for victim in way.victims)
        self._start(start)
        self._known_ahead = None
        self._hopeless.clear()
        return True

    def _start(self, start: _Start) -> None:
        self._free.take(start.job, start.wish.gpu.name, start.shares)
        self._rights.starts(start.job, start.wish)
        self._starts.append(start)

    def _harmless(self, placements: Sequence[Placement]) -> bool:
        """Whether all of these delay nobody whom they must not; they count as made then."""
        if self._guard is None:
            return True
        guard = self._guard.copy()
        if any(guard.delayed_by(each) for each in placements):
            return False
        self._guard = guard
        return True

    def _open_to(self, job: Job, free: Capacity) -> Capacity:
        """What of it the job may take: not what is kept for those before it."""
        return self._left_by(self._before(job), free)

    def _before(self, job: Job) -> tuple[Reservation, ...]:
        return self._guard.before(job) if self._guard else ()

    def _left_by(self, kept: tuple[Reservation, ...], free: Capacity) -> Capacity:
        if not kept:
            return free
        if kept not in self._hidden:
            after = {node.name: node.free_gpus for node in hidden(self._snapshot, kept).nodes}
            self._hidden[kept] = tuple(_taken(self._snapshot.nodes, after))
        left = free.copy()
        left.hide(self._hidden[kept])
        return left

    def _wait(self, job: Job, known: Sequence[Candidate], kept: Sequence[NodeShare]) -> float:
        """Seconds until one of the candidates fits if nobody is preempted, as of the last end before a look; infinite
        if not in sight. `kept` is for others who come first, as soon as it is free."""
        for moment, seconds in self._looks(self._ahead):
            free = self._ahead.at(moment)
            if kept:
                free = free.copy()
                free.hide(kept)
            if any(has_room(free, job, wish) for wish in known):
                return seconds
        return math.inf

    @property
    def _ahead(self) -> FreeTimeline:
        """When GPUs come free as things are. Victims return nothing: their GPUs are free already, or taken."""
        if self._known_ahead is None:
            self._known_ahead = self._look()
        return self._known_ahead

    def _look(self) -> FreeTimeline:
        touched = self._rights.touched
        if not touched and not self._starts:
            return expected_timeline(self._snapshot)
        free = self._free.copy()
        ends = expected_ends(self._snapshot).without(touched)
        free.expect(self._snapshot.ending, ends.held)
        ahead = FreeTimeline(self._snapshot.time, free, ends)
        for job, wish in self._promised:
            self._promise(ahead, job, wish)
        return ahead

    def _promise(self, ahead: FreeTimeline, job: Job, wish: Candidate) -> None:
        """A job waits for what is free soon, and takes it at the first look at which it fits."""
        for moment, seconds in self._looks(ahead):
            if shares := nodes_for(ahead.at(moment), job, wish):
                since = self._snapshot.time + seconds
                ahead.promise(job, wish.gpu.name, shares, since=since, until=math.inf)
                return

    def _looks(self, ahead: FreeTimeline) -> Iterator[tuple[float, float]]:
        """Points in time to look at, and seconds until it is as it is then."""
        for horizon in HORIZONS:
            moment = self._snapshot.time + horizon
            last = ahead.last_change(moment)
            yield moment, horizon if last is None else last - self._snapshot.time


HORIZONS = (60.0, 300.0, 900.0, 3600.0, 2 * 3600.0, 4 * 3600.0, 8 * 3600.0, 24 * 3600.0)
"""Seconds from now at which it is asked whether a job fits: that is as exact as predicted ends are, and costs no more
for hundreds of jobs than for one."""
MOST_WAITED_FOR = 8
"""Candidates, the cheapest ones, that a job is taken to wait for."""


def _kind(job: Job) -> object:
    """For jobs that are alike in this, the search has the same result."""
    return (
        job.model,
        job.training,
        job.requirements,
        job.eligible,
        job.queue,
        job.priority,
        job.entitled,
        job.preempts,
        id(job.speeds),
    )


def _taken(nodes: Iterable[Node], left: Mapping[str, int]) -> Iterator[NodeShare]:
    for node in nodes:
        if (gpus := node.free_gpus - left[node.name]) > 0:
            yield NodeShare(node.name, gpus)


def _placement(capacity: Capacity, start: _Start) -> Placement:
    wish = start.wish
    reason = f"{wish.describe_with_plan()}: others make room for it"
    return placement(capacity, start.job, wish, start.shares, reason)
