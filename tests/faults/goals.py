"""`hack/faults --goals`: what was promised, held against real runs. Each figure is printed beside its goal.

Times begin where a user would start a stop-watch: with the death of the process, the end of the outage, the loss of
the node. Controllers are started as in production here, not forked.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from statistics import median
from typing import Any

from hypothesis import HealthCheck, given, settings, strategies
from tests.apply.server import Server
from tests.apply.test_convergence import EVENTS, complete_whatever_happens
from tests.faults import witness_state
from tests.faults.cluster_fixture import laboratory
from tests.faults.invariants import Limits
from tests.faults.sweep import reference
from tests.faults.testbed import Settings, Stand
from tests.faults.watcher import Watcher
from tests.faults.workloads import JOBS, LONG, PATIENT, URGENT, NodeLoss
from tests.live.harness import ControllerProcess, gpu_node, training_job

LARGE, RUNNING, WAITING = 1000, 480, 500
"""Nodes, gangs of two nodes that run, and jobs that wait, of the large cluster."""
SMALL = tuple(f"live-{index}" for index in range(9))
MORE = tuple(f"more-{index}" for index in range(8))
"""Nodes that a gang of 64 GPUs grows onto."""
AWAY = 300.0
"""Seconds that the API server is away."""
STORM, PAUSE, COOL_DOWN = 300.0, 3.0, 60
"""Seconds of a storm of edits, between two of them, and that a plan is kept at least."""
ENDLESS = 1_000_000
STEPS_SECONDS, SOME, LITTLE = 400.0, 25.0, 14.0
"""Of a job of 64 GPUs: run time as `training_job` counts it (95 s on 64), and how long it has run when it is to give
way, or to grow. Later a change would not pay: of a gang that was never asked no checkpoint is known, so that all that
it has done counts as lost."""
OFTEN: Settings = {"elasticity": {"interval_seconds": 0.5}}
PRODUCTION: Settings = {
    "leadership": {"identity": "goals", "lease_seconds": 15, "renew_seconds": 10, "retry_seconds": 2}
}


@dataclass(frozen=True)
class Figure:
    """What was measured, and what was promised."""

    what: str
    figure: float | str
    goal: str
    met: bool

    def row(self) -> dict[str, Any]:
        return {"what": self.what, "figure": self.figure, "goal": self.goal, "violations": int(not self.met)}


async def measure(say: Callable[[str], None], only: Collection[str] = ()) -> list[dict[str, Any]]:
    """All figures, or those of some of the `PARTS`; each is said as soon as it is known."""
    rows = []
    async for figure in _figures(only or PARTS):
        say(f"{figure.what}: {figure.figure} (goal {figure.goal}) {'' if figure.met else 'MISSED'}")
        rows.append(figure.row())
    return rows


async def _figures(wanted: Collection[str]) -> AsyncIterator[Figure]:
    if HISTORIES in wanted:
        yield await asyncio.to_thread(histories)
    if parts := [part for name, part in ON_NINE_NODES.items() if name in wanted]:
        async with laboratory(SMALL) as stand:
            for part in parts:
                yield await part(stand)
            yield Figure("violations on the way", len(stand.watcher.violations), "0", not stand.watcher.violations)
    if ON_A_THOUSAND not in wanted:
        return
    limits = Limits(gang=300.0, idle=600.0)  # a thousand nodes on a laptop
    async with laboratory([f"large-{index:04d}" for index in range(LARGE)], limits=limits) as stand:
        async for figure in large(stand):
            yield figure
        yield Figure("violations there", len(stand.watcher.violations), "0", not stand.watcher.violations)


def within(what: str, seconds: float, goal: float) -> Figure:
    return Figure(f"{what}, s", round(seconds, 2), f"<= {goal:g}", seconds <= goal)


# --- the pure reconcile --------------------------------------------------------------------------------------------
def histories() -> Figure:
    """Histories a minute of the property test: faults, crashes, late caches, edits; judged after every write."""
    began, each = time.monotonic(), 400
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        done = sum(pool.map(_histories, [each] * (os.cpu_count() or 1)))
    rate = 60 * done / (time.monotonic() - began)
    return Figure("histories of the pure reconcile a minute", round(rate), ">= 2000", rate >= 2000)


def _histories(number: int) -> int:
    """So many lives of a job; raises where one violates anything."""
    count = itertools.count()

    @settings(max_examples=number, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(strategies.lists(EVENTS, max_size=40), strategies.randoms(use_true_random=False))
    def live_one(events: Any, order: Any) -> None:
        next(count)
        asyncio.run(complete_whatever_happens(Server(), events, order))

    live_one()
    return next(count)


# --- one gang ------------------------------------------------------------------------------------------------------
async def node_death(stand: Stand) -> Figure:
    lives = [await reference(stand, NodeLoss("node-loss", 2)) for _ in range(5)]
    return within(
        "node deleted -> gang of two nodes runs elsewhere (median of 5)", median(x.seconds for x in lives), 10
    )


@asynccontextmanager
async def _preempted(stand: Stand, name: str, answer: str) -> AsyncIterator[tuple[witness_state.Object, float]]:
    """A job of 64 GPUs that had to give way: as it was right before its end, and when that came."""
    await stand.running({})
    await stand.hands.create(
        "priorityclasses", {"kind": "PriorityClass", "value": 1000, "metadata": {"name": URGENT}, **SCHEDULING}
    )
    await stand.hands.create(JOBS, _of_64(name, answer, "Fixed"))
    await stand.runs(name)
    await asyncio.sleep(SOME)
    await stand.hands.create(
        JOBS, training_job(f"{name}-high", gpus=64, seconds=LONG, priorityClassName=URGENT, elasticity=PATIENT)
    )
    yield await _ended(stand, name)
    await stand.clear(name, f"{name}-high")


def _of_64(name: str, answer: str, policy: str, most: int = 64) -> witness_state.Object:
    """A job of 64 GPUs, or more, whose trainer answers so when it is asked to save its state."""
    elasticity = {**PATIENT, "policy": policy, "checkpoint": {"graceSeconds": 5, "resharding": True}}
    gpus = {"min": 64, "max": most}
    job = training_job(name, seconds=STEPS_SECONDS, elasticity=elasticity, resources={"gpus": gpus})
    job["metadata"]["annotations"] = {"fake.trimtab.dev/checkpoint": answer}
    return job


async def _ended(stand: Stand, name: str) -> tuple[witness_state.Object, float]:
    """Wait for the end of a job's first plan: the job as it was right before, and when that came."""
    before: witness_state.Object = {}

    def over(seen: Watcher) -> bool:
        nonlocal before
        found = seen.job(name)
        if witness_state.plan_of(found).get("epoch") != 1:
            return True
        if witness_state.holds(found, "PodsReady"):  # of a gang that has begun to end it says when that was
            before = found
        return False

    await stand.watcher.until(over, 60, lambda: f"the first plan of {name} to end: {stand.tell(name)}")
    return before, time.time()


@asynccontextmanager
async def _resized(stand: Stand, name: str, answer: str) -> AsyncIterator[tuple[witness_state.Object, float]]:
    """A job of 64 GPUs that the controller has given 128 of its own accord, because nodes came: as it was right before
    its old gang ended, and when that was. Then its new gang runs."""
    await stand.running(OFTEN)
    await stand.hands.create(JOBS, _of_64(name, answer, "Elastic", 128))
    await stand.runs(name)
    await asyncio.sleep(LITTLE)
    await stand.hands.create("nodes", *map(gpu_node, MORE))
    ended = await _ended(stand, name)
    await stand.runs(name, epoch=2)
    told = witness_state.status_of(stand.watcher.job(name))
    assert (told["plan"]["gpus"], [each["cause"] for each in told["stops"]]) == (128, ["Resized"]), stand.tell(name)
    yield ended
    await stand.clear(name)
    for node in MORE:
        await stand.hands.delete("nodes", node)


def _resumes(stand: Stand, name: str) -> int:
    """The step that the pods of the standing plan are told to go on from; they agree."""
    told = {
        int(value["value"])
        for pod in stand.watcher.pods(name)
        for container in pod["spec"]["containers"]
        for value in container["env"]
        if value["name"] == "TRIMTAB_RESUME_STEP" and witness_state.epoch_of(pod) == 2
    }
    assert len(told) == 1, f"{name}: {told}"
    return told.pop()


SCHEDULING = {"apiVersion": "scheduling.k8s.io/v1"}


def _step(before: witness_state.Object, now: float) -> float:
    """The step that a fake gang has reached, reckoned from the clock: its predicted time, a thousandth of it."""
    began = witness_state.seconds(witness_state.condition(before, "PodsReady")["lastTransitionTime"])
    seconds = witness_state.plan_of(before)["predicted"]["runSeconds"] / 1000
    return float(before["spec"]["training"]["steps"]) * (now - began) / seconds


def _kept(stand: Stand, name: str) -> int:
    return int(witness_state.status_of(stand.watcher.job(name)).get("observed", {}).get("stepsDone", 0))


def _intervals(what: str, before: witness_state.Object, ended: float, kept: int) -> Figure:
    """Work lost in checkpoint intervals, a tenth of all steps each. Who goes on ahead of where it was has cheated."""
    lost = (_step(before, ended) - kept) / (before["spec"]["training"]["steps"] / 10)
    return Figure(f"{what}: checkpoint intervals lost", round(lost, 2), "0 to 1", -0.05 <= lost <= 1.05)


async def preempted_answering(stand: Stand) -> Figure:
    async with _preempted(stand, "answers", "0"):
        kept = _kept(stand, "answers")
        message = witness_state.condition(stand.watcher.job("answers"), "Preempted").get("message", "")
        saved = re.search(r"saved step (\d+)", message)
        lost = max(0, int(saved[1]) - kept) if saved else -1
    return Figure("64 GPUs give way and answer: steps lost", lost, "0", lost == 0)


async def preempted_deaf(stand: Stand) -> Figure:
    async with _preempted(stand, "deaf", "Ignores") as (before, ended):
        return _intervals("64 GPUs give way deaf", before, ended, _kept(stand, "deaf"))


async def resized_answering(stand: Stand) -> Figure:
    """The old gang has said which step it saved; the new one begins at one. What it had reached when it was asked is
    reckoned besides, so that a gang which saves nothing new does not pass."""
    async with _resized(stand, "grows", "0") as (before, _):
        told, resumed = witness_state.status_of(before), _resumes(stand, "grows")
        saved, stop = told.get("observed", {}).get("lastCheckpointStep", 0), told["stop"]
        reached = _step(before, witness_state.seconds(stop["requestedTime"]) - 2)  # both times are cut to seconds
        answered = "acknowledgedTime" in stop and saved >= reached > 0
        lost = max(0, saved - resumed) if answered else -1
    return Figure("64 GPUs become 128 and answer: steps lost", lost, "0", lost == 0)


async def resized_deaf(stand: Stand) -> Figure:
    async with _resized(stand, "grows-deaf", "Ignores") as (before, ended):
        return _intervals("64 GPUs become 128 deaf", before, ended, _resumes(stand, "grows-deaf"))


async def storm(stand: Stand) -> Figure:
    await stand.running({})
    calm = {**PATIENT, "minRuntimeSeconds": COOL_DOWN}
    await stand.hands.create(JOBS, training_job("storm", seconds=LONG, elasticity=calm))
    await stand.runs("storm")
    for number in range(int(STORM / PAUSE)):
        gpus = 8 if number % 2 == 0 else 16
        await stand.hands.patch(JOBS, "storm", {"spec": {"resources": {"gpus": {"max": gpus}}}})
        await asyncio.sleep(PAUSE)
    restarts = witness_state.status_of(stand.watcher.job("storm"))["lastEpoch"] - 1
    await stand.clear("storm")
    most = STORM / COOL_DOWN
    return Figure(
        f"restarts in 5 min of 20 edits/min, cool-down {COOL_DOWN} s", restarts, f"<= {most:g}", restarts <= most
    )


async def outage(stand: Stand) -> Figure:
    controller = await stand.running(PRODUCTION)
    await stand.hands.create(JOBS, training_job("outlives", seconds=LONG))
    await stand.runs("outlives")
    before = {witness_state.uid_of(pod) for pod in stand.watcher.pods("outlives")}
    async with stand.watcher.excuse():
        await stand.proxy.inject("reset", count=ENDLESS)
        await stand.proxy.sever()
        await stand.hands.create(JOBS, training_job("after", gpus=8, seconds=1.0))
        await asyncio.sleep(AWAY)
        stayed = controller.alive
        await stand.proxy.heal()
    began = time.monotonic()
    await stand.running(PRODUCTION)
    await stand.watcher.until(lambda seen: witness_state.plan_of(seen.job("after")), 120, lambda: stand.tell("after"))
    took = time.monotonic() - began
    touched = len(before - {witness_state.uid_of(pod) for pod in stand.watcher.pods("outlives")})
    await stand.clear("outlives", "after")
    said = f"{took:.1f} s, {touched} pods touched, the process {'stayed' if stayed else 'EXITED'}"
    return Figure(
        f"API server away for {AWAY / 60:g} min -> the next plan", said, "<= 10 s, 0, stayed",
        took <= 10 and not touched and stayed,
    )  # fmt: skip


def _planned(job: str, seen: Watcher) -> bool:
    return bool(witness_state.plan_of(seen.job(job)))


def _settled(job: str, seen: Watcher) -> bool:
    return _planned(job, seen) or _told(job, seen)


def _told(job: str, seen: Watcher) -> bool:
    return "pending" in witness_state.status_of(seen.job(job))


# --- a thousand nodes ----------------------------------------------------------------------------------------------
async def large(stand: Stand) -> AsyncIterator[Figure]:
    await stand.running(PRODUCTION)
    running = [f"run-{index:03d}" for index in range(RUNNING)]
    for first in range(0, RUNNING, 40):
        await stand.hands.create(JOBS, *(training_job(name, seconds=LONG) for name in running[first : first + 40]))
    await stand.watcher.until(
        lambda seen: sum(witness_state.holds(job, "PodsReady") for job in seen.jobs()) == RUNNING,
        500,
        "all gangs to run",
    )
    stand.controller.signal(signal.SIGKILL)
    await stand.controller.died()
    took = []
    for number in range(3):
        await stand.hands.create(JOBS, training_job(f"next-{number}", gpus=8, seconds=LONG))
        began = time.monotonic()
        async with ControllerProcess(stand.live.kubeconfig(stand.directory), stand.directory, **PRODUCTION) as real:
            await stand.watcher.until(partial(_planned, f"next-{number}"), 60, real.tail)
            took.append(time.monotonic() - began)
            real.signal(signal.SIGKILL)
    yield within(f"controller restart -> next plan, {LARGE} nodes, {RUNNING} gangs (median of 3)", median(took), 5)
    await stand.running(PRODUCTION)
    waiting = [training_job(f"wait-{index:03d}", gpus=64, seconds=LONG) for index in range(WAITING)]
    for first in range(0, WAITING, 50):
        await stand.hands.create(JOBS, *waiting[first : first + 50])
    await stand.watcher.until(
        lambda seen: all(_settled(f"wait-{i:03d}", seen) for i in range(WAITING)),
        300,
        "verdicts",
    )
    verdicts = []
    for number in range(5):
        began = time.monotonic()
        await stand.hands.create(JOBS, training_job(f"last-{number}", gpus=64, seconds=LONG))
        await stand.watcher.until(partial(_told, f"last-{number}"), 60, "verdict")
        verdicts.append(time.monotonic() - began)
    yield within(f"verdict with reason, {LARGE} nodes, {WAITING} jobs waiting (median of 5)", median(verdicts), 2)


HISTORIES, ON_A_THOUSAND = "histories", "thousand-nodes"
ON_NINE_NODES: dict[str, Callable[[Stand], Awaitable[Figure]]] = {
    "node-death": node_death,
    "preemption": preempted_answering,
    "preemption-deaf": preempted_deaf,
    "resize": resized_answering,
    "resize-deaf": resized_deaf,
    "storm": storm,
    "outage": outage,
}
PARTS = (HISTORIES, *ON_NINE_NODES, ON_A_THOUSAND)
"""What can be measured by itself."""
