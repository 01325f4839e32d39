"""Acme (Hu et al., NSDI'24): `trace_seren.csv` and `trace_kalos.csv`, InternLM/AcmeTrace.

Schema: its README. The run time is `end_time` - `start_time`: the column `duration` counts from submission in Kalos,
against the README (its two example rows: 18 s and 82 s, of which 10 s and 12 s in the queue). Both clusters have A100
of 80 GB, eight to a node. CPU jobs and jobs that never started are left out. Virtual clusters are not in the trace:
the queue is the user.
"""

from __future__ import annotations

from pathlib import Path

from trimtab_lab.workloads import helios
from trimtab_lab.workloads.table import Schema, TraceReport, load
from trimtab_lab.workloads.trace import Trace


def read_acme(path: Path, skip_bad: bool) -> tuple[Trace, TraceReport]:
    """Application is the type of work (Pretrain, SFT, Evaluation, ...); the first submission is time 0."""
    return helios.jobs(load(path, skip_bad, SCHEMA.columns), SCHEMA.name, queue="user", application="type")


SCHEMA = Schema(
    "acme",
    "trace_seren.csv or trace_kalos.csv of Acme (NSDI'24)",
    ("job_id", "user", "node_num", "gpu_num", "type", "state", "submit_time", "start_time", "end_time"),
    read_acme,
)
