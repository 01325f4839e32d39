"""The shield: for every hard rule a placement that breaks just this one, whatever policy it came from."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.builders import A100, H100, T4, V100, job, node, placement, running, snapshot

from trimtab_policy.placement.limits import user_limits
from trimtab_policy.scheduling.shield import BrokenRule, ShieldResult, check
from trimtab_policy.specs import Mode, ParallelPlan, Precision, Recompute
from trimtab_policy.types import Bounds, Decision, Job, NodeShare, Placement, Quota, Stop

NODES = (node("a"), node("b"), node("h", H100), node("v", V100))
GOOD = placement(nodes={"a": 4, "b": 4})


def judge(placed: Placement, waiting: Job | None = None, *others: Job, **changes: Any) -> ShieldResult:
    now = snapshot(changes.pop("nodes", NODES), (waiting or job(), *others), **changes)
    return check(now, Decision("any", (placed,)))


def rule_broken(placed: Placement, waiting: Job | None = None, *others: Job, **changes: Any) -> str:
    verdict = judge(placed, waiting, *others, **changes)
    assert verdict.accepted == ()
    [refusal] = verdict.refused
    assert refusal.job == placed.job
    assert refusal.message
    return refusal.rule


def on(*nodes: str, gpus: int = 4, **plan: Any) -> Placement:
    degrees = {"data": gpus * len(nodes), "zero_stage": 1} | plan
    return placement(nodes=dict.fromkeys(nodes, gpus), plan=ParallelPlan(**degrees))


def test_a_good_placement_passes() -> None:
    assert judge(GOOD) == ShieldResult((GOOD,), ())


def test_a_job_that_nobody_knows() -> None:
    assert rule_broken(replace(GOOD, job="uid-unknown")) == "unknown_job"


def test_a_running_job_is_neither_moved_nor_resized() -> None:
    assert rule_broken(GOOD, running("job", {"a": 4})) == "not_preemptible"


@pytest.mark.parametrize(
    ("uid", "rule"), [("uid-held", "not_preemptible"), ("uid-job", "not_running"), ("uid-unknown", "unknown_job")]
)
def test_no_job_is_stopped(uid: str, rule: str) -> None:
    now = snapshot(NODES, [job(), running("held", {"h": 8}, H100)])
    verdict = check(now, Decision("any", (GOOD,), stops=(Stop(uid, "others come first"),)))
    assert [(refusal.job, refusal.rule) for refusal in verdict.refused] == [(uid, rule)]
    assert verdict.accepted == (GOOD,)


def test_what_a_refused_stop_would_have_freed_is_not_given_away() -> None:
    now = snapshot([node("a", free=0), node("b")], [job(), running("held", {"a": 8})])
    verdict = check(now, Decision("any", (GOOD,), stops=(Stop("uid-held", "others come first"),)))
    assert [refusal.rule for refusal in verdict.refused] == ["not_preemptible", "oversubscribed_gpus"]
    assert verdict.accepted == ()


@pytest.mark.parametrize(
    ("shares", "rule"),
    [
        ((), "empty_share"),
        ((NodeShare("a", 0),), "empty_share"),
        ((NodeShare("a", -8), NodeShare("b", 16)), "empty_share"),
        ((NodeShare("a", 6), NodeShare("b", 2)), "unequal_gpus"),
        ((NodeShare("a", 4), NodeShare("a", 4)), "repeated_node"),
        ((NodeShare("a", 2), NodeShare("b", 2)), "degrees_mismatch"),
    ],
)
def test_the_shape_of_a_gang(shares: tuple[NodeShare, ...], rule: str) -> None:
    assert rule_broken(replace(GOOD, shares=shares)) == rule


def test_a_node_that_takes_no_pods_says_why() -> None:
    verdict = judge(on("x", gpus=8), unavailable={"x": "cordoned"})
    assert verdict.refused == (BrokenRule("uid-job", "node_unavailable", "node x: cordoned"),)
    assert rule_broken(on("nowhere", gpus=8)) == "node_unavailable"


def test_a_node_with_other_gpus_than_the_placement_says() -> None:
    assert rule_broken(on("a", "h")) == "wrong_gpu_type"


def test_a_node_that_the_template_excludes() -> None:
    assert rule_broken(GOOD, job(eligible=("a",))) == "node_not_eligible"


@pytest.mark.parametrize(
    ("rule", "lacking", "need"),
    [
        ("oversubscribed_gpus", {"free": 3}, {}),
        ("oversubscribed_gpus", {"free": -1}, {}),
        ("oversubscribed_cpu", {"free_cpu_milli": 3999}, {"cpu_milli_per_gpu": 1000}),
        ("oversubscribed_cpu", {"free_cpu_milli": 499}, {"cpu_milli_per_pod": 500}),
        ("oversubscribed_memory", {"free_memory": 4095}, {"memory_per_gpu": 1024}),
        ("oversubscribed_pods", {"free_pods": 0}, {}),
    ],
)
def test_what_a_node_has_left(rule: str, lacking: dict[str, int], need: dict[str, int]) -> None:
    assert rule_broken(GOOD, job(**need), nodes=(node("a"), node("b", **lacking))) == rule


@pytest.mark.parametrize(
    ("rule", "need"),
    [
        ("gpu_type_not_allowed", {"gpu_types": (H100,)}),
        ("gpu_count", {"gpus": (1, 7)}),
        ("gpu_count", {"gpus": (9, 16)}),
        ("too_many_nodes", {"max_nodes": 1}),
        ("gpus_per_node", {"gpus_per_node": Bounds(8, 8)}),
        ("mode_not_allowed", {"modes": (Mode.MODEL, Mode.HYBRID)}),
        ("degree_not_allowed", {"tensor": Bounds(2, 8)}),
        ("degree_not_allowed", {"pipeline": Bounds(2, 8)}),
        ("degree_not_allowed", {"context": Bounds(2, 8)}),
        ("degree_not_allowed", {"expert": Bounds(2, 8)}),
        ("degree_not_allowed", {"zero_stage": 3}),
        ("degree_not_allowed", {"recompute": Recompute.FULL}),
    ],
)
def test_what_the_spec_allows(rule: str, need: dict[str, Any]) -> None:
    assert rule_broken(GOOD, job(**need)) == rule


@pytest.mark.parametrize(
    ("plan", "need"),
    [
        ({"data": 4, "pipeline": 2, "virtual": 3}, {"virtual": Bounds(1, 2)}),
        ({"data": 8, "zero_stage": 3, "shard": 4}, {"hybrid_sharding": False}),
    ],
)
def test_what_the_launcher_can_do(plan: dict[str, int], need: dict[str, Any]) -> None:
    assert judge(on("a", "b", **plan), job()).accepted
    assert rule_broken(on("a", "b", **plan), job(**need)) == "launcher_cannot"


def test_an_edited_spec_is_held_against_a_standing_plan_by_the_same_rules() -> None:
    assert [rule for rule, _ in user_limits(job(gpus=(1, 4), max_nodes=1).requirements, GOOD)] == [
        "gpu_count",
        "too_many_nodes",
    ]


@pytest.mark.parametrize("gpu_type", [A100, "*"])
def test_the_quota_of_the_queue_counts_what_it_holds(gpu_type: str) -> None:
    other = running("other", {"a": 2}, queue="q")
    enough, short = [Quota("q", gpu_type, 10)], [Quota("q", gpu_type, 9)]
    assert judge(GOOD, job(queue="q"), other, quotas=enough).accepted
    assert rule_broken(GOOD, job(queue="q"), other, quotas=short) == "quota"
    assert judge(GOOD, job(queue="another"), other, quotas=short).accepted


def test_tensor_parallelism_across_nodes() -> None:
    assert rule_broken(on("a", "b", data=1, tensor=8, zero_stage=0), job(model="llama3-8b")) == "tensor_across_nodes"


@pytest.mark.parametrize(
    ("plan", "of"),
    [
        ({"data": 1, "tensor": 8}, {"model": "gpt2"}),  # 12 heads
        ({"data": 1, "pipeline": 8}, {"model": "gpt2"}),  # 12 layers
        ({"data": 8}, {"global_batch_size": 12}),
        ({"data": 8, "micro_batch": 16}, {}),
        ({"data": 8, "micro_batch": 0}, {}),
        ({"data": 8, "expert": 3}, {"model": "mixtral-8x7b"}),
        ({"data": 8, "zero_stage": 4}, {}),
        ({"data": 4, "pipeline": 2, "zero_stage": 3}, {}),
        ({"data": 4, "pipeline": 2, "virtual": 4}, {}),  # 12 layers
        ({"data": 8, "virtual": 2}, {}),
        ({"data": 8, "zero_stage": 3, "shard": 3}, {}),
        ({"data": 8, "zero_stage": 1, "shard": 4}, {}),
    ],
)
def test_degrees_that_no_launcher_would_start(plan: dict[str, int], of: dict[str, Any]) -> None:
    assert rule_broken(on("a", gpus=8, **{"zero_stage": 0} | plan), job(**of)) == "indivisible"


def test_a_number_format_that_the_gpu_lacks() -> None:
    assert rule_broken(replace(on("v", gpus=8), gpu_type=V100), job(precision=Precision.BF16)) == "precision"


def test_a_plan_that_does_not_fit_in_memory() -> None:
    too_large = placement(nodes={"t": 8}, gpu_type=T4, plan=ParallelPlan(data=8, zero_stage=1))
    waiting = job(model="llama3-8b", precision=Precision.FP16)
    assert rule_broken(too_large, waiting, nodes=(node("t", T4),)) == "memory"


@pytest.mark.parametrize("figure", ["step_seconds", "tokens_per_second", "run_seconds", "memory_bytes"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, 0, 1e19])
def test_predictions_that_are_no_figures(figure: str, value: float) -> None:
    assert rule_broken(replace(GOOD, prediction=replace(GOOD.prediction, **{figure: value}))) == "not_a_number"


def test_a_decision_that_oversubscribes_as_a_whole_is_cut_where_it_first_does() -> None:
    jobs = [job(f"j{i}") for i in range(4)]
    placed = [replace(on("a", gpus=gpus), job=f"uid-j{i}") for i, gpus in enumerate((4, 2, 4, 2))]
    verdict = check(snapshot((node("a"),), jobs), Decision("any", tuple(placed)))
    assert verdict.accepted == (placed[0], placed[1], placed[3])
    assert [(refusal.job, refusal.rule) for refusal in verdict.refused] == [("uid-j2", "oversubscribed_gpus")]


def test_a_decision_that_exceeds_a_quota_as_a_whole_is_cut_too() -> None:
    jobs = [job(f"j{i}", queue="q") for i in range(3)]
    placed = [replace(on("a", gpus=2), job=each.uid) for each in jobs]
    verdict = check(snapshot((node("a"),), jobs, quotas=[Quota("q", "*", 5)]), Decision("any", tuple(placed)))
    assert [refusal.job for refusal in verdict.refused] == ["uid-j2"]


def test_two_placements_for_one_job_count_once() -> None:
    second = on("h", gpus=8)
    verdict = check(snapshot(NODES, [job()]), Decision("any", (GOOD, replace(second, gpu_type=H100))))
    assert verdict.accepted == (GOOD,)
    assert [refusal.rule for refusal in verdict.refused] == ["already_placed"]
