"""From a profile to Node objects: a pure function, the same bytes for the same profile.

Every node says where it is three times, as real clusters do in one way or another: by `topology.kubernetes.io` labels
(zone, block, rack), by Topograph's tiers (tier-0 is the nearest switch) and, where NVLink spans nodes, by GFD's clique.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from trimtab import names
from trimtab.kube.resources import DEVICE_CLASSES, RESOURCE_SLICES
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


def devices(profile: FakeCluster, prefix: str = "") -> list[dict[str, Any]]:
    """ResourceSlices of the nodes whose GPUs come so, one per node, and the DeviceClasses of their drivers: NVIDIA's
    has an extended resource, AMD's has none, as in their charts."""
    pools = {pool.name: pool for pool in profile.pools if pool.devices}
    drivers = sorted({products.driver(pool.product) for pool in pools.values()})
    slices = [
        _slice(profile, pools[pool], node["metadata"]["name"])
        for node in expand(profile, prefix)
        if (pool := node["metadata"]["labels"][LABEL_POOL]) in pools
    ]
    return [*(_device_class(profile, driver) for driver in drivers), *slices]


def _slice(profile: FakeCluster, pool: NodePool, node: str) -> dict[str, Any]:
    driver = products.driver(pool.product)
    return {
        "apiVersion": RESOURCE_SLICES.api_version,
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{driver}", "labels": {LABEL_PROFILE: profile.name}},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": products.devices(pool.product, pool.gpus, node),
        },
    }


def _device_class(profile: FakeCluster, driver: str) -> dict[str, Any]:
    spec: dict[str, Any] = {"selectors": [{"cel": {"expression": f"device.driver == '{driver}'"}}]}
    if driver == names.NVIDIA_DRIVER:
        spec["extendedResourceName"] = names.VENDOR_RESOURCES[driver]
    return {
        "apiVersion": DEVICE_CLASSES.api_version,
        "kind": "DeviceClass",
        "metadata": {"name": driver, "labels": {LABEL_PROFILE: profile.name}},
        "spec": spec,
    }


def _node(profile: FakeCluster, pool: NodePool, index: int, first_rack: int, prefix: str) -> dict[str, Any]:
    name = f"{prefix}{pool.name}-{index:0{len(str(pool.count - 1))}d}"
    capacity = {"cpu": str(pool.cpu), "memory": pool.memory, "pods": PODS_PER_NODE}
    told: dict[str, str] = {}
    if not pool.devices:
        capacity[products.resource(pool.product)] = str(pool.gpus)
        told = products.labels(pool.product, pool.gpus, machine=pool.machine, driver=profile.driver, cuda=profile.cuda)
    labels = {
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        names.HOSTNAME: name,
        "node.kubernetes.io/instance-type": pool.instance_type or f"fake.{pool.name}",
        LABEL_PROFILE: profile.name,
        LABEL_POOL: pool.name,
        **dict(_place(profile, pool, index, first_rack)),
        **told,
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
