"""A policy in a process of its own: it may crash, hang and print as it likes, and is asked again afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from tests.builders import NOW, job, node, snapshot

from trimtab.decide import remote
from trimtab.decide.engine import Engine
from trimtab.decide.remote import RemoteEngine
from trimtab.decide.worker import CompareRequest, PolicyRequest, frame
from trimtab.errors import PolicyError
from trimtab_policy.perf import constants
from trimtab_policy.scheduling.choice import Choice
from trimtab_policy.sim import monitor
from trimtab_policy.sim.monitor import Contest, MonitorRules

ROGUES = Path(__file__).resolve().parents[1] / "rogues"
CLUSTER = snapshot([node("a"), node("b")], [job("one", gpus=(8, 8)), job("two", gpus=(8, 8), created=NOW)])


@pytest.fixture
async def engine(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RemoteEngine]:
    here = os.environ.get("PYTHONPATH")  # a checkout that is not the installed one is found by it
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(ROGUES), here))))
    engine = RemoteEngine()
    yield engine
    await engine.stop()
    assert engine._process is None


def process_of(engine: RemoteEngine) -> int:
    assert engine._process
    return engine._process.pid


async def test_it_decides_as_the_same_policy_does_here_and_its_process_is_kept(engine: RemoteEngine) -> None:
    here = Engine().decide(CLUSTER, Choice("best_fit", "fcfs"))
    there = await engine.decide("best_fit", CLUSTER, 60)
    first = process_of(engine)
    assert (there.placements, there.pending, there.policies) == (here.placements, here.pending, here.policies)
    assert (await engine.decide("fcfs", CLUSTER, 60)).policies == dict.fromkeys(here.policies, "fcfs")
    assert process_of(engine) == first
    assert os.getpriority(os.PRIO_PROCESS, first) > os.getpriority(os.PRIO_PROCESS, 0)


@pytest.mark.parametrize(
    ("policy", "reason", "told"),
    [
        ("rogue_crash", "crash", "the process of rogue_crash ended without an answer"),
        ("rogue_raise", "error", "rogue_raise raised ZeroDivisionError: a mean over no jobs"),
        ("rogue_nan", "nan", "rogue_nan predicted what is no number"),
        ("rogue_late", "deadline", "rogue_late took longer than 0.3 s"),
        ("rogue_missing", "unloadable", "rogue_missing cannot be loaded"),
    ],
)
async def test_whatever_a_policy_does_the_next_one_is_asked_in_a_fresh_process(
    engine: RemoteEngine, policy: str, reason: str, told: str
) -> None:
    seconds = 0.3 if policy == "rogue_late" else 60  # all others answer, or fail, however busy the machine is
    with pytest.raises(PolicyError, match=f"^{told}") as failed:
        await engine.decide(policy, CLUSTER, seconds)
    assert failed.value.reason == reason
    assert engine._process is None
    assert len((await engine.decide("fcfs", CLUSTER, 60)).placements) == 2


async def test_what_a_policy_prints_is_not_taken_for_its_answer(engine: RemoteEngine) -> None:
    assert len((await engine.decide("rogue_chatty", CLUSTER, 60)).placements) == 2


async def test_the_shield_judges_there_too(engine: RemoteEngine) -> None:
    crowded = snapshot([node("a")], CLUSTER.jobs)
    outcome = await engine.decide("rogue_greedy", crowded, 10)
    assert [refusal.rule for refusal in outcome.refused] == ["oversubscribed_gpus"]


async def test_a_process_that_was_killed_between_two_questions_is_replaced(engine: RemoteEngine) -> None:
    await engine.decide("fcfs", CLUSTER, 60)
    os.kill(process_of(engine), signal.SIGKILL)
    with pytest.raises(PolicyError, match=r"ended without an answer"):
        await engine.decide("fcfs", CLUSTER, 60)
    assert len((await engine.decide("fcfs", CLUSTER, 60)).placements) == 2


async def test_a_process_that_answers_nothing_at_all_is_killed(
    engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await engine.decide("fcfs", CLUSTER, 60)
    stopped = process_of(engine)
    os.kill(stopped, signal.SIGSTOP)
    monkeypatch.setattr(remote, "LOAD_SECONDS", 0.2)
    with pytest.raises(PolicyError, match=r"^fcfs gave no answer after 0.3 s"):
        await engine.decide("fcfs", CLUSTER, 0.1)
    with pytest.raises(ProcessLookupError):
        os.kill(stopped, 0)


def asked(policy: str) -> subprocess.Popen[bytes]:
    """A process with a question in it, and nobody who would kill it."""
    impatient = "import sys; from trimtab.decide import worker as w; w.LOAD_SECONDS = w.ALARM_SECONDS = 0.1; w.main([])"
    process = subprocess.Popen([sys.executable, "-c", impatient], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin
    process.stdin.write(frame(msgspec.msgpack.encode(PolicyRequest(policy, 0.1, CLUSTER))))
    process.stdin.flush()
    return process


def test_a_process_whose_parent_has_gone_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROGUES))
    with asked("fcfs") as idle, asked("rogue_frozen") as stuck:
        assert idle.stdin
        idle.stdin.close()
        assert idle.wait(20) == 0
        assert stuck.wait(20) == -signal.SIGALRM


def contest(policy: str) -> CompareRequest:
    """A day in which thirty small jobs came, of three tenants."""
    come = [
        job(f"j{number}", namespace=f"team-{number % 3}", created=NOW - 86400 + 600 * number, steps=10_000)
        for number in range(30)
    ]
    window = monitor.window(snapshot([node("a"), node("b")]), come, NOW - 86400)
    return CompareRequest(Contest(policy, "best_fit", window, 86400), seconds=300, cpu_seconds=250, cpu_share=1.0)


async def test_a_policy_that_starves_jobs_is_found_out_in_another_process_and_that_one_is_ended(
    engine: RemoteEngine,
) -> None:
    found = await engine.compare(contest("rogue_idle"))
    assert found
    assert monitor.worse(found, MonitorRules())
    assert engine._process is None


@pytest.mark.parametrize("policy", ["rogue_crash", "rogue_raise", "rogue_missing"])
async def test_a_comparison_that_fails_costs_a_process_and_nothing_else(engine: RemoteEngine, policy: str) -> None:
    with pytest.raises(PolicyError) as failed:
        await engine.compare(contest(policy))
    assert failed.value.reason == "crash"
    assert len((await engine.decide("fcfs", CLUSTER, 60)).placements) == 2


async def test_a_comparison_that_does_not_end_is_given_up(
    engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "LOAD_SECONDS", 0.2)
    with pytest.raises(PolicyError) as failed:
        await engine.compare(replace(contest("rogue_frozen"), seconds=0.1))
    assert failed.value.reason == "deadline"
    assert engine._process is None


async def test_it_predicts_with_the_constants_that_the_controller_was_given(tmp_path: Path) -> None:
    believed = tmp_path / "constants.yaml"
    believed.write_text(constants.render(constants.beliefs()))
    there = RemoteEngine(believed)
    try:
        outcome = await there.decide("fcfs", CLUSTER, 60)
    finally:
        await there.stop()
    here = Engine().decide(CLUSTER, Choice("fcfs", "fcfs"))
    assert outcome.placements[0].prediction != here.placements[0].prediction
