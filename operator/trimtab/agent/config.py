"""What the agent's process is told: plain values, handed over as JSON by `trimtab.agent.start`."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class AgentTls(Struct, frozen=True):
    """As `trimtab.settings.section.MutualTlsSettings`."""

    certificate: str = ""
    key: str = ""
    client_ca: str = ""


class Http(Struct, frozen=True):
    """Where /metrics, /healthz and /readyz are served."""

    host: str
    port: int
    tls: AgentTls = AgentTls()


class AgentLog(Struct, frozen=True):
    """As `trimtab.settings.LogSettings`."""

    level: str = "info"
    format: str = "console"


class Kube(Struct, frozen=True):
    """As `trimtab.settings.KubeSettings`."""

    kubeconfig: str = ""
    context: str = ""
    request_timeout: float = 10.0
    connections: int = 2


class AgentConfig(Struct, frozen=True):
    """As `trimtab.settings.AgentSettings`, and what the agent needs of other sections."""

    node: str
    http: Http
    backend: Literal["nvml", "amd", "fake"] = "nvml"
    profile: str = ""
    sample_seconds: float = 1.0
    report_seconds: float = 30.0
    least_report_seconds: float = 10.0
    dcgm_url: str = ""
    pod_resources: str = ""
    boot_id: str = "/proc/sys/kernel/random/boot_id"
    log: AgentLog = AgentLog()
    kube: Kube = Kube()
