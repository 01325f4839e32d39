"""Nodes that end one gang after another, and nodes that are kept for gangs that have lost one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import (
    NOW,
    fault,
    gang_pod,
    gpu_reading,
    gpunode_object,
    job_object,
    node_object,
    placement,
    plan_of,
)

from trimtab import names
from trimtab.api.history import FailureCause, FailureRecord
from trimtab.api.status import JobStatus
from trimtab.apply import transitions
from trimtab.kube.objects import JobObject, NodeObject, PodObject
from trimtab.observe.failures import KEPT, Failures, count_events, spares_needed
from trimtab.observe.gpunodes import GpuNodes
from trimtab.observe.snapshot import Caches, ClusterObserver, Observation
from trimtab.settings import FailureSettings, TelemetrySettings

WINDOW = 3600.0
RULES = FailureSettings(bad_node_gangs=2, bad_node_seconds=WINDOW)
MADE = {"creationTimestamp": "2025-01-01T00:00:00Z"}
MINUTE = 60.0


def wire(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def blow(node: str | None, ago: float, cause: FailureCause = FailureCause.NODE, epoch: int = 1) -> FailureRecord:
    """A failure of some minutes ago."""
    return FailureRecord(time=wire(NOW - ago * MINUTE), epoch=epoch, cause=cause, reason="NodeLost", node=node)


def job(name: str, *failures: FailureRecord, namespace: str = "default", **status: Any) -> JobObject:
    told = JobStatus(failures=failures, **({"last_epoch": 1} | status))
    return job_object(name, status=told, namespace=namespace)


def nodes(*there: str, **changes: Any) -> list[NodeObject]:
    return [node_object(name, **({"metadata": MADE} | changes)) for name in there]


EIGHT = nodes(*(f"n{index}" for index in range(8)))


def look(
    jobs: Sequence[JobObject],
    there: Sequence[NodeObject] = EIGHT,
    pods: Sequence[PodObject] = (),
    rules: FailureSettings = RULES,
    heard: GpuNodes | None = None,
) -> Observation:
    observer = ClusterObserver((), heard, failures=Failures(rules, share=0.25, apart=MINUTE))
    return observer.observe(Caches(there, pods, jobs), NOW)


def suspect(seen: Observation) -> dict[str, list[str]]:
    return {namespace: sorted(names_) for namespace, names_ in seen.held.suspect.items()}


def bad(seen: Observation) -> list[str]:
    return sorted(seen.held.bad)


# --- bad nodes -----------------------------------------------------------------------------------------------------
def test_a_node_that_has_ended_the_gangs_of_two_jobs_takes_no_others() -> None:
    seen = look([job("a", blow("n1", 30)), job("b", blow("n1", 10))])
    assert bad(seen) == ["n1"]
    assert "n1" not in {node.name for node in seen.snapshot.nodes}
    assert seen.snapshot.unavailable["n1"] == (
        "it has ended the gangs of 2 jobs since 2026-01-02T02:34Z: default/a (NodeLost), default/b (NodeLost); it "
        "takes none until 2026-01-02T03:54Z, or until it is annotated trimtab.dev/repaired=$(date -u +%FT%TZ)"
    )
    [problem] = [each for each in seen.problems if each.reason == "BadNode"]
    assert (problem.kind, problem.name, problem.uid) == ("Node", "n1", "node-n1")


def test_a_job_that_fails_wherever_it_goes_condemns_no_node() -> None:
    assert bad(look([job("a", *(blow("n1", 50 - each, epoch=each + 1) for each in range(9)))])) == []


def test_what_ends_two_gangs_at_once_is_one_failure() -> None:
    assert bad(look([job("a", blow("n1", 10)), job("b", blow("n1", 9.5))])) == []
    assert bad(look([job("a", blow("n1", 10)), job("b", blow("n1", 9))])) == ["n1"]


@pytest.mark.parametrize(
    "cause", [cause for cause in FailureCause if cause not in (FailureCause.NODE, FailureCause.GPU)]
)
def test_only_nodes_and_gpus_are_blamed(cause: FailureCause) -> None:
    assert bad(look([job("a", blow("n1", 30, cause)), job("b", blow("n1", 10, FailureCause.GPU))])) == []


def test_a_failure_without_a_node_to_blame_condemns_none() -> None:
    assert bad(look([job("a", blow(None, 30)), job("b", blow(None, 10))])) == []


def test_it_comes_back_when_the_last_failure_is_a_window_ago() -> None:
    def at(now: float) -> list[str]:
        observer = ClusterObserver((), failures=Failures(RULES, apart=MINUTE))
        jobs = [job("a", blow("n1", 30)), job("b", blow("n1", 10))]
        return bad(observer.observe(Caches(EIGHT, (), jobs), now))

    assert at(NOW) == ["n1"]
    assert at(NOW + 29 * MINUTE) == ["n1"]
    assert at(NOW + 30 * MINUTE) == []


@pytest.mark.parametrize(
    ("annotation", "held"),
    [(wire(NOW - 5 * MINUTE), []), (wire(NOW - 20 * MINUTE), []), (wire(NOW - 40 * MINUTE), ["n1"]), ("soon", ["n1"])],
)
def test_a_node_that_somebody_has_repaired_since_begins_anew(annotation: str, held: list[str]) -> None:
    there = nodes("n1", metadata=MADE | {"annotations": {names.ANNOTATION_REPAIRED: annotation}})
    assert bad(look([job("a", blow("n1", 30)), job("b", blow("n1", 10))], [*EIGHT[2:], *there])) == held


def test_the_annotation_counts_on_its_gpunode_as_well() -> None:
    heard = GpuNodes(TelemetrySettings())
    mended = {"annotations": {names.ANNOTATION_REPAIRED: wire(NOW)}}
    heard.take(gpunode_object("n1", metadata=mended))
    assert bad(look([job("a", blow("n1", 30)), job("b", blow("n1", 10))], heard=heard)) == []


def test_another_machine_of_the_same_name_is_not_held_for_what_the_last_one_did() -> None:
    there = nodes("n1", metadata={"creationTimestamp": wire(NOW - 5 * MINUTE)})
    assert bad(look([job("a", blow("n1", 30)), job("b", blow("n1", 10))], [*EIGHT[2:], *there])) == []


def test_finished_jobs_remember_as_well() -> None:
    ended = [job_object(name, status=_finished(blow("n1", ago))) for name, ago in (("a", 30), ("b", 10))]
    assert bad(look(ended)) == ["n1"]


def _finished(record: FailureRecord) -> JobStatus:
    meta = job_object().metadata
    status = transitions.completed(JobStatus(), meta, NOW)
    return status.model_copy(update={"failures": (record,), "last_epoch": 1})


def test_where_too_many_nodes_seem_bad_only_the_worst_are_held_back() -> None:
    jobs = [
        job("a", *(blow(f"n{index}", 40 + index, epoch=index + 1) for index in reversed(range(4)))),
        job("b", *(blow(f"n{index}", 20 + index, epoch=index + 1) for index in reversed(range(4)))),
        job("c", blow("n3", 10), blow("n2", 8)),
    ]
    seen = look(jobs)
    assert bad(seen) == ["n2", "n3"]
    told = {problem.name: problem.message for problem in seen.problems if problem.reason == "BadNode"}
    assert told.keys() == {"n0", "n1", "n2", "n3"}
    assert [name for name, said in told.items() if "not acted on" in said] == ["n0", "n1"]


def test_gangs_that_run_on_a_bad_node_stay() -> None:
    status = transitions.planned(JobStatus(), job_object().metadata, plan_of(placement(nodes={"n1": 8})), NOW)
    runs = job_object("runs", status=status)
    seen = look([runs, job("a", blow("n1", 30)), job("b", blow("n1", 10))], pods=[gang_pod("runs", 1, 0, "n1")])
    assert bad(seen) == ["n1"]
    assert [known.placement is not None for known in seen.snapshot.jobs if known.name == "runs"] == [True]


def test_a_gang_on_a_node_that_does_not_answer_is_neither_moved_nor_resized() -> None:
    there = [*nodes("n1"), *nodes("n2", ready="Unknown")]
    runs = [_running(f"on-{name}", name) for name in ("n1", "n2", "n3")]
    movable = {known.name: known.movable_from < math.inf for known in look(runs, there).snapshot.jobs}
    assert movable == {"on-n1": True, "on-n2": False, "on-n3": False}


def _running(name: str, node: str) -> JobObject:
    meta = job_object(name).metadata
    status = transitions.planned(JobStatus(), meta, plan_of(placement(nodes={node: 8})), NOW)
    elastic = {"elasticity.policy": "Elastic"}
    return job_object(name, elastic, transitions.scheduled(status, meta, NOW, all_running=True))


@given(st.lists(st.floats(0, 1000), max_size=20), st.floats(1, 100))
def test_events_are_apart(times: list[float], apart: float) -> None:
    events = count_events(sorted(times), apart)
    assert events <= len(times)
    span = max(times, default=0.0) - min(times, default=0.0)
    assert events <= span / apart + 1
    assert (events >= 1) == bool(times)


# --- who is believed -----------------------------------------------------------------------------------------------
OTHERS = job("others", namespace="team-b")
"""Somebody else is there, who has nothing to say."""


def start(node: str, ago: float, running: bool = False) -> FailureRecord:
    """A gang that could not be started, as a pod's words say."""
    record = blow(node, ago)
    return record.model_copy(update={"reason": "CannotStart", "running": running})


def test_one_tenant_however_many_jobs_condemns_no_node_for_others() -> None:
    lies = [job(f"lie-{number}", start("n1", 5 * number + 5)) for number in range(20)]
    seen = look([*lies, OTHERS])
    assert (bad(seen), suspect(seen)) == ([], {"default": ["n1"]})
    assert seen.snapshot.unavailable == {}
    eligible = {known.name: known.eligible for known in seen.snapshot.jobs}
    assert eligible["others"] is None
    assert "n1" not in (eligible["lie-0"] or ())
    [problem] = [each for each in seen.problems if each.name == "n1"]
    assert problem.reason == "SuspectNode"
    assert "several jobs of namespace default, as their pods say and nobody else does" in problem.message
    more = look([*lies, job("another", start("n1", 1)), OTHERS])
    assert [each for each in more.problems if each.name == "n1"] == [problem]  # no event for every lie
    assert [each.reason for each in seen.problems if each.reason == "BadNode"] == []


def test_a_second_namespace_makes_it_so_for_everybody() -> None:
    seen = look([job("a", start("n1", 30)), job("b", start("n1", 10), namespace="team-b")])
    assert (bad(seen), suspect(seen)) == (["n1"], {})
    one = look([job("a", start("n1", 30)), OTHERS, job("b", start("n2", 10), namespace="team-b")])
    assert (bad(one), suspect(one)) == ([], {})


def test_where_all_jobs_are_of_one_namespace_its_word_is_enough() -> None:
    jobs = [job("a", start("n1", 30)), job("b", start("n1", 10))]
    assert bad(look(jobs)) == ["n1"]
    assert bad(look([*jobs, OTHERS])) == []


def test_what_the_cluster_has_seen_itself_needs_no_second_namespace() -> None:
    assert bad(look([job("a", blow("n1", 30)), job("b", blow("n1", 10)), OTHERS])) == ["n1"]
    gpu = [job(name, blow("n1", ago, FailureCause.GPU)) for name, ago in (("a", 30), ("b", 10))]
    assert bad(look([*gpu, OTHERS])) == ["n1"]
    assert bad(look([job("a", start("n1", 30)), job("b", blow("n1", 10)), OTHERS])) == ["n1"]


def test_the_node_or_its_agent_may_agree_and_programs_cannot_make_it() -> None:
    jobs = [job("a", start("n1", 30)), job("b", start("n1", 10)), OTHERS]
    there = [*nodes("n1", ready="False"), *(node for node in EIGHT if node.metadata.name != "n1")]
    assert bad(look(jobs, there)) == ["n1"]
    for status, agrees in (({"error": "no driver", "gpus": []}, ["n1"]), ({}, [])):
        heard = GpuNodes(TelemetrySettings())
        heard.take(gpunode_object("n1", **status))
        assert bad(look(jobs, heard=heard)) == agrees
    heard = GpuNodes(TelemetrySettings())
    heard.take(gpunode_object("n1", gpus=[gpu_reading(0, faults=[fault(code=13)])]))
    assert bad(look(jobs, heard=heard)) == []
    heard.take(gpunode_object("n1", gpus=[gpu_reading(0, faults=[fault(code=79)])], observed=1))
    assert bad(look(jobs, heard=heard)) == ["n1"]


def test_who_could_not_start_is_no_witness_where_others_have_run_since() -> None:
    lie = job("a", start("n1", 30))
    ran = job("b", start("n1", 10, running=True), namespace="team-b")
    assert bad(look([lie, ran])) == []
    assert bad(look([job("a", start("n1", 30, running=True)), ran])) == ["n1"]
    assert bad(look([job("a", start("n1", 5)), ran])) == ["n1"]
    late = job("c", start("n1", 5), namespace="team-c")
    assert bad(look([lie, late])) == ["n1"]
    runs = _running("runs", "n1")  # since NOW, in the namespace default
    both = [job("a", start("n1", 30), namespace="team-b"), job("b", start("n1", 10), namespace="team-c")]
    assert bad(look([*both, runs])) == []


def test_a_liar_takes_nobodys_share_of_nodes_that_may_be_held_back() -> None:
    lies = [job(f"lie-{n}", *(start(f"n{k}", 50 - 9 * n - k) for k in range(6))) for n in range(3)]
    sick = [job("c", start("n7", 30), namespace="team-c"), job("d", start("n7", 10), namespace="team-d")]
    seen = look([*lies, *sick])
    assert bad(seen) == ["n7"]
    assert len(suspect(seen)["default"]) <= 1


# --- warm spares ---------------------------------------------------------------------------------------------------
AUTO = FailureSettings(spares="Auto", failures_per_node_day=0.1, repair_seconds=86_400, spare_risk=0.05)


def beyond(spares: int, expected: float) -> float:
    """Probability that more nodes than that are out."""
    return 1 - sum(math.exp(-expected) * expected**k / math.factorial(k) for k in range(spares + 1))


@given(st.integers(0, 150), st.floats(0.0001, 0.5), st.floats(0.001, 0.5))
def test_spares_are_the_fewest_that_suffice(busy: int, rate: float, risk: float) -> None:
    rules = FailureSettings(failures_per_node_day=rate, repair_seconds=86_400, spare_risk=risk)
    spares, expected = spares_needed(busy, rules), busy * rate
    assert beyond(spares, expected) <= risk + 1e-9 or spares == busy
    assert spares == 0 or beyond(spares - 1, expected) > risk - 1e-9


def test_figures_of_real_clusters() -> None:
    assert [spares_needed(busy, FailureSettings()) for busy in (0, 8, 32, 128, 512, 2048)] == [0, 0, 1, 2, 5, 13]
    assert spares_needed(100_000, AUTO.model_copy(update={"repair_seconds": 7 * 86_400})) == 70_435


def busy(*there: str) -> JobObject:
    status = transitions.planned(
        JobStatus(), job_object().metadata, plan_of(placement(nodes=dict.fromkeys(there, 8))), NOW
    )
    return job_object("busy", status=status)


FOUR = [f"n{index}" for index in range(4)]
WAITS = job_object("waits")
BEREFT = job("bereft", blow("n9", 1))


def test_free_nodes_are_kept_from_jobs_that_wait() -> None:
    seen = look([busy(*FOUR), WAITS], rules=AUTO)
    assert seen.held.spares == {"n4": "A100-SXM4-80GB", "n5": "A100-SXM4-80GB"}
    assert {seen.snapshot.unavailable[name] for name in seen.held.spares} == {KEPT}
    assert {node.name for node in seen.snapshot.nodes} == {*FOUR, "n6", "n7"}


def test_nothing_is_kept_unless_it_is_asked_for() -> None:
    assert look([busy(*FOUR), WAITS]).held.spares == {}


def test_a_job_whose_node_has_failed_may_have_a_spare_and_nobody_else() -> None:
    seen = look([busy(*FOUR), WAITS, BEREFT], rules=AUTO)
    eligible = {known.name: known.eligible for known in seen.snapshot.jobs if known.placement is None}
    assert eligible == {"bereft": None, "waits": (*FOUR, "n6", "n7")}
    assert seen.snapshot.unavailable == {}


def test_a_job_that_has_failed_by_itself_may_not() -> None:
    own = job("own", blow(None, 1, FailureCause.PROGRAM))
    earlier = job("earlier", blow("n9", 1), last_epoch=2)
    seen = look([busy(*FOUR), own, earlier], rules=AUTO)
    assert seen.held.bereft == frozenset()
    assert set(seen.held.spares) <= seen.snapshot.unavailable.keys()


def test_nodes_in_the_smallest_groups_are_kept_first() -> None:
    racks = {"n4": "r1", "n5": "r1", "n6": "r2", "n7": "r1"}
    there = [*nodes(*FOUR), *(node_object(name, metadata=MADE, labels={"rack": rack}) for name, rack in racks.items())]
    observer = ClusterObserver((("rack",),), failures=Failures(AUTO))
    seen = observer.observe(Caches(there, (), [busy(*FOUR)]), NOW)
    assert sorted(seen.held.spares) == ["n4", "n6"]


def test_a_node_that_is_used_bad_or_cordoned_is_no_spare() -> None:
    there = [*nodes(*FOUR, "n4", "n5", "n7"), *nodes("n6", spec={"unschedulable": True})]
    jobs = [busy(*FOUR), job("a", blow("n4", 30)), job("b", blow("n4", 10))]
    pods = [gang_pod("other", 1, 0, "n5")]
    assert look(jobs, there, pods, rules=AUTO.model_copy(update={"bad_node_seconds": WINDOW})).held.spares == {
        "n7": "A100-SXM4-80GB"
    }
