"""The cluster and the workload of seed 002, in numbers: 16 GPUs of three makes, jobs of three kinds.

The paper names 8 Nvidia Volta, 4 Nvidia Turing and 4 AMD Radeon GPUs, and simulation, machine-learning and
data-processing jobs "with varying resource requirements and priorities"; everything else is chosen here. The products
are V100-SXM2-32GB, Quadro RTX 6000 and Radeon VII, four to a host. How fast a kind runs on a make follows from
datasheets: a job that takes a second on the V100 spends fixed parts of it on its bottlenecks, each of which takes as
much longer elsewhere as the V100's figure is higher (the serial form of the roofline model, Williams et al. 2009):

    1 / speed(kind, make) = sum over bottlenecks b of  part(kind, b) * figure(V100, b) / figure(make, b)

               FP64  FP32  FP16  memory        speed:  Volta  Turing  Radeon
    simulation  0.2               0.8                   1.00   0.24    0.86      stencils and sparse solvers
    learning                0.7   0.3                   1.00   0.93    0.28      16-bit matrix products
    data              0.3         0.7                   1.00   0.82    1.03      scans, joins, decoding

Figures in TFLOP/s and GB/s are the catalogue's (`data/gpus.yaml`); FP64 is not there: 7.8 for V100 (NVIDIA Volta
whitepaper), 1/32 of FP32 for Turing (Turing whitepaper), 1/4 of FP32 for Radeon VII (AMD).

The paper's table 1 gives FCFS 25.8 s average job completion time, 6.2 jobs/hour and 58.1 % utilisation. These exclude
each other: 16 GPUs that are 58.1 % busy with jobs of at most 25.8 s finish at least 1,297 an hour. Mean work and
arrival rate, which it does not give, are set here so that FCFS comes near its completion time and utilisation: 26.0 s
and 56.7 % (1,482 jobs/hour) in 300 episodes. Static affinity, for which nothing was set, then has 20.1 s, 55.8 % and
2,022 jobs/hour (the paper: 22.1 s, 65.4 %, 7.5): less work is left to do when it is done on the right GPU.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab_policy import catalog
from trimtab_policy.specs import Precision

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MAKES = ("Volta", "Turing", "Radeon")
KINDS = ("simulation", "machine learning", "data processing")
_PRODUCTS = ("V100-SXM2-32GB", "Quadro-RTX-6000", "Radeon-VII")
_FP64_OF_FP32 = (7.8 / 15.7, 1 / 32, 1 / 4)

HOSTS = (0, 0, 1, 2)
"""Make of each host; every host has HOST_GPUS of one make."""
HOST_GPUS = 4
GPUS = len(HOSTS) * HOST_GPUS
HOST_CORES = 48
HOST_MEMORY = 256.0
"""GiB"""

ARRIVALS_PER_SECOND = 0.73
MEAN_WORK = 15.7
"""Seconds on a V100, over all kinds."""
_MIX = (0.4, 0.3, 0.3)
_RELATIVE_WORK = (1.5, 1.0, 0.5)
_SPREAD = 0.5  # of the logarithm of the work of one kind


class _MachineKind(NamedTuple):
    """Parts of a second on a V100, and ranges of what is asked for (cores, GiB of host and of GPU memory)."""

    parts: tuple[float, float, float, float]
    cores: tuple[int, int]
    memory: tuple[float, float]
    gpu_memory: tuple[float, float]


_KIND = (
    _MachineKind((0.2, 0.0, 0.0, 0.8), (1, 4), (8, 64), (4, 30)),
    _MachineKind((0.0, 0.0, 0.7, 0.3), (4, 12), (16, 96), (6, 22)),
    _MachineKind((0.0, 0.3, 0.0, 0.7), (4, 16), (32, 128), (2, 14)),
)
"""GPU memory is such that the make with the affinity (`adlro.AFFINITY`) can hold every job of a kind."""


class Hardware(NamedTuple):
    """Columns over the GPUs (16,), host by host."""

    make: Ints
    host: Ints
    memory: Floats
    """GiB"""
    bandwidth: Floats
    """Of the memory, bytes/s."""
    link: Floats
    """To other GPUs of the host, bytes/s."""
    speed: Floats
    """(kinds, 16) relative to a V100."""
    bound: Floats
    """(kinds, 16) share of a job's time in which it waits for the GPU's memory."""


class AdlroJobs(NamedTuple):
    """Columns over the jobs of an episode (n,), by arrival."""

    arrival: Floats
    """Seconds."""
    kind: Ints
    work: Floats
    """Seconds on a V100."""
    cores: Floats
    memory: Floats
    """Of the host, GiB."""
    gpu_memory: Floats
    """GiB"""
    priority: Floats
    """0 to 1."""
    intensity: Floats
    """Utilisation that its GPU shows while it runs, 0 to 1."""


@cache
def hardware() -> Hardware:
    """The cluster; read-only arrays."""
    specs = [catalog.gpu(name) for name in _PRODUCTS]
    make = np.repeat(np.array(HOSTS), HOST_GPUS)
    speed, bound = _speeds()
    found = Hardware(
        make=make,
        host=np.repeat(np.arange(len(HOSTS)), HOST_GPUS),
        memory=np.array([spec.memory_bytes / 2**30 for spec in specs])[make],
        bandwidth=np.array([spec.memory_bandwidth for spec in specs])[make],
        link=np.array([spec.link_bandwidth for spec in specs])[make],
        speed=speed[:, make],
        bound=bound[:, make],
    )
    for column in found:
        column.setflags(write=False)
    return found


def draw(random: np.random.Generator, count: int, arrivals_per_second: float, mean_work: float) -> AdlroJobs:
    """`count` jobs: Poisson arrivals from 0 on, log-normal work around the mean of the kind, uniform demands."""
    kind = random.choice(len(KINDS), size=count, p=_MIX)
    relative = np.array(_RELATIVE_WORK) / np.dot(_MIX, _RELATIVE_WORK)
    arrival = np.cumsum(random.exponential(1 / arrivals_per_second, count))
    work = mean_work * relative[kind] * np.exp(random.normal(-(_SPREAD**2) / 2, _SPREAD, count))

    def uniform(ranges: list[tuple[float, float]]) -> Floats:
        low, high = np.array(ranges, dtype=np.float64)[kind].T
        found: Floats = low + (high - low) * random.random(count)
        return found

    return AdlroJobs(
        arrival=arrival - arrival[0],
        kind=kind,
        work=work,
        cores=np.round(uniform([each.cores for each in _KIND])),
        memory=uniform([each.memory for each in _KIND]),
        gpu_memory=uniform([each.gpu_memory for each in _KIND]),
        priority=random.random(count),
        intensity=random.uniform(0.7, 1.0, count),
    )


def _speeds() -> tuple[Floats, Floats]:
    """(kinds, makes) speed, and share of the time that memory takes: the formula above."""
    rows = []
    for name, double in zip(_PRODUCTS, _FP64_OF_FP32, strict=True):
        spec = catalog.gpu(name)
        single, half = spec.peak_flops[Precision.FP32], spec.peak_flops[Precision.FP16]
        rows.append((double * single, single, half, spec.memory_bandwidth))
    figures = np.array(rows)
    parts = np.array([kind.parts for kind in _KIND])
    times = parts[:, None, :] * (figures[0] / figures)
    total = times.sum(axis=2)
    return 1 / total, times[:, :, -1] / total
