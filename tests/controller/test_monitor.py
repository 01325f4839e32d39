"""A policy that does worse here is replaced by its fallback, by itself; one that does not is left alone, always."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs
from tests.builders import NOW, job_object, node_object
from tests.fakeserver import FakeApiServer

from trimtab.controller.event_recorder import EventRecorder
from trimtab.controller.loop import monitor as loop
from trimtab.controller.loop.monitor import Monitor
from trimtab.decide.remote import RemoteEngine
from trimtab.decide.standing import KEY as STANDING
from trimtab.decide.standing import read_standing
from trimtab.decide.worker import CompareRequest
from trimtab.errors import PolicyError
from trimtab.kube.client import KubeClient
from trimtab.observe.snapshot import Caches, ClusterObserver, Observation
from trimtab.settings import KubeSettings, MonitorSettings, Settings
from trimtab.telemetry.metrics import REGISTRY
from trimtab_policy.policy import entry
from trimtab_policy.scheduling.choice import Choice
from trimtab_policy.sim.monitor import Comparison, Figures, Standing

KEY = "trimtab-system/trimtab-monitor"
ROGUES = Path(__file__).resolve().parents[1] / "rogues"
CHOSEN = Choice("rudder", "best_fit", deadline_seconds=3.0)
HOUR = 3600.0


def said(ratio: float, policy: str = "rudder", fallback: str = "best_fit") -> Comparison:
    figures = Figures(100.0, 200.0, 3, 0)
    return Comparison(policy, fallback, 90, 100, ratio, ratio - 0.01, ratio + 0.01, ratio, figures, figures)


class Script:
    """Instead of a process: says what it was given, one after the other."""

    def __init__(self, *answers: Comparison | Exception | None) -> None:
        self.answers = list(answers)
        self.asked: list[CompareRequest] = []
        self.stopped = False

    async def compare(self, request: CompareRequest) -> Comparison | None:
        self.asked.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def stop(self) -> None:
        self.stopped = True


class Bench:
    """A monitor on an API server of its own, whose clocks the test sets."""

    def __init__(self, server: FakeApiServer, client: KubeClient) -> None:
        self.server, self.client = server, client
        self.recorder = EventRecorder(client, "test")
        self.woken = 0
        self.now = NOW

    def monitor(self, engine: object, **changes: Any) -> Monitor:
        """One that compares at every look."""
        settings = Settings(monitor=MonitorSettings(**({"least_jobs": 20, "returns_after": 2} | changes)))
        return Monitor(cast(RemoteEngine, engine), self.client, self.recorder, settings, self._wake, self._clock)

    def _clock(self) -> float:
        return self.now

    def _wake(self) -> None:
        self.woken += 1

    async def look(self, monitor: Monitor, chosen: Choice = CHOSEN, jobs: int = 30, hours: float = 6.0) -> None:
        """A round comes, so many hours after the last one."""
        self.now += hours * HOUR
        monitor.watch(day(jobs, self.now), chosen)
        if monitor._task:
            await monitor._task

    def kept(self) -> Standing:
        return read_standing(self.server.store.get("configmaps", KEY)["data"])

    async def told(self, count: int) -> list[tuple[str, str]]:
        """Type and reason of the events, once there are so many."""
        async with asyncio.timeout(10):
            while len(found := self._events()) < count:
                await self.server.store.changed.wait()
        return [(event["type"], event["reason"]) for event in found]

    def _events(self) -> list[dict[str, Any]]:
        return [event["object"] for _, event in self.server.store.events("events", 0) if event["type"] == "ADDED"]


def day(jobs: int, now: float) -> Observation:
    """So many jobs of three namespaces wait on one node."""
    waiting = [job_object(f"j{n}", namespace=f"team-{n % 3}", uid=f"uid-{n}") for n in range(jobs)]
    return ClusterObserver(()).observe(Caches([node_object("n1")], (), waiting), now)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with (
        FakeApiServer() as server,
        await KubeClient.connect(KubeSettings(kubeconfig=server.kubeconfig(tmp_path))) as client,
    ):
        found = Bench(server, client)
        task = asyncio.create_task(found.recorder.run())
        yield found
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def sample(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def count(result: str) -> float:
    return sample("trimtab_policy_comparisons_total", result=result)


# --- who decides ------------------------------------------------------------------------------------------------------
async def test_while_a_policy_is_good_enough_the_very_same_choice_stands(bench: Bench) -> None:
    monitor = bench.monitor(Script(*(said(ratio) for ratio in (0.7, 1.0, 1.05))))
    await monitor.load()
    for _ in range(3):
        await bench.look(monitor)
        assert monitor.decides(CHOSEN) is CHOSEN
    assert bench.woken == 0
    assert bench.kept() == monitor.standing


async def test_one_that_is_worse_is_replaced_at_once_and_comes_back_after_several_good_looks(bench: Bench) -> None:
    monitor = bench.monitor(Script(*(said(ratio) for ratio in (1.3, 0.9, 1.2, 0.9, 0.9))))
    deciding = []
    for _ in range(5):
        await bench.look(monitor)
        deciding.append(monitor.decides(CHOSEN).policy)
    assert deciding == ["best_fit"] * 4 + ["rudder"]
    assert monitor.decides(CHOSEN) is CHOSEN
    assert bench.woken == 2
    assert await bench.told(2) == [("Warning", "PolicyReplaced"), ("Normal", "PolicyRestored")]


async def test_all_else_of_a_choice_stays(bench: Bench) -> None:
    monitor = bench.monitor(Script(said(1.3)))
    await bench.look(monitor)
    assert monitor.decides(CHOSEN) == replace(CHOSEN, policy="best_fit")


async def test_what_was_found_of_one_pair_says_nothing_of_another(bench: Bench) -> None:
    monitor = bench.monitor(Script(said(1.3), said(0.9, "vdn")))
    await bench.look(monitor)
    other = replace(CHOSEN, policy="vdn")
    assert monitor.decides(other) is other
    await bench.look(monitor, other, hours=0)
    assert monitor.decides(other) is other


async def test_a_successor_goes_on_with_the_verdict(bench: Bench) -> None:
    first = bench.monitor(Script(said(1.3)))
    await first.load()
    await bench.look(first)
    second = bench.monitor(Script(said(0.9), said(0.9)))
    await second.load()
    assert second.standing == first.standing
    assert second.decides(CHOSEN).policy == "best_fit"
    assert sample("trimtab_policy_replaced", policy="rudder", fallback="best_fit") == 1
    await bench.look(second, hours=5)
    assert second.standing == first.standing, "its period is counted from the last comparison, whoever made it"
    await bench.look(second, hours=1)
    assert second.standing.better == 1


async def test_switched_off_it_neither_reads_nor_compares_and_the_policy_decides(bench: Bench) -> None:
    first = bench.monitor(Script(said(1.3)))
    await bench.look(first)
    asked = len(bench.server.requests)
    off = bench.monitor(Script(), period_seconds=0)
    await off.load()
    await bench.look(off)
    assert off.decides(CHOSEN) is CHOSEN
    assert len(bench.server.requests) == asked


@pytest.mark.parametrize("policy", ["best_fit", "themis", "nonsense"])
async def test_a_rule_is_chosen_for_what_it_does_and_not_compared(bench: Bench, policy: str) -> None:
    script = Script()
    await bench.look(bench.monitor(script), replace(CHOSEN, policy=policy))
    assert script.asked == []


# --- when -------------------------------------------------------------------------------------------------------------
async def test_it_compares_once_in_a_period(bench: Bench) -> None:
    script = Script(said(0.9), said(0.9))
    monitor = bench.monitor(script)
    for hours in (0, 1, 2, 2, 1):
        await bench.look(monitor, hours=hours)
    assert len(script.asked) == 2


async def test_of_too_few_jobs_no_process_is_started_and_nothing_is_written(bench: Bench) -> None:
    script, before = Script(), count("too_few_jobs")
    monitor = bench.monitor(script)
    await bench.look(monitor, jobs=19)
    await bench.look(monitor, jobs=19, hours=0.1)
    await bench.look(monitor, jobs=19, hours=0.1)
    assert script.asked == []
    assert count("too_few_jobs") == before + 2
    assert bench.server.requests == []


async def test_what_is_compared_is_what_the_settings_say(bench: Bench) -> None:
    script = Script(said(0.9))
    await bench.look(bench.monitor(script, window_seconds=7200.0, cpu_seconds=60.0, cpu_share=0.5, margin=0.1))
    [asked] = script.asked
    contest = asked.contest
    assert (contest.policy, contest.fallback, contest.seconds, contest.rules.margin) == (
        "rudder",
        "best_fit",
        7200,
        0.1,
    )
    assert (asked.cpu_seconds, asked.cpu_share, asked.seconds) == (60, 0.5, 240)
    assert len(contest.window.jobs) == 30


# --- failures ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (PolicyError("it ended", reason="crash"), "crash"),
        (PolicyError("it is late", reason="deadline"), "deadline"),
        (ZeroDivisionError("a bug of ours"), "bug"),
        (None, "out_of_time"),
    ],
)
async def test_a_failure_costs_the_comparison_only(bench: Bench, failure: Exception | None, told: str) -> None:
    monitor, before = bench.monitor(Script(said(1.3), failure, said(1.3))), count(told)
    await bench.look(monitor)
    standing = monitor.standing
    with capture_logs():
        await bench.look(monitor)
    assert (monitor.standing, count(told)) == (standing, before + 1)
    assert monitor.decides(CHOSEN).policy == "best_fit"
    await bench.look(monitor, hours=1)
    assert monitor.standing == standing, "it is tried again a period later, not at once"
    await bench.look(monitor, hours=5)
    assert monitor.standing.compared == bench.now


@pytest.mark.parametrize("text", ["", "nonsense", '{"better": -1}', '{"fallen": "yes"}', "x" * 300_000])
async def test_what_is_not_understood_is_left_as_it_is_and_told(bench: Bench, text: str) -> None:
    meta = {"namespace": "trimtab-system", "name": "trimtab-monitor"}
    bench.server.store.create("configmaps", {"metadata": meta, "data": {STANDING: text}})
    monitor, before = bench.monitor(Script(said(1.3))), count("unreadable")
    with capture_logs():
        await monitor.load()
        await bench.look(monitor)
    assert count("unreadable") == before + 1
    assert bench.server.store.get("configmaps", KEY)["data"] == {STANDING: text}
    assert monitor.decides(CHOSEN).policy == "best_fit"


async def test_where_somebody_else_has_written_meanwhile_the_next_comparison_is_kept(bench: Bench) -> None:
    one, other = bench.monitor(Script(said(0.9), said(0.8))), bench.monitor(Script(said(0.95)))
    await bench.look(one)
    await other.load()
    await bench.look(other)
    with capture_logs():
        await bench.look(one)
    assert bench.kept() == other.standing
    one._engine = cast(RemoteEngine, Script(said(0.7)))
    await bench.look(one)
    assert bench.kept() == one.standing


# --- all of it --------------------------------------------------------------------------------------------------------
async def test_a_policy_that_starves_jobs_is_replaced_within_one_comparison(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a real process, from real objects."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(ROGUES), os.environ.get("PYTHONPATH")))))
    monkeypatch.setattr(loop, "entry", lambda _: entry("rudder"))  # registered there, and not here
    engine = RemoteEngine()
    monitor = bench.monitor(engine, cpu_share=1.0)
    rogue = replace(CHOSEN, policy="rogue_idle")
    try:
        await bench.look(monitor, rogue)
    finally:
        await monitor.stop()
    assert monitor.decides(rogue).policy == "best_fit"
    assert bench.kept().fallen
    assert await bench.told(1) == [("Warning", "PolicyReplaced")]


async def test_what_is_under_way_ends_with_the_controller(bench: Bench) -> None:
    class Endless(Script):
        async def compare(self, request: CompareRequest) -> Comparison | None:
            await asyncio.Event().wait()
            return None

    endless = Endless()
    monitor = bench.monitor(endless)
    monitor.watch(day(30, bench.now), CHOSEN)
    await monitor.stop()
    assert endless.stopped
    assert monitor.decides(CHOSEN) is CHOSEN
