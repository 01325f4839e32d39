"""What a look keeps for the next one changes nothing but what it costs: whatever happens, and whenever."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from msgspec.structs import replace
from tests.builders import (
    H100,
    MOMENT,
    NOW,
    gang_pod,
    gpu_reading,
    gpunode_object,
    job_object,
    leaving,
    node_object,
    placement,
    plan_of,
    pod_object,
    priority_class,
    queue_object,
)

from trimtab import names
from trimtab.api.history import FailureCause, FailureRecord, StopRecord
from trimtab.api.status import Condition, JobStatus, Observed, PlanTerms, StopRequest, TrainerStatus
from trimtab.controller.loop.rounds import GpuFigures
from trimtab.kube.objects import JobObject, NodeObject, PodObject, QueueObject
from trimtab.observe.ends import Ends
from trimtab.observe.failures import Failures
from trimtab.observe.gpunodes import GpuNodes
from trimtab.observe.kept import Each, Kept, Same
from trimtab.observe.node_usage import Claim
from trimtab.observe.running import Mobility
from trimtab.observe.shown_jobs import GROWS_SECONDS
from trimtab.observe.snapshot import Caches, ClusterObserver, Observation
from trimtab.observe.stragglers import Stragglers
from trimtab.settings import FailureSettings, TelemetrySettings
from trimtab.telemetry import metrics
from trimtab_policy.types import Job, Pending, PendingReason, StopCause

NODES, JOBS = ("n1", "n2", "n3"), ("a", "b", "c")
RULES = FailureSettings(spares="Auto", bad_node_gangs=1, bad_node_seconds=3600, failures_per_node_day=0.5)
LEVELS = (("zone",),)
ON = st.sampled_from(NODES)


def condition(kind: str, seconds: float) -> Condition:
    told: dict[str, Any] = {"type": kind, "status": "True", "reason": "x"}
    return Condition(**told, last_transition_time=MOMENT - timedelta(seconds=seconds))


def observer(heard: GpuNodes, slow: Stragglers, ends: Ends) -> ClusterObserver:
    return ClusterObserver(LEVELS, heard, slow, failures=Failures(RULES, share=1.0), considered=2, ends=ends)


class Histories(RuleBasedStateMachine):
    """A cluster to which anything may happen. One observer has seen it all; after each event its observation is that of
    one that has seen nothing, and only remembers what gangs and agents have said."""

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.heard = GpuNodes(TelemetrySettings(), clock=lambda: self.now, wall=lambda: self.now)
        self.memory = Stragglers(), Ends()
        self.observer = observer(self.heard, Stragglers(), Ends())
        self.nodes: dict[str, NodeObject] = {name: node_object(name) for name in NODES[:2]}
        self.pods: dict[str, PodObject] = {}
        self.jobs: dict[str, JobObject] = {}
        self.told: dict[str, tuple[JobStatus, dict[str, Any], dict[str, Any]]] = {}
        """Status, spec and metadata of the jobs that make sense."""
        self.queues: dict[str, QueueObject] = {}
        self.classes = [priority_class("high", 100)]
        self.promised: list[Claim] = []
        self.avoided: dict[str, frozenset[str]] = {}
        self.held_back: dict[str, Pending | None] = {}
        self.less: set[str] = set()
        self.versions = 1
        self.figures = GpuFigures()

    def version(self) -> str:
        self.versions += 1
        return str(self.versions)

    # --- nodes --------------------------------------------------------------------------------------------------------
    @rule(
        name=ON,
        ready=st.sampled_from(["True", "True", "False", "Unknown"]),
        gpus=st.sampled_from(["8", "8", "4", None]),
        zone=st.sampled_from(["x", "y", None]),
        cordoned=st.booleans(),
        tainted=st.booleans(),
        other=st.booleans(),
    )
    def a_node_changes(
        self, name: str, ready: str, gpus: str | None, zone: str | None, cordoned: bool, tainted: bool, other: bool
    ) -> None:
        taints = [{"key": "mine", "effect": "NoSchedule"}] if tainted else []
        self.nodes[name] = node_object(
            name,
            *([H100] if other else []),
            ready=ready,
            labels={"zone": zone},
            allocatable={names.NVIDIA_GPU: gpus},
            spec={"unschedulable": cordoned, "taints": taints},
            metadata={"resourceVersion": self.version()},
        )

    @rule(name=ON)
    def a_node_goes(self, name: str) -> None:
        self.nodes.pop(name, None)

    @rule(name=ON, busy=st.booleans(), clock=st.sampled_from([1.4e9, 0.7e9]))
    def an_agent_reports(self, name: str, busy: bool, clock: float) -> None:
        load = {"smUtilizationPercent": 95, "smClockHertz": clock, "smClockMaxHertz": 1.4e9} if busy else {}
        gpus = [gpu_reading(index, name, **load) for index in range(8)]
        self.heard.take(gpunode_object(name, gpus, observed=int(10 * (self.now - NOW)) + self.versions))

    # --- jobs ---------------------------------------------------------------------------------------------------------
    def put(self, name: str, status: JobStatus, spec: dict[str, Any] | None = None, **meta: Any) -> None:
        self.told[name] = status, spec or {}, meta
        self.jobs[name] = job_object(name, spec, status, resource_version=self.version(), **meta)

    @rule(
        name=st.sampled_from(JOBS),
        queue=st.sampled_from([None, "q", "none"]),
        priority=st.sampled_from([None, "high", "none"]),
        back=st.sampled_from([0, 30, 100, 4000]),
        failed=st.sampled_from([None, 10, 3000]),
        suspended=st.booleans(),
        selective=st.booleans(),
    )
    def a_job_waits(
        self,
        name: str,
        queue: str | None,
        priority: str | None,
        back: int,
        failed: int | None,
        suspended: bool,
        selective: bool,
    ) -> None:
        spec: dict[str, Any] = {"queue": queue, "priorityClassName": priority, "suspend": suspended}
        if selective:
            spec["template.spec.nodeSelector"] = {"zone": "x"}
        told: dict[str, Any] = {"retry_time": self.moment(back)} if back else {}
        if failed is not None:
            told |= {"failures": (self.failure(failed),), "last_epoch": 1}
        self.put(name, JobStatus(**told), spec)

    @rule(
        name=st.sampled_from(JOBS),
        shares=st.dictionaries(ON, st.sampled_from([2, 4, 8]), min_size=1, max_size=2),
        epoch=st.integers(1, 2),
        state=st.sampled_from(["planned", "runs", "runs", "stops", "moves", "ended"]),
        waits=st.sampled_from([None, *JOBS]),
        remaining=st.sampled_from([None, 20, 500]),
        failed=st.sampled_from([None, 3000]),
        deleted=st.booleans(),
        termed=st.booleans(),
    )
    def a_job_has_a_plan(
        self,
        name: str,
        shares: dict[str, int],
        epoch: int,
        state: str,
        waits: str | None,
        remaining: int | None,
        failed: int | None,
        deleted: bool,
        termed: bool,
    ) -> None:
        after = (leaving(waits),) if waits and waits != name else ()
        terms = PlanTerms(queue="q", priority=7, cpu_millis_per_gpu=0, memory_bytes_per_gpu=0) if termed else None
        plan = plan_of(placement(f"uid-{name}", shares), epoch, now=self.moment(-300), waits_for=after, terms=terms)
        told: dict[str, Any] = {"plan": plan, "last_epoch": epoch}
        if state != "planned":
            conditions = (condition(names.GANG_SCHEDULED, 300 + NOW - self.now), condition(names.PODS_READY, 200))
            told |= {"conditions": conditions, "start_time": self.moment(-300)}
        if state == "ended":
            told["conditions"] = (condition(names.COMPLETE, 0),)
        if state in ("stops", "moves"):
            then = plan_of(placement(f"uid-{name}", {"n3": 8}), epoch + 1) if state == "moves" else None
            told["stop"] = StopRequest(
                epoch=epoch,
                cause=StopCause.MOVED,
                message="it moves",
                requested_time=self.moment(0),
                deadline_time=self.moment(60),
                successor=then,
            )
        if remaining is not None:
            told["observed"] = Observed(epoch=epoch, step_milliseconds=500, steps_done=10)
            told["trainer_status"] = TrainerStatus(
                estimated_remaining_seconds=remaining, last_updated_time=self.moment(0)
            )
        if failed is not None:
            told["failures"] = (self.failure(failed),)
            told["stops"] = (StopRecord(time=self.moment(-failed), epoch=1, cause=StopCause.MOVED),)
        gone = {"deletion_timestamp": "2026-01-02T03:04:05Z"} if deleted else {}
        self.put(name, JobStatus(**told), {"elasticity.policy": "Elastic"}, **gone)

    def moment(self, seconds: float) -> Any:
        return MOMENT + timedelta(seconds=self.now - NOW + seconds)

    def failure(self, seconds: float) -> FailureRecord:
        found = {"time": self.moment(-seconds), "epoch": 1, "cause": FailureCause.GPU, "reason": "x", "node": "n1"}
        return FailureRecord.model_validate(found)

    @precondition(lambda self: self.told)
    @rule(data=st.data(), remaining=st.sampled_from([20, 500, 1000]), cpu=st.sampled_from([None, "4"]))
    def a_job_changes(self, data: st.DataObject, remaining: int, cpu: str | None) -> None:
        """Its training says when it will end; or somebody edits its template."""
        name = data.draw(st.sampled_from(sorted(self.told)))
        status, spec, meta = self.told[name]
        if status.plan:
            seen = Observed(epoch=status.plan.epoch, step_milliseconds=500, steps_done=10)
            said = TrainerStatus(estimated_remaining_seconds=remaining, last_updated_time=self.moment(0))
            status = status.model_copy(update={"observed": seen, "trainer_status": said})
        asks = {"template.spec.containers.0.resources": {"requests": {"cpu": cpu}}} if cpu else {}
        self.put(name, status, spec | asks, **meta)

    @rule(name=st.sampled_from(JOBS))
    def a_job_goes(self, name: str) -> None:
        self.jobs.pop(name, None)
        self.told.pop(name, None)

    @rule(name=st.sampled_from(JOBS))
    def a_job_makes_no_sense(self, name: str) -> None:
        self.put(name, JobStatus(), {"training.steps": -1})
        del self.told[name]

    # --- pods ---------------------------------------------------------------------------------------------------------
    @rule(
        job=st.sampled_from(JOBS),
        epoch=st.integers(1, 2),
        rank=st.integers(0, 1),
        node=st.sampled_from(["", *NODES]),
        phase=st.sampled_from(["Pending", "Running", "Running", "Failed"]),
        ends=st.sampled_from([None, None, 0, 50, 100]),
        stranger=st.booleans(),
    )
    def a_pod_of_a_gang_changes(
        self, job: str, epoch: int, rank: int, node: str, phase: str, ends: float | None, stranger: bool
    ) -> None:
        meta: dict[str, Any] = {"resourceVersion": self.version()}
        if ends is not None:
            meta["deletionTimestamp"] = f"{self.moment(ends):%Y-%m-%dT%H:%M:%SZ}"
        if stranger:
            meta["namespace"] = "other"
        made = gang_pod(job, epoch, rank, node, gpus=4, phase=phase, metadata=meta)
        self.pods[made.metadata.key] = made

    @rule(name=st.sampled_from(["x", "y"]), node=ON, gpus=st.integers(0, 4))
    def a_pod_of_somebody_comes(self, name: str, node: str, gpus: int) -> None:
        self.pods[name] = pod_object(name, node, gpus=gpus)

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def a_pod_goes(self, data: st.DataObject) -> None:
        del self.pods[data.draw(st.sampled_from(sorted(self.pods)))]

    # --- what is said about jobs ----------------------------------------------------------------------------------
    @rule(gpus=st.integers(0, 32), there=st.booleans())
    def a_queue_changes(self, gpus: int, there: bool) -> None:
        self.queues = {"q": queue_object("q", {"gpuType": "*", "gpus": gpus})} if there else {}

    @rule(value=st.integers(0, 3))
    def a_class_changes(self, value: int) -> None:
        self.classes = [priority_class("high", value), priority_class("usual", 1, default=True)][: value % 3]

    @rule(name=st.sampled_from(JOBS), node=ON, after=st.booleans())
    def a_plan_is_decided(self, name: str, node: str, after: bool) -> None:
        digest = job_object("a").metadata.identity.digest
        self.promised = [Claim(f"uid-{name}", 1, placement(f"uid-{name}", {node: 4}), ((digest, 1),) if after else ())]

    @rule()
    def decisions_are_written(self) -> None:
        self.promised = []

    @rule(name=st.sampled_from(JOBS), node=ON, avoids=st.booleans(), waits=st.sampled_from([None, True, False]))
    def a_job_is_kept_back(self, name: str, node: str, avoids: bool, waits: bool | None) -> None:
        uid = f"uid-{name}"
        why = Pending(uid, PendingReason.DECISION_FAILED, "x")
        self.avoided = {uid: frozenset({node})} if avoids else {}
        self.held_back = {} if waits is None else {uid: why if waits else None}

    @rule(name=st.sampled_from(JOBS))
    def kueue_gives_less_or_no_longer(self, name: str) -> None:
        self.less ^= {name}

    # --- time ---------------------------------------------------------------------------------------------------------
    @rule(seconds=st.sampled_from([1, 10, 40, 61, 121, 301, 601, 3601]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def the_clock_is_set_back(self) -> None:
        self.now -= 30

    @rule()
    def everything_is_listed_anew(self) -> None:
        self.nodes, self.pods, self.jobs = (copy.deepcopy(each) for each in (self.nodes, self.pods, self.jobs))

    # --- and then -----------------------------------------------------------------------------------------------------
    def look(self, by: ClusterObserver) -> Observation:
        some = {name: by.job(job) for name, job in self.jobs.items() if name in self.less}
        limited = {
            facts.meta.uid: replace(facts, requirements=replace(facts.requirements, cpu_milli_per_pod=17))
            for facts in some.values()
            if facts.requirements
        }
        caches = Caches(self.nodes.values(), self.pods.values(), self.jobs.values(), self.queues.values(), self.classes)
        return by.observe(caches, self.now, list(self.promised), dict(self.avoided), dict(self.held_back), limited)

    @invariant()
    def what_is_kept_is_what_is_so(self) -> None:
        seen, known = self.look(self.observer), self.look(observer(self.heard, *self.memory))
        seen = brought_up_to_date(seen, known)
        for name in seen.snapshot.__struct_fields__:
            assert getattr(seen.snapshot, name) == getattr(known.snapshot, name), name
        for name in seen.__struct_fields__:
            assert getattr(seen, name) == getattr(known, name), name
        assert published(self.figures, seen) == published(GpuFigures(), known)


def brought_up_to_date(seen: Observation, known: Observation) -> Observation:
    """With what grows with the time as it is by now: it may be a few seconds old."""
    latest, jobs = {job.uid: job for job in known.snapshot.jobs}, list[Job]()
    for job in seen.snapshot.jobs:
        by_now = latest.get(job.uid, job)
        gpus = job.placement.gpus if job.placement else 0
        assert 0 <= by_now.lost_seconds - job.lost_seconds < GROWS_SECONDS
        assert 0 <= sum(by_now.served.values()) - sum(job.served.values()) < GROWS_SECONDS * gpus or not gpus
        jobs.append(replace(job, lost_seconds=by_now.lost_seconds, served=by_now.served))
    return replace(seen, snapshot=replace(seen.snapshot, jobs=tuple(jobs)))


def published(figures: GpuFigures, seen: Observation) -> set[tuple[tuple[str, str], ...]]:
    figures.publish(seen)
    [family] = metrics.GPUS.collect()
    return {(*sorted(sample.labels.items()), ("value", str(sample.value))) for sample in family.samples}


def test_what_is_kept_is_what_is_so_whatever_happens() -> None:
    run_state_machine_as_test(
        Histories,
        settings=settings(
            max_examples=100, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


# --- time ------------------------------------------------------------------------------------------------------------
READY = (condition(names.PODS_READY, 60.0),)
RUNNING = JobStatus(plan=plan_of(placement(nodes={"n1": 8})), last_epoch=1, conditions=READY, start_time=MOMENT)
LATE = RUNNING.model_copy(
    update={
        "observed": Observed(epoch=1, step_milliseconds=500, steps_done=10),
        "trainer_status": TrainerStatus(estimated_remaining_seconds=100, last_updated_time=MOMENT),
    }
)
SOON = JobStatus(retry_time=MOMENT + timedelta(seconds=100))
BLOW = FailureRecord.model_validate(
    {"time": MOMENT, "epoch": 1, "cause": FailureCause.GPU, "reason": "x", "node": "n1", "running": True}
)
GOES = gang_pod("gone", 1, 0, "n1", phase="Running", metadata={"deletionTimestamp": "2026-01-02T03:06:05Z"})
ELASTIC = {"elasticity.policy": "Elastic", "elasticity.minRuntimeSeconds": 600}


@pytest.mark.parametrize(
    ("job", "told", "moments"),
    [
        (job_object(spec=ELASTIC, status=RUNNING), lambda seen: seen.snapshot.jobs[0].preemptible, {600: True}),
        (job_object(status=SOON), lambda seen: bool(seen.snapshot.jobs), {40: True}),
        (job_object(status=JobStatus(failures=(BLOW,))), lambda seen: "n1" in seen.snapshot.unavailable, {3600: False}),
        (None, lambda seen: seen.snapshot.ending, {60: {"n1": 8}, 240: {}}),
    ],
    ids=["movable", "back", "bad", "ending"],
)
def test_what_comes_with_the_time_is_seen_when_it_has_come(
    job: JobObject | None, told: Callable[[Observation], object], moments: dict[float, object]
) -> None:
    caches = Caches([node_object("n1", metadata={"creationTimestamp": "2025-01-01T00:00:00Z"})], [], [])
    caches = replace(caches, jobs=[job]) if job else replace(caches, pods=[GOES])
    looks = ClusterObserver((), failures=Failures(RULES, share=1.0))
    for after, then in moments.items():
        before = told(looks.observe(caches, NOW + after - 1))
        assert before != then
        assert told(looks.observe(caches, NOW + after)) == then


def test_a_running_job_is_the_very_same_for_some_seconds_and_then_what_grows_with_the_time_has_grown() -> None:
    caches = Caches([node_object("n1")], [], [job_object(status=LATE)])
    looks = ClusterObserver(())
    first, soon, later, back = (
        looks.observe(caches, NOW + after).snapshot.jobs[0] for after in (0.0, GROWS_SECONDS - 1, GROWS_SECONDS, -5.0)
    )
    assert soon is first
    grown = [(job.lost_seconds, job.served["A100-SXM4-80GB"]) for job in (first, later, back)]
    assert grown == [(60.0, 480.0), (70.0, 560.0), (55.0, 440.0)]


def test_where_pods_run_faster_a_running_job_is_the_very_same_for_so_much_less() -> None:
    caches = Caches([node_object("n1")], [], [job_object(status=LATE)])
    looks = ClusterObserver((), mobility=Mobility(speedup=100.0, fake=True))
    lost = [looks.observe(caches, NOW + after).snapshot.jobs[0].lost_seconds for after in (0.0, 0.09, 0.1)]
    assert lost == [60.0, 60.0, pytest.approx(60.1)]


def test_a_gang_that_has_moved_its_end_is_late_from_its_first_word_on() -> None:
    later = TrainerStatus(estimated_remaining_seconds=1000, last_updated_time=MOMENT)
    put_off = job_object(status=LATE.model_copy(update={"trainer_status": later}))
    caches, looks = Caches([node_object("n1")], [], [job_object(status=LATE)]), ClusterObserver(())

    def end(jobs: Caches, after: float) -> float | None:
        return looks.observe(jobs, NOW + after).snapshot.jobs[0].expected_finish

    assert end(caches, 0) == NOW + 100
    assert end(replace(caches, jobs=[put_off]), 1) == NOW + 1000
    assert end(replace(caches, jobs=[put_off]), 160) == NOW + 1000
    assert end(replace(caches, jobs=[put_off]), 161) == NOW + 100, "a minute after the end that it spoke of at first"


def test_one_thing_that_is_another_is_enough() -> None:
    """The same objects, but for a class; a node that a job is to avoid; a pod, without which a node was a spare."""
    jobs = [job_object("a", {"priorityClassName": "high"}), job_object(status=RUNNING)]
    caches = Caches([node_object(name) for name in NODES], [], jobs, [], [priority_class("high", 100)])
    dearer = replace(caches, priority_classes=[priority_class("high", 200)])
    fuller = replace(caches, pods=[pod_object("x", "n2", gpus=8)])
    looks = ClusterObserver((), failures=Failures(RULES, share=1.0))

    def seen(now: Caches, *avoided: str) -> Observation:
        return looks.observe(now, NOW, avoided={"uid-a": frozenset(avoided)} if avoided else {})

    def waiting(found: Observation) -> Job:
        (job,) = (each for each in found.snapshot.jobs if each.uid == "uid-a")
        return job

    assert [waiting(seen(each)).priority for each in (caches, caches, dearer)] == [100, 100, 200]
    assert [waiting(seen(dearer, *each)).eligible for each in ((), ("n1",))] == [None, ("n3",)]
    assert [list(seen(each).snapshot.unavailable) for each in (caches, fuller)] == [["n2"], ["n3"]]


def test_nothing_is_made_anew_where_nothing_has_changed() -> None:
    caches = Caches([node_object("n1")], [gang_pod("job", 1, 0, "n1", phase="Running")], [job_object(status=RUNNING)])
    looks = ClusterObserver(())
    first, second = looks.observe(caches, NOW), looks.observe(caches, NOW + 1)
    assert first.jobs is second.jobs
    assert first.nodes is second.nodes
    assert first.snapshot.nodes is second.snapshot.nodes
    assert first.snapshot.jobs[0].model is second.snapshot.jobs[0].model
    more = replace(caches, jobs=[*caches.jobs, job_object("other")])
    assert looks.observe(more, NOW + 2).snapshot.nodes is first.snapshot.nodes


def test_a_step_is_made_anew_with_other_parts_and_when_its_time_has_come() -> None:
    kept: Kept[list[float]] = Kept(until=lambda made: made[0] + 10)
    one, other = object(), object()

    def at(now: float, *parts: object) -> float:
        return kept.of(parts, lambda: [now], now)[0]

    assert [at(1, one), at(2, one), at(10.5, one), at(11, one)] == [1, 1, 1, 11]
    assert [at(12, other), at(13, one, other), at(14, one, other)] == [12, 13, 13]
    assert at(3, one, other) == 3  # a clock that was set back


def test_what_fails_is_not_kept() -> None:
    kept: Kept[int] = Kept()
    with pytest.raises(ZeroDivisionError):
        kept.of((), lambda: 1 // 0)
    assert kept.of((), lambda: 1) == 1


def test_of_equal_values_there_is_one() -> None:
    same: Same[list[int]] = Same()
    first = same.of([1])
    assert same.of([1]) is first
    assert same.of([2]) == [2]
    assert same.of([1]) is not first


class Thing:
    """Says something, or nothing, and how often it was asked."""

    def __init__(self, says: int | None) -> None:
        self.says, self.asked = says, 0

    def ask(self, more: int) -> int | None:
        self.asked += 1
        return None if self.says is None else self.says + more


@given(
    st.lists(
        st.tuples(st.sampled_from("abcde"), st.sampled_from(["new", "gone"]), st.sampled_from([None, 0, 1])),
        max_size=12,
    )
)
def test_each_of_many_is_asked_once_and_all_answers_are_as_if_all_were_asked(
    events: list[tuple[str, str, int | None]],
) -> None:
    each: Each[int] = Each()
    things: dict[str, Thing] = {}
    before = each.of({}, Thing.ask)
    for key, event, says in events:
        things = {other: thing for other, thing in things.items() if other != key}
        if event == "new":
            things[key] = Thing(says)
        found = each.of(things, lambda thing: thing.ask(0))
        assert found == {key: thing.says for key, thing in things.items() if thing.says is not None}
        assert all(thing.asked == 1 for thing in things.values())
        assert (found is before) == (found == before)
        before = found


def test_all_are_asked_again_where_answers_depend_on_something_else() -> None:
    each, things, one, other = Each[int](), {"a": Thing(1), "b": Thing(None)}, object(), object()
    first = each.of(things, lambda thing: thing.ask(0), one)
    assert first == {"a": 1}
    assert each.of(dict(things), lambda thing: thing.ask(10), one) is first, "the same things, the same answers"
    assert each.of(things, lambda thing: thing.ask(10), other) == {"a": 11}
    assert [thing.asked for thing in things.values()] == [2, 2]


def test_one_that_fails_to_answer_is_asked_again() -> None:
    each, things = Each[float](), {"a": 0}
    with pytest.raises(ZeroDivisionError):
        each.of(things, lambda thing: 1 / thing)
    assert each.of(things, lambda thing: thing + 1.0) == {"a": 1.0}
