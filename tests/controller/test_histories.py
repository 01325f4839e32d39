"""Histories of whole rounds, with all inputs at the edges of what the API server admits: every round has an answer.

Jobs, queues, nodes, pods, agents and trainings say whatever they may; time passes, or goes back. After everything that
happens the controller looks, decides by some policy, and writes down what it decided, as the real one does but for the
API server in between. Whatever was said: no policy and no stage fails or is late, each job that waits is answered for
once, every figure is finite, and every status can be read again.

`TRIMTAB_HISTORIES` says how many (a few dozen by default; `hack/fuzz rounds` runs them by the ten thousand).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from tests import extremes
from tests.builders import NOW, priority_class

from trimtab import names
from trimtab.api.convert import to_plan
from trimtab.api.status import JobStatus
from trimtab.apply import transitions
from trimtab.apply.gang_failures import GangFailure
from trimtab.controller.jobs import pending_status
from trimtab.controller.reports.progress import Body, MeasuredSteps, ProgressReports, ReportRefused
from trimtab.decide.engine import Engine
from trimtab.decide.rules import rules_of
from trimtab.kube.objects import JobObject, NodeObject, PodObject, QueueObject
from trimtab.observe import calibration
from trimtab.observe.gpunodes import GpuNodes
from trimtab.observe.jobs import JobFacts
from trimtab.observe.running import Mobility
from trimtab.observe.snapshot import Caches, ClusterObserver, Observation
from trimtab.observe.stragglers import Stragglers
from trimtab.plan import objects
from trimtab.plan.gang import gang_plan
from trimtab.settings import Settings, TelemetrySettings
from trimtab.telemetry.metrics import REGISTRY
from trimtab_policy import policy
from trimtab_policy.perf import correction
from trimtab_policy.perf.correction import Corrections
from trimtab_policy.perf.hierarchy import Learned
from trimtab_policy.perf.lessons import State, anonymous, key_of
from trimtab_policy.scheduling.choice import Choice
from trimtab_policy.scheduling.results import Outcome
from trimtab_policy.types import Job, Placement, Snapshot

HISTORIES = int(os.environ.get("TRIMTAB_HISTORIES", "40"))
DEADLINE = 20.0
SETTINGS = Settings()
NODES = [f"n{i}" for i in range(6)]
NAMESPACES = ["team-a", "team-b", "team-c"]
NAMES = ["one", "two", "three"]
POLICIES = [name for name in policy.names() if name not in ("pollux", "random")]
"""All but the ones that search by chance, for as long as they are given: a thousand histories would take hours."""
SELDOM = ["pollux", "random"]
CLASSES = [priority_class("high", 2**31 - 1), priority_class("low", -(2**31))]


def isolated() -> float:
    """Errors that cost an object or a part of a round so far."""
    return sum(
        sample.value
        for family in REGISTRY.collect()
        for sample in family.samples
        if sample.name == "trimtab_isolated_errors_total"
    )


class Rounds(RuleBasedStateMachine):
    """A small cluster, and a controller without an API server."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.moment = NOW, 0.0
        self.nodes: dict[str, NodeObject] = {}
        self.jobs: dict[str, tuple[JobObject, JobStatus]] = {}
        self.pods: dict[str, PodObject] = {}
        self.queues: dict[str, QueueObject] = {}
        self.heard = GpuNodes(TelemetrySettings(), clock=lambda: self.moment, wall=lambda: self.now)
        mobility = Mobility(most_runtime=0.0)
        self.observer = ClusterObserver((("topology.kubernetes.io/zone",),), self.heard, Stragglers(), mobility)
        self.engine = Engine()
        self.lessons = State()
        self.progress = ProgressReports(
            self, self.observer.job, news=lambda uid: None, learn=self.learn, clock=lambda: self.moment
        )
        self.reported = 0
        self.isolated = isolated()

    # --- the cluster, as a controller has it --------------------------------------------------------------------------
    def job_named(self, key: str) -> JobObject | None:
        return self.jobs[key][0] if key in self.jobs else None

    def pods_of(self, job: str) -> tuple[PodObject, ...]:
        return tuple(pod for pod in self.pods.values() if pod.metadata.job and pod.metadata.job.digest == job)

    def facts(self, key: str) -> JobFacts:
        return self.observer.job(self.jobs[key][0])

    def learn(self, measured: MeasuredSteps) -> None:
        job = measured.facts.as_job(created=0.0)
        key = key_of(job, measured.plan.gpu_type, placement_of(measured).plan)
        error = math.log(measured.seconds / (measured.plan.predicted.step_milliseconds / 1000))
        self.lessons = correction.learn(self.lessons, key, job.uid, error, namespace=anonymous(job.namespace))

    def write(self, key: str, status: JobStatus) -> None:
        """What the API server would store, and what is read of it again."""
        stored = json.dumps(status.to_wire()).encode()
        again = JobStatus.model_validate_json(stored)
        before = self.jobs[key][0]
        self.jobs[key] = JobObject(before.metadata, before.spec, msgspec.Raw(stored)), again

    # --- what happens -------------------------------------------------------------------------------------------------
    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        for name in NODES:
            self.nodes[name] = data.draw(extremes.nodes(name))
        for namespace in NAMESPACES[: data.draw(st.integers(1, 3))]:
            self.submit(data, namespace, "one")

    @rule(data=st.data(), name=st.sampled_from(NODES))
    def a_node_comes_or_changes(self, data: st.DataObject, name: str) -> None:
        self.nodes[name] = data.draw(extremes.nodes(name))
        self.round(data)

    @rule(name=st.sampled_from(NODES))
    def a_node_goes(self, name: str) -> None:
        if len(self.nodes) > 1:
            self.nodes.pop(name, None)

    @rule(data=st.data(), namespace=st.sampled_from(NAMESPACES), name=st.sampled_from(NAMES))
    def submit(self, data: st.DataObject, namespace: str, name: str) -> None:
        key = f"{namespace}/{name}"
        spec = data.draw(extremes.job_specs())
        before, status = self.jobs.get(key, (None, JobStatus()))
        generation = before.metadata.generation + 1 if before else 1
        if status.plan and before:
            spec |= {field: json.loads(bytes(before.spec))[field] for field in ("model", "training", "template")}
        made = extremes.job_object_of(
            name, namespace, spec, json.dumps(status.to_wire()).encode(), generation=generation
        )
        self.jobs[key] = made, status
        self.round(data)

    @rule(data=st.data(), name=st.sampled_from(["q", "a"]))
    def a_queue_comes_or_changes(self, data: st.DataObject, name: str) -> None:
        self.queues[name] = data.draw(extremes.queues(name, NAMESPACES))
        self.round(data)

    @rule(data=st.data(), namespace=st.sampled_from(NAMESPACES), node=st.sampled_from(NODES))
    def a_stranger_comes(self, data: st.DataObject, namespace: str, node: str) -> None:
        self.pods["stranger"] = data.draw(extremes.strangers("stranger", node, namespace))

    @rule(data=st.data(), name=st.sampled_from(NODES))
    def an_agent_reports(self, data: st.DataObject, name: str) -> None:
        self.reported += 1
        self.heard.take(data.draw(extremes.gpunodes(name, self.reported)))
        self.round(data)

    @rule(data=st.data(), key=st.sampled_from([f"{n}/{j}" for n in NAMESPACES for j in NAMES]))
    def a_training_reports(self, data: st.DataObject, key: str) -> None:
        if key not in self.jobs or not (plan := self.jobs[key][1].plan):
            return
        facts, body = self.facts(key), data.draw(extremes.reports())
        self.moment += 10.0
        pod = f"pod-{facts.meta.uid}-{plan.epoch}-0"
        for later in range(2):
            self.moment += 10.0
            body["step"] += later * 20
            try:
                said = msgspec.convert({"job": key, "epoch": plan.epoch} | body, Body)
                self.progress.take(said, pod)
            except (ReportRefused, msgspec.ValidationError):
                return
        facts = self.facts(key)
        if report := self.progress.report(facts.meta.uid, facts):
            self.write(key, transitions.reported(facts.status, facts.meta, report, self.now))
        self.round(data)

    @rule(data=st.data(), seconds=st.sampled_from([1.0, 60.0, 3600.0, 86_400.0, 10 * 365 * 86_400.0, -3600.0]))
    def time_passes(self, data: st.DataObject, seconds: float) -> None:
        self.now, self.moment = self.now + seconds, self.moment + abs(seconds)
        self.round(data)

    @rule(key=st.sampled_from([f"{n}/{j}" for n in NAMESPACES for j in NAMES]), whole=st.booleans())
    def a_job_is_deleted(self, key: str, whole: bool) -> None:
        """Its pods may stay for a while; the object, too, where a finalizer keeps it."""
        if key not in self.jobs:
            return
        before, status = self.jobs[key]
        if whole:
            del self.jobs[key]
            return
        meta = msgspec.structs.replace(before.metadata, deletion_timestamp="2026-01-02T03:04:05Z")
        self.jobs[key] = JobObject(meta, before.spec, before.status), status

    @rule(key=st.sampled_from([f"{n}/{j}" for n in NAMESPACES for j in NAMES]), gone=st.booleans())
    def a_gang_ends(self, key: str, gone: bool) -> None:
        if key in self.jobs and self.jobs[key][1].plan:
            facts = self.facts(key)
            status = transitions.set_back(
                facts.status, facts.meta, GangFailure("PodFailed", "x"), self.now, (1.0, 60.0)
            )
            self.write(key, status)
            if gone:
                self.pods = {name: pod for name, pod in self.pods.items() if pod.metadata.job != facts.meta.identity}

    # --- a round -----------------------------------------------------------------------------------------------------
    def round(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from(POLICIES) if data.draw(st.integers(0, 49)) else st.sampled_from(SELDOM))
        seen = self.look()
        assert_finite(seen.snapshot)
        choice = Choice(chosen, "fcfs", deadline_seconds=DEADLINE)
        outcome = self.engine.decide(seen.snapshot, choice, rules_of(SETTINGS, resize=True, live=True))
        self.check(seen, outcome)
        for pending in (*outcome.pending, *seen.refused.values()):
            facts = seen.jobs[pending.job]
            if told := pending_status.told(pending, facts, ()):
                self.write(facts.meta.key, transitions.waiting(facts.status, facts.meta, told, self.now))
        waits = {uid for uids in outcome.waits.values() for uid in uids}
        for placement in outcome.placements:
            if placement.job not in outcome.waits and placement.job not in waits:
                self.start(seen.jobs[placement.job], placement, chosen)

    def look(self) -> Observation:
        caches = Caches(
            self.nodes.values(),
            self.pods.values(),
            [job for job, _ in self.jobs.values()],
            self.queues.values(),
            CLASSES,
        )
        seen = self.observer.observe(caches, self.now)
        known = Corrections(Learned(self.lessons))
        return msgspec.structs.replace(seen, snapshot=calibration.corrected(seen.snapshot, known))

    def check(self, seen: Observation, outcome: Outcome) -> None:
        assert [(each.policy, each.reason, each.message) for each in outcome.fallbacks] == []
        assert outcome.isolated == ()
        assert isolated() == self.isolated
        answered = [placement.job for placement in outcome.placements] + [pending.job for pending in outcome.pending]
        assert sorted(answered) == sorted(job.uid for job in seen.snapshot.waiting())
        assert {*answered} <= outcome.policies.keys()
        for placement in (*outcome.placements, *(move.placement for move in outcome.moves)):
            figures = msgspec.structs.astuple(placement.prediction)
            assert all(math.isfinite(figure) and figure > 0 for figure in figures), placement
        for pending in outcome.pending:
            assert pending.eta is None or all(map(math.isfinite, msgspec.structs.astuple(pending.eta)))
        for reserved in outcome.reserved:
            assert all(map(math.isfinite, (reserved.start, reserved.earliest, reserved.seconds)))

    def start(self, facts: JobFacts, placement: Placement, chosen: str) -> None:
        """Write the plan down, and have its pods run."""
        moment = datetime.fromtimestamp(int(self.now), UTC)
        plan = to_plan(
            placement,
            epoch=(facts.status.last_epoch or 0) + 1,
            policy=chosen,
            resource=names.NVIDIA_GPU,
            generation=facts.meta.generation,
            now=moment,
        )
        status = transitions.planned(facts.status, facts.meta, plan, self.now)
        self.write(facts.meta.key, transitions.scheduled(status, facts.meta, self.now, all_running=True))
        assert facts.spec
        assert facts.training
        gang = gang_plan(facts.meta, facts.spec, facts.template, facts.training, plan)
        json.dumps(objects.service(gang))
        for rank, share in enumerate(placement.shares):
            made = objects.pod(gang, rank)
            made["metadata"]["uid"] = f"pod-{facts.meta.uid}-{plan.epoch}-{rank}"
            made["spec"]["nodeName"] = share.node
            made["status"] = {"phase": "Running"}
            kept = without_nulls(json.loads(json.dumps(made)))
            self.pods[made["metadata"]["uid"]] = msgspec.convert(kept, PodObject)


def without_nulls(value: Any) -> Any:
    """What the API server keeps of a pod: null is the same as absent to it."""
    if isinstance(value, dict):
        return {name: without_nulls(part) for name, part in value.items() if part is not None}
    return [without_nulls(part) for part in value if part is not None] if isinstance(value, list) else value


def placement_of(measured: MeasuredSteps) -> Placement:
    from trimtab.api.convert import to_placement

    return to_placement(measured.facts.meta.uid, measured.plan)


MAY_BE_INFINITE = {"movable_from"}


def assert_finite(snapshot: Snapshot) -> None:
    """All that policies are told is a number, and small enough to reckon with."""
    for node in snapshot.nodes:
        assert all(
            abs(figure) < 1 << 62 for figure in (node.gpus, node.free_gpus, node.free_cpu_milli, node.free_memory)
        )
        assert 0 < node.speed <= 1
    for job in snapshot.jobs:
        for name, figure in figures_of(job):
            assert math.isfinite(figure) or (name in MAY_BE_INFINITE and figure > 0), (name, figure)


def figures_of(job: Job) -> Iterable[tuple[str, float]]:
    for name in job.__struct_fields__:
        value: Any = getattr(job, name)
        if isinstance(value, float | int) and not isinstance(value, bool):
            yield name, value


@pytest.mark.timeout(3600 if HISTORIES > 1000 else 600)
def test_every_round_has_an_answer_whatever_was_said() -> None:
    run_state_machine_as_test(
        Rounds,
        settings=settings(
            max_examples=HISTORIES,
            stateful_step_count=12,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
