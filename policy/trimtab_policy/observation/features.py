"""Raw figures -> features: bounded, without units, each with a range that is written down. The one place for it.

Section 3.1 of seed 002 (ADLRO) asks for a layer that brings job submissions, GPU readings and the configuration of the
cluster "within a manageable range". This is it: for the learned policies (`encode`), for the simulator's environments,
and for the live controller, which decides by the same `encode` and shows the rest (`trimtab snapshot --features`).

An `ObservedFeature` names a figure, its unit, its range and its scale. `ObservedFeature.of` takes arrays of any shape
and gives float32 in [0, 1]: what lies outside the range counts as its end, what is not a number as not known, which has
a value of its own. `ObservedFeature.raw` goes back. `FEATURES` is the table; `policy/FEATURES.md` is made of it by
`python -m trimtab_policy.observation.features`. `node_features` and `job_features` put a snapshot into rows of them.

Scales are also used by themselves where a formula stands alone: `DURATION.scale(seconds)` computes in float64 and cuts
nothing off, `columns` stacks, cuts and rounds. What was learned depends on their last bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray

from trimtab_policy.perf import model_flops
from trimtab_policy.placement.candidates import weight
from trimtab_policy.types import Job, Node, Readings, Snapshot

Single = NDArray[np.float32]
Floats = NDArray[np.float64]

MONTH: Final = float(np.log1p(30 * 86400.0))
"""ln(1 + s) of 30 days: what durations are divided by."""
DAY: Final = float(np.log1p(86400.0))
GPU_DOUBLINGS: Final = 10
"""What log2(1 + n) of the GPUs of a gang is divided by."""
POOL_DOUBLINGS: Final = 12
NODE_DOUBLINGS: Final = 4
JOBS_FULL: Final = 10
"""What ln(1 + n) of the jobs in a system is divided by."""
MANY_WAITING: Final = 16
"""Waiting jobs that count as half of all there could be."""
GIB: Final = float(1 << 30)
GIGA, TERA, MEGA = 1e9, 1e12, 1e6


# --- scales ----------------------------------------------------------------------------------------------------------
class Scale(Protocol):
    """A formula, strictly increasing."""

    def __call__(self, raw: Any, /) -> Any:
        """Scaled, in float64; not cut off."""
        ...

    def back(self, scaled: Any, /) -> Any:
        """The inverse."""
        ...

    def describe(self) -> str:
        """The formula, of x."""
        ...


class Linear(Struct, frozen=True):
    """From `low` to `high`."""

    low: float = 0.0
    high: float = 1.0

    def __call__(self, raw: Any, /) -> Any:
        return (raw - self.low) / (self.high - self.low)

    def back(self, scaled: Any, /) -> Any:
        return self.low + scaled * (self.high - self.low)

    def describe(self) -> str:
        above = "x" if self.low == 0 else f"(x - {self.low:g})"
        return above if self.high - self.low == 1 else f"{above} / {self.high - self.low:g}"


class LogScale(Struct, frozen=True):
    """ln(1 + x) over `full`."""

    full: float

    def __call__(self, raw: Any, /) -> Any:
        return np.log1p(np.maximum(0.0, raw)) / self.full

    def back(self, scaled: Any, /) -> Any:
        return np.expm1(np.asarray(scaled) * self.full)

    def describe(self) -> str:
        known = {MONTH: "ln(1 + 30 days)", DAY: "ln(1 + 1 day)"}
        return f"ln(1 + x) / {known.get(self.full, f'{self.full:g}')}"


class Doublings(Struct, frozen=True):
    """log2(1 + x / `unit`) over `full`."""

    full: float
    unit: float = 1.0

    def __call__(self, raw: Any, /) -> Any:
        return np.log2(1.0 + (raw if self.unit == 1 else raw / self.unit)) / self.full

    def back(self, scaled: Any, /) -> Any:
        return (np.exp2(np.asarray(scaled) * self.full) - 1.0) * self.unit

    def describe(self) -> str:
        units = {1.0: "x", GIB: "x / GiB", MEGA: "x / 10⁶", GIGA: "x / 10⁹", TERA: "x / 10¹²", 1000.0: "x / 1000"}
        return f"log2(1 + {units[self.unit]}) / {self.full:g}"


class Crowd(Struct, frozen=True):
    """x / (x + `many`): 0 for none, a half for `many`."""

    many: float

    def __call__(self, raw: Any, /) -> Any:
        return raw / (raw + self.many)

    def back(self, scaled: Any, /) -> Any:
        return self.many * scaled / (1.0 - scaled)

    def describe(self) -> str:
        return f"x / (x + {self.many:g})"


class Balance(Struct, frozen=True):
    """(1 + x / (|x| + `much`)) / 2: a half for 0, below it for negative figures."""

    much: float

    def __call__(self, raw: Any, /) -> Any:
        return (1.0 + raw / (np.abs(raw) + self.much)) / 2.0

    def back(self, scaled: Any, /) -> Any:
        centred = 2.0 * scaled - 1.0
        return self.much * centred / (1.0 - np.abs(centred))

    def describe(self) -> str:
        return f"(1 + x / (abs(x) + {self.much:g})) / 2"


# --- features --------------------------------------------------------------------------------------------------------
SUBMISSION, READING, CONFIGURATION = "Job submission", "GPU readings", "Cluster configuration"


class ObservedFeature(Struct, frozen=True):
    """One figure, and how it is brought into [0, 1]."""

    name: str
    group: str
    unit: str
    what: str
    scale: Scale
    high: float
    """Raw figures above count as this."""
    low: float = 0.0
    """Raw figures below count as this."""
    unknown: float = 0.0
    """The feature of a figure that is not known."""

    def of(self, raw: ArrayLike) -> Single:
        """Features of raw figures of any shape, in [0, 1] whatever they are."""
        figures = np.asarray(raw, dtype=np.float64)
        known = ~np.isnan(figures)
        scaled = self.scale(np.clip(np.where(known, figures, self.low), self.low, self.high))
        return np.where(known, np.clip(scaled, 0.0, 1.0), self.unknown).astype(np.float32)

    def raw(self, feature: ArrayLike) -> Floats:
        """The figures, as exactly as float32 has kept them."""
        found: Floats = np.clip(self.scale.back(np.asarray(feature, dtype=np.float64)), self.low, self.high)
        return found


DURATION: Final = LogScale(MONTH)
GPUS: Final = Doublings(GPU_DOUBLINGS)
POOL_GPUS: Final = Doublings(POOL_DOUBLINGS)
NODE_GPUS: Final = Doublings(NODE_DOUBLINGS)
JOBS: Final = LogScale(float(JOBS_FULL))
WAITING: Final = Crowd(MANY_WAITING)
PER_CENT: Final = Linear(0.0, 100.0)
SHARE: Final = Linear()
_SECONDS = 30 * 86400.0
_UNKNOWN_LOAD = 0.5


def _reach(full: int, unit: float = 1.0) -> float:
    """The figure that `Doublings` makes 1 of."""
    return float((1 << full) - 1) * unit


def _doublings(name: str, group: str, unit: str, what: str, full: int, size: float = 1.0) -> ObservedFeature:
    return ObservedFeature(name, group, unit, what, Doublings(full, size), _reach(full, size))


JOB_FEATURES: Final[tuple[ObservedFeature, ...]] = (
    _doublings("cpu_cores_per_gpu", SUBMISSION, "millicores", "CPU that a pod requests for each GPU", 8, 1000.0),
    _doublings("host_memory_per_gpu", SUBMISSION, "bytes", "host memory that a pod requests for each GPU", 12, GIB),
    ObservedFeature("least_gpus", SUBMISSION, "GPUs", "smallest gang that is allowed", GPUS, _reach(GPU_DOUBLINGS)),
    ObservedFeature("most_gpus", SUBMISSION, "GPUs", "largest gang that is allowed", GPUS, _reach(GPU_DOUBLINGS)),
    ObservedFeature(
        "priority",
        SUBMISSION,
        "",
        "value of the PriorityClass; 0 is usual",
        Balance(1000.0),
        2147483647.0,
        -2147483648.0,
        unknown=0.5,
    ),
    _doublings("parameters", SUBMISSION, "parameters", "size of the model, all experts", 22, MEGA),
    _doublings("sequence_length", SUBMISSION, "tokens", "tokens of a sequence", 20),
    _doublings("global_batch_size", SUBMISSION, "sequences", "sequences of an optimizer step", 20),
    _doublings("steps", SUBMISSION, "steps", "optimizer steps to train", 30),
    ObservedFeature("steps_left", SUBMISSION, "", "part of the steps that is left", SHARE, 1.0, unknown=1.0),
    ObservedFeature("age", SUBMISSION, "seconds", "time since it was submitted", DURATION, _SECONDS),
)
"""What a job says of itself when it is submitted."""

READING_FEATURES: Final[tuple[ObservedFeature, ...]] = (
    ObservedFeature(
        "utilization", READING, "", "part of the time in which a kernel ran", SHARE, 1.0, unknown=_UNKNOWN_LOAD
    ),
    ObservedFeature("memory_used", READING, "", "part of the GPU memory in use", SHARE, 1.0, unknown=_UNKNOWN_LOAD),
    ObservedFeature(
        "memory_bandwidth",
        READING,
        "",
        "part of the time in which memory moved data",
        SHARE,
        1.0,
        unknown=_UNKNOWN_LOAD,
    ),
    ObservedFeature(
        "temperature", READING, "°C", "of the hottest GPU of the node", PER_CENT, 100.0, unknown=_UNKNOWN_LOAD
    ),
    ObservedFeature("power", READING, "", "power drawn over the limit", SHARE, 1.0, unknown=_UNKNOWN_LOAD),
    ObservedFeature(
        "reading_age", READING, "seconds", "time since the readings arrived", LogScale(DAY), 86400.0, unknown=1.0
    ),
)
"""What an agent reads of the GPUs of a node."""

NODE_FEATURES: Final[tuple[ObservedFeature, ...]] = (
    _doublings("peak_flops", CONFIGURATION, "FLOP/s", "dense 16-bit peak of a GPU", 12, TERA),
    _doublings("memory", CONFIGURATION, "bytes", "memory of a GPU", 9, GIB),
    _doublings("gpu_memory_bandwidth", CONFIGURATION, "bytes/s", "memory bandwidth of a GPU", 14, GIGA),
    _doublings("link_bandwidth", CONFIGURATION, "bytes/s", "bandwidth between the GPUs of a node", 12, GIGA),
    _doublings("network_bandwidth", CONFIGURATION, "bytes/s", "bandwidth of a GPU to other nodes", 10, GIGA),
    ObservedFeature("node_gpus", CONFIGURATION, "GPUs", "GPUs of the node", NODE_GPUS, _reach(NODE_DOUBLINGS)),
    ObservedFeature("free_share", CONFIGURATION, "", "part of them that is free", SHARE, 1.0),
    ObservedFeature("foreign_share", CONFIGURATION, "", "part of them that is busy without a pod", SHARE, 1.0),
    ObservedFeature(
        "speed", CONFIGURATION, "", "rate of its slowest GPU over what its type does", SHARE, 1.0, unknown=1.0
    ),
)
"""What a node is, and what of it can be had."""

OFFER_FEATURES: Final[tuple[ObservedFeature, ...]] = (
    ObservedFeature(
        "run_time", SUBMISSION, "seconds", "run time left, or work left in GPU-seconds", DURATION, _SECONDS
    ),
    ObservedFeature("jobs", CONFIGURATION, "jobs", "jobs in the system", JOBS, float(np.expm1(float(JOBS_FULL)))),
    ObservedFeature("waiting", CONFIGURATION, "jobs", "jobs that wait", WAITING, 1e9),
    ObservedFeature("pool_gpus", CONFIGURATION, "GPUs", "GPUs of one type", POOL_GPUS, _reach(POOL_DOUBLINGS)),
)
"""What `encode` brings in besides."""

FEATURES: Final[dict[str, ObservedFeature]] = {
    each.name: each for each in (*JOB_FEATURES, *READING_FEATURES, *NODE_FEATURES, *OFFER_FEATURES)
}


# --- of a snapshot ---------------------------------------------------------------------------------------------------
def node_features(snapshot: Snapshot) -> Single:
    """(nodes, READING_FEATURES + NODE_FEATURES) features of the nodes, in the order of the snapshot."""
    readings = [_readings(node.readings, snapshot.time) for node in snapshot.nodes]
    return _rows((*READING_FEATURES, *NODE_FEATURES), [
        (*read, *_configuration(snapshot, node)) for read, node in zip(readings, snapshot.nodes, strict=True)
    ])  # fmt: skip


def job_features(snapshot: Snapshot, jobs: Sequence[Job]) -> Single:
    """(jobs, JOB_FEATURES) features of these jobs."""
    return _rows(JOB_FEATURES, [_submission(job, snapshot.time) for job in jobs])


def _rows(features: Sequence[ObservedFeature], raw: Sequence[Sequence[float]]) -> Single:
    figures = np.array(raw, dtype=np.float64).reshape(len(raw), len(features))
    return np.stack([feature.of(figures[:, i]) for i, feature in enumerate(features)], axis=-1)


def _readings(found: Readings | None, now: float) -> tuple[float, ...]:
    if found is None:
        return (math.nan,) * len(READING_FEATURES)
    means = found.utilization, found.memory_used, found.memory_bandwidth, found.temperature, found.power
    return *means, now - found.arrived


def _configuration(snapshot: Snapshot, node: Node) -> tuple[float, ...]:
    gpu, gpus = snapshot.gpu_types[node.gpu_type], max(1, node.gpus)
    return (
        weight(gpu),
        gpu.memory_bytes,
        gpu.memory_bandwidth,
        gpu.link_bandwidth,
        gpu.network_bandwidth,
        node.gpus,
        node.free_gpus / gpus,
        node.foreign_gpus / gpus,
        node.speed,
    )


def _submission(job: Job, now: float) -> tuple[float, ...]:
    need, training = job.requirements, job.training
    return (
        need.cpu_milli_per_gpu,
        need.memory_per_gpu,
        need.gpus.low,
        need.gpus.high,
        job.priority,
        float(model_flops.parameters(model_flops.of(job.model))),
        training.sequence_length,
        training.global_batch_size,
        training.steps,
        1 - job.steps_done / max(1, training.steps),
        now - job.created,
    )


def named(features: Sequence[ObservedFeature], rows: Single) -> list[dict[str, float]]:
    """Rows of features, for people and programs."""
    return [{each.name: value for each, value in zip(features, row, strict=True)} for row in rows.tolist()]


def seconds(feature: Single) -> Floats:
    """The durations that `DURATION` has made such features of."""
    found: Floats = DURATION.back(feature.astype(np.float64))
    return found


def columns(*features: NDArray[np.generic]) -> Single:
    """Features of equal shape side by side on a last axis, cut to [0, 1], as float32."""
    return cut(np.stack(features, axis=-1))


def cut(features: NDArray[np.generic]) -> Single:
    """Scaled figures as features: within [0, 1], float32."""
    found: Single = np.clip(features, 0.0, 1.0).astype(np.float32)
    return found


# --- the table -------------------------------------------------------------------------------------------------------
def table() -> str:
    """All features as Markdown, by group."""
    lines: list[str] = []
    for group in (SUBMISSION, READING, CONFIGURATION):
        lines += [f"### {group}", "", "| feature | of | unit | range | formula, cut to [0, 1] | not known |"]
        lines += ["|---|---|---|---|---|---|"]
        lines += [_line(each) for each in FEATURES.values() if each.group == group]
        lines.append("")
    return "\n".join(lines)


def _line(each: ObservedFeature) -> str:
    span = f"{each.low:.4g} to {each.high:.4g}"
    return f"| `{each.name}` | {each.what} | {each.unit or '1'} | {span} | {each.scale.describe()} | {each.unknown:g} |"


if __name__ == "__main__":
    print(table(), end="")
