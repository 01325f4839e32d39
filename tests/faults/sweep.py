"""The exhaustive crash sweep: a controller dies, or loses an answer, at each write of a life, and all ends the same.

The fault-free run says which writes a life takes and how it ends; each of its writes is a place to die (Sieve, OSDI'22:
random crashes do not find the 0.7 ms that matter). Three ways to die: before the write (F1), after it and before its
answer (F2), and not at all, with the answer lost (F3). On top of that a life in which no controller survives its first
write (`EACH`): one dies after every write that is made. A life that was broken must end in the state of the fault-free
one, with the same objects created once each, a bounded number of other writes more, and no invariant violated.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from tests.faultrules import Call
from tests.faults import witness_state
from tests.faults.testbed import Stand
from tests.faults.watcher import Watcher
from tests.faults.workloads import Workload

MODES = {"kill-before": "F1", "kill-after": "F2", "drop-reply": "F3"}
EACH = "kill-after-each"
"""Every controller dies right after its first write; its successor finds what it did."""
WRITES = r"^(?!.*/leases)(?!.*/events)"
"""Paths of the writes of a life: leadership and the telling of news are no part of it."""
CONVERGE = 60.0
"""Seconds to end in, whatever broke (I4)."""
ONCE = ("POST pods", "POST services", "POST bindings", "POST podgroups")
"""What is done once for each object, however often the controller dies."""
EXTRA = 4
"""Further writes that a crash may cost, of each other kind: what was done is looked at, and sometimes said, again."""

_lives = itertools.count(1)


@dataclass
class Life:
    """How a run of a workload went."""

    workload: str
    mode: str
    write: int
    """At which write it was struck; 0 for the fault-free run."""
    crashes: int = 0
    """How often the fault struck."""
    what: str = ""
    """The write that was struck."""
    seconds: float = 0.0
    """From the fault (or from the start, where there was none) to the end."""
    state: dict[str, Any] = field(default_factory=dict)
    writes: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


async def reference(stand: Stand, workload: Workload) -> Life:
    """The life without a fault."""
    life = await live_through(stand, workload, Life(workload.name, "", 0))
    if life.problems:
        raise AssertionError(f"{workload.name} fails without any fault: {life.problems}")
    return life


async def sweep(stand: Stand, workload: Workload, mode: str, calm: Life, start: int = 1) -> AsyncIterator[Life]:
    """Lives that were struck at their first write, their second one, ... until a life has no such write.

    That last one shows that none was left out: it was not struck, so it must have made fewer writes.
    """
    for write in itertools.count(start):
        life = await live_through(stand, workload, Life(workload.name, mode, write))
        if not life.crashes:
            if (made := sum(life.writes.values())) >= write:
                life.problems.append(f"nothing was struck at write {write}, though {made} were made")
                yield life
            return
        if life.state:
            life.problems += compare(calm, life)
        yield life
        if mode == EACH:
            return


async def live_through(stand: Stand, workload: Workload, life: Life) -> Life:
    """One life, with its fault."""
    name = f"{workload.name}-{next(_lives)}"
    known = len(stand.watcher.violations)
    await stand.running(workload.settings)
    try:
        await workload.prepare(stand, name)
        await _arm(stand, life)
        await stand.proxy.forget()  # after that: what is traced, a fault has seen
        began = time.monotonic()
        await workload.act(stand, name)
        while not await _over(stand, workload, name):
            life.crashes += 1
            began = time.monotonic()
            if life.mode == EACH:
                await stand.proxy.heal()
                await _arm(stand, life)
            await stand.running(workload.settings)
        life.seconds = time.monotonic() - began
        armed = await stand.proxy.trace()  # what is written after healing had nothing to be struck by
        await _strikes(stand, life, await stand.proxy.heal())
        life.what = next((_kind(call) for call in await stand.proxy.trace() if call.fault), "")
        life.state, life.writes = end_state(stand.watcher, workload, name), successes(armed)
    except AssertionError as error:
        life.crashes = max(1, life.crashes)
        life.problems.append(str(error))
        stand.stop()
    finally:
        await stand.proxy.heal()
    await workload.clean(stand, name)
    life.problems += map(str, stand.watcher.violations[known:])
    return life


async def _strikes(stand: Stand, life: Life, struck: int) -> None:
    """Count what struck last, be it when all was over already: its victim is dying, and no use to the next life."""
    if life.mode == "drop-reply":
        life.crashes = struck
    elif struck > (0 if life.mode == EACH else life.crashes):
        await stand.controller.died()
        life.crashes += 1


async def _arm(stand: Stand, life: Life) -> None:
    if life.mode == EACH:
        await stand.proxy.inject("kill-after", path=WRITES)
    elif life.mode:
        await stand.proxy.inject(life.mode, path=WRITES, nth=life.write)


async def _over(stand: Stand, workload: Workload, name: str) -> bool:
    """Wait for the end of the life, or of its controller; which of them it was."""
    await stand.watcher.until(
        lambda seen: not stand.alive or workload.over(seen, name), CONVERGE, lambda: _stuck(stand, workload, name)
    )
    return workload.over(stand.watcher, name) and stand.alive


def _stuck(stand: Stand, workload: Workload, name: str) -> str:
    return f"{workload.name} to end: {stand.tell(*workload.jobs(name))}"


def end_state(seen: Watcher, workload: Workload, life: str) -> dict[str, Any]:
    """What is left, without what may differ between two runs: times, epochs of leaders, chosen nodes, names."""
    state: dict[str, Any] = {}
    for job in workload.jobs(life):
        found, pods = seen.job(job), seen.pods(job)
        status, plan = witness_state.status_of(found), witness_state.plan_of(found)
        where = sorted(witness_state.node_of(pod) for pod in pods)
        state[workload.anonymous(job, life)] = {
            "conditions": {c["type"]: (c["status"], c["reason"]) for c in status.get("conditions", [])},
            "plan": {key: plan.get(key) for key in ("epoch", "gpus", "gpuType", "nodeCount", "parallelism")},
            "restarts": status.get("restarts", 0),
            "stops": [(each["cause"], each["epoch"]) for each in status.get("stops", [])],
            "pending": status.get("pending", {}).get("reason"),
            "pods": sorted((workload.anonymous(p["metadata"]["name"], life), p["status"]["phase"]) for p in pods),
            "on its plan": where == sorted(node["name"] for node in plan.get("nodes", [])),
        }
    return state


def successes(trace: list[Call]) -> Counter[str]:
    """Writes that the API server has accepted, by verb and kind; leases and events left out."""
    done = [call for call in trace if call.status and call.status < 300]
    return Counter(_kind(call) for call in done if "/leases" not in call.path and "/events" not in call.path)


def _kind(call: Call) -> str:
    *_, before, last = call.path.split("/")
    if last in ("binding", "status"):
        return f"{call.method} {'bindings' if last == 'binding' else 'status'}"
    return f"{call.method} {last if call.method == 'POST' else before}"


def compare(calm: Life, life: Life) -> list[str]:
    """In what a life differs from the fault-free one that it must not differ in."""
    problems = []
    if life.state != calm.state:
        problems.append(f"ended as {life.state} instead of {calm.state}")
    unanswered = 0 if life.mode == "kill-before" else life.crashes  # what was cut has no status in the trace
    for kind in calm.writes.keys() | life.writes.keys():
        expected, seen = calm.writes[kind], life.writes[kind]
        if kind in ONCE and not expected - unanswered <= seen <= expected:
            problems.append(f"{kind}: {seen} instead of {expected}")
        if kind not in ONCE and seen > expected + EXTRA + life.crashes:
            problems.append(f"{kind}: {seen} instead of {expected} and {EXTRA} more")
    return problems
