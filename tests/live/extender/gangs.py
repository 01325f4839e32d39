"""Words about gangs that the tests of Extender binding share."""

from __future__ import annotations

from typing import Any

from tests.live.harness import Live, eventually, training_job

LONG = 600.0


def gang(name: str, pods: int, *, pool: str = "wide", priority: str = "", **pod_spec: Any) -> dict[str, Any]:
    """A job of so many pods: one GPU each in the pool `wide`, eight in the pool `deep`."""
    job = training_job(name, gpus=pods * (8 if pool == "deep" else 1), seconds=LONG)
    spec = job["spec"]
    if pool == "wide":
        spec |= {"model": {"preset": "gpt2"}, "parallelism": {"mode": "Data"}}
        spec["training"] |= {"sequenceLength": 1024, "globalBatchSize": 64, "steps": 10_000_000}
    if priority:
        spec["priorityClassName"] = priority
    spec["template"]["spec"] |= {"nodeSelector": {"pool": pool}, **pod_spec}
    return job


def epoch(live: Live, job: str) -> int:
    """Of the standing plan; 0 when there is none."""
    return int(live.status(job).get("plan", {}).get("epoch", 0))


def planned_nodes(live: Live, job: str) -> list[str]:
    """Nodes of the standing plan, in rank order."""
    return [node["name"] for node in live.status(job).get("plan", {}).get("nodes", [])]


def bound(live: Live, job: str) -> list[str]:
    """Nodes that pods of the job are on."""
    return sorted(node for pod in live.pods(job) if (node := pod["spec"].get("nodeName", "")))


def waiting(live: Live, job: str) -> list[str]:
    """Pods of the job whose gate was taken away and which are on no node."""
    specs = {pod["metadata"]["name"]: pod["spec"] for pod in live.pods(job)}
    return [name for name, spec in specs.items() if not spec.get("schedulingGates") and not spec.get("nodeName")]


async def released(live: Live, job: str, pods: int) -> None:
    """Wait until the whole gang waits for kube-scheduler."""
    await eventually(lambda: len(waiting(live, job)) == pods, 20, lambda: f"{job} to wait: {live.status(job)}")


async def runs_whole(live: Live, job: str, seconds: float = 40) -> None:
    """Wait until the gang runs, and see that each of its pods is where the plan wants it."""
    await live.until(job, "PodsReady", seconds)
    assert bound(live, job) == sorted(planned_nodes(live, job))


def setbacks(live: Live, job: str) -> list[tuple[str, str]]:
    """Reasons and messages of the Warning events about a job."""
    events = [event for event in live.list("events") if event["involvedObject"]["name"] == job]
    return [(event["reason"], event["message"]) for event in events if event["type"] == "Warning"]


async def rolled_back(live: Live, job: str, reason: str, said: str = "", seconds: float = 20) -> str:
    """Wait until the gang was given up for this reason, in a message with these words; returns it.

    It may be given up for another one before: kube-scheduler may take the GPUs of an earlier test's pods for taken, by
    which time they are gone (`trimtab.apply.unscheduled`).
    """

    def found() -> list[str]:
        return [message for why, message in setbacks(live, job) if why == reason and said in message]

    await eventually(lambda: bool(found()), seconds, lambda: f"{reason} of {job} ({said}): {setbacks(live, job)}")
    return found()[0]


def foreign_pod(name: str, node: str = "", *, gpus: int = 0, scheduler: str = "", **spec: Any) -> dict[str, Any]:
    """A pod that is not ours, put on a node by its maker or by a scheduler."""
    asked = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", **spec.pop("metadata", {})},
        "spec": {
            **({"nodeName": node} if node else {}),
            **({"schedulerName": scheduler} if scheduler else {}),
            "containers": [
                {"name": "main", "image": "example.test/foreign:1", "resources": {"limits": asked, "requests": asked}}
            ],
            "terminationGracePeriodSeconds": 0,
            **spec,
        },
    }


async def gone(live: Live, *jobs: str) -> None:
    """Delete jobs and wait until nothing of them is left."""
    for job in jobs:
        live.delete("ltj", job, "--wait=false")
    for job in jobs:
        await live.gone(job)
