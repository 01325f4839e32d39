"""From the settings to the agent's process.

Reading the settings takes pydantic, and the command line typer and rich: 50 MiB that an agent would carry for ever. So
whoever has read them turns into `python -m trimtab.agent CONFIG`, in the same process, which needs none of it.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final, NoReturn

import msgspec

from trimtab.agent.config import AgentConfig, AgentLog, AgentTls, Http, Kube
from trimtab.errors import SettingsError

if TYPE_CHECKING:
    from trimtab.settings import Settings

ENV_NODE: Final = "NODE_NAME"


def node_name(settings: Settings) -> str:
    """Name of the node. Raises SettingsError when nobody says it."""
    if name := settings.agent.node or os.environ.get(ENV_NODE, ""):
        return name
    raise SettingsError(f"the node's name is not known: set ${ENV_NODE}, agent.node or --node")


def config_of(settings: Settings, node: str) -> AgentConfig:
    """What the agent needs of all settings, as plain values."""
    refuse_authentication(settings)
    ours, kube, tls = settings.agent, settings.kube, settings.metrics.tls
    return AgentConfig(
        node=node,
        backend=ours.backend,
        profile=str(ours.profile or ""),
        sample_seconds=ours.sample_seconds,
        report_seconds=ours.report_seconds,
        least_report_seconds=ours.least_report_seconds,
        dcgm_url=ours.dcgm_url,
        pod_resources=str(ours.pod_resources),
        boot_id=str(ours.boot_id),
        http=Http(
            settings.metrics.host,
            settings.metrics.port,
            AgentTls(str(tls.certificate or ""), str(tls.key or ""), str(tls.client_ca or "")),
        ),
        log=AgentLog(settings.log.level, settings.log.format),
        kube=Kube(str(kube.kubeconfig or ""), kube.context or "", kube.request_timeout),
    )


def refuse_authentication(settings: Settings) -> None:
    """Raises SettingsError where agents are to let in some scrapers only: it takes the right to review tokens, which
    is more than their account on every node should have."""
    if settings.metrics.authentication != "None":
        raise SettingsError(
            "metrics.authentication: agents cannot ask who a scraper is; leave it out, and give metrics.tls.client_ca"
        )


def become(config: AgentConfig) -> NoReturn:
    """Go on as the agent: the same pid, half the memory."""
    # one arena: the sampler's thread would otherwise get a heap of its own
    environment = {"MALLOC_ARENA_MAX": "1", **os.environ}
    sys.stdout.flush()
    arguments = [sys.executable, "-m", "trimtab.agent", msgspec.json.encode(config).decode()]
    os.execve(sys.executable, arguments, environment)  # noqa: S606 - itself, with its own arguments
