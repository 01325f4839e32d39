"""`trimtab queue`: the jobs that wait, in line, with when each is expected to start."""

from __future__ import annotations

from typing import Annotated

import typer

from trimtab.commands import completion
from trimtab.commands.options import ContextOption, KubeconfigOption, OutputOption, command, kube_settings
from trimtab.ui.form import Output


@command
async def queue(
    name: Annotated[
        str, typer.Argument(metavar="[QUEUE]", help="Only jobs of this queue.", autocompletion=completion.queues)
    ] = "",
    form: OutputOption = Output.TABLE,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Show the jobs that wait, of all namespaces, in the order in which they are served: why each waits, when it is
    expected to start, and on what. `trimtab get queues` shows the queues themselves.

    Examples: trimtab queue

    trimtab queue research -o json
    """
    from trimtab.commands.live import look
    from trimtab.ui import line, output

    rows = line.rows(await look(kube_settings(kubeconfig, context)), name)
    output.show(form, rows, line.table(rows))
