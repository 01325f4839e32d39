"""What kube-scheduler says of pods that it has not bound: which words to pass on, and whether the node is to blame.

It speaks through the condition PodScheduled. A pod of ours is pinned to one node, so that a text such as

    0/132 nodes are available: 1 node(s) had untolerated taint(s), 131 node(s) didn't satisfy plugin(s) [NodeAffinity].

says of that one node why not. So does "1 Insufficient nvidia.com/gpu": by our accounts the node has them, by its own it
has not, and those count. (Who deletes the pods of a PodGroup while 1.36.3 schedules it can leave it with
GPUs that it takes for taken, until it is started again.) Whatever else it says (no answer from the extender, a claim
that is not bound yet) would be no different elsewhere, or passes. Seen with Kubernetes 1.36.3; a text that we do not
know blames no node.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

from trimtab.kube.objects import PodObject

_BLAMES_ONE_NODE = re.compile(
    r"[:,] 1 (Insufficient |Too many pods|node\(s\) (?!didn't satisfy plugin\(s\) \[NodeAffinity\]))"
)
_OF_OTHERS = ("pod group is unschedulable", "failed to schedule other pod")
"""Begin what is said of a pod that would fit while another one of its gang does not."""


class PodUnbound(Struct, frozen=True):
    """Why one pod is not bound."""

    rank: int
    reason: str
    text: str

    @property
    def of_its_node(self) -> bool:
        """Whether the node to which the pod is pinned does not suit it."""
        return self.reason == "Unschedulable" and bool(_BLAMES_ONE_NODE.search(self.text))


def said_of(pods: Iterable[tuple[int, PodObject]]) -> tuple[PodUnbound, ...]:
    """What is said of these pods (by node rank), the most telling first.

    The condition of a gate that is gone is only what was said last: nobody has looked at that pod yet.
    """
    heard = (
        PodUnbound(rank, condition.reason, condition.message)
        for rank, pod in pods
        for condition in pod.status.conditions
        if condition.type == "PodScheduled" and condition.status == "False"
        if condition.reason != "SchedulingGated" or pod.spec.scheduling_gates
    )
    return tuple(sorted(heard, key=lambda said: (not said.of_its_node, said.text.startswith(_OF_OTHERS), said.rank)))


def explain(said: tuple[PodUnbound, ...], unbound: Mapping[int, PodObject], nodes: Mapping[int, str]) -> str:
    """One sentence for the user. `unbound` are pods by node rank; `nodes` are all those of the plan."""
    message = f"kube-scheduler has bound {len(nodes) - len(unbound)} of {len(nodes)} pods in time"
    if said:
        rank = said[0].rank
        message += f"; of pod {unbound[rank].metadata.name} for node {nodes[rank]}: {said[0].text}"
    elif len(unbound) == len(nodes):
        profile = next(iter(unbound.values())).spec.scheduler_name
        message += f", and said nothing of any: does one run that has the profile {profile}?"
    return message
