"""`trimtab ui`: the console on one's own machine; `trimtab web`: the same for all users of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from trimtab.commands.options import ContextOption, KubeconfigOption, NamespaceOption, own_namespace, server

ConfigOption = Annotated[Path | None, typer.Option(help="Settings file (YAML) [default: $TRIMTAB_CONFIG]")]


@server
async def ui(
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0 takes a free one.", min=0, max=65535)] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    config: ConfigOption = None,
    namespace: NamespaceOption = "",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Show the cluster on a page: its GPUs, every job and why it is where it is, what is expected, and what would help.

    It reads what your kubeconfig may read (where that is not the whole cluster, one namespace), changes nothing, and is
    reached from this machine only, at a random address.

    Examples: trimtab ui

    trimtab ui --no-browser --port 8001
    """
    from trimtab.settings import load
    from trimtab.web.app import show_locally

    settings, own = load(config, {"kube": _kube(kubeconfig, context)}, "web"), own_namespace(kubeconfig, context)
    await show_locally(settings, port, [namespace or own], browser=browser)


@server
async def web(config: ConfigOption = None, kubeconfig: KubeconfigOption = None, context: ContextOption = None) -> None:
    """Serve the console to all users of a cluster until it is stopped: the chart's `web.enabled` runs this.

    Visitors send a bearer token; each sees what the API server says they may read (docs/console.md).

    Example: trimtab web --config settings.yaml
    """
    from trimtab.settings import load
    from trimtab.web.app import serve_cluster

    await serve_cluster(load(config, {"kube": _kube(kubeconfig, context)}, "web"))


def _kube(kubeconfig: Path | None, context: str | None) -> dict[str, Any]:
    given = {"kubeconfig": kubeconfig, "context": context}
    return {name: value for name, value in given.items() if value is not None}
