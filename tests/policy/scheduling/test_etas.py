"""When waiting jobs will start: the ends of running ones bring it nearer, in the order of the line, within limits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hack.bench.punctuality import Punctuality, Told, punctuality, witness
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.builders import A100, H100, NOW, job, node, running, snapshot

from trimtab_lab.workloads import clusters, generator
from trimtab_policy.scheduling.etas import expected_starts, forecasts
from trimtab_policy.types import Awaited, Eta, Job, Node, Pending, PendingReason, Quota, Snapshot, Speed

HOUR = 3600.0


def held(name: str, nodes: dict[str, int], hours: float, **changes: Any) -> Job:
    """A running job that ends after so many hours; its reports are believed."""
    return running(name, nodes, finish=NOW + hours * HOUR, started=NOW - HOUR, steps_done=10, **changes)


def whole(name: str, **changes: Any) -> Job:
    """A waiting job that needs a whole node, and takes long."""
    return job(name, gpus=(8, 8), max_nodes=1, steps=100_000, **changes)


def cluster(nodes: Iterable[Node], *jobs: Job, **changes: Any) -> Snapshot:
    return snapshot(nodes, jobs, **changes)


def starts(now: Snapshot, reason: PendingReason = PendingReason.INSUFFICIENT_GPUS, **how: bool) -> dict[str, Eta]:
    pending = [Pending(each.uid, reason, "") for each in now.waiting()]
    return {uid.removeprefix("uid-"): eta for uid, eta in expected_starts(now, pending, **how).items()}


def test_a_job_starts_when_the_one_ends_that_holds_its_gpus() -> None:
    eta = starts(cluster([node("a", free=0)], held("first", {"a": 8}, 2), whole("next")))["next"]
    assert eta.expected == NOW + 2 * HOUR
    assert NOW < eta.low < eta.expected < eta.high


def test_who_waits_for_better_gpus_starts_when_these_come_free() -> None:
    holder = running("first", {"b": 8}, H100, finish=NOW + 2 * HOUR, started=NOW - HOUR, steps_done=10)
    now = cluster([node("a"), node("b", H100, free=0)], holder, whole("next"))
    told = Pending("uid-next", PendingReason.WAITING_FOR_BETTER, "", awaited=Awaited(H100, 8, 1.0))
    assert expected_starts(now, [told])["uid-next"].expected == NOW + 2 * HOUR


def test_who_is_behind_others_waits_for_these_too() -> None:
    now = cluster([node("a", free=0)], held("first", {"a": 8}, 2), whole("next"), whole("last", created=NOW))
    found = starts(now)
    assert found["last"].expected > found["next"].expected + HOUR


def test_the_order_is_that_of_the_line() -> None:
    now = cluster([node("a", free=0)], held("first", {"a": 8}, 2), whole("old"), whole("urgent", priority=5))
    found = starts(now)
    assert found["urgent"].expected == NOW + 2 * HOUR < found["old"].expected


def test_where_further_urgent_jobs_may_come_the_interval_reaches_farther() -> None:
    nodes, first = [node("a", free=0)], held("first", {"a": 8}, 2)
    alone = starts(cluster(nodes, first, whole("next")))["next"]
    below = starts(cluster(nodes, replace(first, priority=9), whole("next")))["next"]
    assert (below.low, below.expected) == (alone.low, alone.expected)
    assert below.high > alone.high


def test_gpus_on_nodes_that_no_running_job_will_leave_are_not_waited_for() -> None:
    assert starts(cluster([node("a", free=0)], whole("next"))) == {}
    nodes = [node("a", free=4), node("b", free=4)]
    assert starts(cluster(nodes, held("other", {"b": 1}, 1), whole("next"))) == {}


def test_whole_nodes_are_waited_for_where_single_gpus_would_be_enough_in_number() -> None:
    nodes = [node("a", free=0), node("b", free=0)]
    halves = [held(f"{name}{half}", {name: 4}, hours) for name, half, hours in
              [("a", 1, 1), ("b", 1, 2), ("a", 2, 3), ("b", 2, 4)]]  # fmt: skip
    assert starts(cluster(nodes, *halves, whole("next")))["next"].expected == NOW + 3 * HOUR


def test_only_nodes_that_the_template_admits_count() -> None:
    nodes = [node("a", free=0), node("b", free=0)]
    jobs = held("soon", {"a": 8}, 1), held("late", {"b": 8}, 5), whole("next", eligible=("b",))
    assert starts(cluster(nodes, *jobs))["next"].expected == NOW + 5 * HOUR


def test_a_queue_that_has_spent_its_limit_waits_for_its_own_jobs() -> None:
    nodes = [node("a", free=0), node("b", free=0)]
    jobs = held("other", {"a": 8}, 1), held("own", {"b": 8}, 5, queue="q"), whole("next", queue="q")
    assert starts(cluster(nodes, *jobs, quotas=[Quota("q", "*", 8)]))["next"].expected == NOW + 5 * HOUR
    assert starts(cluster(nodes, *jobs))["next"].expected == NOW + HOUR


@pytest.mark.parametrize("reason", [PendingReason.NO_FEASIBLE_PLAN, PendingReason.WAITING_FOR_ADMISSION])
def test_what_no_finished_job_helps_has_no_time(reason: PendingReason) -> None:
    assert starts(cluster([node("a", free=0)], held("first", {"a": 8}, 2), whole("next")), reason) == {}


def test_the_first_in_line_is_not_delayed_by_those_behind_it() -> None:
    """Half a node is free after an hour; who takes it for days would keep the large job from starting after two."""
    nodes = [node("a", free=0)]
    jobs = held("one", {"a": 4}, 1), held("two", {"a": 4}, 2), whole("large"), job("small", gpus=(4, 4), steps=10**7,
                                                                                  created=NOW)  # fmt: skip
    kept, taken = starts(cluster(nodes, *jobs)), starts(cluster(nodes, *jobs), reserve=False)
    assert kept["large"].expected == NOW + 2 * HOUR < kept["small"].expected
    assert taken["small"].expected == NOW + HOUR < taken["large"].expected


def test_jobs_that_may_not_overtake_wait_for_all_before_them() -> None:
    nodes = [node("a", free=0)]
    jobs = held("one", {"a": 4}, 1), held("two", {"a": 4}, 2), whole("large"), job("small", gpus=(4, 4), created=NOW)
    found = starts(cluster(nodes, *jobs), PendingReason.BEHIND_OTHERS, reserve=False)
    assert found["large"].expected == NOW + 2 * HOUR < found["small"].expected


def test_a_gang_that_should_have_ended_takes_a_little_longer() -> None:
    eta = starts(cluster([node("a", free=0)], held("first", {"a": 8}, -1), whole("next")))["next"]
    assert NOW < eta.expected < NOW + HOUR


def test_jobs_that_bring_their_own_speeds_take_gpus_wherever_they_are() -> None:
    nodes = [node("a", free=3), node("b", free=0)]
    waiting = job("next", gpus=(8, 8), speeds=(Speed(A100, 8, 1, 1.0),))
    found = starts(cluster(nodes, held("one", {"a": 2}, 1), held("two", {"b": 6}, 2), waiting))
    assert found["next"].expected == NOW + 2 * HOUR


def test_a_forecast_names_the_nodes() -> None:
    nodes = [node("a", free=0), node("h", H100, free=0)]
    jobs = held("one", {"a": 8}, 1), whole("next", gpu_types=(A100,))
    now = cluster(nodes, *jobs)
    early, expected, late = forecasts(now, [Pending("uid-next", PendingReason.INSUFFICIENT_GPUS, "")])["uid-next"]
    assert expected.nodes == ("a",)
    assert early.time < expected.time < late.time


busy = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 8), st.floats(0.1, 50)), max_size=8)
wishes = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2), st.booleans()), min_size=1, max_size=6)


@given(busy, wishes)
@settings(max_examples=60, deadline=None)
def test_intervals_are_in_order_after_now_and_the_same_again(
    holds: list[tuple[int, int, float]], asks: list[tuple[int, int, bool]]
) -> None:
    free, jobs = [8] * 4, []
    for number, (at, gpus, hours) in enumerate(holds):
        if gpus <= free[at]:
            free[at] -= gpus
            jobs.append(held(f"r{number}", {f"n{at}": gpus}, hours, queue="q" if gpus % 2 else ""))
    for number, (nodes, priority, limited) in enumerate(asks):
        size = 8 * nodes
        jobs.append(job(f"w{number}", gpus=(size, size), priority=priority, queue="q" if limited else ""))
    now = cluster([node(f"n{at}", free=left) for at, left in enumerate(free)], *jobs, quotas=[Quota("q", A100, 16)])
    found = starts(now)
    assert found == starts(now)
    for eta in found.values():
        assert NOW <= eta.low <= eta.expected <= eta.high


# --- held against what happens -----------------------------------------------------------------------------------
def measured(policy: str, seeds: range) -> Punctuality:
    """Long LLM jobs, more than the cluster can do, with predictions that are off by a fifth, and no end of news."""
    site, told, unanswered = clusters.cluster(f"{H100}=64,{A100}=64"), list[Told](), 0
    for seed in seeds:
        drawn = generator.llm_jobs("llm-small", 100, site, 1.2, seed)
        longer = [replace(each, created=20 * each.created, training=replace(each.training,
                          steps=20 * each.training.steps)) for each in drawn]  # fmt: skip
        said, silent = witness(policy, longer, site, error_sigma=0.2, seed=seed)
        told += said
        unanswered += silent
    return punctuality(told, unanswered)


@pytest.mark.parametrize(("policy", "seeds"), [("best_fit", 6), ("fcfs", 2), ("rudder", 1)])
def test_four_of_five_jobs_start_within_their_interval(policy: str, seeds: int) -> None:
    # Under best_fit two thirds to nine tenths do, from seed to seed: jobs of one cluster are late together.
    found = measured(policy, range(100, 100 + seeds))
    assert found.told > 100
    assert 0.7 < found.covered < 0.97
    assert 0.75 < found.median_ratio < (1.25 if policy != "rudder" else 1.5)
    assert found.unseen < 0.05


def test_without_jobs_that_wait_there_is_nothing_to_measure() -> None:
    with pytest.raises(ValueError, match="nothing was foretold"):
        punctuality([])
