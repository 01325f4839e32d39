"""What is free on every node of a simulated cluster, kept as the `Node` values that policies see."""

from __future__ import annotations

from msgspec.structs import replace

from trimtab_policy.types import Job, Node, Placement, Snapshot


class BrokenDecision(ValueError):
    """A policy asked for what the cluster does not have, or touched a job that it must leave alone."""


class Books:
    """Takes GPUs, CPU, memory and pod slots of nodes, and gives them back. Nodes come and go as they fail."""

    def __init__(self, cluster: Snapshot) -> None:
        self._nodes = {node.name: node for node in cluster.nodes}
        self._down: dict[str, str] = {}
        self._seen: tuple[Node, ...] | None = None

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Nodes that take pods now."""
        if self._seen is None:
            self._seen = tuple(node for name, node in self._nodes.items() if name not in self._down)
        return self._seen

    @property
    def unavailable(self) -> dict[str, str]:
        """Other nodes -> why."""
        return dict(self._down)

    def take(self, job: Job, placement: Placement) -> None:
        """Raise BrokenDecision when a node is missing, down, of another type or too full."""
        for share in placement.shares:
            node = self._nodes.get(share.node)
            if node is None or share.node in self._down:
                raise BrokenDecision(f"{job.name}: node {share.node} takes no pods")
            if node.gpu_type != placement.gpu_type:
                raise BrokenDecision(f"{job.name}: node {share.node} has {node.gpu_type}, not {placement.gpu_type}")
            if not 0 < share.gpus <= node.free_gpus:
                raise BrokenDecision(f"{job.name}: {share.gpus} GPUs of {share.node}, which has {node.free_gpus} free")
            self._change(job, share.node, share.gpus)

    def give(self, job: Job, placement: Placement) -> None:
        """Return what `take` took."""
        for share in placement.shares:
            self._change(job, share.node, -share.gpus)

    def fail(self, node: str, why: str) -> None:
        """Take a node out; what jobs hold of it is given back by them."""
        self._down[node] = why
        self._seen = None

    def repair(self, node: str) -> None:
        """Bring it back."""
        self._down.pop(node, None)
        self._seen = None

    def _change(self, job: Job, name: str, gpus: int) -> None:
        node, need, pods = self._nodes[name], job.requirements, 1 if gpus > 0 else -1
        count = abs(gpus)
        self._nodes[name] = replace(
            node,
            free_gpus=node.free_gpus - gpus,
            free_cpu_milli=node.free_cpu_milli - pods * need.cpu_milli(count),
            free_memory=node.free_memory - pods * need.memory(count),
            free_pods=node.free_pods - pods,
        )
        self._seen = None
