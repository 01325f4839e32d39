"""`hack/faults --soak 30m --seed N`: a hundred jobs on two hundred nodes, and something breaks every few seconds.

What happens when is drawn from the seed beforehand (`script`): the same seed tells the same story. Jobs arrive during
the first half. When the time is over everything is mended, and every job must end; nothing may have been violated.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tests.faults import witness_state
from tests.faults.cluster_fixture import laboratory
from tests.faults.raw_client import Refused
from tests.faults.sweep import successes
from tests.faults.testbed import Stand, pods_in_words
from tests.faults.watcher import state
from tests.faults.workloads import ready
from tests.live.harness import gpu_node, training_job

JOBS = "llmtrainingjobs"
EVERY = 4.0
"""Mean seconds between two faults."""
NOT_READY = "fake.trimtab.dev/not-ready"
MEND = 600.0
"""Seconds in which every job must end after the last fault."""
SIZES = (1, 1, 1, 2, 2, 4, 8)
"""Nodes of a gang; each is as likely as it is often here. Powers of two: of three nodes no job could make use."""
ENDLESS = 1_000_000


@dataclass(frozen=True)
class Event:
    """Something that happens. `a` and `b` are in [0, 1): which node or job, how long or how much."""

    time: float
    kind: str
    a: float
    b: float


@dataclass
class Outcome:
    """Figures of a soak."""

    seed: int
    seconds: float
    faults: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    open: list[str] = field(default_factory=list)
    """Jobs that did not end."""
    violations: list[str] = field(default_factory=list)
    writes: int = 0
    starts: int = 0
    epochs: int = 0
    recoveries: list[float] = field(default_factory=list)
    """Seconds from the end of a running gang to the next one that runs, or to the job's end."""


def script(seed: int, seconds: float) -> list[Event]:
    """What happens when."""
    chance = random.Random(seed)
    kinds = sorted(FAULTS)
    events, now = [], 0.0
    while (now := now + chance.expovariate(1 / EVERY)) < seconds:
        events.append(Event(round(now, 3), chance.choice(kinds), chance.random(), chance.random()))
    return events


async def soak(seconds: float, seed: int, say: Callable[[str], None], *, jobs: int = 100, nodes: int = 200) -> Outcome:
    """Break things for so long, mend them, and see what is left."""
    names = [f"soak-{index:03d}" for index in range(nodes)]
    async with laboratory(names) as stand:
        return await _Soak(stand, names, [f"job-{index:03d}" for index in range(jobs)], say).run(seconds, seed)


def figures(outcome: Outcome) -> list[dict[str, object]]:
    """Rows of a table: what, and how much."""
    times, jobs = sorted(outcome.recoveries), sum(outcome.ended.values()) + len(outcome.open) // 2
    rows: list[tuple[str, object, int]] = [
        (f"seed {outcome.seed}, seconds", outcome.seconds, 0),
        *((kind, count, 0) for kind, count in sorted(outcome.faults.items())),
        ("faults", sum(outcome.faults.values()), 0),
        ("controllers started", outcome.starts, 0),
        ("jobs", jobs, 0),
        ("jobs that completed", outcome.ended["Complete"], 0),
        ("jobs that failed", outcome.ended["Failed"], 0),
        ("jobs that did not end", len(outcome.open) // 2, len(outcome.open)),
        ("gangs started", outcome.epochs, 0),
        ("accepted writes for a gang", round(outcome.writes / max(1, outcome.epochs), 1), 0),
        ("gangs that were away for a while", len(times), 0),
        ("median seconds away", times[len(times) // 2] if times else 0.0, 0),
        ("9 of 10 were away at most", times[9 * len(times) // 10] if times else 0.0, 0),
        ("violations", len(outcome.violations), len(outcome.violations)),
    ]
    return [{"what": what, "figure": figure, "violations": bad} for what, figure, bad in rows]


class _Soak:
    def __init__(self, stand: Stand, nodes: list[str], jobs: list[str], say: Callable[[str], None]) -> None:
        self.stand = stand
        self.nodes = nodes
        self.jobs = jobs
        self.say = say
        self.over = False
        self.broken_since: dict[str, float] = {}
        self.ran: dict[str, bool] = defaultdict(bool)
        self._aftermath: set[asyncio.Task[None]] = set()

    async def run(self, seconds: float, seed: int) -> Outcome:
        outcome = Outcome(seed, seconds)
        tasks = [
            asyncio.create_task(part) for part in (self._kubelet(), self._submit(seed, seconds), self._time(outcome))
        ]
        began = time.monotonic()
        for event in script(seed, seconds):
            await asyncio.sleep(max(0.0, event.time - (time.monotonic() - began)))
            for task in tasks:
                if task.done():
                    task.result()
            outcome.faults[event.kind] += 1
            self._tell_violations(outcome)
            self.say(f"{event.time:7.1f} {event.kind} {event.a:.3f} {event.b:.3f} {self._count()}")
            try:
                await FAULTS[event.kind](self, event)
            except Refused as refused:
                self.say(f"        not possible: {refused}")
        await asyncio.sleep(max(0.0, seconds - (time.monotonic() - began)))
        await self._mend()
        try:
            await self.stand.watcher.until(lambda _: len(self._ended()) == len(self.jobs), MEND, "all jobs to end")
        except AssertionError:
            outcome.open = [f"{job}: {state(self.stand.watcher.job(job))}" for job in self._unfinished()]
            outcome.open += [f"{job}: {pods_in_words(self.stand.watcher.pods(job))}" for job in self._unfinished()]
        self.over = True
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return await self._figures(outcome)

    def _tell_violations(self, outcome: Outcome) -> None:
        """Those that are new, with the jobs as they are now: later it is too late to look."""
        told = [str(each) for each in self.stand.watcher.violations]
        for violation in told[len(outcome.violations) :]:
            named = [job for job in self.jobs if job in violation]
            self.say(f"VIOLATED {violation}\n{self.stand.tell(*named)}")
        outcome.violations = told

    async def _figures(self, outcome: Outcome) -> Outcome:
        seen = self.stand.watcher
        outcome.ended = Counter(
            "Complete" if witness_state.holds(seen.job(job), "Complete") else "Failed" for job in self._ended()
        )
        self._tell_violations(outcome)
        outcome.writes = sum(successes(await self.stand.proxy.trace()).values())
        outcome.starts = self.stand.starts
        outcome.epochs = sum(int(witness_state.status_of(seen.job(job)).get("lastEpoch", 0)) for job in self.jobs)
        return outcome

    def _ended(self) -> list[str]:
        return [job for job in self.jobs if witness_state.finished(self.stand.watcher.job(job))]

    def _unfinished(self) -> list[str]:
        return [job for job in self.jobs if not witness_state.finished(self.stand.watcher.job(job))]

    def _count(self) -> str:
        run = sum(witness_state.holds(self.stand.watcher.job(job), "PodsReady") for job in self.jobs)
        return f"[{run} run, {len(self._ended())} ended, {len(self.stand.watcher.violations)} violations]"

    # --- what goes on meanwhile -------------------------------------------------------------------------------------
    async def _kubelet(self) -> None:
        """Starts the controller again whenever it has ended."""
        while not self.over:
            if not self.stand.alive:
                await self.stand.running()
            await asyncio.sleep(0.3)

    async def _submit(self, seed: int, seconds: float) -> None:
        chance = random.Random(seed + 1)
        for job in self.jobs:
            size, length = chance.choice(SIZES), chance.uniform(5, 60)
            made = training_job(job, gpus=8 * size, seconds=length, maxRestarts=1000)
            made["spec"]["elasticity"] = {"policy": "Fixed", "checkpoint": {"graceSeconds": 2}, "minRuntimeSeconds": 5}
            await self.stand.hands.create(JOBS, made)
            await asyncio.sleep(seconds / 2 / len(self.jobs))

    async def _time(self, outcome: Outcome) -> None:
        """How long gangs that ran are away."""
        while True:
            now = time.monotonic()
            for job in self.jobs:
                found = self.stand.watcher.job(job)
                runs = witness_state.holds(found, "PodsReady") or witness_state.finished(found)
                if self.ran[job] and not runs and not found.get("spec", {}).get("suspend"):
                    self.broken_since.setdefault(job, now)
                elif runs and job in self.broken_since:
                    outcome.recoveries.append(round(now - self.broken_since.pop(job), 2))
                self.ran[job] = self.ran[job] or runs
            await asyncio.sleep(0.2)

    async def _mend(self) -> None:
        """Nothing is broken any more."""
        await asyncio.gather(*self._aftermath, return_exceptions=True)
        await self.stand.proxy.heal()
        await self.stand.proxy.sever()
        for name in self.nodes:
            node = self.stand.watcher.node(name)
            if not node:
                await self.stand.hands.create("nodes", gpu_node(name))
            elif not ready(node) or node["spec"].get("unschedulable"):
                await self._whole_node(name)
        for job in self.jobs:
            if self.stand.watcher.job(job).get("spec", {}).get("suspend"):
                await self.stand.hands.patch(JOBS, job, {"spec": {"suspend": False}})

    async def _whole_node(self, name: str) -> None:
        mark = {NOT_READY: None}
        patch = {"metadata": {"labels": mark, "annotations": mark}, "spec": {"unschedulable": None}}
        await self.stand.hands.patch("nodes", name, patch)

    def later(self, seconds: float, what: Callable[[], Awaitable[None]]) -> None:
        """Mend one thing after a while."""

        async def mend() -> None:
            await asyncio.sleep(seconds)
            await what()

        task = asyncio.create_task(mend())
        self._aftermath.add(task)
        task.add_done_callback(self._aftermath.discard)

    # --- who is struck ----------------------------------------------------------------------------------------------
    def node(self, event: Event) -> str:
        """A node that gangs use, where there is one."""
        used = sorted(
            {witness_state.node_of(pod) for job in self.jobs for pod in self.stand.watcher.pods(job)} & set(self.nodes)
        )
        among = used or self.nodes
        return among[int(event.a * len(among))]

    def job(self, event: Event) -> str:
        """A job that is there and has not ended, where there is one."""
        there = [job for job in self._unfinished() if self.stand.watcher.job(job)] or [self.jobs[0]]
        return there[int(event.a * len(there))]

    def pod(self, event: Event) -> str:
        pods = sorted(
            pod["metadata"]["name"] for pod in self.stand.watcher.pods(self.job(event)) if witness_state.live(pod)
        )
        return pods[int(event.b * len(pods))] if pods else "none"

    async def inject(self, action: str, seconds: float = 0.0, **rule: object) -> None:
        """A rule of the proxy; one that is meant to last is healed after so long."""
        await self.stand.proxy.inject(action, **rule)  # type: ignore[arg-type]  # keywords of inject
        if seconds:
            self.later(seconds, self.stand.proxy.heal)


Fault = Callable[[_Soak, Event], Awaitable[None]]
NO_LEASES = r"^(?!.*/leases)"


def _killed(action: str) -> Fault:
    async def strike(soak: _Soak, event: Event) -> None:
        await soak.inject(action, path=r"^(?!.*/leases)(?!.*/events)", nth=1 + int(event.a * 5))

    return strike


def _refused(code: int) -> Fault:
    async def strike(soak: _Soak, event: Event) -> None:
        await soak.inject(f"status:{code}", 1 + 4 * event.b, path=NO_LEASES, count=ENDLESS)

    return strike


def _watch(action: str, count: int = 2) -> Fault:
    async def strike(soak: _Soak, event: Event) -> None:
        path = f"/{('pods', 'nodes', JOBS)[int(event.a * 3)]}"
        await soak.inject(action, path=path, count=count)
        await soak.stand.proxy.sever()

    return strike


async def _kill(soak: _Soak, event: Event) -> None:
    if soak.stand.alive:
        soak.stand.controller.signal(signal.SIGKILL)


async def _freeze(soak: _Soak, event: Event) -> None:
    if soak.stand.alive:
        frozen = soak.stand.controller
        frozen.signal(signal.SIGSTOP)

        async def thaw() -> None:
            if frozen.alive:
                frozen.signal(signal.SIGCONT)

        soak.later(1 + 5 * event.b, thaw)


async def _away(soak: _Soak, event: Event) -> None:
    await soak.inject("reset", 1 + 7 * event.b, count=ENDLESS)
    await soak.stand.proxy.sever()


async def _node_deleted(soak: _Soak, event: Event) -> None:
    name = soak.node(event)
    await soak.stand.hands.delete("nodes", name)
    soak.later(5 + 20 * event.b, lambda: soak.stand.hands.create("nodes", gpu_node(name)))


async def _node_unready(soak: _Soak, event: Event) -> None:
    name, mark = soak.node(event), {NOT_READY: "true"}
    await soak.stand.hands.patch("nodes", name, {"metadata": {"labels": mark, "annotations": mark}})
    soak.later(1 + 20 * event.b, lambda: soak._whole_node(name))


async def _cordoned(soak: _Soak, event: Event) -> None:
    name = soak.node(event)
    await soak.stand.hands.patch("nodes", name, {"spec": {"unschedulable": True}})
    soak.later(5 + 20 * event.b, lambda: soak._whole_node(name))


async def _pod_deleted(soak: _Soak, event: Event) -> None:
    await soak.stand.hands.delete("pods", soak.pod(event), grace=0)


async def _pod_failed(soak: _Soak, event: Event) -> None:
    status = {"phase": "Failed", "reason": "Evicted", "message": "soaked"}
    await soak.stand.hands.patch("pods", soak.pod(event), {"status": status}, status=True)


async def _suspended(soak: _Soak, event: Event) -> None:
    job = soak.job(event)

    async def resume() -> None:
        await soak.stand.hands.patch(JOBS, job, {"spec": {"suspend": False}})

    await soak.stand.hands.patch(JOBS, job, {"spec": {"suspend": True}})
    soak.later(2 + 15 * event.b, resume)


async def _resized(soak: _Soak, event: Event) -> None:
    gpus = 8 * (1, 2, 4)[int(event.b * 3)]
    await soak.stand.hands.patch(JOBS, soak.job(event), {"spec": {"resources": {"gpus": {"max": gpus}}}})


async def _prioritised(soak: _Soak, event: Event) -> None:
    name = "system-node-critical" if event.b > 0.5 else None
    await soak.stand.hands.patch(JOBS, soak.job(event), {"spec": {"priorityClassName": name}})


FAULTS: dict[str, Fault] = {
    "F1 crash before a write": _killed("kill-before"),
    "F2 crash after a write": _killed("kill-after"),
    "F3 reply lost": _killed("drop-reply"),
    "F4 conflicts": _refused(409),
    "F5 errors 500": _refused(500),
    "F5 errors 503": _refused(503),
    "F6 too many requests": _refused(429),
    "F7 hanging requests": _watch("hang:5"),
    "F8 outage": _away,
    "F9 watch gone": _watch("gone"),
    "F10 error in a watch": _watch("werr:500"),
    "F11 mute watch": _watch("mute", 1),
    "F12 event lost": _watch("drop-event:MODIFIED", 1),
    "F13 stale list": _watch("stale-list"),
    "F15 killed": _kill,
    "F34 frozen": _freeze,
    "F19 node cordoned": _cordoned,
    "F19 node deleted": _node_deleted,
    "F20 node not ready": _node_unready,
    "F22 pod failed": _pod_failed,
    "F22 pod deleted": _pod_deleted,
    "F25 suspended and resumed": _suspended,
    "F25 number of GPUs edited": _resized,
    "F25 priority edited": _prioritised,
}
