"""Overtaking: who may, whom a decision refuses and what is said, and that it never delays whom it overtakes."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.builders import H100, NOW, node, snapshot
from tests.policy.scheduling.rigid_jobs import (
    AHEAD,
    HOUR,
    LARGE,
    LATER,
    STEPS,
    busy,
    cluster,
    delayed_by,
    no_room,
    reserved,
    rigid,
    started,
)

from trimtab_policy.heuristics.best_fit import BestFit
from trimtab_policy.scheduling.reservations import Reservation, ReservationGuard, hidden, refusal, reserve, told
from trimtab_policy.types import Bounds, Decision, Job, PendingReason, Placement, Snapshot, Speed


# --- who may overtake ------------------------------------------------------------------------------------------------
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


def test_where_time_is_sped_up_jobs_end_sooner_by_the_clock() -> None:
    seen = cluster(3, [*AHEAD, LARGE, LATER], speedup=10.0)
    [kept] = reserved(seen, LARGE)
    free = kept.earliest - NOW
    assert delayed_by(seen, [kept], started(LATER, {"n2": 4}, 10 * free)) is None
    assert delayed_by(seen, [kept], started(LATER, {"n2": 4}, 10 * free + 10))


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
    guard = ReservationGuard(seen, reserved(seen, LARGE))
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


# --- a whole decision ------------------------------------------------------------------------------------------------
Ruling = tuple[list[Placement], list[tuple[Placement, Reservation]], tuple[Reservation, ...]]
"""What is made, what is not and for whom, and what is kept in the end."""


def rule(seen: Snapshot, decision: Decision, count: int, starvation: float) -> Ruling:
    """Hold a decision against reservations, as the controller does."""
    guard = ReservationGuard(seen, reserve(seen, decision.pending, count, starvation))
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
    guard = ReservationGuard(seen, reserved(seen, LARGE))
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
