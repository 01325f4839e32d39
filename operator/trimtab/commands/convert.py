"""`trimtab convert -f X`: a training job of another kind, read, and written as one of ours, a TrainJob or a JobSet.

Nothing is executed and no cluster is asked. What the file does not state is asked for by name.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from trimtab.commands.options import RunOption, SetOption, WithOption, reported
from trimtab.errors import UsageError
from trimtab.foreign import convert as conversion
from trimtab.foreign.configs import MOST_BYTES, objects
from trimtab.foreign.job import ForeignJob
from trimtab.foreign.read import Source, read
from trimtab.names import JOB_KIND
from trimtab.printable import say
from trimtab.ui import output
from trimtab.ui.output import Output
from trimtab.ui.terminal import Text


class Target(StrEnum):
    """Values of `-o`."""

    LTJ = "ltj"
    TRAINJOB = "trainjob"
    JOBSET = "jobset"
    FIELDS = "fields"
    JSON = "json"


@reported()
def convert(
    file: Annotated[Path, typer.Option("--file", "-f", help="Manifest of a training job, or a script for sbatch.")],
    to: Annotated[
        Target,
        typer.Option(
            "--output", "-o", help="What to write; `fields` and `json` tell what was read, and where it stands."
        ),
    ] = Target.LTJ,
    beside: WithOption = None,
    stated: SetOption = None,
    run: RunOption = 0,
) -> None:
    """Read a training job of another kind and write it as one that Trimtab plans, or as a TrainJob or JobSet.

    Kinds: TrainJob, JobSet, PyTorchJob, MPIJob, Job, Volcano Job, RayJob, RayCluster, LeaderWorkerSet, sbatch scripts.

    Examples: trimtab convert -f train.sbatch -o fields

    trimtab convert -f pytorchjob.yaml --with config.yaml --set model=llama3-8b

    trimtab convert -f manifests/samples/llama3-8b.yaml -o jobset --set gpus_per_node=8
    """
    job = job_in(file, beside or [], stated or [], run)
    if to in (Target.FIELDS, Target.JSON):
        _show(job, to)
        return
    made = conversion.TARGETS[to.value](job)
    for note in made.notes:
        say(f"note: {note}", error=True)
    say("---\n".join(output.as_yaml(document) for document in made.documents).rstrip("\n"))


def job_in(file: Path, beside: list[Path], stated: list[str], run: int) -> ForeignJob:
    """The job of a file. Raises UsageError naming file, option and field."""
    said = {}
    for each in stated:
        field, equals, value = each.partition("=")
        if not equals or not value:
            raise UsageError(f"--set {each!r}: write FIELD=VALUE")
        said[field.replace("-", "_")] = value
    source = Source(file.name, _text(file), {path.name: _text(path) for path in beside})
    if own := _own(source):
        job = conversion.job_of(own)
        return conversion.with_stated(job, said)
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


def _show(job: ForeignJob, to: Target) -> None:
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
    lines += [f"refused: {job.refused}"] if job.refused else conversion.asked_for(job) if missing else []
    lines += [f"not supported: {job.unsupported}"] if job.unsupported else []
    lines += [f"note: {note}" for note in job.notes]
    output.show(
        Output.JSON if to is Target.JSON else Output.TABLE, value, output.spaced([table, Text("\n".join(lines))])
    )
