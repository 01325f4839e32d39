"""`trimtab extender`: answer a kube-scheduler."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from trimtab.commands.options import ContextOption, KubeconfigOption, server


@server
async def extender(
    config: Annotated[Path | None, typer.Option(help="Settings file (YAML) [default: $TRIMTAB_CONFIG]")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = None,
    certificate: Annotated[Path | None, typer.Option(help="TLS certificate (PEM); else HTTP on loopback.")] = None,
    key: Annotated[Path | None, typer.Option(help="Its private key (PEM).")] = None,
    client_ca: Annotated[Path | None, typer.Option(help="Answer only clients with a certificate of this CA.")] = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Run the scheduler extender until it is stopped: it sends pods of gangs to the nodes of their plans.

    manifests/scheduler.yaml has the configuration of a kube-scheduler that asks it. /inspect shows what is planned
    where, also with ?format=json.

    Example: trimtab extender --host 127.0.0.1

    Example: trimtab extender --certificate tls.crt --key tls.key --client-ca ca.crt
    """
    from trimtab.extender.app import serve_extender
    from trimtab.settings import load

    given = {"host": host, "port": port, "certificate": certificate, "key": key, "client_ca": client_ca}
    flags: dict[str, dict[str, Any]] = {
        "extender": {name: value for name, value in given.items() if value is not None},
        "kube": {"kubeconfig": kubeconfig} if kubeconfig else {},
    }
    if context:
        flags["kube"]["context"] = context
    await serve_extender(load(config, flags, "extender"))
