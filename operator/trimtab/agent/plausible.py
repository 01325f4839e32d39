"""Readings that cannot be: drivers, exporters and dying cards return blanks, wrapped counters and garbage.

What is out of bounds becomes `NA` and is counted; nobody downstream sees it. Bounds are those of physics and of the
GPUNode kind, and wide: whether 105 °C is alarming is the controller's business, 2147483647 °C is nobody's.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from trimtab.agent.backend import NA, Gpu, known

LARGEST: Final = float(1 << 62)
SHARE: Final = (0.0, 1.0)
AMOUNT: Final = (0.0, LARGEST)
SLACK: Final = 0.02
"""By so much of a whole may a share, or memory in use, be above it: counters are read one after the other."""

CLOCK_SLACK: Final = 1.03
"""By so much may a clock be above the highest that the driver names: boards of the same product differ."""

BOUNDS: Final[dict[str, tuple[float, float]]] = {
    "numa_node": (0, 1023),
    "memory_total": AMOUNT,
    "memory_used": AMOUNT,
    "sm_utilization": SHARE,
    "memory_utilization": SHARE,
    "tensor_active": SHARE,
    "dram_active": SHARE,
    "temperature": (-50, 150),  # °C
    "power": (0, 18_000),  # W: peaks of three times the limit
    "power_limit": (0, 6_000),
    "sm_clock": (0, 3.5e9),  # Hz: the fastest cards boost to some 3.1 GHz
    "sm_clock_max": (0, 3.5e9),
    "memory_clock": (0, 20e9),
    "nvlinks_active": (0, 64),
    "nvlinks": (0, 64),
    "nvlink_tx": (0, 1e14),  # bytes/s
    "nvlink_rx": (0, 1e14),
    "pcie_generation": (1, 16),
    "pcie_generation_max": (1, 16),
    "pcie_width": (1, 64),
    "pcie_width_max": (1, 64),
    "pcie_tx": (0, 1e13),
    "pcie_rx": (0, 1e13),
    "ecc_corrected": AMOUNT,
    "ecc_uncorrected": AMOUNT,
    "rows_remapped_corrected": AMOUNT,
    "rows_remapped_uncorrected": AMOUNT,
}
"""Lowest and highest value of every number of a `Gpu`."""


def sane(gpu: Gpu) -> tuple[Gpu, tuple[str, ...]]:
    """The reading without what cannot be, and the names of those fields."""
    changed: dict[str, float] = {}
    refused: list[str] = []
    for field, (low, high) in BOUNDS.items():
        value = getattr(gpu, field)
        if not known(value) or low <= value <= high:
            continue
        if high < value <= high + SLACK and (low, high) == SHARE:
            changed[field] = high
        else:
            changed[field] = NA
            refused.append(field)
    used, total = changed.get("memory_used", gpu.memory_used), changed.get("memory_total", gpu.memory_total)
    if used > total * (1 + SLACK):
        changed["memory_used"] = NA
        refused.append("memory_used")
    clock, highest = changed.get("sm_clock", gpu.sm_clock), changed.get("sm_clock_max", gpu.sm_clock_max)
    if clock > highest * CLOCK_SLACK:
        changed["sm_clock"] = NA
        refused.append("sm_clock")
    return (replace(gpu, **changed) if changed else gpu), tuple(refused)
