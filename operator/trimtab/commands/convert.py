"""`trimtab convert -f X`: a training job of another kind, read, and written as one of ours, a TrainJob or a JobSet."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from trimtab.commands.options import RunOption, SetOption, WithOption, brief, reported


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
    from trimtab.commands import conversion
    from trimtab.ui.form import Output

    brief()
    job = conversion.job_in(file, beside or (), stated or (), run)
    if to in (Target.FIELDS, Target.JSON):
        conversion.show(job, Output.JSON if to is Target.JSON else Output.TABLE)
    else:
        conversion.write(job, to.value)
