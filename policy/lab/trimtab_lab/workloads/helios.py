"""Helios (Hu et al., SC'21): `cluster_log.csv` of the four SenseTime clusters, S-Lab-System-Group/HeliosData.

Schema: its README. The run time is `end_time` - `start_time`, which is what `duration` says. Jobs without a start were
cancelled in the queue and are left out, as are CPU jobs. GPU types are not in the trace.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trimtab_lab.workloads.table import Schema, TraceReport, TraceTable, load
from trimtab_lab.workloads.trace import FloatArray, Trace


def read_helios(path: Path, skip_bad: bool) -> tuple[Trace, TraceReport]:
    """Queue is the virtual cluster; the first submission is time 0."""
    return jobs(load(path, skip_bad, SCHEMA.columns), SCHEMA.name, queue="vc")


def jobs(table: TraceTable, schema: str, **coded: str) -> tuple[Trace, TraceReport]:
    """What Acme's tables, made by the same people, have in common; `coded` names the columns of further fields."""
    gpus = table.gpus(table.number("gpu_num"), "gpu_num", cpu_jobs=True)
    return table.finish(
        schema,
        name=table.words("job_id"),
        submitted=table.times("submit_time"),
        from_zero=True,
        gpus=gpus,
        seconds=run_times(table),
        status=table.coded("state"),
        **{field: table.coded(column) for field, column in coded.items()},
    )


def run_times(table: TraceTable) -> FloatArray:
    """`end_time` - `start_time`, where both are known; the other jobs are left out."""
    started, ended = table.times("start_time", optional=True), table.times("end_time", optional=True)
    table.leave_out(np.isnan(ended - started), "never started, or no end known")
    table.refuse(ended < started, "end_time", "is before start_time", "check the two")
    return ended - started


SCHEMA = Schema(
    "helios",
    "cluster_log.csv of Helios (SC'21)",
    ("job_id", "user", "vc", "gpu_num", "state", "submit_time", "start_time", "end_time"),
    read_helios,
)
