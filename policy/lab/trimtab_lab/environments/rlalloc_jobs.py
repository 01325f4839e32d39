"""GPT training jobs on one shared GPU: what they gain from its memory, from CPU cores and from host memory.

Seed 001 profiles GPT-2 with torch.profiler and hands the trace to an environment that was never published. Here a
`RlallocProfile` says what such a measurement would: tokens/s at each amount of GPU memory (what a larger micro-batch,
or less recomputation, makes of it), how many tokens a core can prepare a second, and the host memory that training
takes. By default the first is the performance model's Pareto front (`perf.plans.front`) for GPT-2 small, medium and
large on an A100; the rest are round assumptions: 6,000 tokens/s a core (tokenising and collating in Python), 6 GiB a
process, and a quarter of that rate for tokens that are not in memory. Measured profiles can be given instead.

    loader = cores * tokens_per_core * (1/4 + 3/4 * cached),   cached = (memory - host_memory) / dataset, in 0..1
    alone  = min(tokens/s at this GPU memory, loader),   demand = alone / tokens/s at this GPU memory

Jobs that share the GPU slice its time: where their demands exceed 1 in sum, all slow down by that sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from trimtab_policy import catalog
from trimtab_policy.perf import plans
from trimtab_policy.specs import Precision, TrainingSpec
from trimtab_policy.types import Bounds, Requirements

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MODELS = ("gpt2", "gpt2-medium", "gpt2-large")
GPU = "A100-PCIE-40GB"
_TRAINING = TrainingSpec(sequence_length=1024, global_batch_size=32, steps=1, precision=Precision.FP16)
_TOKENS_PER_CORE = 6000.0
_HOST_MEMORY = 6 << 30
_NOT_CACHED = 0.25
_SHORTEST, _LONGEST = 60.0, 1800.0  # seconds alone on the machine, log-uniform
SLACK = 1e-6
"""Relative: shares come as 32-bit floats."""
_SMALLEST_DATASET, _LARGEST_DATASET = 8.0 * 2**30, 128.0 * 2**30


class RlallocProfile(Struct, frozen=True):
    """One kind of job, measured or predicted; msgspec reads and writes it as JSON."""

    name: str
    gpu_memory: tuple[int, ...]
    """Bytes, ascending; the first is the least that it runs with."""
    tokens_per_second: tuple[float, ...]
    """Of the GPU alone, at least with so much memory; ascending."""
    tokens_per_core: float = _TOKENS_PER_CORE
    """Tokens/s that one core prepares of a dataset in memory."""
    host_memory: int = _HOST_MEMORY
    """Bytes without the dataset: the least that it runs with."""


class SharedMachine(NamedTuple):
    """What there is to share; the YAML keys of the seed."""

    max_gpu_memory: float
    """Bytes."""
    max_cpu_cores: float
    max_cpu_memory: float
    """Bytes."""

    @property
    def whole(self) -> Floats:
        """(3,) GPU memory, cores, memory: the order of actions and histories."""
        return np.array(self, dtype=np.float64)


class GrantedSpeed(NamedTuple):
    """Of one job with what it was granted."""

    alone: float
    """Tokens/s while no other job computes."""
    demand: float
    """Share of the GPU's time that this takes."""


class RlallocJobs(NamedTuple):
    """Columns over the jobs of an episode (n,), by arrival."""

    arrival: Floats
    """Seconds."""
    profile: Ints
    tokens: Floats
    dataset: Floats
    """Bytes."""
    least: Floats
    """(n, 3) of GPU memory, cores and memory that it runs with."""
    wish: Floats
    """(n, 3) beyond which it gets no faster, as far as the machine has it."""
    ideal: Floats
    """Seconds with all that it wishes and the GPU for itself."""


def check(profiles: Sequence[RlallocProfile], machine: SharedMachine) -> tuple[RlallocProfile, ...]:
    """The profiles, if they are sound and the machine can run all of them; ValueError that names what is wrong."""
    if not profiles:
        raise ValueError("profiles must not be empty")
    for each in profiles:
        steps = list(zip(each.gpu_memory, each.tokens_per_second, strict=False))
        ordered = all(a[0] < b[0] and a[1] <= b[1] for a, b in pairwise(steps))
        if len(each.gpu_memory) != len(each.tokens_per_second) or not steps or not ordered or min(steps[0]) <= 0:
            raise ValueError(f"profiles: {each.name}: gpu_memory and tokens_per_second must be positive and ascending")
        if each.tokens_per_core <= 0 or each.host_memory <= 0:
            raise ValueError(f"profiles: {each.name}: tokens_per_core and host_memory must be above 0")
        if each.gpu_memory[0] > machine.max_gpu_memory:
            raise ValueError(f"max_gpu_memory must be at least {each.gpu_memory[0]} bytes for {each.name}")
        if each.host_memory > machine.max_cpu_memory:
            raise ValueError(f"max_cpu_memory must be at least {each.host_memory} bytes for {each.name}")
    return tuple(profiles)


@lru_cache(maxsize=8)
def predicted(max_gpu_memory: int) -> tuple[RlallocProfile, ...]:
    """The models of MODELS on a GPU like GPU with so many bytes, as the performance model sees them.

    Raises ValueError when the smallest of them does not fit.
    """
    card = msgspec.structs.replace(catalog.gpu(GPU), memory_bytes=max_gpu_memory)
    found = []
    for name in MODELS:
        front = plans.front(catalog.model(name), _TRAINING, Requirements(gpus=Bounds(1, 1)), card, 1)
        if points := sorted((each.prediction.memory_bytes, each.prediction.tokens_per_second) for each in front):
            memory, rates = zip(*points, strict=True)
            found.append(RlallocProfile(name, memory, rates))
    if not found:
        raise ValueError(f"max_gpu_memory: {max_gpu_memory} bytes do not hold {MODELS[0]}")
    return tuple(found)


def draw(
    random: np.random.Generator, count: int, load: float, profiles: Sequence[RlallocProfile], machine: SharedMachine
) -> RlallocJobs:
    """`count` jobs: Poisson arrivals from 0 on, at `load` over their mean length alone; log-uniform lengths."""
    mean = (_LONGEST - _SHORTEST) / np.log(_LONGEST / _SHORTEST)
    arrival = np.cumsum(random.exponential(mean / load, count))
    profile = random.integers(len(profiles), size=count)
    ideal = np.exp(random.uniform(np.log(_SHORTEST), np.log(_LONGEST), count))
    dataset = random.uniform(_SMALLEST_DATASET, _LARGEST_DATASET, count)
    of = [profiles[index] for index in profile]
    wish = np.array([_wish(each, size, machine) for each, size in zip(of, dataset, strict=True)])
    fastest = [speed(each, size, grant).alone for each, size, grant in zip(of, dataset, wish, strict=True)]
    least = np.array([(each.gpu_memory[0], min(1.0, machine.max_cpu_cores), each.host_memory) for each in of])
    return RlallocJobs(arrival - arrival[0], profile, ideal * fastest, dataset, least, wish, ideal)


def speed(profile: RlallocProfile, dataset: float, grant: Floats) -> GrantedSpeed:
    """How fast a job computes with this GPU memory, these cores and this memory: the formulas above."""
    gpu_memory, cores, memory = grant.tolist()
    step = int(np.searchsorted(profile.gpu_memory, gpu_memory * (1 + SLACK), side="right")) - 1
    gpu = profile.tokens_per_second[max(0, step)]
    cached = min(1.0, max(0.0, (memory - profile.host_memory) / dataset))
    loader = cores * profile.tokens_per_core * (_NOT_CACHED + (1 - _NOT_CACHED) * cached)
    alone = min(gpu, loader)
    return GrantedSpeed(alone, alone / gpu)


def _wish(profile: RlallocProfile, dataset: float, machine: SharedMachine) -> Floats:
    fitting = [memory for memory in profile.gpu_memory if memory <= machine.max_gpu_memory]
    cores = np.ceil(profile.tokens_per_second[len(fitting) - 1] / profile.tokens_per_core)
    return np.minimum((fitting[-1], cores, profile.host_memory + dataset), machine.whole)
