"""Nodes, what their agents say, and a clock: the stage of the tests about GPUNodes."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from tests.builders import NOW, fault, gpu_reading, gpunode_object, node_object

from trimtab import names
from trimtab.controller.nodes.health import conditions
from trimtab.kube.objects import GpuNodeObject, NodeObject, PodObject
from trimtab.observe.gpunodes import GpuNodes
from trimtab.observe.health import HealthCondition
from trimtab.observe.snapshot import Caches, ClusterObserver, Observation
from trimtab.settings import TelemetrySettings
from trimtab_policy.types import Node

SETTINGS = TelemetrySettings(
    stale_periods=3, grace_seconds=30, recovery_seconds=300, excluded_share=0.25, foreign_seconds=60
)
LOST = [gpu_reading(index, faults=[fault(code=79)] if index == 3 else []) for index in range(8)]
BUSY: dict[str, Any] = {"smUtilizationPercent": 90}
REPAIRED = {"annotations": {names.ANNOTATION_REPAIRED: "2026-01-02T04:00:00Z"}}


def job_of_pod(pod: str) -> str:
    """The job of a pod (`namespace/name` both): here pods are called `JOB-EPOCH-RANK`."""
    return pod.rsplit("-", maxsplit=2)[0]


class World:
    """Nodes n1 to n8 with eight GPUs each, what their agents say, and a clock."""

    def __init__(self, nodes: int = 8, settings: TelemetrySettings = SETTINGS) -> None:
        self.now, self.settings = 0.0, settings
        self.nodes = {f"n{index}": node_object(f"n{index}") for index in range(1, nodes + 1)}
        self.pods: list[PodObject] = []
        self.reports: dict[str, GpuNodeObject] = {}
        self.start()

    def start(self) -> None:
        """A controller that knows nothing but what the API server has."""
        self.heard = GpuNodes(self.settings, clock=lambda: self.now, wall=lambda: NOW + self.now)
        self.observer = ClusterObserver((), self.heard)
        for report in self.reports.values():
            self.heard.take(report)

    def report(self, name: str = "n1", gpus: int | list[dict[str, Any]] = 8, **changes: Any) -> bool:
        """An agent reports; its own conditions stay. Says whether a round hears of it."""
        before = self.reports.get(name)
        kept = json.loads(bytes(before.status)).get("conditions", []) if before else []
        observed = changes.pop("observed", int(self.now * 10))
        self.reports[name] = gpunode_object(name, gpus, observed=observed, conditions=kept, **changes)
        return self.heard.take(self.reports[name])

    def all_report(self) -> None:
        for name in self.nodes:
            self.report(name)

    def look_only(self, after: float = 0.0) -> Observation:
        """A round of a controller that writes nothing."""
        self.now += after
        return self.observer.observe(Caches(self.nodes.values(), self.pods, []), NOW + self.now)

    def look(self, after: float = 0.0) -> Observation:
        """A round, which writes the conditions."""
        seen = self.look_only(after)
        self.told = {told.name: (said, since - NOW) for told, said, since in self.heard.untold()}
        for name, (said, since) in self.told.items():
            self._write(name, said, since)
        return seen

    def _write(self, name: str, said: HealthCondition, since: float) -> None:
        told = conditions(said, NOW + since)
        before = self.reports[name]
        content = json.loads(bytes(before.status)) | {"conditions": told}
        self.reports[name] = GpuNodeObject(before.metadata, msgspec.Raw(json.dumps(content).encode()))
        assert not self.heard.take(self.reports[name])

    def beat(self, seconds: float, *silent: str) -> Observation:
        """Time passes while agents go on reporting the same."""
        for _ in range(int(seconds // 10)):
            self.now += 10
            for name, report in list(self.reports.items()):
                if name not in silent:
                    content = json.loads(bytes(report.status)) | {"observedTime": f"at {self.now}"}
                    self.reports[name] = GpuNodeObject(report.metadata, msgspec.Raw(json.dumps(content).encode()))
                    self.heard.take(self.reports[name])
            seen = self.look()
        return seen


def takes(seen: Observation) -> list[str]:
    return [node.name for node in seen.snapshot.nodes]


def node(seen: Observation, name: str = "n1") -> Node:
    return next(each for each in seen.snapshot.nodes if each.name == name)


def problems(seen: Observation) -> list[tuple[str, str]]:
    return [(problem.name, problem.reason) for problem in seen.problems]


def with_capacity(node: NodeObject, gpus: int) -> NodeObject:
    status = msgspec.structs.replace(node.status, capacity={names.NVIDIA_GPU: str(gpus)})
    return msgspec.structs.replace(node, status=status)
