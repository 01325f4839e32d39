"""Traces of other clusters: rows become jobs with finite figures, or a line says which row is wrong."""

from __future__ import annotations

import json

import numpy as np
from tests.fuzz.draw import Draw, Json
from tests.fuzz.target import Target
from tests.fuzz.targets.files import written

from trimtab_lab import workloads
from trimtab_lab.workloads import SCHEMAS, pai, swf
from trimtab_lab.workloads.textfile import FileError

CELLS = (
    *("1", "a", "2023-03-01 00:18:22+08:00", "3600", "0", "8", "0.5", "", "nan", "inf", "-1", "1e15", "1e308", "V100"),
    *("A100|T4", "x|", "2017-10-08 03:44:17", "9999-12-31 23:59:59", "0001-01-01 00:00:00", "2023-13-01 00:00:00"),
    *("292277026597-01-01", "NaT", "now", '"', "a\nb", "1_000", "٣", "COMPLETED", "j1", "j2", "NaT000000000000000"),
    *("2023-03-01 00:18:22+99:99", "\x00", "1e-320", "None", "today"),
)
_EXTRA = ("user", "status", "queue", "gpu_type", "num_inst", "estimate", "vc", "state")
_ENTRY: Json = {
    "status": "Pass", "vc": "v", "jobid": "application_1", "submitted_time": "2017-10-09 07:02:42", "user": "u",
    "attempts": [{"start_time": "2017-10-09 07:02:43", "end_time": "2017-10-09 08:02:43",
                  "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}]}],
}  # fmt: skip


def _table(draw: Draw, columns: tuple[str, ...], *, titled: bool = True, separator: str = ",") -> str:
    usual = {name: draw.pick(CELLS) for name in columns}
    rows = [columns] if titled else []
    for number in range(draw.below(4)):
        row = [draw.pick(CELLS) if draw.chance(3) else usual[name] for name in columns]
        row[0] = f"j{number}" if draw.chance(2) else row[0]
        rows.append(tuple(row[: len(row) - draw.chance(12)]))
    return "\n".join(separator.join(row) for row in rows) + draw.pick(("\n", "", "\n\n", "\r\n"))


def _content(draw: Draw, schema: str) -> bytes:
    columns = SCHEMAS[schema].columns
    if schema == "philly":
        entries = [draw.tweaked(json.loads(json.dumps(_ENTRY | {"jobid": f"j{n}"}))) for n in range(1 + draw.below(3))]
        for entry in entries:
            if draw.chance(3):
                entry["submitted_time"] = draw.pick((None, *CELLS))
        return draw.encoded(draw.spoiled(entries))
    if not columns:
        return _table(draw, swf.FIELDS, titled=False, separator=" ").encode("utf-8", "replace")
    extra = tuple(name for name in _EXTRA if draw.chance(4) and name not in columns)
    return _table(draw, columns + extra).encode("utf-8", "replace")


def run(data: bytes) -> None:
    """One file of any format, with or without its name told."""
    draw = Draw(data)
    schema = draw.pick(list(SCHEMAS))
    raw = draw.rest() if draw.chance(16) else _content(draw, schema)
    name = f"{pai.JOBS}.csv" if schema == pai.TABLES.name else draw.pick(("t.csv", "t.csv", "t.csv", "t.csv.gz"))
    if schema == pai.TABLES.name:
        written(f"{pai.TASKS}.csv", _table(draw, pai.TASK_COLUMNS, titled=bool(draw.byte() & 1)).encode())
    path = written(name, raw)
    try:
        found, report = workloads.read_trace(path, draw.pick((schema, None)), skip_bad=bool(draw.byte() & 1))
    except FileError as error:
        assert "\n" not in str(error).replace("\\n", ""), error
        return
    assert len(found) == report.jobs > 0
    assert np.isfinite(found.submitted).all()
    known = found.seconds[~np.isnan(found.seconds)]  # Sia's jobs have none: theirs follow from their GPUs
    assert np.isfinite(known).all()
    assert (known >= 1).all()
    assert ((found.gpus >= 1) & (found.gpus <= 1_000_000)).all()
    assert report.lines()


TARGET = Target("traces of other clusters", run)
