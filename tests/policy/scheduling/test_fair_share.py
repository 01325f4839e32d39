"""Shares: what GPUs are worth, whose turn it is, who is entitled to what, and who has only borrowed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.builders import A100, H100, NOW, T4, V100, job, node, placement, running, snapshot

from trimtab_policy.scheduling.fair_share import borrowed, in_line, line_of, queue_holdings
from trimtab_policy.specs import ParallelPlan, Precision
from trimtab_policy.types import Grant, Job, Node, Quota, Snapshot, Speed


def guaranteed(queue: str, gpu_type: str, gpus: int) -> Quota:
    return Quota(queue, gpu_type, 1000, gpus)


def order(seen: Snapshot) -> list[str]:
    return [each.name for each in in_line(seen).waiting()]


def entitled(seen: Snapshot) -> set[str]:
    return {each.name for each in in_line(seen).jobs if each.entitled}


# --- what GPUs are worth ---------------------------------------------------------------------------------------------
MIXED = [node("h", H100), node("a", A100), node("v", V100), node("t", T4)]


def share_of(held: Job, nodes: Sequence[Node] = MIXED) -> float:
    return queue_holdings(snapshot(nodes, [held]))[line_of(held)].share


def large(name: str, gpu_type: str) -> Job:
    """Eight billion parameters on the eight GPUs of one node: as much computing as a GPU can do."""
    held = placement("uid-x", {name: 8}, gpu_type, ParallelPlan(data=8, micro_batch=8, zero_stage=3))
    figures = {"sequence_length": 2048, "global_batch_size": 64, "precision": Precision.FP16}
    return job("x", model="llama3-8b", queue="q", placement=held, **figures)


def small(name: str, gpu_type: str) -> Job:
    """GPT-2, a sequence at a time: GPUs wait for the host."""
    return running("x", {name: 8}, gpu_type, queue="q", precision=Precision.FP16)


def test_an_h100_hour_is_not_a_t4_hour() -> None:
    assert 10 < share_of(large("h", H100)) / share_of(large("t", T4)) < 100


def test_what_a_gpu_is_worth_depends_on_the_model_that_it_trains() -> None:
    ratios = [share_of(each("h", H100)) / share_of(each("a", A100)) for each in (small, large)]
    assert 1 < ratios[0] < 0.8 * ratios[1] < 3.2


def test_jobs_that_bring_their_speeds_are_judged_by_them() -> None:
    speeds = (Speed(H100, 8, 1, 4.0), Speed(A100, 8, 1, 1.0), Speed(A100, 4, 1, 0.8))
    fast = share_of(running("x", {"h": 8}, H100, queue="q", speeds=speeds))
    slow = share_of(running("x", {"a": 8}, A100, queue="q", speeds=speeds))
    assert slow / fast == pytest.approx((0.8 / 4) / (4.0 / 8))


def test_the_whole_cluster_in_one_hand_is_a_share_of_one() -> None:
    nodes = [node("n1"), node("n2")]
    assert share_of(running("x", {"n1": 8, "n2": 8}, queue="q"), nodes) == pytest.approx(1)
    weighted = snapshot(nodes, [running("x", {"n1": 8}, queue="q")], weights={"q": 4.0})
    assert queue_holdings(weighted)["q"].share == pytest.approx(0.5 / 4)


@pytest.mark.parametrize("gpu_type", [T4, "Unheard-Of-1"])
def test_gangs_on_types_whose_nodes_are_all_cordoned_count_all_the_same(gpu_type: str) -> None:
    share = share_of(running("x", {"gone": 8}, gpu_type, queue="q", precision=Precision.FP16), [node("h", H100)])
    assert 0 < share <= 1


def test_an_empty_cluster_has_no_shares() -> None:
    assert queue_holdings(snapshot([])) == {}
    [alone] = in_line(snapshot([], [job()])).jobs
    assert (alone.share, alone.entitled) == (0, False)


# --- whose turn it is ------------------------------------------------------------------------------------------------
def waiting(rows: Sequence[tuple[str, float]], gpus: int = 1) -> list[Job]:
    """Jobs of (queue, seconds after NOW)."""
    return [
        job(f"{queue}{i}", gpus=(gpus, gpus), queue=queue, created=NOW + late) for i, (queue, late) in enumerate(rows)
    ]


def test_queues_take_turns_within_one_decision() -> None:
    flood = waiting([("a", i) for i in range(4)] + [("b", 10 + i) for i in range(4)])
    assert [name[0] for name in order(snapshot([node("n")], flood))] == list("abababab")


def test_a_queue_of_twice_the_weight_has_twice_the_turns() -> None:
    flood = waiting([("a", i) for i in range(4)] + [("b", 10 + i) for i in range(6)])
    names = [name[0] for name in order(snapshot([node("n")], flood, weights={"b": 2.0}))]
    assert Counter(names[:6]) == {"a": 2, "b": 4}


def test_what_a_queue_holds_already_counts() -> None:
    held = running("x", {"n": 3}, queue="a")
    jobs = [held, *waiting([("a", 0), ("b", 1), ("b", 2), ("b", 3), ("b", 4)])]
    assert [name[0] for name in order(snapshot([node("n", free=5)], jobs))] == list("bbbab")


def test_jobs_without_a_queue_share_one_of_their_namespace() -> None:
    loose = [job(f"l{i}", created=NOW + i) for i in range(3)]
    others = [job(f"o{i}", namespace="other", created=NOW + 10 + i) for i in range(2)]
    assert [name[0] for name in order(snapshot([node("n")], loose + others))] == list("lolol")


def test_priority_comes_before_everything_and_age_within_a_queue() -> None:
    jobs = waiting([("a", 5), ("a", 1), ("b", 3)])
    urgent = job("urgent", queue="a", priority=1, created=NOW + 99)
    seen = snapshot([node("n")], [*jobs, urgent], quotas=[guaranteed("b", A100, 8)])
    assert order(seen) == ["urgent", "b2", "a1", "a0"]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 1000)), max_size=24),
    st.fixed_dictionaries({name: st.integers(1, 4).map(float) for name in "abc"}),
    st.fixed_dictionaries({name: st.integers(0, 6) for name in "abc"}),
    st.integers(0, 30),
)
@settings(max_examples=150, deadline=None)
def test_identical_jobs_are_served_max_min_fair_to_within_one_job(
    rows: list[tuple[str, int]], weights: dict[str, float], held: dict[str, int], places: int
) -> None:
    """After any number of starts nobody who still waits has less than another one had before its last start."""
    holds = [running(f"r{name}", {name: gpus}, queue=name) for name, gpus in held.items() if gpus]
    seen = snapshot([node(name) for name in "abc"], [*holds, *waiting(rows)], weights=weights)
    line = in_line(seen).waiting()
    has = dict(held)
    for each in line[:places]:
        has[each.queue] += 1
    last = {each.queue: has[each.queue] - 1 for each in line[:places]}
    for waits in {each.queue for each in line[places:]}:
        assert all(before / weights[name] <= has[waits] / weights[waits] + 1e-9 for name, before in last.items())


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 1000)), max_size=16), st.randoms())
@settings(max_examples=80, deadline=None)
def test_when_queues_submitted_relative_to_each_other_does_not_matter(
    rows: list[tuple[str, int]],
    chance: Random,
) -> None:
    """Shift all jobs of a queue in time: who is served after how many starts changes by ties alone."""
    jobs = waiting(rows)
    shift = {name: chance.random() * 5000 for name in "abc"}
    moved = [replace(each, created=each.created + shift[each.queue]) for each in jobs]

    def levels(those: Sequence[Job]) -> list[tuple[float, str]]:
        return sorted((each.share, each.name) for each in in_line(snapshot([node("n")], those)).waiting())

    assert levels(jobs) == levels(moved)


def test_jobs_that_stand_as_before_stay_the_same_objects() -> None:
    once = in_line(snapshot([node("n")], waiting([("a", 0), ("b", 1), ("a", 2)])))
    again = in_line(once)
    assert all(new is old for new, old in zip(again.jobs, once.jobs, strict=True))
    nobody = snapshot([node("n")], [running("x", {"n": 8})])
    assert in_line(nobody) is nobody


# --- guarantees ------------------------------------------------------------------------------------------------------
NODES = [node(f"n{i}") for i in range(4)]


def test_who_is_guaranteed_what_it_needs_comes_first() -> None:
    held = running("x", {"n0": 6}, queue="b")
    jobs = [held, *waiting([("a", 0), ("b", 1), ("b", 2), ("b", 3)])]
    seen = snapshot(NODES, jobs, quotas=[guaranteed("b", A100, 8)])
    assert entitled(seen) == {"b1", "b2"}
    assert order(seen) == ["b1", "b2", "a0", "b3"]


def test_a_guarantee_is_for_gangs_that_it_is_enough_for() -> None:
    jobs = [
        job("small", gpus=(4, 4), queue="q", created=NOW + 3),
        job("large", gpus=(16, 16), queue="q", created=NOW + 1),
        job("middle", gpus=(8, 8), queue="q", created=NOW + 2),
    ]
    assert entitled(snapshot(NODES, jobs, quotas=[guaranteed("q", A100, 8)])) == {"middle"}
    held = running("x", {"n0": 4}, queue="q")
    assert entitled(snapshot(NODES, [held, *jobs], quotas=[guaranteed("q", A100, 8)])) == set()


def test_a_guarantee_of_any_type_covers_all_types() -> None:
    jobs = [job(f"j{i}", gpus=(4, 4), queue="q", created=NOW + i) for i in range(3)]
    assert entitled(snapshot([node("h", H100), *NODES], jobs, quotas=[guaranteed("q", "*", 8)])) == {"j0", "j1"}


def test_a_guarantee_of_another_type_does_not_help() -> None:
    seen = snapshot(NODES, [job(queue="q", gpu_types=(A100,))], quotas=[guaranteed("q", H100, 8)])
    assert entitled(seen) == set()


def test_of_those_that_started_together_who_was_before_the_others_in_line_is_covered_first() -> None:
    twins = [
        running(name, {"n0": 4}, queue="q", started=NOW, created=since) for name, since in (("a", 2.0), ("b", 1.0))
    ]
    assert borrowed(snapshot([node("n0", free=0)], twins, quotas=[Quota("q", A100, 1 << 20, 4)])) == {"uid-a": 4}


GAVE = {"a": (Grant(4, 2, 2),), "b": (Grant(4, 1, 1),)}
TIMES = [NOW - 60, NOW - 1, NOW, None]


@pytest.mark.parametrize(("since_a", "since_b"), [(a, b) for a in TIMES for b in TIMES])
def test_what_was_given_last_is_borrowed_whatever_the_clocks_say(since_a: float | None, since_b: float | None) -> None:
    """Within one second, by clocks that differ, planned and not running yet, or started anew: it is all the same."""
    jobs = [
        running(name, {"n0": 4}, queue="q", started=since, created=since or 0.0, grants=GAVE[name])
        for name, since in (("a", since_a), ("b", since_b))
    ]
    assert borrowed(snapshot([node("n0", free=0)], jobs, quotas=[guaranteed("q", A100, 4)])) == {"uid-a": 4}


def test_a_gang_that_has_grown_has_borrowed_what_it_grew_by() -> None:
    grown = running("grown", {"n0": 8}, queue="q", started=NOW - 9, grants=(Grant(4, 1, 1), Grant(4, 3, 3)))
    other = running("other", {"n1": 4}, queue="q", started=NOW - 5, grants=(Grant(4, 2, 2),))
    assert borrowed(snapshot(NODES, [grown, other], quotas=[guaranteed("q", A100, 8)])) == {"uid-grown": 4}


def test_a_gang_that_has_come_from_another_type_borrows_of_this_one_before_those_that_were_there() -> None:
    came = running("came", {"n0": 8}, queue="q", grants=(Grant(8, 1, 3),))
    there = running("there", {"n1": 8}, queue="q", grants=(Grant(8, 2, 2),))
    assert borrowed(snapshot(NODES, [came, there], quotas=[guaranteed("q", A100, 8)])) == {"uid-came": 8}
    assert borrowed(snapshot(NODES, [came, there], quotas=[guaranteed("q", "*", 8)])) == {"uid-there": 8}


def test_all_beyond_the_guarantee_is_borrowed_the_youngest_of_the_lowest_priority_first() -> None:
    jobs = [
        running("old", {"n0": 8}, queue="q", started=NOW - 90),
        running("young", {"n1": 8}, queue="q", started=NOW - 10),
        running("urgent", {"n2": 8}, queue="q", started=NOW - 5, priority=1),
        running("loose", {"n3": 8}),
    ]
    seen = snapshot(NODES, jobs, quotas=[guaranteed("q", A100, 12)])
    assert borrowed(seen) == {"uid-old": 4, "uid-young": 8, "uid-loose": 8}
    assert queue_holdings(seen)["q"].borrowed == {A100: 12}


def test_guarantees_by_type_and_of_any_type_cover_no_more_than_the_larger() -> None:
    jobs = [running("a", {"n0": 8, "n1": 8}, queue="q", started=NOW - 9), running("h", {"h": 8}, H100, queue="q")]
    seen = snapshot([*NODES, node("h", H100)], jobs, quotas=[guaranteed("q", H100, 8), guaranteed("q", "*", 16)])
    assert borrowed(seen) == {"uid-a": 8}


GANGS = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from([A100, H100]), st.integers(1, 16), st.integers(0, 2)), max_size=8
)


@given(
    GANGS,
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([A100, H100, "*"]), st.integers(0, 24)), max_size=5),
)
@settings(max_examples=150, deadline=None)
def test_nobody_borrows_more_than_it_holds_nor_while_guarantees_are_left(
    gangs: list[tuple[str, str, int, int]], rows: list[tuple[str, str, int]]
) -> None:
    quotas = list({(queue, kind): guaranteed(queue, kind, gpus) for queue, kind, gpus in rows}.values())
    jobs = [
        running(f"j{i}", {f"n{i}": gpus}, kind, queue=queue, priority=priority, created=NOW - i)
        for i, (queue, kind, gpus, priority) in enumerate(gangs)
    ]
    seen = snapshot([node("a"), node("h", H100)], jobs, quotas=quotas)
    beyond = borrowed(seen)
    for each in jobs:
        assert each.placement
        assert 0 <= beyond.get(each.uid, 0) <= each.placement.gpus
    promised = {(quota.queue, quota.gpu_type): quota.guaranteed for quota in quotas}
    for name, standing in queue_holdings(seen).items():
        covered = {kind: standing.gpus[kind] - standing.borrowed.get(kind, 0) for kind in standing.gpus}
        of_type = {kind: min(held, promised.get((name, kind), 0)) for kind, held in standing.gpus.items()}
        assert all(covered[kind] >= least for kind, least in of_type.items())
        most = max(sum(of_type.values()), promised.get((name, "*"), 0))
        assert sum(covered.values()) == min(most, sum(standing.gpus.values()))
