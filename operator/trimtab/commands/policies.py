"""`trimtab policies`: what the controller and the simulator can be told to decide by."""

from __future__ import annotations

from trimtab.commands.options import OutputOption, brief, reported
from trimtab.ui.form import Output


@reported()
def policies(form: OutputOption = Output.TABLE) -> None:
    """List every registered policy: its kind, who described it, and the weights of learned ones with their score.

    Weights are read and checked as the controller would. Where something is wrong with them, it would use its fallback.

    Examples: trimtab policies

    trimtab policies -o json
    """
    brief()
    from trimtab.ui import output
    from trimtab.ui import policies as ui
    from trimtab_policy import listing

    found = listing.listed()
    output.show(form, {each.name: each for each in found}, ui.table(found))
