"""Published or own measurements of training runs, read from a table and put in the model's terms.

The table is CSV; a row is a run. Needed columns: source_kind, gpu_type, n_gpus, layers, hidden, heads, seq_len,
global_batch and one of d_step_time_s, step_time_s, tokens_per_s_per_gpu. Every other column of `COLUMNS` may be absent
or empty and has the default of its framework. Nothing is dropped in silence: `Measurements.skipped` says which rows
could not be used, and why.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab_policy.perf import measurements, memory, plan_arrays
from trimtab_policy.perf.measurements import UNSTATED, MeasuredRow, MeasurementError
from trimtab_policy.perf.plan_arrays import FULL, NONE, Array, PlanColumns, Work
from trimtab_policy.specs import GpuSpec, Precision

__all__ = ["COLUMNS", "NEEDED", "MeasurementError", "Measurements", "collect", "read_measured"]

NEEDED = ("source_kind", "gpu_type", "n_gpus", "layers", "hidden", "heads", "seq_len", "global_batch")
COLUMNS = (
    *NEEDED,
    *("d_step_time_s", "step_time_s", "tokens_per_s_per_gpu", "mem_gb_per_gpu", "group", "model", "precision"),
    *("gpus_per_node", "inter_bw_GBps", "kv_heads", "ffn_hidden", "glu", "tied_emb", "vocab", "n_experts", "topk"),
    *measurements.ARCHITECTURE,
    *(
        "micro_batch",
        "tp",
        "sp",
        "pp",
        "vpp",
        "cp",
        "ep",
        "dp",
        "zero_or_fsdp",
        "act_recompute",
        "framework",
        "cuda_graphs",
    ),
    *("date", "notes", "noise_pct", "usable_dense", "exclude_reason"),
    *("lora_rank", "lora_targets", "quantization", "optimizer", "offload", "mem_reading"),
)


class Measurements(NamedTuple):
    """Usable rows as columns of shape (n,)."""

    names: list[str]
    sources: NDArray[np.str_]
    groups: NDArray[np.str_]
    """Rows of one group share model and GPU family: cross-validation leaves out whole groups."""
    jobs: NDArray[np.str_]
    """Rows of one job differ only in their plan: what a choice of plans is judged on."""
    gpus: list[GpuSpec]
    gpu_names: NDArray[np.str_]
    gpus_per_node: Array
    precisions: list[Precision]
    recipes: NDArray[np.str_]
    """How low-precision operands are scaled: `fp8`, `fp8-rowwise`, `mxfp8`, `nvfp4`; empty in 16 and 32 bit."""
    software: NDArray[np.str_]
    captured: Array
    """1 where CUDA graphs launch whole layers."""
    ages: Array
    """Years since the GPU generation was announced; NaN where no date is stated."""
    work: Work
    plans: PlanColumns
    seconds: Array
    """Measured time of one step."""
    memory: Array
    """Published bytes of one GPU, NaN where there are none."""
    readings: NDArray[np.str_]
    """What these bytes are: `allocated` or `reserved` by PyTorch, or the `process`'s as nvidia-smi shows them."""
    noise: Array
    """Standard deviation of the measurement that its source admits, as a fraction; 0 where it says nothing."""
    skipped: dict[str, str]
    """Row -> why it is not among these."""

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> Measurements:
        """These rows only."""
        index = np.arange(len(self.seconds))[rows]
        return self._replace(
            names=[self.names[i] for i in index],
            sources=self.sources[index],
            groups=self.groups[index],
            jobs=self.jobs[index],
            gpus=[self.gpus[i] for i in index],
            gpu_names=self.gpu_names[index],
            gpus_per_node=self.gpus_per_node[index],
            precisions=[self.precisions[i] for i in index],
            recipes=self.recipes[index],
            software=self.software[index],
            captured=self.captured[index],
            ages=self.ages[index],
            work=plan_arrays.take(self.work, index),
            plans=self.plans.take(index),
            seconds=self.seconds[index],
            memory=self.memory[index],
            readings=self.readings[index],
            noise=self.noise[index],
        )


def read_measured(*paths: Path) -> Measurements:
    """All usable rows of these tables. Raises MeasurementError when one lacks a needed column or a number is none."""
    return collect([row for path in paths for row in _rows(path)], ", ".join(map(str, paths)))


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            missing = [name for name in NEEDED if name not in (reader.fieldnames or ())]
            if missing:
                raise MeasurementError(f"{path}: no column {', '.join(missing)}")
            return list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise MeasurementError(f"{path}: {error}") from error


def collect(table: Sequence[Mapping[str, str]], where: str = "table", *, timed: bool = True) -> Measurements:
    """Usable rows of a table that is at hand already. Raises MeasurementError as `read` does.

    `timed`: rows without a step time are skipped; else they have NaN, for those who look at memory alone.
    """
    found: list[MeasuredRow] = []
    skipped: dict[str, str] = {}
    for number, cells in enumerate(table, start=2):
        name = cells.get("id") or f"line {number}"
        try:
            found.append(measurements.read_rows(name, measurements.Cells(cells, f"{where}, {name}"), timed=timed))
        except measurements.Unusable as reason:
            skipped[name if name not in skipped else f"{name} (line {number})"] = str(reason)
    plans = PlanColumns(
        *np.array([row.plan for row in found], dtype=np.float64).reshape(-1, len(PlanColumns._fields)).T
    )
    work = plan_arrays.stack([row.work for row in found])
    room = np.array([row.gpu.memory_bytes for row in found], dtype=np.float64)
    return Measurements(
        names=[row.name for row in found],
        sources=np.array([row.source for row in found]),
        groups=np.array([row.group for row in found]),
        jobs=np.array([row.job for row in found]),
        gpus=[row.gpu for row in found],
        gpu_names=np.array([row.gpu.name for row in found]),
        gpus_per_node=np.array([row.gpus_per_node for row in found]),
        precisions=[row.precision for row in found],
        recipes=np.array([row.recipe for row in found]),
        software=np.array([row.software for row in found]),
        captured=np.array([row.captured for row in found]),
        ages=np.array([row.age for row in found]),
        work=work,
        plans=_with_recompute(work, _with_micro_batch(work, plans, room), room),
        seconds=np.array([row.seconds for row in found]),
        memory=np.array([row.memory for row in found]),
        readings=np.array([row.reading for row in found]),
        noise=np.array([row.noise for row in found]),
        skipped=skipped,
    )


def _with_micro_batch(work: Work, plans: PlanColumns, room: Array) -> PlanColumns:
    """Micro-batches where they are not stated: 1 in a pipeline, else the largest of 1, 2, 4 that divides and fits."""
    unstated = plans.micro_batch == UNSTATED
    alone = unstated & (plans.pipeline == 1)
    chosen = np.where(unstated, 1.0, plans.micro_batch)
    for size in (2.0, 4.0):
        larger = plans._replace(micro_batch=np.where(alone, size, chosen), recompute=np.maximum(plans.recompute, NONE))
        fits = memory.footprint(work, larger).required <= room
        divides = work.batch % (plans.data * size) == 0
        chosen = np.where(alone & fits & divides, size, chosen)
    return plans._replace(micro_batch=chosen)


def _with_recompute(work: Work, plans: PlanColumns, room: Array) -> PlanColumns:
    """Recomputation where it is not stated: none, unless the run would not have fitted then."""
    unstated = plans.recompute == UNSTATED
    lightest = plans._replace(recompute=np.where(unstated, NONE, plans.recompute))
    tight = unstated & (memory.footprint(work, lightest).allocated > 1.5 * room)
    return lightest._replace(recompute=np.where(tight, FULL, lightest.recompute))
