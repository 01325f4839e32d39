"""The hard rules that no decision may break, whatever policy made it.

Policies may be wrong, stale or learned; over-allocating a GPU is not theirs to do. Every placement is checked against
the snapshot and what was accepted before it, and is accepted or refused as a whole.

Running jobs may be stopped or moved, under rules of their own (`running`), and their GPUs given to others by the same
decision. Whoever gets such GPUs waits for their end (`ShieldResult.waits`). Where a stop or a move is refused, whatever
counted on its GPUs is, too; and nobody is stopped for a gang that does not start, or for nobody's gain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from trimtab_policy.placement.limits import Violation, broken_rules
from trimtab_policy.scheduling.accounts import Accounts
from trimtab_policy.scheduling.permissions import Permissions, no_gain, not_moved, not_stopped
from trimtab_policy.types import MOST_LEAVING, Decision, Placement, Snapshot, Stop


class BrokenRule(Struct, frozen=True):
    """A placement or a stop that broke a rule."""

    job: str
    rule: str
    """Name of the rule, low cardinality: a metric label."""
    message: str


class ShieldResult(Struct, frozen=True):
    """What is left of a decision."""

    accepted: tuple[Placement, ...]
    """Of jobs that wait, and of running ones that move or get another size."""
    refused: tuple[BrokenRule, ...]
    stops: tuple[Stop, ...] = ()
    waits: dict[str, tuple[str, ...]] = {}
    """UID of a job with a placement -> UIDs of those whose pods must be gone before its pods come."""


def check(snapshot: Snapshot, decision: Decision, permissions: Permissions | None = None) -> ShieldResult:
    """Split a decision into what keeps all rules and what does not."""
    return judge(Accounts(snapshot), decision, permissions or Permissions())[0]


def judge(accounts: Accounts, decision: Decision, permissions: Permissions) -> tuple[ShieldResult, Accounts]:
    """The same for one decision of several about a snapshot; with the accounts as it is after it."""
    return _Trial(accounts, decision, permissions).verdict()


class _Trial:
    """One decision on its way through the rules."""

    def __init__(self, accounts: Accounts, decision: Decision, permissions: Permissions) -> None:
        self._before, self._permissions = accounts, permissions
        self._placements = decision.placements
        self._stop_refusals: dict[int, Violation] = {}
        self._stops = dict(enumerate(decision.stops))
        self._refusals: dict[int, Violation] = {}
        """By number of the placement: what is refused whatever becomes of the others."""
        self._moving = {i: placement for i, placement in enumerate(self._placements) if self._runs(placement)}
        for number, stop in self._stops.items():
            if broken := not_stopped(accounts, stop, permissions):
                self._stop_refusals[number] = broken
        for number, placement in enumerate(self._placements):
            if broken := next(self._fixed(placement), None):
                self._refusals[number] = broken
        self._bound()

    def verdict(self) -> tuple[ShieldResult, Accounts]:
        """Refuse until nothing is left that counts on what was refused."""
        while True:
            accounts, accepted, broken = self._enter()
            late = {i: rule for i, rule in broken.items() if i in self._moving}
            idle = self._idle(accounts, accepted)
            if not late and not any(idle):
                break
            self._refusals |= late
            self._refusals |= {number: rule for number, rule in idle[1].items() if number not in late}
            self._stop_refusals |= idle[0]
        refused = [
            *(BrokenRule(self._stops[i].job, *rule) for i, rule in sorted(self._stop_refusals.items())),
            *(BrokenRule(self._placements[i].job, *rule) for i, rule in sorted((self._refusals | broken).items())),
        ]
        placed = tuple(self._placements[i] for i in accepted)
        return ShieldResult(placed, tuple(refused), tuple(self._kept().values()), accounts.waits_of(placed)), accounts

    def _kept(self) -> dict[int, Stop]:
        return {number: stop for number, stop in self._stops.items() if number not in self._stop_refusals}

    def _movers(self) -> dict[int, Placement]:
        return {number: move for number, move in self._moving.items() if number not in self._refusals}

    def _bound(self) -> None:
        """Once so many are stopped or moved no further job is helped. For the last one, all stop that have to: half of
        a gang's GPUs are of no use. A plan names those that it waits for, and cannot hold more than so many names."""
        counted, left = 0, MOST_LEAVING - len(self._before.left)
        refused = "too_many_at_once", f"{self._permissions.at_once} more gangs may be stopped at the moment"
        for group in sorted(self._groups(), key=len):
            if counted < self._permissions.at_once and len(group) <= left:
                left -= len(group)
                # preemption has counted its moves itself: for whom they are is not known here yet
                counted += 0 if self._permissions.for_others and group[0][0] is self._refusals else len(group)
            else:
                for refusals, number in group:
                    refusals[number] = refused

    def _groups(self) -> list[list[tuple[dict[int, Violation], int]]]:
        """Stops by whom they are for, and each move by itself, as numbers with where to refuse them."""
        groups: dict[str, list[tuple[dict[int, Violation], int]]] = {}
        for number, stop in self._kept().items():
            groups.setdefault(stop.beneficiary or stop.job, []).append((self._stop_refusals, number))
        stops, moves = groups.values(), ([(self._refusals, number)] for number in self._movers())
        # preemption moves gangs that it could have stopped: without these moves the stops beside them help nobody
        return [*moves, *stops] if self._permissions.for_others else [*stops, *moves]

    def _enter(self) -> tuple[Accounts, list[int], dict[int, Violation]]:
        """The accounts with all that is not refused yet; which placements it holds, and why not the others."""
        accounts = self._before.copy()
        for stop in self._kept().values():
            accounts.give(stop.job, stop.beneficiary)
        for move in self._movers().values():
            accounts.give(move.job)
        accepted, broken = [], {}
        for number, placement in enumerate(self._placements):
            if number in self._refusals:
                continue
            if rule := accounts.lacks(placement):
                broken[number] = rule
            else:
                accounts.take(placement)
                accepted.append(number)
        return accounts, accepted, broken

    def _idle(self, accounts: Accounts, accepted: Sequence[int]) -> tuple[dict[int, Violation], dict[int, Violation]]:
        """Stops, and moves for others, that nobody gains by."""
        starting = {self._placements[number].job for number in accepted}
        gains = ((i, no_gain(accounts, stop, starting, self._permissions)) for i, stop in self._kept().items())
        stops = {i: rule for i, rule in gains if rule}
        if not self._permissions.for_others:
            return stops, {}
        awaited = accounts.awaited()
        nobody = "nobody_gains", "it would move, and no gang starts because of it"
        return stops, {i: nobody for i, move in self._movers().items() if move.job not in awaited}

    def _runs(self, placement: Placement) -> bool:
        job = self._before.jobs.get(placement.job)
        return job is not None and job.placement is not None

    def _fixed(self, placement: Placement) -> Iterator[Violation]:
        """Broken rules that do not depend on what else is decided, the most basic first."""
        job, about = self._before.jobs.get(placement.job), self._permissions.about
        if job is None or (job.placement is None and about is not None and job.uid not in about):
            yield "unknown_job", f"no waiting job has UID {placement.job}"
            return
        if job.placement and (broken := not_moved(self._before, job, placement, self._permissions)):
            yield broken
            return
        yield from broken_rules(job, placement, self._before.nodes, self._before.snapshot)
