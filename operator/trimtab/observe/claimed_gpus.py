"""GPUs that pods have by ResourceClaims -> what the books charge for them, each GPU once.

A pod may have its GPUs by a request (`nvidia.com/gpu: 8`), for which kube-scheduler makes a claim, or by claims of its
own, of which its requests say nothing. So each GPU that a claim holds is set against what its pods, or the plan that
they are of, are charged anyway. What remains is charged to the pod that has it, or to the node where no pod is there:
kube-scheduler allocates before it binds, and takes devices back only some time after a pod has ended.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from msgspec.structs import replace

from trimtab.observe.devices import PodHolding
from trimtab.observe.pods import PodFacts, Seat
from trimtab_policy.types import NodeShare


class ClaimedGpus:
    """What claims hold at one moment. `standing` are the shares of all plans that stand, by the seats of their pods."""

    def __init__(
        self, holdings: Collection[PodHolding], pods: Iterable[PodFacts], standing: Mapping[Seat, NodeShare]
    ) -> None:
        self._standing = standing
        self.without_pods: dict[str, int] = {}
        """Node -> GPUs that claims hold there for no pod that is on it, and that no plan accounts for."""
        self._more: dict[str, int] = {}
        """UID of a pod -> GPUs that it has beyond what it is charged."""
        if not holdings:
            return
        involved = {uid for holding in holdings for uid in holding.consumers}
        there = {pod.uid: pod for pod in pods if pod.uid in involved}
        left = {uid: self._accounted(pod) for uid, pod in there.items()}
        for holding in holdings:
            node, gpus = holding.node, holding.gpus
            known = sorted(holding.consumers & there.keys())
            for uid in known:
                if left[uid][0] == node and (covered := min(gpus, left[uid][1])):
                    left[uid] = node, left[uid][1] - covered
                    gpus -= covered
            if holder := next((uid for uid in known if there[uid].node == node), ""):
                self._more[holder] = self._more.get(holder, 0) + gpus
            elif gpus:
                self.without_pods[node] = self.without_pods.get(node, 0) + gpus

    def charged(self, pod: PodFacts) -> PodFacts:
        """The pod, with the GPUs that it has by claims."""
        gpus = pod.use.gpus + self._more.get(pod.uid, 0)
        if pod.claims and pod.node:  # bound, and its claim may be seen a moment later
            share = self._share(pod)
            gpus = max(gpus, share.gpus) if share and share.node == pod.node else gpus
        return pod if gpus == pod.use.gpus else replace(pod, use=replace(pod.use, gpus=gpus))

    def _accounted(self, pod: PodFacts) -> tuple[str, int]:
        """Node and GPUs that are charged without a look at claims: by its requests, or by its plan while it has none
        of them on a node."""
        share = self._share(pod)
        return (share.node, share.gpus) if share and not pod.node else (pod.node, pod.use.gpus)

    def _share(self, pod: PodFacts) -> NodeShare | None:
        return self._standing.get(pod.member) if pod.member else None
