"""The device that training runs on, as the performance model wants it: a `GpuSpec`.

A CUDA device is found in the catalogue by the name that its driver reports; for a product that it lacks, figures are
estimated from its compute capability. No catalogue knows this host's processor, so what the model needs of it is
measured: the rate of a large matrix product in the number format of the run, and the rate at which memory is copied,
both with as many threads as training uses. These are rates that were reached, where a datasheet has those that never
are.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import torch

from trimtab_lab.profiling.training import dtype
from trimtab_policy import catalog
from trimtab_policy.specs import GpuSpec, Precision

_WIDTH = 2048
"""Of the square product: large enough that a larger one is no faster, 17 GFLOP."""
_COPIED = 256 << 20
"""Bytes: with the copy twice that, beyond most caches."""
_REPEATS = 5


def device(name: str) -> torch.device:
    """`cpu`, `cuda`, or `auto` for the second where there is one. Raises ValueError where there is none."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
        raise ValueError(f"no CUDA device was found (torch {torch.__version__}, {built}): use --device cpu")
    return torch.device(name)


def spec(device: torch.device, precision: Precision) -> GpuSpec:
    """What the performance model has to know of it."""
    return measured(precision) if device.type == "cpu" else known(device)


def known(device: torch.device) -> GpuSpec:
    """A CUDA device as the catalogue has it, or an estimate under its own name."""
    facts = torch.cuda.get_device_properties(device)
    found = catalog.by_product(facts.name, facts.total_memory)
    return found or catalog.estimate(facts.name, facts.total_memory, (facts.major, facts.minor))


def measured(precision: Precision) -> GpuSpec:
    """This host's processor with the threads that torch uses, by what is measured now: some seconds of work."""
    bandwidth, threads = _copy_rate(), torch.get_num_threads()
    return GpuSpec(
        name=f"{_processor()}, {threads} thread{'s' if threads > 1 else ''}",
        vendor="CPU",
        architecture="CPU",
        memory_bytes=host_memory(),
        memory_bandwidth=bandwidth,
        peak_flops={precision: _product_rate(dtype(precision))},
        # One device: nothing is ever sent.
        link_bandwidth=bandwidth,
        network_bandwidth=bandwidth,
        power_watts=0.0,
        source="measured",
    )


def host_memory() -> int:
    """Bytes of this host, or of the control group that it is confined to."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    said = limit.read_text().strip() if limit.is_file() else "max"
    return min(whole, int(said)) if said.isdigit() else whole


def _product_rate(kind: torch.dtype) -> float:
    """FLOP/s of the fastest of some large products."""
    left, right = (torch.randn(_WIDTH, _WIDTH).to(kind) for _ in range(2))
    result = torch.empty(_WIDTH, _WIDTH, dtype=kind)
    return 2 * _WIDTH**3 / _fastest(lambda: torch.mm(left, right, out=result))


def _copy_rate() -> float:
    """Bytes/s that cross memory while a block is copied: read once, written once."""
    source = torch.ones(_COPIED, dtype=torch.uint8)
    target = torch.zeros_like(source)
    return 2 * _COPIED / _fastest(lambda: target.copy_(source))


def _fastest(work: Callable[[], object]) -> float:
    """Seconds: others may hold the machine up, nothing makes it faster than it is."""
    work()
    seconds = []
    for _ in range(_REPEATS):
        began = perf_counter()
        work()
        seconds.append(perf_counter() - began)
    return min(seconds)


def _processor() -> str:
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text().splitlines() if facts.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "CPU"
