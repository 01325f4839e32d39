"""One GPU: what it is, how it is doing, and what happened to it.

What never changes is read when the GPU is found, and once in ten minutes. What moves slowly, or costs NVML a
conversation with the card's firmware (counters of PCI Express: 0.4 ms each), is read every ten seconds. The rest is
read each time: eight calls of microseconds.
"""

from __future__ import annotations

import math
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from trimtab.agent.backend import NA, Gpu, Happened, Mig, Process, known
from trimtab.agent.nvml.calls import Calls, Field, number
from trimtab.agent.nvml.events import DOUBLE_BIT_ECC, XID, Event

MHZ: Final = 1e6
MILLI: Final = 1e-3
KIB: Final = 1024.0
SM_CLOCK, MEMORY_CLOCK = 1, 2
PCIE_TX, PCIE_RX = 0, 1
NUMA_WORDS, CPU_WORDS = 16, 64
"""Of 64 bits: 1024 NUMA nodes, 4096 CPUs."""

MOST_LINKS, MOST_PARTS = 64, 64
"""More than any card has: what is above is a driver's mistake, and no reason to ask a billion times."""

ALL_LINKS: Final = 0xFFFF_FFFF
ECC_CORRECTED, ECC_UNCORRECTED, NVLINK_COUNT, POWER_INSTANT = 3, 4, 91, 186
NVLINK_TX, NVLINK_RX = (138, ALL_LINKS), (139, ALL_LINKS)
PCIE_TX_BYTES, PCIE_RX_BYTES = 197, 198
COUNTERS: Final[tuple[Field, ...]] = (NVLINK_TX, NVLINK_RX, PCIE_TX_BYTES, PCIE_RX_BYTES)
SLOW_FIELDS: Final[tuple[Field, ...]] = (ECC_CORRECTED, ECC_UNCORRECTED, NVLINK_COUNT, *COUNTERS)

BLOCKING_SECONDS: Final = 60.0
"""Drivers without counters of PCI Express measure for 20 ms while one waits: at most so often."""

THROTTLE_REASONS: Final = {
    0x04: "SwPowerCap",
    0x08: "HwSlowdown",
    0x10: "SyncBoost",
    0x20: "SwThermalSlowdown",
    0x40: "HwThermalSlowdown",
    0x80: "HwPowerBrakeSlowdown",
}
"""nvmlClocksEventReasons but for idleness (0x1) and settings of users: application (0x2) and display clocks (0x100)."""


class GpuIdentity(Struct, frozen=True):
    """What a GPU is."""

    product: str = ""
    pci_bus: str = ""
    numa_node: float = NA
    cpu_affinity: str = ""
    sm_clock_max: float = NA
    pcie_generation_max: float = NA
    pcie_width_max: float = NA


class Slow(Struct, frozen=True):
    """What is read every ten seconds."""

    power_limit: float = NA
    active: tuple[int, ...] | None = None
    """Numbers of the NVLinks that are up."""
    nvlinks: float = NA
    nvlink_tx: float = NA
    nvlink_rx: float = NA
    pcie_generation: float = NA
    pcie_width: float = NA
    pcie_tx: float = NA
    pcie_rx: float = NA
    ecc_corrected: float = NA
    ecc_uncorrected: float = NA
    rows: tuple[int, int, int, int] | None = None
    mig_enabled: bool | None = None
    mig: tuple[Mig, ...] = ()
    processes: tuple[Process, ...] = ()


class Rate:
    """Differences of a counter over time."""

    def __init__(self) -> None:
        self._count, self._time = NA, NA

    def per_second(self, count: float, now: float) -> float:
        """NA the first time, and where the counter began anew."""
        grown, passed = count - self._count, now - self._time
        self._count, self._time = count, now
        return grown / passed if grown >= 0 and passed > 0 else NA


class GpuRecord(Struct):
    """What is known of a GPU. It outlives the driver, and with it the GPU's handle."""

    index: int = -1
    """Number on the node; -1: none was given yet."""
    facts: GpuIdentity = GpuIdentity()
    slow: Slow = Slow()
    memory_total: float = NA
    uncorrected: float = NA
    """Errors of memory that were told."""
    row_remap_failed: bool = False
    """Told as well."""
    rates: dict[Field, Rate] = field(default_factory=lambda: {counter: Rate() for counter in COUNTERS})
    measured: tuple[float, float] = (NA, NA)
    """Rates of PCI Express where there are no counters."""
    measured_at: float = -math.inf


class Device:
    """A GPU; without a handle one that was there before. All methods but `gone` raise Lost and DriverGone."""

    def __init__(self, nvml: Any, handle: Any, uuid: str, record: GpuRecord) -> None:
        self.handle, self.uuid, self.record = handle, uuid, record
        self.calls = Calls(nvml, handle)
        self._nvml = nvml

    def read_facts(self) -> None:
        """What it is. Calls that were refused are tried again from here on."""
        calls = self.calls
        calls.forget()
        info = calls.ask("nvmlDeviceGetPciInfo")
        self.record.facts = GpuIdentity(
            product=calls.ask("nvmlDeviceGetName") or "",
            pci_bus=info.busId.upper() if info else "",
            numa_node=min(_bits(calls.ask("nvmlDeviceGetMemoryAffinity", NUMA_WORDS, 0)), default=NA),
            cpu_affinity=ranges(_bits(calls.ask("nvmlDeviceGetCpuAffinity", CPU_WORDS))),
            sm_clock_max=calls.number("nvmlDeviceGetMaxClockInfo", SM_CLOCK, unit=MHZ),
            pcie_generation_max=calls.number("nvmlDeviceGetMaxPcieLinkGeneration"),
            pcie_width_max=calls.number("nvmlDeviceGetMaxPcieLinkWidth"),
        )

    def read_slow(self, now: float) -> None:
        """What moves slowly."""
        calls, record = self.calls, self.record
        mode = calls.ask("nvmlDeviceGetMigMode")
        partitioned = None if mode is None else mode[0] == 1
        if partitioned != record.slow.mig_enabled:
            calls.forget()  # a partitioned GPU refuses what a whole one answers
        found = calls.fields(SLOW_FIELDS)
        nvlinks = found[NVLINK_COUNT] if found[NVLINK_COUNT] <= MOST_LINKS else NA
        rates = {counter: record.rates[counter].per_second(found[counter], now) for counter in COUNTERS}
        counted = known(found[PCIE_TX_BYTES]) or known(found[PCIE_RX_BYTES])
        sent, received = (rates[PCIE_TX_BYTES], rates[PCIE_RX_BYTES]) if counted else self._measure(now)
        record.slow = Slow(
            power_limit=calls.number("nvmlDeviceGetEnforcedPowerLimit", unit=MILLI),
            active=self._active_links(nvlinks),
            nvlinks=nvlinks,
            nvlink_tx=rates[NVLINK_TX] * KIB,
            nvlink_rx=rates[NVLINK_RX] * KIB,
            pcie_generation=calls.number("nvmlDeviceGetCurrPcieLinkGeneration"),
            pcie_width=calls.number("nvmlDeviceGetCurrPcieLinkWidth"),
            pcie_tx=sent,
            pcie_rx=received,
            ecc_corrected=found[ECC_CORRECTED],
            ecc_uncorrected=found[ECC_UNCORRECTED],
            rows=calls.ask("nvmlDeviceGetRemappedRows"),
            mig_enabled=partitioned,
            mig=self._parts() if partitioned else (),
            processes=self._processes(),
        )

    def read(self, events: list[Event]) -> Gpu:
        """How it is doing now; `events` are those since the last reading."""
        calls, record = self.calls, self.record
        facts, slow, rows = record.facts, record.slow, record.slow.rows
        utilization = calls.ask("nvmlDeviceGetUtilizationRates")
        memory = calls.first(("nvmlDeviceGetMemoryInfo", self._nvml.nvmlMemory_v2), ("nvmlDeviceGetMemoryInfo",))
        reasons = calls.first(
            ("nvmlDeviceGetCurrentClocksEventReasons",), ("nvmlDeviceGetCurrentClocksThrottleReasons",)
        )
        record.memory_total = number(memory.total) if memory else NA
        return replace(
            self._outline(),
            memory_used=number(memory.used) if memory else NA,
            sm_utilization=share(utilization.gpu) if utilization else NA,
            memory_utilization=share(utilization.memory) if utilization else NA,
            temperature=degrees(calls.first(("nvmlDeviceGetTemperatureV", 0), ("nvmlDeviceGetTemperature", 0))),
            power=self._power(),
            power_limit=slow.power_limit,
            sm_clock=calls.number("nvmlDeviceGetClockInfo", SM_CLOCK, unit=MHZ),
            sm_clock_max=facts.sm_clock_max,
            memory_clock=calls.number("nvmlDeviceGetClockInfo", MEMORY_CLOCK, unit=MHZ),
            throttle_reasons=throttling(reasons),
            nvlinks_active=NA if slow.active is None else float(len(slow.active)),
            nvlinks=slow.nvlinks,
            nvlink_tx=slow.nvlink_tx,
            nvlink_rx=slow.nvlink_rx,
            pcie_generation=slow.pcie_generation,
            pcie_generation_max=facts.pcie_generation_max,
            pcie_width=slow.pcie_width,
            pcie_width_max=facts.pcie_width_max,
            pcie_tx=slow.pcie_tx,
            pcie_rx=slow.pcie_rx,
            ecc_corrected=slow.ecc_corrected,
            ecc_uncorrected=slow.ecc_uncorrected,
            rows_remapped_corrected=number(rows[0]) if rows else NA,
            rows_remapped_uncorrected=number(rows[1]) if rows else NA,
            row_remap_pending=rows[2] == 1 if rows else None,
            row_remap_failed=rows[3] == 1 if rows else None,
            mig_enabled=slow.mig_enabled,
            processes=slow.processes,
            happened=self._happened(events),
        )

    def gone(self, events: list[Event]) -> Gpu:
        """What is left to say of a GPU that does not answer. Makes no calls."""
        happened = tuple(Happened("Xid", code) for kind, code in events if kind == XID)
        return replace(self._outline(), happened=(*happened, Happened("Lost")))

    def _outline(self) -> Gpu:
        record = self.record
        return Gpu(
            uuid=self.uuid,
            index=record.index,
            product=record.facts.product,
            pci_bus=record.facts.pci_bus,
            numa_node=record.facts.numa_node,
            cpu_affinity=record.facts.cpu_affinity,
            memory_total=record.memory_total,
            mig=record.slow.mig,
        )

    def _happened(self, events: list[Event]) -> tuple[Happened, ...]:
        """What is new. Where there is a counter of ECC errors, events do not count them again."""
        record, uncorrected, rows = self.record, self.record.slow.ecc_uncorrected, self.record.slow.rows
        happened = [Happened("Xid", code) for kind, code in events if kind == XID]
        by_event = not known(uncorrected) and any(kind == DOUBLE_BIT_ECC for kind, _ in events)
        if uncorrected > record.uncorrected or by_event:
            happened.append(Happened("UncorrectableEcc"))
        if known(uncorrected):
            record.uncorrected = uncorrected
        if rows:
            failed = rows[3] == 1
            if failed and not record.row_remap_failed:
                happened.append(Happened("RowRemapFailure"))
            record.row_remap_failed = failed
        return tuple(happened)

    def _power(self) -> float:
        """Watts at this instant, which NVML has at hand; on cards of old the mean of a second."""
        power = self.calls.fields((POWER_INSTANT,))[POWER_INSTANT]
        return power * MILLI if known(power) else self.calls.number("nvmlDeviceGetPowerUsage", unit=MILLI)

    def _active_links(self, count: float) -> tuple[int, ...] | None:
        if not known(count):
            return None
        states = {link: self.calls.ask("nvmlDeviceGetNvLinkState", link) for link in range(int(count))}
        if states and all(state is None for state in states.values()):
            return None
        return tuple(link for link, state in states.items() if state == 1)

    def _measure(self, now: float) -> tuple[float, float]:
        """Bytes per second sent and received over PCI Express, measured for 20 ms each."""
        record = self.record
        if now - record.measured_at >= BLOCKING_SECONDS:
            sent, received = (
                self.calls.number("nvmlDeviceGetPcieThroughput", way, unit=KIB) for way in (PCIE_TX, PCIE_RX)
            )
            record.measured, record.measured_at = (sent, received), now
        return record.measured

    def _parts(self) -> tuple[Mig, ...]:
        """The MIG devices, with the names that NVIDIA's device plugin gives their sizes."""
        parts = []
        for index in range(min(MOST_PARTS, self.calls.ask("nvmlDeviceGetMaxMigDeviceCount") or 0)):
            handle = self.calls.ask("nvmlDeviceGetMigDeviceHandleByIndex", index)
            if handle is None:
                continue
            calls = Calls(self._nvml, handle)
            uuid, name = calls.ask("nvmlDeviceGetUUID"), calls.ask("nvmlDeviceGetName") or ""
            if uuid:
                parts.append(Mig(uuid, profile(name, calls.ask("nvmlDeviceGetAttributes"))))
        return tuple(parts)

    def _processes(self) -> tuple[Process, ...]:
        running = self.calls.first(
            ("nvmlDeviceGetComputeRunningProcesses_v3",), ("nvmlDeviceGetComputeRunningProcesses_v2",)
        )
        return tuple(Process(each.pid, number(each.usedGpuMemory)) for each in running or ())


def share(percent: int) -> float:
    """A utilisation as a share; NA for what is none."""
    return percent / 100 if 0 <= percent <= 100 else NA


def degrees(value: int | None) -> float:
    """Degrees Celsius; below 0 is rare, and no error, but for the -1 that stands for nothing."""
    return NA if value is None or value == -1 or not -50 <= value <= 250 else float(value)


def throttling(reasons: int | None) -> tuple[str, ...] | None:
    """The reasons that lower the clock and are no wish of anybody's."""
    if reasons is None or reasons in (0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF):
        return None
    return tuple(name for bit, name in THROTTLE_REASONS.items() if reasons & bit)


def profile(name: str, attributes: Any) -> str:
    """`1g.10gb` of a MIG device: from its name, or from its size where the driver's names lack it."""
    _, found, size = name.partition(" MIG ")
    if found and size:
        return size.strip()
    if attributes is None:
        return "unknown"
    slices, compute = attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount
    whole = f"{slices}g.{math.ceil(attributes.memorySizeMB / 1024)}gb"
    return whole if compute in (0, slices) else f"{compute}c.{whole}"


def ranges(numbers: list[int]) -> str:
    """`0-3,8` of 0, 1, 2, 3 and 8, in rising order."""
    found: list[list[int]] = []
    for each in numbers:
        if found and each == found[-1][1] + 1:
            found[-1][1] = each
        else:
            found.append([each, each])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def _bits(words: Any) -> list[int]:
    """The numbers of the bits that are set in an array of 64-bit words."""
    return [64 * at + bit for at, word in enumerate(words or ()) if word for bit in range(64) if word >> bit & 1]
