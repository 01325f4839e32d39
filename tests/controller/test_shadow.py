"""Shadow mode beside the rounds: asked in the background, one round at a time, heard by nobody but people."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs
from tests.builders import NOW, job_object, node_object, placement

from trimtab.api.status import JobStatus, Shadow
from trimtab.controller.loop.shadow import ShadowMode
from trimtab.controller.views import ShadowDecision
from trimtab.decide.trial import trial
from trimtab.errors import PolicyError
from trimtab.names import ANNOTATION_POLICY
from trimtab.observe.snapshot import Caches, ClusterObserver, Observation
from trimtab.settings import Settings
from trimtab.telemetry.metrics import REGISTRY
from trimtab_policy.scheduling.results import Outcome
from trimtab_policy.scheduling.rules import Rules
from trimtab_policy.scheduling.shield import BrokenRule
from trimtab_policy.types import Pending, PendingReason, Placement, Snapshot

STARTS = placement(nodes={"a": 8})
SLOWER = replace(STARTS, prediction=replace(STARTS.prediction, run_seconds=STARTS.prediction.run_seconds + 500))
WAITS = Pending("uid-job", PendingReason.INSUFFICIENT_GPUS, "all busy")


class Answers:
    """A remote engine that answers as it is told, or when it is told."""

    def __init__(self, answer: Callable[[], Outcome]) -> None:
        self.answer = answer
        self.asked: list[tuple[str, Snapshot, float]] = []
        self.release = asyncio.Event()
        self.release.set()
        self.started = False

    async def decide(self, policy: str, snapshot: Snapshot, seconds: float, rules: Rules | None) -> Outcome:
        self.asked.append((policy, snapshot, seconds))
        self.started = True
        await self.release.wait()
        return self.answer()

    async def stop(self) -> None:
        self.started = False


class Bench:
    """Shadow mode with everything around it played."""

    def __init__(self, answer: Outcome | Exception, **settings: Any) -> None:
        def give() -> Outcome:
            if isinstance(answer, Exception):
                raise answer
            return answer

        self.engine = Answers(give)
        self.watched: dict[str, ShadowDecision] = {}
        self.wakes = 0
        self.mode = ShadowMode(cast(Any, self.engine), cast(Any, self), Settings(**settings), self._wake)

    def _wake(self) -> None:
        self.wakes += 1

    def watch(self, uid: str, watched: ShadowDecision) -> bool:
        """As of `Gangs`."""
        news = self.watched.get(uid) != watched
        self.watched[uid] = watched
        return news

    async def use(self, policy: str = "srtf") -> None:
        """Choose a shadow policy, and let it have its trial."""
        self.mode.use(policy)
        await self.answered()
        self.engine.asked.clear()

    def ask(self, observation: Observation, real: Outcome) -> None:
        self.mode.ask(observation, real, Rules())

    async def answered(self) -> None:
        assert self.mode._task
        await self.mode._task


def outcome(*answers: Placement | Pending, refused: tuple[BrokenRule, ...] = ()) -> Outcome:
    return Outcome(
        {answer.job: "srtf" for answer in answers},
        tuple(answer for answer in answers if isinstance(answer, Placement)),
        tuple(answer for answer in answers if isinstance(answer, Pending)),
        refused,
        (),
        {"srtf": 0.1},
    )


def observation(status: JobStatus | None = None, **meta: Any) -> Observation:
    return ClusterObserver(()).observe(Caches([node_object("a")], [], [job_object(status=status, **meta)]), NOW)


def counted(name: str, **labels: str) -> Callable[[], float]:
    """How much a counter has grown since now."""
    before = REGISTRY.get_sample_value(name, labels) or 0.0
    return lambda: (REGISTRY.get_sample_value(name, labels) or 0.0) - before


# --- what is written down --------------------------------------------------------------------------------------------
async def test_a_plan_is_held_against_the_one_that_is_about_to_be_written() -> None:
    bench, same = Bench(outcome(SLOWER)), counted("trimtab_shadow_answers_total", policy="srtf", agreement="same")
    await bench.use()
    bench.ask(observation(JobStatus(last_epoch=4)), outcome(STARTS))
    await bench.answered()
    watched = bench.watched["uid-job"]
    assert watched.epoch == 5
    assert watched.shadow.to_wire() == {
        "policy": "srtf",
        "summary": "8×A100-SXM4-80GB dp=8 tp=1 pp=1 zero=1",
        "gpuType": "A100-SXM4-80GB",
        "gpus": 8,
        "mode": "Data",
        "nodes": [{"name": "a", "gpus": 8}],
        "predictedFinishTime": "2026-01-02T03:20:45Z",
        "differenceSeconds": 500,
    }
    assert (same(), bench.wakes) == (1, 1)


async def test_on_fake_nodes_times_are_sped_up_like_the_plans() -> None:
    bench = Bench(outcome(SLOWER), fake={"enabled": True, "speedup": 100.0})
    await bench.use()
    bench.ask(observation(), outcome(STARTS))
    await bench.answered()
    shadow = bench.watched["uid-job"].shadow
    assert shadow.difference_seconds == 5
    assert shadow.predicted_finish_time
    assert shadow.predicted_finish_time.timestamp() == NOW + 10


async def test_a_job_that_it_would_start_has_nothing_to_be_compared_with() -> None:
    bench = Bench(outcome(STARTS))
    await bench.use()
    bench.ask(observation(JobStatus(last_epoch=4)), outcome(WAITS))
    await bench.answered()
    watched = bench.watched["uid-job"]
    assert (watched.epoch, watched.shadow.gpus, watched.shadow.difference_seconds) == (None, 8, None)


async def test_a_job_that_it_would_let_wait_is_told_with_the_reason() -> None:
    bench = Bench(outcome(WAITS))
    await bench.use()
    bench.ask(observation(), outcome(STARTS))
    await bench.answered()
    assert bench.watched["uid-job"] == ShadowDecision(
        Shadow(policy="srtf", summary="waits: InsufficientGpus", pending_reason=PendingReason.INSUFFICIENT_GPUS), 1
    )


async def test_the_log_has_it_once() -> None:
    bench = Bench(outcome(SLOWER))
    await bench.use()
    with capture_logs() as logs:
        for _ in range(2):
            bench.ask(observation(), outcome(STARTS))
            await bench.answered()
    [line] = (line for line in logs if line["event"] == "shadow")
    assert (line["job"], line["policy"], line["agreement"], line["difference_seconds"]) == (
        "default/job",
        "srtf",
        "same",
        500.0,
    )


async def test_it_is_asked_about_jobs_that_have_a_policy_of_their_own_too() -> None:
    bench = Bench(outcome(STARTS))
    await bench.use()
    bench.ask(observation(annotations={ANNOTATION_POLICY: "fixed"}), outcome(STARTS))
    await bench.answered()
    [(_, snapshot, _)] = bench.engine.asked
    assert [job.policy for job in snapshot.jobs] == [None]


# --- bounds -----------------------------------------------------------------------------------------------------------
async def test_a_policy_is_tried_as_soon_as_it_is_chosen_and_only_then() -> None:
    bench = Bench(outcome(STARTS))
    for _ in range(2):
        bench.mode.use("srtf")
        await bench.answered()
    assert bench.engine.asked == [("srtf", trial(), 10.0)]
    assert bench.watched == {}


async def test_asking_takes_no_time_and_of_the_rounds_that_come_meanwhile_only_the_latest_counts() -> None:
    bench, skipped = Bench(outcome(STARTS)), counted("trimtab_shadow_skipped_total", reason="busy")
    await bench.use()
    bench.engine.release.clear()
    for epoch in range(4):
        bench.ask(observation(JobStatus(last_epoch=epoch)), outcome(STARTS))
        await asyncio.sleep(0)
    assert (len(bench.engine.asked), skipped(), bench.watched) == (1, 2, {})
    bench.engine.release.set()
    await bench.answered()
    assert (len(bench.engine.asked), bench.watched["uid-job"].epoch) == (2, 4)


async def test_a_round_during_the_trial_is_asked_about_after_it() -> None:
    bench = Bench(outcome(STARTS))
    bench.engine.release.clear()
    bench.mode.use("srtf")
    await asyncio.sleep(0)
    bench.ask(observation(), outcome(STARTS))
    bench.engine.release.set()
    await bench.answered()
    assert bench.watched.keys() == {"uid-job"}


async def test_another_choice_does_not_wait_for_the_one_before_and_never_hears_from_it() -> None:
    bench = Bench(outcome(STARTS))
    await bench.use("srtf")
    bench.engine.release.clear()
    bench.ask(observation(), outcome(STARTS))
    await asyncio.sleep(0)
    bench.mode.use("sjf")
    bench.engine.release.set()
    await bench.answered()
    assert [policy for policy, *_ in bench.engine.asked] == ["srtf", "sjf"]
    assert bench.watched == {}


@pytest.mark.parametrize("reason", ["crash", "deadline", "nan"])
async def test_a_failure_is_counted_and_the_policy_is_left_alone_for_a_while(reason: str) -> None:
    bench = Bench(PolicyError("it went wrong", reason=reason))
    failed = counted("trimtab_shadow_failures_total", policy="srtf", reason=reason)
    skipped = counted("trimtab_shadow_skipped_total", reason="failed")
    await bench.use()
    bench.ask(observation(), outcome(STARTS))
    await bench.answered()
    assert (failed(), skipped(), bench.engine.asked, bench.watched) == (1, 1, [], {})
    await bench.use("sjf")
    await bench.use("srtf")
    assert failed() == 2, "to choose it again is to try it again"


async def test_a_mistake_of_ours_in_comparing_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, failed = Bench(outcome(STARTS)), counted("trimtab_shadow_failures_total", policy="srtf", reason="bug")
    await bench.use()
    monkeypatch.setattr(Bench, "watch", None)
    with capture_logs() as logs:
        bench.ask(observation(), outcome(STARTS))
        await bench.answered()
    assert failed() == 1
    assert [line for line in logs if line.get("exc_info")]


async def test_placements_that_break_a_rule_are_counted_and_count_as_waiting() -> None:
    refused = Pending("uid-job", PendingReason.DECISION_REFUSED, "srtf broke rule quota")
    bench = Bench(outcome(refused))
    await bench.use()
    bench.engine.answer = lambda: outcome(refused, refused=(BrokenRule("uid-job", "quota", "too many"),))
    failed = counted("trimtab_shadow_failures_total", policy="srtf", reason="refused")
    bench.ask(observation(), outcome(STARTS))
    await bench.answered()
    assert failed() == 1
    assert bench.watched["uid-job"].shadow.pending_reason is PendingReason.DECISION_REFUSED


async def test_without_a_shadow_policy_nothing_is_asked_and_the_process_ends() -> None:
    bench = Bench(outcome(STARTS))
    bench.ask(observation(), outcome(STARTS))
    assert bench.mode._task is None
    await bench.use()
    assert bench.engine.started
    await bench.use("")
    assert not bench.engine.started
    bench.ask(observation(), outcome(STARTS))
    assert bench.engine.asked == []


async def test_stopping_does_not_wait_for_an_answer() -> None:
    bench = Bench(outcome(STARTS))
    bench.engine.release.clear()
    bench.mode.use("srtf")
    await asyncio.sleep(0)
    await bench.mode.stop()
    assert not bench.engine.started
