"""`trimtab get jobs|nodes|queues`: what runs where, and for whom."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from trimtab.commands.options import (
    ContextOption,
    KubeconfigOption,
    OutputOption,
    command,
    kube_settings,
)
from trimtab.ui.form import Output

if TYPE_CHECKING:
    from trimtab.observe.snapshot import Observation

app = typer.Typer(no_args_is_help=True, help="Show jobs, nodes or queues.")


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
    from trimtab.commands.live import look
    from trimtab.ui import output, tables, words

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
    """Show GPU nodes as Trimtab understands them: type, free GPUs, topology, and why a node takes no pods.

    With `-o json` also what its agent reads, in shares from 0 to 1 and degrees Celsius.
    """
    from trimtab.commands.live import look
    from trimtab.ui import output, tables

    observation = await look(kube_settings(kubeconfig, context))
    snapshot = observation.snapshot
    taking = {node.name: node for node in snapshot.nodes}
    value = [
        {
            "name": facts.name,
            "gpuType": facts.gpu.name if facts.gpu else None,
            "gpus": facts.gpus,
            "freeGpus": taking[facts.name].free_gpus if facts.name in taking else None,
            "foreignGpus": observation.reports.foreign.get(facts.name, 0),
            "topology": facts.topology,
            "unavailable": snapshot.unavailable.get(facts.name),
            "readings": _readings(observation, facts.name),
            "problems": [
                {"reason": problem.reason, "message": problem.message}
                for problem in observation.problems_of(facts.name)
            ],
        }
        for facts in sorted(observation.nodes.values(), key=lambda facts: facts.name)
    ]
    output.show(form, value, tables.nodes(observation))


@app.command()
@command
async def queues(
    form: OutputOption = Output.TABLE, kubeconfig: KubeconfigOption = None, context: ContextOption = None
) -> None:
    """Show queues: what each is guaranteed, may have and has by GPU type, its share of the cluster, and who is next.

    Borrowed are GPUs beyond the guarantee. Of two queues the one with the smaller share is served first.
    """
    from trimtab.commands.live import look
    from trimtab.ui import output
    from trimtab.ui import queues as lines

    found = lines.rows(await look(kube_settings(kubeconfig, context)))
    output.show(form, msgspec.to_builtins(found), lines.table(found))


def _readings(observation: Observation, node: str) -> dict[str, float | str] | None:
    """What the agent says and when it was so by the node's clock; when it arrived here says nothing to an onlooker."""
    readings, told = observation.reports.readings.get(node), observation.reports.telemetry.get(node)
    if readings is None or told is None:
        return None
    known = {name: value for name, value in msgspec.to_builtins(readings).items() if name != "arrived"}
    return {**known, "observedTime": told.observed}
