"""`trimtab explain JOB`: why a job runs the way it does, or why it does not run, and when that will change."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trimtab.commands import completion
from trimtab.commands.options import (
    ContextOption,
    JobArgument,
    KubeconfigOption,
    NamespaceOption,
    OutputOption,
    command,
    kube_settings,
    place,
)
from trimtab.ui.form import Output


@command
async def explain(
    job: JobArgument,
    namespace: NamespaceOption = "",
    policy: Annotated[
        str,
        typer.Option(help="Policy to ask; by default the one that decides now.", autocompletion=completion.policies),
    ] = "",
    snapshot: Annotated[Path | None, typer.Option(help="Look at this dump instead of the live cluster.")] = None,
    why: Annotated[
        str,
        typer.Option("--why-not", help="GPUs that it has not, such as 32xH100, H100 or 32: what speaks against."),
    ] = "",
    form: OutputOption = Output.TABLE,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Explain a job: where it stands and why, when it starts, what would help, what it went through, what else it could
    run on, and what would be decided if it were placed now.

    Examples: trimtab explain llama3-8b -n team-a

    trimtab explain llama3-8b -n team-a -o json

    trimtab explain llama3-8b -n team-a --why-not 32xH100

    trimtab snapshot -o json > now.json; trimtab explain llama3-8b --snapshot now.json
    """
    from trimtab.commands import explanation

    namespace, name = place(job, namespace, kubeconfig, context)
    await explanation.run(form, namespace, name, policy, snapshot, why, kube_settings(kubeconfig, context))
