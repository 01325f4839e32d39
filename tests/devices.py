"""Builders of what drivers of dynamic resource allocation publish, in the form of the real drivers of NVIDIA and AMD.

The attributes and capacities are those of kubernetes-sigs/dra-driver-nvidia-gpu (cmd/gpu-kubelet-plugin/deviceinfo.go,
mig.go, partitions.go) and ROCm/k8s-gpu-dra-driver (docs/driver-attributes.md, docs/demo.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from trimtab import names
from trimtab.kube.objects import (
    DeviceClassObject,
    DeviceTaintRuleObject,
    NodeObject,
    ResourceClaimObject,
    ResourceSliceObject,
)

H100_NAME = "NVIDIA H100 80GB HBM3"
"""As NVML calls it, blanks and all."""
MI300X_NAME = "AMD_Instinct_MI300X_OAM"


def nvidia_gpu(index: int, product: str = H100_NAME, memory: str = "81559Mi", **changes: Any) -> dict[str, Any]:
    """A whole GPU as gpu.nvidia.com publishes it."""
    device = {
        "name": f"gpu-{index}",
        "attributes": {
            "addressingMode": {"string": "HMM"},
            "architecture": {"string": "Hopper"},
            "brand": {"string": "Nvidia"},
            "cudaComputeCapability": {"version": "9.0.0"},
            "cudaDriverVersion": {"version": "13.0.0"},
            "driverVersion": {"version": "580.95.5"},
            "productName": {"string": product},
            "resource.kubernetes.io/numaNode": {"int": index // 4},
            "resource.kubernetes.io/pciBusID": {"string": f"0000:{index:02x}:00.0"},
            "resource.kubernetes.io/pcieRoot": {"string": f"pci0000:{index:02x}"},
            "type": {"string": "gpu"},
            "uuid": {"string": f"GPU-{index:08d}-0000-0000-0000-000000000000"},
        },
        "capacity": {"memory": {"value": memory}},
    }
    return device | changes


def nvidia_mig(index: int, part: int) -> dict[str, Any]:
    """A partition that could be made of that GPU (dynamic MIG): it consumes the counters of the whole."""
    return {
        "name": f"gpu-{index}-mig-1g10gb-19-{part}",
        "attributes": {
            "parentUUID": {"string": f"GPU-{index:08d}-0000-0000-0000-000000000000"},
            "productName": {"string": H100_NAME},
            "profile": {"string": "1g.10gb"},
            "resource.kubernetes.io/pciBusID": {"string": f"0000:{index:02x}:00.0"},
            "type": {"string": "mig"},
        },
        "capacity": {"memory": {"value": "9984Mi"}},
        "consumesCounters": [
            {"counterSet": f"gpu-{index}-counter-set", "counters": {f"memory-slice-{part}": {"value": "1"}}}
        ],
    }


def amd_gpu(index: int) -> dict[str, Any]:
    """A whole GPU as gpu.amd.com publishes it."""
    return {
        "name": f"gpu-{index}-{128 + index}",
        "attributes": {
            "cardIndex": {"int": index},
            "deviceID": {"string": "994913940318892495"},
            "driverSrcVersion": {"string": "7AA72EC2C8F513519BE86FD"},
            "driverVersion": {"version": "6.12.12"},
            "family": {"string": "AI"},
            "partitionProfile": {"string": "spx_nps1"},
            "pciAddr": {"string": f"0003:00:{index:02x}.0"},
            "productName": {"string": MI300X_NAME},
            "renderIndex": {"int": 128 + index},
            "resource.kubernetes.io/pcieRoot": {"string": "pci0003:00"},
            "type": {"string": "amdgpu"},
        },
        "capacity": {
            "computeUnits": {"value": "304"},
            "memory": {"value": "196592Mi"},
            "simdUnits": {"value": "1216"},
        },
    }


def slice_manifest(
    node: str,
    devices: Iterable[Mapping[str, Any]],
    *,
    driver: str = names.NVIDIA_DRIVER,
    pool: str = "",
    generation: int = 1,
    count: int = 1,
    number: int = 0,
) -> dict[str, Any]:
    """A ResourceSlice of a node; the pool is called like the node, as both drivers do."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{driver}-{generation}-{number}"},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": pool or node, "generation": generation, "resourceSliceCount": count},
            "devices": list(devices),
        },
    }


def slice_object(node: str, devices: Iterable[Mapping[str, Any]] | None = None, **pool: Any) -> ResourceSliceObject:
    """A ResourceSlice of a node with eight H100, unless told otherwise."""
    every = [nvidia_gpu(index) for index in range(8)] if devices is None else devices
    return msgspec.convert(slice_manifest(node, every, **pool), ResourceSliceObject)


def claim_object(
    name: str,
    node: str,
    devices: Iterable[str],
    *pods: str,
    driver: str = names.NVIDIA_DRIVER,
    admin: bool = False,
    metadata: Mapping[str, Any] | None = None,
) -> ResourceClaimObject:
    """A ResourceClaim that is allocated devices of a node's pool, reserved for pods with these UIDs."""
    results = [
        {"driver": driver, "pool": node, "device": device, "request": "gpus"} | ({"adminAccess": True} if admin else {})
        for device in devices
    ]
    raw = {
        "metadata": {"name": name, "namespace": "default", "uid": f"claim-{name}", **(metadata or {})},
        "status": {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": uid, "uid": uid} for uid in pods],
        },
    }
    return msgspec.convert(raw, ResourceClaimObject)


def device_class(name: str = names.NVIDIA_DRIVER, resource: str = names.NVIDIA_GPU) -> DeviceClassObject:
    """A DeviceClass, with an extended resource unless that is empty."""
    spec = {"extendedResourceName": resource} if resource else {}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, DeviceClassObject)


def bare_node(name: str, **labels: str) -> NodeObject:
    """A Ready node of which no device plugin and no labeller says that it has GPUs."""
    raw = {
        "metadata": {"name": name, "uid": f"node-{name}", "labels": {names.HOSTNAME: name, **labels}},
        "status": {
            "allocatable": {"cpu": "128", "memory": "1Ti", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    return msgspec.convert(raw, NodeObject)


def taint_rule(name: str = "broken", effect: str = "NoSchedule", **selector: str) -> DeviceTaintRuleObject:
    """A DeviceTaintRule about the devices that the selector chooses (all of them where it is empty)."""
    taint = {"key": "example.com/unhealthy", "value": "ecc", "effect": effect}
    raw = {"metadata": {"name": name}, "spec": {"deviceSelector": selector, "taint": taint}}
    return msgspec.convert(raw, DeviceTaintRuleObject)
