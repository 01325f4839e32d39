"""`trimtab get jobs|nodes`: what runs where."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from trimtab.commands.live import look
from trimtab.commands.options import (
    ContextOption,
    KubeconfigOption,
    OutputOption,
    command,
    kube_settings,
)
from trimtab.ui import output, tables, words
from trimtab.ui.output import Output

app = typer.Typer(no_args_is_help=True, help="Show jobs or nodes.")


@app.command()
@command
async def jobs(
    namespace: Annotated[str | None, typer.Option("--namespace", "-n", help="Only jobs of this namespace.")] = None,
    form: OutputOption = Output.TABLE,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Show training jobs with their plans, progress and state, who decided, and what a shadow policy says to it.

    Example: trimtab get jobs -n team-a -o json
    """
    observation = await look(kube_settings(kubeconfig, context))
    rows = sorted(observation.jobs.values(), key=lambda facts: (facts.meta.namespace, facts.created, facts.meta.name))
    rows = [facts for facts in rows if namespace in (None, facts.meta.namespace)]
    value = [
        {
            "namespace": facts.meta.namespace,
            "name": facts.meta.name,
            "state": words.state(facts),
            "status": facts.status.to_wire(),
        }
        for facts in rows
    ]
    now = time.time()
    table = tables.jobs(rows, lambda facts: words.progress(facts, now), namespaces=namespace is None, policies=True)
    output.show(form, value, table)


@app.command()
@command
async def nodes(
    form: OutputOption = Output.TABLE, kubeconfig: KubeconfigOption = None, context: ContextOption = None
) -> None:
    """Show GPU nodes as Trimtab understands them: type, free GPUs, topology, and why a node takes no pods."""
    observation = await look(kube_settings(kubeconfig, context))
    free = {node.name: node.free_gpus for node in observation.snapshot.nodes}
    value = [
        {
            "name": facts.name,
            "gpuType": facts.gpu.name if facts.gpu else None,
            "gpus": facts.gpus,
            "freeGpus": free.get(facts.name),
            "topology": facts.topology,
            "unavailable": facts.unavailable or None,
            "problems": [{"reason": problem.reason, "message": problem.message} for problem in facts.problems],
        }
        for facts in sorted(observation.nodes.values(), key=lambda facts: facts.name)
    ]
    output.show(form, value, tables.nodes(observation))
