"""Measured profiles of training jobs, in the file format of the Sia artifact: how fast they really are.

One directory per application, three kinds of files (github.com/siasosp23/artifacts, `sia-simulator/traces`):

- `placements-<gpu>.csv`: step and synchronisation time of gangs whose split over nodes was measured. A split is
  written as digits, GPUs per node, in its lexicographically smallest rotation: 1244 is four nodes with 1, 2, 4 and 4.
- `scalability-<gpu>.csv`: the same by number of nodes and GPUs only, for splits that are not among those.
- `validation-<batch>.csv`: one row per epoch of a run with that global batch: progress, iterations, and the squared
  norm and variance of the gradient, which say how much a larger batch gains (McCandlish et al. 2018; Pollux, OSDI'21).

Progress is counted in steps at the initial, i.e. smallest, batch. What the files do not say (epochs, restart times, the
slowdown of the real cluster) is in `APPLICATIONS`, by the artifact's `applications.py` and `simulator_config.py`.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from scipy.interpolate import LinearNDInterpolator

from trimtab_lab.workloads.textfile import FileError, open_text

Split = tuple[int, ...]
"""GPUs on each node of a gang, in rank order."""
Floats = NDArray[np.float64]


class ProfileError(ValueError):
    """A profile is missing, or does not cover what was asked of it. What is wrong with a file is a `FileError`."""


class ProfiledGpu(Struct, frozen=True):
    """What the artifact calls a cluster: one GPU type, as it was measured."""

    suffix: str
    """Of the file names."""
    gpu_type: str
    """Name in our catalogue."""
    max_nodes: int
    """On how many nodes it was measured: a wider gang is looked up as if packed on so many."""


GPUS = (
    ProfiledGpu("aws", "T4", 16),
    ProfiledGpu("azure", "V100-SXM2-32GB", 5),
    ProfiledGpu("dgx-ext", "A100-SXM4-40GB", 2),
    ProfiledGpu("quad", "Quadro-RTX-6000", 1),
    ProfiledGpu("rtx", "RTX-2080-Ti", 3),
)
"""In the artifact's order, in which it looks for a type that a job has run on."""

MEMORY_LIMITS = {("deepspeech2", "RTX-2080-Ti"): 57}
"""Samples per GPU that fit although more were profiled, by the artifact."""


class ApplicationFacts(Struct, frozen=True):
    """What is known of an application beside its profiles."""

    epochs: int
    slowdown: float
    """How much slower than profiled it ran on the physical cluster."""
    restart_seconds: float
    """Save, schedule and load: without progress, GPUs held."""
    assumed_restart_seconds: float
    """What Sia believes that to be."""


APPLICATIONS: Mapping[str, ApplicationFacts] = {
    "cifar10": ApplicationFacts(100, 1.8, 50, 30),
    "bert": ApplicationFacts(2, 1.2, 120, 120),
    "deepspeech2": ApplicationFacts(80, 1.2, 25, 25),
    "yolov3": ApplicationFacts(50, 1.2, 80, 45),
    "imagenet": ApplicationFacts(90, 1.2, 250, 250),
    "ncf": ApplicationFacts(10, 1.5, 15, 30),
}


class MicroStepTime(NamedTuple):
    """Seconds of one step of one micro-batch per GPU."""

    step: float
    sync: float
    """The part of it in which gradients are exchanged."""

    def total(self, accumulations: int) -> float:
        """Seconds of an optimizer step with so many micro-batches before the one that synchronises."""
        return self.step + accumulations * (self.step - self.sync)


class Gradient(NamedTuple):
    """Statistics of the gradient at the initial batch size."""

    square: float
    variance: float


def repacked(split: Split, max_nodes: int) -> Split:
    """The split itself, or if it is wider than `max_nodes`, its GPUs evenly on so many."""
    if len(split) <= max_nodes:
        return split
    gpus, each = sum(split), -(-sum(split) // max_nodes)
    return tuple(min(each, gpus - begun) for begun in range(0, gpus, each))


class MeasuredTimes:
    """Times of one application on one GPU type."""

    def __init__(self, directory: Path, application: str, gpu: ProfiledGpu) -> None:
        """Read both files; raises FileError."""
        self.gpu_type = gpu.gpu_type
        self.max_nodes = gpu.max_nodes
        self._name = f"{application} on {gpu.gpu_type}"
        self._splits = _by_split(directory / f"placements-{gpu.suffix}.csv")
        self._scalability = _read_times(directory / f"scalability-{gpu.suffix}.csv", "num_nodes", "num_replicas")
        self.min_local = min(int(rows[0, 0]) for rows in self._splits.values())
        largest = max(int(rows[-1, 0]) for rows in self._splits.values())
        self.max_local = MEMORY_LIMITS.get((application, gpu.gpu_type), largest)
        self._times: dict[tuple[Split, int], MicroStepTime] = {}

    @cached_property
    def single_gpu_samples_per_second(self) -> float:
        """Largest batch over longest step on one GPU: what the artifact compares GPU types by."""
        if (1,) not in self._splits:
            raise ProfileError(f"{self._name}: no profile of a single GPU")
        rows = self._splits[(1,)]
        return float(rows[:, 0].max() / rows[:, 1].max())

    def largest_local(self, split: Split) -> int:
        """Most samples per GPU that were profiled for a split, or for any that is at least as large."""
        if (rows := self._splits.get(_rotated(split))) is not None:
            return int(rows[-1, 0])
        table = self._scalability
        wider = (table["num_nodes"] >= len(split)) & (table["num_replicas"] >= sum(split))
        if not wider.any():
            raise ProfileError(f"{self._name}: no profile of {sum(split)} GPUs on {len(split)} nodes, nor of more")
        return int(table["local_bsz"][wider].max())

    @cached_property
    def largest_local_by_gpus(self) -> dict[int, int]:
        """Number of GPUs -> most samples per GPU in any profiled split of them."""
        largest: dict[int, int] = {}
        for split, rows in self._splits.items():
            largest[sum(split)] = max(int(rows[-1, 0]), largest.get(sum(split), 0))
        return largest

    def time(self, split: Split, local: int) -> MicroStepTime:
        """Seconds of a step with `local` samples per GPU, linear between what was profiled.

        Raises ProfileError for what lies outside: the artifact stops there, or goes on with a time of -1.
        """
        key = split, local
        if (known := self._times.get(key)) is None:
            known = self._times[key] = self._look_up(_rotated(split), local)
        return known

    def covers(self, split: Split, local: int) -> bool:
        """Whether `time` knows."""
        try:
            self.time(split, local)
        except ProfileError:
            return False
        return True

    @property
    def splits(self) -> Sequence[Split]:
        """The splits that were profiled as such."""
        return tuple(self._splits)

    def _look_up(self, split: Split, local: int) -> MicroStepTime:
        if (rows := self._splits.get(split)) is not None:
            if not rows[0, 0] <= local <= rows[-1, 0]:
                raise ProfileError(
                    f"{self._name}: {local} samples per GPU on {split}, where {rows[0, 0]:.0f} to {rows[-1, 0]:.0f} "
                    "were profiled"
                )
            return MicroStepTime(*(float(np.interp(local, rows[:, 0], rows[:, column])) for column in (1, 2)))
        step, sync = self._interpolate([[min(len(split), 16), sum(split), local]])[0].tolist()
        if math.isnan(step):
            raise ProfileError(f"{self._name}: no profile near {split} with {local} samples per GPU")
        return MicroStepTime(step, sync)

    @cached_property
    def _interpolate(self) -> LinearNDInterpolator:
        """Linear in nodes, GPUs and samples per GPU, over the triangulated points of both files."""
        grouped: dict[tuple[int, int, float], list[Floats]] = {}
        for split, rows in self._splits.items():
            for row in rows:
                grouped.setdefault((len(split), sum(split), float(row[0])), []).append(row[1:])
        keys = sorted(grouped)
        table = self._scalability
        points = np.column_stack([table["num_nodes"], table["num_replicas"], table["local_bsz"]])
        times = np.column_stack([table["step_time"], table["sync_time"]])
        means = [np.mean(grouped[key], axis=0) for key in keys]
        return LinearNDInterpolator(np.vstack([keys, points]), np.vstack([means, times]))


class Application:
    """One application: its epochs, how much a batch gains in them, and its times by GPU type."""

    def __init__(self, directory: Path, facts: ApplicationFacts) -> None:
        """Read the validation files; raises FileError."""
        self.name, self.facts = directory.name, facts
        self._directory = directory
        self._measured: dict[str, MeasuredTimes] = {}
        runs = {batch: _validation(path, facts.epochs) for batch, path in _validation_files(directory)}
        self.batches = sorted(runs)
        stacked = {column: np.array([runs[batch][column] for batch in self.batches]) for column in _VALIDATION}
        self._iterations, self._square, self._variance = (
            stacked[column] for column in ("iteration", "grad_sqr", "grad_var")
        )
        self.milestones: list[float] = [0.0, *stacked["progress"].min(axis=0).tolist()]
        """Progress at which epoch 0, 1, ... begins; the last one is the whole work."""
        if not np.all(np.diff(self.milestones) > 0):
            raise ProfileError(f"{directory}: progress of the validation files does not rise from epoch to epoch")
        self._gains: dict[int, list[float]] = {}
        self._gradients: dict[int, list[Gradient]] = {}

    @property
    def init_batch(self) -> int:
        """Smallest global batch; gains are relative to it."""
        return self.batches[0]

    @property
    def max_batch(self) -> int:
        return self.batches[-1]

    @property
    def work(self) -> float:
        """Steps at the initial batch that the whole training takes."""
        return self.milestones[-1]

    def on(self, gpu_type: str) -> MeasuredTimes:
        """Times on one GPU type; raises ProfileError where there are none."""
        if gpu_type not in self._measured:
            found = next((gpu for gpu in GPUS if gpu.gpu_type == gpu_type), None)
            if found is None:
                known = ", ".join(gpu.gpu_type for gpu in GPUS)
                raise ProfileError(f"{self.name}: no profile of GPU type {gpu_type}; there are {known}")
            self._measured[gpu_type] = MeasuredTimes(self._directory, self.name, found)
        return self._measured[gpu_type]

    def gradients(self, batch: int) -> list[Gradient]:
        """Gradient statistics per epoch at a global batch, linear between the validated ones."""
        if batch not in self._gradients:
            square, variance = self._between(self._square, batch), self._between(self._variance, batch)
            self._gradients[batch] = list(map(Gradient, square.tolist(), variance.tolist()))
        return self._gradients[batch]

    def gains(self, batch: int) -> list[float]:
        """Progress per step, per epoch, at a global batch: 1 at the initial one, at most batch / initial batch."""
        if batch not in self._gains:
            scale = batch / self.init_batch
            self._gains[batch] = [(v + g) / (v / scale + g) for g, v in self.gradients(batch)]
        return self._gains[batch]

    def iterations(self, batch: int) -> list[float]:
        """Steps at a global batch that are done after each epoch."""
        return [float(done) for done in self._between(self._iterations, batch)]

    def _between(self, table: Floats, batch: int) -> Floats:
        """Rows of validated batches, interpolated."""
        upper = bisect_left(self.batches, batch)
        if not self.init_batch <= batch <= self.max_batch:
            raise ProfileError(
                f"{self.name}: global batch {batch}, where {self.init_batch} to {self.max_batch} were run"
            )
        high = self.batches[upper]
        if high == batch:
            return np.asarray(table[upper])
        low = self.batches[upper - 1]
        return np.asarray(((batch - low) * table[upper] + (high - batch) * table[upper - 1]) / (high - low))


class Profiles:
    """A directory of profiles, read as far as it is needed."""

    def __init__(self, directory: Path, facts: Mapping[str, ApplicationFacts] = APPLICATIONS) -> None:
        """`facts` names the applications that can be simulated. Raises ProfileError when there is no such directory."""
        if not directory.is_dir():
            raise ProfileError(f"{directory}: no such directory of profiles")
        self._directory, self._facts = directory, facts
        self._applications: dict[str, Application] = {}

    def application(self, name: str) -> Application:
        """Raises ProfileError for one that is not known or has no files, FileError for damaged ones."""
        if name not in self._applications:
            if name not in self._facts:
                raise ProfileError(f"application {name!r} cannot be simulated; known are {', '.join(self._facts)}")
            self._applications[name] = Application(self._directory / name, self._facts[name])
        return self._applications[name]


def _rotated(split: Split) -> Split:
    """The lexicographically smallest rotation, as profiles are stored."""
    return min(split[turn:] + split[:turn] for turn in range(len(split)))


_TIMES = ("local_bsz", "step_time", "sync_time")
_VALIDATION = ("progress", "iteration", "grad_sqr", "grad_var")
_MAY_BE_ZERO = ("sync_time", "grad_sqr")


def _by_split(path: Path) -> dict[Split, Floats]:
    """Split -> rows of (samples per GPU, step time, sync time), ascending."""
    table = _read_times(path, "placement")
    rows = np.column_stack([table[column] for column in _TIMES])
    found: dict[Split, Floats] = {}
    for placement in dict.fromkeys(table["placement"].tolist()):
        here = np.flatnonzero(table["placement"] == placement)
        here = here[np.argsort(rows[here, 0], kind="stable")]
        split = tuple(map(int, str(int(placement))))
        if 0 in split or split != _rotated(split):
            raise FileError(path, _line(here[0]), "placement", "must be GPUs per node in their smallest rotation")
        repeated = here[1:][np.diff(rows[here, 0]) == 0]
        if len(repeated):
            raise FileError(path, _line(repeated[0]), "local_bsz", "is there twice for this placement")
        found[split] = rows[here]
    return found


def _read_times(path: Path, *where: str) -> dict[str, Floats]:
    """Columns of a file of step times."""
    table = _read(path, (*where, *_TIMES))
    wrong = np.flatnonzero(table["sync_time"] >= table["step_time"])
    if len(wrong):
        raise FileError(path, _line(wrong[0]), "sync_time", "must be below step_time, of which it is a part")
    return table


def _validation_files(directory: Path) -> list[tuple[int, Path]]:
    """Global batch and file of each validation run."""
    found = []
    for path in directory.glob("validation-*.csv"):
        batch = path.stem.removeprefix("validation-")
        if not batch.isdecimal() or int(batch) == 0:
            raise ProfileError(f"{path}: the name must end in a global batch, got {batch!r}")
        found.append((int(batch), path))
    if not found:
        raise ProfileError(f"{directory}: no validation-<batch>.csv")
    return sorted(found)


def _validation(path: Path, epochs: int) -> dict[str, Floats]:
    """The first so many epochs of a validation run."""
    table = _read(path, _VALIDATION)
    if (rows := len(table["progress"])) < epochs:
        raise FileError(path, _line(rows - 1), "progress", f"ends after {rows} epochs, {epochs} are needed")
    return {column: values[:epochs] for column, values in table.items()}


def _read(path: Path, columns: Sequence[str]) -> dict[str, Floats]:
    """Some columns of a CSV file as numbers, which must be finite and above zero. Raises FileError."""
    with open_text(path) as text:
        lines = csv.reader(text)
        header = next(lines, [])
        if missing := [column for column in columns if column not in header]:
            raise FileError(path, 1, missing[0], "no such column")
        wanted = [(column, header.index(column)) for column in columns]
        rows = [_numbers(path, line, row, wanted, len(header)) for line, row in enumerate(lines, start=_line(0))]
    if not rows:
        raise FileError(path, 1, "file", "has no rows")
    return dict(zip(columns, np.array(rows).T, strict=True))


def _numbers(path: Path, line: int, row: list[str], wanted: Sequence[tuple[str, int]], width: int) -> list[float]:
    """The wanted cells of one line."""
    if len(row) != width:
        raise FileError(path, line, "file", f"{len(row)} cells where the header has {width}: is it truncated?")
    numbers = []
    for column, index in wanted:
        try:
            value = float(row[index])
        except ValueError:
            raise FileError(path, line, column, f"must be a number, got {row[index]!r}") from None
        if not (0 < value < math.inf or (value == 0 and column in _MAY_BE_ZERO)):
            raise FileError(path, line, column, f"must be finite and above 0, got {row[index]}")
        numbers.append(value)
    return numbers


def _line(row: int) -> int:
    """Line of the file in which a row of the table stands, below the header."""
    return int(row) + 2
