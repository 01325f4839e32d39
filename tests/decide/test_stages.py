"""A decision from stage to stage: nobody is overtaken, room is made, jobs grow; and what if a stage fails."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace
from tests.builders import H100, NOW, job, node, running, snapshot

from trimtab.decide.engine import Engine
from trimtab.decide.rules import rules_of
from trimtab.settings import Settings
from trimtab.settings.living import ElasticitySettings, PreemptionSettings, QueueSettings
from trimtab_policy.placement.candidates import candidates
from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.policy import load
from trimtab_policy.scheduling import pipeline
from trimtab_policy.scheduling.choice import Choice
from trimtab_policy.scheduling.preemption import PreemptionRules
from trimtab_policy.scheduling.resize import ResizeRules
from trimtab_policy.scheduling.results import Outcome
from trimtab_policy.scheduling.rules import Rules
from trimtab_policy.types import (
    Awaited,
    Decision,
    Grant,
    Job,
    Node,
    NodeShare,
    Pending,
    PendingReason,
    Placement,
    Quota,
    Snapshot,
    StopCause,
)

HOUR = 3600.0
STEPS = 5_000_000
LIVING = rules_of(Settings(), resize=True)
BEST_FIT = Choice("best_fit", "fcfs", deadline_seconds=20.0)


def decide(now: Snapshot, rules: Rules = LIVING, choice: Choice = BEST_FIT) -> Outcome:
    return Engine().decide(now, choice, rules)


def runs(name: str, *nodes: str, gpus: int = 8, **changes: Any) -> Job:
    """A job that runs for a long time yet, and may be moved."""
    held = dict.fromkeys(nodes, gpus)
    given = {"finish": NOW + 100 * HOUR, "started": NOW - HOUR, "steps": STEPS, "restart_seconds": 60.0} | changes
    return running(name, held, gpus=given.pop("allowed", (gpus * len(nodes),) * 2), **given)


def waits(name: str = "new", gpus: int = 8, *, least: int = 0, **changes: Any) -> Job:
    return job(name, gpus=(least or gpus, gpus), **({"steps": STEPS, "created": NOW - 60} | changes))


def full(*names: str) -> list[Node]:
    return [node(name, free=0) for name in names]


# --- room ----------------------------------------------------------------------------------------------------------
def test_a_job_of_lower_priority_makes_room_and_the_decision_says_who_waits_for_whom() -> None:
    outcome = decide(snapshot(full("a"), [runs("old", "a"), waits(priority=10)]))
    assert [placed.job for placed in outcome.placements] == ["uid-new"]
    [stop] = outcome.stops
    assert (stop.job, stop.cause, stop.beneficiary) == ("uid-old", StopCause.PREEMPTED, "uid-new")
    assert outcome.waits == {"uid-new": ("uid-old",)}
    assert (outcome.pending, outcome.refused, outcome.fallbacks) == ((), (), ())


def test_no_room_is_made_where_that_is_not_wanted_or_too_many_are_being_stopped() -> None:
    now = snapshot(full("a"), [runs("old", "a"), waits(priority=10)])
    off = Settings(preemption=PreemptionSettings(enabled=False))
    for rules in (Rules(), rules_of(off), rules_of(Settings(), stopping=16)):
        outcome = decide(now, rules)
        assert (outcome.placements, outcome.stops) == ((), ())
        assert [pending.job for pending in outcome.pending] == ["uid-new"]


def test_a_gang_moves_aside_where_the_free_gpus_lie_too_scattered() -> None:
    nodes = [node("a", free=4), node("b", free=4)]
    outcome = decide(snapshot(nodes, [runs("one", "a", gpus=4), runs("two", "b", gpus=4), waits(max_nodes=1)]))
    assert [placed.job for placed in outcome.placements] == ["uid-new"]
    [move] = outcome.moves
    assert (move.cause, move.beneficiary, outcome.stops) == (StopCause.MOVED, "uid-new", ())
    assert outcome.waits == {"uid-new": (move.placement.job,)}


def test_a_gang_that_takes_many_small_ones_has_room_made_and_nobody_else_then() -> None:
    names = [f"n{i}" for i in range(4)]
    small = [runs(f"old-{i}", names[i % 4], gpus=1) for i in range(32)]
    now = snapshot(full(*names), [*small, waits("large", 32, priority=10)])
    outcome = decide(now, rules_of(Settings(), stopping=15))
    assert [placed.job for placed in outcome.placements] == ["uid-large"]
    assert len(outcome.waits["uid-large"]) == 32
    assert decide(now, rules_of(Settings(), stopping=16)).stops == ()


def test_as_many_may_stop_as_the_owner_says() -> None:
    names = [f"n{i}" for i in range(20)]
    jobs = [runs(f"old-{name}", name) for name in names] + [waits(f"new-{name}", priority=10) for name in names]
    rules = rules_of(Settings(preemption=PreemptionSettings(at_once=18)))
    rules = replace(rules, preemption=replace(LIVING.preemption, looked_at=20)) if LIVING.preemption else rules
    assert len(decide(snapshot(full(*names), jobs), rules).stops) == 18


def test_what_a_policy_takes_from_an_elastic_job_is_no_matter_of_priority() -> None:
    long = runs("long", "a", preemptible=True)
    short = waits("short", steps=100)
    outcome = decide(snapshot(full("a"), [long, short]), Rules(), Choice("srtf", "fcfs", deadline_seconds=20.0))
    [stop] = outcome.stops
    assert (stop.job, stop.cause, stop.beneficiary) == ("uid-long", StopCause.YIELDED, "uid-short")


def test_who_starts_by_the_same_decision_borrows_before_those_that_run_however_long_it_has_waited() -> None:
    a100 = "A100-SXM4-80GB"
    quotas = [Quota("mine", a100, 64, 8), Quota("theirs", a100, 64, 8)]
    own = runs("own", "a", queue="theirs", started=NOW - 60, created=NOW - 90, grants=(Grant(8, 1, 1),))
    borrower = waits("borrower", queue="theirs", created=NOW - HOUR)
    entitled = waits("entitled", queue="mine", eligible=("a",))
    now = snapshot([node("a", free=0), node("b")], [own, borrower, entitled], quotas=quotas, granted=1)
    outcome = decide(now, replace(LIVING, reservations=0))
    assert ([placed.job for placed in outcome.placements], outcome.stops) == (["uid-borrower"], ())
    assert outcome.grants == {"uid-borrower": (Grant(8, 2, 2),)}


# --- reservations -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("priority", [0, 5])
def test_a_gang_as_large_as_its_queue_s_limit_is_not_passed_by_small_ones_for_ever(priority: int) -> None:
    names = [f"n{i}" for i in range(4)]
    nodes = [node(name, free=0 if name == "n0" else 8) for name in names]
    held = runs("held", "n0", queue="q", finish=NOW + HOUR, movable_from=NOW + 600)
    large = waits("large", 16, queue="q", created=NOW - 72 * HOUR, priority=priority)
    small, other = waits("small", queue="q"), waits("other", queue="theirs")
    now = snapshot(nodes, [held, large, small, other], quotas=[Quota("q", "*", 16)])
    outcome = decide(now)
    assert [placed.job for placed in outcome.placements] == ["uid-other"]
    said = {pending.job: pending for pending in outcome.pending}
    assert said["uid-large"].reason is PendingReason.QUOTA_EXCEEDED
    assert said["uid-small"].reason is PendingReason.RESERVED
    assert "what queue q is allowed is kept for default/large" in said["uid-small"].message


def test_nobody_takes_the_other_nodes_of_a_gang_that_has_lost_one() -> None:
    back = waits("back", 16, priority=1000, not_before=NOW + 2, created=NOW - HOUR)
    now = snapshot([node("a"), node("b")], [back, waits("low")])
    outcome = decide(now)
    assert outcome.placements == ()
    [pending] = outcome.pending
    assert (pending.job, pending.reason) == ("uid-low", PendingReason.RESERVED), "nothing is said of who comes back"
    later = decide(replace(now, time=NOW + 2))
    assert [placed.job for placed in later.placements] == ["uid-back"]


def test_nobody_overtakes_the_first_in_line_if_that_would_delay_it() -> None:
    nodes = [node("a", free=0), node("b")]
    first = waits("first", 16, created=NOW - HOUR)
    now = snapshot(nodes, [runs("old", "a", finish=NOW + HOUR), first, waits("second")])
    free_for_all, in_line = decide(now, Rules()), decide(now, Rules(reservations=1))
    assert [placed.job for placed in free_for_all.placements] == ["uid-second"]
    assert in_line.placements == ()
    told = {pending.job: pending for pending in in_line.pending}
    assert told["uid-second"].reason is PendingReason.RESERVED
    assert told["uid-second"].blockers == ("default/first",)
    assert "kept for it" in told["uid-first"].message


def test_who_must_not_take_reserved_gpus_is_asked_about_once_more() -> None:
    nodes = [node("a", free=0), node("b"), node("c", free=4)]
    first = waits("first", 16, created=NOW - HOUR)
    smaller = waits("second", least=4)
    outcome = decide(snapshot(nodes, [runs("old", "a", finish=NOW + HOUR), first, smaller]), Rules(reservations=1))
    [placed] = outcome.placements
    assert (placed.job, [share.node for share in placed.shares]) == ("uid-second", ["c"])


def test_a_short_job_passes_though_a_longer_one_before_it_must_not() -> None:
    nodes = [node("a", free=0), node("b")]
    first, long = waits("first", 16, created=NOW - HOUR), waits("long", created=NOW - 100)
    short, longer = waits("short", 4, steps=1000), waits("longer", 4, created=NOW - 50)
    now = snapshot(nodes, [runs("old", "a", finish=NOW + HOUR), first, long, longer, short])
    outcome = decide(now, Rules(reservations=1))
    assert [placed.job for placed in outcome.placements] == ["uid-short"]
    reasons = {pending.job: pending.reason for pending in outcome.pending}
    assert reasons["uid-long"] is reasons["uid-longer"] is PendingReason.RESERVED


def behind_a_reservation(held: Job, second: Job, free: int) -> Outcome:
    """Nodes a and b are kept for `first`, for whom a will be free in half an hour; somebody runs on c."""
    nodes = [node("a", free=0), node("b"), node("c", free=free)]
    busy = runs("old", "a", finish=NOW + HOUR / 2, movable_from=math.inf, priority=10)
    first = waits("first", 16, created=NOW - 5 * HOUR, eligible=("a", "b"), priority=10)
    return decide(snapshot(nodes, [busy, held, first, second]), replace(LIVING, reservations=1))


def test_nobody_moves_onto_gpus_that_are_kept_for_another() -> None:
    outcome = behind_a_reservation(runs("held", "c", gpus=4), waits("second", eligible=("c",)), free=4)
    assert (outcome.placements, outcome.moves, outcome.stops, outcome.refused) == ((), (), (), ())


def test_who_must_not_have_kept_gpus_may_have_those_of_less_urgent_jobs() -> None:
    outcome = behind_a_reservation(runs("held", "c"), waits("second", priority=10), free=0)
    assert [(placed.job, [s.node for s in placed.shares]) for placed in outcome.placements] == [("uid-second", ["c"])]
    assert [(stop.job, stop.cause) for stop in outcome.stops] == [("uid-held", StopCause.PREEMPTED)]


def test_who_has_kept_gpus_may_use_them_with_those_of_less_urgent_jobs() -> None:
    nodes = [node("a", free=0), node("b")]
    old, first = runs("old", "a", finish=NOW + 10 * HOUR), waits("first", 16, priority=10)
    outcome = decide(snapshot(nodes, [old, first]), replace(LIVING, reservations=1))
    assert [placed.job for placed in outcome.placements] == ["uid-first"]
    assert [stop.job for stop in outcome.stops] == ["uid-old"]


def test_nobody_is_advised_to_take_what_is_kept_for_another() -> None:
    nodes = [node("a", free=0), node("b")]
    old = runs("old", "a", finish=NOW + HOUR, movable_from=math.inf)
    first, second = waits("first", 16, created=NOW - HOUR), waits("second", 16)
    outcome = decide(snapshot(nodes, [old, first, second]), replace(LIVING, reservations=1))
    told = {pending.job: pending.alternatives for pending in outcome.pending}
    assert told["uid-first"][0].startswith("with 8 instead of 16 GPUs")
    assert not any("it would start now" in hint for hint in told["uid-second"])
    [taken] = decide(snapshot(nodes, [old, first, waits("second", 8)]), replace(LIVING, reservations=1)).pending[1:]
    assert taken.reason is PendingReason.RESERVED


def test_what_is_kept_for_the_first_in_line_it_gets_whatever_order_the_policy_has() -> None:
    line = [waits("long", created=NOW - 500), waits("short", steps=10_000), waits("shorter", steps=5_000)]
    now = snapshot([node("a"), *full("b")], [runs("x", "b"), *line])
    outcome = decide(now, Rules(reservations=1), Choice("sjf", "fcfs", deadline_seconds=20.0))
    assert [placed.job for placed in outcome.placements] == ["uid-long"]


class MovesOn:
    """A policy that moves one job and gives another the place that it leaves; the third time it is asked, no more."""

    def __init__(self, moved: Placement, placed: Placement) -> None:
        self._decided = (moved, placed)

    def decide(self, now: Snapshot) -> Decision:
        placed, self._decided = self._decided, ()
        known = {placement.job for placement in placed}
        waiting = (job.uid for job in now.waiting() if job.uid not in known)
        return Decision(
            "moves_on", placed, tuple(Pending(uid, PendingReason.INSUFFICIENT_GPUS, "full") for uid in waiting)
        )


def test_what_counted_on_a_move_that_is_taken_back_is_no_mistake_of_the_policy() -> None:
    nodes = [node("a", free=0), node("b"), node("c", free=0)]
    held, busy = runs("held", "a", preemptible=True), runs("busy", "c", finish=NOW + HOUR)
    first = waits("first", 16, created=NOW - HOUR, eligible=("b", "c"))
    second = waits("second", eligible=("a",))
    now = snapshot(nodes, [held, busy, first, second])
    assert held.placement
    there = replace(held.placement, shares=(NodeShare("b", 8),))
    policy = MovesOn(there, replace(held.placement, job=second.uid))
    choice = Choice("moves_on", "fcfs", deadline_seconds=20.0)
    outcome = Engine(lambda name: policy).decide(now, choice, Rules(reservations=1))
    assert (outcome.placements, outcome.moves, outcome.refused, outcome.fallbacks) == ((), (), (), ())
    reasons = {pending.job: pending.reason for pending in outcome.pending}
    assert reasons["uid-second"] is PendingReason.INSUFFICIENT_GPUS, "it was asked about once more"


class HasALine:
    """A policy that places nobody, and says whom GPUs are to be kept for, and what who waits for."""

    def __init__(self, *line: str, awaited: Awaited | None = None) -> None:
        self._line, self._awaited = line, awaited

    def decide(self, now: Snapshot) -> Decision:
        pending = (
            Pending(job.uid, PendingReason.INSUFFICIENT_GPUS, "waits", awaited=self._awaited) for job in now.waiting()
        )
        return Decision("has_a_line", pending=tuple(pending), line=self._line)


def decided_by(policy: HasALine, now: Snapshot, rules: Rules) -> Outcome:
    choice = Choice("has_a_line", "fcfs", deadline_seconds=20.0)
    return Engine(lambda name: policy if name == "has_a_line" else load(name)).decide(now, choice, rules)


def test_a_policy_with_a_line_of_its_own_says_whom_gpus_are_kept_for() -> None:
    line = [waits("old", created=NOW - 500), waits("new"), waits("movable", created=NOW - 400)]
    now = snapshot(full("a"), [runs("x", "a"), *line])

    def kept(*order: str, among: Snapshot = now) -> list[str]:
        return [each.job for each in decided_by(HasALine(*order), among, Rules(reservations=2)).reserved]

    assert kept("uid-new", "uid-old") == ["uid-new", "uid-old"]
    assert kept("uid-new") == ["uid-new"], "nobody else needs any"
    assert kept() == []
    urgent = replace(now, jobs=(*now.jobs, waits("urgent", priority=1)))
    assert kept("uid-new", "uid-urgent", among=urgent) == ["uid-urgent", "uid-new"], "priority comes before all"
    of_another = replace(now, jobs=(*now.jobs, waits("other", policy="best_fit")))
    assert kept("uid-new", among=of_another) == ["uid-new", "uid-other"], "it has no say about who does not ask it"


def test_who_waits_for_better_gpus_gets_room_on_these_alone_and_only_these_are_kept_for_it() -> None:
    new = waits("new", priority=1)
    held = [runs("x", "a", finish=NOW + HOUR), runs("y", "b", finish=NOW + 5 * HOUR)]
    now = snapshot([node("a", free=0), node("b", H100, free=0)], [*held, new])
    speeds = {each.gpu.name: each.option.prediction.step_seconds for each in candidates(now, Capacity(now), new)}
    rules = replace(LIVING, reservations=1)
    waits_for = HasALine(new.uid, awaited=Awaited(H100, 8, speeds[H100]))
    taken = decided_by(HasALine(new.uid), now, rules)
    assert [stop.beneficiary for stop in taken.stops] == [new.uid]
    better = decided_by(waits_for, now, rules)
    assert [(stop.job, stop.beneficiary) for stop in better.stops] == [("uid-y", new.uid)]
    assert [placed.gpu_type for placed in better.placements] == [H100]
    of_a100s = replace(now, jobs=(held[0], replace(held[1], priority=2), new))
    better = decided_by(waits_for, of_a100s, rules)
    assert (better.stops, better.moves, better.placements) == ((), (), ()), "it does not want what it may have"
    assert [(each.job, each.gpu_type) for each in better.reserved] == [(new.uid, H100)], "A100s come free before"
    alike = decided_by(waits_for, replace(now, jobs=(*held, replace(new, priority=0))), rules)
    assert (alike.stops, alike.moves, alike.placements) == ((), (), ()), "nobody of its own priority gives way"


def test_an_urgent_job_that_finds_nothing_free_makes_room_under_rudder_however_long_it_runs() -> None:
    for steps in (1_000, 500_000):
        low, urgent = runs("low", "a", finish=NOW + 2 * HOUR), waits("urgent", priority=1000, steps=steps)
        outcome = Engine().decide(
            snapshot([node("a", free=0)], [low, urgent]), Choice("rudder", "fcfs", deadline_seconds=20.0), LIVING
        )
        assert [(stop.job, stop.beneficiary) for stop in outcome.stops] == [(low.uid, urgent.uid)]


# --- resizes -------------------------------------------------------------------------------------------------------
def test_an_elastic_job_gets_what_nobody_waits_for() -> None:
    grows = runs("grows", "a", gpus=4, allowed=(1, 16), preemptible=True)
    nodes = [node("a", free=4), node("b")]
    [move] = decide(snapshot(nodes, [grows])).moves
    assert (move.placement.job, move.cause, move.beneficiary) == ("uid-grows", StopCause.RESIZED, "")
    assert move.placement.gpus > 4
    assert decide(snapshot(nodes, [grows]), replace(LIVING, resize=None)).moves == ()
    assert decide(snapshot(nodes, [replace(grows, preemptible=False)])).moves == ()


# --- times ---------------------------------------------------------------------------------------------------------
def test_a_job_that_waits_is_told_when_it_is_expected_to_start() -> None:
    outcome = decide(snapshot(full("a"), [runs("old", "a", finish=NOW + HOUR), waits()]))
    [pending] = outcome.pending
    assert pending.eta
    assert NOW < pending.eta.low <= pending.eta.expected <= pending.eta.high


# --- policies that preempt by themselves ----------------------------------------------------------------------------
@pytest.mark.parametrize("policy", ["srtf", "las", "sia", "gavel", "pollux"])
def test_preemptive_policies_may_have_their_way_with_elastic_jobs_and_with_no_others(policy: str) -> None:
    long = {"allowed": (1, 8), "served": {"A100-SXM4-80GB": 1e6}, "created": NOW - 10 * HOUR}
    short = waits(steps=1000, least=1)
    choice = Choice(policy, policy, deadline_seconds=60.0)
    for elastic in (True, False):
        now = snapshot(full("a", "b"), [runs("x", "a", preemptible=elastic, **long), runs("y", "b", **long), short])
        outcome = decide(now, Rules(), choice)
        assert outcome.fallbacks == ()
        touched = {stop.job for stop in outcome.stops} | {move.placement.job for move in outcome.moves}
        assert touched == ({"uid-x"} if elastic else set()), outcome
        assert [placed.job for placed in outcome.placements] == (["uid-new"] if elastic else [])
        assert outcome.waits.get("uid-new", ()) == (("uid-x",) if elastic else ())


def test_a_policy_that_a_job_asks_for_itself_touches_nobody_else() -> None:
    held = runs("x", "a", allowed=(1, 8), preemptible=True, served={"A100-SXM4-80GB": 1e6})
    own = waits(steps=1000, policy="srtf")
    outcome = decide(snapshot(full("a"), [held, own]), Rules())
    assert (outcome.stops, outcome.moves, outcome.placements) == ((), (), ())


# --- what fails -------------------------------------------------------------------------------------------------------
def fails(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("no idea")


@pytest.mark.parametrize(
    ("step", "stage"),
    [
        ("in_line", "line"),
        ("reserve", "reservations"),
        ("preempt_others", "room"),
        ("resizes", "resize"),
        ("expected_starts", "etas"),
    ],
)
def test_a_stage_that_fails_is_left_out_and_the_rest_stands(
    step: str, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, step, fails)
    starts, late = waits("starts", created=NOW - HOUR), waits("late", 64)
    outcome = decide(snapshot([node("a"), *full("b")], [runs("old", "b"), starts, late]))
    assert [placed.job for placed in outcome.placements] == ["uid-starts"]
    assert [pending.job for pending in outcome.pending] == ["uid-late"]
    failed = {fallback.policy: fallback for fallback in outcome.fallbacks}
    assert failed[stage].message == f"{stage} raised ZeroDivisionError: no idea"
    assert failed[stage].instead


# --- settings ---------------------------------------------------------------------------------------------------------
def test_the_settings_say_what_a_decision_does() -> None:
    asked = Settings(
        queues=QueueSettings(reservations=3, starvation_seconds=60),
        preemption=PreemptionSettings(reclaim=False, at_once=5),
        elasticity=ElasticitySettings(gain=2),
    )
    assert rules_of(asked, stopping=2, resize=True) == Rules(
        3, 60.0, PreemptionRules(reclaim=False), ResizeRules(gain=2), at_once=3
    )
    nobody = PreemptionSettings(enabled=False, reclaim=False, consolidation=False)
    quiet = Settings(queues=QueueSettings(reservations=0), preemption=nobody)
    assert rules_of(quiet) == Rules(at_once=16)
