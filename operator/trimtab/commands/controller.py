"""`trimtab controller`: run the operator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from trimtab.commands.options import ContextOption, KubeconfigOption, server


@server
async def controller(
    config: Annotated[Path | None, typer.Option(help="Settings file (YAML) [default: $TRIMTAB_CONFIG]")] = None,
    policy: Annotated[str | None, typer.Option(help="Policy that decides, e.g. rudder, best_fit, fcfs.")] = None,
    fake_speedup: Annotated[
        float | None,
        typer.Option(help="Fake-node mode: pods run for the predicted time divided by this.", min=0.001),
    ] = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Run the controller until it is stopped or loses its leadership.

    Example: trimtab controller --policy fcfs --fake-speedup 1000
    """
    from trimtab.commands import calibration
    from trimtab.controller.app import run_controller
    from trimtab.settings import load

    flags: dict[str, dict[str, Any]] = {"kube": {}, "policy": {}, "fake": {}}
    if kubeconfig:
        flags["kube"]["kubeconfig"] = kubeconfig
    if context:
        flags["kube"]["context"] = context
    if policy:
        flags["policy"]["name"] = policy
    if fake_speedup is not None:
        flags["fake"] = {"enabled": True, "speedup": fake_speedup}
    settings = load(config, flags)
    calibration.use(settings.perf)
    await run_controller(settings)
