"""Every Prometheus metric of the node agent. It has a registry of its own: the controller's are not its.

Readings (`trimtab_gpu_*`) are gauges of the last smoothed state; one that is not known has no sample. `GpuCollector`
asks for them when it is scraped, so that sampling does not pay for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from trimtab import __version__
from trimtab.telemetry.ports import PortMetrics

REGISTRY = CollectorRegistry()
ProcessCollector(registry=REGISTRY)

FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

GPU_LABELS = ("gpu", "uuid", "product")
GPU_GAUGES: Mapping[str, tuple[str, str]] = {
    "memory_total": ("trimtab_gpu_memory_bytes", "Memory of the GPU"),
    "memory_used": ("trimtab_gpu_memory_used_bytes", "Memory in use"),
    "sm_utilization": ("trimtab_gpu_utilization_ratio", "Part of the time in which some kernel ran"),
    "memory_utilization": ("trimtab_gpu_memory_utilization_ratio", "Part of the time in which memory was accessed"),
    "tensor_active": ("trimtab_gpu_tensor_active_ratio", "Part of the cycles in which tensor cores worked (DCGM)"),
    "dram_active": ("trimtab_gpu_dram_active_ratio", "Part of the cycles in which memory moved data (DCGM)"),
    "temperature": ("trimtab_gpu_temperature_celsius", "Core temperature"),
    "power": ("trimtab_gpu_power_watts", "Power drawn"),
    "power_limit": ("trimtab_gpu_power_limit_watts", "Power limit in force"),
    "sm_clock": ("trimtab_gpu_sm_clock_hertz", "Clock of the SMs"),
    "sm_clock_max": ("trimtab_gpu_sm_clock_max_hertz", "Highest clock of the SMs"),
    "memory_clock": ("trimtab_gpu_memory_clock_hertz", "Clock of the memory"),
    "throttled": ("trimtab_gpu_throttled_ratio", "Part of the last period in which the GPU was throttled"),
    "nvlinks_active": ("trimtab_gpu_nvlinks_active", "NVLinks that are up"),
    "nvlink_tx": ("trimtab_gpu_nvlink_sent_bytes_per_second", "Sent over all NVLinks"),
    "nvlink_rx": ("trimtab_gpu_nvlink_received_bytes_per_second", "Received over all NVLinks"),
    "pcie_generation": ("trimtab_gpu_pcie_generation", "PCI Express generation now"),
    "pcie_width": ("trimtab_gpu_pcie_width_lanes", "PCI Express lanes in use"),
    "pcie_tx": ("trimtab_gpu_pcie_sent_bytes_per_second", "Sent to the host"),
    "pcie_rx": ("trimtab_gpu_pcie_received_bytes_per_second", "Received from the host"),
    "ecc_corrected": ("trimtab_gpu_ecc_corrected_errors", "ECC errors corrected since the driver was loaded"),
    "ecc_uncorrected": ("trimtab_gpu_ecc_uncorrected_errors", "ECC errors not corrected since the driver was loaded"),
    "rows_remapped_corrected": ("trimtab_gpu_rows_remapped_corrected", "Rows remapped after corrected errors"),
    "rows_remapped_uncorrected": ("trimtab_gpu_rows_remapped_uncorrected", "Rows remapped after uncorrected errors"),
    "row_remap_failed": ("trimtab_gpu_row_remap_failed", "1 where a row could not be remapped"),
    "lost": ("trimtab_gpu_lost", "1 while the GPU has fallen off the bus"),
}
"""Reading: name and help of its metric."""

SAMPLES = Counter(
    "trimtab_agent_samples_total", "Readings taken, by result (read, error)", ["result"], registry=REGISTRY
)
SAMPLE_SECONDS = Histogram(
    "trimtab_agent_sample_duration_seconds", "Time of one reading of all GPUs", buckets=FAST, registry=REGISTRY
)
SAMPLE_AGE = Gauge("trimtab_agent_sample_age_seconds", "Time since the last reading", registry=REGISTRY)
IMPLAUSIBLE = Counter(
    "trimtab_agent_implausible_readings_total",
    "Numbers that cannot be, by field; they count as not known",
    ["field"],
    registry=REGISTRY,
)
REPORTS = Counter(
    "trimtab_agent_reports_total",
    "Attempts to write the GPUNode, by cause (first, fault, moved, heartbeat) and result (written, or the error)",
    ["cause", "result"],
    registry=REGISTRY,
)
DCGM_SCRAPES = Counter(
    "trimtab_agent_dcgm_scrapes_total", "Scrapes of the DCGM exporter, by result (read, failed)", ["result"],
    registry=REGISTRY,
)  # fmt: skip
DCGM_BLANKS = Counter("trimtab_agent_dcgm_blanks_total", "Blank values of the DCGM exporter", registry=REGISTRY)
NODES = Gauge("trimtab_agent_nodes", "Nodes that this process reports for", registry=REGISTRY)
BUILD = Info("trimtab_agent_build", "Version of this agent", registry=REGISTRY)
BUILD.info({"version": __version__})
PORTS = PortMetrics(REGISTRY)

GpuRow = tuple[tuple[str, str, str], Mapping[str, float]]
"""Labels of a GPU (index, UUID, product), and its readings by their names in GPU_GAUGES; NaN: not known."""
FaultRow = tuple[tuple[str, str, str, str], int]
"""Index and UUID of a GPU, kind and code of a fault, and how often it was seen."""


class GpuCollector(Collector):
    """Readings and faults of the node's GPUs at the moment of the scrape."""

    def __init__(self, gpus: Callable[[], Iterable[GpuRow]], faults: Callable[[], Iterable[FaultRow]]) -> None:
        self._gpus = gpus
        self._faults = faults

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Called by prometheus_client."""
        rows = list(self._gpus())
        for reading, (name, text) in GPU_GAUGES.items():
            family = GaugeMetricFamily(name, text, labels=GPU_LABELS)
            for labels, values in rows:
                if not math.isnan(value := values.get(reading, math.nan)):
                    family.add_metric(labels, value)
            yield family
        xids = CounterMetricFamily(
            "trimtab_gpu_xid_errors", "XID errors since the machine was started", labels=("gpu", "uuid", "xid")
        )
        others = CounterMetricFamily(
            "trimtab_gpu_faults", "Other faults since the machine was started", labels=("gpu", "uuid", "kind")
        )
        for (gpu, uuid, kind, code), count in self._faults():
            if kind == "Xid":
                xids.add_metric((gpu, uuid, code), count)
            else:
                others.add_metric((gpu, uuid, kind), count)
        yield xids
        yield others
