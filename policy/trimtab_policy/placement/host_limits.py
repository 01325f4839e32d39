"""What pods ask for beside GPUs that no node has, were it empty: a gang with such pods never starts, whoever ends."""

from __future__ import annotations

from collections.abc import Iterator

from trimtab_policy.placement.capacity import Capacity, GangDemand
from trimtab_policy.types import Job, Node


def host_shortage(capacity: Capacity, job: Job, gang: GangDemand) -> str:
    """What a gang's pods ask for beside GPUs that too few of the nodes with enough GPUs have, and what the largest has:
    `its pods of 4 GPUs, by spec.template, ask for requests.cpu 4000, and the largest A100-SXM4-80GB node, a100-0, has
    128`. Empty where enough nodes have all of it, or too few have the GPUs."""
    width = gang.gpus_per_node
    rows = capacity.eligible(job, gang.gpu_type, gang.least_speed).tolist()
    there = [node for row in rows if (node := capacity.nodes[row]).gpus >= width]
    if len(there) < gang.nodes or capacity.could_ever_fit(job, gang):
        return ""
    need = job.requirements
    asked = {"cpu": need.cpu_milli(width), "memory": need.memory(width)}
    short = list(_short(asked, there, gang))
    if not short:
        both = " and ".join(f"requests.{what} {_amount(what, amount)}" for what, amount in asked.items())
        short = [f"{both}, and too few {gang.gpu_type} nodes have both"]
    per_gpu = {"cpusPerGpu": need.cpu_milli_per_gpu, "memoryPerGpu": need.memory_per_gpu}
    fields = [f"spec.resources.{field}" for field, amount in per_gpu.items() if amount] or ["spec.template"]
    return f"its pods of {width} GPU{'s' * (width != 1)}, by {' and '.join(fields)}, ask for {'; for '.join(short)}"


def _short(asked: dict[str, int], nodes: list[Node], gang: GangDemand) -> Iterator[str]:
    for what, amount in asked.items():
        sizes = {node.name: node.cpu_milli if what == "cpu" else node.memory for node in nodes}
        enough = sum(has >= amount for has in sizes.values())
        if enough >= gang.nodes:
            continue
        largest = max(sorted(sizes), key=sizes.__getitem__)
        has = f"the largest {gang.gpu_type} node, {largest}, has {_amount(what, sizes[largest])}"
        if enough:
            has = f"{enough} of the {gang.nodes} nodes that it takes {'has' if enough == 1 else 'have'} that; {has}"
        yield f"requests.{what} {_amount(what, amount)}, and {has}"


def _amount(what: str, amount: int) -> str:
    """`128` or `0.5` of a CPU; `64Gi`."""
    scaled = amount / 1000 if what == "cpu" else amount / (1 << 30)
    text = f"{scaled:.1f}".removesuffix(".0")
    return text if what == "cpu" else f"{text}Gi"
