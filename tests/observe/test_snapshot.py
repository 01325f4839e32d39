"""All objects -> one observation: GPUs counted exactly once, jobs where they stand, nothing malformed lost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.builders import (
    A100,
    H100,
    MOMENT,
    NOW,
    T4,
    gang_pod,
    job_object,
    node_object,
    placement,
    plan_of,
    pod_object,
    priority_class,
    queue_object,
)

from trimtab import names
from trimtab.api.status import JobStatus
from trimtab.apply import transitions
from trimtab.kube.objects import JobObject, Meta, NodeObject, PodObject
from trimtab.observe import jobs, nodes, pods
from trimtab.observe.facts_memo import FactsMemo
from trimtab.observe.node_usage import Claim
from trimtab.observe.snapshot import Caches, ClusterObserver, Observation
from trimtab_policy.types import PendingReason, Placement, Quota


def look(
    nodes: Sequence[NodeObject] = (),
    pods: Sequence[PodObject] = (),
    jobs: Sequence[JobObject] = (),
    promised: dict[str, Placement] | None = None,
    **others: Any,
) -> Observation:
    return ClusterObserver(()).observe(
        Caches(nodes, pods, jobs, **others), NOW, [Claim(uid, 1, placed) for uid, placed in (promised or {}).items()]
    )


def planned(*shares: tuple[str, int], epoch: int = 1, **changes: Any) -> JobObject:
    status = JobStatus(plan=plan_of(placement(nodes=dict(shares)), epoch), last_epoch=epoch)
    return job_object(status=status, **changes)


def free(seen: Observation) -> dict[str, int]:
    return {node.name: node.free_gpus for node in seen.snapshot.nodes}


N1, N2 = node_object("n1"), node_object("n2")


# --- counting ------------------------------------------------------------------------------------------------------
def test_an_empty_cluster() -> None:
    seen = look()
    assert (seen.snapshot.nodes, seen.snapshot.jobs, seen.snapshot.gpu_types) == ((), (), {})
    assert (seen.refused, seen.problems, seen.overallocated) == ({}, (), {})


def test_pods_of_anybody_count_while_they_are_on_a_node_and_have_not_ended() -> None:
    members = [
        pod_object("a", "n1", gpus=2),
        pod_object("b", "n1", gpus=1, phase="Pending", metadata={"deletionTimestamp": "2026-01-02T03:04:05Z"}),
        pod_object("c", "n1", gpus=4, phase="Succeeded"),
        pod_object("d", "", gpus=4, phase="Pending"),
        pod_object("e", "elsewhere", gpus=4),
    ]
    assert free(look([N1, N2], members)) == {"n1": 5, "n2": 8}


def test_cpu_memory_and_pod_slots_are_counted_too() -> None:
    asks = {"resources": {"requests": {"cpu": "1500m", "memory": "1Gi"}}}
    [node] = look([N1], [pod_object("a", "n1", spec={"containers": [asks]})]).snapshot.nodes
    assert (node.free_cpu_milli, node.free_memory, node.free_pods) == (126_500, (1 << 40) - (1 << 30), 109)
    assert (node.cpu_milli, node.memory) == (128_000, 1 << 40)


def test_ranks_of_a_plan_count_before_their_pods_exist() -> None:
    seen = look([N1, N2], jobs=[planned(("n1", 4), ("n2", 4), spec={"resources.cpusPerGpu": 2})])
    assert free(seen) == {"n1": 4, "n2": 4}
    assert [node.free_cpu_milli for node in seen.snapshot.nodes] == [120_000, 120_000]
    assert [node.free_pods for node in seen.snapshot.nodes] == [109, 109]


def test_a_rank_counts_once_whether_its_pod_is_bound_or_not() -> None:
    job = planned(("n1", 4), ("n2", 4))
    half = [gang_pod("job", 1, 0, "n1", gpus=4), gang_pod("job", 1, 1, "", gpus=4)]
    assert free(look([N1, N2], half, [job])) == {"n1": 4, "n2": 4}


def test_the_pods_of_an_earlier_plan_make_room_for_those_of_the_new_one() -> None:
    old = gang_pod("job", 1, 0, "n1", gpus=4)
    assert free(look([N1], [old], [planned(("n1", 4), epoch=2)])) == {"n1": 4}
    assert free(look([N1], [old], [planned(("n1", 2), epoch=2)])) == {"n1": 4}
    assert free(look([N1], [old], [planned(("n1", 6), epoch=2)])) == {"n1": 2}


def test_a_promise_counts_before_it_is_written() -> None:
    promised = {"uid-job": placement(nodes={"n1": 8})}
    seen = look([N1], jobs=[job_object()], promised=promised)
    assert free(seen) == {"n1": 0}
    assert seen.snapshot.waiting() == []


def test_a_promise_to_a_job_that_is_gone_is_void() -> None:
    assert free(look([N1], promised={"uid-gone": placement(nodes={"n1": 8})})) == {"n1": 8}


def test_a_gang_whose_pods_have_ended_has_its_gpus_until_it_is_complete() -> None:
    """It is shown with them: a policy that moved it would give them away a second time, besides as free."""
    ended = [gang_pod("job", 1, rank, node, gpus=4, phase="Succeeded") for rank, node in enumerate(("n1", "n2"))]
    seen = look([N1, N2], ended, [planned(("n1", 4), ("n2", 4))])
    assert free(seen) == {"n1": 4, "n2": 4}
    assert [job.placement.gpus for job in seen.snapshot.jobs if job.placement] == [8]


def test_what_comes_to_a_node_after_a_pod_has_ended_there_takes_nothing_from_its_gang() -> None:
    members = [gang_pod("job", 1, 0, "n1", phase="Succeeded"), pod_object("stranger", "n1", gpus=6)]
    seen = look([N1, N2], members, [planned(("n1", 8), ("n2", 8))])
    assert (free(seen), seen.overallocated) == ({"n1": -6, "n2": 0}, {})
    assert look([N1], [*members, pod_object("other", "n1", gpus=3)], [planned(("n1", 8))]).overallocated == {"n1": 1}


def test_what_a_failed_pod_held_is_its_gang_s_until_that_is_given_up() -> None:
    """Else others have it before the gang can start anew."""
    failed = [gang_pod("job", 1, 1, "n2", gpus=4, phase="Failed")]
    assert free(look([N1, N2], failed, [planned(("n1", 4), ("n2", 4))])) == {"n1": 4, "n2": 4}
    assert free(look([N1, N2], failed, [job_object()])) == {"n1": 8, "n2": 8}


def test_a_finished_job_holds_nothing_though_its_plan_stays() -> None:
    meta = Meta(name="job", generation=1)
    plan = plan_of(placement(nodes={"n1": 8}))
    done = transitions.completed(transitions.planned(JobStatus(), meta, plan, NOW), meta, NOW)
    assert free(look([N1], jobs=[job_object(status=done)])) == {"n1": 8}


def test_a_plan_counts_even_if_the_spec_cannot_be_understood_any_more() -> None:
    seen = look([N1], jobs=[planned(("n1", 8), spec={"model.preset": "gpt9"})])
    assert free(seen) == {"n1": 0}
    [held] = seen.snapshot.jobs
    assert held.placement
    assert (held.uid, held.placement.gpus, held.movable_from) == ("uid-job", 8, math.inf), "it counts, and that is all"
    assert seen.refused["uid-job"].reason is PendingReason.INVALID_SPEC


def test_gpus_of_deleted_pods_that_no_job_counts_on_are_told_to_be_ending() -> None:
    deleted = {"metadata": {"deletionTimestamp": "2026-01-02T03:04:05Z"}}
    members = [
        pod_object("stranger", "n1", gpus=2, **deleted),
        pod_object("stays", "n1", gpus=1),
        pod_object("over", "n2", gpus=1, phase="Failed", **deleted),
        gang_pod("gone", 1, 0, "n2", gpus=3, **deleted),
        gang_pod("job", 1, 0, "n2", gpus=4, **deleted),
    ]
    seen = look([N1, N2], members, [planned(("n2", 4))])
    assert seen.snapshot.ending == {"n1": 2, "n2": 3}
    assert free(seen) == {"n1": 5, "n2": 1}


def test_nobody_counts_on_the_gpus_of_a_pod_that_should_have_ended_long_ago() -> None:
    for seconds, told in ((-100, {"n1": 8}), (-300, {})):
        moment = datetime.fromtimestamp(NOW + seconds, UTC).isoformat()
        stuck = gang_pod("gone", 1, 0, "n1", phase="Running", metadata={"deletionTimestamp": moment})
        seen = look([N1], [stuck])
        assert seen.snapshot.ending == told
        assert free(seen) == {"n1": 0}


@pytest.mark.parametrize(
    ("deletion", "told"),
    [
        ({"deletionTimestamp": "2026-01-02T03:05:05Z", "deletionGracePeriodSeconds": 600}, {"n1": 8}),
        ({"deletionTimestamp": "2026-01-02T03:05:06Z", "deletionGracePeriodSeconds": 600}, {}),
        ({"deletionTimestamp": "2311-03-16T19:04:05Z", "deletionGracePeriodSeconds": 9_000_000_000}, {}),
        ({"deletionTimestamp": "1759-03-26T00:00:00Z", "deletionGracePeriodSeconds": 10_000_000_000}, {}),
    ],
    ids=["ends in a moment", "has time", "has centuries", "has so many that they overflow"],
)
def test_gpus_are_told_to_be_ending_where_that_is_a_matter_of_a_moment(
    deletion: dict[str, Any], told: dict[str, int]
) -> None:
    pod = gang_pod("gone", 1, 0, "n1", phase="Running", metadata=deletion, spec={"terminationGracePeriodSeconds": 600})
    assert look([N1], [pod]).snapshot.ending == told


def test_overallocation_is_told_by_node() -> None:
    crowd = [pod_object(f"p{i}", "n1", gpus=4) for i in range(3)]
    seen = look([N1, N2], crowd)
    assert seen.overallocated == {"n1": 4}
    assert free(seen)["n1"] == -4


PODS = st.lists(
    st.tuples(
        st.sampled_from(["n0", "n1", "n2", "", "gone"]),
        st.integers(0, 4),
        st.sampled_from(["Running", "Pending", "Failed"]),
    ),
    max_size=8,
)
RANKS = st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["none", "unbound", "bound", "ended"])), max_size=3)


@given(PODS, RANKS, RANKS, st.booleans())
@settings(max_examples=60, deadline=None)
def test_every_gpu_is_counted_exactly_once(
    foreign: list[tuple[str, int, str]], first: list[tuple[int, str]], second: list[tuple[int, str]], promise: bool
) -> None:
    """Free is allocatable less foreign pods, less the ranks of plans and promises. Ranks that have ended are no reason
    to give a gang up."""
    vacant = {f"n{i}": 0 for i in range(3)}
    expected = {f"n{i}": 8 for i in range(3)}
    members = [pod_object(f"f{i}", node, gpus=gpus, phase=phase) for i, (node, gpus, phase) in enumerate(foreign)]
    for node, gpus, phase in foreign:
        if node in expected and phase != "Failed":
            expected[node] -= gpus
    objects, promised = [], {}
    for name, ranks in (("one", first), ("two", second)):
        if not ranks:
            continue
        for rank, (gpus, state) in enumerate(ranks):
            if state in ("unbound", "bound", "ended"):
                phase = {"unbound": "Pending", "bound": "Running", "ended": "Succeeded"}[state]
                members.append(
                    gang_pod(name, 1, rank, "" if state == "unbound" else f"n{rank}", gpus=gpus, phase=phase)
                )
            expected[f"n{rank}"] -= gpus
            vacant[f"n{rank}"] += gpus if state == "ended" else 0
        placed = placement(f"uid-{name}", {f"n{rank}": gpus for rank, (gpus, _) in enumerate(ranks)})
        objects.append(job_object(name, status=JobStatus(plan=plan_of(placed), last_epoch=1)))
    if promise:
        objects.append(job_object("three"))
        promised["uid-three"] = placement("uid-three", {"n2": 3})
        expected["n2"] -= 3
    seen = look([node_object(f"n{i}") for i in range(3)], members, objects, promised)
    assert free(seen) == expected
    shares = [share for job in seen.snapshot.jobs if job.placement for share in job.placement.shares]
    held = {name: sum(share.gpus for share in shares if share.node == name) for name in expected}
    assert all(held[name] <= 8 - left for name, left in expected.items()), "what a policy can give back is not free"
    beyond = {name: -left - vacant[name] for name, left in expected.items()}
    assert seen.overallocated == {name: gpus for name, gpus in beyond.items() if gpus > 0}


# --- which jobs are shown --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "job",
    [
        job_object(spec={"suspend": True}),
        job_object(status=JobStatus(retry_time=MOMENT.replace(hour=4))),
        job_object(deletion_timestamp="2026-01-02T03:04:05Z"),
        job_object(spec={"managedBy": "somebody.else/controller"}),
        job_object(spec={"model.preset": "gpt9"}),
    ],
    ids=["suspended", "backing off", "being deleted", "of another controller", "malformed"],
)
def test_jobs_that_no_policy_should_decide_about(job: JobObject) -> None:
    assert look([N1], jobs=[job]).snapshot.jobs == ()


def test_a_job_whose_pause_is_over_waits_again() -> None:
    assert len(look([N1], jobs=[job_object(status=JobStatus(retry_time=MOMENT))]).snapshot.waiting()) == 1


def test_a_waiting_job_is_shown_with_all_that_a_policy_may_know() -> None:
    spec = {"queue": "q", "priorityClassName": "high", "template.spec.nodeSelector": {names.HOSTNAME: "n2"}}
    waiting = job_object(spec=spec, annotations={names.ANNOTATION_POLICY: "fixed"})
    others = {"queues": [queue_object("q")], "priority_classes": [priority_class("high", 1000)]}
    [shown] = look([N1, N2], jobs=[waiting], **others).snapshot.jobs
    assert (shown.uid, shown.namespace, shown.name, shown.created) == ("uid-job", "default", "job", NOW - 245)
    assert (shown.queue, shown.priority, shown.policy, shown.eligible) == ("q", 1000, "fixed", ("n2",))
    assert shown.placement is None


def test_a_running_job_is_shown_with_what_it_holds_and_until_when() -> None:
    [shown] = look([N1], jobs=[planned(("n1", 8))]).snapshot.jobs
    assert shown.placement
    assert (shown.placement.gpu_type, shown.placement.gpus) == (A100, 8)
    assert shown.expected_finish == NOW + 500


def test_the_default_priority_class_counts_where_none_is_named() -> None:
    classes = [priority_class("low", 1), priority_class("usual", 7, default=True)]
    [shown] = look(jobs=[job_object()], priority_classes=classes).snapshot.jobs
    assert shown.priority == 7


def test_an_edited_template_admits_other_nodes_at_the_next_look() -> None:
    observer = ClusterObserver(())
    for host in ("n1", "n2"):
        edited = job_object(spec={"template.spec.nodeSelector": {names.HOSTNAME: host}})
        [shown] = observer.observe(Caches([N1, N2], [], [edited]), NOW).snapshot.jobs
        assert shown.eligible == (host,)


# --- what is wrong is said -------------------------------------------------------------------------------------------
def refusal(spec: dict[str, Any], **others: Any) -> tuple[PendingReason, str]:
    pending = look([N1], jobs=[job_object(spec=spec)], **others).refused["uid-job"]
    assert pending.alternatives
    return pending.reason, pending.message


def test_a_malformed_spec_names_the_field() -> None:
    reason, message = refusal({"resources.gpus": {"min": 9, "max": 8}})
    assert reason is PendingReason.INVALID_SPEC
    assert message.startswith("spec.resources.gpus.min: ")


def test_a_missing_queue_is_named_with_those_that_exist() -> None:
    assert refusal({"queue": "q"}) == (
        PendingReason.QUEUE_NOT_FOUND,
        "spec.queue: there is no Queue 'q'; there are: none",
    )
    _, message = refusal({"queue": "q"}, queues=[queue_object("b"), queue_object("a")])
    assert message.endswith("there are: a, b")


def test_a_missing_priority_class_is_named() -> None:
    reason, message = refusal({"priorityClassName": "high"}, priority_classes=[priority_class("low", 1)])
    assert reason is PendingReason.PRIORITY_CLASS_NOT_FOUND
    assert message == "spec.priorityClassName: there is no PriorityClass 'high'"


def test_a_running_job_goes_on_when_its_queue_is_deleted() -> None:
    seen = look([N1], jobs=[planned(("n1", 8), spec={"queue": "gone"})])
    assert [shown.placement is not None for shown in seen.snapshot.jobs] == [True]


def test_quotas_are_in_the_catalogues_spelling() -> None:
    queue = queue_object("q", {"gpuType": "h100-sxm5-80gb", "gpus": 8}, {"gpuType": "*", "gpus": 9})
    assert look(queues=[queue]).snapshot.quotas == (Quota("q", H100, 8), Quota("q", "*", 9))


def test_a_malformed_queue_admits_nothing_and_is_a_problem() -> None:
    seen = look(jobs=[job_object(spec={"queue": "q"})], queues=[queue_object("q", {"gpuType": "*", "gpus": "many"})])
    assert seen.snapshot.quotas == (Quota("q", "*", 0),)
    assert [(problem.kind, problem.name, problem.reason) for problem in seen.problems] == [
        ("Queue", "q", "MalformedQueue")
    ]
    assert seen.refused == {}


def test_a_node_that_takes_no_pods_is_named_with_the_reason_and_keeps_its_books() -> None:
    cordoned = node_object("n1", spec={"unschedulable": True})
    seen = look([cordoned, node_object("n2", labels={"nvidia.com/gpu.product": None})], [pod_object("a", "n1", gpus=9)])
    assert seen.snapshot.nodes == ()
    assert seen.snapshot.unavailable.keys() == {"n1", "n2"}
    assert seen.snapshot.unavailable["n1"] == "cordoned"
    assert seen.overallocated == {"n1": 1}
    assert [(problem.name, problem.reason) for problem in seen.problems] == [("n2", "UnusableGpus")]


def test_of_two_nodes_of_one_unknown_product_the_smaller_memory_counts() -> None:
    both = [
        node_object(name, T4, labels={"nvidia.com/gpu.product": "X1", "nvidia.com/gpu.memory": memory})
        for name, memory in (("a", "1024"), ("b", "512"))
    ]
    assert look(both).snapshot.gpu_types["X1"].memory_bytes == 512 << 20
    assert look(both[::-1]).snapshot.gpu_types["X1"].memory_bytes == 512 << 20


# --- only changes cost -----------------------------------------------------------------------------------------
def test_an_unchanged_object_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    for module, name in ((nodes, "facts"), (pods, "use"), (jobs, "facts")):
        original = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda item, *rest, o=original: (read.append(item.metadata.name), o(item, *rest))[1]
        )
    observer = ClusterObserver(())
    pod, job = pod_object("p", "n1", gpus=1), job_object()
    for _ in range(3):
        before = observer.observe(Caches([N1, N2], [pod], [job]), NOW)
    assert sorted(read) == ["job", "n1", "n2", "p"]
    read.clear()
    after = observer.observe(Caches([N1, node_object("n2", spec={"unschedulable": True})], [pod], [job]), NOW)
    assert read == ["n2"]
    assert before.snapshot.nodes[0] == after.snapshot.nodes[0]


def test_what_is_gone_is_forgotten() -> None:
    computed: list[object] = []
    memo: FactsMemo[object, int] = FactsMemo(
        "test", lambda item: computed.append(item) or len(computed), lambda item, error: 0
    )
    first, second = object(), object()
    assert memo.all([first, second]) == [(first, 1), (second, 2)]
    assert memo.all([second]) == [(second, 2)]
    assert memo.one(second) == 2
    assert memo.one(first) == 3
