"""What is free on every node of a simulated cluster, kept as the `Node` values that policies see.

Nobody is trusted: a placement that takes what is not there, or what its job or queue may not have, ends the run. A
policy that learns would else learn to cheat.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from trimtab_policy.placement.capacity import ALL_TYPES
from trimtab_policy.placement.limits import broken_rules
from trimtab_policy.types import Job, Node, Placement, Quota, Snapshot


class BrokenDecision(ValueError):
    """A policy asked for what the cluster does not have, or touched a job that it must leave alone."""


class NodeAccounts:
    """Takes GPUs, CPU, memory and pod slots of nodes, and gives them back. Nodes come and go as they fail."""

    def __init__(self, cluster: Snapshot, quotas: Iterable[Quota] = ()) -> None:
        """What jobs of the cluster hold counts for quotas; its nodes say what is free besides."""
        self._cluster = cluster
        self._nodes = {node.name: node for node in cluster.nodes}
        self._down: dict[str, str] = {}
        self._seen: tuple[Node, ...] | None = None
        self._quota_left = {(quota.queue, quota.gpu_type): quota.gpus for quota in quotas}
        for job in cluster.jobs:
            if job.placement:
                self._charge(job, job.placement, 1)

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
        """Raise BrokenDecision for what the nodes, the job or its queue do not allow."""
        broken = next(self._violations(job, placement), None)
        if broken:
            raise BrokenDecision(f"{job.name}: {broken}")
        self._charge(job, placement, 1)
        for share in placement.shares:
            self._change(job, share.node, share.gpus)

    def give(self, job: Job, placement: Placement) -> None:
        """Return what `take` took."""
        self._charge(job, placement, -1)
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

    def _violations(self, job: Job, placement: Placement) -> Iterator[str]:
        nodes = self._nodes if not self._down else {node.name: node for node in self.nodes}
        unavailable = replace(self._cluster, unavailable=self._cluster.unavailable | self._down)
        yield from (message for _, message in broken_rules(job, placement, nodes, unavailable))
        for share in placement.shares:
            yield from self._lacks(job, share.node, share.gpus)
        for kind in (placement.gpu_type, ALL_TYPES):
            if placement.gpus > self._quota_left.get((job.queue, kind), placement.gpus):
                yield f"{placement.gpus} {kind} GPUs are more than the quota of queue {job.queue!r} leaves"

    def _lacks(self, job: Job, name: str, gpus: int) -> Iterator[str]:
        node, need = self._nodes[name], job.requirements
        if gpus > node.free_gpus:
            yield f"{gpus} GPUs of {name}, which has {node.free_gpus} free"
        lacking = need.cpu_milli(gpus) > node.free_cpu_milli or need.memory(gpus) > node.free_memory
        if lacking or node.free_pods < 1:
            yield f"node {name} lacks CPU, memory or pod slots for {gpus} GPUs"

    def _charge(self, job: Job, placement: Placement, sign: int) -> None:
        for key in ((job.queue, placement.gpu_type), (job.queue, ALL_TYPES)):
            if key in self._quota_left:
                self._quota_left[key] -= sign * placement.gpus

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
