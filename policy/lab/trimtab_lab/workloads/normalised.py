"""Our own schema: one CSV for any trace, clocks in seconds.

Columns `job_id,submit_time_s,n_gpus,duration_s`, and where known `gpu_type` (several as `A|B`), `user_vc`, `status`,
`job_class`, `deadline_s` (seconds after submission), `estimate_s` (run time that the user expected). An empty text
means that the source does not say.
"""

from __future__ import annotations

from pathlib import Path

from trimtab_lab.workloads.table import Schema, TraceReport, load
from trimtab_lab.workloads.trace import Trace


def read_normalised(path: Path, skip_bad: bool) -> tuple[Trace, TraceReport]:
    """See the module; the clock of the file is kept."""
    table = load(path, skip_bad, SCHEMA.columns)
    submitted = table.number("submit_time_s")
    return table.finish(
        SCHEMA.name,
        name=table.words("job_id"),
        submitted=submitted,
        gpus=table.gpus(table.number("n_gpus"), "n_gpus", cpu_jobs=False),
        seconds=table.number("duration_s"),
        gpu_types=table.gpu_types("gpu_type"),
        queue=table.coded("user_vc"),
        status=table.coded("status"),
        application=table.coded("job_class"),
        deadline=submitted + table.number("deadline_s", optional=True),
        estimate=table.number("estimate_s", optional=True),
    )


SCHEMA = Schema(
    "normalised", "our own CSV for any trace", ("job_id", "submit_time_s", "n_gpus", "duration_s"), read_normalised
)
