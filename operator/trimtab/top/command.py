"""`trimtab top`: the console in a terminal."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from trimtab.commands.options import ContextOption, KubeconfigOption, NamespaceOption, own_namespace, server
from trimtab.errors import UsageError


@server
async def top(
    config: Annotated[Path | None, typer.Option(help="Settings file (YAML) [default: $TRIMTAB_CONFIG]")] = None,
    namespace: NamespaceOption = "",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Show the cluster in the terminal: its GPUs by link domain, who waits for what and until when, and why.

    It reads what your kubeconfig may read (where that is not the whole cluster, one namespace), changes nothing, and
    works over SSH, in 80 columns and 24 lines, and without colours (NO_COLOR). Keys: j and k choose a job, a shows all
    jobs or only those that wait, q ends it.

    Example: trimtab top --context prod
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("top needs a terminal: into a pipe goes `trimtab get jobs --watch`")
    try:
        from trimtab.top.serve import show
    except ImportError as error:
        raise UsageError(f"top needs {error.name}: pip install 'trimtab[top]' ({error})") from error

    await show(config, kubeconfig, context, [namespace or own_namespace(kubeconfig, context)])
