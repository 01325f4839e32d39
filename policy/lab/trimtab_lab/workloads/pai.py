"""PAI (Weng et al., NSDI'22): Alibaba's cluster-trace-gpu-v2020, in two forms.

`pai_job_table.csv` beside `pai_task_table.csv` (schema: README; published without a header line): a job's GPUs are
the sum of instances x `plan_gpu` % over its tasks, rounded up, its run time from the first start of a task to the job's
end, its types those that its GPU tasks were given (they are where the run time holds).
Jobs without an end (running, waiting) and CPU jobs are left out.

The merged CSV of its simulator (`pai_job_duration_estimate_100K.csv` and alike): `num_gpu` of each of `num_inst`
instances (of the whole job where that column is missing, as in the simulator), with times in seconds.
"""

from __future__ import annotations

import csv
from itertools import chain
from pathlib import Path

import numpy as np

from trimtab_lab.workloads.table import Schema, TraceReport, TraceTable, load
from trimtab_lab.workloads.textfile import FileError, open_text
from trimtab_lab.workloads.trace import FloatArray, IntArray, Trace

JOB_COLUMNS = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
TASK_COLUMNS = (
    "job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu", "plan_mem", "plan_gpu",
    "gpu_type",
)  # fmt: skip
JOBS, TASKS = "pai_job_table", "pai_task_table"


def read_tables(path: Path, skip_bad: bool) -> tuple[Trace, TraceReport]:
    """Queue is the user; the first submission is time 0."""
    if not (beside := _task_table(path)):
        raise FileError(path, 1, "file", f"must be called {JOBS}.csv, with {TASKS}.csv beside it")
    jobs, tasks = _load(path, JOB_COLUMNS, skip_bad), _load(beside, TASK_COLUMNS, skip_bad)
    names = jobs.words("job_name")
    number = {name: row for row, name in enumerate(names)}
    of_job = np.array([number.get(name, -1) for name in tasks.text("job_name")], dtype=np.int64)
    gpus = np.nan_to_num(tasks.number("plan_gpu", optional=True)) * np.nan_to_num(tasks.number("inst_num")) / 100
    bad = of_job[~tasks.usable & (of_job >= 0)]
    jobs.leave_out(np.bincount(bad, minlength=len(jobs)) > 0, "has a task that could not be read")
    tasks.leave_out((gpus == 0) | (of_job < 0), "no GPU task of a job")
    submitted, ended = jobs.number("start_time"), jobs.number("end_time", optional=True, unknown=0)
    jobs.leave_out(np.isnan(ended), "not finished")
    jobs.refuse(ended < submitted, "end_time", "is before start_time", "check the two")
    total = np.asarray(np.bincount(of_job[tasks.usable], gpus[tasks.usable], len(jobs)), dtype=np.float64)
    begun = np.clip(_first_start(tasks, of_job, len(jobs)), submitted, ended)
    return jobs.finish(
        TABLES.name,
        name=names,
        submitted=submitted,
        from_zero=True,
        gpus=jobs.gpus(total, "plan_gpu", cpu_jobs=True),
        seconds=ended - begun,
        gpu_types=jobs.gpu_types("gpu_type", _kinds(tasks, of_job, len(jobs))),
        queue=jobs.coded("user"),
        status=jobs.coded("status"),
    )


def read_merged(path: Path, skip_bad: bool) -> tuple[Trace, TraceReport]:
    """Queue is the user; the first submission is time 0."""
    table = load(path, skip_bad, MERGED.columns)
    each, copies = table.number("num_gpu", optional=True), table.number("num_inst", optional=True)
    wanted = np.nan_to_num(each) * np.nan_to_num(copies, nan=1.0)
    return table.finish(
        MERGED.name,
        name=table.words("job_id"),
        submitted=table.number("submit_time"),
        from_zero=True,
        gpus=table.gpus(wanted, "num_gpu", cpu_jobs=True),
        seconds=table.number("duration"),
        gpu_types=table.gpu_types("gpu_type"),
        queue=table.coded("user"),
        status=table.coded("status"),
    )


def _load(path: Path, columns: tuple[str, ...], skip_bad: bool) -> TraceTable:
    """One of the tables, with or without its header line."""
    with open_text(path) as lines:
        rows = csv.reader(lines)
        first = next(rows, [])
        titled = tuple(name.strip() for name in first) == columns
        return TraceTable(path, columns, rows if titled else chain([first], rows), 2 if titled else 1, skip_bad)


def _task_table(path: Path) -> Path | None:
    return path.with_name(path.name.replace(JOBS, TASKS)) if JOBS in path.name else None


def _first_start(tasks: TraceTable, of_job: IntArray, count: int) -> FloatArray:
    """Per job, when the first of its GPU tasks started; infinite if none is known to have."""
    started = tasks.number("start_time", optional=True, unknown=0)
    known = tasks.usable & ~np.isnan(started)
    first = np.full(count, np.inf)
    np.minimum.at(first, of_job[known], started[known])
    return np.where(np.isinf(first), 0.0, first)


def _kinds(tasks: TraceTable, of_job: IntArray, count: int) -> list[str]:
    """Per job, the types of its GPU tasks as `A|B`."""
    found = [""] * count
    kinds = tasks.text("gpu_type")
    for row in np.flatnonzero(tasks.usable).tolist():
        job, kind = of_job[row], kinds[row]
        if kind not in ("", "CPU", found[job]):
            found[job] = f"{found[job]}|{kind}" if found[job] else kind
    return found


TABLES = Schema(
    "pai", "pai_job_table.csv and pai_task_table.csv of Alibaba 2020 (NSDI'22)", JOB_COLUMNS, read_tables, _task_table
)
MERGED = Schema(
    "pai-merged", "merged CSV of the PAI simulator", ("job_id", "num_gpu", "duration", "submit_time"), read_merged
)
