"""Reservations: who gets one and where, who may overtake, and that overtaking never delays whom it overtakes."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.builders import A100, H100, NOW, job, node, placement, running, snapshot

from trimtab_policy.arbiter import reservations
from trimtab_policy.arbiter.reservations import Guard, Reservation, hidden, refusal, reserve, told
from trimtab_policy.heuristics.best_fit import BestFit
from trimtab_policy.specs import Prediction
from trimtab_policy.types import (
    Bounds,
    Decision,
    Job,
    NodeShare,
    Pending,
    PendingReason,
    Placement,
    Quota,
    Snapshot,
    Speed,
)

HOUR = 3600.0
STEPS = 3600
"""Of every job here: at one step a second it runs for an hour."""


def delayed_by(now: Snapshot, kept: Sequence[Reservation], placed: Placement) -> Reservation | None:
    """The reservation that a single placement would delay."""
    return Guard(now, kept).delayed_by(placed)


def rigid(
    name: str, nodes: int, per_node: int = 8, seconds: float = HOUR, gpu_type: str = A100, **changes: object
) -> Job:
    """A job of equal parts on so many nodes that runs for so long."""
    gpus = nodes * per_node
    speeds = (Speed(gpu_type, gpus, nodes, STEPS / seconds),)
    return job(name, gpus=(gpus, gpus), speeds=speeds, steps=STEPS, max_nodes=nodes, **changes)


def started(waiting: Job, nodes: dict[str, int], seconds: float = HOUR, uncertainty: float = 1.0) -> Placement:
    """The placement of such a job."""
    figures = Prediction(seconds / STEPS, 1.0, 1, seconds, uncertainty)
    return placement(waiting.uid, nodes, prediction=figures)


def busy(name: str, nodes: dict[str, int], until: float, uncertainty: float = 1.0) -> Job:
    """A job that runs for so many seconds more."""
    held = running(name, nodes, finish=NOW + until)
    assert held.placement
    figures = replace(held.placement.prediction, uncertainty=uncertainty)
    return replace(held, placement=replace(held.placement, prediction=figures))


def cluster(nodes: int, jobs: Iterable[Job], **changes: object) -> Snapshot:
    """Nodes n0, n1, ... of 8 A100s, less what the jobs hold."""
    taken: dict[str, int] = {}
    everybody = list(jobs)
    for each in everybody:
        for share in each.placement.shares if each.placement else ():
            taken[share.node] = taken.get(share.node, 0) + share.gpus
    present = [node(f"n{i}", free=8 - taken.get(f"n{i}", 0)) for i in range(nodes)]
    return snapshot(present, everybody, **changes)


def no_room(*jobs: Job, reason: PendingReason = PendingReason.INSUFFICIENT_GPUS) -> list[Pending]:
    return [Pending(each.uid, reason, "no room") for each in jobs]


def reserved(seen: Snapshot, *jobs: Job, count: int = 1, starvation: float = 1e9) -> tuple[Reservation, ...]:
    return reserve(seen, no_room(*jobs), count, starvation)


FULL = [busy("a", {"n0": 8}, 1 * HOUR), busy("b", {"n1": 8}, 3 * HOUR), busy("c", {"n2": 8}, 2 * HOUR)]


# --- where and when --------------------------------------------------------------------------------------------------
def test_the_first_in_line_gets_the_nodes_that_are_free_first() -> None:
    large = rigid("large", 2)
    [kept] = reserved(cluster(3, [*FULL, large]), large)
    assert (kept.start, kept.earliest) == (NOW + 2 * HOUR, NOW + 2 * HOUR)
    assert {share.node for share in kept.shares} == {"n0", "n2"}
    assert kept.describe() in ("16×A100-SXM4-80GB on n0, n2", "16×A100-SXM4-80GB on n2, n0")


def test_whole_nodes_are_waited_for_though_enough_gpus_are_free_before() -> None:
    halves = [busy(f"h{i}", {f"n{i}": 4}, (3 + i) * HOUR) for i in range(4)]
    large = rigid("large", 2)
    [kept] = reserved(cluster(4, [*halves, large]), large)
    assert kept.start == NOW + 4 * HOUR
    assert {share.node for share in kept.shares} == {"n0", "n1"}


def test_only_nodes_that_its_template_admits_count() -> None:
    large = rigid("large", 1, eligible=("n1",))
    [kept] = reserved(cluster(3, [*FULL, large]), large)
    assert (kept.start, kept.shares) == (NOW + 3 * HOUR, (NodeShare("n1", 8),))


def test_host_memory_has_to_be_free_too() -> None:
    hog = replace(busy("hog", {"n0": 1}, 5 * HOUR), requirements=job(memory_per_gpu=1 << 40).requirements)
    large = rigid("large", 1, memory_per_gpu=1 << 34)
    nodes = [node("n0", free=7, free_memory=0), node("n1", free=0)]
    seen = snapshot(nodes, [hog, busy("b", {"n1": 8}, 6 * HOUR), large])
    [kept] = reserved(seen, large)
    assert (kept.start, kept.shares[0].node) == (NOW + 5 * HOUR, "n0")


def test_a_queue_at_its_limit_waits_for_its_own_jobs() -> None:
    own = replace(busy("own", {"n0": 8}, 4 * HOUR), queue="q")
    large = rigid("large", 1, queue="q")
    [kept] = reserved(cluster(3, [own, busy("b", {"n1": 8}, 1 * HOUR), large], quotas=[Quota("q", A100, 8)]), large)
    assert kept.start == NOW + 4 * HOUR


def test_who_could_not_start_though_all_had_ended_gets_none() -> None:
    large = rigid("large", 4)
    assert reserved(cluster(3, [*FULL, large]), large) == ()


@pytest.mark.parametrize("reason", [each for each in PendingReason if each not in reservations.IN_LINE])
def test_reasons_that_time_does_not_cure_get_none(reason: PendingReason) -> None:
    large = rigid("large", 2)
    assert reserve(cluster(3, [*FULL, large]), no_room(large, reason=reason), 1, 1e9) == ()


def test_only_so_many_get_one_in_the_order_of_the_line() -> None:
    jobs = [rigid(f"j{i}", 1, created=NOW - i) for i in range(4)]
    seen = cluster(3, [*FULL, *jobs])
    assert [kept.name for kept in reserved(seen, *jobs, count=2)] == ["default/j3", "default/j2"]
    assert reserved(seen, *jobs, count=0) == ()


def test_a_second_reservation_counts_on_the_first_one() -> None:
    first, second = rigid("first", 2, created=NOW - 100), rigid("second", 1)
    kept = reserved(cluster(3, [*FULL, first, second]), first, second, count=2)
    assert [(each.start - NOW) / HOUR for each in kept] == [2, 3]
    last = rigid("last", 3, created=NOW)
    kept = reserved(cluster(3, [*FULL, first, second, last]), first, second, last, count=3)
    assert [(each.start - NOW) / HOUR for each in kept] == [2, 3, 4]


def test_who_has_waited_too_long_gets_one_whoever_is_before() -> None:
    urgent, old = rigid("urgent", 1, priority=5), rigid("old", 2, created=NOW - 9 * HOUR)
    kept = reserved(cluster(3, [*FULL, urgent, old]), urgent, old, starvation=8 * HOUR)
    assert [(each.name, each.starving) for each in kept] == [("default/urgent", False), ("default/old", True)]


def test_gangs_may_end_early_by_their_interval() -> None:
    seen = cluster(1, [busy("a", {"n0": 8}, 2 * HOUR, uncertainty=2.0), waits := rigid("waits", 1)])
    [kept] = reserved(seen, waits)
    assert (kept.start, kept.earliest) == (NOW + 2 * HOUR, NOW + HOUR)


def test_a_gang_whose_gpus_another_one_will_have_gives_nothing_back() -> None:
    leaving = replace(busy("a", {"n0": 8}, 0), expected_finish=None, movable_from=float("inf"))
    waits = rigid("waits", 1)
    seen = cluster(1, [leaving, waits])
    assert reserved(seen, waits) == ()


def test_gpus_of_pods_that_are_just_ending_are_as_good_as_free() -> None:
    """Else there would be no start in sight for a moment, and whoever comes in that moment would pass."""
    waits = rigid("waits", 2)
    seen = replace(cluster(2, [busy("a", {"n0": 8}, HOUR), waits]), ending={"n1": 8})
    seen = replace(seen, nodes=(seen.nodes[0], replace(seen.nodes[1], free_gpus=0)))
    assert reserved(replace(seen, ending={}), waits) == ()
    assert [kept.start for kept in reserved(seen, waits)] == [NOW + HOUR]


def test_a_gang_whose_pods_have_ended_gives_its_gpus_back_once() -> None:
    """Its pods are over, and its job does not know yet: its node looks free."""
    over, waits, small = busy("over", {"n0": 8}, 0), rigid("waits", 2, created=NOW - 100), rigid("small", 1)
    seen = cluster(2, [over, busy("a", {"n1": 8}, HOUR), waits, small])
    seen = replace(seen, nodes=(replace(seen.nodes[0], free_gpus=8), seen.nodes[1]))
    kept = reserved(seen, waits)
    assert [each.start for each in kept] == [NOW + HOUR]
    assert delayed_by(seen, kept, started(small, {"n0": 8}, 2 * HOUR))


# --- who may overtake ------------------------------------------------------------------------------------------------
LARGE = rigid("large", 2, created=NOW - 100)
LATER = rigid("later", 1, 4)
AHEAD = [busy("a", {"n0": 8}, 1 * HOUR), busy("b", {"n1": 8}, 3 * HOUR)]


def overtakes(seconds: float, on: dict[str, int] | None = None, **changes: float) -> bool:
    """Whether a later job may run for so long on n2, which is free, and promised together with n0 from 1 h on."""
    seen = cluster(3, [*AHEAD, LARGE, LATER])
    [kept] = reserved(seen, LARGE)
    assert kept.start == NOW + HOUR
    delayed = delayed_by(seen, [kept], started(LATER, on or {"n2": 4}, seconds, **changes))
    assert delayed in (None, kept)
    return delayed is None


def test_a_short_job_overtakes_and_a_long_one_does_not() -> None:
    assert overtakes(HOUR)
    assert not overtakes(HOUR + 1)


def test_what_counts_is_the_high_end_of_its_interval() -> None:
    assert overtakes(HOUR / 1.5, uncertainty=1.5)
    assert not overtakes(HOUR / 1.5, uncertainty=1.6)


def test_the_time_to_start_counts() -> None:
    slow = replace(LATER, restart_seconds=100.0, restarts=1)
    seen = cluster(3, [*AHEAD, LARGE, slow])
    kept = reserved(seen, LARGE)
    assert delayed_by(seen, kept, started(slow, {"n2": 4}, HOUR - 100)) is None
    assert delayed_by(seen, kept, started(slow, {"n2": 4}, HOUR - 99))


WIDE = [*AHEAD, busy("c", {"n2": 1, "n3": 1, "n4": 1}, 2 * HOUR)]
"""On five nodes: whole ones are free on n0 from 1 h on, on n2, n3 and n4 from 2 h on."""


def test_a_long_job_overtakes_where_enough_is_left() -> None:
    seen = cluster(5, [*WIDE, LARGE, LATER])
    [kept] = reserved(seen, LARGE)
    assert kept.start == NOW + 2 * HOUR
    assert all(delayed_by(seen, [kept], started(LATER, {f"n{i}": 4}, 9 * HOUR)) is None for i in (2, 3, 4))


def test_each_that_overtakes_leaves_less_to_the_next() -> None:
    others = [rigid(f"o{i}", 1, 4) for i in range(3)]
    seen = cluster(5, [*WIDE, LARGE, *others])
    guard = Guard(seen, reserved(seen, LARGE))
    asked = [guard.delayed_by(started(each, {f"n{i + 2}": 4}, 9 * HOUR)) is None for i, each in enumerate(others)]
    assert asked == [True, True, False]


def test_a_gang_that_moves_gives_back_what_it_has() -> None:
    seen = cluster(3, [*AHEAD, replace(busy("m", {"n2": 4}, 9 * HOUR), created=NOW - 500), LARGE])
    [kept] = reserved(seen, LARGE)
    assert kept.start == NOW + 3 * HOUR
    assert delayed_by(seen, [kept], started(seen.jobs[2], {"n2": 8}, 9 * HOUR)) is None
    assert delayed_by(seen, [kept], started(seen.jobs[2], {"n0": 2, "n2": 2}, 99 * HOUR)) == kept


def test_who_came_before_is_not_asked() -> None:
    earlier = rigid("earlier", 1, created=NOW - 999)
    seen = cluster(3, [*AHEAD, earlier, LARGE])
    [kept] = reserved(seen, LARGE)
    assert delayed_by(seen, [kept], started(earlier, {"n2": 8}, 9 * HOUR)) is None


def test_for_a_starving_job_those_before_it_wait_too_unless_they_are_of_higher_priority() -> None:
    old = rigid("old", 2, created=NOW - 50 * HOUR, share=2.0)
    fresh, urgent = rigid("fresh", 1, share=1.0), rigid("urgent", 1, priority=1)
    seen = cluster(3, [*AHEAD, old, fresh, urgent])
    assert [each.name for each in seen.waiting()] == ["urgent", "fresh", "old"]
    kept = reserved(seen, old, count=0, starvation=24 * HOUR)
    assert kept[0].starving
    assert delayed_by(seen, kept, started(fresh, {"n2": 8}, 9 * HOUR))
    assert delayed_by(seen, kept, started(urgent, {"n2": 8}, 9 * HOUR)) is None


def test_who_takes_what_its_queue_is_guaranteed_passes_a_starving_job_that_is_owed_nothing() -> None:
    fresh = rigid("fresh", 1, entitled=True)
    for owed in (False, True):
        old = rigid("old", 2, created=NOW - 50 * HOUR, share=2.0, entitled=owed)
        seen = cluster(3, [*AHEAD, old, fresh])
        kept = reserved(seen, old, count=0, starvation=24 * HOUR)
        assert bool(delayed_by(seen, kept, started(fresh, {"n2": 8}, 9 * HOUR))) is owed


def test_who_has_run_meanwhile_starves_no_sooner_than_if_it_were_new() -> None:
    """Else whoever was stopped a minute ago, after it had run for days, would be before everybody at once."""
    old = rigid("old", 2, created=NOW - 50 * HOUR, waits_since=NOW - 60)
    seen = cluster(3, [*AHEAD, old])
    assert reserved(seen, old, count=0, starvation=24 * HOUR) == ()
    assert reserved(seen, replace(old, waits_since=NOW - 25 * HOUR), count=0, starvation=24 * HOUR) == ()
    again = cluster(3, [*AHEAD, replace(old, waits_since=NOW - 25 * HOUR)])
    assert len(reserved(again, old, count=0, starvation=24 * HOUR)) == 1


# --- a gang that comes back -------------------------------------------------------------------------------------------
def test_nobody_takes_the_nodes_of_a_gang_that_has_lost_one_of_them() -> None:
    back = rigid("back", 2, created=NOW - 9 * HOUR, not_before=NOW + 30)
    seen = cluster(3, [AHEAD[0], back, LATER])
    assert [each.name for each in seen.waiting()] == ["later"], "it is not to be decided about yet"
    [kept] = reserve(seen, (), 1, 1e9)
    assert (kept.name, kept.start, kept.earliest) == ("default/back", NOW + 30, NOW + 30)
    assert delayed_by(seen, [kept], started(LATER, {"n2": 4}, HOUR))
    assert delayed_by(seen, [kept], started(LATER, {"n2": 4}, 29)) is None, "who ends before it comes does no harm"
    assert delayed_by(cluster(4, [AHEAD[0], back, LATER]), [kept], started(LATER, {"n2": 4}, HOUR)) is None


def test_who_comes_back_takes_no_reservation_from_those_in_line_and_passes_none_that_were_before() -> None:
    back = rigid("back", 1, created=NOW - 9 * HOUR, not_before=NOW + 30)
    first = rigid("first", 1, priority=1)
    seen = cluster(3, [*AHEAD, back, LARGE, first])
    assert [kept.name for kept in reserved(seen, LARGE, count=1)] == ["default/back", "default/large"]
    kept = reserved(seen, LARGE, count=1)
    assert delayed_by(seen, kept, started(first, {"n2": 8}, 9 * HOUR)) is None


# --- a gang that its queue's limit stops ------------------------------------------------------------------------------
OWN = [replace(busy(f"own{i}", {f"n{i}": 8}, (i + 1) * HOUR), queue="q") for i in range(2)]
GANG = rigid("wide", 2, queue="q", created=NOW - 100)
LIMIT = [Quota("q", A100, 24)]


def limited(*more: Job) -> tuple[Snapshot, tuple[Reservation, ...]]:
    """Queue q may have three of five nodes, and has two of them."""
    seen = cluster(5, [*OWN, GANG, *more], quotas=LIMIT)
    return seen, reserve(seen, no_room(GANG, reason=PendingReason.QUOTA_EXCEEDED), 1, 1e9)


def test_small_jobs_of_a_queue_at_its_limit_do_not_pass_a_large_one_for_ever() -> None:
    small, other = rigid("small", 1, queue="q"), rigid("other", 1)
    seen, kept = limited(small, other)
    assert [(each.name, each.start, each.queue) for each in kept] == [("default/wide", NOW + HOUR, "q")]
    assert delayed_by(seen, kept, started(small, {"n4": 8}, 2 * HOUR))
    assert delayed_by(seen, kept, started(small, {"n4": 8}, 0.5 * HOUR)) is None
    said = refusal(seen, kept[0], started(small, {"n4": 8}, 2 * HOUR))
    assert "but what queue q is allowed is kept for default/wide" in said.message


def test_what_a_queue_s_limit_holds_up_holds_up_no_other_queue() -> None:
    other = rigid("other", 1)
    seen, kept = limited(other)
    for name in ("n2", "n3", "n4"):
        assert delayed_by(seen, kept, started(other, {name: 8}, 9 * HOUR)) is None
    assert hidden(seen, kept).nodes == seen.nodes
    large = rigid("large", 4, created=NOW - 50)
    both = no_room(GANG, reason=PendingReason.QUOTA_EXCEEDED) + no_room(large)
    crowd = cluster(5, [*OWN, GANG, large], quotas=LIMIT)
    assert [each.name for each in reserve(crowd, both, 1, 1e9)] == ["default/wide", "default/large"]


# --- a whole decision ------------------------------------------------------------------------------------------------
Ruling = tuple[list[Placement], list[tuple[Placement, Reservation]], tuple[Reservation, ...]]
"""What is made, what is not and for whom, and what is kept in the end."""


def rule(seen: Snapshot, decision: Decision, count: int, starvation: float) -> Ruling:
    """Hold a decision against reservations, as the controller does."""
    guard = Guard(seen, reserve(seen, decision.pending, count, starvation))
    asked = [(placed, guard.delayed_by(placed)) for placed in decision.placements]
    made = [placed for placed, kept in asked if kept is None]
    return made, [(placed, kept) for placed, kept in asked if kept], guard.reservations


def ruled(seen: Snapshot, *placed: Placement, count: int = 1, starvation: float = 1e9) -> Ruling:
    given = {each.job for each in placed}
    waits = [each for each in seen.waiting() if each.uid not in given]
    return rule(seen, Decision("any", placed, tuple(no_room(*waits))), count, starvation)


def test_those_in_line_before_start_and_only_harmless_ones_behind() -> None:
    first, short, long = rigid("first", 1, created=NOW - 999), rigid("short", 1, 4), rigid("long", 1, 4)
    seen = cluster(4, [*AHEAD, first, LARGE, short, long])
    given = started(first, {"n3": 8}, 5 * HOUR), started(short, {"n2": 4}, HOUR), started(long, {"n2": 4}, 2 * HOUR)
    made, refused, reservations = ruled(seen, *given)
    assert made == list(given[:2])
    assert [(placed.job, kept.name) for placed, kept in refused] == [("uid-long", "default/large")]
    assert [kept.start for kept in reservations] == [NOW + HOUR]


def test_what_those_before_take_is_kept_elsewhere_or_for_later() -> None:
    """And only for what is really needed then: other GPU types are left to the others."""
    first, long = rigid("first", 1, created=NOW - 999), rigid("long", 1, 4)
    other = rigid("other", 1, gpu_type=H100)
    seen = cluster(3, [*AHEAD, first, LARGE, long, other])
    seen = replace(
        seen, nodes=(*seen.nodes, node("h", H100)), gpu_types=snapshot([node("n"), node("h", H100)]).gpu_types
    )
    assert reserved(seen, LARGE)[0].start == NOW + HOUR
    takes = started(first, {"n2": 8}, 2 * HOUR), replace(started(other, {"h": 8}, 9 * HOUR), gpu_type=H100)
    made, _, reservations = ruled(seen, *takes)
    assert made == list(takes)
    assert [kept.start for kept in reservations] == [NOW + 2 * HOUR]
    full = started(first, {"n2": 4}, 9 * HOUR), started(long, {"n2": 4}, 3 * HOUR - 1)
    assert [kept.start for kept in ruled(seen, *full)[2]] == [NOW + 3 * HOUR]
    assert ruled(seen, *full)[0] == list(full)


def test_a_reserved_job_that_starts_needs_nothing_kept() -> None:
    seen = cluster(4, [*AHEAD, LARGE, LATER])
    guard = Guard(seen, reserved(seen, LARGE))
    assert guard.delayed_by(started(LATER, {"n2": 4}, 9 * HOUR))
    assert guard.delayed_by(started(LARGE, {"n2": 8, "n3": 8}, HOUR)) is None
    assert guard.reservations == ()


def test_without_reservations_a_decision_stays_as_it_is() -> None:
    seen = cluster(3, [*AHEAD, LARGE, LATER])
    long = started(LATER, {"n2": 4}, 9 * HOUR)
    assert ruled(seen, long, count=0) == ([long], [], ())
    assert rule(seen, Decision("any", (long,), ()), 1, 0.0) == ([long], [], ())


def test_a_refused_job_is_told_for_whom_and_until_when() -> None:
    seen = cluster(3, [*AHEAD, LARGE, LATER])
    [kept] = reserved(seen, LARGE)
    pending = refusal(seen, kept, started(LATER, {"n2": 4}, 2 * HOUR))
    assert (pending.reason, pending.blockers) == (PendingReason.RESERVED, ("default/large",))
    assert "kept for default/large, which can start ~04:05 UTC at the earliest" in pending.message
    assert "sure to have ended ~05:05 UTC" in pending.message
    assert pending.alternatives == ("a run that is sure to end before ~04:05 UTC could start now",)


def test_a_job_in_line_is_told_what_is_kept_for_it() -> None:
    seen = cluster(3, [*AHEAD, LARGE])
    [kept] = reserved(seen, LARGE)
    assert told(no_room(LARGE)[0], kept, NOW).message.endswith("is kept for it, and expected to be free ~04:05 UTC")
    assert told(no_room(LARGE)[0], kept, NOW - 100 * HOUR).message.endswith("expected to be free ~04:00 UTC on 02 Jan")


def test_gpus_that_are_kept_are_out_of_sight() -> None:
    seen = cluster(3, [*AHEAD, LARGE, LATER])
    assert [each.free_gpus for each in hidden(seen, reserved(seen, LARGE)).nodes] == [0, 0, 0]
    half = rigid("half", 1, 4, created=NOW - 100)
    seen = cluster(1, [busy("a", {"n0": 6}, HOUR), half, LATER])
    assert [each.free_gpus for each in hidden(seen, reserved(seen, half)).nodes] == [2]
    assert hidden(seen, ()) is seen


# --- no harm is ever done --------------------------------------------------------------------------------------------
class Play:
    """A small cluster over time: jobs arrive, best fit decides, reservations rule, and jobs end just when predicted."""

    def __init__(self, nodes: int, jobs: Sequence[Job], count: int) -> None:
        self._nodes = nodes
        self._jobs = {each.uid: each for each in jobs}
        self._count = count
        self._running: dict[str, tuple[Placement, float]] = {}
        self.promised: dict[str, float] = {}
        """By name, the first start that a job was promised as the first in line."""
        self.starts: dict[str, float] = {}
        self.overtaken = 0

    def run(self) -> Play:
        moments, done = [NOW], set[str]()
        while moments:
            now = min(moments)
            done |= {uid for uid, (_, end) in self._running.items() if end <= now}
            self._running = {uid: held for uid, held in self._running.items() if held[1] > now}
            self._decide(self._seen(now, done))
            moments = [end for _, end in self._running.values()]
            moments += [each.created for each in self._jobs.values() if each.created > now]
        return self

    def _seen(self, now: float, done: set[str]) -> Snapshot:
        here = [each for each in self._jobs.values() if each.created <= now and each.uid not in done]
        shown = [
            replace(each, placement=held[0], expected_finish=held[1]) if (held := self._running.get(each.uid)) else each
            for each in here
        ]
        return replace(cluster(self._nodes, shown), time=now)

    def _decide(self, seen: Snapshot) -> None:
        decision = BestFit().decide(seen)
        made, _, kept = rule(seen, decision, self._count, 1e9)
        for first in kept[:1]:
            self.promised.setdefault(first.name.partition("/")[2], first.start)
        for placed in made:
            job = self._jobs[placed.job]
            self._running[placed.job] = placed, seen.time + placed.prediction.step_seconds * STEPS
            self.starts[job.name] = seen.time
        self.overtaken += bool(kept and made)


JOBS = st.lists(
    st.tuples(
        st.sampled_from([(1, 1), (1, 2), (1, 4), (1, 8), (2, 4), (2, 8), (3, 8), (4, 8)]),
        st.integers(1, 12),
        st.integers(0, 20),
        st.booleans(),
    ),
    min_size=2,
    max_size=14,
)


Row = tuple[tuple[int, int], int, int, bool]
"""Nodes and GPUs of each, tens of minutes that it runs, when it comes, and whether half of the nodes would do, too."""


def workload(rows: Sequence[Row]) -> list[Job]:
    jobs = [
        rigid(f"j{i}", *shape, seconds=600.0 * length, created=NOW + 300.0 * later + i / 100)
        for i, (shape, length, later, _) in enumerate(rows)
    ]
    return [moldable(each) if row[3] and row[0][0] % 2 == 0 else each for each, row in zip(jobs, rows, strict=True)]


def moldable(job: Job) -> Job:
    """The job if half of its nodes would do, in twice the time."""
    [full] = job.speeds or ()
    half = Speed(full.gpu_type, full.gpus // 2, full.nodes // 2, full.steps_per_second / 2)
    need = replace(job.requirements, gpus=Bounds(half.gpus, full.gpus))
    return replace(job, speeds=(full, half), requirements=need)


@given(JOBS, st.integers(1, 3))
@settings(max_examples=200, deadline=None)
def test_a_reserved_job_starts_no_later_than_it_would_if_nobody_overtook_it(rows: list[Row], count: int) -> None:
    """What it is promised at first is when those that run by then will have left room for it."""
    played = Play(4, workload(rows), count).run()
    assert len(played.starts) == len(rows)
    for name, promise in played.promised.items():
        assert played.starts[name] <= promise + 1e-6


def test_small_jobs_do_pass_large_gangs() -> None:
    """Else the property above would be kept by letting nobody pass."""
    random.seed(5)
    rows = [((4, 8), 6, 1, False)] + [((1, random.choice([2, 4])), random.randint(1, 4), i, False) for i in range(12)]
    assert Play(4, workload(rows), 1).run().overtaken


def test_without_reservations_a_large_gang_starves_and_with_one_it_does_not() -> None:
    first = [((1, 8), 7 + i % 4, 0, False) for i in range(4)]
    rows = [*first, ((4, 8), 6, 1, False), *(((1, 8), 6, 2 + i, False) for i in range(9))]
    free, kept = Play(4, workload(rows), 0).run(), Play(4, workload(rows), 1).run()
    assert kept.starts["j4"] == kept.promised["j4"] == NOW + 6000.03
    assert free.starts["j4"] > kept.starts["j4"]
