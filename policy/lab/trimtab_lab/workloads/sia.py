"""Workloads of the Sia artifact (Jayaram Subramanya et al., SOSP'23), siasosp23/artifacts.

`name,time,application,num_replicas,batch_size` and sometimes `category`. How long a job takes is not in the file: the
measured profile of its application says. GPUs and batch are what rigid schedulers use and others may ignore.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trimtab_lab.workloads.table import Schema, TraceReport, load, rounded_up
from trimtab_lab.workloads.trace import Trace

CATEGORIES = ("adaptive", "scale-gpus", "rigid")


def read_sia(path: Path, skip_bad: bool) -> tuple[Trace, TraceReport]:
    """Run times are NaN; the clock of the file is kept, since rounds start at its zero."""
    table = load(path, skip_bad, SCHEMA.columns)
    batch = table.number("batch_size")
    table.refuse(batch < 1, "batch_size", "is below 1", "a step needs at least one sample")
    category = table.coded("category")
    known = np.isin(category.codes, [i for i, text in enumerate(category.values) if text in ("", *CATEGORIES)])
    table.refuse(~known, "category", "is no category", f"write {', '.join(CATEGORIES)} or nothing")
    table.words("application")
    return table.finish(
        SCHEMA.name,
        name=table.words("name"),
        submitted=table.number("time"),
        gpus=table.gpus(table.number("num_replicas"), "num_replicas", cpu_jobs=False),
        application=table.coded("application"),
        batch_size=rounded_up(batch),
        category=category,
    )


SCHEMA = Schema(
    "sia",
    "workload of the Sia artifact (SOSP'23)",
    ("name", "time", "application", "num_replicas", "batch_size"),
    read_sia,
)
