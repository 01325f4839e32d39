"""Jobs of other kinds, read and converted: the work of `trimtab convert`, and of `trimtab plan` for them.

Nothing is executed and no cluster is asked. What the file does not state is asked for by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trimtab.errors import UsageError
from trimtab.foreign import convert as foreign
from trimtab.foreign.configs import MOST_BYTES, objects
from trimtab.foreign.job import ForeignJob
from trimtab.foreign.read import Source, read
from trimtab.names import JOB_KIND
from trimtab.printable import say
from trimtab.ui import output
from trimtab.ui.form import Output
from trimtab.ui.terminal import Text


def write(job: ForeignJob, target: str) -> None:
    """Print what the job is converted to: the YAML of one of `foreign.TARGETS`, and notes to stderr."""
    made = foreign.TARGETS[target](job)
    for note in made.notes:
        say(f"note: {note}", error=True)
    say("---\n".join(output.as_yaml(document) for document in made.documents).rstrip("\n"))


def show(job: ForeignJob, form: Output) -> None:
    """Print what was read, where it stands, and what is missing."""
    missing = () if job.refused or job.kind == JOB_KIND else job.missing
    value = {
        "kind": job.kind,
        "name": job.name,
        "trainer": job.trainer,
        "fields": {field: {"value": each.value, "source": each.source} for field, each in sorted(job.fields.items())},
        "derived": job.derived,
        "unknown": job.unknown,
        "missing": missing,
        "refused": job.refused,
        "unsupported": job.unsupported,
        "notes": job.notes,
    }
    table = output.folding_table("FIELD", "VALUE", "WHERE")
    for field, each in sorted(job.fields.items()):
        table.add_row(field, Text(each.value), Text(each.source))
    lines = [f"{job.kind} {job.name}" + (f", trainer {job.trainer}" if job.trainer else "")]
    lines += [f"refused: {job.refused}"] if job.refused else foreign.asked_for(job) if missing else []
    lines += [f"not supported: {job.unsupported}"] if job.unsupported else []
    lines += [f"note: {note}" for note in job.notes]
    output.show(form, value, output.spaced([table, Text("\n".join(lines))]))


def job_in(file: Path, beside: Sequence[Path], stated: Sequence[str], run: int) -> ForeignJob:
    """The job of a file. Raises UsageError naming file, option and field."""
    said = {}
    for each in stated:
        field, equals, value = each.partition("=")
        if not equals or not value:
            raise UsageError(f"--set {each!r}: write FIELD=VALUE")
        said[field.replace("-", "_")] = value
    source = Source(file.name, _text(file), {path.name: _text(path) for path in beside})
    if own := _own(source):
        job = foreign.job_of(own)
        return foreign.with_stated(job, said)
    return read(source, said, run)


def _own(source: Source) -> dict[str, Any] | None:
    """The LLMTrainingJob that a file holds; None where it is something else."""
    if JOB_KIND not in source.text or not source.name.endswith((".yaml", ".yml", ".json")):
        return None
    return next((each for each in objects(source.text, source.name) if each.get("kind") == JOB_KIND), None)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    if len(content) > MOST_BYTES:
        raise UsageError(f"{path} is longer than {MOST_BYTES:,} bytes")
    return content.decode("utf-8", errors="replace")
