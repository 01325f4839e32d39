"""Themis: leases, whom GPUs are offered to first, and what the auction gives them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from msgspec.structs import replace
from tests.builders import A100, NOW, T4, job, node, running, snapshot
from tests.traced import traced

from trimtab_policy.heuristics.themis import Themis, finish_times, unfairness, waiting
from trimtab_policy.menu import Menu, market
from trimtab_policy.types import Decision, Job, Node, Snapshot

LEASE = 1200.0


def quads(*free: int) -> list[Node]:
    return [node(f"n{i}", gpus=4, free=left) for i, left in enumerate(free)]


def held(decision: Decision) -> dict[str, tuple[str, int]]:
    return {placed.job.removeprefix("uid-"): (placed.gpu_type, placed.gpus) for placed in decision.placements}


def menu(now: Snapshot, name: str) -> Menu:
    return next(each for each in market(now).menus if each.job.name == name)


def since(given: Job, seconds: float, **changes: object) -> Job:
    """A running job that holds what it has for so long."""
    return replace(given, started=NOW - seconds, **changes)


def test_the_finish_time_is_age_and_what_is_left_and_a_restart_if_it_moves() -> None:
    waits = replace(traced("w", (1, 2), seconds=1000.0), steps_done=500_000)
    runs = traced("r", (1, 2), {"n0": 2}, seconds=1000.0)
    now = snapshot(quads(2), [waits, runs])
    assert finish_times(menu(now, "w"), NOW).tolist() == [60 + 500 + 60, 60 + 250 + 60]
    assert finish_times(menu(now, "r"), NOW).tolist() == [60 + 1000 + 60, 60 + 500]
    assert waiting(menu(now, "w"), NOW, LEASE) == 60 + 250 + 60 + LEASE


def test_unfairness_is_relative_to_a_share_of_the_cluster_in_turns_where_it_is_too_small() -> None:
    now = snapshot(
        quads(0, 4), [traced("r", 4, {"n0": 4}, seconds=1000.0), traced("a", 4), traced("b", 4), traced("c", 4)]
    )
    alone = 1000.0 * 2  # a quarter of 8 GPUs is half of what it asks for
    assert unfairness(menu(now, "r"), market(now), NOW, LEASE) == pytest.approx((60 + 1000) / alone)


def test_a_lease_protects_a_job_until_it_ends() -> None:
    new = replace(traced("new", 4), created=NOW - 100_000)
    for seconds, stopped in ((LEASE - 1, []), (LEASE + 1, ["uid-old"])):
        old = since(traced("old", 4, {"n0": 4}), seconds)
        decision = Themis().decide(snapshot(quads(0), [old, new]))
        assert [stop.job for stop in decision.stops] == stopped
        assert [placed.job for placed in decision.placements] == (["uid-new"] if stopped else [])


def test_a_job_that_wins_what_it_has_keeps_it_for_another_lease() -> None:
    policy, old = Themis(), since(traced("old", 4, {"n0": 4}), LEASE + 1)
    assert policy.decide(snapshot(quads(0), [old])) == Decision("themis")
    rival = replace(traced("new", 4), created=NOW - 100_000)
    later = replace(snapshot(quads(0), [old, rival]), time=NOW + LEASE - 1)
    assert not policy.decide(later).stops
    assert policy.decide(replace(later, time=NOW + LEASE)).stops


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
            finish_times(each, NOW)[k] if k >= 0 else waiting(each, NOW, LEASE)
            for each, k in zip(menus, choice, strict=True)
        ]
        return -sum(math.log(time) for time in times)

    possible = [
        choice
        for choice in itertools.product(*(range(-1, len(each.options)) for each in menus))
        if np.all(_used(menus, choice) <= 4)
    ]
    assert product(tuple(picked)) == pytest.approx(max(map(product, possible)))


def _used(menus: tuple[Menu, ...], choice: tuple[int, ...]) -> np.ndarray:
    used = np.zeros(2)
    for each, option in zip(menus, choice, strict=True):
        if option >= 0:
            used[each.kind[option]] += each.gpus[option]
    return used


def test_no_gpu_idles_while_somebody_could_use_it() -> None:
    jobs = [traced(f"j{i}", 1) for i in range(10)]
    assert len(Themis().decide(snapshot(quads(4, 4), jobs)).placements) == 8


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
