"""The witness can fail: for every invariant a history that violates it, and the same history without the sin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.faults.invariants import Judge
from tests.faults.witness_state import CLAIMS, JOBS, NODES, PODS, PRIORITIES, QUEUES, QUOTAS, SLICES, Object

Told = Callable[[Judge], None]
GPU = "nvidia.com/gpu"


def node(name: str = "n1", gpus: int = 8) -> Object:
    return {"metadata": {"name": name, "uid": f"node-{name}"}, "status": {"allocatable": {GPU: str(gpus)}}}


def pod(
    name: str = "j-1-0",
    on: str = "",
    *,
    epoch: int = 1,
    rank: int = 0,
    owner: str = "uid-j",
    ours: bool = True,
    gpus: int = 8,
) -> Object:
    labels = {"trimtab.dev/job": "j", "trimtab.dev/epoch": str(epoch), "trimtab.dev/node-rank": str(rank)}
    owners = [{"uid": owner, "controller": True}] if owner else []
    meta = {"name": name, "namespace": "default", "uid": f"pod-{name}", "labels": labels if ours else {}}
    return {
        "metadata": {**meta, "ownerReferences": owners},
        "spec": {"nodeName": on, "containers": [{"resources": {"limits": {GPU: str(gpus)}}}]},
        "status": {"phase": "Running"},
    }


def plan(epoch: int = 1, nodes: int = 2) -> Object:
    return {"epoch": epoch, "nodeCount": nodes, "gpuType": "A100", "gpus": 8 * nodes}


def job(name: str = "j", status: Object | None = None, **spec: Any) -> Object:
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "generation": 1},
        "spec": spec,
        "status": {"leaderEpoch": 1, **(status or {})},
    }


def conditions(**held: str) -> list[Object]:
    """PodsReady="Running" holds; PodsReady="-Preempted" does not, for that reason."""
    return [
        {"type": kind, "status": "False" if why.startswith("-") else "True", "reason": why.lstrip("-")}
        for kind, why in held.items()
    ]


def running(epoch: int = 1, **status: Any) -> Object:
    return job(
        status={"plan": plan(epoch), "lastEpoch": epoch, "conditions": conditions(PodsReady="Running"), **status}
    )


def told(*events: tuple[str, Object] | tuple[float, str, Object], until: float = 0.0) -> list[str]:
    """Invariants that the judge finds violated in a history of (kind, object); a time goes before where it matters."""
    judge = Judge()
    for event in events:
        now, kind, obj = event if len(event) == 3 else (0.0, *event)
        judge.tick(now)
        judge.see(now, kind, "MODIFIED", obj)
    judge.tick(until)
    return [violation.invariant for violation in judge.violations]


GANG = ((NODES, node("n1")), (NODES, node("n2")), (JOBS, running()))


def at(clock: str) -> str:
    """00:00:SS after the epoch."""
    return f"1970-01-01T00:00:{clock}Z"


def asked(cause: str = "Preempted", **more: Any) -> Object:
    return {"epoch": 1, "cause": cause, "requestedTime": at("00"), "deadlineTime": at("30"), **more}


def test_a_calm_life_violates_nothing() -> None:
    pods = [(PODS, pod("j-1-0", "n1")), (PODS, pod("j-1-1", "n2", rank=1))]
    done = job(status={"plan": plan(), "lastEpoch": 1, "conditions": conditions(Complete="Completed")})
    assert told(*GANG, *pods, (JOBS, done), until=600) == []


def test_i1_more_gpus_than_a_node_has() -> None:
    two = [(PODS, pod("j-1-0", "n1")), (PODS, pod("j-1-1", "n1", rank=1))]
    assert "I1" in told(*GANG, *two)
    assert "I1" not in told(*GANG, (PODS, pod("j-1-0", "n1", gpus=4)), (PODS, pod("j-1-1", "n1", rank=1, gpus=4)))


def test_i1_what_strangers_took_is_given_up_in_time() -> None:
    theirs = pod("robber", "n1", ours=False, owner="")
    both = [(PODS, pod("j-1-0", "n1")), (PODS, pod("j-1-1", "n2", rank=1)), (PODS, theirs)]
    assert told(*GANG, *both, until=5) == []
    assert told(*GANG, *both, until=11) == ["I1"]
    assert told((NODES, node()), (PODS, theirs), (PODS, pod("other", "n1", ours=False, owner="")), until=11) == []


def devices(node: str = "n1", gpus: int = 8, generation: int = 1) -> Object:
    """A ResourceSlice of whole GPUs, and of a part of one."""
    kinds = [*("gpu" for _ in range(gpus)), "mig"]
    offered = [{"name": f"gpu-{index}", "attributes": {"type": {"string": kind}}} for index, kind in enumerate(kinds)]
    spec = {
        "driver": "gpu.nvidia.com",
        "nodeName": node,
        "pool": {"name": node, "generation": generation},
        "devices": offered,
    }
    return {"metadata": {"name": f"{node}-{generation}", "uid": f"slice-{node}-{generation}"}, "spec": spec}


def claim(name: str, first: int, last: int, *pods: str, node: str = "n1", admin: bool = False) -> Object:
    """A ResourceClaim that has the GPUs `first` to `last` of a node, for pods of these names."""
    access = {"adminAccess": True} if admin else {}
    results = [
        {"driver": "gpu.nvidia.com", "pool": node, "device": f"gpu-{index}", **access}
        for index in range(first, last + 1)
    ]
    reserved = [{"resource": "pods", "uid": f"pod-{each}"} for each in pods]
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"claim-{name}"},
        "status": {"allocation": {"devices": {"results": results}}, "reservedFor": reserved},
    }


BY_DRIVER = ((NODES, node("n1", 0)), (NODES, node("n2", 0)), (SLICES, devices("n1")), (SLICES, devices("n2")))


def test_i1_more_gpus_than_a_driver_offers() -> None:
    both = [(PODS, pod("j-1-0", "n1")), (PODS, pod("j-1-1", "n2", rank=1))]
    assert told(*BY_DRIVER, (JOBS, running()), *both, until=20) == []
    assert "I1" in told(*BY_DRIVER, (JOBS, running()), both[0], (PODS, pod("j-1-1", "n1", rank=1)))


def test_i1_what_strangers_have_by_claim_counts_and_what_is_both_asked_and_claimed_counts_once() -> None:
    ours = [(PODS, pod("j-1-0", "n1", gpus=4)), (PODS, pod("j-1-1", "n2", rank=1)), (CLAIMS, claim("a", 0, 3, "j-1-0"))]
    theirs = pod("theirs", "n1", ours=False, owner="", gpus=0)
    four, five = claim("b", 4, 7, "theirs"), claim("b", 3, 7, "theirs")
    history = (*BY_DRIVER, (JOBS, running()), *ours, (PODS, theirs))
    assert told(*history, (CLAIMS, four), until=20) == []
    assert "I1" in told(*history, (CLAIMS, five), until=20)


def test_i1_a_device_that_two_claims_have() -> None:
    assert told(*BY_DRIVER, (CLAIMS, claim("a", 0, 3)), (CLAIMS, claim("b", 4, 7))) == []
    assert told(*BY_DRIVER, (CLAIMS, claim("a", 0, 3)), (CLAIMS, claim("b", 3, 7))) == ["I1"]
    assert told(*BY_DRIVER, (CLAIMS, claim("a", 0, 3)), (CLAIMS, claim("b", 3, 7, admin=True))) == []


def test_i1_a_driver_that_is_replaced_takes_nothing_and_one_that_offers_less_does() -> None:
    """Slices go while a driver is replaced, and come back with a new generation."""
    judge = Judge()
    for kind, obj in (*BY_DRIVER, (JOBS, running()), (PODS, pod("j-1-0", "n1")), (PODS, pod("j-1-1", "n2", rank=1))):
        judge.see(0.0, kind, "MODIFIED", obj)
    judge.see(1.0, SLICES, "DELETED", devices("n1"))
    judge.see(2.0, PODS, "MODIFIED", pod("j-1-0", "n1"))
    judge.see(3.0, SLICES, "ADDED", devices("n1", generation=2))
    judge.tick(20.0)
    assert judge.violations == []
    judge.see(21.0, SLICES, "MODIFIED", devices("n1", 6, generation=3))
    assert [violation.invariant for violation in judge.violations] == ["I1"]


def test_i2_a_gang_that_stays_bound_in_part() -> None:
    part = [(PODS, pod("j-1-0", "n1")), (PODS, pod("j-1-1", "", rank=1))]
    assert told(*GANG, *part, until=29) == []
    assert told(*GANG, *part, until=31) == ["I2"]
    assert told(*GANG, *part, (20.0, PODS, pod("j-1-1", "n2", rank=1)), until=40) == []


def test_i2_a_gang_that_stays_without_its_plan() -> None:
    pods = [(PODS, pod("j-1-0", "n1")), (PODS, pod("j-1-1", "n2", rank=1))]
    given_up = job(status={"lastEpoch": 1, "pending": {"reason": "X"}, "conditions": []})
    assert told(*GANG, *pods, (JOBS, given_up), until=31) == ["I2"]


def test_i2_not_of_pods_that_are_to_end_on_a_node_that_does_not_answer() -> None:
    silent = node("n2")
    silent["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    left = pod("j-1-1", "n2", rank=1)
    left["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    given_up = job(status={"lastEpoch": 1, "pending": {"reason": "X"}, "conditions": []})
    assert told(*GANG, (PODS, left), (JOBS, given_up), until=31) == ["I2"]
    assert told(*GANG, (NODES, silent), (PODS, left), (JOBS, given_up), until=31) == []


def test_i3_orphans() -> None:
    assert "I3" in told(*GANG, (PODS, pod("stray", "", owner="")))
    assert "I3" in told((NODES, node()), (PODS, pod("j-1-0", "", owner="uid-gone")), until=91)
    judge = Judge()
    judge.see(0, JOBS, "ADDED", running())
    judge.see(0, PODS, "ADDED", pod("j-1-0"))
    judge.see(1, JOBS, "DELETED", running())
    judge.tick(92)
    assert [violation.invariant for violation in judge.violations] == ["I3"]


def test_i4_lost_jobs() -> None:
    planned = job(status={"plan": plan(), "lastEpoch": 1, "conditions": conditions(Planned="Binding")})
    waiting = job(status={"pending": {"reason": "InsufficientGpus"}, "conditions": conditions()})
    assert told((JOBS, job()), until=61) == ["I4"]
    assert told((JOBS, planned), until=61) == ["I4"]
    assert told((JOBS, waiting), until=600) == []
    assert told((JOBS, running()), until=600) == []
    assert told((JOBS, running(stop=asked("Moved"))), until=80) == []
    assert told((JOBS, running(stop=asked("Moved"))), until=100) == ["I4"]


def test_i5_a_rank_that_lives_twice() -> None:
    assert "I5" in told(*GANG, (PODS, pod("j-1-0")), (PODS, pod("j-1-0b")))
    assert "I5" not in told(*GANG, (PODS, pod("j-1-0")), (PODS, pod("j-1-1", rank=1)))


def test_i5_two_epochs_at_once() -> None:
    old, new = pod("j-1-0", "n1"), pod("j-2-0", "n2", epoch=2)
    assert "I5" in told(*GANG, (PODS, old), (JOBS, running(2)), (PODS, new))


def test_i5_a_plan_that_changes_and_pods_that_no_plan_asked_for() -> None:
    changed = job(status={"plan": plan(nodes=1), "lastEpoch": 1})
    assert told((JOBS, running()), (JOBS, changed)) == ["I5"]
    assert "I5" in told(*GANG, (PODS, pod("j-7-0", epoch=7)), until=6)


def ended(reason: str, **status: Any) -> Object:
    return job(status={"lastEpoch": 1, "pending": {}, "conditions": conditions(PodsReady=f"-{reason}"), **status})


def test_i6_a_gang_is_asked_before_it_is_ended() -> None:
    assert told((JOBS, running()), (JOBS, ended("Preempted"))) == ["I6"]
    assert told((JOBS, running()), (JOBS, ended("NodeLost"))) == []


def test_i6_what_an_earlier_gang_was_asked_is_not_why_this_one_has_ended() -> None:
    asked_before = conditions(CheckpointRequested="-Suspended")
    runs = running(conditions=[*conditions(PodsReady="Running"), *asked_before])
    lost = job(
        status={"lastEpoch": 1, "pending": {}, "conditions": [*conditions(PodsReady="-NodeLost"), *asked_before]}
    )
    assert told((JOBS, runs), (JOBS, lost)) == []


def test_i6_a_gang_gets_its_time() -> None:
    asks, answers = running(stop=asked("Moved")), running(stop=asked("Moved", acknowledgedTime=at("05")))
    assert told((JOBS, asks), (20.0, JOBS, ended("Moved"))) == ["I6"]
    assert told((JOBS, asks), (31.0, JOBS, ended("Moved"))) == []
    assert told((JOBS, asks), (5.0, JOBS, answers), (6.0, JOBS, ended("Moved"))) == []
    assert told((JOBS, running(stop=asked("Moved", successor=plan(2)))), (3.0, JOBS, running(2))) == ["I6"]


def test_i6_steps_never_go_behind_the_checkpoint() -> None:
    before = running(observed={"stepsDone": 90, "lastCheckpointStep": 80})
    assert told((JOBS, before), (JOBS, running(observed={"stepsDone": 80, "lastCheckpointStep": 80}))) == []
    assert told((JOBS, before), (JOBS, running(observed={"stepsDone": 70}))) == ["I6"]


@pytest.mark.parametrize(
    ("mine", "theirs", "found"), [("high", "low", ["I7"]), ("low", "low", ["I7"]), ("low", "high", [])]
)
def test_i7_nobody_gives_way_to_lower_or_equal_priority(mine: str, theirs: str, found: list[str]) -> None:
    classes = [(PRIORITIES, {"metadata": {"name": n, "uid": n}, "value": v}) for n, v in (("low", 1), ("high", 9))]
    victim = running(stop=asked(beneficiary="default/other"))
    victim["spec"] = {"priorityClassName": mine}
    assert told(*classes, (JOBS, job("other", priorityClassName=theirs)), (JOBS, victim)) == found


def test_i7_nobody_gives_way_to_nobody() -> None:
    assert told((JOBS, running(stop=asked()))) == ["I7"]


def test_i8_an_older_leader_writes() -> None:
    a, b = running(leaderEpoch=3), job("k", status={"leaderEpoch": 2})
    assert told((JOBS, job("k", status={"leaderEpoch": 1})), (JOBS, a), (JOBS, b)) == ["I8"]
    assert "I8" in told((JOBS, a), (JOBS, running(leaderEpoch=2)))


def test_i9_quotas() -> None:
    quota = {"metadata": {"name": "q", "namespace": "default", "uid": "q"}, "spec": {"hard": {f"requests.{GPU}": "8"}}}
    both = [(PODS, pod("j-1-0", "n1")), (PODS, pod("j-1-1", "n2", rank=1))]
    assert "I9" in told(*GANG, (QUOTAS, quota), *both)
    queue: Object = {"metadata": {"name": "team", "uid": "team"}, "spec": {"quotas": [{"gpuType": "*", "gpus": 8}]}}
    mine = running()
    mine["spec"] = {"queue": "team"}
    assert "I9" in told(*GANG[:2], (QUEUES, queue), (JOBS, mine), *both)
    queue["spec"]["quotas"] = [{"gpuType": "A100", "gpus": 16}]
    assert told(*GANG[:2], (QUEUES, queue), (JOBS, mine), *both) == []


def test_i10_nothing_goes_back() -> None:
    assert "I10" in told((JOBS, running(observedGeneration=2)), (JOBS, running(observedGeneration=1)))
    assert "I10" in told((JOBS, running(2)), (JOBS, running(1)))
    complete = job(status={"conditions": conditions(Complete="Completed"), "lastEpoch": 1})
    assert "I10" in told((JOBS, complete), (JOBS, running()))


def test_time_does_not_count_while_nobody_can_act() -> None:
    judge = Judge()
    judge.see(0, JOBS, "ADDED", job())
    judge.excused = True
    judge.tick(500)
    judge.excused = False
    judge.tick(550)
    assert not judge.violations
    judge.tick(562)
    assert judge.violations
