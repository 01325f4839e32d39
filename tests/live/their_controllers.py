"""The real controllers of JobSets, TrainJobs, PyTorchJobs, MPIJobs and RayJobs, beside the local control plane.

    with running(live.cluster, directory, JOBSET, TRAINER):
        live.apply(...)

CRDs, roles and webhooks are those of the Go modules sigs.k8s.io/jobset, github.com/ray-project/kuberay, and of
github.com/kubeflow/trainer, training-operator and mpi-operator (Apache License 2.0), which hack/other-kinds pins; none
is kept here. Webhooks are real, too, called by URL and not by a Service, with a certificate that is made for them.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import yaml
from hack.kind.programs import others
from msgspec import Struct
from tests.live.harness import wait_until

from trimtab.errors import LocalClusterError
from trimtab_local.control_plane.build import build, find_go
from trimtab_local.control_plane.cluster import LocalCluster
from trimtab_local.control_plane.kubeconfig import service_account_kubeconfig
from trimtab_local.control_plane.pki import Authority
from trimtab_local.control_plane.process import spawn, stop
from trimtab_local.control_plane.supervisor import STOP_SECONDS, free_ports

Json = dict[str, Any]
READY_SECONDS = 90.0
RBAC = "rbac.authorization.k8s.io"


class NotBuilt(Exception):
    """Their modules cannot be had here."""


class Project(Struct, frozen=True):
    """Where a project keeps what is installed of it, in its Go module."""

    module: str
    program: str
    namespace: str
    account: str
    crds: tuple[str, ...]
    role: str
    webhooks: str = ""
    """Empty where it has none."""
    configuration: Callable[[Json], Json] | None = None
    """What its configuration file says, given ports `webhook` and `health` and the directory of its certificate; None
    where it has flags only."""
    flags: tuple[str, ...] = ()
    """`{webhook}` and `{health}` are these ports."""
    built: str = "."
    """Directory in hack/other-kinds whose module builds it."""
    kinds: tuple[str, ...] = ()
    """Plurals of those whose webhooks are called; empty for all."""
    secret: str = ""
    """Where it keeps a certificate that it makes itself; empty where it takes the one that it is given."""

    @property
    def user(self) -> str:
        """As the API server knows it."""
        return f"system:serviceaccount:{self.namespace}:{self.account}"


def _jobset(given: Json) -> Json:
    return {
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{given['health']}"},
        "webhook": {"host": "127.0.0.1", "port": given["webhook"], "certDir": given["certificate"]},
    }


def _trainer(given: Json) -> Json:
    return {
        "apiVersion": "config.trainer.kubeflow.org/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "certManagement": {"enable": False},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{given['health']}"},
        "webhook": {"host": "127.0.0.1", "port": given["webhook"]},
    }


JOBSET = Project(
    module="sigs.k8s.io/jobset",
    program="jobset",
    namespace="jobset-system",
    account="jobset-controller-manager",
    crds=("config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml",),
    role="config/components/rbac/role.yaml",
    webhooks="config/components/webhook/manifests.yaml",
    configuration=_jobset,
    flags=("--metrics-bind-address=0",),
)
TRAINER = Project(
    module="github.com/kubeflow/trainer/v2",
    program="trainer-controller-manager",
    namespace="kubeflow-system",
    account="kubeflow-trainer-controller-manager",
    crds=tuple(
        f"manifests/base/crds/trainer.kubeflow.org_{plural}.yaml"
        for plural in ("clustertrainingruntimes", "trainingruntimes", "trainjobs")
    ),
    role="manifests/base/rbac/role.yaml",
    webhooks="manifests/base/webhook/manifests.yaml",
    configuration=_trainer,
)
TRAINING_OPERATOR = Project(
    module="github.com/kubeflow/training-operator",
    program="training-operator.v1",
    namespace="kubeflow",
    account="training-operator",
    crds=tuple(f"manifests/base/crds/kubeflow.org_{plural}.yaml" for plural in ("pytorchjobs", "mpijobs")),
    role="manifests/base/rbac/role.yaml",
    webhooks="manifests/base/webhook/manifests.yaml",
    flags=(
        "--enable-scheme=pytorchjob",
        "--enable-scheme=mpijob",
        "--metrics-bind-address=0",
        "--health-probe-bind-address=127.0.0.1:{health}",
        "--webhook-server-port={webhook}",
    ),
    built="training-operator",
    kinds=("pytorchjobs",),
    secret="training-operator-webhook-cert",
)
KUBERAY = Project(
    module="github.com/ray-project/kuberay/ray-operator",
    program="ray-operator",
    namespace="kuberay",
    account="kuberay-operator",
    crds=tuple(f"config/crd/bases/ray.io_{plural}.yaml" for plural in ("rayclusters", "rayjobs")),
    role="config/rbac/role.yaml",
    flags=("--health=127.0.0.1:{health}",),
)
MPI_OPERATOR = Project(
    module="github.com/kubeflow/mpi-operator",
    program="mpi-operator",
    namespace="mpi-operator",
    account="mpi-operator",
    crds=("manifests/base/kubeflow.org_mpijobs.yaml",),
    role="manifests/base/cluster-role.yaml",
    flags=("--health=127.0.0.1:{health}", "--kube-api-qps=500", "--kube-api-burst=1000"),
)
"""Not beside the training operator: both have a CRD of the same name. Its queue takes each event for a failure until it
has dealt with the job, and doubles its pause each time: with the usual five requests a second, up to a minute goes by
before it looks at a job again that has changed often."""


@contextmanager
def running(cluster: LocalCluster, directory: Path, *projects: Project) -> Iterator[None]:
    """The controllers of these projects, while the block runs. Skips the tests that need them without their modules."""
    with ExitStack() as stack:
        for project in projects:
            try:
                stack.enter_context(_running(project, cluster, directory))
            except NotBuilt as error:
                pytest.skip(f"{project.program} cannot be built here: {error}")
        yield


def _sources(project: Project) -> Path:
    module = others()[project.built]
    command = [str(find_go(module.go)), "list", "-m", "-json", project.module]
    environment = {**os.environ, "GOTOOLCHAIN": "local"}
    found = subprocess.run(
        command, cwd=module.directory, env=environment, capture_output=True, text=True, timeout=90, check=False
    )
    content = json.loads(found.stdout or "{}")
    if "Dir" not in content:
        raise NotBuilt(f"{project.module}: {content.get('Error') or found.stderr}")
    return Path(content["Dir"])


@contextmanager
def _running(project: Project, cluster: LocalCluster, directory: Path) -> Iterator[None]:
    try:
        programs, sources = build(others()[project.built]), _sources(project)
    except (LocalClusterError, OSError) as error:
        raise NotBuilt(str(error)) from error
    here = directory / project.program
    here.mkdir()
    objects = [*_rights(project, sources), *(_read(sources / crd)[0] for crd in project.crds)]
    _apply(cluster, objects)
    _await_kinds(cluster, [each["metadata"]["name"] for each in objects if each["kind"] == "CustomResourceDefinition"])
    ports, certificate = free_ports(), here / "k8s-webhook-server" / "serving-certs"
    webhook, health = list(ports.values())[:2]
    hooks = _webhooks(project, sources, webhook, _certify(certificate))
    process = _start(project, cluster, programs, here, webhook, health)
    try:
        _await(process, f"http://127.0.0.1:{health}/readyz", here / "log")
        if hooks:
            _apply(cluster, hooks)
        yield
    finally:
        if hooks:
            _delete(cluster, hooks)
        stop([process], STOP_SECONDS)
        _delete(cluster, objects)


def _await_kinds(cluster: LocalCluster, crds: list[str]) -> None:
    """Until they are served. `kubectl wait` fails where they have no conditions yet."""

    def served(crd: str) -> bool:
        told = json.loads(cluster.kubectl("get", "crd", crd, "-o", "json"))["status"].get("conditions") or []
        return any(each["type"] == "Established" and each["status"] == "True" for each in told)

    wait_until(lambda: all(map(served, crds)), f"{crds} to be served")


def _read(path: Path) -> list[Json]:
    return [each for each in yaml.safe_load_all(path.read_text()) if each]


def _rights(project: Project, sources: Path) -> list[Json]:
    """Its account, with its own role."""
    role, *_ = _read(sources / project.role)  # others are for its users
    name = f"{project.account}-role"
    account = {"name": project.account, "namespace": project.namespace}
    reference = {"apiGroup": RBAC, "kind": "ClusterRole", "name": name}
    binding = {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name}}
    kept = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": project.secret, "namespace": project.namespace}}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": project.namespace}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account},
        role | {"metadata": {"name": name}},
        binding | {"subjects": [{"kind": "ServiceAccount", **account}], "roleRef": reference},
        *([kept] if project.secret else []),
    ]


def _certify(directory: Path) -> bytes:
    """Write a certificate for 127.0.0.1; returns its authority's."""
    directory.mkdir(parents=True)
    authority = Authority("webhooks")
    authority.save(directory / "ca.crt")
    authority.issue(directory / "tls", "webhooks", hosts=["127.0.0.1"])
    return (directory / "ca.crt").read_bytes()


def _webhooks(project: Project, sources: Path, port: int, ca: bytes) -> list[Json]:
    found = _read(sources / project.webhooks) if project.webhooks else []
    for each in found:
        each["metadata"]["name"] = f"{project.program}-{each['metadata']['name']}"
        if project.kinds:
            wanted = set(project.kinds)
            hooks = each["webhooks"]
            each["webhooks"] = [hook for hook in hooks if wanted & set(hook["rules"][0]["resources"])]
        for hook in each["webhooks"]:
            path = hook["clientConfig"]["service"]["path"]
            bundle = base64.b64encode(ca).decode()
            hook["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": bundle}
    return found


def _start(
    project: Project, cluster: LocalCluster, programs: Path, here: Path, webhook: int, health: int
) -> subprocess.Popen[bytes]:
    kubeconfig, configuration = here / "kubeconfig", here / "configuration.yaml"
    flags = [flag.format(webhook=webhook, health=health) for flag in project.flags]
    service_account_kubeconfig(cluster.kubeconfig, project.namespace, project.account, kubeconfig)
    certificate = str(here / "k8s-webhook-server" / "serving-certs")
    given = {"webhook": webhook, "health": health, "certificate": certificate}
    if project.configuration:
        configuration.write_text(yaml.safe_dump(project.configuration(given)))
        flags.append(f"--config={configuration}")
    if project.secret:
        _mounted(_sources(project))
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "TMPDIR": str(here)}  # where certificates lie otherwise
    return spawn([programs / project.program, *flags], here / "log", environment)


def _mounted(sources: Path) -> None:
    """What such a controller makes itself is to be mounted at a path that its sources say, and until there is a file it
    waits. More is not done with that: its webhooks are served with what lies in its own directory."""
    [where] = re.findall(r'certDir += "(.+)"', (sources / "pkg" / "cert" / "cert.go").read_text())
    Path(where).mkdir(parents=True, exist_ok=True)
    (Path(where) / "tls.crt").touch()


def _await(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    limit = time.monotonic() + READY_SECONDS
    while time.monotonic() < limit and process.poll() is None:
        try:
            with urlopen(url, timeout=5):
                return
        except (URLError, OSError):
            time.sleep(0.1)
    process.kill()
    raise AssertionError(f"it does not get ready:\n{log.read_text()[-4000:]}")


def _apply(cluster: LocalCluster, objects: list[Json]) -> None:
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=_listed(objects))


def _delete(cluster: LocalCluster, objects: list[Json]) -> None:
    """All but their namespaces, which take long to go and may be wanted again."""
    left = [each for each in objects if each["kind"] != "Namespace"]
    cluster.kubectl("delete", "--ignore-not-found", "--timeout=180s", "-f", "-", stdin=_listed(left), timeout=200)


def _listed(objects: list[Json]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
