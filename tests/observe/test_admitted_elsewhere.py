"""Jobs about which another system has a say: held back until it admits them, and within what it gives."""

from __future__ import annotations

from msgspec.structs import replace
from tests.builders import NOW, job_object, node_object, placement, plan_of

from trimtab.api.status import JobStatus
from trimtab.observe.snapshot import Caches, ClusterObserver
from trimtab_policy.types import Bounds, Pending, PendingReason

WAITS = Pending("uid-job", PendingReason.WAITING_FOR_ADMISSION, "no quota left")


def caches(status: JobStatus | None = None) -> Caches:
    nodes = [node_object(name, labels={"pool": name}) for name in ("n1", "n2")]
    return Caches(nodes, [], [job_object(status=status), job_object("other")])


def test_a_job_that_is_held_back_is_offered_to_nobody_and_told_why() -> None:
    seen = ClusterObserver(()).observe(caches(), NOW, held_back={"uid-job": WAITS, "uid-gone": WAITS})
    assert [job.uid for job in seen.snapshot.jobs] == ["uid-other"]
    assert seen.refused == {"uid-job": WAITS}


def test_a_spec_that_cannot_be_met_is_told_before_that() -> None:
    world = replace(caches(), jobs=[job_object(spec={"priorityClassName": "missing"})])
    seen = ClusterObserver(()).observe(world, NOW, held_back={"uid-job": WAITS})
    assert seen.refused["uid-job"].reason is PendingReason.PRIORITY_CLASS_NOT_FOUND


def test_a_gang_that_runs_is_seen_whoever_holds_it_back() -> None:
    status = JobStatus(plan=plan_of(placement(nodes={"n1": 8})), last_epoch=1)
    seen = ClusterObserver(()).observe(caches(status), NOW, held_back={"uid-job": WAITS})
    assert {job.uid for job in seen.snapshot.jobs} == {"uid-job", "uid-other"}
    assert {node.name: node.free_gpus for node in seen.snapshot.nodes} == {"n1": 0, "n2": 8}


def test_limits_reach_the_policies() -> None:
    observer, world = ClusterObserver(()), caches()
    facts = observer.observe(world, NOW).jobs["uid-job"]
    assert facts.requirements
    template = {"spec": {**facts.template["spec"], "nodeSelector": {"pool": "n2"}}}
    limited = replace(facts, requirements=replace(facts.requirements, gpus=Bounds(1, 2)), equipped=template)
    seen = observer.observe(world, NOW, limited={"uid-job": limited, "uid-gone": limited})
    (job,) = (each for each in seen.snapshot.jobs if each.uid == "uid-job")
    assert (job.requirements.gpus, job.eligible) == (Bounds(1, 2), ("n2",))
    assert set(seen.jobs) == {"uid-job", "uid-other"}
