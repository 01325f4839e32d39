"""The Standard Workload Format 2.2 of the Parallel Workloads Archive (Feitelson), processors taken as GPUs.

18 fields a line, -1 for what is not known, comments after `;`. Lines of status 2 to 4 are parts of jobs whose sum has a
line of its own; they are left out, as are jobs that never ran (no run time, or cancelled after 0 s).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trimtab_lab.workloads.table import Schema, TraceReport, TraceTable
from trimtab_lab.workloads.textfile import open_text
from trimtab_lab.workloads.trace import Trace

FIELDS = (
    "job number", "submit time", "wait time", "run time", "allocated processors", "average CPU time", "used memory",
    "requested processors", "requested time", "requested memory", "status", "user", "group", "application", "queue",
    "partition", "preceding job", "think time",
)  # fmt: skip
STATUS = {"0": "failed", "1": "completed", "5": "cancelled", "-1": ""}
_PARTS, _CANCELLED = (2, 3, 4), 5


def read_swf(path: Path, skip_bad: bool) -> tuple[Trace, TraceReport]:
    """GPUs are the requested processors (allocated ones where those are unknown); the clock of the file is kept."""
    with open_text(path) as lines:
        fields = ([] if line.lstrip().startswith(";") else line.split() for line in lines)
        table = TraceTable(path, FIELDS, fields, 1, skip_bad)
    ran = table.number("run time", optional=True, unknown=-1)
    status = table.number("status", optional=True, unknown=-1)
    table.leave_out(np.isin(status, _PARTS), "part of a job that has a line of its own")
    table.leave_out(np.isnan(ran) | ((ran == 0) & (status == _CANCELLED)), "never ran")
    asked = table.number("requested processors", optional=True, unknown=-1)
    given = table.number("allocated processors", optional=True, unknown=-1)
    gpus = np.where(asked > 0, asked, np.nan_to_num(given))
    estimate = table.number("requested time", optional=True, unknown=-1)
    return table.finish(
        SCHEMA.name,
        name=table.words("job number"),
        submitted=table.number("submit time"),
        gpus=table.gpus(gpus, "requested processors", cpu_jobs=False),
        seconds=ran,
        queue=table.coded("queue").map(lambda text: "" if text == "-1" else f"queue-{text}"),
        status=table.coded("status").map(lambda text: STATUS.get(text, text)),
        application=table.coded("application").map(lambda text: "" if text == "-1" else f"application-{text}"),
        estimate=np.where(estimate > 0, estimate, np.nan),
    )


SCHEMA = Schema("swf", "Standard Workload Format, processors as GPUs", (), read_swf)
