"""Why a job waits: for every reason one case, whose message names the obstacle and whose hints would remove it."""

from __future__ import annotations

from collections.abc import Iterable

from tests.builders import A100, H100, NOW, T4, V100, job, node, running, snapshot

from trimtab_policy.capacity import Capacity
from trimtab_policy.specs import Precision
from trimtab_policy.types import Bounds, Job, Node, Pending, PendingReason, Quota
from trimtab_policy.why import why_pending


def why(nodes: Iterable[Node], waiting: Job, *others: Job, **changes: object) -> Pending:
    now = snapshot(nodes, (waiting, *others), **changes)
    return why_pending(now, Capacity(now), waiting)


def test_a_gpu_type_that_the_cluster_lacks() -> None:
    answer = why([node("a")], job(gpu_types=(H100,)), unavailable={"h": "cordoned"})
    assert answer.reason is PendingReason.NO_SUCH_GPU
    assert answer.message == f"spec.resources.gpuTypes allows only {H100}; the cluster has {A100}"
    assert answer.blockers == ("node h: cordoned",)
    assert answer.alternatives == ("allow a GPU type that the cluster has, or add nodes of an allowed type",)


def test_a_gpu_type_that_nobody_knows_is_called_so() -> None:
    assert "H1000 is no GPU type that Trimtab knows" in why([node("a")], job(gpu_types=("H1000",))).message


def test_a_cluster_without_gpus() -> None:
    answer = why([], job(), unavailable={"a": "NotReady"})
    assert answer.reason is PendingReason.NO_SUCH_GPU
    assert answer.message == "the cluster has no GPU node that takes pods"
    assert answer.blockers == ("node a: NotReady",)


def test_no_node_that_the_template_admits() -> None:
    answer = why([node("a")], job(eligible=()))
    assert answer.reason is PendingReason.NO_ELIGIBLE_NODE
    assert "nodeSelector" in answer.message
    assert "toleration" in answer.alternatives[0]


def test_a_model_that_is_too_large_says_by_how_much_and_how_many_gpus_would_do() -> None:
    answer = why([node(f"n{i}") for i in range(8)], job(model="llama3-8b", gpus=(1, 1)))
    assert answer.reason is PendingReason.NO_FEASIBLE_PLAN
    assert "llama3-8b needs at least" in answer.message
    assert answer.alternatives[0].startswith("raising spec.resources.gpus.max makes it possible: ")
    assert answer.alternatives[0].endswith(f"×{A100} would do")


def test_a_number_format_that_the_gpus_lack_names_one_that_they_have() -> None:
    answer = why([node("v", V100)], job(precision=Precision.BF16))
    assert answer.reason is PendingReason.NO_FEASIBLE_PLAN
    assert "does not support BF16" in answer.message
    assert answer.alternatives[0].startswith("training in FP16 (spec.training.precision) makes it possible")


def test_degrees_that_divide_nothing_name_the_limits_that_are_in_the_way() -> None:
    answer = why([node("a")], job(tensor=Bounds(7, 7)))
    assert answer.reason is PendingReason.NO_FEASIBLE_PLAN
    assert answer.alternatives[0].startswith("leaving spec.parallelism free makes it possible")


def test_a_limit_of_nodes_that_excludes_every_gang_is_named() -> None:
    answer = why([node("a"), node("b")], job(gpus=(16, 16), max_nodes=1))
    assert answer.reason is PendingReason.NO_FEASIBLE_PLAN
    assert answer.alternatives[0].startswith("raising spec.resources.maxNodes makes it possible")


def test_other_gpu_types_are_named_where_the_allowed_ones_are_too_small() -> None:
    waiting = job(model="llama3-8b", gpus=(8, 8), gpu_types=(T4,), precision=Precision.FP16)
    answer = why([node("t", T4), node("a")], waiting)
    assert answer.reason is PendingReason.NO_FEASIBLE_PLAN
    assert answer.alternatives == (f"allowing other GPU types makes it possible: 8×{A100} would do",)


def test_a_cluster_that_is_too_small_says_what_it_has() -> None:
    answer = why([node("a"), node("b")], job(gpus=(32, 32)))
    assert answer.reason is PendingReason.CLUSTER_TOO_SMALL
    assert (
        f"the smallest plan is 32×{A100} (1 on each of 32 nodes)" in answer.message
        or "(8 on each of 4" in answer.message
    )
    assert f"the job may use 2 nodes with 16 {A100} in all" in answer.message
    assert answer.alternatives == (f"add {A100} nodes, or allow other GPU types or fewer GPUs",)


def test_nodes_that_the_template_excludes_do_not_count() -> None:
    answer = why([node("a"), node("b")], job(gpus=(16, 16), eligible=("b",)))
    assert answer.reason is PendingReason.CLUSTER_TOO_SMALL
    assert f"the job may use 1 node with 8 {A100} in all" in answer.message


def test_a_quota_says_who_uses_it() -> None:
    held = running("other", {"a": 8}, queue="q", namespace="team")
    answer = why([node("a", free=0), node("b")], job(gpus=(8, 8), queue="q"), held, quotas=[Quota("q", "*", 12)])
    assert answer.reason is PendingReason.QUOTA_EXCEEDED
    assert answer.message == f"queue q allows 12×any type; the job needs at least 8×{A100} and 4 are left"
    assert answer.blockers == (f"team/other holds 8×{A100}",)


def test_a_quota_on_one_type_is_no_obstacle_while_another_type_is_only_busy() -> None:
    held = running("other", {"h": 8}, H100, finish=NOW + 600)
    nodes = [node("a"), node("h", H100, free=0)]
    answer = why(nodes, job(gpus=(8, 8), queue="q"), held, quotas=[Quota("q", A100, 0)])
    assert answer.reason is PendingReason.INSUFFICIENT_GPUS
    assert answer.message == f"needs at least 8×{H100}, free: 0×{H100}; enough {H100} are expected ~03:14 UTC"
    assert answer.blockers == (f"default/other holds 8×{H100} until ~03:14 UTC",)


def test_busy_gpus_name_their_holders_and_what_would_start_now() -> None:
    first = running("first", {"a": 8}, finish=NOW + 300)
    second = running("second", {"b": 4}, finish=NOW + 7200)
    nodes = [node("a", free=0), node("b", free=4), node("h", H100)]
    answer = why(nodes, job(gpus=(8, 8), gpu_types=(A100,)), second, first)
    assert answer.reason is PendingReason.INSUFFICIENT_GPUS
    assert answer.message == f"needs at least 8×{A100}, free: 4×{A100}; enough {A100} are expected ~03:09 UTC"
    assert [blocker.split(" ")[0] for blocker in answer.blockers] == ["default/first", "default/second"]
    assert answer.alternatives[0].startswith(f"with any GPU type allowed (8×{H100}) it would start now at ")
    assert answer.alternatives[1].startswith(f"with fewer GPUs (4×{A100}) it would start now at 0.")


def test_gpus_that_are_free_but_scattered_are_called_fragmented() -> None:
    answer = why([node("a", free=4), node("b", free=4)], job(gpus=(8, 8), max_nodes=1))
    assert answer.reason is PendingReason.FRAGMENTED
    assert f"8 {A100} are free, but not 8 on each of 1 node together" in answer.message
    assert "the emptiest node has 4" in answer.message


def test_missing_cpu_is_called_fragmented_too() -> None:
    answer = why([node("a", free_cpu_milli=1000)], job(gpus=(8, 8), cpu_milli_per_gpu=1000))
    assert answer.reason is PendingReason.FRAGMENTED
    assert "CPU and memory" in answer.message


def test_free_gpus_on_nodes_that_the_template_excludes_are_not_called_free() -> None:
    held = running("other", {"a": 8})
    answer = why([node("a", free=0), node("b")], job(gpus=(8, 8), eligible=("a",)), held)
    assert answer.reason is PendingReason.INSUFFICIENT_GPUS
    assert f"free: 0×{A100}" in answer.message


def test_a_gang_that_could_never_be_is_not_the_one_that_is_waited_for() -> None:
    """One T4 node exists, so that two-node T4 gangs are out of reach; the A100 gang is what can be had."""
    held = running("other", {"a": 8, "b": 8})
    nodes = [node("t", T4), node("a", free=0), node("b", free=0)]
    answer = why(nodes, job(gpus=(16, 16), precision=Precision.FP16), held)
    assert answer.reason is PendingReason.INSUFFICIENT_GPUS
    assert answer.message == f"needs at least 16×{A100}, free: 0×{A100}"


def test_no_more_blockers_are_named_than_anybody_reads() -> None:
    holders = [running(f"j{i}", {"a": 1}) for i in range(8)]
    assert len(why([node("a", free=0)], job(), *holders).blockers) == 3
