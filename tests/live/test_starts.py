"""Gangs that are bound and do not start: after `failures.start_timeout_seconds` they are taken back, and who is to
blame for it is told in the kubelet's words.

One node has no kubelet, not even KWOK's: what one would say of its pods the tests write, and they end them.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.live.accounts import clear, controlling, runs_as, shape, told
from tests.live.conftest import NODES
from tests.live.harness import NAMESPACE, ControllerProcess, Live, eventually, gpu_node, training_job
from tests.live.test_failures import failures, message, play
from tests.live.test_room import plan

from trimtab import names

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

LONG = 600.0
TIMEOUT = 4.0


@pytest.fixture(autouse=True)
def clean(live_cluster: Live) -> Iterator[None]:
    """No job of one test is in the way of the next one."""
    yield
    clear(live_cluster)


@pytest.fixture
async def controller(live: Live, tmp_path: Path) -> AsyncIterator[ControllerProcess]:
    rules = {"start_timeout_seconds": TIMEOUT}
    async with controlling(live, tmp_path, failures=rules) as process:
        yield process


@pytest.fixture
def mute(live: Live, controller: ControllerProcess, request: pytest.FixtureRequest) -> Iterator[str]:
    """A Ready node whose kubelet says nothing, and three of the other four closed: gangs of 16 must take it.

    Nobody renews its heartbeat, so that it lasts for some 50 s; each test has one of a name of its own.
    """
    name = f"live-mute-{zlib.crc32(request.node.name.encode()):x}"
    node = gpu_node(name)
    node["metadata"]["annotations"] = {}
    node["status"]["conditions"] = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]
    live.apply(node)
    live.cluster.kubectl("cordon", *NODES[1:])
    yield name
    live.cluster.kubectl("uncordon", *NODES)
    live.cluster.kubectl("delete", "node", name)


def waiting(reason: str, said: str) -> dict[str, Any]:
    """A kubelet's words about a pod whose container waits."""
    state = {"waiting": {"reason": reason, "message": said}}
    container = {"name": "trainer", "image": "example.test/trainer:1", "imageID": "", "ready": False, "restartCount": 0}
    return {"phase": "Pending", "containerStatuses": [{**container, "state": state}]}


def given_up(live: Live, job: str, times: int) -> bool:
    """Whether the job has given up so many gangs."""
    return len(failures(live, job)) == times


def pod_on(live: Live, job: str, node: str) -> dict[str, Any]:
    """The job's pod on a node, or an empty object."""
    return next((pod for pod in live.pods(job) if pod["spec"].get("nodeName") == node), {})


async def lets_go(live: Live, pod: str) -> None:
    """What a kubelet does with a pod that was deleted: it ends it, and says so."""
    await eventually(
        lambda: "deletionTimestamp" in live.get("pod", pod).get("metadata", {}), what=lambda: f"{pod} to be deleted"
    )
    live.cluster.kubectl("delete", "pod", pod, "-n", NAMESPACE, "--force", "--grace-period=0")


async def test_where_one_pod_of_a_gang_does_not_start_its_node_is_to_blame(
    live: Live, mute: str, controller: ControllerProcess
) -> None:
    job = "half-started"
    live.apply(training_job(job, gpus=16, seconds=LONG, maxRestarts=0))
    await eventually(lambda: bool(pod_on(live, job, mute)), what=lambda: f"its pod: {live.status(job)}")
    assert set(shape(live, job)) == {NODES[0], mute}
    stuck = pod_on(live, job, mute)["metadata"]["name"]
    play(live, stuck, **waiting("ContainerCreating", "MountVolume.SetUp failed for volume data"))
    live.cluster.kubectl("cordon", mute)
    live.cluster.kubectl("uncordon", *NODES)
    await eventually(lambda: bool(failures(live, job)), what=lambda: f"it to be given up: {live.status(job)}")
    assert failures(live, job) == [("Node", "StartTimeout", mute)]
    assert live.status(job)["failures"][0]["running"] is False
    await lets_go(live, stuck)
    await runs_as(live, job, 2)
    assert mute not in shape(live, job)
    assert live.status(job).get("restarts", 0) == 0, "it is not the job's failure"
    [why] = told(live, job, "StartTimeout")
    assert why.startswith("1 of 2 pods do not run ")
    assert f"{stuck} on {mute}: ContainerCreating MountVolume.SetUp failed for volume data" in why
    assert controller.metric("trimtab_failures_total", cause="Node") == 1


async def test_an_image_that_is_not_there_ends_the_job_after_two_attempts(
    live: Live, mute: str, controller: ControllerProcess
) -> None:
    job = "imageless"
    spec = training_job(job, gpus=8, seconds=LONG)
    spec["spec"]["template"]["spec"]["nodeSelector"] = {names.HOSTNAME: mute}
    live.apply(spec)
    for attempt in (1, 2):
        pod = f"{job}-{attempt}-0"
        await eventually(lambda: bool(pod_on(live, job, mute)), what=lambda: f"its pod: {live.status(job)}")
        play(live, pod, **waiting("ImagePullBackOff", "manifest unknown: example.test/trainer:1"))
        await eventually(partial(given_up, live, job, attempt), what=lambda: f"it to be given up: {live.status(job)}")
        await lets_go(live, pod)
    assert failures(live, job) == [("UserError", "StartTimeout", "")] * 2
    await live.until(job, names.FAILED)
    assert "correct the image, or imagePullSecrets" in message(live, job, names.FAILED)
    assert plan(live, job)["epoch"] == 2
