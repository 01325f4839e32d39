"""What `fixed`, `fcfs` and `best_fit` choose, and how they explain it."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
from tests.builders import A100, H100, NOW, T4, V100, job, node, running, snapshot

from trimtab_policy import policy
from trimtab_policy.heuristics.best_fit import BestFit, beside
from trimtab_policy.heuristics.fcfs import Fcfs
from trimtab_policy.heuristics.fixed import Fixed
from trimtab_policy.specs import Mode, Precision
from trimtab_policy.types import Decision, Job, Node, PendingReason, Placement, Quota


def the_placement(
    chooser: policy.Policy, nodes: Iterable[Node], waiting: Job, *others: Job, **changes: object
) -> Placement:
    decision = chooser.decide(snapshot(nodes, (waiting, *others), **changes))
    found = next((placed for placed in decision.placements if placed.job == waiting.uid), None)
    assert found, decision.pending
    return found


def reasons(decision: Decision) -> dict[str, PendingReason]:
    return {pending.job: pending.reason for pending in decision.pending}


# --- the registry ------------------------------------------------------------------------------------------
def test_policies_are_found_by_name() -> None:
    assert [policy.load(name).name for name in policy.names()] == policy.names()
    assert {"best_fit", "easy_backfill", "fcfs", "fgd", "fixed", "las", "random", "round_robin"} <= {*policy.names()}


def test_an_unknown_policy_is_answered_with_those_that_exist() -> None:
    with pytest.raises(
        policy.UnknownPolicy, match=r"unknown policy 'best'; did you mean best_fit\? registered are: best_fit, "
    ):
        policy.load("best")


# --- fixed ------------------------------------------------------------------------------------------
def test_fixed_takes_its_count_and_mode_whatever_is_free() -> None:
    placed = the_placement(Fixed(), [node(f"n{i}") for i in range(4)], job(gpus=(1, 32)))
    assert (placed.gpus, placed.plan.mode) == (4, Mode.DATA)


def test_fixed_takes_the_next_mode_where_the_job_does_not_allow_its_own() -> None:
    assert the_placement(Fixed(), [node("a")], job(modes=(Mode.MODEL,))).plan.mode is Mode.MODEL


def test_fixed_keeps_its_mode_even_where_another_one_is_faster() -> None:
    hybrid = the_placement(Fixed(8, Mode.HYBRID), [node("a")], job())
    assert (hybrid.gpus, hybrid.plan.mode) == (8, Mode.HYBRID)


def test_fixed_is_clamped_to_what_the_job_allows() -> None:
    assert the_placement(Fixed(), [node("a")], job(gpus=(1, 2))).gpus == 2
    assert the_placement(Fixed(), [node("a")], job(gpus=(8, 8))).gpus == 8


def test_fixed_takes_more_gpus_before_fewer_where_its_action_does_not_fit() -> None:
    large = job(model="gpt3-6.7b", gpus=(1, 32), precision=Precision.FP16)
    assert the_placement(Fixed(), [node(f"v{i}", V100) for i in range(4)], large).gpus == 16
    assert the_placement(Fixed(), [node("a", free=2)], job()).gpus == 2


# --- fcfs ------------------------------------------------------------------------------------------
def test_fcfs_takes_the_fastest_plan_that_fits_now() -> None:
    placed = the_placement(Fcfs(), [node("a"), node("h", H100)], job())
    assert (placed.gpu_type, placed.gpus) == (H100, 8)
    assert placed.reason.startswith(f"8×{H100}, dp=")
    assert placed.reason.endswith("the fastest that fits now")


def test_fcfs_lets_nobody_overtake_a_job_that_waits_for_gpus() -> None:
    first, second = job("first", gpus=(16, 16), created=NOW - 9), job("second", gpus=(1, 1), created=NOW - 1)
    held = running("held", {"b": 8})
    decision = Fcfs().decide(snapshot([node("a"), node("b", free=0)], (second, first, held)))
    assert not decision.placements
    assert reasons(decision) == {
        "uid-first": PendingReason.INSUFFICIENT_GPUS,
        "uid-second": PendingReason.BEHIND_OTHERS,
    }
    assert decision.pending[1].blockers == ("default/first",)


def test_fcfs_serves_by_priority_before_age() -> None:
    old, urgent = job("old", gpus=(8, 8), created=NOW - 9), job("urgent", gpus=(8, 8), created=NOW, priority=1)
    decision = Fcfs().decide(snapshot([node("a")], (old, urgent)))
    assert [placed.job for placed in decision.placements] == ["uid-urgent"]


@pytest.mark.parametrize(
    "impossible",
    [
        job("first", created=0.0, gpu_types=(H100,)),
        job("first", created=0.0, eligible=()),
        job("first", created=0.0, model="llama3-70b", gpus=(1, 1)),
        job("first", created=0.0, gpus=(64, 64)),
        job("first", created=0.0, queue="empty"),
    ],
    ids=["no such GPU", "no eligible node", "no plan", "cluster too small", "no quota"],
)
def test_a_job_that_no_freed_gpu_would_help_does_not_block_fcfs(impossible: Job) -> None:
    decision = Fcfs().decide(snapshot([node("a")], (impossible, job("second")), quotas=[Quota("empty", "*", 0)]))
    assert [placed.job for placed in decision.placements] == ["uid-second"]


# --- best fit ------------------------------------------------------------------------------------------
def test_best_fit_takes_more_gpus_only_while_they_pay() -> None:
    """GPT-2 with 8 sequences a step: beyond a few GPUs communication eats what more of them bring."""
    small = the_placement(BestFit(), [node(f"n{i}") for i in range(8)], job(gpus=(1, 64), global_batch_size=8))
    large = the_placement(BestFit(), [node(f"n{i}") for i in range(8)], job(gpus=(1, 64), global_batch_size=2048))
    assert small.gpus < large.gpus


def test_best_fit_gives_every_waiting_job_an_equal_share() -> None:
    jobs = [job(f"j{i}", gpus=(1, 32), global_batch_size=1024) for i in range(4)]
    decision = BestFit().decide(snapshot([node(f"n{i}") for i in range(4)], jobs))
    assert [placed.gpus for placed in decision.placements] == [8, 8, 8, 8]


def test_best_fit_lets_a_job_have_all_when_nobody_else_waits() -> None:
    placed = the_placement(BestFit(), [node(f"n{i}") for i in range(4)], job(gpus=(1, 32), global_batch_size=4096))
    assert placed.gpus == 32


def test_best_fit_never_starves_the_only_plan_that_fits_even_beyond_the_share() -> None:
    jobs = [job("large", gpus=(16, 16), created=NOW - 99), *(job(f"j{i}") for i in range(9))]
    decision = BestFit().decide(snapshot([node("a"), node("b")], jobs))
    assert [placed.job for placed in decision.placements] == ["uid-large"]
    assert set(reasons(decision).values()) == {PendingReason.INSUFFICIENT_GPUS}


def test_best_fit_lets_a_small_job_pass_one_that_does_not_fit() -> None:
    large, small = job("large", gpus=(16, 16), created=NOW - 9), job("small", gpus=(1, 8))
    decision = BestFit().decide(snapshot([node("a"), node("b", free=0)], (large, small, running("x", {"b": 8}))))
    assert [placed.job for placed in decision.placements] == ["uid-small"]


def test_best_fit_is_deterministic_and_does_not_care_for_the_order_of_jobs() -> None:
    nodes = [node(f"n{i}", kind) for i, kind in enumerate([A100, H100, V100, T4] * 3)]
    jobs = [job(f"j{i}", gpus=(1, 16), precision=Precision.FP16, created=NOW - i) for i in range(6)]
    first = BestFit().decide(snapshot(nodes, jobs))
    assert first == BestFit().decide(snapshot(nodes, jobs[::-1]))
    assert first == BestFit().decide(snapshot(nodes, jobs))


def test_best_fit_explains_itself_in_the_words_of_the_user() -> None:
    rack = [node(f"a{i}", topology=("z", "b", "r2")) for i in range(2)]
    nodes = [*rack, node("t", T4), node("h1", H100, free=0), node("h2", H100, free=0)]
    held = running("other", {"h1": 8, "h2": 8}, H100, finish=NOW + 11 * 3600 + 28 * 60)
    waiting = job(model="gpt2-xl", gpus=(16, 16), precision=Precision.FP16, global_batch_size=512)
    placed = the_placement(BestFit(), nodes, waiting, held)
    said, _, full = placed.reason.partition("; ")
    assert said.startswith(f"16×{A100} on 2 nodes of r2, dp=16 tp=1 pp=1 zero=1: ")
    assert "k tokens/s" in said
    assert full == f"{H100} full until ~14:32 UTC"


@pytest.mark.parametrize(("free", "finish", "said"), [(4, NOW + 3600, "without room for 8"), (0, NOW - 60, "full")])
def test_best_fit_names_no_time_that_is_past_and_none_for_gpus_that_are_merely_scattered(
    free: int, finish: float, said: str
) -> None:
    nodes = [node("a"), node("h1", H100, free=free), node("h2", H100, free=free)]
    held = running("other", {"h1": 8 - free, "h2": 8 - free}, H100, finish=finish)
    placed = the_placement(BestFit(), nodes, job(gpus=(8, 8), max_nodes=1), held)
    assert {lost.gpu_type: lost.why_not for lost in placed.alternatives}[H100] == f"{H100} {said}"


def test_best_fit_names_how_much_faster_it_is_than_the_next_type() -> None:
    placed = the_placement(BestFit(), [node("a"), node("t", T4)], job(gpus=(8, 8), precision=Precision.FP16))
    assert placed.reason.startswith(f"8×{A100} on a, dp=8 tp=1 pp=1 zero=1: ")
    assert re.search(r"k tokens/s, [\d.]+× the next best type$", placed.reason)


@pytest.mark.parametrize(
    ("ratio", "said"),
    [
        (1.0, ", about as fast as the next best type"),
        (1.04, ", about as fast as the next best type"),
        (1.06, ", 1.1× the next best type"),
        (18.3, ", 18.3× the next best type"),
    ],
)
def test_a_ratio_that_is_none_is_not_told_as_one(ratio: float, said: str) -> None:
    assert beside(ratio) == said


def test_best_fit_says_when_a_faster_type_does_not_pay() -> None:
    placed = the_placement(BestFit(), [node("a"), node("h", H100)], job(gpus=(8, 8)))
    assert placed.gpu_type == A100
    assert "next best" not in placed.reason
    [lost] = placed.alternatives
    assert lost.gpu_type == H100
    assert re.fullmatch(r"1\.\d\d× the speed for 3\.2× the GPU cost, which does not pay", lost.why_not)


def test_best_fit_says_when_a_faster_type_is_more_than_its_share() -> None:
    nodes = [node("a"), node("b"), node("h", H100)]
    placed = the_placement(BestFit(), nodes, job(gpus=(1, 16), model="llama3-8b"), job("other"))
    why_not = {lost.gpu_type: lost.why_not for lost in placed.alternatives}
    assert why_not[H100].endswith("× the speed, but more than an equal share of the free GPUs")


def test_best_fit_says_of_each_other_type_why_it_lost() -> None:
    nodes = [node("a"), node("t", T4), node("h", H100, free=2), node("v", V100)]
    waiting = job(gpus=(8, 8), precision=Precision.FP16, queue="q", model="gpt2-xl")
    placed = the_placement(BestFit(), nodes, waiting, quotas=[Quota("q", V100, 0)])
    why_not = {lost.gpu_type: lost.why_not for lost in placed.alternatives}
    assert placed.gpu_type not in why_not
    assert why_not[H100] == f"{H100} without room for 8"
    assert why_not[V100] == f"{V100} beyond the quota of queue q"
    assert all(lost.gpus == 8 for lost in placed.alternatives)
    rates = [lost.prediction.tokens_per_second for lost in placed.alternatives]
    assert rates == sorted(rates, reverse=True)
