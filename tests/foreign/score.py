"""`python -m tests.foreign.score [FOLDER]`: public job definitions against what a reader found in them, field by field.

A value that is stated counts as right where it is read the same; a value that is read although the file states none,
or another one, counts as wrong. What the reader computed himself (`derived`) is counted apart.
"""

from __future__ import annotations

import csv
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from trimtab.errors import UsageError
from trimtab.foreign.job import ForeignJob
from trimtab.foreign.read import Source, read

SAMPLES = Path(__file__).resolve().parents[3] / "shared" / "samples"
BY_COLUMN = {
    "total_gpus": "gpus",
    "nodes": "nodes",
    "gpus_per_node": "gpus_per_node",
    "gpu_type": "gpu_type",
    "tp": "tensor",
    "pp": "pipeline",
    "cp": "context",
    "ep": "expert",
    "dp": "data",
    "zero_or_fsdp": "zero_stage",
    "micro_batch": "micro_batch_size",
    "global_batch": "global_batch_size",
    "sequence_length": "sequence_length",
    "precision": "precision",
}
COLUMNS = ("model", *BY_COLUMN, "steps_or_tokens")
_DERIVED = {"total": "total_gpus", "gpn": "gpus_per_node", "gbs": "global_batch", "seq": "sequence_length"}


def value_of(job: ForeignJob, column: str) -> str:
    """What was read, in the terms of the index; empty for nothing."""
    if column == "model":
        model = job.fields["model"].value if "model" in job.fields else ""
        shape = [
            job.fields[name].value if name in job.fields else ""
            for name in ("layers", "hidden_size", "attention_heads")
        ]
        return f"{model} L{shape[0]} H{shape[1]} heads{shape[2]}".strip() if all(shape) else model
    if column == "steps_or_tokens":
        for field in ("steps", "samples", "tokens", "epochs"):
            if field in job.fields and field not in job.derived:
                return f"{field}={job.fields[field].value}"
        return ""
    field = BY_COLUMN[column]
    if field in job.fields:
        return job.fields[field].value
    if column == "zero_or_fsdp" and "sharding" in job.fields:
        return job.fields["sharding"].value
    differing = list(dict.fromkeys(run[field].value for run in job.runs if field in run))
    return ";".join(differing)


def same(column: str, read_as: str, truth: str, job: ForeignJob) -> bool:
    """Whether a value that was read is the one that the reader found."""
    if column == "model":
        return _same_model(read_as, truth)
    if column == "gpu_type":
        first = re.findall(r"[A-Za-z0-9]+", read_as)
        return bool(first) and first[0].lower() in truth.lower().replace(" ", "")
    if column == "zero_or_fsdp":
        stages = {"3": ("zero-3", "fsdp", "full_shard"), "1": ("zero-1",), "2": ("zero-2",), "0": ("zero-0", "none")}
        return any(sign in truth.lower() for sign in stages.get(read_as, (re.sub(r"\d$", "", read_as.lower()),)))
    if column == "precision":
        return read_as.lower() in truth.lower()
    if column == "steps_or_tokens":
        return read_as == truth or _amount(read_as, job) == _amount(truth, job)
    return ";".join(dict.fromkeys(truth.split(";"))) == read_as


def _amount(text: str, job: ForeignJob) -> float:
    unit, _, number = text.partition("=")
    length = job.fields["sequence_length"].value if "sequence_length" in job.fields else "1"
    try:
        return float(number) * {"samples": float(length), "tokens": 1.0, "steps": 1e-6, "epochs": 1e-9}[unit]
    except (KeyError, ValueError):
        return -1.0


def _same_model(read_as: str, truth: str) -> bool:
    shape = re.findall(r"\b(?:L|H|heads)(\d+)", truth)
    if shape:
        return re.findall(r"\b(?:L|H|heads)(\d+)", read_as)[: len(shape)] == shape
    plain = [re.sub(r"[^a-z0-9]", "", part.lower()) for part in (read_as, truth)]
    if plain[0] in plain[1] or re.sub(r"[^a-z0-9]", "", truth.lower().partition("(")[0]) in plain[0]:
        return True
    words = [word for word in re.findall(r"[a-z0-9]+", read_as.lower()) if len(word) > 4]
    return any(word in plain[1] for word in words[:1])


class Score:
    """Counts by column: right, missed, wrong, and right and wrong among what the reader computed."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.remarks: list[str] = []
        self.negatives: list[tuple[str, str]] = []
        self.positives_refused: list[str] = []

    def file(self, row: dict[str, str], text: str) -> None:
        """Read one file and compare."""
        try:
            job = read(Source(Path(row["file"]).name, text))
        except UsageError as error:
            job = ForeignJob("", "", "", {}, {}, "", (), (), (), refused=str(error))
        if row["model"] == "NONE":
            self.negatives.append((row["file"], job.refused))
            return
        if job.refused:
            self.positives_refused.append(f"{row['file']}: {job.refused}")
        derived = {_DERIVED.get(each.strip(), each.strip()) for each in row["derived"].split(",")}
        for column in COLUMNS:
            self._cell(row["file"], column, value_of(job, column), row[column], column in derived, job)

    def _cell(self, file: str, column: str, found: str, truth: str, derived: bool, job: ForeignJob) -> None:
        stated = truth not in ("?", "", "NONE")
        if stated and not found:
            outcome = "missed"
        elif not found:
            return
        else:
            outcome = "right" if stated and same(column, found, truth, job) else "wrong"
        if outcome != "right":
            self.remarks.append(
                f"{outcome:7}{' (derived)' if derived else ''} {file} {column}: read {found!r}, truth {truth!r}"
            )
        self.counts[column, f"{outcome} derived" if derived else outcome] += 1

    def total(self, outcome: str) -> int:
        """Of all columns."""
        return sum(number for (_, each), number in self.counts.items() if each == outcome)

    def stated_right(self) -> float:
        """Share of what is stated that was read right."""
        stated = sum(self.total(outcome) for outcome in ("right", "missed")) + self._stated_wrong()
        return self.total("right") / stated if stated else 1.0

    def _stated_wrong(self) -> int:
        return sum(
            "wrong" in remark and "truth '?'" not in remark and "(derived)" not in remark for remark in self.remarks
        )

    def wrong(self) -> float:
        """Share of all that was read, computed values among it, that is wrong."""
        wrong = self.total("wrong") + self.total("wrong derived")
        all_read = wrong + self.total("right") + self.total("right derived")
        return wrong / all_read if all_read else 0.0

    def lines(self) -> Iterator[str]:
        """A table for people."""
        outcomes = ("right", "missed", "wrong", "right derived", "missed derived", "wrong derived")
        yield f"{'field':<18}" + "".join(f"{outcome:>15}" for outcome in outcomes)
        for column in COLUMNS:
            yield f"{column:<18}" + "".join(f"{self.counts[column, outcome]:>15}" for outcome in outcomes)
        yield f"{'all':<18}" + "".join(f"{self.total(outcome):>15}" for outcome in outcomes)
        yield f"stated values read right: {self.stated_right():.1%}; values read wrong: {self.wrong():.1%}"
        refused = sum(bool(why) for _, why in self.negatives)
        yield f"no training of an LLM, and refused as such: {refused} of {len(self.negatives)}"
        yield f"training of an LLM, and refused: {len(self.positives_refused)}"


def score(folder: Path) -> Score:
    """Read all files of a folder with an INDEX.csv."""
    found = Score()
    with (folder / "INDEX.csv").open(newline="") as index:
        for row in csv.DictReader(index):
            found.file(row, (folder / row["file"]).read_text(errors="replace"))
    return found


if __name__ == "__main__":
    result = score(Path(sys.argv[1]) if len(sys.argv) > 1 else SAMPLES)
    print("\n".join([*result.lines(), "", *result.remarks, "", *map(str, result.negatives), *result.positives_refused]))
