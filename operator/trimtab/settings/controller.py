"""Sections about the controller: how it reaches the API server, leads, decides and binds. Durations are seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from trimtab.names import LEASE_NAME, MONITOR_CONFIG_MAP, POLICY_CONFIG_MAP, SCHEDULER_NAME, SYSTEM_NAMESPACE
from trimtab.settings.section import MutualTlsSettings, Port, Seconds, Section


class KubeSettings(Section):
    """How to reach the API server."""

    kubeconfig: Path | None = None
    """Kubeconfig file; by default $KUBECONFIG, then ~/.kube/config, then the service account of the pod."""
    context: str | None = None
    """Context of the kubeconfig; by default its current one."""
    request_timeout: Seconds = 10.0
    """Deadline of one request, from waiting for a connection to the last byte of the answer."""
    connections: Annotated[int, Field(ge=1)] = 64
    """Requests in flight at once. Watches come on top."""


class ReflectorSettings(Section):
    """How the caches of nodes, pods and jobs are kept true."""

    stall_seconds: Seconds = 70.0
    """A watch that brings no byte for so long is dead: the API server sends a bookmark about once a minute."""
    resync_seconds: Seconds = 300.0
    """List again after so long, to heal events that were lost on the way."""
    page_size: Annotated[int, Field(ge=1)] = 500
    """Objects per page of a list."""


class LeadershipSettings(Section):
    """Which of several controllers acts."""

    namespace: str = SYSTEM_NAMESPACE
    """Namespace of the Lease."""
    name: str = LEASE_NAME
    """Name of the Lease."""
    identity: str | None = None
    """Name of this controller in the Lease; by default host name and a random suffix. Two processes that may live
    at the same time must differ; a successor of the same name takes over without waiting for the lease to run out."""
    lease_seconds: Seconds = 15.0
    """A Lease that was not renewed for so long is free."""
    renew_seconds: Seconds = 10.0
    """A leader that could not renew for so long stops; must be shorter than `lease_seconds`."""
    retry_seconds: Seconds = 2.0
    """Pause between attempts to take or renew the Lease."""

    def model_post_init(self, _: Any, /) -> None:
        if not self.retry_seconds < self.renew_seconds < self.lease_seconds:
            raise ValueError("retry_seconds < renew_seconds < lease_seconds must hold, or two controllers may lead")


class RoundSettings(Section):
    """When the controller looks at the cluster."""

    debounce_seconds: Seconds = 0.02
    """A round starts when nothing has changed for so long ..."""
    max_debounce_seconds: Seconds = 1.0
    """... but at the latest so long after the first change."""
    sweep_seconds: Seconds = 60.0
    """A round starts at least so often, with or without a change."""


class ConfigMapSettings(Section):
    """The ConfigMap whose keys `policy`, `fallback`, `shadow` and `deadlineSeconds` go before the settings while it
    exists; it is watched."""

    namespace: str = SYSTEM_NAMESPACE
    """Its namespace."""
    name: str = POLICY_CONFIG_MAP
    """Its name."""


class PolicySettings(Section):
    """Who decides."""

    name: str = "rudder"
    """Policy that decides for every job that does not ask for another one."""
    fallback: str = "best_fit"
    """Policy that decides when the first one fails or is late."""
    deadline_seconds: Seconds = 2.0
    """Time that the policy has for one round."""
    shadow: str = ""
    """Policy that is asked about the same jobs, and whose answers are only recorded; empty for none."""
    shadow_deadline_seconds: Seconds = 10.0
    """Time that the shadow policy has; nobody waits for it."""
    config_map: ConfigMapSettings = ConfigMapSettings()
    """What changes all this at run time, but for the shadow's time."""


class MonitorSettings(Section):
    """Whether a learned policy does worse than its fallback on this cluster: the jobs of the last day are simulated
    under both, in a process of low priority, and the fallback decides while the policy is worse."""

    period_seconds: Annotated[float, Field(ge=0)] = 6 * 3600.0
    """They are compared so often; 0 switches it off, and the policy decides whatever was found."""
    window_seconds: Seconds = 24 * 3600.0
    """Jobs that were there within so long are simulated."""
    margin: Annotated[float, Field(ge=0)] = 0.05
    """The fallback decides when the average completion time is longer by this part under the policy."""
    least_jobs: Annotated[int, Field(ge=2)] = 30
    """Of fewer jobs nothing is concluded."""
    returns_after: Annotated[int, Field(ge=1)] = 4
    """The policy decides again after so many comparisons in a row in which it was no worse."""
    cpu_seconds: Annotated[float, Field(gt=0, le=3600)] = 600.0
    """CPU time of a comparison at most: where all jobs take longer, only the last ones are simulated."""
    cpu_share: Annotated[float, Field(gt=0, le=1)] = 0.25
    """It takes this part of a core at most, and rests in between."""
    namespace: str = SYSTEM_NAMESPACE
    """Namespace of the ConfigMap that keeps the verdict."""
    config_map: str = MONITOR_CONFIG_MAP
    """Its name. Delete it, and start the controller anew, to forget the verdict."""


class GangSettings(Section):
    """How gangs are bound and when they are given up."""

    bind_timeout_seconds: Seconds = 30.0
    """A gang that is not wholly bound so long after its first binding, though nothing was refused, is rolled back.
    A refusal rolls it back at once. With Extender binding, `binding.timeout_seconds` counts instead."""
    node_grace_seconds: Annotated[float, Field(ge=0)] = 60.0
    """A node may be NotReady for so long before its gangs are taken down. Where many nodes fall silent at once, as
    under a slow control plane, those have up to ten times as long."""
    check_references: bool = True
    """A job waits without GPUs while a claim, Secret, ConfigMap or ServiceAccount that its template names is not there.
    That of a Secret or ConfigMap is asked by creating one in a dry run, so that none is ever read."""
    backoff_initial_seconds: Seconds = 1.0
    """Pause after a gang's first failure; doubles with each further one ..."""
    backoff_max_seconds: Seconds = 300.0
    """... up to this."""


class BindingSettings(Section):
    """Who binds the pods of a gang."""

    mode: Literal["Direct", "Extender"] = "Direct"
    """Direct: this controller, all pods at once. Extender: a kube-scheduler with Trimtab's extender, for clusters that
    need its other plugins (volumes, DRA); pods wait behind a scheduling gate until their whole gang exists."""
    scheduler_name: str = SCHEDULER_NAME
    """Extender: profile of the kube-scheduler that has the extender."""
    timeout_seconds: Seconds = 300.0
    """Extender: a gang that is not wholly bound so long after its first gate was taken away is rolled back; thousands
    of pods get one second for every 50. Volumes that are made for a pod, and DRA, may take minutes; where there are
    none, 30 s let the GPUs of a gang that is stuck go sooner."""
    pod_groups: Literal["Auto", "Never"] = "Auto"
    """Extender: make the gang known to kube-scheduler as a PodGroup where the API server serves that kind."""


class FakeSettings(Section):
    """Fake GPU nodes."""

    enabled: bool = False
    """Let pods on fake nodes run for the time that the performance model predicts."""
    speedup: Annotated[float, Field(gt=0)] = 1.0
    """Divides the predicted run time of fake pods."""


class TopologySettings(Section):
    """Which node labels say how near two nodes are."""

    levels: tuple[tuple[str, ...], ...] = (
        ("topology.kubernetes.io/zone", "fabric.topograph.run/tier-2", "topology.k8s.aws/network-node-layer-1"),
        (
            "topology.kubernetes.io/block",
            "fabric.topograph.run/tier-1",
            "network.topology.nvidia.com/spine",
            "cloud.google.com/gce-topology-block",
            "topology.k8s.aws/network-node-layer-2",
            "oci.oraclecloud.com/host.network_block_id",
            "cloud.provider.com/topology-block",
        ),
        (
            "topology.kubernetes.io/rack",
            "fabric.topograph.run/tier-0",
            "network.topology.nvidia.com/leaf",
            "cloud.google.com/gce-topology-subblock",
            "topology.k8s.aws/network-node-layer-3",
            "oci.oraclecloud.com/host.rack_id",
            "cloud.provider.com/topology-rack",
        ),
    )
    """From the widest level to the nearest; each level lists label keys that mean the same, first one present wins."""


class HttpSettings(Section):
    """Metrics and health."""

    host: str = "0.0.0.0"  # noqa: S104 - network policies say who reaches it
    """Address to listen on."""
    port: Port = 8080
    """Port of /metrics, /healthz and /readyz, 0 takes a free one: by default 8080 of the controller, 8081 of the
    extender, 8082 of agents."""
    tls: MutualTlsSettings = MutualTlsSettings()
    """Speak TLS; /healthz and /readyz are answered in plain text, too, for kubelets have no CA."""
    authentication: Literal["None", "Kubernetes"] = "None"
    """Who may read /metrics: everybody who reaches the port; or only whom the API server knows by a bearer token and
    lets `get` the path /metrics. That needs `tls`, or a loopback address as `host`. Agents do not know it: there,
    and beside it, `tls.client_ca` says who may."""
    stale_round_seconds: Seconds = 180.0
    """/healthz fails when the last round is older than this, so that a stuck controller is restarted."""


class PerfSettings(Section):
    """The performance model."""

    constants: Path | None = None
    """Constants fitted to one's own cluster, as `trimtab perf calibrate` writes them; by default the published ones."""


class PriceSettings(Section):
    """What GPUs cost, to tell the cost of a plan. They change no decision."""

    currency: str = ""
    """Shown behind amounts, as it is."""
    per_gpu_hour: dict[str, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    """GPU type, e.g. `H100-SXM5-80GB`, and the price of one GPU for one hour."""


class LogSettings(Section):
    """Logs go to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is written."""
    format: Literal["console", "json"] = "console"
    """For people or for machines."""
