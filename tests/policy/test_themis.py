"""Themis: leases, whom GPUs are offered to first, and what the auction gives them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from msgspec.structs import replace
from tests.builders import A100, NOW, T4, job, node, running, snapshot
from tests.trace_jobs import traced

from trimtab_lab import rigid
from trimtab_lab.workloads import clusters
from trimtab_lab.workloads.trace import trace
from trimtab_policy.heuristics.themis import Themis, finish_times, unfairness, waiting
from trimtab_policy.placement.options import OptionMenu, market
from trimtab_policy.sim.engine import simulate
from trimtab_policy.types import Decision, Node, Quota, Snapshot

LEASE = 1200.0
ENDS = (NOW // LEASE + 1) * LEASE
"""When all leases end next."""


def quads(*free: int) -> list[Node]:
    return [node(f"n{i}", gpus=4, free=left) for i, left in enumerate(free)]


def held(decision: Decision) -> dict[str, tuple[str, int]]:
    return {placed.job.removeprefix("uid-"): (placed.gpu_type, placed.gpus) for placed in decision.placements}


def menu(now: Snapshot, name: str) -> OptionMenu:
    return next(each for each in market(now).menus if each.job.name == name)


def test_the_finish_time_is_age_and_a_lease_of_work_and_the_rest_at_the_best_speed_and_a_restart_if_it_moves() -> None:
    waits = replace(traced("w", (1, 2), seconds=1000.0), steps_done=500_000)
    runs = traced("r", (1, 2), {"n0": 2}, seconds=2000.0)
    now = snapshot(quads(2), [waits, runs])
    assert finish_times(menu(now, "w"), NOW, LEASE).tolist() == [60 + 500 + 60, 60 + 250 + 60]
    assert finish_times(menu(now, "r"), NOW, LEASE).tolist() == [60 + LEASE + 800 / 2 + 60, 60 + 1000]
    assert waiting(menu(now, "w"), NOW, LEASE) == 60 + 250 + 60 + LEASE


def test_little_now_is_better_than_nothing() -> None:
    """At a fiftieth of the best speed, with a restart that takes longer than a lease."""
    slow = replace(traced("a", (1, 50)), restart_seconds=2 * LEASE)
    now = snapshot([node(f"n{i}", gpus=8) for i in range(7)], [slow])
    each = menu(now, "a")
    assert finish_times(each, NOW, LEASE).max() < waiting(each, NOW, LEASE)
    assert held(Themis().decide(snapshot([node("n0", gpus=50, free=7)], [slow]))) == {"a": (A100, 1)}


def test_unfairness_is_relative_to_a_share_of_the_cluster_in_turns_where_it_is_too_small() -> None:
    now = snapshot(
        quads(0, 4), [traced("r", 4, {"n0": 4}, seconds=1000.0), traced("a", 4), traced("b", 4), traced("c", 4)]
    )
    alone = 1000.0 * 2  # a quarter of 8 GPUs is half of what it asks for
    assert unfairness(menu(now, "r"), market(now), NOW, LEASE) == pytest.approx((60 + 1000) / alone)


def test_a_lease_protects_a_job_until_the_next_multiple_of_its_length() -> None:
    new = replace(traced("new", 4), created=ENDS - 100_000)
    old = replace(traced("old", 4, {"n0": 4}), started=ENDS - 30)
    for time, stopped in ((ENDS - 1, []), (ENDS, ["uid-old"]), (ENDS + 299, ["uid-old"])):
        decision = Themis().decide(replace(snapshot(quads(0), [old, new]), time=time))
        assert [stop.job for stop in decision.stops] == stopped
        assert [placed.job for placed in decision.placements] == (["uid-new"] if stopped else [])


def test_a_job_that_wins_what_it_has_keeps_it_for_another_lease() -> None:
    policy, old = Themis(), replace(traced("old", 4, {"n0": 4}), started=ENDS - 30)
    now = replace(snapshot(quads(0), [old]), time=ENDS)
    assert policy.decide(now) == Decision("themis")
    later = replace(now, jobs=(old, replace(traced("new", 4), created=NOW - 100_000)))
    assert not policy.decide(replace(later, time=ENDS + LEASE - 1)).stops
    assert policy.decide(replace(later, time=ENDS + LEASE)).stops


def test_a_large_gang_finds_its_gpus_free_together_however_many_small_jobs_there_are() -> None:
    """Small ones come at seven eighths of what the cluster can do, so there are always seven of them."""
    small = [(130.0 * i, 1, 900.0) for i in range(400)]
    rows = [(0.0, 8, 3600.0), *small]
    submitted, gpus, seconds = zip(*sorted(rows), strict=True)
    jobs = [f"{count}-{i}" for i, count in enumerate(gpus)]
    there = clusters.cluster("T4=8x4")
    run = simulate(Themis(), rigid.jobs(trace(jobs, submitted, gpus, seconds), there), there)
    [gang] = [record for record in run.jobs if record.uid.startswith("8-")]
    assert gang.finished is not None
    assert gang.finished < 0.9 * run.end
    assert gang.isolated_seconds * 2 > gang.finished


def test_gpus_are_offered_to_the_worst_off_first() -> None:
    """Of five jobs that wait, one fifth, the worst one, bids alone; the others get what it leaves."""
    jobs = [replace(traced(f"j{i}", (1, 2, 4)), created=NOW - 100 * i) for i in range(5)]
    assert held(Themis().decide(snapshot(quads(4), jobs))) == {"j4": (A100, 4)}
    assert held(Themis().decide(snapshot(quads(4, 4), jobs)))["j4"] == (A100, 4)


def test_without_a_filter_the_auction_has_the_largest_product_of_inverse_unfairness() -> None:
    jobs = [
        replace(traced(f"j{i}", (1, 2, 4), types=(A100, T4), seconds=900.0 * (i + 1)), created=NOW - 500 * i)
        for i in range(4)
    ]
    now = snapshot([*quads(4), node("t0", T4, gpus=4)], jobs)
    menus = market(now).menus
    decided = held(Themis(fairness=0.0).decide(now))
    picked = [
        next((k for k, o in enumerate(each.options) if (o.gpu.name, o.option.gpus) == decided.get(each.job.name)), -1)
        for each in menus
    ]

    def product(choice: tuple[int, ...]) -> float:
        times = [
            finish_times(each, NOW, LEASE)[k] if k >= 0 else waiting(each, NOW, LEASE)
            for each, k in zip(menus, choice, strict=True)
        ]
        return -sum(math.log(time) for time in times)

    possible = [
        choice
        for choice in itertools.product(*(range(-1, len(each.options)) for each in menus))
        if np.all(_used(menus, choice) <= 4)
    ]
    assert product(tuple(picked)) == pytest.approx(max(map(product, possible)))


def _used(menus: tuple[OptionMenu, ...], choice: tuple[int, ...]) -> np.ndarray:
    used = np.zeros(2)
    for each, option in zip(menus, choice, strict=True):
        if option >= 0:
            used[each.kind[option]] += each.gpus[option]
    return used


def test_the_worst_off_are_counted_in_gpus_so_that_a_large_gang_bids_alone() -> None:
    """Four small jobs that just came would outvote it: a lease more or less is nothing to its finish time."""
    gang = replace(traced("gang", 4), created=NOW - 100_000)
    small = [replace(traced(f"s{i}", 1), created=NOW) for i in range(4)]
    assert held(Themis().decide(snapshot(quads(4), [gang, *small]))) == {"gang": (A100, 4)}
    assert "gang" not in held(Themis(fairness=0.0).decide(snapshot(quads(4), [gang, *small])))


def test_no_gpu_idles_while_somebody_could_use_it() -> None:
    jobs = [traced(f"j{i}", 1) for i in range(10)]
    assert len(Themis().decide(snapshot(quads(4, 4), jobs)).placements) == 8


def test_gpus_that_a_winner_may_not_have_go_to_others() -> None:
    """The auction knows no quotas and not that free GPUs are scattered."""
    rich, poor = replace(traced("rich", 8), queue="q", created=NOW - 100_000), traced("poor", 4)
    limited = replace(snapshot(quads(4, 4), [rich, poor]), quotas=(Quota("q", A100, 4),))
    assert held(Themis().decide(limited)) == {"poor": (A100, 4)}
    scattered = snapshot(quads(3, 1), [job("gang", gpus=(4, 4), created=NOW - 100_000), traced("two", 2)])
    assert held(Themis().decide(scattered)) == {"two": (A100, 2)}


def test_jobs_of_the_performance_model_are_served_and_running_ones_left_alone() -> None:
    decision = Themis().decide(
        snapshot(
            [node("n0", free=0), node("n1")], [running("f", {"n0": 8}), job("a", gpus=(1, 8)), job("b", gpus=(1, 8))]
        )
    )
    assert {placed.job for placed in decision.placements} <= {"uid-a", "uid-b"}
    assert decision.placements
    assert not decision.stops


def test_nothing_to_decide_is_decided() -> None:
    assert Themis().decide(snapshot(quads(4), [])) == Decision("themis")
