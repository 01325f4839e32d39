"""What a node's agent reports about its GPUs, and what the controller makes of it: the kind GPUNode.

One object per node, of the node's name. The agent writes everything but the conditions, by server-side apply; the
conditions are the controller's. A reading that could not be had is absent: never 0, never a word. Numbers are integers
(base units, or per cent), as the conventions of the Kubernetes API ask for.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from trimtab.api.base import AnyObject, ApiModel, Int32, Int64, Text, Time, extra
from trimtab.api.status import Condition

MAX_GPUS = 64
MAX_PROCESSES = 64
MAX_FAULTS = 32

Percent = Annotated[Int32, Field(ge=0, le=100)]
Amount = Annotated[Int64, Field(ge=0)]
Uuid = Annotated[str, StringConstraints(min_length=1, max_length=128)]


class Fault(ApiModel):
    """Something that went wrong on a GPU. Remembered by the agent until the machine starts anew."""

    kind: Literal["Xid", "Lost", "RowRemapFailure", "UncorrectableEcc"]
    """What happened: an XID error of the driver, a GPU that fell off the bus, memory rows that could not be remapped,
    memory errors that could not be corrected."""
    code: Annotated[Int32, Field(ge=0, le=100000)] = 0
    """Number of the XID; 0 for the others."""
    time: Time
    """When it was seen last, by the node's clock."""
    count: Annotated[Int64, Field(ge=1)] = 1
    """How often it was seen."""


class GpuProcess(ApiModel):
    """A process that holds memory of the GPU."""

    pid: Amount
    """Process ID on the host."""
    memory_used_bytes: Amount | None = None
    """GPU memory that it holds."""


class GpuLink(ApiModel):
    """NVLink, or PCI Express, as it is now and as it could be."""

    nvlinks_active: Annotated[Int32, Field(ge=0, le=64)] | None = None
    """NVLinks that are up."""
    nvlinks: Annotated[Int32, Field(ge=0, le=64)] | None = None
    """NVLinks that the GPU has."""
    nvlink_tx_bytes_per_second: Amount | None = None
    """Sent over all NVLinks."""
    nvlink_rx_bytes_per_second: Amount | None = None
    """Received over all NVLinks."""
    pcie_generation: Annotated[Int32, Field(ge=1, le=16)] | None = None
    """PCI Express generation now (GPUs that idle may step down)."""
    pcie_generation_max: Annotated[Int32, Field(ge=1, le=16)] | None = None
    """Highest generation that GPU and slot can do."""
    pcie_width: Annotated[Int32, Field(ge=1, le=64)] | None = None
    """Lanes in use."""
    pcie_width_max: Annotated[Int32, Field(ge=1, le=64)] | None = None
    """Lanes that GPU and slot have."""
    pcie_tx_bytes_per_second: Amount | None = None
    """Sent to the host."""
    pcie_rx_bytes_per_second: Amount | None = None
    """Received from the host."""


class GpuMemoryErrors(ApiModel):
    """ECC counters and remapped rows."""

    corrected: Amount | None = None
    """ECC errors corrected since the driver was loaded."""
    uncorrected: Amount | None = None
    """ECC errors that could not be corrected since the driver was loaded."""
    rows_remapped_corrected: Amount | None = None
    """Rows remapped because of corrected errors."""
    rows_remapped_uncorrected: Amount | None = None
    """Rows remapped because of uncorrected errors."""
    row_remap_pending: bool | None = None
    """Whether a reset is needed to remap a row."""
    row_remap_failed: bool | None = None
    """Whether a row could not be remapped: the GPU is to be replaced."""


class MigInstance(ApiModel):
    """A part of a partitioned GPU."""

    uuid: Uuid
    """UUID of the part, `MIG-...`."""
    profile: Annotated[str, StringConstraints(min_length=1, max_length=63)]
    """Size, e.g. `3g.20gb`."""


class GpuReading(ApiModel):
    """One GPU: what it is, and how it is doing. Utilisation, power, temperature and clocks are smoothed."""

    uuid: Uuid
    """UUID of the GPU, `GPU-...` or the vendor's equivalent."""
    index: Annotated[Int32, Field(ge=0, le=1023)]
    """Number on the node, in PCI order."""
    product: Text = ""
    """Name of the product as the driver says it, e.g. `NVIDIA H100 80GB HBM3`."""
    pci_bus: Annotated[str, StringConstraints(max_length=32)] = ""
    """PCI address, e.g. `00000000:1A:00.0`."""
    numa_node: Annotated[Int32, Field(ge=0, le=1023)] | None = None
    """NUMA node that it is attached to."""
    cpu_affinity: Text = ""
    """CPUs near it, as a list of ranges: `0-31,64-95`."""
    memory_total_bytes: Amount | None = None
    """Memory of the GPU."""
    memory_used_bytes: Amount | None = None
    """Memory in use."""
    sm_utilization_percent: Percent | None = None
    """Part of the time in which some kernel ran."""
    memory_utilization_percent: Percent | None = None
    """Part of the time in which memory was read or written."""
    tensor_active_percent: Percent | None = None
    """Part of the cycles in which tensor cores worked (DCGM)."""
    dram_active_percent: Percent | None = None
    """Part of the cycles in which memory moved data (DCGM)."""
    temperature_celsius: Annotated[Int32, Field(ge=-50, le=250)] | None = None
    """Core temperature."""
    power_milliwatts: Amount | None = None
    """Power drawn."""
    power_limit_milliwatts: Amount | None = None
    """Power limit in force."""
    sm_clock_mhz: Amount | None = None
    """Clock of the SMs."""
    sm_clock_max_mhz: Amount | None = None
    """Highest clock of the SMs."""
    memory_clock_mhz: Amount | None = None
    """Clock of the memory."""
    throttled_percent: Percent | None = None
    """Part of the last period in which a throttle reason other than idleness or a user's setting was in force."""
    throttle_reasons: Annotated[tuple[Text, ...], Field(max_length=16), extra(list_type="atomic")] = ()
    """Reasons that lower the clock now, e.g. `HwThermalSlowdown`, `SwPowerCap`."""
    link: GpuLink | None = None
    """NVLink and PCI Express."""
    memory_errors: GpuMemoryErrors | None = None
    """ECC and remapped rows."""
    mig_enabled: bool | None = None
    """Whether the GPU is partitioned."""
    mig_instances: Annotated[tuple[MigInstance, ...], Field(max_length=16), extra(list_type="atomic")] = ()
    """Its parts."""
    pods: Annotated[tuple[Text, ...], Field(max_length=MAX_PROCESSES), extra(list_type="atomic")] | None = None
    """Pods (`namespace/name`) that the kubelet gave the GPU to; absent where the kubelet cannot be asked."""
    processes: Annotated[tuple[GpuProcess, ...], Field(max_length=MAX_PROCESSES), extra(list_type="atomic")] = ()
    """Processes that hold its memory."""
    faults: Annotated[tuple[Fault, ...], Field(max_length=MAX_FAULTS), extra(list_type="atomic")] = ()
    """What went wrong since the machine was started."""


class GPUNodeStatus(ApiModel):
    """The last report of the node's agent, and the controller's judgement."""

    observed_time: Time | None = None
    """When the readings were taken, by the node's clock. Their age is judged by when they arrive."""
    period_seconds: Annotated[Int32, Field(ge=1, le=3600)] | None = None
    """A report comes at least this often; after three such periods without one the readings count no more."""
    backend: Literal["nvml", "amd", "fake"] | None = None
    """What read them."""
    agent_version: Text = ""
    """Version of the agent."""
    driver_version: Text = ""
    """Version of the GPU driver."""
    boot_id: Text = ""
    """Of the machine; another one means that it was started anew, which ends faults."""
    error: Text = ""
    """Why there are no readings at all, e.g. that driver and library do not match."""
    # It has one writer: of a map by UUID the API server would note who owns each field of each GPU, half of the object.
    gpus: Annotated[tuple[GpuReading, ...], Field(max_length=MAX_GPUS), extra(list_type="atomic")] = ()
    """The GPUs of the node."""
    links: Annotated[tuple[Text, ...], Field(max_length=MAX_GPUS), extra(list_type="atomic")] = ()
    """How each GPU reaches each, a row per GPU as in `nvidia-smi topo -m`: `X NV18 NV18 SYS`."""
    conditions: Annotated[
        tuple[Condition, ...], Field(max_length=16), extra(list_type="map", list_map_keys=["type"])
    ] = ()
    """Healthy: whether the node's GPUs may take jobs, judged by the controller. FaultContained, while that is so: the
    device plugin has taken the faulty GPUs away, and the others go on."""


class GPUNode(ApiModel):
    """The GPUs of one node as its agent sees them. Written by `trimtab agent`; nobody needs to edit it."""

    metadata: AnyObject
    """The name is the node's."""
    status: GPUNodeStatus | None = None
    """Readings and health."""
