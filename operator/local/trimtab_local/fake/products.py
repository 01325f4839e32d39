"""What the labellers of GPU vendors say about a product, besides what the catalogue knows (memory, vendor).

Sources: NVIDIA k8s-device-plugin, GPU Feature Discovery (docs/gpu-feature-discovery/README.md, internal/lm/*.go);
CUDA compute capabilities (developer.nvidia.com/cuda-gpus); ROCm k8s-device-plugin, cmd/k8s-node-labeller; PCI IDs and
compute units from the ROCm documentation's table of GPU architectures; Intel's device plugins, NFD rules (labels.md).
"""

from __future__ import annotations

import uuid
from typing import Any

from msgspec import Struct

from trimtab import names
from trimtab_policy import catalog
from trimtab_policy.specs import GpuSpec

MIB = 1 << 20
GIB = 1 << 30


class NvidiaFacts(Struct, frozen=True):
    """CUDA compute capability, and what GFD derives from the kind of card."""

    major: int
    minor: int
    mig: bool = False
    mode: str = "compute"
    """`graphics` for cards that are a VGA controller on the PCI bus."""

    @property
    def family(self) -> str:
        """GFD's name of the architecture (internal/lm/resource.go, getArchFamily)."""
        if self.major == 7:
            return "volta" if self.minor < 5 else "turing"
        if self.major == 8:
            return "ampere" if self.minor < 9 else "ada-lovelace"
        return "hopper" if self.major == 9 else "blackwell"


class AmdFacts(Struct, frozen=True):
    """What the node labeller reads from the driver's topology."""

    device_id: str
    family: str
    compute_units: int
    simds: int


NVIDIA = {
    "Volta": NvidiaFacts(7, 0),
    "Turing": NvidiaFacts(7, 5),
    "Ampere": NvidiaFacts(8, 6),
    "A100-SXM4-40GB": NvidiaFacts(8, 0, mig=True),
    "A100-SXM4-80GB": NvidiaFacts(8, 0, mig=True),
    "A100-PCIE-40GB": NvidiaFacts(8, 0, mig=True),
    "A100-PCIE-80GB": NvidiaFacts(8, 0, mig=True),
    "A800-SXM4-80GB": NvidiaFacts(8, 0, mig=True),
    "A800-PCIE-80GB": NvidiaFacts(8, 0, mig=True),
    "A30": NvidiaFacts(8, 0, mig=True),
    "Quadro-RTX-6000": NvidiaFacts(7, 5, mode="graphics"),
    **{name: NvidiaFacts(7, 5, mode="graphics") for name in ("RTX-2070", "RTX-2080", "RTX-2080-Ti", "TITAN-RTX")},
    **{
        name: NvidiaFacts(8, 6, mode="graphics")
        for name in ("RTX-3060", "RTX-3070", "RTX-3080", "RTX-3090", "RTX-A6000")
    },
    **{name: NvidiaFacts(8, 9, mode="graphics") for name in ("RTX-4090", "RTX-6000-Ada")},
    **{name: NvidiaFacts(12, 0, mode="graphics") for name in ("RTX-5090", "RTX-PRO-6000-Blackwell")},
    **{name: NvidiaFacts(10, 3, mig=True) for name in ("B300-SXM-288GB", "GB300-288GB")},
    "Ada": NvidiaFacts(8, 9),
    "Hopper": NvidiaFacts(9, 0, mig=True),
    "Blackwell": NvidiaFacts(10, 0, mig=True),
}
"""By the catalogue's canonical name, else by architecture."""

AMD = {
    "MI100": AmdFacts("738c", "AI", 120, 480),
    "MI210": AmdFacts("740f", "AI", 104, 416),
    "MI250X": AmdFacts("7408", "AI", 110, 440),
    "MI300X": AmdFacts("74a1", "AI", 304, 1216),
    "MI325X": AmdFacts("74a5", "AI", 304, 1216),
    "Radeon-VII": AmdFacts("66af", "AI", 60, 240),
    "Radeon-Pro-VII": AmdFacts("66a1", "AI", 60, 240),
    "Radeon-Pro-W6800": AmdFacts("73a3", "NV", 60, 120),
}
"""By the catalogue's canonical name."""

INTEL = {"Max_1550": 128 * GIB, "Max_1100": 48 * GIB, "Flex_170": 16 * GIB}
"""Intel data centre GPUs, which the catalogue does not hold: product label and bytes of memory."""


def known(product: str) -> bool:
    """Whether fake nodes can be made with this GPU product, named as its label names it."""
    return product in INTEL or ((spec := catalog.by_product(product)) is not None and _has_facts(spec))


def resource(product: str) -> str:
    """Extended resource that the device plugin offers for a known product."""
    if product in INTEL:
        return "gpu.intel.com/i915"
    return "amd.com/gpu" if _spec(product).vendor == "AMD" else "nvidia.com/gpu"


def driver(product: str) -> str:
    """Driver of dynamic resource allocation that offers a known product; empty where the vendor's is not known here."""
    drivers = {resource: name for name, resource in names.VENDOR_RESOURCES.items()}
    return drivers.get(resource(product), "")


def devices(product: str, count: int, node: str) -> list[dict[str, Any]]:
    """The GPUs of a node as the vendor's driver describes them, with the attributes that somebody reads. Sources:
    kubernetes-sigs/dra-driver-nvidia-gpu, cmd/gpu-kubelet-plugin/deviceinfo.go; ROCm/k8s-gpu-dra-driver,
    docs/driver-attributes.md."""
    spec = _spec(product)
    memory = {"memory": {"value": f"{spec.memory_bytes // MIB}Mi"}}
    described = _amd_device if spec.vendor == "AMD" else _nvidia_device
    return [described(product, spec, index, node) | {"capacity": memory} for index in range(count)]


def _nvidia_device(product: str, spec: GpuSpec, index: int, node: str) -> dict[str, Any]:
    facts = _nvidia_facts(spec)
    identity = uuid.uuid5(uuid.NAMESPACE_DNS, f"{index}.{node}.{names.GROUP}")
    told = {
        "type": {"string": "gpu"},
        "uuid": {"string": f"GPU-{identity}"},
        "productName": {"string": product.replace("-", " ")},
        "architecture": {"string": spec.architecture},
        "cudaComputeCapability": {"version": f"{facts.major}.{facts.minor}.0"},
        "resource.kubernetes.io/pciBusID": {"string": f"0000:{index:02x}:00.0"},
    }
    return {"name": f"gpu-{index}", "attributes": told}


def _amd_device(product: str, spec: GpuSpec, index: int, node: str) -> dict[str, Any]:
    facts = AMD[spec.name]
    told = {
        "type": {"string": "amdgpu"},
        "productName": {"string": product},
        "family": {"string": facts.family},
        "deviceID": {"string": facts.device_id},
        "pciAddr": {"string": f"0000:{index:02x}:00.0"},
    }
    return {"name": f"gpu-{index}-{128 + index}", "attributes": told}


def labels(product: str, count: int, *, machine: str, driver: str, cuda: str) -> dict[str, str]:
    """Labels of a node with `count` GPUs of a known product."""
    if product in INTEL:
        return _intel(product, count)
    spec = _spec(product)
    return _amd(product, spec, count) if spec.vendor == "AMD" else _nvidia(product, spec, count, machine, driver, cuda)


def _nvidia(product: str, spec: GpuSpec, count: int, machine: str, driver: str, cuda: str) -> dict[str, str]:
    """All labels of GFD but its time stamp, which would make every expansion of a profile differ."""
    facts = _nvidia_facts(spec)
    said = {
        "gpu.compute.major": str(facts.major),
        "gpu.compute.minor": str(facts.minor),
        "gpu.count": str(count),
        "gpu.family": facts.family,
        "gpu.machine": machine,
        "gpu.memory": str(spec.memory_bytes // MIB),
        "gpu.mode": facts.mode,
        "gpu.present": "true",
        "gpu.product": product,
        "gpu.replicas": "1",
        "gpu.sharing-strategy": "none",
        "mig.capable": str(facts.mig).lower(),
        "mig.strategy": "single",
        "mps.capable": "false",
        "vgpu.present": "false",
        **_versions("cuda.driver-version", driver, ("major", "minor", "revision")),
        **_versions("cuda.runtime-version", cuda, ("major", "minor")),
    }
    nfd = {"feature.node.kubernetes.io/pci-10de.present": "true"}
    return {f"nvidia.com/{key}": value for key, value in said.items()} | nfd


def _amd(product: str, spec: GpuSpec, count: int) -> dict[str, str]:
    """The labeller writes the stable keys where all cards are equal, and always beta keys that count the cards."""
    facts = AMD[spec.name]
    said = {
        "family": facts.family,
        "device-id": facts.device_id,
        "product-name": product,
        "vram": f"{-(-spec.memory_bytes // GIB)}G",
        "cu-count": str(facts.compute_units),
        "simd-count": str(facts.simds),
    }
    stable = {f"amd.com/gpu.{key}": value for key, value in said.items()}
    counting = {f"beta.amd.com/gpu.{key}.{value}": str(count) for key, value in said.items()}
    return stable | counting | {"feature.node.kubernetes.io/pci-1002.present": "true"}


def _intel(product: str, count: int) -> dict[str, str]:
    said = {
        "product": product,
        "family": f"{product.partition('_')[0]}_Series",
        "device.count": str(count),
        "memory.max": str(INTEL[product]),
    }
    return {f"gpu.intel.com/{key}": value for key, value in said.items()} | {
        "intel.feature.node.kubernetes.io/gpu": "true"
    }


def _versions(prefix: str, version: str, parts_of: tuple[str, ...]) -> dict[str, str]:
    parts = {f"{prefix}.{name}": part for name, part in zip(parts_of, version.split("."), strict=False)}
    return parts | {f"{prefix}.full": version}


def _spec(product: str) -> GpuSpec:
    spec = catalog.by_product(product)
    assert spec is not None, f"unknown product {product}: `known` was not asked"
    return spec


def _nvidia_facts(spec: GpuSpec) -> NvidiaFacts:
    return NVIDIA.get(spec.name) or NVIDIA[spec.architecture]


def _has_facts(spec: GpuSpec) -> bool:
    return spec.name in AMD or (spec.vendor == "NVIDIA" and not {spec.name, spec.architecture}.isdisjoint(NVIDIA))
