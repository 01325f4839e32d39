"""The real controllers of JobSets and TrainJobs, beside the local control plane, with their projects' roles.

    with running(live.cluster, directory, JOBSET, TRAINER):
        live.apply(...)

CRDs, roles and webhooks are those of the Go modules sigs.k8s.io/jobset and github.com/kubeflow/trainer (Apache License
2.0), which hack/other-kinds pins; none is kept here. Webhooks are real, too, called by URL and not by a Service, with a
certificate that is made for them.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

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
    webhooks: str
    configuration: Callable[[Json], Json]
    """What its configuration file says, given ports `webhook` and `health` and the directory of its certificate."""
    flags: tuple[str, ...] = ()


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


@contextmanager
def running(cluster: LocalCluster, directory: Path, *projects: Project) -> Iterator[None]:
    """The controllers of these projects, while the block runs. Raises NotBuilt."""
    with ExitStack() as stack:
        for project in projects:
            stack.enter_context(_running(project, cluster, directory))
        yield


def _sources(project: Project) -> Path:
    module = others()
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
        programs, sources = build(others()), _sources(project)
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
        _apply(cluster, hooks)
        yield
    finally:
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
    [role] = _read(sources / project.role)
    name = f"{project.account}-role"
    account = {"name": project.account, "namespace": project.namespace}
    reference = {"apiGroup": RBAC, "kind": "ClusterRole", "name": name}
    binding = {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name}}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": project.namespace}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account},
        role | {"metadata": {"name": name}},
        binding | {"subjects": [{"kind": "ServiceAccount", **account}], "roleRef": reference},
    ]


def _certify(directory: Path) -> bytes:
    """Write a certificate for 127.0.0.1; returns its authority's."""
    directory.mkdir(parents=True)
    authority = Authority("webhooks")
    authority.save(directory / "ca.crt")
    authority.issue(directory / "tls", "webhooks", hosts=["127.0.0.1"])
    return (directory / "ca.crt").read_bytes()


def _webhooks(project: Project, sources: Path, port: int, ca: bytes) -> list[Json]:
    found = _read(sources / project.webhooks)
    for each in found:
        each["metadata"]["name"] = f"{project.program}-{each['metadata']['name']}"
        for hook in each["webhooks"]:
            path = hook["clientConfig"]["service"]["path"]
            bundle = base64.b64encode(ca).decode()
            hook["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": bundle}
    return found


def _start(
    project: Project, cluster: LocalCluster, programs: Path, here: Path, webhook: int, health: int
) -> subprocess.Popen[bytes]:
    kubeconfig, configuration = here / "kubeconfig", here / "configuration.yaml"
    service_account_kubeconfig(cluster.kubeconfig, project.namespace, project.account, kubeconfig)
    certificate = str(here / "k8s-webhook-server" / "serving-certs")
    given = {"webhook": webhook, "health": health, "certificate": certificate}
    configuration.write_text(yaml.safe_dump(project.configuration(given)))
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "TMPDIR": str(here)}  # where certificates lie otherwise
    return spawn([programs / project.program, f"--config={configuration}", *project.flags], here / "log", environment)


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
