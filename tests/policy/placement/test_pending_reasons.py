"""Why a job waits: for every reason one case, whose message names the obstacle and whose hints would remove it."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace
from tests.builders import A100, H100, NOW, T4, V100, job, node, running, snapshot

from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.placement.hints import RESHARDING
from trimtab_policy.placement.limits import narrowed
from trimtab_policy.placement.pending_reasons import why_pending
from trimtab_policy.placement.wording import add, clock, waits, worded
from trimtab_policy.specs import ParallelPlan, Precision
from trimtab_policy.types import Bounds, Job, Node, NodeShare, Pending, PendingReason, Quota, Wording


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
    told = why([node("a")], job(gpu_types=("H1000", "H100-SXM5-80GBB"))).message
    assert "H1000 is no GPU type that Trimtab knows" in told
    assert "H100-SXM5-80GBB is no GPU type that Trimtab knows; did you mean H100-SXM5-80GB" in told


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


def test_more_gpus_than_the_cluster_has_are_not_offered_as_a_way_out() -> None:
    answer = why([node("a")], job(model="llama3.1-405b", gpus=(1, 8)))
    assert answer.reason is PendingReason.NO_FEASIBLE_PLAN
    [told] = answer.alternatives
    assert told == "use a smaller model or larger GPUs" or "the job may use 8 of this cluster" in told
    nodes = [node("a"), *(node(f"t{i}", T4) for i in range(60))]
    [told] = why(nodes, job(model="llama3-70b", gpus=(1, 8), gpu_types=(A100,))).alternatives
    assert told.startswith("more GPUs, or a smaller model: ")
    assert told.endswith("would do, and the job may use 8 of this cluster")


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
    assert answer.alternatives[1].startswith(f"with other GPU types allowed (8×{H100}) it would start now at ")
    assert answer.alternatives[0].startswith(f"with 4 instead of 8 GPUs (4×{A100}) it would start now at 0.")


def test_gpus_that_are_free_but_scattered_are_called_fragmented() -> None:
    answer = why([node("a", free=4), node("b", free=4)], job(gpus=(8, 8), max_nodes=1))
    assert answer.reason is PendingReason.FRAGMENTED
    assert f"8 {A100} are free, but not 8 on each of 1 node together" in answer.message
    assert "the emptiest node has 4" in answer.message


def test_missing_cpu_is_called_fragmented_too() -> None:
    answer = why([node("a", free_cpu_milli=1000)], job(gpus=(8, 8), cpu_milli_per_gpu=1000))
    assert answer.reason is PendingReason.FRAGMENTED
    assert "CPU and memory" in answer.message


def test_pods_that_no_node_could_ever_hold_are_told_what_they_ask_for_and_what_the_largest_node_has() -> None:
    nodes = [node("small", cpu_milli=64_000, memory=1 << 40), node("large", cpu_milli=128_000, memory=1 << 40)]
    greedy, held = job(gpus=(8, 8), cpu_milli_per_pod=4_000_000), running("other", {"small": 8})
    answer = why(nodes, greedy, held)
    assert answer.reason is PendingReason.CLUSTER_TOO_SMALL
    assert answer.message.startswith(f"no node can hold a pod of the smallest plan, 8×{A100}: its pods of ")
    assert answer.message.endswith(f"ask for requests.cpu 4000, and the largest {A100} node, large, has 128")
    assert answer.blockers == ()
    assert answer.alternatives == (
        "ask for less CPU or memory in spec.template or spec.resources, or add larger nodes",
    )
    memory = why(nodes, job(gpus=(8, 8), memory_per_pod=80 << 40)).message
    assert memory.endswith(f"requests.memory 81920Gi, and the largest {A100} node, large, has 1024Gi")


def test_a_gang_for_which_too_few_nodes_are_large_enough_is_told_how_many_are() -> None:
    nodes = [node("small", cpu_milli=64_000), node("large", cpu_milli=128_000)]
    answer = why(nodes, job(gpus=(16, 16), cpu_milli_per_pod=100_000))
    assert answer.reason is PendingReason.CLUSTER_TOO_SMALL
    assert f"1 of the 2 nodes that it takes has that; the largest {A100} node, large, has 128" in answer.message
    apart = [node("cpu", cpu_milli=128_000, memory=1 << 30), node("memory", cpu_milli=1_000, memory=1 << 40)]
    answer = why(apart, job(gpus=(8, 8), max_nodes=1, cpu_milli_per_pod=100_000, memory_per_pod=64 << 30))
    assert answer.message.endswith(f"requests.cpu 100 and requests.memory 64Gi, and too few {A100} nodes have both")


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


def test_gpus_that_no_job_holds_and_nobody_may_use_are_named() -> None:
    nodes = [node("a", free=2, foreign_gpus=6), node("b", free=0)]
    answer = why(nodes, job(gpus=(8, 8)), running("first", {"b": 8}, finish=NOW + 60), unavailable={"c": "unhealthy"})
    assert answer.reason is PendingReason.INSUFFICIENT_GPUS
    assert [blocker.split(" until ")[0] for blocker in answer.blockers] == [
        f"default/first holds 8×{A100}",
        "node a: 6 GPUs are busy with processes that no pod asked for",
        "node c: unhealthy",
    ]


# --- the smallest changes --------------------------------------------------------------------------------------------
def test_spreading_over_more_nodes_comes_before_giving_gpus_up() -> None:
    answer = why([node("a", free=4), node("b", free=4)], job(gpus=(8, 8), max_nodes=1))
    assert answer.alternatives[0].startswith("spread over 2 nodes instead of at most 1 it would start now at ")
    assert answer.alternatives[1].startswith(f"with 4 instead of 8 GPUs (4×{A100}) it would start now at ")


def test_degrees_that_only_fit_a_whole_node_may_be_left_free() -> None:
    waiting = job(gpus=(8, 8), model="llama3-8b", tensor=Bounds(8, 8))
    hints = why([node("a", free=4), node("b", free=4)], waiting).alternatives
    assert hints[0].startswith(f"with spec.parallelism left free (8×{A100}) it would start now at ")
    begun = replace(waiting, steps_done=100)
    assert not any(
        "spec.parallelism" in hint for hint in why([node("a", free=4), node("b", free=4)], begun).alternatives
    )


def test_fewer_gpus_of_another_type_are_named_only_where_one_change_is_not_enough() -> None:
    nodes = [node("a", free=0), node("h", H100, free=2)]
    both = why(nodes, job(gpus=(8, 8), gpu_types=(A100,))).alternatives
    assert [hint.split(" (")[0] for hint in both] == ["with 2 GPUs of another type"]
    one = why(nodes, job(gpus=(8, 8))).alternatives
    assert [hint.split(" (")[0] for hint in one] == ["with 2 instead of 8 GPUs"]


def test_a_job_whose_checkpoint_fixes_its_degrees_is_not_told_to_lose_its_work() -> None:
    need = narrowed(job(gpus=(1, 8)).requirements, ParallelPlan(data=8, zero_stage=1))
    fresh = replace(job(), requirements=need)
    for ran in ({"steps_done": 100}, {"restarts": 1}):
        told = why([node("a", free=4)], replace(fresh, **ran)).alternatives
        assert not any("it would start now" in hint for hint in told)
        assert told == (RESHARDING,)
    [hint] = why([node("a", free=4)], fresh).alternatives
    assert hint.startswith("with 4 instead of 8 GPUs")


def test_a_priority_that_would_make_room_is_named_where_jobs_may_be_stopped() -> None:
    held = running("other", {"a": 8}, priority=3, started=NOW - 3600)
    [hint] = why([node("a", free=0)], job(gpus=(8, 8)), held).alternatives
    assert hint == (
        f"with a priority above 3 instead of 0 it could take the place of jobs that may be stopped, which hold 8×{A100}"
    )
    assert why([node("a", free=0)], job(gpus=(8, 8), priority=4), held).alternatives == ()
    assert why([node("a", free=0)], job(gpus=(8, 8)), replace(held, movable_from=NOW + 1)).alternatives == ()


def test_a_spent_limit_says_by_how_much_to_raise_it_and_which_queue_has_room() -> None:
    held = running("other", {"a": 8}, queue="q")
    quotas = [Quota("q", "*", 12), Quota("r", "*", 8), Quota("s", "*", 4)]
    answer = why([node("a", free=0), node("b")], job(gpus=(8, 8), queue="q"), held, quotas=quotas)
    assert answer.alternatives == (
        "with 4 more GPUs allowed to queue q it would start now",
        f"in queue r, which has 8×{A100} left, it would start now",
        "wait for a job of queue q to finish",
    )
    full = why([node("a", free=0)], job(gpus=(8, 8), queue="q"), held, quotas=quotas)
    assert full.alternatives[0].endswith("it would only wait for free GPUs")


# --- the same words for the same thing -------------------------------------------------------------------------------
def test_jobs_that_ask_for_the_same_share_the_answer_until_something_is_taken() -> None:
    first, second = job("first", gpus=(8, 8), max_nodes=1), job("second", gpus=(8, 8), max_nodes=1)
    now = snapshot([node("a", free=6), node("b", free=4)], [first, second])
    capacity = Capacity(now)
    answers = [why_pending(now, capacity, each) for each in (first, second)]
    assert [answer.job for answer in answers] == ["uid-first", "uid-second"]
    assert answers[0].blockers is answers[1].blockers
    capacity.take(first, A100, (NodeShare("b", 4),))
    assert why_pending(now, capacity, first).message != answers[0].message


def test_far_times_are_rounder_and_have_a_date() -> None:
    assert clock(NOW + 90, NOW) == "~03:05 UTC"
    assert clock(NOW + 2 * 3600 + 100, NOW) == "~05:05 UTC"
    assert clock(NOW + 10 * 3600, NOW) == "~13:00 UTC"
    assert clock(NOW + 3 * 86_400, NOW) == "~03:00 UTC on 05 Jan"


def test_of_many_types_only_those_with_free_gpus_are_listed() -> None:
    nodes = [node("a", free=1), *(node(kind, kind, free=0) for kind in (H100, "H200-SXM5-141GB", "L40S"))]
    answer = why(nodes, job(gpus=(8, 8)))
    assert f"free: 1×{A100}, none of the 3 other types" in answer.message
    nodes = [node(kind, kind, free=0) for kind in (A100, H100, "H200-SXM5-141GB", "L40S")]
    assert "free: none of the 4 types that it could use" in why(nodes, job(gpus=(8, 8))).message


def test_what_a_text_says_besides_its_times_is_kept_beside_it() -> None:
    holds, plain = worded(NOW, "a holds 8 until ", NOW + 90), worded(NOW, "b holds 4")
    told = waits("uid", PendingReason.INSUFFICIENT_GPUS, worded(NOW, "enough ", NOW + 90), (holds, plain, "c"), ("d",))
    assert (told.message, told.blockers) == ("enough ~03:05 UTC", ("a holds 8 until ~03:05 UTC", "b holds 4", "c"))
    assert told.wordings[told.message] == Wording("enough ~", (NOW + 90,))
    assert told.wordings[told.blockers[0]] == Wording("a holds 8 until ~", (NOW + 90,))
    longer = add(told, worded(NOW, "free ", NOW + 3600))
    assert longer.message == "enough ~03:05 UTC; free ~04:05 UTC"
    assert longer.wordings[longer.message] == Wording("enough ~; free ~", (NOW + 90, NOW + 3600))
    untold = add(waits("uid", PendingReason.BEHIND_OTHERS, "others first"), plain)
    assert (untold.message, untold.wordings[untold.message]) == ("others first; b holds 4", Wording(untold.message))
