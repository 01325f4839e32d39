"""Running gangs leave slow GPUs for faster ones where that is worth it.

A gang on a node with a slow GPU has R seconds to go as it is (as it reports, else as predicted). On nodes that are free
now it could go on at `to` instead of `at`, parts of the usual rate, and would end R (1 - at / to) seconds sooner. The
move costs a restart, and the work since the last checkpoint that the training has reported; without such reports all
work of this plan counts as lost. It is made where the gain is `MARGIN` times the cost: the verdict on a card, the
prediction and the cost are estimates, and a move that was not worth it cannot be taken back. The gang is asked to save
its state first; the lost work is counted all the same, for it may not answer. It goes on there with the same degrees:
from the request on, the place is its own. It takes nothing that is kept for another job.

At most one gang moves at a time, none before its `spec.elasticity.minRuntimeSeconds` are over, and one that has been
planned before at most once an hour. A fixed number of GPUs (`policy: Fixed`) is kept: only the nodes change, without it
counting against `spec.maxRestarts`. All that is asked is in the cluster: a controller that starts anew knows as much.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from trimtab import names
from trimtab.api import conditions
from trimtab.api.status import Plan
from trimtab.observe.eligibility import eligible
from trimtab.observe.jobs import JobFacts
from trimtab.observe.snapshot import Observation
from trimtab_policy.placement.candidates import held_links, type_of
from trimtab_policy.placement.capacity import Capacity, GangDemand
from trimtab_policy.scheduling.reservations import Reservation, ReservationGuard
from trimtab_policy.scheduling.results import Move as Order
from trimtab_policy.types import Job, NodeShare, Placement, StopCause

MARGIN = 1.5
AGAIN_SECONDS = 3600.0
ASKED_SECONDS = 60.0
"""Within so long, a gang that is to move has been asked to, or never is: it was edited, or is asked for others."""
BY = "stragglers"
"""Who decided, in the plans of gangs that were moved."""


class StragglerMigration(Struct, frozen=True):
    """A gang that should be planned anew."""

    job: str
    """UID."""
    epoch: int
    gain: float
    """Seconds that it ends sooner, restart and lost work included."""
    placement: Placement
    """Where it goes on."""

    @property
    def message(self) -> str:
        """Why."""
        return self.placement.reason

    def order(self) -> Order:
        """What is asked of those who carry it out."""
        return Order(self.placement, BY, StopCause.STRAGGLER)


class StragglerMoves:
    """Picks the gang to move; remembers the last one until its status shows that it was asked, if that is soon."""

    def __init__(self) -> None:
        self._last: StragglerMigration | None = None
        self._since = -math.inf

    def next(
        self, observation: Observation, placed: Iterable[Placement], reserved: Sequence[Reservation] = ()
    ) -> StragglerMigration | None:
        """The gang to move now; `placed` are the placements of this round, which are not in the observation yet, of
        waiting jobs and of such as move anyway. None goes where that would delay a job that has something `reserved`.
        """
        placed = list(placed)
        moving = {placement.job for placement in placed}
        slowed = [(job, facts) for job, facts in _slowed(observation) if job.uid not in moving]
        if not slowed or self._under_way(observation):
            return None
        capacity = Capacity(observation.snapshot)
        jobs = {job.uid: job for job in observation.snapshot.jobs}
        for placement in placed:
            capacity.take(jobs[placement.job], placement.gpu_type, placement.shares)
        worth = [move for job, facts in slowed if (move := _judge(observation, capacity, job, facts))]
        if worth and reserved:
            worth = [move for move in worth if not _delays(observation, placed, reserved, move)]
        self._last = max(worth, key=lambda move: (move.gain, move.job), default=None)
        self._since = observation.snapshot.time
        return self._last

    def _under_way(self, observation: Observation) -> bool:
        """Whether a gang is still on its way from one place to the next."""
        fresh = observation.snapshot.time - self._since < ASKED_SECONDS
        if self._last and fresh and (facts := observation.jobs.get(self._last.job)):
            plan = facts.status.plan
            if plan and plan.epoch == self._last.epoch and not facts.finished:
                return True
        return any(_is_moving(facts) for facts in observation.jobs.values())


def _is_moving(facts: JobFacts) -> bool:
    stop = facts.status.stop
    if stop and not facts.finished:
        return stop.cause is StopCause.STRAGGLER
    told = conditions.find(facts.status.conditions, names.PLANNED) if facts.status.plan is None else None
    return told is not None and told.reason == names.REASON_STRAGGLER and not facts.finished


def _slowed(observation: Observation) -> Iterator[tuple[Job, JobFacts]]:
    """Gangs on nodes with a slow GPU that may move."""
    slow = {card.node for card in observation.stragglers}
    for job in observation.snapshot.jobs if slow else ():
        facts, held = observation.jobs.get(job.uid), job.placement
        if (
            facts
            and held
            and any(share.node in slow for share in held.shares)
            and _may(facts, observation.snapshot.time)
        ):
            yield job, facts


def _may(facts: JobFacts, now: float) -> bool:
    """Whether the gang runs, and has for long enough."""
    plan, spec = facts.status.plan, facts.spec
    if plan is None or spec is None or not facts.holds_gpus or facts.status.stop:
        return False
    least = float(spec.elasticity.min_runtime_seconds)
    if plan.epoch > 1:
        least = max(least, AGAIN_SECONDS)
    running = conditions.holds(facts.status.conditions, names.PODS_READY)
    return running and now - plan.created_time.timestamp() >= least


def _judge(observation: Observation, capacity: Capacity, job: Job, facts: JobFacts) -> StragglerMigration | None:
    held, plan, now = job.placement, facts.status.plan, observation.snapshot.time
    if held is None or plan is None or job.expected_finish is None:
        return None
    at, place = capacity.speed_of(held.shares), _best_place(observation, capacity, job, facts, held)
    if place is None:
        return None
    to = capacity.speed_of(place)
    sooner = max(0.0, job.expected_finish - now) * (1 - at / to)
    cost = job.restart_seconds + _lost_seconds(facts, plan, now)
    if sooner < MARGIN * cost:
        return None
    slow = sorted(card.node for card in observation.stragglers if card.node in {share.node for share in held.shares})
    message = (
        f"node {slow[0] if slow else held.shares[0].node} has a slow GPU, the gang runs at {at:.2f} of its rate; there "
        f"is room for {to:.2f}: it ends {sooner:.0f} s sooner for {cost:.0f} s of restart and lost work"
    )
    goes_on = replace(
        held, shares=place, speed=to, prediction=held.prediction.at(to / held.speed), reason=message, alternatives=()
    )
    return StragglerMigration(job.uid, plan.epoch, sooner - cost, goes_on)


def _delays(
    observation: Observation, placed: Sequence[Placement], reserved: Sequence[Reservation], move: StragglerMigration
) -> bool:
    """Whether somebody who waits would start later because of it."""
    guard = ReservationGuard(observation.snapshot, reserved)
    for placement in placed:
        guard.delayed_by(placement)
    return guard.delayed_by(move.placement) is not None


def _best_place(
    observation: Observation, capacity: Capacity, job: Job, facts: JobFacts, held: Placement
) -> tuple[NodeShare, ...] | None:
    """Nodes of its type that are free once its own are, and on which it is faster; None where there are none."""
    if any(share.node not in capacity.index for share in held.shares):
        return None  # a node that takes no pods any more: what becomes of the gang, others say
    admitted = eligible(facts.template["spec"], [observation.nodes[name] for name in capacity.names])
    moving = replace(job, eligible=admitted)
    capacity.give(moving, held.gpu_type, held.shares)
    _, lies = held_links(observation.snapshot, held, type_of(observation.snapshot, held))
    found = capacity.find(moving, GangDemand(held.gpu_type, held.gpus, len(held.shares), linkage=lies))
    capacity.take(moving, held.gpu_type, held.shares)
    return found if found and capacity.speed_of(found) > capacity.speed_of(held.shares) else None


def _lost_seconds(facts: JobFacts, plan: Plan, now: float) -> float:
    """Work of this plan since the last checkpoint."""
    begun, observed = plan.created_time.timestamp(), facts.status.observed
    saved = observed.last_checkpoint_time if observed and observed.epoch == plan.epoch else None
    return max(0.0, now - max(begun, saved.timestamp() if saved else begun))
