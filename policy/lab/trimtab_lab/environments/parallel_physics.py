"""What a (GPU count, parallel mode) costs under the conditions of the moment: the world of `parallel_mode`.

Seed 000 simulates latency, energy and bandwidth without saying how. Here they follow from the performance model for a
stated LLM on stated GPUs: for every configuration the fastest plan that fits (`perf.plans.best`), and its step time at
16 levels of network bandwidth (`perf.speed`). Around it a few figures are assumptions, each a constant below:

- A host runs one launching thread per GPU and a few loader processes per data-parallel copy: data parallelism costs
  CPU, model parallelism hardly any. Where that and what others use exceed the host, everything takes that much longer.
- Packets are handled by the CPU (no RDMA): on hosts that are more than half busy the network slows in proportion.
- GPUs draw their rated power while a step is computed and communicated, and a part of it while they wait for the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab_policy import catalog
from trimtab_policy.perf import hardware, plan_arrays, plans, speed
from trimtab_policy.perf.plans import Option
from trimtab_policy.specs import GpuSpec, Mode, ModelSpec, Precision, TrainingSpec
from trimtab_policy.types import Bounds, Requirements

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MODES = (Mode.DATA, Mode.MODEL, Mode.HYBRID)
OBJECTIVES = ("cpu", "memory", "latency", "energy", "bandwidth")

NODE_GPUS = 4
HOST_CORES = 32
"""A server with four GPUs and 32 virtual cores, such as p3.8xlarge."""
THREADS_PER_GPU = 1.0
LOADERS_PER_COPY = 4.0
CPU_FOR_PACKETS = 0.5
"""Part of a host's CPU that must be free for the network to run at full speed."""
WAITING_POWER = 0.3
"""Share of its rated power that a GPU draws while it waits for the CPU."""
LEVELS = 16
"""Of network bandwidth: 1/16, 2/16, ... of what the catalogue says."""

TRAINING = TrainingSpec(sequence_length=2048, global_batch_size=128, steps=1, precision=Precision.FP16)


class Physics(NamedTuple):
    """All configurations (a,): every GPU count in every mode, whether it exists or not."""

    gpus: Ints
    mode: Ints
    """Index into MODES."""
    possible: NDArray[np.bool_]
    """A single GPU has no model parallelism, two have no hybrid, and some fit in no memory."""
    step: Floats
    """(LEVELS, a) seconds of an optimizer step on idle hosts; 1 where impossible."""
    waiting: Floats
    """(LEVELS, a) share of it in which GPUs wait for communication."""
    memory: Floats
    """GPU memory in use, as a share of that of the largest gang."""
    cpu: Floats
    """Share of its hosts' cores that the job keeps busy."""
    watts: float
    """Of one GPU."""

    @property
    def latency_floor(self) -> float:
        """Seconds of a step of the fastest configuration when nothing is in its way."""
        return float(self.step[-1, self.possible].min())

    @property
    def energy_floor(self) -> float:
        """GPU-seconds of a step of the most frugal one."""
        return float((self.gpus * self.step[-1])[self.possible].min())


class ParallelOutcome(NamedTuple):
    """What configurations do under given conditions; arrays of one shape."""

    latency: Floats
    """Seconds of an optimizer step."""
    energy: Floats
    """Joules of an optimizer step, GPUs only."""
    scores: Floats
    """(..., 5) in the order of OBJECTIVES, 0 (worst) to 1 (best)."""


@lru_cache(maxsize=8)
def physics(model: str, gpu: str, counts: tuple[int, ...]) -> Physics:
    """Tables for a model preset on a GPU type of the catalogue.

    Raises ValueError for names that the catalogue lacks, and when no configuration fits in memory.
    """
    try:
        spec, card = catalog.model(model), catalog.gpu(gpu)
    except (catalog.UnknownModel, catalog.UnknownGpu) as unknown:
        raise ValueError(f"model and gpu: {unknown}") from unknown
    pairs = [(count, mode) for count in counts for mode in MODES]
    options = [_plan(spec, card, count, mode) for count, mode in pairs]
    found = [option for option in options if option is not None]
    if not found:
        raise ValueError(f"model: {model} fits on no {gpu} in gangs of {', '.join(map(str, counts))}")
    possible = np.array([option is not None for option in options])
    steps, waiting = np.ones((LEVELS, len(pairs))), np.zeros((LEVELS, len(pairs)))
    steps[:, possible], waiting[:, possible] = _times(spec, card, found)
    held, busy = np.zeros(len(pairs)), np.zeros(len(pairs))
    held[possible] = [option.gpus * option.prediction.memory_bytes for option in found]
    busy[possible] = [_cores(option) / (option.nodes * HOST_CORES) for option in found]
    return Physics(
        gpus=np.array([count for count, _ in pairs], dtype=np.int64),
        mode=np.array([MODES.index(mode) for _, mode in pairs], dtype=np.int64),
        possible=possible,
        step=steps,
        waiting=waiting,
        memory=held / (max(counts) * card.memory_bytes),
        cpu=busy,
        watts=card.power_watts,
    )


def level(cpu: Floats, available: Floats) -> Ints:
    """Which of the LEVELS of bandwidth the gang gets: `available` by other traffic, less where the CPU is short."""
    handled = np.minimum(1.0, (1.0 - cpu) / CPU_FOR_PACKETS)
    found: Ints = np.clip(np.ceil(available * handled * LEVELS).astype(np.int64) - 1, 0, LEVELS - 1)
    return found


def outcome(world: Physics, cpu: Floats, bandwidth: Ints, configuration: Ints) -> ParallelOutcome:
    """What these configurations do on hosts that others keep `cpu` busy, at these levels of bandwidth.

    Arguments broadcast against each other. Latency and energy are scored by how near they come to the least of all
    configurations, what is used by how much is left, bandwidth by the time that is not spent waiting for it.
    """
    load = cpu + world.cpu[configuration]
    gpus, alone = world.gpus[configuration], world.step[bandwidth, configuration]
    latency = alone * np.maximum(1.0, load)
    gpu_seconds = gpus * (alone + WAITING_POWER * (latency - alone))
    scores = (
        1.0 - np.minimum(1.0, load),
        1.0 - world.memory[configuration],
        world.latency_floor / latency,
        world.energy_floor / gpu_seconds,
        1.0 - world.waiting[bandwidth, configuration],
    )
    return ParallelOutcome(latency, world.watts * gpu_seconds, np.stack(np.broadcast_arrays(*scores), axis=-1))


def _plan(model: ModelSpec, gpu: GpuSpec, count: int, mode: Mode) -> Option | None:
    """The fastest plan of so many GPUs in this mode, on as few nodes as possible."""
    width = min(count, NODE_GPUS)
    if count % width:
        return None
    wanted = Requirements(gpus=Bounds(count, count), modes=(mode,))
    return plans.best(model, TRAINING, wanted, gpu, count // width, width)


def _times(model: ModelSpec, gpu: GpuSpec, options: Sequence[Option]) -> tuple[Floats, Floats]:
    """(LEVELS, n) seconds of a step, and the share of it that communication takes."""
    work, rows = plan_arrays.work(model, TRAINING), plan_arrays.columns([option.plan for option in options])
    widths = np.array([option.gpus_per_node for option in options], dtype=np.float64)
    steps, waiting = np.empty((2, LEVELS, len(options)))
    for index in range(LEVELS):
        machine = hardware.machine(gpu, TRAINING.precision, spread=LEVELS / (index + 1))
        time = speed.step_time(work, rows, machine, widths, hardware.software())
        steps[index] = time.total
        waiting[index] = (time.layer_communication + time.pipeline_communication + time.data_communication) / time.total
    return steps, waiting


def _cores(option: Option) -> float:
    """Cores that the whole gang keeps busy."""
    return option.gpus * THREADS_PER_GPU + option.plan.data * LOADERS_PER_COPY
