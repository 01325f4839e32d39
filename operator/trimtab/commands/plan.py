"""`trimtab plan -f job.yaml`: what would be decided about a job, and who would make room, without changing anything."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trimtab.commands import completion
from trimtab.commands.options import ContextOption, KubeconfigOption, OutputOption, command, kube_settings
from trimtab.errors import UsageError
from trimtab.ui.form import Output


@command
async def plan(
    file: Annotated[Path, typer.Option("--file", "-f", help="Manifest of an LLMTrainingJob.")],
    snapshot: Annotated[Path | None, typer.Option(help="Decide on this dump instead of the live cluster.")] = None,
    gpus: Annotated[
        str,
        typer.Option(
            help="Decide on an empty cluster of these: TYPE=COUNT or TYPE=COUNTxPER_NODE, separated by commas.",
            autocompletion=completion.gpu_types,
        ),
    ] = "",
    policy: Annotated[
        str,
        typer.Option(help="Policy to ask; `fcfs` answers when it fails.", autocompletion=completion.policies),
    ] = "rudder",
    priority: Annotated[int, typer.Option(help="Value of the job's PriorityClass.")] = 0,
    prices: Annotated[
        Path | None,
        typer.Option(help="YAML file with `currency` and `per_gpu_hour`; default: the settings'."),
    ] = None,
    form: OutputOption = Output.TABLE,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Show what would be decided for a job, and the best plan of every GPU type, without changing anything.

    Examples: trimtab plan -f manifests/samples/llama3-8b.yaml

    trimtab plan -f manifests/samples/llama3-8b.yaml --snapshot now.json -o json

    trimtab plan -f manifests/samples/llama3-70b.yaml --gpus H100-SXM5-80GB=64,A100-SXM4-80GB=32x4 --prices prices.yaml
    """
    if snapshot and gpus:
        raise UsageError("--snapshot and --gpus are two clusters: name one")

    from trimtab.commands import planning

    kube = kube_settings(kubeconfig, context)
    await planning.run(form, file, snapshot, gpus, policy, priority, prices, kube)
