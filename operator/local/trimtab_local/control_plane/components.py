"""How each component is started: which flags, whose certificate, where it says that it is ready.

Everything listens on 127.0.0.1 only, with TLS; nobody is anonymous to the API server. The controller manager, the
scheduler and KWOK answer nothing but health without credentials.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import yaml
from msgspec import Struct

from trimtab.errors import LocalClusterError
from trimtab_local.control_plane.kubeconfig import certificate_credentials, write_kubeconfig
from trimtab_local.control_plane.layout import Layout
from trimtab_local.control_plane.options import DEFAULTS, ClusterOptions, SecondScheduler, gates_flag

HOST = "127.0.0.1"
SERVICE_RANGE = "10.96.0.0/16"
SERVER_HOSTS = (HOST, "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "10.96.0.1")
POD_RANGE = "10.128.0.0/9"
"""Fake pods draw their addresses from here; nothing is ever sent to one."""

ADMIN = "admin"
USERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    ADMIN: ("trimtab-local-admin", ("system:masters",)),
    "kube-controller-manager": ("system:kube-controller-manager", ()),
    "kube-scheduler": ("system:kube-scheduler", ()),
    "kwok": ("system:kwok", ()),
}
"""Who a component, or the administrator, is to the API server: user and groups."""

SECOND_SCHEDULER = "kube-scheduler-trimtab"
PORTS = (
    "etcd", "etcd-peer", "kube-apiserver", "kube-controller-manager", "kube-scheduler", SECOND_SCHEDULER, "kwok",
)  # fmt: skip

CONTROLLERS = (
    "garbage-collector-controller",
    "namespace-controller",
    "node-lifecycle-controller",
    "taint-eviction-controller",
    "pod-garbage-collector-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "root-ca-certificate-publisher-controller",
    "clusterrole-aggregation-controller",
    "resourcequota-controller",
    "disruption-controller",
    "replicaset-controller",
    "deployment-controller",
    "job-controller",
    "ttl-after-finished-controller",
    "resourceclaim-controller",
)
"""What jobs, their pods and fake nodes need. Each further one costs memory; no volume, cloud or network exists."""

NODE_LEASE_SECONDS = 120
"""KWOK renews a lease four times in this span: every 30 s, well inside the 50 s after which a node is NotReady,
and a third of the kubelet's rate, which on 1,000 nodes would be 100 writes per second."""


class Component(Struct, frozen=True):
    """A process of the control plane."""

    name: str
    argv: tuple[str, ...]
    port: int
    health: str
    """Path that answers 200 when the component is ready."""
    server_ca: Path
    client: Path
    """Stem of the client certificate to ask with."""


def prepare(layout: Layout, ports: Mapping[str, int]) -> None:
    """Write what the components read: certificates, keys, kubeconfigs and KWOK's configuration.

    Raises LocalClusterError where the extra `local` is not installed.
    """
    try:  # here, since commands import this module: only whoever starts a cluster needs the extra
        from trimtab_local.control_plane.pki import Authority, save_signing_pair
    except ModuleNotFoundError as error:
        raise LocalClusterError(
            f"a local cluster needs the extra `local`: pip install 'trimtab[local]' ({error})"
        ) from error
    pki = layout.certificates
    authority, etcd_authority = Authority("trimtab-local"), Authority("trimtab-local-etcd")
    authority.save(pki / "ca.crt")
    etcd_authority.save(pki / "etcd-ca.crt")
    etcd_authority.issue(pki / "etcd", "etcd", hosts=(HOST,))
    etcd_authority.issue(pki / "etcd-client", "kube-apiserver")
    authority.issue(pki / "server", "kube-apiserver", hosts=SERVER_HOSTS)
    authority.issue(pki / "health", "trimtab-health", hosts=(HOST,))
    files = layout.extender_files
    authority.issue(files.certificate.with_suffix(""), "trimtab-extender", hosts=(HOST, "localhost"))
    authority.issue(files.client_certificate.with_suffix(""), SECOND_SCHEDULER)
    save_signing_pair(pki / "service-account")
    server, ca = server_url(ports), (pki / "ca.crt").read_bytes()
    for name, (user, groups) in USERS.items():
        authority.issue(pki / name, user, groups=groups)
        path = layout.kubeconfig if name == ADMIN else layout.user_kubeconfig(name)
        write_kubeconfig(path, f"trimtab-{layout.name}", server, ca, user, certificate_credentials(pki / name))
    (pki / "kwok.yaml").write_text(KWOK_CONFIGURATION)


def server_url(ports: Mapping[str, int]) -> str:
    """Where the API server is."""
    return f"https://{HOST}:{ports['kube-apiserver']}"


def etcd(layout: Layout, ports: Mapping[str, int], binaries: Path) -> Component:
    """The store."""
    pki = layout.certificates
    client, peer = f"https://{HOST}:{ports['etcd']}", f"https://{HOST}:{ports['etcd-peer']}"
    tls = {"cert-file": pki / "etcd.crt", "key-file": pki / "etcd.key", "trusted-ca-file": pki / "etcd-ca.crt"}
    flags = {
        "data-dir": layout.etcd_data,
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"default={peer}",
        **tls,
        "client-cert-auth": "true",
        **{f"peer-{flag}": path for flag, path in tls.items()},
        "peer-client-cert-auth": "true",
        # Not waiting for the disk is what makes a local cluster fast. A power cut may lose the data of a cluster that
        # is thrown away anyway; a killed process loses nothing, the page cache stays.
        "unsafe-no-fsync": "true",
        "auto-compaction-mode": "periodic",
        "auto-compaction-retention": "5m",
        "quota-backend-bytes": 4 << 30,
        "log-level": "warn",
    }
    return _component("etcd", binaries, flags, ports, "/readyz", pki / "etcd-ca.crt", pki / "etcd-client")


def kube_apiserver(
    layout: Layout, ports: Mapping[str, int], binaries: Path, options: ClusterOptions = DEFAULTS
) -> Component:
    """The API server."""
    pki = layout.certificates
    flags = {
        "etcd-servers": f"https://{HOST}:{ports['etcd']}",
        "etcd-cafile": pki / "etcd-ca.crt",
        "etcd-certfile": pki / "etcd-client.crt",
        "etcd-keyfile": pki / "etcd-client.key",
        "bind-address": HOST,
        "advertise-address": HOST,  # else it looks for a default route, and ends on a machine that has none
        "secure-port": ports["kube-apiserver"],
        "tls-cert-file": pki / "server.crt",
        "tls-private-key-file": pki / "server.key",
        "client-ca-file": pki / "ca.crt",
        "anonymous-auth": "false",
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction",
        "service-account-issuer": "https://kubernetes.default.svc",
        "service-account-key-file": pki / "service-account.pub",
        "service-account-signing-key-file": pki / "service-account.key",
        "service-cluster-ip-range": SERVICE_RANGE,
        # the `kubernetes` Service must not point at a loopback address, and no pod would use it
        "endpoint-reconciler-type": "none",
        "profiling": "false",
        **gates_flag(options.feature_gates),
        **({"runtime-config": ",".join(f"{api}=true" for api in options.apis)} if options.apis else {}),
    }
    return _component("kube-apiserver", binaries, flags, ports, "/readyz", pki / "ca.crt", pki / ADMIN)


def kube_controller_manager(
    layout: Layout, ports: Mapping[str, int], binaries: Path, options: ClusterOptions = DEFAULTS
) -> Component:
    """The controllers, each with credentials of its own."""
    pki = layout.certificates
    flags = {
        **_client_of_the_api("kube-controller-manager", layout, ports),
        "controllers": ",".join((*CONTROLLERS, *options.controllers)),
        **gates_flag(options.feature_gates),
        "use-service-account-credentials": "true",
        "service-account-private-key-file": pki / "service-account.key",
        "root-ca-file": pki / "ca.crt",
        "kube-api-qps": 500,
        "kube-api-burst": 1000,
        **({"node-monitor-grace-period": options.node_grace} if options.node_grace else {}),
    }
    return _api_client("kube-controller-manager", layout, ports, binaries, flags)


def kube_scheduler(
    layout: Layout, ports: Mapping[str, int], binaries: Path, options: ClusterOptions = DEFAULTS
) -> Component:
    """The stock scheduler, for all pods that do not name another."""
    flags = _client_of_the_api("kube-scheduler", layout, ports) | {"kube-api-qps": 500, "kube-api-burst": 1000}
    return _api_client("kube-scheduler", layout, ports, binaries, flags | gates_flag(options.feature_gates))


def second_scheduler(
    layout: Layout, ports: Mapping[str, int], binaries: Path, options: ClusterOptions, scheduler: SecondScheduler
) -> Component:
    """The scheduler that has the extender. What a configuration file says cannot be said by flags as well."""
    connection = {"kubeconfig": str(layout.user_kubeconfig("kube-scheduler")), "qps": 500, "burst": 1000}
    configuration = {**scheduler.configuration, "clientConnection": connection, "enableProfiling": False}
    path = layout.certificates / f"{SECOND_SCHEDULER}.yaml"
    path.write_text(yaml.safe_dump(configuration, sort_keys=False))
    flags = {
        "config": path,
        **_serving(SECOND_SCHEDULER, layout, ports),
        **gates_flag(options.feature_gates, scheduler.feature_gates),
    }
    component = _api_client("kube-scheduler", layout, ports, binaries, flags)
    return msgspec.structs.replace(component, name=SECOND_SCHEDULER, port=ports[SECOND_SCHEDULER])


def kwok(layout: Layout, ports: Mapping[str, int], binaries: Path, stages: Path) -> Component:
    """Plays the kubelet of all nodes that carry the annotation; `stages` says how."""
    pki = layout.certificates
    flags = {
        "kubeconfig": layout.user_kubeconfig("kwok"),
        "config": f"{stages},{pki / 'kwok.yaml'}",
        "manage-nodes-with-annotation-selector": "kwok.x-k8s.io/node=fake",
        "node-lease-duration-seconds": NODE_LEASE_SECONDS,
        "cidr": POD_RANGE,
        "node-ip": HOST,
        "server-address": f"{HOST}:{ports['kwok']}",
        "tls-cert-file": pki / "health.crt",
        "tls-private-key-file": pki / "health.key",
    }
    return _api_client("kwok", layout, ports, binaries, flags)


KWOK_CONFIGURATION = """\
apiVersion: config.kwok.x-k8s.io/v1alpha1
kind: KwokConfiguration
options:
  enableDebuggingHandlers: false
  podPlayStageParallelism: 16
  nodePlayStageParallelism: 16
  nodeLeaseParallelism: 16
"""


def _client_of_the_api(name: str, layout: Layout, ports: Mapping[str, int]) -> dict[str, object]:
    """Flags that the controller manager and the scheduler share. One of each: no leader to elect."""
    return {
        "kubeconfig": layout.user_kubeconfig(name),
        "leader-elect": "false",
        **_serving(name, layout, ports),
        "profiling": "false",
    }


def _serving(name: str, layout: Layout, ports: Mapping[str, int]) -> dict[str, object]:
    return {
        "bind-address": HOST,
        "secure-port": ports[name],
        "tls-cert-file": layout.certificates / "health.crt",
        "tls-private-key-file": layout.certificates / "health.key",
    }


def _api_client(
    name: str, layout: Layout, ports: Mapping[str, int], binaries: Path, flags: Mapping[str, object]
) -> Component:
    pki = layout.certificates
    return _component(name, binaries, flags, ports, "/healthz", pki / "ca.crt", pki / ADMIN)


def _component(
    name: str,
    binaries: Path,
    flags: Mapping[str, object],
    ports: Mapping[str, int],
    health: str,
    server_ca: Path,
    client: Path,
) -> Component:
    argv = (str(binaries / name), *(f"--{flag}={value}" for flag, value in flags.items()))
    return Component(name, argv, ports[name], health, server_ca, client)
