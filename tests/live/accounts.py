"""What jobs, pods and events say of a gang that had to go and came back: in words that several live tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.live.harness import NAMESPACE, ControllerProcess, Live, eventually
from tests.live.test_room import plan
from tests.live.test_stops import variables

from trimtab import names


@asynccontextmanager
async def controlling(live: Live, directory: Path, **settings: Any) -> AsyncIterator[ControllerProcess]:
    """A controller that leads already: how long its start takes on a busy machine is no matter of the test's."""
    async with ControllerProcess(live.kubeconfig(directory), directory, **settings) as process:
        await eventually(lambda: "leading" in process.tail() or not process.alive, 90, process.tail)
        assert process.alive, process.tail()
        yield process
        assert process.alive, process.tail()


def told(live: Live, name: str, reason: str) -> list[str]:
    """Messages of the events of this reason about an object, each once."""
    found = [event for event in live.list("events") if event["involvedObject"]["name"] == name]
    return list(dict.fromkeys(event["message"] for event in found if event["reason"] == reason))


def shape(live: Live, job: str) -> dict[str, int]:
    """GPUs that the standing plan takes of each node."""
    return {node["name"]: node["gpus"] for node in plan(live, job).get("nodes", [])}


async def runs_as(live: Live, job: str, epoch: int, seconds: float = 30) -> None:
    """Wait until the plan of this epoch runs as a whole."""
    await eventually(
        lambda: plan(live, job).get("epoch") == epoch and live.holds(job, names.PODS_READY),
        seconds,
        lambda: f"{job} to run in epoch {epoch}: {live.status(job)}",
    )


def went_on(live: Live, job: str) -> int:
    """The step that a gang which was stopped once has gone on from; fails where any step was lost, or paid for."""
    status, pods = live.status(job), live.pods(job)
    saved: int = status["observed"]["lastCheckpointStep"]
    assert saved > 0, "it had done something before"
    assert status["observed"]["stepsDone"] >= saved
    assert {variables(pod)["TRIMTAB_RESUME_STEP"] for pod in pods} == {str(saved)}
    assert (status.get("restarts", 0), status.get("setbacks", 0), status.get("failures", [])) == (0, 0, [])
    return saved


def clear(live: Live) -> None:
    """Delete all jobs and their pods, at once: no controller, and no collector, is waited for."""
    live.cluster.kubectl("delete", "ltj", "--all", "-n", NAMESPACE, "--wait=false")
    live.cluster.kubectl("delete", "pods", "-l", names.LABEL_JOB, "-n", NAMESPACE, "--force", "--grace-period=0")


def foreign_pod(name: str, node: str, gpus: int) -> dict[str, Any]:
    """Somebody else's pod, on a node already: nobody of ours can make it go."""
    limits = {names.NVIDIA_GPU: str(gpus)}
    container = {"name": "theirs", "image": "example.test/theirs:1", "resources": {"limits": limits}}
    spec = {"nodeName": node, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}
