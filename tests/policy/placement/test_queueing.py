"""Schedulers that serve a queue: whose turn it is, who may pass, who has to give way."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.builders import A100, NOW, T4, job, node, snapshot
from tests.trace_jobs import traced

from trimtab_lab import rigid
from trimtab_lab.rigid import RigidRules
from trimtab_lab.workloads.trace import trace
from trimtab_policy import catalog, policy
from trimtab_policy.heuristics.easy_backfill import EasyBackfill
from trimtab_policy.heuristics.las import Las
from trimtab_policy.heuristics.random import Random
from trimtab_policy.heuristics.round_robin import RoundRobin
from trimtab_policy.heuristics.sjf import Sjf
from trimtab_policy.heuristics.srsf import Srsf
from trimtab_policy.heuristics.srtf import Srtf
from trimtab_policy.heuristics.static_affinity import StaticAffinity
from trimtab_policy.sim.engine import simulate
from trimtab_policy.sim.result import JobRecord
from trimtab_policy.types import Decision, Job, Node, PendingReason, Quota, Snapshot

SERVERS = ["easy_backfill", "fcfs", "fgd", "las", "random", "round_robin", "sjf", "srsf", "srtf", "static_affinity"]
HOUR = 3600.0


def quads(*free: int) -> list[Node]:
    return [node(f"n{i}", gpus=4, free=left) for i, left in enumerate(free)]


def started(decision: Decision) -> list[str]:
    return [placed.job.removeprefix("uid-") for placed in decision.placements]


def stopped(decision: Decision) -> list[str]:
    return [stop.job.removeprefix("uid-") for stop in decision.stops]


# --- shortest job first ------------------------------------------------------------------------------------------
def test_sjf_starts_the_shortest_jobs_and_stops_nobody() -> None:
    jobs = [traced("long", 4, seconds=9 * HOUR, created=0.0), traced("short", 4, seconds=HOUR)]
    held = traced("held", 4, {"n1": 4}, seconds=99 * HOUR)
    decision = Sjf().decide(snapshot(quads(4, 0), [*jobs, held]))
    assert (started(decision), stopped(decision)) == (["short"], [])


def test_sjf_lets_a_longer_job_pass_one_that_does_not_fit() -> None:
    jobs = [traced("wide", 8, seconds=60), traced("long", 2, seconds=9 * HOUR)]
    decision = Sjf().decide(snapshot(quads(4, 0), [*jobs, traced("held", 4, {"n1": 4})]))
    assert started(decision) == ["long"]
    assert decision.pending[0].message == f"needs 8×{A100}, free: 4×{A100}"


# --- shortest remaining time and service ------------------------------------------------------------------------------
def test_srtf_stops_the_job_with_most_left_for_a_shorter_one() -> None:
    held = [traced("old", 4, {"n0": 4}, seconds=9 * HOUR), traced("near", 4, {"n1": 4}, seconds=HOUR)]
    decision = Srtf().decide(snapshot(quads(0, 0), [*held, traced("new", 4, seconds=2 * HOUR)]))
    assert (started(decision), stopped(decision)) == (["new"], ["old"])


def test_srtf_goes_by_what_is_left_not_by_the_whole_length() -> None:
    nearly = traced("nearly", 4, {"n0": 4}, seconds=9 * HOUR, steps_done=round(8.5 * HOUR * 1000))
    decision = Srtf().decide(snapshot(quads(0), [nearly, traced("new", 4, seconds=HOUR)]))
    assert (started(decision), stopped(decision)) == ([], [])


def test_jobs_of_equal_length_do_not_take_turns_because_a_restart_takes_time() -> None:
    restarting = replace(traced("restarting", 4, {"n0": 4}, seconds=100), resuming=60.0)
    malleable = replace(traced("slow", (1, 4), {"n1": 1}, seconds=400), preemptible=True)
    now = snapshot(quads(0, 3), [restarting, malleable, traced("waiting", 4, seconds=101)])
    for scheduler in (Srtf(), Srsf()):
        assert scheduler.decide(now).stops == ()


def test_srsf_weighs_how_wide_a_job_is() -> None:
    wide, narrow = traced("wide", 4, seconds=HOUR), traced("narrow", 1, seconds=3 * HOUR)
    now = snapshot(quads(4), [wide, narrow])
    assert started(Srtf().decide(now)) == ["wide"]
    assert started(Srsf().decide(now)) == ["narrow"]


def test_priority_comes_before_length() -> None:
    jobs = [traced("short", 4, seconds=60), traced("urgent", 4, seconds=HOUR, priority=1)]
    for scheduler in (Sjf(), Srtf(), Srsf(), Las(), RoundRobin()):
        assert started(scheduler.decide(snapshot(quads(4), jobs))) == ["urgent"]


def test_who_is_served_again_stays_where_it_is() -> None:
    held = [traced("a", 2, {"n0": 2}, seconds=60), traced("b", 2, {"n1": 2}, seconds=9 * HOUR)]
    decision = Srtf().decide(snapshot(quads(2, 2), [*held, traced("new", 4, seconds=HOUR)]))
    assert stopped(decision) == []
    assert [[share.node for share in placed.shares] for placed in decision.placements] == [["n0", "n1"]]


def test_a_preempted_job_moves_to_another_gpu_type_where_that_is_free() -> None:
    both = {"types": (A100, T4)}
    held = traced("long", 4, {"n0": 4}, seconds=9 * HOUR, **both)
    now = snapshot([*quads(0), node("t", T4)], [held, traced("short", 4, seconds=60)])
    decision = Srtf().decide(now)
    assert {placed.job: placed.gpu_type for placed in decision.placements} == {"uid-long": T4, "uid-short": A100}
    assert stopped(decision) == []


def test_preemption_keeps_to_the_quota_of_a_queue() -> None:
    mine = [traced(f"q{i}", 2, seconds=60 + i, queue="q") for i in range(3)]
    held = traced("held", 4, {"n0": 4}, seconds=9 * HOUR)
    decision = Srtf().decide(snapshot(quads(0, 4), [*mine, held], quotas=[Quota("q", "*", 4)]))
    assert started(decision) == ["q0", "q1"]
    assert stopped(decision) == []


def test_nothing_is_preempted_where_jobs_must_go_on() -> None:
    held = replace(traced("held", 4, {"n0": 4}, seconds=9 * HOUR), preemptible=False)
    for name in SERVERS:
        decision = policy.load(name).decide(snapshot(quads(0), [held, traced("new", 4, seconds=60)]))
        assert (decision.placements, decision.stops) == ((), ())
        assert [answer.job for answer in decision.pending] == ["uid-new"]


# --- least attained service ------------------------------------------------------------------------------------------
def test_las_serves_first_who_has_attained_least_in_steps_of_the_thresholds() -> None:
    served = [("fresh", 0.0), ("some", 5 * HOUR - 1), ("much", 5 * HOUR), ("most", 99 * HOUR)]
    jobs = {name: traced(name, 1, served={A100: had}) for name, had in served}
    assert [Las().queue(NOW, each) for each in jobs.values()] == [0, 0, 1, 1]
    finer = Las(thresholds=(HOUR, 10 * HOUR))
    assert [finer.queue(NOW, each) for each in jobs.values()] == [0, 1, 1, 2]


def test_las_stops_a_job_that_has_sunk_for_one_that_has_not() -> None:
    sunk = traced("sunk", 4, {"n0": 4}, served={A100: 6 * HOUR})
    fair = traced("fair", 4, {"n1": 4}, served={A100: 4 * HOUR})
    decision = Las().decide(snapshot(quads(0, 0), [sunk, fair, traced("new", 4)]))
    assert (started(decision), stopped(decision)) == (["new"], ["sunk"])


def test_within_a_queue_of_las_who_runs_goes_on() -> None:
    held = traced("held", 4, {"n0": 4}, served={A100: 4 * HOUR})
    decision = Las().decide(snapshot(quads(0), [held, traced("older", 4, created=0.0)]))
    assert (started(decision), stopped(decision)) == ([], [])


def test_las_raises_a_starved_job_until_it_has_had_its_fill() -> None:
    las = Las(thresholds=(HOUR,), promote=8.0)
    ran = {"served": {A100: 2 * HOUR}}
    assert las.queue(NOW, traced("waits", 1, created=NOW - 17 * HOUR, **ran)) == 1
    assert las.queue(NOW, traced("starved", 1, created=NOW - 18 * HOUR, **ran)) == 0
    again = traced("again", 1, {"n0": 1}, created=NOW - 18.5 * HOUR, served={A100: 2.5 * HOUR})
    assert las.queue(NOW, replace(again, started=NOW - 0.5 * HOUR)) == 0
    assert las.queue(NOW + 0.5 * HOUR, replace(again, started=NOW - 0.5 * HOUR, served={A100: 3 * HOUR})) == 1


@pytest.mark.parametrize("thresholds", [(), (0.0,), (2.0, 1.0), (1.0, 1.0)])
def test_las_takes_only_rising_thresholds(thresholds: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="thresholds must rise from above 0"):
        Las(thresholds)


# --- round robin ------------------------------------------------------------------------------------------
def test_a_turn_lasts_a_quantum_and_then_goes_to_who_was_served_least_of_its_stay() -> None:
    held = traced("held", 4, {"n0": 4}, created=NOW - 8 * HOUR, served={A100: 16 * HOUR})
    waiting = [
        traced("poor", 4, created=NOW - 8 * HOUR, served={A100: 4 * HOUR}),
        traced("rich", 4, created=NOW - 8 * HOUR, served={A100: 8 * HOUR}),
    ]
    early, late = (snapshot(quads(0), [replace(held, started=NOW - ago), *waiting]) for ago in (1799.0, 1800.0))
    assert stopped(RoundRobin(quantum=1800).decide(early)) == []
    over = RoundRobin(quantum=1800).decide(late)
    assert (started(over), stopped(over)) == (["poor"], ["held"])


def test_round_robin_takes_no_empty_quantum() -> None:
    with pytest.raises(ValueError, match="quantum must be above 0 seconds, got 0"):
        RoundRobin(0)


# --- EASY backfilling ------------------------------------------------------------------------------------------
def easy(*waiting: Job, free: Sequence[int] = (4, 0), **changes: object) -> Decision:
    """One node is busy for another hour; `head` comes first and needs both."""
    held = traced("held", 4, {"n1": 4}, seconds=HOUR)
    head = traced("head", 8, created=0.0, seconds=HOUR)
    return EasyBackfill().decide(snapshot(quads(*free), [held, head, *waiting], **changes))


def test_a_job_that_will_be_done_before_the_head_can_start_may_pass() -> None:
    assert started(easy(traced("short", 4, seconds=HOUR))) == ["short"]


def test_a_job_that_would_delay_the_head_waits_behind_it() -> None:
    decision = easy(traced("long", 1, seconds=HOUR + 1))
    assert started(decision) == []
    assert [(answer.job, answer.reason) for answer in decision.pending] == [
        ("uid-head", PendingReason.INSUFFICIENT_GPUS),
        ("uid-long", PendingReason.BEHIND_OTHERS),
    ]


def test_a_job_that_has_to_start_first_passes_only_if_it_is_done_even_so() -> None:
    """The first start of a trace's job is in its run time; one that was stopped takes as long to start as a restart."""
    fresh = traced("short", 4, seconds=HOUR - 30)
    assert started(easy(fresh)) == ["short"]
    assert started(easy(replace(fresh, restarts=1))) == []
    assert started(easy(replace(fresh, restarts=1, restart_seconds=30.0))) == ["short"]


def test_jobs_of_the_performance_model_are_given_time_to_start() -> None:
    short = job("short", gpus=(4, 4), steps=10)
    [placed] = EasyBackfill().decide(snapshot(quads(4), [short])).placements
    margin = HOUR - 10 * placed.prediction.step_seconds
    assert margin > 0
    for start_up, names in ((margin - 1, ["short"]), (margin + 1, [])):
        assert started(easy(replace(short, restart_seconds=start_up))) == names


def test_a_long_job_may_take_what_the_head_leaves_over_but_no_more() -> None:
    held = traced("held", 4, {"n1": 4}, seconds=HOUR)
    head = traced("head", 6, created=0.0)
    long = [traced(f"long{i}", 1, seconds=9 * HOUR, created=NOW - 9 + i) for i in range(3)]
    decision = EasyBackfill().decide(snapshot(quads(4, 0), [held, head, *long]))
    assert started(decision) == ["long0", "long1"]


def test_another_gpu_type_than_the_one_reserved_is_free_to_take() -> None:
    decision = easy(traced("long", 1, seconds=99 * HOUR, types=(A100, T4)), free=(4, 0))
    assert started(decision) == []
    held, head = traced("held", 4, {"n1": 4}, seconds=HOUR), traced("head", 8, created=0.0)
    now = snapshot([*quads(4, 0), node("t", T4)], [held, head, traced("long", 1, seconds=99 * HOUR, types=(A100, T4))])
    [placed] = EasyBackfill().decide(now).placements
    assert (placed.job, placed.gpu_type) == ("uid-long", T4)
    assert placed.reason.endswith("does not delay default/head, which came first")


def test_where_no_end_is_in_sight_nobody_takes_a_type_that_the_head_waits_for() -> None:
    held = replace(traced("held", 4, {"n1": 4}), expected_finish=None)
    now = snapshot(quads(4, 0), [held, traced("head", 8, created=0.0), traced("short", 1, seconds=1)])
    assert started(EasyBackfill().decide(now)) == []


def test_jobs_that_start_now_count_among_those_that_the_head_waits_for() -> None:
    first = traced("first", 4, created=0.0, seconds=HOUR / 2)
    head = traced("head", 4, created=1.0)
    decision = EasyBackfill().decide(snapshot(quads(4), [first, head, traced("late", 4, seconds=60)]))
    assert started(decision) == ["first"]


# --- static affinity ------------------------------------------------------------------------------------------
def test_an_application_waits_for_its_type_whatever_else_is_free() -> None:
    fast = traced("a", 1, types=(A100, T4))
    held = traced("held", 4, {"n0": 4})
    now = snapshot([*quads(0), node("t", T4)], [held, fast])
    waits = StaticAffinity({fast.model.name: A100}).decide(now)
    assert started(waits) == []
    assert waits.pending[0].message == f"needs 1×{A100}, free: 0×{A100}"
    [placed] = StaticAffinity({fast.model.name: T4}).decide(now).placements
    assert placed.gpu_type == T4
    assert placed.reason == f"1×{T4}, dp=1 tp=1 pp=1: gpt2 belongs on {T4}"


def test_by_itself_an_application_belongs_where_it_gets_most_for_the_cost() -> None:
    speeds = traced("a", 1, types=(A100, T4)).speeds or ()
    weak = tuple(
        replace(row, steps_per_second=row.steps_per_second / (2 if row.gpu_type == T4 else 1)) for row in speeds
    )
    now = snapshot([*quads(4), node("t", T4)], [replace(traced("a", 1), speeds=weak)])
    assert [placed.gpu_type for placed in StaticAffinity().decide(now).placements] == [A100]


def test_each_type_has_a_queue_of_its_own() -> None:
    held = traced("held", 4, {"n0": 4})
    jobs = [
        traced("first", 4, created=0.0, model="gpt2"),
        traced("second", 1, created=1.0, model="gpt2"),
        traced("other", 1, created=2.0, model="bert-large", types=(T4,)),
    ]
    decision = StaticAffinity().decide(snapshot([*quads(3), node("t", T4)], [held, *jobs]))
    assert started(decision) == ["other"]
    assert decision.pending[1].message == "default/first came first and does not fit yet"


# --- random ------------------------------------------------------------------------------------------
def test_chance_is_the_same_for_the_same_snapshot_and_another_for_others() -> None:
    now = snapshot(quads(4, 4), [traced(f"j{i}", (1, 2, 4)) for i in range(6)])
    assert Random().decide(now) == Random().decide(now)
    others = [Random(seed).decide(now) for seed in range(9)] + [Random().decide(replace(now, time=NOW + 1))]
    assert len({tuple(started(decision)) for decision in others}) > 3


# --- all of them ------------------------------------------------------------------------------------------
def test_a_job_with_several_counts_gets_the_fastest_that_fits_and_keeps_it() -> None:
    waiting = traced("a", (1, 2, 4, 8))
    for name in ("easy_backfill", "fcfs", "las", "round_robin", "sjf", "srsf", "srtf", "static_affinity"):
        [placed] = policy.load(name).decide(snapshot(quads(4, 3), [waiting])).placements
        assert placed.gpus == 4
        held = replace(waiting, placement=placed, started=NOW)
        assert policy.load(name).decide(snapshot(quads(0, 4), [held])) == Decision(name)


@given(st.permutations(range(6)))
def test_decisions_do_not_depend_on_the_order_of_jobs(order: Sequence[int]) -> None:
    jobs = [traced(f"j{i}", 1 + i % 4, seconds=HOUR * (1 + i), created=NOW - i) for i in range(5)]
    jobs.append(traced("held", 2, {"n0": 2}, seconds=99 * HOUR))
    for name in [each for each in SERVERS if each != "random"]:
        first = policy.load(name).decide(snapshot(quads(2, 4), jobs))
        again = policy.load(name).decide(snapshot(quads(2, 4), [jobs[i] for i in order]))
        assert {*started(first)} == {*started(again)}
        assert {*stopped(first)} == {*stopped(again)}


def test_live_jobs_are_served_by_the_plans_of_the_performance_model() -> None:
    now = snapshot(
        [node("a"), node("b")], [job("one", gpus=(8, 8)), job("two", gpus=(8, 8)), job("three", gpus=(8, 8))]
    )
    for name in SERVERS:
        decision = policy.load(name).decide(now)
        assert [placed.gpus for placed in decision.placements] == [8, 8]
        assert len(decision.pending) == 1


# --- whole runs ------------------------------------------------------------------------------------------
WORKLOADS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 4), st.integers(1, 60)), min_size=1, max_size=9)


def run(name: str, gpus: int, jobs: Sequence[tuple[int, int, int]], restart: float = 0.0) -> tuple[JobRecord, ...]:
    """Jobs of (submitted, GPUs, seconds) on one node."""
    plenty = 1 << 40
    cluster = Snapshot(0.0, (Node("n", T4, gpus, gpus, plenty, plenty, plenty),), (), {T4: catalog.gpu(T4)})
    submitted, widths, seconds = zip(*jobs, strict=True)
    rules = RigidRules(restart_seconds=restart)
    made = rigid.jobs(trace([f"j{i}" for i in range(len(jobs))], submitted, widths, seconds), cluster, rules)
    return tuple(sorted(simulate(policy.load(name), made, cluster).jobs, key=lambda record: record.uid))


def total_jct(records: Sequence[JobRecord]) -> float:
    return sum((each.finished or math.inf) - each.submitted for each in records)


@given(WORKLOADS)
@settings(max_examples=30, deadline=None)
def test_on_one_gpu_nobody_beats_the_shortest_remaining_time(jobs: list[tuple[int, int, int]]) -> None:
    """Schrage 1968."""
    narrow = [(submitted, 1, seconds) for submitted, _, seconds in jobs]
    least = total_jct(run("srtf", 1, narrow))
    for name in SERVERS:
        assert least <= total_jct(run(name, 1, narrow)) + 1e-3


@given(WORKLOADS)
@settings(max_examples=30, deadline=None)
def test_of_jobs_that_come_together_none_but_the_shortest_first_is_best_on_one_gpu(
    jobs: list[tuple[int, int, int]],
) -> None:
    """Smith 1956."""
    together = [(0, 1, seconds) for _, _, seconds in jobs]
    lengths = sorted(seconds for _, _, seconds in together)
    best = sum(seconds * (len(lengths) - place) for place, seconds in enumerate(lengths))
    assert total_jct(run("sjf", 1, together)) == pytest.approx(best)


@given(WORKLOADS)
@settings(max_examples=40, deadline=None)
def test_the_first_job_that_must_wait_starts_under_easy_when_it_would_without_backfilling(
    jobs: list[tuple[int, int, int]],
) -> None:
    plain, filled = run("fcfs", 4, jobs), run("easy_backfill", 4, jobs)
    in_turn = sorted(range(len(jobs)), key=lambda i: (jobs[i][0], f"j{i}"))
    head = next((i for i in in_turn if (plain[i].started or 0.0) > plain[i].submitted + 1e-3), None)
    if head is not None:
        assert filled[head].started == pytest.approx(plain[head].started)


@given(WORKLOADS)
@settings(max_examples=15, deadline=None)
def test_every_scheduler_finishes_every_job_restarts_or_not(jobs: list[tuple[int, int, int]]) -> None:
    for name in SERVERS:
        records = run(name, 4, jobs, restart=5.0)
        assert all(each.finished is not None for each in records)
        assert all(
            each.productive_gpu_seconds == pytest.approx(width * seconds)
            for each, (_, width, seconds) in zip(records, jobs, strict=True)
        )
