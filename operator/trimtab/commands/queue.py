"""`trimtab queue`: the jobs that wait, in line, with when each is expected to start."""

from __future__ import annotations

from typing import Annotated

import typer

from trimtab.commands import completion
from trimtab.commands.get import ListOption
from trimtab.commands.options import ContextOption, KubeconfigOption, command, kube_settings


@command
async def queue(
    name: Annotated[
        str, typer.Argument(metavar="[QUEUE]", help="Only jobs of this queue.", autocompletion=completion.queues)
    ] = "",
    form: ListOption = "table",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Show the jobs that wait, of all namespaces, in the order in which they are served: why each waits, when it is
    expected to start, and on what; with -o wide also what its run is expected to cost, by `prices` of the settings.
    `trimtab get queues` shows the queues themselves.

    Examples: trimtab queue

    trimtab queue research -o json
    """
    from trimtab import settings
    from trimtab.commands.live import look
    from trimtab.ui import line, output

    prices = settings.load().prices
    rows = line.rows(await look(kube_settings(kubeconfig, context)), name, prices)
    table = line.table(rows, prices.currency if form.wide else None)
    output.show_list(form, "llmtrainingjob.trimtab.dev", [row.job for row in rows], rows, table, one=False)
