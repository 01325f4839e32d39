"""The controller may be killed before or after any of its writes; its successor finishes the job all the same.

The sweep is exhaustive: the fault-free run says which writes a job's life takes, and each of them is a place to die
(Sieve, OSDI'22: random crashes do not find the 0.7 ms that matter). Every run must end in the state of the fault-free
one, with the same objects created once each.
"""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.faultproxy import FaultProxy
from tests.faultrules import Call
from tests.live.harness import ControllerProcess, Live, eventually, training_job

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

BLINK = 0.1
"""Run time of the fake pods: too short for progress to be noted on the way, which would blur the count of writes."""
JOB_WRITES = r"^(?!.*/leases)(?!.*/events)"
"""Paths of the writes of a job's life: leadership and the telling of news are not part of it."""


def end_state(live: Live, job: str) -> dict[str, Any]:
    """What is left of a job, without what may differ between two runs: times, epochs of leaders, chosen nodes."""
    status = live.status(job)
    pods = live.pods(job)
    return {
        "conditions": {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]},
        "plan": {key: status["plan"][key] for key in ("epoch", "gpus", "gpuType", "nodeCount", "parallelism")},
        "restarts": status.get("restarts", 0),
        "pods": sorted((pod["metadata"]["name"], pod["status"]["phase"]) for pod in pods),
        "on": sorted(pod["spec"]["nodeName"] for pod in pods) == sorted(n["name"] for n in status["plan"]["nodes"]),
        "service": bool(live.get("service", job)),
    }


def successes(trace: list[Call]) -> Counter[str]:
    """Created, bound and deleted objects, and status writes, that the API server has accepted."""
    counts: Counter[str] = Counter()
    for call in trace:
        if call.status and call.status < 300 and "/leases" not in call.path and "/events" not in call.path:
            what = "bindings" if call.path.endswith("/binding") else call.path.rsplit("/", 1)[-1]
            counts[f"{call.method} {'status' if what == 'status' else what.split('?')[0]}"] += 1
    return counts


async def run_once(live: Live, proxy: FaultProxy, tmp_path: Path, job: str) -> tuple[dict[str, Any], list[Call]]:
    """A job's life under one controller, without any fault."""
    await proxy.forget()
    async with ControllerProcess(proxy.kubeconfig, tmp_path):
        live.apply(training_job(job, seconds=BLINK))
        await live.until(job, "Complete")
        state, trace = end_state(live, job), await proxy.trace()
        await live.gone(job)
    return state, trace


async def run_with_crash(
    live: Live, proxy: FaultProxy, tmp_path: Path, job: str, action: str, nth: int
) -> tuple[dict[str, Any], list[Call]] | None:
    """The same life with a crash (or a lost answer) at the nth write; None if it has no such write."""
    await proxy.heal()
    await proxy.forget()
    await proxy.inject(action, path=JOB_WRITES, nth=nth)
    first = ControllerProcess(proxy.kubeconfig, tmp_path).start()
    await proxy.victim(first.pid)
    second = ControllerProcess(proxy.kubeconfig, tmp_path)
    try:
        live.apply(training_job(job, seconds=BLINK))
        await eventually(lambda: not first.alive or live.holds(job, "Complete"), 60, "a crash or the end")
        if not first.alive:
            second.start()
        await live.until(job, "Complete", seconds=60)
        struck, state, trace = await proxy.struck(), end_state(live, job), await proxy.trace()
        await live.gone(job)
    except AssertionError as error:
        logs = "\n---\n".join(process.tail() for process in (first, second))
        raise AssertionError(f"{action} at write {nth}: {error}\n{logs}") from error
    finally:
        first.stop()
        second.stop()
    return (state, trace) if struck else None


@pytest.mark.parametrize("action", ["kill-before", "kill-after", "drop-reply"])
async def test_a_crash_at_any_write_changes_nothing_in_the_end(
    live: Live, proxy: FaultProxy, tmp_path: Path, action: str
) -> None:
    expected, trace = await run_once(live, proxy, tmp_path, f"calm-{action}")
    reference = successes(trace)
    for nth in itertools.count(1):
        job = f"{action}-{nth}"
        life = await run_with_crash(live, proxy, tmp_path, job, action, nth)
        if life is None:
            break
        state, trace = life
        names = [(name.replace(f"calm-{action}", job), phase) for name, phase in expected["pods"]]
        assert state == {**expected, "pods": names}, job
        counts = successes(trace)
        lost = 0 if action == "kill-before" else 1  # an answer that was cut has no status in the trace
        for key in ("POST pods", "POST services", "POST bindings"):
            assert reference[key] - lost <= counts[key] <= reference[key], f"{job}: {key} {counts}"
        assert not [key for key in counts if key.startswith("DELETE")], f"{job}: {counts}"
        assert counts["PATCH status"] <= reference["PATCH status"] + 3, f"{job}: {counts}"
    assert nth > 7, "a plan, a Service, two pods, two bindings and Complete are seven writes at least"
