"""The process of `trimtab mcp`, put together."""

from __future__ import annotations

from pathlib import Path

import structlog

from trimtab.commands import calibration
from trimtab.mcp.protocol import Server
from trimtab.mcp.stdio import Stdio
from trimtab.mcp.tools import INSTRUCTIONS, Tools
from trimtab.settings import load
from trimtab.telemetry import logs

log = structlog.get_logger(__name__)


async def serve(config: Path | None, kubeconfig: Path | None, context: str | None) -> None:
    """Answer on standard input and output until it is closed. Raises SettingsError."""
    given = {"kubeconfig": kubeconfig, "context": context}
    settings = load(config, {"kube": {name: value for name, value in given.items() if value is not None}})
    logs.configure(settings.log.model_copy(update={"level": "warning"}))
    calibration.use(settings.perf)
    try:
        await Server(Tools(settings).all(), INSTRUCTIONS, _lost).serve(Stdio())
    except* BrokenPipeError:
        log.warning("nobody reads the answers any more")


def _lost(error: Exception) -> str:
    log.error("a question could not be answered: this is a bug, please report it", exc_info=error)
    return f"it could not be answered ({type(error).__name__}): this is a bug of Trimtab, please report it"
