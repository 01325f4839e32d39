"""openb (Weng et al., ATC'23): `openb_pod_list_*.csv` of Alibaba's cluster-trace-gpu-v2023.

Schema: its README. A pod of one GPU may ask for a part of it (`gpu_milli`): rounded up, since GPUs are not shared here.
The run time is deletion - scheduling; pods that were never scheduled have none and are left out, as are CPU pods. Pods
that still ran at the end of the trace end with it. `gpu_spec` is what a pod may run on.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trimtab_lab.workloads.table import Schema, TraceReport, load
from trimtab_lab.workloads.trace import Trace


def read_openb(path: Path, skip_bad: bool) -> tuple[Trace, TraceReport]:
    """Queue is the quality of service; the clock of the file is kept."""
    table = load(path, skip_bad, SCHEMA.columns)
    whole, milli = table.number("num_gpu"), table.number("gpu_milli")
    gpus = table.gpus(np.where(whole == 1, milli / 1000, whole), "num_gpu", cpu_jobs=True)
    scheduled = table.number("scheduled_time", optional=True)
    table.leave_out(np.isnan(scheduled), "never scheduled")
    deleted = table.number("deletion_time")
    table.refuse(deleted < scheduled, "deletion_time", "is before scheduled_time", "check the two")
    return table.finish(
        SCHEMA.name,
        name=table.words("name"),
        submitted=table.number("creation_time"),
        gpus=gpus,
        seconds=deleted - scheduled,
        gpu_types=table.gpu_types("gpu_spec"),
        queue=table.coded("qos"),
        status=table.coded("pod_phase"),
    )


SCHEMA = Schema(
    "openb",
    "openb_pod_list_*.csv of Alibaba 2023 (ATC'23)",
    ("name", "num_gpu", "gpu_milli", "qos", "pod_phase", "creation_time", "deletion_time", "scheduled_time"),
    read_openb,
)
