"""Preemption: whoever stops or moves does so for a reason, for a gang that starts, and not back and forth."""

from __future__ import annotations

import math
from collections import Counter

from hypothesis import given, settings
from msgspec.structs import replace
from tests.builders import A100, NOW, job, node, running, snapshot
from tests.policy.scheduling.crowds import crowds

from trimtab_policy.policy import load
from trimtab_policy.scheduling.accounts import Accounts, after
from trimtab_policy.scheduling.fair_share import borrowed, in_line
from trimtab_policy.scheduling.permissions import Permissions
from trimtab_policy.scheduling.preemption import PreemptionRules, preempt_others
from trimtab_policy.scheduling.shield import judge
from trimtab_policy.types import Decision, Job, Quota, Snapshot, StopCause

ALL = PreemptionRules(at_once=1 << 10, looked_at=1 << 10)
LONG = 10_000_000
"""Steps of a job that runs for days."""


def held(name: str, nodes: dict[str, int], **changes: object) -> Job:
    """A job that runs for long, on just so many GPUs, and may give way."""
    gpus = sum(nodes.values())
    defaults: dict[str, object] = {"gpus": (gpus, gpus), "started": NOW - 3600, "restart_seconds": 60.0}
    return running(name, nodes, **(defaults | {"steps": LONG} | changes))  # type: ignore[arg-type]  # any field


def waits(name: str, gpus: int, **changes: object) -> Job:
    """A job that waits for just so many GPUs."""
    return job(name, gpus=(gpus, gpus), restart_seconds=60.0, **changes)  # type: ignore[arg-type]  # any field


def room(now: Snapshot, rules: PreemptionRules = ALL) -> Decision:
    """What is done for those who wait; the shield has nothing to say against it."""
    lined = in_line(now)
    decision = preempt_others(lined, lined.waiting(), rules)
    assert_right(lined, decision, rules)
    return decision


def assert_right(now: Snapshot, decision: Decision, rules: PreemptionRules) -> None:
    permissions = Permissions(for_others=True, at_once=rules.at_once, borrowed=borrowed(now))
    verdict, _ = judge(Accounts(now), decision, permissions)
    assert verdict.refused == ()
    starting = {each.job for each in decision.placements}
    assert all(stop.beneficiary in starting for stop in decision.stops)
    before = {each.name: each for each in now.nodes}
    for each in after(now, decision).nodes:
        assert each.free_gpus >= min(0, before[each.name].free_gpus), f"{each.name} is over-allocated"


def stops(decision: Decision) -> dict[str, str]:
    return {stop.job.removeprefix("uid-"): stop.cause for stop in decision.stops}


def places(decision: Decision) -> dict[str, dict[str, int]]:
    return {
        each.job.removeprefix("uid-"): {share.node: share.gpus for share in each.shares} for each in decision.placements
    }


# --- preemption --------------------------------------------------------------------------------------------------
def test_a_job_of_higher_priority_gets_the_gpus_of_one_of_lower() -> None:
    decision = room(snapshot([node("n0", free=0)], [held("low", {"n0": 8}), waits("high", 8, priority=1)]))
    assert places(decision) == {"high": {"n0": 8}}
    assert [(s.job, s.cause, s.beneficiary) for s in decision.stops] == [("uid-low", StopCause.PREEMPTED, "uid-high")]
    assert decision.stops[0].reason == "default/high has priority 1, this job 0"


def test_nobody_stops_for_a_job_of_the_same_priority() -> None:
    assert room(snapshot([node("n0", free=0)], [held("a", {"n0": 8}), waits("b", 8)])) == Decision("room")


def test_nobody_stops_for_a_gang_that_would_not_fit_all_the_same() -> None:
    now = snapshot([node("n0", free=0), node("n1", free=0)], [held("low", {"n0": 8}), waits("high", 16, priority=1)])
    assert room(now) == Decision("room")


def test_a_job_that_must_not_be_moved_yet_does_not_stop() -> None:
    for since in (NOW + 1, math.inf):
        low = held("low", {"n0": 8}, movable_from=since)
        assert room(snapshot([node("n0", free=0)], [low, waits("high", 8, priority=1)])) == Decision("room")


def test_a_job_that_the_policy_has_just_placed_does_not_stop() -> None:
    low = held("low", {"n0": 8}, started=None)
    assert room(snapshot([node("n0", free=0)], [low, waits("high", 8, priority=1)])) == Decision("room")


def test_nobody_stops_for_gpus_that_are_free_sooner_than_a_restart_takes() -> None:
    low = held("low", {"n0": 8})
    ending = held("ending", {"n1": 8}, finish=NOW + 30, priority=1)
    now = snapshot([node("n0", free=0), node("n1", free=0)], [low, ending, waits("high", 8, priority=1)])
    assert room(now) == Decision("room")
    later = replace(ending, expected_finish=NOW + 3000)
    assert stops(room(replace(now, jobs=(low, later, now.jobs[2])))) == {"low": StopCause.PREEMPTED}


def test_who_waits_for_gpus_that_are_free_soon_takes_them_once() -> None:
    """Two wait for one gang's end each: the first of them does not count against both."""
    low = held("low", {"n0": 8}, restart_seconds=900.0)
    soon, later = (
        held(name, {on: 8}, finish=NOW + seconds, priority=1)
        for name, on, seconds in (("a", "n1", 30), ("b", "n2", 400))
    )
    first, second = waits("first", 8, priority=1, created=NOW - 100), waits("second", 8, priority=1)
    nodes = [node(name, free=0) for name in ("n0", "n1", "n2")]
    assert room(snapshot(nodes, [low, soon, later, first, second])) == Decision("room")
    assert stops(room(snapshot(nodes, [low, soon, replace(later, expected_finish=None), first, second]))) == {
        "low": StopCause.PREEMPTED
    }


def test_nobody_stops_for_gpus_whose_pods_are_just_ending() -> None:
    low = held("low", {"n0": 8})
    now = snapshot([node("n0", free=0), node("n1", free=0)], [low, waits("high", 8, priority=1)], ending={"n1": 8})
    assert room(now) == Decision("room")


def test_a_gang_that_should_have_ended_long_ago_stops_like_any_other() -> None:
    hung = held("hung", {"n0": 8}, finish=NOW - 3600)
    now = snapshot([node("n0", free=0)], [hung, waits("high", 8, priority=1)])
    assert stops(room(now)) == {"hung": StopCause.PREEMPTED}


def test_nobody_waits_for_a_gang_that_should_have_ended_long_ago() -> None:
    hung, low = held("hung", {"n0": 8}, finish=NOW - 3600, priority=1), held("low", {"n1": 8})
    now = snapshot([node("n0", free=0), node("n1", free=0)], [hung, low, waits("high", 8, priority=1)])
    assert stops(room(now)) == {"low": StopCause.PREEMPTED}


def test_a_gang_that_has_just_become_overdue_is_let_end() -> None:
    ending = held("ending", {"n0": 8}, finish=NOW - 1, started=NOW - 600)
    assert room(snapshot([node("n0", free=0)], [ending, waits("high", 8, priority=1)])) == Decision("room")


def test_a_gang_that_should_run_by_now_and_does_not_is_stopped_and_not_moved() -> None:
    stuck = held("stuck", {"n0": 4}, started=None, movable_from=math.inf, stoppable_from=NOW)
    now = snapshot([node("n0", free=4), node("n1", free=4)], [stuck, waits("high", 8, priority=1, max_nodes=1)])
    assert stops(room(now, PreemptionRules(consolidate=False))) == {"stuck": StopCause.PREEMPTED}
    assert places(room(now)) == {"high": {"n0": 8}}
    equal = replace(now, jobs=(stuck, waits("equal", 8, max_nodes=1)))
    assert room(equal) == Decision("room")
    young = replace(now, jobs=(replace(stuck, stoppable_from=NOW + 1), now.jobs[1]))
    assert room(young) == Decision("room")


def test_gpus_that_are_free_soon_are_promised_once() -> None:
    jobs = [held("low", {"n0": 8}), held("ending", {"n1": 8}, finish=NOW + 30, priority=1)]
    line = [waits("first", 8, priority=1, created=NOW - 99), waits("second", 8, priority=1)]
    decision = room(snapshot([node("n0", free=0), node("n1", free=0)], [*jobs, *line]))
    assert places(decision) == {"second": {"n0": 8}}


def test_a_job_that_could_start_as_it_is_is_left_to_the_policy() -> None:
    now = snapshot([node("n0", free=0), node("n1")], [held("low", {"n0": 8}), waits("high", 8, priority=1)])
    assert room(now) == Decision("room")


def test_what_somebody_left_over_is_for_the_next_in_line() -> None:
    line = [waits(name, 4, priority=1) for name in ("x", "y")]
    decision = room(snapshot([node("n0", free=0)], [held("low", {"n0": 8}), *line]))
    assert places(decision) == {"x": {"n0": 4}, "y": {"n0": 4}}
    assert stops(decision) == {"low": StopCause.PREEMPTED}


def test_what_somebody_left_over_is_not_for_those_who_are_less_urgent() -> None:
    line = [waits("high", 4, priority=2), waits("lowest", 4)]
    decision = room(snapshot([node("n0", free=0)], [held("low", {"n0": 8}, priority=1), *line]))
    assert places(decision) == {"high": {"n0": 4}}


def test_a_job_that_runs_for_minutes_takes_few_gpus_from_others() -> None:
    low = [held(f"low{i}", {f"n{i}": 8}) for i in range(4)]
    nodes = [node(f"n{i}", free=0) for i in range(4)]
    brief, long = (
        room(snapshot(nodes, [*low, job("high", gpus=(8, 32), priority=1, steps=steps)])) for steps in (2000, LONG)
    )
    assert len(brief.stops) == 1
    assert len(long.stops) >= len(brief.stops)


def test_a_job_that_only_its_queues_quota_keeps_out_gets_the_part_of_a_less_urgent_one_and_waits_for_its_end() -> None:
    low, high = held("low", {"n0": 8}, queue="q"), waits("high", 8, priority=1, queue="q", eligible=("n1",))
    now = in_line(snapshot([node("n0", free=0), node("n1")], [low, high], quotas=[Quota("q", A100, 8)]))
    decision = room(now)
    assert (stops(decision), places(decision)) == ({"low": StopCause.PREEMPTED}, {"high": {"n1": 8}})
    verdict, _ = judge(Accounts(now), decision, Permissions(for_others=True))
    assert verdict.waits == {"uid-high": ("uid-low",)}


def test_no_more_stop_than_may_at_once() -> None:
    jobs = [held(f"low{i}", {f"n{i}": 8}) for i in range(4)]
    line = [waits(f"high{i}", 8, priority=1) for i in range(4)]
    now = snapshot([node(f"n{i}", free=0) for i in range(4)], [*jobs, *line])
    assert len(room(now, PreemptionRules(at_once=3)).stops) == 3
    assert room(now, PreemptionRules(at_once=0)) == Decision("room")


def test_all_go_that_one_gang_needs_and_then_nobody_else_is_helped() -> None:
    ones = [held(f"s{i}{k}", {f"n{i}": 1}) for i in range(9) for k in range(8)]
    line = [waits("first", 64, priority=2), waits("second", 8, priority=1)]
    now = snapshot([node(f"n{i}", free=0) for i in range(9)], [*ones, *line])
    decision = room(now, PreemptionRules())
    assert list(places(decision)) == ["first"]
    assert len(decision.stops) == 64


def test_no_more_stop_than_a_plan_has_names_for() -> None:
    ones = [held(f"s{i}{k}", {f"n{i}": 1}) for i in range(2) for k in range(8)]
    nodes = [node(f"n{i}", free=0) for i in range(2)]
    line = [waits("first", 8, priority=2), waits("second", 8, priority=1)]
    decision = room(snapshot(nodes, [*ones, *line]), PreemptionRules(for_one=15))
    assert (list(places(decision)), len(decision.stops)) == (["first"], 8)
    assert room(snapshot(nodes, [*ones, waits("high", 16, priority=1)]), PreemptionRules(for_one=15)) == Decision(
        "room"
    )


def test_jobs_that_nothing_can_help_take_nobodys_turn() -> None:
    hopeless = [waits(f"h{i}", 64, priority=2, global_batch_size=64 * (i + 1)) for i in range(3)]
    limited = waits("limited", 8, priority=2, queue="closed")
    now = snapshot([node("n0", free=0)], [held("low", {"n0": 8}), *hopeless, limited, waits("high", 8, priority=1)])
    now = replace(now, quotas=(Quota("closed", "*", 0),))
    assert places(room(now, PreemptionRules(looked_at=1))) == {"high": {"n0": 8}}


def test_preemption_can_be_switched_off() -> None:
    now = snapshot([node("n0", free=0)], [held("low", {"n0": 8}), waits("high", 8, priority=1)])
    assert room(now, PreemptionRules(preempt=False)) == Decision("room")


# --- reclaim -----------------------------------------------------------------------------------------------------
GUARANTEED = [Quota("a", A100, 1 << 20, 8), Quota("b", A100, 1 << 20, 8)]


def lent(**changes: object) -> Snapshot:
    """Queue b holds 16 GPUs of which it has borrowed 8, queue a none, and a job of queue a waits."""
    old = held("old", {"n0": 8}, queue="b", started=NOW - 7200)
    new = held("new", {"n1": 8}, queue="b", started=NOW - 3600)
    nodes = [node("n0", free=0), node("n1", free=0)]
    return snapshot(nodes, [old, new, waits("mine", 8, queue="a", **changes)], quotas=GUARANTEED)


def test_a_queue_gets_back_what_it_is_guaranteed_and_others_have_borrowed() -> None:
    decision = room(lent())
    assert stops(decision) == {"new": StopCause.RECLAIMED}
    assert places(decision) == {"mine": {"n1": 8}}
    assert decision.stops[0].reason.startswith("queue b has borrowed its GPUs")


def partly(guaranteed: int) -> Snapshot:
    """One gang of queue b holds all 16 GPUs. Its queue is guaranteed a part of them, queue a the rest."""
    wide = held("wide", {"n0": 8, "n1": 8}, queue="b")
    quotas = [Quota("a", A100, 1 << 20, 16 - guaranteed), Quota("b", A100, 1 << 20, guaranteed)]
    nodes = [node("n0", free=0), node("n1", free=0)]
    return snapshot(nodes, [wide, waits("mine", 8, queue="a")], quotas=quotas)


def test_a_gang_that_is_borrowed_in_part_gives_way_as_a_whole_and_does_not_take_it_back() -> None:
    now = in_line(partly(8))
    decision = room(now)
    assert stops(decision) == {"wide": StopCause.RECLAIMED}
    assert decision.stops[0].reason.startswith("queue b has borrowed 8 of its 16 GPUs, and default/mine gets")
    assert room(in_line(settled(after(now, decision)))) == Decision("room")


def test_what_a_queue_holds_within_its_guarantee_stays() -> None:
    assert room(partly(16)) == Decision("room")


def test_what_is_borrowed_as_a_whole_is_reclaimed_before_what_is_in_part() -> None:
    old, new = (
        held(name, {on: 8}, queue="b", started=since) for name, on, since in (("old", "n0", 1), ("new", "n1", 2))
    )
    cheap, dear = replace(old, restart_seconds=1.0), replace(new, restart_seconds=500.0)
    quotas = [Quota("a", A100, 1 << 20, 8), Quota("b", A100, 1 << 20, 4)]
    now = snapshot([node("n0", free=0), node("n1", free=0)], [cheap, dear, waits("mine", 8, queue="a")], quotas=quotas)
    assert stops(room(now)) == {"new": StopCause.RECLAIMED}


def test_a_job_beyond_its_queues_guarantee_reclaims_nothing() -> None:
    now = lent()
    assert room(replace(now, jobs=(*now.jobs[:2], waits("mine", 16, queue="a")))) == Decision("room")


def test_nothing_is_reclaimed_from_a_job_of_higher_priority() -> None:
    now = lent()
    urgent = tuple(replace(each, priority=1) for each in now.jobs[:2])
    assert room(replace(now, jobs=(*urgent, now.jobs[2]))) == Decision("room")


def test_what_was_reclaimed_is_not_reclaimed_back() -> None:
    now = in_line(lent())
    then = in_line(settled(after(now, room(now))))
    assert [waiting.name for waiting in then.waiting()] == ["new"]
    assert room(then) == Decision("room")


def test_reclaim_can_be_switched_off() -> None:
    assert room(lent(), PreemptionRules(reclaim=False)) == Decision("room")


# --- whoever finds room elsewhere --------------------------------------------------------------------------------
def test_who_was_to_stop_and_is_elastic_goes_on_with_fewer_gpus() -> None:
    low = held("low", {"n0": 8}, gpus=(1, 8), preemptible=True)
    decision = room(snapshot([node("n0", free=0)], [low, waits("high", 4, priority=1)]))
    assert stops(decision) == {}
    assert places(decision) == {"high": {"n0": 4}, "low": {"n0": 4}}


def test_who_is_not_elastic_does_not_lose_a_days_work_for_an_equal() -> None:
    quick = held("equal", {"n0": 4}, lost_seconds=60.0)
    nodes = [node("n0", free=4), node("n1", free=4)]
    line = waits("waits", 8, max_nodes=1, steps=LONG)
    assert set(places(room(snapshot(nodes, [quick, line])))) == {"equal", "waits"}
    deaf = replace(quick, lost_seconds=20 * 3600.0)
    assert room(snapshot(nodes, [deaf, line])) == Decision("room")


def test_a_wait_no_longer_than_the_slowest_restart_is_waited_out() -> None:
    """One victim restarts in half a minute, the other in ten: in five the GPUs are free anyway."""
    quick, slow = (
        held(name, {"n0": 4}, restart_seconds=seconds) for name, seconds in (("quick", 30.0), ("slow", 600.0))
    )
    ends = held("ends", {"n1": 8}, finish=NOW + 250, priority=1)
    now = snapshot([node("n0", free=0), node("n1", free=0)], [quick, slow, ends, waits("high", 8, priority=1)])
    assert room(now) == Decision("room")
    later = replace(ends, expected_finish=NOW + 3000)
    assert set(stops(room(replace(now, jobs=(quick, slow, later, now.jobs[3]))))) == {"quick", "slow"}


def test_a_move_of_a_victim_leaves_the_others_their_place_among_those_that_may_stop_at_once() -> None:
    nodes = [node("n0", free=0), node("n1", free=4)]
    low = [held(name, {"n0": 4}) for name in ("moves", "stops")]
    now = snapshot(nodes, [*low, waits("high", 8, priority=1, max_nodes=1)])
    decision = room(now, PreemptionRules(at_once=1))
    assert (len(decision.stops), places(decision)["high"]) == (1, {"n0": 8})
    assert {"n1": 4} in places(decision).values()


def test_a_victim_whose_gpus_are_not_needed_after_all_keeps_them() -> None:
    """The elastic job is to shrink for `one`; then `two` stops the other, which frees enough for both."""
    jobs = [held("rigid", {"n0": 4}), held("elastic", {"n0": 4}, gpus=(1, 16), preemptible=True)]
    decision = room(snapshot([node("n0", free=0)], [*jobs, waits("one", 1, priority=1), waits("two", 2, priority=1)]))
    assert places(decision) == {"one": {"n0": 1}, "two": {"n0": 2}}
    assert list(stops(decision)) == ["rigid"]


def test_who_was_to_stop_and_fits_elsewhere_moves_there() -> None:
    low = held("low", {"n0": 4}, priority=0)
    now = snapshot([node("n0", free=4), node("n1", free=4)], [low, waits("high", 8, priority=1, max_nodes=1)])
    decision = room(now)
    assert places(decision) == {"high": {"n0": 8}, "low": {"n1": 4}}


def test_on_a_node_that_has_given_out_too_much_who_pays_the_debt_stops_for_the_gang_as_well() -> None:
    jobs = [held("one", {"n0": 1}), *(held(f"two-{number}", {"n0": 2}) for number in range(4))]
    now = snapshot([node("n0", free=-2)], [*jobs, waits("high", 1, priority=1)])
    decision = room(now)
    assert places(decision) == {"high": {"n0": 1}}
    assert sum(1 if name == "one" else 2 for name in stops(decision)) == 3
    verdict, accounts = judge(Accounts(now), decision, Permissions(for_others=True, at_once=99, borrowed=borrowed(now)))
    assert verdict.refused == ()
    assert {*accounts.awaited()} == {stop.job for stop in decision.stops}, "it comes when both are gone"


# --- whatever is there -------------------------------------------------------------------------------------------
def settled(now: Snapshot) -> Snapshot:
    """An hour later everybody may be moved again."""
    return replace(now, jobs=tuple(replace(each, movable_from=0.0) for each in now.jobs))


@given(crowds())
@settings(max_examples=200, deadline=None)
def test_every_rule_of_the_shield_is_kept_whatever_the_cluster_looks_like(now: Snapshot) -> None:
    for rules in (ALL, PreemptionRules(at_once=1), PreemptionRules(consolidate=False), PreemptionRules(preempt=False)):
        decision = preempt_others(now, now.waiting(), rules)
        assert_right(now, decision, rules)
        for_whom = Counter(stop.beneficiary for stop in decision.stops)
        assert sum(for_whom.values()) - max(for_whom.values(), default=0) < rules.at_once


@given(crowds())
@settings(max_examples=150, deadline=None)
def test_asked_again_at_once_it_does_nothing_more(now: Snapshot) -> None:
    """But for those who had room as it was: they are the policy's, so it has placed them before."""
    now = in_line(after(now, load("best_fit").decide(now)))
    first = preempt_others(now, now.waiting(), ALL)
    then = after(now, first)
    stopped = {stop.job for stop in first.stops}
    left = [waiting for waiting in then.waiting() if waiting.uid not in stopped]
    assert preempt_others(then, left, ALL) == Decision("room")


@given(crowds())
@settings(max_examples=100, deadline=None)
def test_nobody_who_stopped_takes_it_back(now: Snapshot) -> None:
    first = preempt_others(now, now.waiting(), ALL)
    then = in_line(settled(after(now, first)))
    second = preempt_others(then, then.waiting(), ALL)
    taken = {(stop.beneficiary, stop.job) for stop in first.stops}
    back = {(stop.job, stop.beneficiary) for stop in second.stops}
    assert not taken & back
