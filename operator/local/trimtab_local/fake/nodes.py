"""From a profile to Node objects: a pure function, the same bytes for the same profile.

Every node says where it is three times, as real clusters do in one way or another: by `topology.kubernetes.io` labels
(zone, block, rack), by Topograph's tiers (tier-0 is the nearest switch) and, where NVLink spans nodes, by GFD's clique.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from trimtab import names
from trimtab_local.fake import products
from trimtab_local.fake.profile import FakeCluster, NodePool

LABEL_PROFILE = f"fake.{names.GROUP}/profile"
LABEL_POOL = f"fake.{names.GROUP}/pool"
KWOK = {"kwok.x-k8s.io/node": "fake"}
"""The annotation by which KWOK knows its nodes."""
PODS_PER_NODE = "110"
TAINT = {"key": names.NVIDIA_GPU, "value": "present", "effect": "NoSchedule"}


def expand(profile: FakeCluster, prefix: str = "") -> list[dict[str, Any]]:
    """Node objects of a profile, pool by pool; `prefix` goes before every node's name."""
    nodes: list[dict[str, Any]] = []
    rack = 1
    for pool in profile.pools:
        first = pool.rack or rack
        nodes += [_node(profile, pool, index, first, prefix) for index in range(pool.count)]
        rack = max(rack, first + pool.racks)
    return nodes


def _node(profile: FakeCluster, pool: NodePool, index: int, first_rack: int, prefix: str) -> dict[str, Any]:
    name = f"{prefix}{pool.name}-{index:0{len(str(pool.count - 1))}d}"
    capacity = {
        "cpu": str(pool.cpu),
        "memory": pool.memory,
        "pods": PODS_PER_NODE,
        products.resource(pool.product): str(pool.gpus),
    }
    labels = {
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        names.HOSTNAME: name,
        "node.kubernetes.io/instance-type": pool.instance_type or f"fake.{pool.name}",
        LABEL_PROFILE: profile.name,
        LABEL_POOL: pool.name,
        **dict(_place(profile, pool, index, first_rack)),
        **products.labels(pool.product, pool.gpus, machine=pool.machine, driver=profile.driver, cuda=profile.cuda),
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": dict(sorted(labels.items())), "annotations": dict(KWOK)},
        "spec": {"taints": [dict(TAINT)]} if pool.tainted else {},
        "status": {"capacity": capacity, "allocatable": dict(capacity)},
    }


def _place(profile: FakeCluster, pool: NodePool, index: int, first_rack: int) -> Iterator[tuple[str, str]]:
    number = first_rack + index // pool.nodes_per_rack
    rack, block = f"{pool.zone}-r{number}", f"{pool.zone}-b{1 + (number - 1) // profile.racks_per_block}"
    yield "topology.kubernetes.io/region", profile.region
    yield "topology.kubernetes.io/zone", pool.zone
    yield "topology.kubernetes.io/block", block
    yield "topology.kubernetes.io/rack", rack
    yield "fabric.topograph.run/tier-0", rack
    yield "fabric.topograph.run/tier-1", block
    yield "fabric.topograph.run/tier-2", pool.zone
    if pool.clique_nodes:
        domain = uuid.uuid5(
            uuid.NAMESPACE_DNS, f"{profile.name}.{pool.name}.{index // pool.clique_nodes}.{names.GROUP}"
        )
        yield "nvidia.com/gpu.clique", f"{domain}.1"
        yield "accelerator.topograph.run/domain", str(domain)
