"""When GPUs come free: at every time what a simple replay of the ends says, and one rule for the end of a gang."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.builders import A100, H100, NOW, capacity, job, node, placement, running, snapshot
from tests.policy.scheduling.crowds import crowds

from trimtab_policy.placement import releases
from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.placement.node_columns import GangColumns
from trimtab_policy.placement.releases import (
    Ends,
    FreeTimeline,
    Release,
    expected_end,
    expected_ends,
    expected_timeline,
    told_releases,
)
from trimtab_policy.placement.runtime import OVERDUE, holder
from trimtab_policy.types import Job, NodeShare, Placement, Snapshot

HOUR = 3600.0
MOMENTS = st.sampled_from([0.0, 5.0, 10.0, 600.0, 10_000.0, 36_000.0, 1e7]).map(lambda seconds: NOW + seconds)
Claim = tuple[str, int, float, float]
"""What a waiting job is promised: node, GPUs, since and until when."""


@st.composite
def claims(draw: st.DrawFn, names: Sequence[str]) -> list[Claim]:
    found = []
    for _ in range(draw(st.integers(0, 3))):
        since = draw(st.sampled_from([NOW, NOW + 5, NOW + 600]))
        until = since + draw(st.sampled_from([60.0, 3600.0, math.inf]))
        found.append((draw(st.sampled_from(names)), draw(st.integers(1, 4)), since, until))
    return found


def replayed(now: Snapshot, made: Sequence[Claim], moment: float) -> dict[str, int]:
    """Free GPUs of each node at a time: those that were, those of the gangs that have ended, less what others took."""
    free = {each.name: each.free_gpus for each in now.nodes}
    for each in now.jobs:
        if each.placement and expected_end(now, each, each.placement) <= moment:
            for share in each.placement.shares:
                free[share.node] += share.gpus
    left = {name: max(0, gpus) for name, gpus in free.items()}
    for name, gpus, since, until in made:
        left[name] -= gpus if since <= moment < until else 0
    return left


def timeline(now: Snapshot, made: Sequence[Claim] = ()) -> FreeTimeline:
    return promised(ahead_of(Capacity(now), as_expected(now)), now, made)


class End(NamedTuple):
    """A gang gives back what it holds."""

    time: float
    job: Job
    gpu_type: str
    shares: tuple[NodeShare, ...]
    uncertainty: float = 1.0


def as_expected(now: Snapshot) -> list[End]:
    """Of each gang whose end is in sight."""
    gangs = [(each, each.placement) for each in now.jobs if each.placement]
    return [
        End(end, each, held.gpu_type, held.shares, held.prediction.uncertainty)
        for each, held in gangs
        if (end := expected_end(now, each, held)) < math.inf
    ]


def ahead_of(free: Capacity, ends: Sequence[End]) -> FreeTimeline:
    known = sorted(ends, key=lambda end: end.job.uid)
    columns = Ends(
        jobs=[end.job for end in known],
        times=np.array([end.time for end in known], dtype=float),
        uncertainty=np.array([end.uncertainty for end in known], dtype=float),
        rank=np.arange(len(known)),
        unproven=np.full(len(known), math.nan),
        held=GangColumns.of(((end.job, end.gpu_type, end.shares) for end in known), free.index),
    )
    return FreeTimeline(NOW, free, columns)


def promised(ahead: FreeTimeline, now: Snapshot, made: Sequence[Claim]) -> FreeTimeline:
    for number, (name, gpus, since, until) in enumerate(made):
        kind = next(each.gpu_type for each in now.nodes if each.name == name)
        ahead.promise(job(f"p{number}"), kind, (NodeShare(name, gpus),), since=since, until=until)
    return ahead


def free_gpus(free: Capacity) -> dict[str, int]:
    return dict(zip(free.names, free.free.tolist(), strict=True))


@given(crowds(), st.lists(MOMENTS, min_size=1, max_size=4), st.data())
def test_what_is_free_then_is_what_a_replay_of_the_ends_says(
    now: Snapshot, moments: list[float], data: st.DataObject
) -> None:
    made = data.draw(claims([each.name for each in now.nodes]))
    ahead = timeline(now, made)
    for moment in moments:
        assert free_gpus(ahead.at(moment)) == replayed(now, made, moment)


def test_a_promise_that_is_over_pays_for_nothing_that_a_node_has_handed_out_twice() -> None:
    gang = running("r", {"n0": 4}, finish=NOW + 600)
    ahead = timeline(snapshot([node("n0", free=-2)], [gang]), [("n0", 1, NOW, NOW + 60)])
    assert [free_gpus(ahead.at(NOW + seconds))["n0"] for seconds in (0, 60, 600)] == [-1, 0, 2]


@given(crowds(), st.lists(MOMENTS, min_size=1, max_size=4), st.data())
def test_who_asks_about_the_same_snapshot_sees_nothing_of_what_another_promises(
    now: Snapshot, moments: list[float], data: st.DataObject
) -> None:
    made = data.draw(claims([each.name for each in now.nodes]))
    before, mine, fork = expected_timeline(now), promised(expected_timeline(now), now, made), expected_timeline(now)
    forked = promised(mine.copy(), now, [("n0", 1, NOW, math.inf)])
    for moment in moments:
        bare = free_gpus(before.at(moment))
        assert free_gpus(fork.at(moment)) == bare
        taken = {name: sum(g for n, g, since, until in made if n == name and since <= moment < until) for name in bare}
        assert free_gpus(mine.at(moment)) == {name: gpus - taken[name] for name, gpus in bare.items()}
        more = {name: gpus - taken[name] - (name == "n0") for name, gpus in bare.items()}
        assert free_gpus(forked.at(moment)) == more


def test_threads_that_ask_about_one_snapshot_at_once_get_the_same_and_do_not_wait_for_each_other() -> None:
    for number in range(50):
        gangs = [running(f"r{number}-{i}", {"n0": 1}, finish=NOW + 60 * (i + 1)) for i in range(8)]
        now = snapshot([node("n0", free=0)], gangs)

        def asked(turn: int, now: Snapshot = now) -> dict[str, int]:
            if turn % 2:
                assert len(expected_ends(now).jobs) == 8
            return free_gpus(expected_timeline(now, early=turn % 3 == 0).at(NOW + 1e6))

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(asked, range(16), timeout=60)) == [{"n0": 8}] * 16


def test_what_is_known_of_many_moments_is_forgotten_and_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releases, "MOST_KNOWN", 3)
    gangs = [running(f"r{i}", {"n0": 1}, finish=NOW + 60 * (i + 1)) for i in range(8)]
    ahead = timeline(snapshot([node("n0", free=0)], gangs))
    for moment in (7, 1, 5, 3, 8, 2, 6, 4, 0, 7):
        assert free_gpus(ahead.at(NOW + 60 * moment)) == {"n0": moment}


@given(crowds(), st.integers(1, 24))
def test_the_first_time_is_the_first_of_all_ends_at_which_it_is_so(now: Snapshot, wanted: int) -> None:
    ends = {end for each in now.jobs if each.placement and (end := expected_end(now, each, each.placement)) < math.inf}
    able = (end for end in sorted({NOW, *ends}) if sum(replayed(now, (), end).values()) >= wanted)
    found = timeline(now).first(lambda free: int(free.free.sum()) >= wanted)
    assert (found[0] if found else None) == next(able, None)
    if found:
        assert free_gpus(found[1]) == replayed(now, (), found[0])


@given(crowds(), st.integers(1, 24), st.integers(0, 8))
def test_counted_gpus_are_enough_from_the_first_end_on_that_makes_them_so(
    now: Snapshot, wanted: int, free: int
) -> None:
    def count(moment: float) -> int:
        return free + sum(
            each.placement.gpus
            for each in now.jobs
            if each.placement and each.placement.gpu_type == A100 and (each.expected_finish or math.inf) <= moment
        )

    told = [each.expected_finish for each in now.jobs if each.placement and each.expected_finish]
    able = ((end, count(end) - wanted) for end in sorted({NOW, *told}) if end >= NOW and count(end) >= wanted)
    assert told_releases(now).enough(A100, wanted, free, NOW) == next(able, None)


def test_a_gang_is_told_to_end_in_the_past_and_expected_to_end_later() -> None:
    late = running("late", {"n1": 8}, finish=NOW - 60, started=NOW - HOUR)
    now = snapshot([node("n1", free=0)], [late])
    assert expected_ends(now).times.tolist() == [NOW + OVERDUE * HOUR]
    assert told_releases(now).enough(A100, 8, 0, NOW) == (NOW, 0)


def expected(held: Job, **changes: float) -> float:
    assert held.placement
    return expected_end(snapshot([node("n1", free=0)], [held], **changes), held, held.placement)


def test_where_no_end_is_told_a_gang_takes_what_its_plan_takes() -> None:
    silent = replace(running("silent", {"n1": 8}), expected_finish=None, steps_done=400, resuming=30.0)
    assert expected(silent) == NOW + 30 + 600 * 0.5
    assert expected(silent, speedup=10.0) == NOW + (30 + 600 * 0.5) / 10
    assert expected(replace(silent, steps_done=2000, resuming=0.0)) == NOW


@pytest.mark.parametrize(
    "held",
    [
        replace(running("leaves", {"n1": 8}), expected_finish=None, movable_from=math.inf),
        holder("uid-x", "default", "x", queue="", gpu_type=A100, shares=(NodeShare("n1", 8),)),
    ],
)
def test_who_leaves_for_others_and_who_is_unknown_gives_nothing_back(held: Job) -> None:
    now = snapshot([node("n1", free=0)], [held])
    assert expected(held) == math.inf
    assert not expected_ends(now).jobs
    assert told_releases(now).enough(A100, 8, 0, NOW) is None
    assert timeline(now).first(lambda free: bool(free.free.sum())) is None


def test_gpus_of_another_type_and_of_nodes_that_are_gone_do_not_help() -> None:
    elsewhere = End(NOW + 60, job("a"), H100, (NodeShare("h", 8),))
    gone = End(NOW + 60, job("b"), A100, (NodeShare("gone", 8),))
    told = told_releases(snapshot([node("n1", free=0)], [])).plus([Release(NOW + 60, H100, 8)])
    assert told.enough(A100, 1, 0, NOW) is None
    assert told.enough(H100, 1, 0, NOW) == (NOW + 60, 7)
    ahead = ahead_of(capacity(node("n1", free=0), node("h", H100, free=0)), [elsewhere, gone])
    assert free_gpus(ahead.at(NOW + 60)) == {"n1": 0, "h": 8}


def test_the_last_change_is_the_last_end_by_then() -> None:
    held: Placement = placement("uid-a", {"n1": 8})
    ends = [End(NOW + seconds, job(f"j{seconds}"), A100, held.shares) for seconds in (30, 90)]
    ahead = ahead_of(capacity(node("n1", free=0)), ends)
    assert [ahead.last_change(NOW + seconds) for seconds in (0, 30, 60, 90, 1e6)] == [
        None, NOW + 30, NOW + 30, NOW + 90, NOW + 90,
    ]  # fmt: skip
    ahead.promise(job("p"), A100, (NodeShare("n1", 1),), since=NOW + 60, until=NOW + 120)
    assert [ahead.last_change(NOW + seconds) for seconds in (0, 30, 60, 90, 1e6)] == [
        None, NOW + 30, NOW + 60, NOW + 90, NOW + 120,
    ]  # fmt: skip
    ahead.promise(job("q"), A100, (NodeShare("n1", 1),), since=NOW, until=math.inf)
    assert ahead.last_change(NOW + 10) is None
