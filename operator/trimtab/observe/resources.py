"""One way to ask for each type of GPU: pods of a gang are made alike, so its nodes have to offer their GPUs alike.

While a cluster moves from device plugins to drivers of dynamic resource allocation, nodes of one type may offer GPUs by
an extended resource on the one hand and by a DeviceClass on the other. Only the more common resource of a type then
takes pods; gangs that run on the other nodes run on.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from trimtab import names
from trimtab.observe.nodes import NodeFacts


def set_aside(nodes: Iterable[NodeFacts]) -> dict[str, str]:
    """Nodes that take no pods because most GPUs of their type are asked for by another resource -> why.

    All nodes with usable GPUs count, whether they take pods at the moment or not: what is more common must not change
    whenever a node is cordoned. Of two resources that are equally common the extended resource counts: users know it.
    """
    known = [facts for facts in nodes if facts.gpu]
    offered: dict[str, Counter[str]] = defaultdict(Counter)
    for facts in known:
        if facts.gpu:
            offered[facts.gpu.name][facts.resource] += facts.gpus
    usual = {name: _most(gpus) for name, gpus in offered.items() if len(gpus) > 1}
    others = [facts for facts in known if facts.gpu and facts.resource != usual.get(facts.gpu.name, facts.resource)]
    return {facts.name: _why(facts.gpu.name, facts.resource, usual[facts.gpu.name]) for facts in others if facts.gpu}


def _why(gpu_type: str, resource: str, usual: str) -> str:
    return f"its GPUs are asked for by {resource}, most {gpu_type} by {usual}, and pods of a gang ask in one way"


def _most(gpus: Counter[str]) -> str:
    return max(sorted(gpus), key=lambda resource: (gpus[resource], resource in names.GPU_RESOURCES))
