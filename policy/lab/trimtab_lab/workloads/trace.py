"""A trace: jobs as columns, so that a million of them cost megabytes and no Python object each.

A trace says what was submitted, not what became of it under a scheduler: job models (`rigid`, `llm`, `goodput`) turn
its rows into simulated jobs. Text that repeats (queues, states, applications, sets of allowed GPU types) is stored
once, with a code per job.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
T = TypeVar("T", bound=str | tuple[str, ...])


class Coded(Struct, Generic[T], frozen=True, eq=False):
    """A column of few distinct values."""

    codes: NDArray[np.int32]
    """Index into `values`, one per job."""
    values: tuple[T, ...]

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, row: int) -> T:
        return self.values[int(self.codes[row])]

    def __iter__(self) -> Iterator[T]:
        return map(self.values.__getitem__, self.codes.tolist())

    def take(self, rows: Any) -> Coded[T]:
        """The same values for some rows: anything that indexes an array."""
        return Coded(self.codes[rows], self.values)

    def map(self, function: Any) -> Coded[Any]:
        """Every value replaced by what the function makes of it, called once per distinct value."""
        return code_by(self.codes, [function(value) for value in self.values])


def constant(value: T, count: int) -> Coded[T]:
    """A column with the same value in every row."""
    return Coded(np.zeros(count, dtype=np.int32), (value,))


def code(column: Iterable[T]) -> Coded[T]:
    """Store a column's values once each, in the order of their first appearance."""
    number: dict[T, int] = {}
    codes = [number.setdefault(value, len(number)) for value in column]
    return Coded(np.array(codes, dtype=np.int32), tuple(number))


def code_by(codes: NDArray[Any], values: Sequence[T]) -> Coded[T]:
    """A column of `values[codes]`, equal values merged."""
    of_values = code(values)
    return Coded(of_values.codes[codes], of_values.values)


class Submission(NamedTuple):
    """One job of a trace; fields as the columns of `Trace`."""

    name: str
    submitted: float
    gpus: int
    seconds: float
    gpu_types: tuple[str, ...]
    queue: str
    status: str
    application: str
    batch_size: int
    estimate: float
    deadline: float
    category: str


class Trace(Struct, frozen=True, eq=False):
    """Columns over jobs, in the order of their submission. Build with `trace`, which sorts and fills in."""

    name: NDArray[np.str_]
    """Unique."""
    submitted: FloatArray
    """Seconds from the start of the trace, sorted, >= 0."""
    gpus: IntArray
    """Asked for, >= 1."""
    seconds: FloatArray
    """Run time on what was asked for; NaN where unknown (Sia workloads: the profiles say)."""
    gpu_types: Coded[tuple[str, ...]]
    """Allowed types by their names in the catalogue; empty for any."""
    queue: Coded[str]
    """Virtual cluster, partition or user, as the trace has it."""
    status: Coded[str]
    """How it ended in the original cluster, in the words of the trace; empty where unknown."""
    application: Coded[str]
    """Kind of job, to group results by; the name of the profile in Sia workloads."""
    batch_size: IntArray
    """Global batch asked for; 0 where unknown."""
    estimate: FloatArray
    """Run time that the user expected (SWF field 9); NaN where unknown."""
    deadline: FloatArray
    """Seconds from the start of the trace; NaN for none."""
    category: Coded[str]
    """What may be changed about a Sia job: `adaptive`, `scale-gpus` or `rigid`; empty where not said."""
    row: IntArray
    """Line of the file, or number in the generator: what error messages point at."""
    source: str
    """File or generator that the jobs come from."""

    def __len__(self) -> int:
        return len(self.submitted)

    def __iter__(self) -> Iterator[Submission]:
        columns = (getattr(self, field) for field in Submission._fields)
        values = (each.tolist() if isinstance(each, np.ndarray) else each for each in columns)
        return map(Submission._make, zip(*values, strict=True))

    def take(self, rows: Any) -> Trace:
        """Some of the jobs: a mask, a slice, or ascending indices."""
        return Trace(*(_take(getattr(self, field), rows) for field in self.__struct_fields__))

    def without_estimates(self) -> Trace:
        """The same jobs, of whose run times nobody expected anything."""
        return msgspec.structs.replace(self, estimate=np.full(len(self), np.nan))

    def between(self, begin: float, end: float) -> Trace:
        """Jobs submitted in [begin, end); their clock is not changed."""
        first, last = np.searchsorted(self.submitted, [begin, end])
        return self.take(slice(int(first), int(last)))

    def resubmitted(self, at: ArrayLike) -> Trace:
        """The same jobs at other times, deadlines as long after them as before. Raises ValueError unless ascending."""
        times = np.asarray(at, dtype=np.float64)
        if len(times) != len(self) or np.any(np.diff(times) < 0):
            raise ValueError(f"times of submission: {len(self)} ascending ones are needed, one for each job")
        return msgspec.structs.replace(self, submitted=times, deadline=self.deadline + (times - self.submitted))

    def from_zero(self) -> Trace:
        """The same jobs with the first one submitted at 0."""
        return self.resubmitted(self.submitted - self.submitted[0]) if len(self) else self

    @property
    def span(self) -> float:
        """Seconds from the first submission to the last."""
        return float(self.submitted[-1] - self.submitted[0]) if len(self) else 0.0

    @property
    def gpu_seconds(self) -> FloatArray:
        """Work of each job: what it asked for times its run time; NaN where that is unknown."""
        return self.gpus * self.seconds


def trace(
    name: ArrayLike,
    submitted: ArrayLike,
    gpus: ArrayLike,
    seconds: ArrayLike | None = None,
    *,
    gpu_types: Coded[tuple[str, ...]] | None = None,
    queue: Coded[str] | None = None,
    status: Coded[str] | None = None,
    application: Coded[str] | None = None,
    batch_size: ArrayLike | None = None,
    estimate: ArrayLike | None = None,
    deadline: ArrayLike | None = None,
    category: Coded[str] | None = None,
    row: ArrayLike | None = None,
    source: str = "",
) -> Trace:
    """Columns of any order as a `Trace`: sorted by submission (ties stay in order), absent columns as not known."""
    names = np.asarray(name, dtype=np.str_)
    count = len(names)
    unknown, nothing = np.full(count, np.nan), constant("", count)
    columns = Trace(
        name=names,
        submitted=np.asarray(submitted, dtype=np.float64),
        gpus=np.asarray(gpus, dtype=np.int64),
        seconds=unknown if seconds is None else np.asarray(seconds, dtype=np.float64),
        gpu_types=constant((), count) if gpu_types is None else gpu_types,
        queue=nothing if queue is None else queue,
        status=nothing if status is None else status,
        application=nothing if application is None else application,
        batch_size=np.zeros(count, dtype=np.int64) if batch_size is None else np.asarray(batch_size, dtype=np.int64),
        estimate=unknown if estimate is None else np.asarray(estimate, dtype=np.float64),
        deadline=unknown if deadline is None else np.asarray(deadline, dtype=np.float64),
        category=nothing if category is None else category,
        row=np.arange(1, count + 1) if row is None else np.asarray(row, dtype=np.int64),
        source=source,
    )
    return columns.take(np.argsort(columns.submitted, kind="stable"))


def _take(column: Any, rows: Any) -> Any:
    if isinstance(column, str):
        return column
    return column[rows] if isinstance(column, np.ndarray) else column.take(rows)
