"""GPUs that pods still hold count against the queue that they were given for, whatever has become of plan and job."""

from __future__ import annotations

from typing import Any

import pytest
from tests.builders import (
    A100,
    NOW,
    gang_pod,
    job_object,
    leaving,
    node_object,
    owned_by,
    placement,
    plan_of,
    queue_object,
)

from trimtab import names
from trimtab.api.status import JobStatus, PlanTerms
from trimtab.kube.objects import JobObject, PodObject
from trimtab.observe.snapshot import Caches, ClusterObserver, Observation
from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.scheduling.fair_share import queue_holdings

NODES = [node_object("n1"), node_object("n2")]
QUEUES = [queue_object("q", {"gpuType": "*", "gpus": 8}), queue_object("other", {"gpuType": "*", "gpus": 8})]
DELETED = "2026-01-02T03:00:00Z"


def pod(name: str, node: str = "n1", queue: str = "q", **meta: Any) -> PodObject:
    """The running pod of a gang with eight GPUs."""
    annotations = {names.ANNOTATION_QUEUE: queue} if queue else {}
    return gang_pod(name, 1, 0, node, phase="Running", metadata={"annotations": annotations} | meta)


def planned(name: str, node: str, *, queue: str = "q", after: str = "", **meta: Any) -> JobObject:
    """A job with eight GPUs of one node."""
    waits_for = (leaving(after),)
    terms = PlanTerms(queue=queue)
    plan = plan_of(placement(f"uid-{name}", {node: 8}), waits_for=waits_for if after else (), terms=terms)
    return job_object(name, {"queue": queue}, JobStatus(plan=plan, last_epoch=1), **meta)


def look(pods: list[PodObject], jobs: list[JobObject], queues: list[Any] = QUEUES) -> Observation:
    return ClusterObserver(()).observe(Caches(NODES, pods, jobs, queues), NOW)


def left(seen: Observation, queue: str = "q") -> int | None:
    """GPUs that the queue may still have."""
    return Capacity(seen.snapshot).quota_left(queue, A100)


def test_a_job_that_a_finalizer_keeps_counts_until_its_pods_are_gone() -> None:
    going = planned("going", "n1", deletion_timestamp=DELETED)
    seen = look([pod("going")], [going, job_object("next", {"queue": "q"})])
    assert left(seen) == 0
    assert seen.deleted == ("uid-going",)
    assert "uid-going" not in seen.jobs
    assert left(look([], [going])) == 8


def test_the_pods_of_a_job_that_is_gone_count_until_they_have_ended() -> None:
    assert left(look([pod("gone", deletionTimestamp=DELETED)], [])) == 0
    assert left(look([gang_pod("gone", 1, 0, "n1", phase="Succeeded")], [])) == 8


def test_the_pods_of_a_gang_that_was_stopped_count_while_its_job_waits() -> None:
    waits = job_object("again", {"queue": "q"}, JobStatus(last_epoch=1))
    seen = look([pod("again")], [waits])
    assert left(seen) == 0
    waiting, holds = seen.snapshot.jobs
    assert (waiting.uid, waiting.placement) == ("uid-again", None)
    assert holds.placement
    assert holds.placement.gpus == 8
    assert holds.movable_from == float("inf"), "nobody can be stopped whose plan is no more"


def test_what_another_plan_of_the_queue_inherits_counts_once() -> None:
    seen = look([pod("old")], [planned("heir", "n1", after="old")])
    assert left(seen) == 0
    assert left(look([pod("old")], [planned("heir", "n1", queue="other", after="old")]), "q") == 0
    assert left(look([pod("old")], [planned("heir", "n1", queue="other", after="old")]), "other") == 0


def test_what_is_left_of_a_large_gang_counts_beside_a_small_heir() -> None:
    """Else a small job of higher priority would free all that a large one holds, for as long as that takes to end."""
    queues = [queue_object("q", {"gpuType": "*", "gpus": 16})]
    large = [gang_pod("old", 1, rank, node, phase="Running") for rank, node in enumerate(("n1", "n2"))]
    old = job_object("old", {"queue": "q"}, JobStatus(last_epoch=1))
    assert left(look(large, [old, planned("heir", "n1", after="old")], queues)) == 0
    assert left(look(large[:1], [old, planned("heir", "n1", after="old")], queues)) == 8
    smaller = plan_of(placement("uid-old", {"n2": 8}), 2, terms=PlanTerms(queue="q"))
    shrunk = job_object("old", {"queue": "q"}, JobStatus(plan=smaller, last_epoch=2))
    assert left(look(large, [shrunk], queues)) == 0, "nor does a gang that goes on with less"


def test_a_standing_plan_and_its_own_pods_count_once() -> None:
    assert left(look([pod("runs")], [planned("runs", "n1")])) == 0


@pytest.mark.parametrize(
    ("queues", "charged"), [(QUEUES, None), ([*QUEUES, queue_object("d", namespaces=["default"])], "d")]
)
def test_pods_that_say_no_queue_count_against_that_of_their_namespace(queues: list[Any], charged: str | None) -> None:
    held = queue_holdings(look([pod("gone", queue="")], [], queues).snapshot)
    assert held[charged or "namespace/default"].gpus == {A100: 8}


def test_pods_that_are_no_gang_s_count_against_nobody() -> None:
    of_a_set = owned_by("x", apiVersion="apps/v1", kind="StatefulSet")
    other = gang_pod("x", 1, 0, "n1", phase="Running", metadata={"ownerReferences": [of_a_set]})
    assert look([other], []).snapshot.jobs == ()


@pytest.mark.parametrize(
    "forged",
    [
        {"namespace": "mine"},
        {"ownerReferences": [owned_by("gone", uid="uid-x")]},
        {"ownerReferences": [owned_by("x", apiVersion="evil.example/v1")]},
        {"ownerReferences": [owned_by("x", kind="Queue")]},
    ],
    ids=["of another namespace", "of another name", "of another group", "of another kind"],
)
def test_pods_that_name_a_job_in_part_are_none_of_its_gang(forged: dict[str, Any]) -> None:
    jobs = [planned("x", "n1"), job_object("next", {"queue": "q"})]
    stray = gang_pod("x", 1, 0, "n2", phase="Running", metadata=forged)
    seen = look([stray], jobs)
    assert {node.name: node.free_gpus for node in seen.snapshot.nodes} == {"n1": 0, "n2": 0}, (
        "what it has nobody else has"
    )
    assert [job.name for job in seen.snapshot.jobs] == ["x", "next"], "and it counts as no gang"
    heir = planned("heir", "n2", after="x")
    after = look([stray], [job_object("x", {"queue": "q"}), heir])
    assert {node.name: node.free_gpus for node in after.snapshot.nodes}["n2"] == -8, "nobody inherits it, either"
