"""The lives that a sweep breaks at every write: a start, the loss of a node, a preemption, a resize.

Each is told the same way: what must be there before (`prepare`), what happens (`act`; writes count from here on), when
it is over (`over`), and what is left then (`names` of its jobs). Names are new in every life, so that no life can meet
the rest of another one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.faults import witness_state
from tests.faults.testbed import Settings, Stand
from tests.faults.watcher import Watcher
from tests.live.harness import gpu_node, training_job

JOBS = "llmtrainingjobs"
BLINK = 0.1
"""Run time of fake pods, s: too short for progress to be noted on the way, which would blur the count of writes."""
LONG = 6000.0
"""Run time of fake pods that are to run for as long as anybody looks."""
URGENT = "faults-urgent"
"""A PriorityClass."""
PATIENT = {"policy": "Fixed", "checkpoint": {"graceSeconds": 30, "resharding": True}, "minRuntimeSeconds": 0}
"""Elasticity of jobs that may be stopped at any time, and answer at once."""
FOUR_NODES = tuple(f"live-{index}" for index in range(4))
"""The cluster of a sweep: four nodes of eight A100s."""


@dataclass
class Workload:
    """A start: a gang of two nodes is planned, made, bound, runs and ends."""

    name: str = "start"
    nodes: int = 2
    """Nodes of its gang."""
    settings: Settings = field(default_factory=dict)

    def fits(self, nodes: int) -> bool:
        """Whether it can run on so many nodes."""
        return self.nodes <= nodes

    def jobs(self, life: str) -> tuple[str, ...]:
        """Names of its jobs."""
        return (life,)

    async def prepare(self, stand: Stand, life: str) -> None:
        """What is there before anything is broken."""

    async def act(self, stand: Stand, life: str) -> None:
        """What happens."""
        await stand.hands.create(JOBS, training_job(life, gpus=8 * self.nodes, seconds=BLINK))

    def over(self, seen: Watcher, life: str) -> bool:
        """Whether all has come to rest."""
        return witness_state.holds(seen.job(life), "Complete")

    def anonymous(self, name: str, life: str) -> str:
        """The name of a job or pod without what differs from life to life."""
        return name.replace(life, "LIFE")

    async def clean(self, stand: Stand, life: str) -> None:
        """Nothing is left of it."""
        await stand.clear(*self.jobs(life))


class NodeLoss(Workload):
    """A node of a running gang is deleted; the gang runs elsewhere."""

    lost = ""

    def fits(self, nodes: int) -> bool:
        return self.nodes < nodes

    async def prepare(self, stand: Stand, life: str) -> None:
        await stand.hands.create(JOBS, training_job(life, gpus=8 * self.nodes, seconds=LONG))
        await stand.runs(life)

    async def act(self, stand: Stand, life: str) -> None:
        self.lost = str(witness_state.plan_of(stand.watcher.job(life))["nodes"][-1]["name"])
        await stand.hands.delete("nodes", self.lost)

    def over(self, seen: Watcher, life: str) -> bool:
        return whole(seen, life, epoch=2)

    async def clean(self, stand: Stand, life: str) -> None:
        await stand.clear(life)
        await nodes_back(stand, (self.lost,) if self.lost else ())


class Preemption(Workload):
    """A gang fills the cluster; one of higher priority arrives, and gets what it needs of it."""

    def jobs(self, life: str) -> tuple[str, ...]:
        return life, f"{life}-low"

    async def prepare(self, stand: Stand, life: str) -> None:
        kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1000}
        await stand.hands.create("priorityclasses", {**kind, "metadata": {"name": URGENT}})
        low = training_job(f"{life}-low", gpus=8 * len(FOUR_NODES), seconds=LONG, elasticity=PATIENT)
        await stand.hands.create(JOBS, low)
        await stand.runs(f"{life}-low")

    async def act(self, stand: Stand, life: str) -> None:
        job = training_job(life, gpus=8 * self.nodes, seconds=LONG, priorityClassName=URGENT, elasticity=PATIENT)
        await stand.hands.create(JOBS, job)

    def over(self, seen: Watcher, life: str) -> bool:
        gone = not seen.pods(f"{life}-low") and "pending" in witness_state.status_of(seen.job(f"{life}-low"))
        return gone and whole(seen, life, epoch=1)


class Resize(Workload):
    """An elastic gang of one node grows to two as soon as a neighbour has ended."""

    def fits(self, nodes: int) -> bool:
        return self.nodes == 2

    def jobs(self, life: str) -> tuple[str, ...]:
        return (life,)

    async def prepare(self, stand: Stand, life: str) -> None:
        for number in range(len(FOUR_NODES) - 1):
            await stand.hands.create(JOBS, training_job(f"{life}-n{number}", gpus=8, seconds=LONG))
            await stand.runs(f"{life}-n{number}")
        elastic = {**PATIENT, "policy": "Elastic"}
        grows = {"gpus": {"min": 8, "max": 16}}
        await stand.hands.create(JOBS, training_job(life, seconds=LONG, resources=grows, elasticity=elastic))
        await stand.runs(life)

    async def act(self, stand: Stand, life: str) -> None:
        await stand.clear(f"{life}-n0")

    def over(self, seen: Watcher, life: str) -> bool:
        return bool(witness_state.plan_of(seen.job(life)).get("gpus") == 16) and whole(seen, life, epoch=2)

    async def clean(self, stand: Stand, life: str) -> None:
        await stand.clear(life, *(f"{life}-n{number}" for number in range(1, len(FOUR_NODES) - 1)))


def whole(seen: Watcher, job: str, epoch: int) -> bool:
    """The gang of this plan (or a later one) runs, and no pod of an earlier one is left."""
    found, pods = seen.job(job), seen.pods(job)
    plan = witness_state.plan_of(found)
    return (
        witness_state.holds(found, "PodsReady")
        and plan.get("epoch", 0) >= epoch
        and len(pods) == plan["nodeCount"]
        and all(
            witness_state.epoch_of(pod) == plan["epoch"] and pod["status"].get("phase") == "Running" for pod in pods
        )
    )


async def nodes_back(stand: Stand, names: tuple[str, ...] = FOUR_NODES) -> None:
    """All nodes are there and Ready again."""
    missing = [name for name in names if not stand.watcher.node(name)]
    await stand.hands.create("nodes", *(gpu_node(name) for name in missing))
    await stand.watcher.until(lambda seen: all(ready(seen.node(name)) for name in names), 30, "nodes to be Ready")


def ready(node: witness_state.Object) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def workloads(nodes: int = 2) -> tuple[Workload, ...]:
    """All of them, with gangs of so many nodes."""
    often = {"elasticity": {"interval_seconds": 0.5}}
    return (
        Workload("start", nodes),
        NodeLoss("node-loss", nodes),
        Preemption("preemption", nodes),
        Resize("resize", nodes, often),
    )


WORKLOADS = {each.name: each for each in workloads()}
