"""`trimtab snapshot`: dump what a policy would see, to look at it or decide on it offline."""

from __future__ import annotations

from typing import Annotated

import typer

from trimtab.commands.options import ContextOption, KubeconfigOption, OutputOption, command, kube_settings
from trimtab.errors import UsageError
from trimtab.ui.form import Output


@command
async def snapshot(
    form: OutputOption = Output.JSON,
    features: Annotated[
        bool, typer.Option("--features", help="Show nodes and jobs as features in [0, 1] (policy/FEATURES.md).")
    ] = False,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Dump the cluster as policies see it; `trimtab plan --snapshot FILE` decides on it without a cluster.

    Examples: trimtab snapshot -o json > now.json

    trimtab snapshot --features
    """
    if features and form is Output.TABLE:
        raise UsageError("--features are many columns: ask for -o json or -o yaml")

    from trimtab.commands import dumps
    from trimtab.commands.live import look
    from trimtab.ui import output, tables

    observation = await look(kube_settings(kubeconfig, context))
    now = observation.snapshot
    output.show(form, dumps.as_features(now) if features else dumps.portable(now), tables.nodes(observation))
