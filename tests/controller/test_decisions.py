"""When a round decides anew, who is asked, and who hears of it."""

from __future__ import annotations

import math
from typing import Any, cast

import pytest
from msgspec.structs import replace
from tests.builders import MOMENT, NOW, job_object, node_object, placement, plan_of

from trimtab.api.status import JobStatus, Leaving, StopRequest
from trimtab.apply.transitions import JobEvent
from trimtab.controller import views
from trimtab.controller.jobs.evictions import Evictions
from trimtab.controller.loop.decisions import DOUBT_SECONDS, REVIEW_SECONDS, Decisions, RoundDecision
from trimtab.decide.engine import Engine
from trimtab.kube.objects import Meta
from trimtab.observe.jobs import JobFacts
from trimtab.observe.snapshot import Caches, ClusterObserver, Observation
from trimtab.settings import Settings
from trimtab.telemetry import metrics
from trimtab_policy import policy
from trimtab_policy.policy import Policy
from trimtab_policy.scheduling import pipeline
from trimtab_policy.scheduling.choice import Choice
from trimtab_policy.scheduling.results import Outcome
from trimtab_policy.scheduling.rules import Rules
from trimtab_policy.sim import engine
from trimtab_policy.types import Decision, Doubt, DoubtReason, Pending, PendingReason, Snapshot, StopCause

CHOICE = Choice("best_fit", "fcfs", "srtf")


class Bench:
    """Decisions with everything around them played."""

    def __init__(self) -> None:
        self.in_force = CHOICE
        self.broken: set[str] = set()
        self.policies: dict[str, Policy] = {}
        self.promised: dict[str, str] = {}
        """UID -> policy of the jobs that were given a placement."""
        self.explained: list[str] = []
        self.looked_at: list[str] = []
        self.reasons: dict[str, PendingReason] = {}
        self.told: list[str] = []
        self.told_where: list[str] = []
        self.told_on: Meta | None = None
        self.shadow_policy = ""
        self.shadowed: list[str] = []
        this = cast(Any, self)
        self.decisions = Decisions(this, Engine(self._find), this, this, this, Evictions(this, this), Settings())

    async def decide(self, observation: Observation) -> RoundDecision | None:
        """As a round does: placements are on their way before anybody is told why it waits."""
        decided = await self.decisions.decide(observation, await self.decisions.choose())
        if decided:
            await self.decisions.explain(decided)
        return decided

    def _find(self, name: str) -> Policy:
        if name in self.broken:
            raise OSError("no such file")
        return self.policies.get(name) or policy.load(name)

    async def look(self) -> Choice:
        """As of `Choosing`."""
        return self.in_force

    def promise(self, facts: JobFacts, decided: views.PlannedPlacement, waits_for: tuple[Leaving, ...]) -> None:
        """As of `Gangs`, like the next three."""
        self.promised[facts.meta.uid] = decided.policy

    def explain(self, pending: Pending) -> None:
        self.explained.append(pending.job)
        self.reasons[pending.job] = pending.reason

    def look_at(self, uids: list[str]) -> None:
        self.looked_at += uids

    def answered(self, uids: list[str]) -> bool:
        return all(uid in self.promised or uid in self.explained for uid in uids)

    def job(self, meta: Meta, happening: JobEvent) -> None:
        """As of `EventRecorder`."""
        self.told.append(f"{happening.type} {happening.reason}: {happening.message}")
        self.told_where.append(f"{meta.name}: {self.told[-1]}")

    choice = job

    def use(self, policy: str) -> None:
        """As of `ShadowMode`, like the next one."""
        self.shadow_policy = policy

    def ask(self, observation: Observation, outcome: Outcome, rules: Rules) -> None:
        self.shadowed.append(self.shadow_policy)


def counted(name: str, **labels: str) -> float:
    return metrics.REGISTRY.get_sample_value(name, labels) or 0.0


@pytest.fixture
def bench() -> Bench:
    return Bench()


def observation(gpus: int = 8, later: float = 0.0) -> Observation:
    waiting = job_object(spec={"resources.gpus": {"min": gpus, "max": gpus}})
    return ClusterObserver(()).observe(Caches([node_object("a")], [], [waiting]), NOW + later)


async def test_the_policy_in_force_decides_and_its_shadow_is_asked_afterwards(bench: Bench) -> None:
    decided = await bench.decide(observation())
    assert decided
    assert (bench.promised, bench.shadowed) == ({"uid-job": "best_fit"}, [])
    bench.decisions.shadow(decided)
    assert bench.shadowed == ["srtf"]


async def test_a_job_that_waits_is_not_decided_about_again_without_news(bench: Bench) -> None:
    assert await bench.decide(observation(16))
    assert bench.explained == bench.looked_at == ["uid-job"]
    assert await bench.decide(observation(16)) is None
    assert await bench.decide(observation(32))


def of_gangs(later: float = 0.0, **gpus: int) -> Observation:
    """Two nodes of eight GPUs, and jobs that want so many."""
    jobs = [job_object(name, spec={"resources.gpus": {"min": wanted, "max": wanted}}) for name, wanted in gpus.items()]
    return ClusterObserver(()).observe(Caches([node_object("a"), node_object("b")], [], jobs), NOW + later)


async def test_times_are_worked_out_when_placements_are_on_their_way(bench: Bench, monkeypatch: Any) -> None:
    asked: list[bool] = []
    known = pipeline.expected_starts

    def expected_starts(*args: Any, **kwargs: Any) -> Any:
        asked.append("uid-job" in bench.promised)
        return known(*args, **kwargs)

    monkeypatch.setattr(pipeline, "expected_starts", expected_starts)
    seen = of_gangs(job=8, wide=16)
    decided = await bench.decisions.decide(seen, CHOICE)
    assert decided
    assert (bench.promised, bench.explained, asked) == ({"uid-job": "best_fit"}, [], [])
    seconds = counted("trimtab_decision_stage_seconds_count", stage="etas")
    await bench.decisions.explain(decided)
    assert (bench.explained, asked) == (["uid-wide"], [True])
    assert counted("trimtab_decision_stage_seconds_count", stage="etas") == seconds + 1, "it is told what they took"


async def test_whoever_makes_times_fail_is_set_aside_and_the_decision_stands(bench: Bench, monkeypatch: Any) -> None:
    known = pipeline.expected_starts

    def expected_starts(view: Snapshot, *args: Any, **kwargs: Any) -> Any:
        if any(job.uid == "uid-rogue" for job in view.waiting()):
            raise ZeroDivisionError
        return known(view, *args, **kwargs)

    monkeypatch.setattr(pipeline, "expected_starts", expected_starts)
    seen = of_gangs(job=8, rogue=32, wide=16)
    decided = await bench.decide(seen)
    assert decided
    assert bench.promised == {"uid-job": "best_fit"}
    assert set(bench.explained) == {"uid-rogue", "uid-wide"}
    assert bench.reasons["uid-rogue"] == PendingReason.DECISION_FAILED
    assert bench.reasons["uid-wide"] != PendingReason.DECISION_FAILED
    assert [told for told in bench.told_where if "DecisionFailed" in told and told.startswith("rogue")]
    bench.promised.clear()
    again = await bench.decisions.decide(of_gangs(1.0, job=8, rogue=32, wide=16), CHOICE)
    assert again
    assert [each.job for each in again.outcome.isolated] == ["uid-rogue"], "from now on it is left out at once"


def with_a_running_job(**progress: Any) -> Observation:
    """One job waits, another one has done so much."""
    seen = observation(16)
    (waiting,) = seen.snapshot.jobs
    running = replace(waiting, uid="uid-runs", name="runs", placement=placement("uid-runs"), **progress)
    return replace(seen, snapshot=replace(seen.snapshot, jobs=(waiting, running)))


async def test_what_a_running_job_has_done_is_no_news_unless_it_ends_much_sooner_or_later(bench: Bench) -> None:
    assert await bench.decide(with_a_running_job(steps_done=10, expected_finish=NOW + 5_000.0))
    assert await bench.decide(with_a_running_job(steps_done=900, expected_finish=NOW + 5_100.0)) is None
    late = NOW + 5_001.0 + REVIEW_SECONDS
    assert await bench.decide(with_a_running_job(steps_done=901, expected_finish=late))


async def test_what_waits_is_looked_at_again_now_and_then_for_it_grows_older(bench: Bench) -> None:
    assert await bench.decide(observation(16))
    assert await bench.decide(observation(16, later=REVIEW_SECONDS - 1)) is None
    assert await bench.decide(observation(16, later=REVIEW_SECONDS))
    assert await bench.decide(observation(16, later=REVIEW_SECONDS + 1)) is None


def test_the_simulator_asks_policies_as_often() -> None:
    assert engine.SimRules().heartbeat == REVIEW_SECONDS


@pytest.mark.parametrize("change", [{"policy": "fcfs"}, {"fallback": "sjf"}, {"shadow": ""}, {"deadline_seconds": 1.0}])
async def test_another_choice_is_news(bench: Bench, change: dict[str, Any]) -> None:
    assert await bench.decide(observation(16))
    bench.in_force = replace(CHOICE, **change)
    decided = await bench.decide(observation(16))
    assert decided
    assert decided.choice == bench.in_force


async def test_nobody_is_asked_when_nobody_waits(bench: Bench) -> None:
    bench.broken = {"best_fit", "fcfs"}
    assert await bench.decide(ClusterObserver(()).observe(Caches([node_object("a")], [], []), NOW)) is None
    assert bench.told == []


async def test_jobs_are_told_when_another_policy_had_to_decide_for_them(bench: Bench) -> None:
    bench.broken = {"best_fit"}
    await bench.decide(observation())
    assert bench.promised == {"uid-job": "fcfs"}
    failed = "best_fit cannot be loaded: no such file"
    assert bench.told == [f"Warning PolicyFallback: policy best_fit failed, another one decided: {failed}"]


class Doubting:
    """Decides as best_fit does, and says that it has not used what it has learned."""

    name = "best_fit"

    def __init__(self, reason: DoubtReason = DoubtReason.OUT_OF_TRAINING, jobs: tuple[str, ...] = ("uid-job",)) -> None:
        self.reason, self.jobs = reason, jobs
        self.message = "unlike all jobs of the training"

    def decide(self, now: Snapshot) -> Decision:
        """As of `Policy`."""
        doubt = Doubt(self.reason, self.message, self.jobs)
        return replace(policy.load("best_fit").decide(now), doubts=(doubt,))


async def test_jobs_are_told_where_a_policy_did_without_what_it_has_learned(bench: Bench) -> None:
    bench.policies["best_fit"] = Doubting()
    before = counted("trimtab_policy_doubts_total", policy="best_fit", reason="out_of_training")
    decided = await bench.decide(observation())
    assert decided
    assert decided.outcome.fallbacks == ()
    assert bench.promised == {"uid-job": "best_fit"}
    assert bench.told == ["Normal PolicyDoubt: policy best_fit: unlike all jobs of the training"]
    assert counted("trimtab_policy_doubts_total", policy="best_fit", reason="out_of_training") == before + 1


async def test_a_job_is_told_once_though_other_figures_are_doubted_in_each_round(bench: Bench) -> None:
    policy_ = bench.policies["best_fit"] = Doubting()
    await bench.decide(observation())
    policy_.message = "unlike all jobs of the training (age)"
    await bench.decide(observation(later=2 * REVIEW_SECONDS))
    assert len(bench.told) == 1


@pytest.mark.parametrize("named", [True, False])
async def test_a_doubt_about_the_cluster_is_told_once_for_all_jobs(bench: Bench, named: bool) -> None:
    bench.policies["best_fit"] = Doubting(DoubtReason.CLUSTER_OUT_OF_TRAINING, ("uid-job", "uid-job2", "uid-gone"))
    bench.told_on = Meta("policy", "trimtab-system", "uid-policy") if named else None

    def many(later: float) -> Observation:
        jobs = [job_object("job"), job_object("job2")]
        return ClusterObserver(()).observe(Caches([node_object("a")], [], jobs), NOW + later)

    for later in (0.0, 2 * REVIEW_SECONDS, 4 * REVIEW_SECONDS):
        assert await bench.decide(many(later))
    where = "policy" if named else "job"
    doubted = "policy best_fit: unlike all jobs of the training; jobs decided about so: 2"
    expected = f"{where}: Normal PolicyDoubt: {doubted}"
    assert bench.told_where == [expected]
    assert await bench.decide(many(DOUBT_SECONDS))
    assert bench.told_where == [expected] * 2


# --- running jobs -----------------------------------------------------------------------------------------------------
def beside(later: float = 0.0, **running: Any) -> Observation:
    """One job waits, another one runs, so many seconds later."""
    seen = with_a_running_job(**{"expected_finish": NOW + 5_000.0} | running)
    return replace(seen, snapshot=replace(seen.snapshot, time=NOW + later))


async def test_what_a_stop_would_lose_grows_with_time_and_is_no_news(bench: Bench) -> None:
    assert await bench.decide(beside(lost_seconds=10.0, served={"T4": 80.0}))
    assert await bench.decide(beside(20, lost_seconds=30.0, served={"T4": 240.0})) is None
    leaves = {"expected_finish": None, "movable_from": math.inf}
    assert await bench.decide(beside(30, lost_seconds=40.0, **leaves))
    assert await bench.decide(beside(40, lost_seconds=50.0, **leaves)) is None


async def test_a_gang_that_may_be_moved_from_now_on_is_news_and_waited_for(bench: Bench) -> None:
    soon = {"movable_from": NOW + 60}
    assert await bench.decide(beside(**soon))
    assert bench.decisions.next_deadline(beside(10, **soon).snapshot) == 50
    assert await bench.decide(beside(59, **soon)) is None
    assert await bench.decide(beside(60, **soon))
    assert bench.decisions.next_deadline(beside(60, **soon).snapshot) == math.inf


async def test_resizes_are_considered_at_their_interval_though_nothing_else_is_new(bench: Bench) -> None:
    elastic = {"preemptible": True}
    first = await bench.decide(beside(**elastic))
    assert first
    assert first.rules.resize
    assert await bench.decide(beside(30, **elastic)) is None
    assert bench.decisions.next_deadline(beside(30, **elastic).snapshot) == 30
    again = await bench.decide(beside(60, **elastic))
    assert again
    assert again.rules.resize
    fixed = await bench.decide(beside(400))
    assert fixed
    assert fixed.rules.resize is None


@pytest.mark.parametrize(("beneficiary", "counts"), [("default/new", 1), ("", 0)])
async def test_gangs_that_are_being_stopped_for_others_count_against_those_that_may_be(
    bench: Bench, beneficiary: str, counts: int
) -> None:
    cause = StopCause.PREEMPTED if beneficiary else StopCause.SUSPENDED
    asked = StopRequest(
        epoch=1, cause=cause, message="x", requested_time=MOMENT, deadline_time=MOMENT, beneficiary=beneficiary or None
    )
    plan = plan_of(placement("uid-old", {"a": 8}))
    old = job_object("old", status=JobStatus(plan=plan, last_epoch=1, stop=asked))
    decided = await bench.decide(ClusterObserver(()).observe(Caches([node_object("a")], [], [old, job_object()]), NOW))
    assert decided
    assert decided.rules.at_once == Settings().preemption.at_once - counts
