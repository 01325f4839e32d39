"""`trimtab agent`: report the GPUs of one node, show them once, or play the agents of all fake nodes."""

from __future__ import annotations

import asyncio
import os
import socket
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab.commands.options import ContextOption, KubeconfigOption, OutputOption, reported
from trimtab.errors import UsageError
from trimtab.ui.form import Output

if TYPE_CHECKING:
    from trimtab.settings import Settings


class BackendName(StrEnum):
    """Values of `--backend`."""

    NVML = "nvml"
    AMD = "amd"
    FAKE = "fake"


@reported()
def agent(
    config: Annotated[Path | None, typer.Option(help="Settings file (YAML) [default: $TRIMTAB_CONFIG]")] = None,
    node: Annotated[str | None, typer.Option(help="Name of the node [default: $NODE_NAME]")] = None,
    backend: Annotated[BackendName | None, typer.Option(help="What reads the GPUs.")] = None,
    profile: Annotated[Path | None, typer.Option(help="Profile of the fake backend.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one reading and end; asks no API server.")] = False,
    fake_nodes: Annotated[
        bool, typer.Option("--fake-nodes", help="Play the agents of all fake nodes (KWOK's) of the cluster.")
    ] = False,
    form: OutputOption = Output.TABLE,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Report the GPUs of this node as a GPUNode, until stopped.

    Examples:

    trimtab agent --once

    trimtab agent --once --backend fake --profile manifests/agents/h100x8.yaml -o json

    trimtab agent --node gpu-17

    trimtab agent --fake-nodes
    """
    if once and fake_nodes:
        raise UsageError("--once shows this machine, --fake-nodes plays others: choose one")
    from trimtab.agent.start import become, config_of, node_name
    from trimtab.settings import load

    given = {"node": node, "backend": backend and backend.value, "profile": profile}
    flags: dict[str, dict[str, Any]] = {
        "agent": {key: value for key, value in given.items() if value},
        "kube": {key: value for key, value in (("kubeconfig", kubeconfig), ("context", context)) if value},
    }
    settings = load(config, flags, "agent")
    if once:
        _once(settings, form)
    elif fake_nodes:
        from trimtab.agent.fleet import run_fleet

        asyncio.run(run_fleet(settings))
    else:
        become(config_of(settings, node_name(settings)))


def _once(settings: Settings, form: Output) -> None:
    """One reading; two a moment apart, since rates are differences. Raises BackendError."""
    import msgspec

    from trimtab.agent.once import read_reports
    from trimtab.agent.start import ENV_NODE, config_of
    from trimtab.ui import gpus
    from trimtab.ui.output import show

    name = settings.agent.node or os.environ.get(ENV_NODE) or socket.gethostname()
    status = msgspec.to_builtins(read_reports(config_of(settings, name)))
    show(form, status, gpus.table(status))
