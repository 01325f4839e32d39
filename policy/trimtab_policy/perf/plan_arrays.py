"""Many plans at once: one float64 array per field, so that memory and time of thousands of plans are a few numpy calls.

`PlanColumns` are the ways to divide, `Work` is what is divided: numbers where all plans are for one job, columns where
every row has a job of its own (measurements). Floats, because products of sizes (FLOPs of a step) pass 2^63, and
degrees are exact in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray

from trimtab_policy.perf import model_flops as shapes
from trimtab_policy.perf.model_flops import Array, ModelShape, Number
from trimtab_policy.specs import (
    Adapters,
    AdapterTargets,
    ModelSpec,
    Offload,
    Optimizer,
    OptimizerOffload,
    ParallelPlan,
    Precision,
    Quantization,
    Recompute,
    TrainingSpec,
)

__all__ = [
    "FULL",
    "FULL_TRAINING",
    "NONE",
    "SELECTIVE",
    "Array",
    "Format",
    "Number",
    "PlanColumns",
    "Tuning",
    "Work",
    "columns",
    "stack",
    "tuning_of",
    "work",
]

NONE, SELECTIVE, FULL = range(3)
_RECOMPUTE = (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)


class Format(NamedTuple):
    """Bytes of one number of each kind in a training run."""

    weight: Number
    gradient: Number
    """As accumulated."""
    master: Number
    """What the optimizer keeps of a parameter besides its moments."""
    moments: Number
    """Optimizer moments of one matrix parameter."""
    table_moments: Number
    """Optimizer moments of one vocabulary parameter."""
    activation: Number
    operand: Number
    """Operands of the linear layers' matrix products."""
    wire: Number
    """Gradients between data-parallel ranks."""


_FORMAT = {  # weight, gradient, master, activation, operand, wire
    Precision.FP32: (4, 4, 0, 4, 4, 4),
    Precision.FP16: (2, 2, 8, 2, 2, 2),  # master weight and an fp32 copy of the gradient
    Precision.BF16: (2, 4, 4, 2, 2, 4),  # gradients accumulate and travel in fp32
    Precision.FP8: (4, 4, 4, 2, 1, 4),  # bf16 weight, cached FP8 copy and its transpose
}
_MOMENTS: dict[Optimizer, tuple[float, float]] = {  # (matrices, vocabulary)
    Optimizer.ADAMW: (8, 8),
    Optimizer.ADAMW_8BIT: (2 + 8 / 256, 2 + 8 / 256),  # two of a byte, and their scales
    Optimizer.SGD: (4, 4),
    Optimizer.ADAFACTOR: (0, 0),  # factored second moment: O(rows + columns), no first
    Optimizer.MUON: (4, 8),  # momentum of matrices; the vocabulary stays with Adam
}


class Tuning(NamedTuple):
    """What of a run is trained, and what of it the host keeps; numbers or columns (n,), flags 1 or 0."""

    rank: Number = 0.0
    """Of the adapters; 0: all weights are trained."""
    query_value: Number = 0.0
    """Whether projections of queries and values have adapters; so, too, the next two."""
    key_output: Number = 0.0
    block: Number = 0.0
    frozen: Number = 0.0
    """Bytes that a number of the layers' frozen matrices is kept in."""
    quantized: Number = 0.0
    """Whether that is less than what they are computed with."""
    scales: Number = 0.0
    """Bytes of the scales among them, which bitsandbytes keeps beside the weight: nobody shards them."""
    outside: Number = 0.0
    """Bytes of a frozen number of embeddings, norms and the output layer."""
    optimizer_host: Number = 0.0
    """Whether the host keeps gradients and optimizer states, and steps."""
    optimizer_paged: Number = 0.0
    """Whether the states are paged out between two steps."""
    weights_host: Number = 0.0
    activations_host: Number = 0.0

    @property
    def adapted(self) -> bool:
        """Whether any of the runs trains adapters."""
        return bool(np.any(self.rank))

    @property
    def offloads(self) -> bool:
        """Whether any of the runs keeps something in the host's memory."""
        return any(np.any(flag) for flag in self.places)

    @property
    def places(self) -> tuple[Number, ...]:
        """All flags that say what the host keeps."""
        return self.optimizer_host, self.optimizer_paged, self.weights_host, self.activations_host

    @property
    def unusual(self) -> NDArray[np.bool_]:
        """Which of the runs train adapters or keep something on the host."""
        found: NDArray[np.bool_] = np.logical_or.reduce([np.asarray(each) > 0 for each in (self.rank, *self.places)])
        return found


FULL_TRAINING = Tuning()


class Work(NamedTuple):
    """A training run in numbers; fields are numbers, or columns (n,) with a run a row."""

    shape: ModelShape
    sequence: Number
    batch: Number
    """Sequences per optimizer step, over all ranks."""
    format: Format
    tuning: Tuning = FULL_TRAINING


def recompute_code(recompute: Recompute) -> int:
    """NONE, SELECTIVE or FULL: how much is computed again, as an order."""
    return _RECOMPUTE.index(recompute)


class PlanColumns(NamedTuple):
    """Columns of shape (n,) or (1,), one row a plan; the names are those of `ParallelPlan`."""

    data: Array
    tensor: Array
    pipeline: Array
    virtual: Array
    context: Array
    expert: Array
    micro_batch: Array
    zero_stage: Array
    shard: Array
    """Ranks that share one copy of what the ZeRO stage shards; 0: all that hold the same parameters."""
    recompute: Array
    """NONE, SELECTIVE or FULL."""
    sequence_parallel: Array
    """1 where norms and residuals are divided by the tensor degree as well; 0 in frameworks before 2022."""

    @property
    def gpus(self) -> Array:
        return self.data * self.tensor * self.pipeline * self.context

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> PlanColumns:
        """The plans of these rows."""
        return PlanColumns(*(column[rows] for column in self))

    def values(self) -> list[ParallelPlan]:
        """All rows as values."""
        degrees = (self.data, self.tensor, self.pipeline, self.virtual, self.context, self.expert)
        whole = [
            column.astype(np.int64).tolist() for column in (*degrees, self.micro_batch, self.zero_stage, self.shard)
        ]
        again = [_RECOMPUTE[int(code)] for code in self.recompute]
        return [ParallelPlan(*row) for row in zip(*whole, again, strict=True)]

    def plan(self, row: int) -> ParallelPlan:
        """One row as a value."""
        return self.take(np.array([row])).values()[0]


def columns(plans: Sequence[ParallelPlan]) -> PlanColumns:
    """Columns of the given plans; sequence parallelism is on, as our launchers set it."""
    rows = [
        (
            *(p.data, p.tensor, p.pipeline, p.virtual, p.context, p.expert, p.micro_batch, p.zero_stage, p.shard),
            *(recompute_code(p.recompute), 1),
        )
        for p in plans
    ]
    table = np.array(rows, dtype=np.float64).reshape(-1, len(PlanColumns._fields))
    return PlanColumns(*(np.ascontiguousarray(column) for column in table.T))


def format_of(precision: Precision, optimizer: Optimizer = Optimizer.ADAMW) -> Format:
    """Bytes per number under mixed precision with this compute format (Megatron-LM, dist_optimizer.md)."""
    weight, gradient, master, activation, operand, wire = _FORMAT[precision]
    return Format(weight, gradient, master, *_MOMENTS[optimizer], activation, operand, wire)


QUANTIZED_BYTES = {
    Quantization.INT8: 1.0,
    Quantization.NF4: 0.5 + 4 / 64,
    Quantization.NF4_DOUBLE: 0.5 + 1 / 64 + 4 / (64 * 256),
}
"""Of one number with its share of the scales (Dettmers et al. 2023, arXiv 2305.14314, section 3). LLM.int8() has a
scale per row, which thousands of numbers share."""

_TARGETS = {  # query and value, key and output, block
    AdapterTargets.QUERY_VALUE: (1, 0, 0),
    AdapterTargets.ATTENTION: (1, 1, 0),
    AdapterTargets.ALL_LINEAR: (1, 1, 1),
}


def tuning_of(form: Format, adapters: Adapters | UnsetType = UNSET, offload: Offload | UnsetType = UNSET) -> Tuning:
    """What is trained and what the host keeps, in numbers, of a run with numbers of this format."""
    kept = Offload() if offload is UNSET else offload
    places = (
        float(kept.optimizer is OptimizerOffload.HOST),
        float(kept.optimizer is OptimizerOffload.PAGED),
        float(kept.weights),
        float(kept.activations),
    )
    if adapters is UNSET:
        return Tuning(0, 0, 0, 0, 0, 0, 0, 0, *places)
    targets = _TARGETS[adapters.targets]
    if adapters.quantization is Quantization.NONE:
        # Copies in FP8 for the products lie beside frozen weights as beside others.
        copied = bool(np.all(np.less(form.operand, form.activation)))
        frozen = form.weight if copied else form.activation
        return Tuning(adapters.rank, *targets, frozen, 0, 0, form.activation, *places)
    narrow = QUANTIZED_BYTES[adapters.quantization]
    scales = narrow % 0.5  # numbers themselves take half bytes
    return Tuning(adapters.rank, *targets, narrow, 1, scales, form.activation, *places)


@lru_cache(maxsize=1024)
def work(model: ModelSpec, training: TrainingSpec) -> Work:
    """One job in numbers."""
    form = format_of(training.precision, training.optimizer)
    tuning = tuning_of(form, training.adapters, training.offload)
    return Work(shapes.of(model), training.sequence_length, training.global_batch_size, form, tuning)


def stack(runs: Sequence[Work]) -> Work:
    """Many jobs as columns of shape (n,)."""
    sequence, batch = np.array([(run.sequence, run.batch) for run in runs], dtype=np.float64).reshape(-1, 2).T
    formats = np.array([run.format for run in runs], dtype=np.float64).reshape(-1, len(Format._fields)).T
    tunings = np.array([run.tuning for run in runs], dtype=np.float64).reshape(-1, len(Tuning._fields)).T
    return Work(shapes.stack([run.shape for run in runs]), sequence, batch, Format(*formats), Tuning(*tunings))


def take(runs: Work, rows: NDArray[np.int64] | NDArray[np.bool_]) -> Work:
    """These jobs of many."""

    def taken(column: Number) -> Array:
        found: Array = np.asarray(column, dtype=np.float64)[rows]
        return found

    form = Format(*(taken(column) for column in runs.format))
    tuning = Tuning(*(taken(column) for column in runs.tuning))
    shape = ModelShape(*(taken(column) for column in runs.shape))
    return Work(shape, taken(runs.sequence), taken(runs.batch), form, tuning)
