"""`trimtab mcp`: what commands tell, for agents that speak the Model Context Protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trimtab.commands.options import ContextOption, KubeconfigOption, server


@server
async def mcp(
    config: Annotated[Path | None, typer.Option(help="Settings file (YAML) [default: $TRIMTAB_CONFIG]")] = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Answer an agent's questions about a cluster, over standard input and output (Model Context Protocol).

    Its tools are explain, why_pending, plan, whatif and doctor, with the values of those commands. It reads what your
    kubeconfig may read, changes nothing, and listens on no port: the agent starts it, and ends it by closing its input.

    Example: claude mcp add trimtab -- trimtab mcp --context prod
    """
    from trimtab.mcp.serve import serve

    await serve(config, kubeconfig, context)
