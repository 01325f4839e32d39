"""Sections about the nodes' agents, what their readings count for, reports of trainings, and the scheduler extender.

Durations are seconds.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from trimtab.names import CALIBRATION_CONFIG_MAP, SYSTEM_NAMESPACE
from trimtab.settings.section import Port, Seconds, Section, TlsSettings


class TelemetrySettings(Section):
    """What GPU readings of the agents (GPUNode) count for."""

    enabled: bool = True
    """Read them."""
    stale_periods: Annotated[float, Field(ge=1)] = 3.0
    """Readings that were not renewed for so many of their agent's periods count no more."""
    grace_seconds: Annotated[float, Field(ge=0)] = 30.0
    """A gang on a GPU that became unhealthy is replanned after so long."""
    recovery_seconds: Annotated[float, Field(ge=0)] = 300.0
    """An unhealthy node must be without fault for so long before it takes jobs again."""
    excluded_share: Annotated[float, Field(gt=0, le=1)] = 0.25
    """At most this part of the GPU nodes is held back because of what agents report; beyond it, something is wrong with
    the reports, and only what was held back before stays so."""
    foreign_seconds: Annotated[float, Field(ge=0)] = 60.0
    """A GPU that is busy for so long without a pod that asked for it counts as taken."""
    foreign_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """At most on this part of the GPU nodes, and on one at least; beyond it, busy GPUs are told of and count as free.
    All may by default: where a cluster is shared with another system (Slurm), all may be busy, and a GPU left idle
    costs less than a job that finds its GPU taken. Less guards a cluster of our own against agents gone wrong."""
    foreign_utilization: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Busy: some kernel runs for this part of the time ..."""
    foreign_memory: Annotated[float, Field(gt=0, le=1)] = 0.05
    """... or this part of the memory is in use."""
    straggler_speed: Annotated[float, Field(gt=0, lt=1)] = 0.9
    """A GPU at less than this part of its peers' rate is a straggler ..."""
    straggler_seconds: Annotated[float, Field(ge=0)] = 120.0
    """... when it has been for so long."""
    straggler_moves: bool = True
    """Take a running gang off a straggler where the time that it gains is well worth a restart and the lost work."""


class ReportSettings(Section):
    """Steps that trainings report, and what predictions learn from them."""

    enabled: bool = True
    """Listen for reports, and tell pods where to send them."""
    host: str = "0.0.0.0"  # noqa: S104 - network policies say who reaches it
    """Address to listen on."""
    port: Port = 8090
    """Port to listen on; 0 takes a free one."""
    url: str = ""
    """Where pods reach it, e.g. `http://trimtab-reports.trimtab-system.svc:8090`; empty: pods are told nothing, nobody
    listens, and nothing is learned."""
    tls: TlsSettings = TlsSettings()
    """Take reports over TLS only. `url` must begin with `https://` then."""
    ca: str = ""
    """Certificates (PEM, the text itself) of the authority of that certificate, which pods get in their environment;
    empty: they trust whom their image trusts. A new authority is to be here before it signs, beside the old one:
    pods keep what they were made with."""
    namespace: str = SYSTEM_NAMESPACE
    """Namespace of the ConfigMap that keeps what was learned."""
    config_map: str = CALIBRATION_CONFIG_MAP
    """Its name."""
    correct: bool = True
    """Correct predictions by what was observed; without, it is only shown."""
    largest_factor: Annotated[float, Field(gt=1)] = 3.0
    """Bound of a correction, and of its inverse."""
    drift_factor: Annotated[float, Field(gt=1)] = 1.25
    """A job whose steps take so many times the predicted time, or so many times less, gets the condition Drifted."""

    def model_post_init(self, _: Any, /) -> None:
        secure = self.url.startswith("https://")
        if self.tls.certificate and self.url and not secure:
            raise ValueError("url must begin with https://, since tls is given, or pods would not get through")
        if self.ca and not secure:
            raise ValueError("ca is for an url that begins with https://")
        if "PRIVATE KEY" in self.ca:
            raise ValueError("ca holds a private key, which all pods would get: give the certificates only")
        try:
            found = ssl.create_default_context(cadata=self.ca).cert_store_stats()["x509_ca"] if self.ca else 1
        except (ssl.SSLError, ValueError) as error:
            raise ValueError(f"ca is no PEM certificate: {error}") from error
        if not found:
            raise ValueError("ca holds no certificate of an authority")

    @property
    def listens(self) -> bool:
        """Whether reports are taken at all."""
        return self.enabled and bool(self.url)


class AgentSettings(Section):
    """The node agent."""

    node: str = ""
    """Name of the node; by default $NODE_NAME, which a DaemonSet sets from `spec.nodeName`."""
    backend: Literal["nvml", "amd", "fake"] = "nvml"
    """What reads the GPUs."""
    profile: Path | None = None
    """YAML profile of the fake backend."""
    sample_seconds: Seconds = 1.0
    """Time between readings."""
    report_seconds: Seconds = 30.0
    """A report is written at least so often ..."""
    least_report_seconds: Seconds = 10.0
    """... and, when something moved beyond its threshold, on average at most so often. Faults do not wait."""
    dcgm_url: str = ""
    """Metrics of a DCGM exporter on the same node, e.g. `http://localhost:9400/metrics`; empty: there is none."""
    pod_resources: Path = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    """Socket of the kubelet that says which pod has which GPU; not asked where it is absent."""
    boot_id: Path = Path("/proc/sys/kernel/random/boot_id")
    """File whose content changes when the machine starts anew, which ends faults."""


class ExtenderSettings(Section):
    """The scheduler extender."""

    host: str = "0.0.0.0"  # noqa: S104 - network policies say who reaches it
    """Address to listen on."""
    port: Port = 8888
    """Port of /filter, /prioritize, /preempt and /bind; 0 takes a free one."""
    certificate: Path | None = None
    """TLS certificate of the server; without one it speaks plain HTTP, and on a loopback address only."""
    key: Path | None = None
    """Its private key."""
    client_ca: Path | None = None
    """Only clients with a certificate of this authority are answered."""
    client_names: tuple[str, ...] = ()
    """Common names of the clients that are answered; empty: all that the authority signed."""
    inspect_names: tuple[str, ...] = ()
    """Common names of people and programs that may read /inspect, and nothing else. Needs `client_names`."""
    insecure: bool = False
    """Speak plain HTTP beyond this machine as well: whoever reaches the port reads the names of all gangs."""
    largest_request: Annotated[int, Field(ge=1024)] = 8 << 20
    """Bytes of the largest request that is read."""
    concurrency: Annotated[int, Field(ge=1)] = 256
    """Requests in work at once; more are refused with 503."""
    request_seconds: Seconds = 2.0
    """A client that takes longer for its headers, its body, or to fetch the answer is cut off."""
    connections: Annotated[int, Field(ge=1)] = 1024
    """Open connections; fewer where the process has too few file descriptors. One more takes the place of one that
    waits."""
    bind: bool = False
    """Answer /bind, for configurations with a bindVerb; kube-scheduler's own binder does without. Binds whatever pod it
    is asked to, so it needs `client_ca`, or a loopback address as `host`."""


class WebSettings(Section):
    """The console: `trimtab web` in a cluster."""

    host: str = "0.0.0.0"  # noqa: S104 - network policies say who reaches it
    """Address to listen on."""
    port: Port = 8090
    """Port of the page; 0 takes a free one."""
    tls: TlsSettings = TlsSettings()
    """Speak TLS. Visitors send bearer tokens, so that without it an ingress in front must."""
    insecure: bool = False
    """Speak plain HTTP beyond this machine: only where what is in front of it (an ingress, a mesh) speaks TLS, and
    network policies let nobody else reach the port."""
    connections: Annotated[int, Field(ge=4)] = 1024
    """Open connections, half of which may be streams of open pages; fewer where there are too few file descriptors."""
