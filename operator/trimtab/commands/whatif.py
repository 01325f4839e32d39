"""`trimtab whatif -f change.yaml`: what would become of the jobs of a cluster if something about it were changed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trimtab.commands.options import ContextOption, KubeconfigOption, OutputOption, command, kube_settings
from trimtab.ui.form import Output


@command
async def whatif(
    file: Annotated[Path, typer.Option("--file", "-f", help="The change: nodes, policy, jobs, queues, submit.")],
    snapshot: Annotated[Path | None, typer.Option(help="Start from this dump instead of the live cluster.")] = None,
    policy: Annotated[str, typer.Option(help="Policy of both lives; by default the one that decides now.")] = "",
    rigid: Annotated[bool, typer.Option("--rigid", help="Nobody gives way for others, and nobody is resized.")] = False,
    form: OutputOption = Output.TABLE,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Simulate the cluster twice from now on, as it is and after a change, and show when each job starts and ends.

    Both times decisions are made as by a controller with these settings: by policy, line, reservations, preemption,
    reclaim, moves and resizes.

    The change is a YAML file with one or more of: nodes.add (a list of type, count, gpus), nodes.remove and
    nodes.cordon (lists of names, in which * stands for anything), policy, jobs (by namespace/name: priority, queue,
    gpus.min and gpus.max, gpuTypes, maxNodes, parallelism as in a spec, precision, suspend), queues (by name: the spec
    of a Queue), submit (a list of manifests of jobs).

    Examples: trimtab whatif -f four-more-nodes.yaml

    trimtab snapshot -o json > now.json; trimtab whatif -f change.yaml --snapshot now.json -o json
    """
    from trimtab.commands import comparison

    await comparison.run(form, file, snapshot, policy, kube_settings(kubeconfig, context), rigid=rigid)
