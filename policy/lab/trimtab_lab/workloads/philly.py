"""Philly (Jeon et al., ATC'19), in two forms.

`cluster_job_log`: the JSON that Microsoft published (msr-fiddle/philly-traces, schema in its README), a job per entry
with its scheduling attempts. The run time is the sum of all attempts: what was lost to failures was run, too; GPUs are
those of the largest attempt. Attempts whose start or end the log lost are left out of the sum, jobs without any other
attempt or still running at the end are left out. Times are local without offset: attempts across the change of
5 November 2017 seem an hour shorter than they were, and one that seems to end before it began is left out like those.

The CSV that the authors of Pollux made of it (`timestamp,duration,num_gpus,gpu_time,cluster`; 82,247 of its 117,325
jobs, 93 % of them on one GPU), as it comes with the artifacts of Pollux and Sia.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct

from trimtab_lab.workloads.table import Schema, TraceReport, TraceTable, load, seconds_of
from trimtab_lab.workloads.textfile import FileError, open_text
from trimtab_lab.workloads.trace import Trace

_FIELDS = ("jobid", "submitted_time", "gpus", "seconds", "vc", "status", "user")


class _Machine(Struct):
    gpus: list[str]


class _Attempt(Struct):
    start_time: str | None
    end_time: str | None
    detail: list[_Machine]


class _PhillyAttempt(Struct):
    status: str
    vc: str
    jobid: str
    attempts: list[_Attempt]
    submitted_time: str | None
    user: str = ""


def read_log(path: Path, skip_bad: bool) -> tuple[Trace, TraceReport]:
    """Queue is the virtual cluster; the first submission is time 0. Rows are the entries of the log, counted from 1."""
    entries = _entries(path)
    begun, ended = (
        seconds_of([getattr(each, field) or "" for entry in entries for each in entry.attempts])
        for field in ("start_time", "end_time")
    )
    table = TraceTable(path, _FIELDS, (_row(entry) for entry in entries), 1, skip_bad)
    lasted = np.nan_to_num(ended - begun)
    counts = [len(entry.attempts) for entry in entries]
    of_job = np.repeat(np.arange(len(entries)), counts)
    seconds = np.asarray(np.bincount(of_job, np.maximum(lasted, 0.0), len(entries)), dtype=np.float64)
    last_open = np.array(
        [bool(each.attempts) and not _said(each.attempts[-1].end_time) for each in entries], dtype=np.bool_
    )
    table.leave_out(last_open, "still running when the log was taken")
    table.leave_out(seconds == 0, "no attempt of known length")
    return table.finish(
        LOG.name,
        name=table.words("jobid"),
        submitted=table.times("submitted_time"),
        from_zero=True,
        gpus=table.gpus(table.number("gpus"), "gpus", cpu_jobs=True),
        seconds=seconds,
        queue=table.coded("vc"),
        status=table.coded("status"),
    )


def read_csv(path: Path, skip_bad: bool) -> tuple[Trace, TraceReport]:
    """Jobs have no names in it and get `philly-N`, N their row from 0; the first submission is time 0."""
    table = load(path, skip_bad, CSV.columns)
    return table.finish(
        CSV.name,
        name=[f"philly-{number}" for number in range(len(table))],
        submitted=table.times("timestamp"),
        from_zero=True,
        gpus=table.gpus(table.number("num_gpus"), "num_gpus", cpu_jobs=False),
        seconds=table.number("duration"),
        queue=table.coded("cluster"),
    )


def _entries(path: Path) -> list[_PhillyAttempt]:
    with open_text(path) as lines:
        text = lines.read()
    try:
        return msgspec.json.decode(text, type=list[_PhillyAttempt])
    except msgspec.ValidationError as error:
        at = re.search(r"\$\[(\d+)\]\.?(\S*)", str(error))
        number, field = (int(at[1]) + 1, at[2].rstrip("`") or "entry") if at else (1, "file")
        what = str(error).partition(" - at")[0]
        raise FileError(path, number, field, f"{what}: the log's README says what an entry holds") from error
    except msgspec.DecodeError as error:
        raise FileError(path, 1, "file", f"is no intact JSON ({error}): fetch it again if it was cut off") from error


def _row(entry: _PhillyAttempt) -> list[str]:
    gpus = max((sum(len(machine.gpus) for machine in each.detail) for each in entry.attempts), default=0)
    submitted = entry.submitted_time if _said(entry.submitted_time) else ""
    return [entry.jobid, submitted or "", str(gpus), "", entry.vc, entry.status, entry.user]


def _said(time: str | None) -> bool:
    """Whether a time is there: the log writes both null and "None"."""
    return time not in (None, "", "None")


LOG = Schema("philly", "cluster_job_log, the JSON of Philly (ATC'19)", (), read_log)
CSV = Schema("philly-csv", "CSV of Philly by the authors of Pollux", ("timestamp", "duration", "num_gpus"), read_csv)
