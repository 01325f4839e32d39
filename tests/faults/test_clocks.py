"""The controller's wall clock is ten minutes wrong, or is set while it runs: nobody but its log's readers is worse off.

Row F16 of the matrix, for the controller; the clocks of agents are in `test_feed.py`. Figures are taken by the clock of
the test, which is that of the API server and right. The witness looks for gangs that are stopped too early (I6) and for
all that does not go on (I4).
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.faults import witness_state
from tests.faults.test_stops import asked, low, urgent
from tests.faults.testbed import Settings, Stand
from tests.faults.watcher import Watcher
from tests.faults.witness_state import Object
from tests.faults.workloads import JOBS, LONG, whole
from tests.forkserver import BACK, FORTH, Forge
from tests.live.harness import gpu_node, training_job

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

WRONG = 600.0
SHORT, ENOUGH = 3, 6
"""Seconds that a gang has to save its state, that a failed one has to wait, and that one may take to start: where each
is seen by itself, and where the clock is to jump while all three are under way."""
STAMP, SLACK = 1.0, 15.0
"""Times in objects are cut to seconds, as are those in answers: who has few of them is wrong by as much. What is due is
done so much later, at most: a successor starts meanwhile."""
HELD = 2.0
"""Seconds that pods outlive their deletion in."""
MUTE = "test.trimtab.dev/mute"
FINALIZER = "test.trimtab.dev/held"


@pytest.fixture(autouse=True)
def real_clock(forge: Forge) -> Iterator[None]:
    """Controllers of later tests have it again."""
    yield
    forge.ahead = None


def timing(seconds: float) -> Settings:
    return {
        "gang": {"backoff_initial_seconds": seconds, "backoff_max_seconds": seconds},
        "failures": {"start_timeout_seconds": seconds},
    }


def status(stand: Stand, job: str) -> Object:
    return witness_state.status_of(stand.watcher.job(job))


def gang(name: str, gpus: int, grace: int) -> Object:
    """One that hears nobody."""
    made = low(name, "Ignores", grace=grace)
    made["spec"]["resources"]["gpus"]["max"] = gpus
    return made


async def seen(stand: Stand, what: str, happened: Any, *jobs: str, seconds: float = 40) -> float:
    """When that was seen of the jobs."""
    await stand.watcher.until(happened, seconds, lambda: f"{what}: {stand.tell(*jobs)}")
    return time.time()


async def fails(stand: Stand, job: str) -> tuple[float, float]:
    """One rank ends with an error, and the gang with it: when it was given up, and when its next plan is to come."""
    state = {"terminated": {"exitCode": 1, "reason": "Error"}}
    container = {"name": "trainer", "image": "i", "imageID": "", "ready": False, "restartCount": 0, "state": state}
    ended = {"status": {"phase": "Failed", "containerStatuses": [container]}}
    await stand.hands.patch("pods", stand.watcher.pods(job)[0]["metadata"]["name"], ended, status=True)
    failed = await seen(
        stand, f"{job} to back off", lambda seen: "retryTime" in witness_state.status_of(seen.job(job)), job
    )
    return failed, witness_state.seconds(status(stand, job)["retryTime"])


async def replanned(stand: Stand, job: str) -> float:
    return await seen(stand, f"{job} to be planned anew", lambda seen: witness_state.plan_of(seen.job(job)), job)


async def hold(stand: Stand, job: str) -> None:
    """A finalizer keeps the job's pods when they are deleted."""
    for pod in stand.watcher.pods(job):
        await stand.hands.patch("pods", pod["metadata"]["name"], {"metadata": {"finalizers": [FINALIZER]}})


async def let_go(stand: Stand, job: str) -> None:
    for pod in stand.watcher.pods(job):
        await stand.hands.patch("pods", pod["metadata"]["name"], {"metadata": {"finalizers": []}})


@asynccontextmanager
async def mute_node(stand: Stand, job: str) -> AsyncIterator[None]:
    """A Ready node without a kubelet, and this job, which goes nowhere else: its pod is bound, and never runs.

    Its name is new: of a node that comes again, kube-controller-manager remembers for how long it has been silent.
    """
    node = gpu_node(f"mute-{job}")
    node["metadata"]["annotations"] = {}
    node["spec"] = {"taints": [{"key": MUTE, "effect": "NoSchedule"}]}
    node["status"]["conditions"] = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]
    await stand.hands.create("nodes", node)
    made = training_job(job, gpus=8, seconds=LONG)
    spec = made["spec"]["template"]["spec"]
    spec["nodeSelector"] = {"kubernetes.io/hostname": f"mute-{job}"}
    spec["tolerations"] = [{"key": MUTE, "operator": "Exists"}]
    await stand.hands.create(JOBS, made)
    yield
    for pod in stand.watcher.pods(job):
        await stand.hands.delete("pods", pod["metadata"]["name"], grace=0)
    await stand.clear(job)
    await stand.hands.delete("nodes", f"mute-{job}")


def started(seen: Watcher, job: str) -> bool:
    return witness_state.holds(seen.job(job), "GangScheduled")


@pytest.mark.parametrize("ahead", [WRONG, -WRONG])
async def test_jobs_start_fail_and_give_way_in_their_time_under_a_wrong_clock(
    stand: Stand, forge: Forge, ahead: float
) -> None:
    forge.ahead = ahead
    await stand.running(timing(SHORT))
    began = time.time()
    await stand.hands.create(JOBS, gang("wrong", 32, SHORT))
    await stand.runs("wrong")
    assert began - STAMP <= witness_state.seconds(status(stand, "wrong")["startTime"]) <= time.time() + STAMP
    failed, again = await fails(stand, "wrong")
    assert failed - STAMP <= again <= failed + SHORT + STAMP, "the end of its pause is told as the API server would"
    assert again - STAMP <= await replanned(stand, "wrong") <= again + SLACK
    await stand.runs("wrong", epoch=2)

    await urgent(stand, "wrong-high", 32)
    requested = await seen(stand, "the question", lambda seen: asked(seen, "wrong"), "wrong", "wrong-high")
    stop = status(stand, "wrong")["stop"]
    deadline = witness_state.seconds(stop["deadlineTime"])
    assert deadline == witness_state.seconds(stop["requestedTime"]) + SHORT
    assert requested - STAMP <= deadline <= requested + SHORT + STAMP
    await hold(stand, "wrong")
    ended = await seen(stand, "its end", lambda seen: not witness_state.plan_of(seen.job("wrong")), "wrong")
    assert deadline - STAMP <= ended <= deadline + SLACK
    await asyncio.sleep(HELD)
    await let_go(stand, "wrong")
    await seen(stand, "the urgent one to run", lambda seen: whole(seen, "wrong-high", 1), "wrong-high")
    assert status(stand, "wrong-high")["lastEpoch"] == 1, "it waited for pods whose time to end was not over"
    await stand.clear("wrong", "wrong-high")


@pytest.mark.parametrize("how", ["set forth", "set back", "successor ahead"])
async def test_a_clock_that_jumps_amid_everything_changes_nothing(stand: Stand, forge: Forge, how: str) -> None:
    """A gang runs, one is to stop, one backs off, one is about to start; then it is ten minutes later, or earlier."""
    calm, deaf, flaky, stuck, high = jobs = [f"{how.replace(' ', '-')}-{n}" for n in range(5)]
    forge.ahead = 0.0
    controller = await stand.running(timing(ENOUGH))
    await stand.hands.create(JOBS, training_job(calm, gpus=8, seconds=LONG), training_job(flaky, gpus=8, seconds=LONG))
    await stand.hands.create(JOBS, gang(deaf, 16, ENOUGH))
    for job in (calm, flaky, deaf):
        await stand.runs(job)
    before, leader = {witness_state.uid_of(pod) for pod in stand.watcher.pods(calm)}, status(stand, calm)["leaderEpoch"]

    async with mute_node(stand, stuck):
        await urgent(stand, high)
        await seen(stand, "the question", lambda seen: asked(seen, deaf) and started(seen, stuck), *jobs)
        deadline = witness_state.seconds(status(stand, deaf)["stop"]["deadlineTime"])
        bound = witness_state.seconds(
            witness_state.condition(stand.watcher.job(stuck), "GangScheduled")["lastTransitionTime"]
        )
        _, again = await fails(stand, flaky)
        assert asked(stand.watcher, deaf), "the clock is to jump while it has time"
        if how == "successor ahead":
            controller.signal(signal.SIGKILL)
            await controller.died()
            forge.ahead = WRONG
            await stand.running(timing(ENOUGH))
        else:
            controller.signal(FORTH if how == "set forth" else BACK)

        ended, tried, given_up = await asyncio.gather(
            seen(stand, "its end", lambda seen: not witness_state.plan_of(seen.job(deaf)), deaf),
            replanned(stand, flaky),
            seen(stand, "its failure", lambda seen: "failures" in witness_state.status_of(seen.job(stuck)), stuck),
        )
        assert deadline - STAMP <= ended <= deadline + SLACK
        assert again - STAMP <= tried <= again + SLACK
        assert bound + ENOUGH - STAMP <= given_up <= bound + ENOUGH + SLACK
        assert status(stand, stuck)["failures"][0]["reason"] == "StartTimeout"
        await seen(stand, "the urgent one to run", lambda seen: whole(seen, high, 1), high)
    assert {witness_state.uid_of(pod) for pod in stand.watcher.pods(calm)} == before, "a gang that runs is left alone"
    taken_over = how == "successor ahead"
    assert stand.controller.alive
    assert status(stand, high)["leaderEpoch"] == leader + taken_over
    await stand.clear(calm, deaf, flaky, high)
