"""What goes to the API server: the status of a GPUNode as msgspec structs, the same fields as `trimtab.api.gpunode`.

The agent does without pydantic, which costs it a fifth of its memory; a test holds the two descriptions together. A
number that is not known is left out. What the kind has no room for is cut here, so that the API server never refuses a
whole report because of one odd value.
"""

from __future__ import annotations

import time

from msgspec import Struct

from trimtab.agent.backend import FaultKind, Gpu, NodeReading, known

MAX_GPUS = 64
MAX_PROCESSES = 64
MAX_FAULTS = 32
MAX_REASONS = 16
MAX_PARTS = 16
TEXT = 1024


class _Wire(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Camel case outside, and nothing that is not set."""


class WireFault(_Wire, frozen=True):
    """A fault of a GPU; `time` is RFC 3339."""

    kind: FaultKind
    time: str
    code: int = 0
    count: int = 1


class WireProcess(_Wire, frozen=True):
    """A process that holds memory of the GPU."""

    pid: int
    memory_used_bytes: int | None = None


class Link(_Wire, frozen=True):
    """NVLink and PCI Express."""

    nvlinks_active: int | None = None
    nvlinks: int | None = None
    nvlink_tx_bytes_per_second: int | None = None
    nvlink_rx_bytes_per_second: int | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_tx_bytes_per_second: int | None = None
    pcie_rx_bytes_per_second: int | None = None


class MemoryErrors(_Wire, frozen=True):
    """ECC and remapped rows."""

    corrected: int | None = None
    uncorrected: int | None = None
    rows_remapped_corrected: int | None = None
    rows_remapped_uncorrected: int | None = None
    row_remap_pending: bool | None = None
    row_remap_failed: bool | None = None


class WireMigInstance(_Wire, frozen=True):
    """A part of a partitioned GPU."""

    uuid: str
    profile: str


class WireGpuReading(_Wire, frozen=True):
    """One GPU."""

    uuid: str
    index: int
    product: str = ""
    pci_bus: str = ""
    numa_node: int | None = None
    cpu_affinity: str = ""
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    sm_utilization_percent: int | None = None
    memory_utilization_percent: int | None = None
    tensor_active_percent: int | None = None
    dram_active_percent: int | None = None
    temperature_celsius: int | None = None
    power_milliwatts: int | None = None
    power_limit_milliwatts: int | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    throttled_percent: int | None = None
    throttle_reasons: tuple[str, ...] = ()
    link: Link | None = None
    memory_errors: MemoryErrors | None = None
    mig_enabled: bool | None = None
    mig_instances: tuple[WireMigInstance, ...] = ()
    pods: tuple[str, ...] | None = None
    processes: tuple[WireProcess, ...] = ()
    faults: tuple[WireFault, ...] = ()


class WireStatus(_Wire, frozen=True):
    """The whole of it but the conditions, which are the controller's."""

    observed_time: str = ""
    period_seconds: int | None = None
    backend: str = ""
    agent_version: str = ""
    driver_version: str = ""
    boot_id: str = ""
    error: str = ""
    gpus: tuple[WireGpuReading, ...] = ()
    links: tuple[str, ...] = ()


def gpu(reading: Gpu, throttled: float, faults: tuple[WireFault, ...]) -> WireGpuReading:
    """One GPU as it is reported; `throttled` is a share in [0, 1]."""
    return WireGpuReading(
        uuid=reading.uuid[:128],
        index=reading.index,
        product=reading.product[:TEXT],
        pci_bus=reading.pci_bus[:32],
        numa_node=_whole(reading.numa_node),
        cpu_affinity=reading.cpu_affinity[:TEXT],
        memory_total_bytes=_whole(reading.memory_total),
        memory_used_bytes=_whole(reading.memory_used),
        sm_utilization_percent=_whole(100 * reading.sm_utilization),
        memory_utilization_percent=_whole(100 * reading.memory_utilization),
        tensor_active_percent=_whole(100 * reading.tensor_active),
        dram_active_percent=_whole(100 * reading.dram_active),
        temperature_celsius=_whole(reading.temperature),
        power_milliwatts=_whole(1e3 * reading.power),
        power_limit_milliwatts=_whole(1e3 * reading.power_limit),
        sm_clock_mhz=_whole(1e-6 * reading.sm_clock),
        sm_clock_max_mhz=_whole(1e-6 * reading.sm_clock_max),
        memory_clock_mhz=_whole(1e-6 * reading.memory_clock),
        throttled_percent=_whole(100 * throttled),
        throttle_reasons=tuple(reason[:TEXT] for reason in (reading.throttle_reasons or ())[:MAX_REASONS]),
        link=_link(reading),
        memory_errors=_memory_errors(reading),
        mig_enabled=reading.mig_enabled,
        mig_instances=tuple(
            WireMigInstance(part.uuid[:128], part.profile[:63])
            for part in reading.mig[:MAX_PARTS]
            if part.uuid and part.profile
        ),
        pods=None if reading.pods is None else tuple(pod[:TEXT] for pod in reading.pods[:MAX_PROCESSES]),
        processes=tuple(WireProcess(each.pid, _whole(each.memory_used)) for each in reading.processes[:MAX_PROCESSES]),
        faults=faults[:MAX_FAULTS],
    )


def links(reading: NodeReading) -> tuple[str, ...]:
    """How GPUs reach one another, a row per GPU."""
    return tuple(" ".join(row)[:TEXT] for row in reading.links[:MAX_GPUS])


def rfc3339(seconds: float) -> str:
    """A point in time as Kubernetes writes it; seconds since 1970."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _whole(number: float) -> int | None:
    return round(number) if known(number) else None


def _link(reading: Gpu) -> Link | None:
    found = Link(
        nvlinks_active=_whole(reading.nvlinks_active),
        nvlinks=_whole(reading.nvlinks),
        nvlink_tx_bytes_per_second=_whole(reading.nvlink_tx),
        nvlink_rx_bytes_per_second=_whole(reading.nvlink_rx),
        pcie_generation=_whole(reading.pcie_generation),
        pcie_generation_max=_whole(reading.pcie_generation_max),
        pcie_width=_whole(reading.pcie_width),
        pcie_width_max=_whole(reading.pcie_width_max),
        pcie_tx_bytes_per_second=_whole(reading.pcie_tx),
        pcie_rx_bytes_per_second=_whole(reading.pcie_rx),
    )
    return None if found == Link() else found


def _memory_errors(reading: Gpu) -> MemoryErrors | None:
    found = MemoryErrors(
        corrected=_whole(reading.ecc_corrected),
        uncorrected=_whole(reading.ecc_uncorrected),
        rows_remapped_corrected=_whole(reading.rows_remapped_corrected),
        rows_remapped_uncorrected=_whole(reading.rows_remapped_uncorrected),
        row_remap_pending=reading.row_remap_pending,
        row_remap_failed=reading.row_remap_failed,
    )
    return None if found == MemoryErrors() else found
