"""The schedulers of others: how each is started, and how it is told what belongs together.

Kueue is a Go module in a folder beside this file, with pinned versions, built once (`programs`), and its CRDs are those
of the module. Of Volcano, KAI and scheduler-plugins not all modules can be had from the module proxy by name and
version: their binaries must be given (`--program volcano=PATH`), and their kinds are defined here with any content.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import aiohttp
import msgspec
import yaml
from hack.bench.bare_binder import Task
from hack.bench.cluster_fixture import HOST, NAMESPACE, SCHEDULER, Lab, free_port, until
from hack.bench.gangs import STOCK, grouped, pod_group

from trimtab.errors import LocalClusterError
from trimtab.kube.resources import POD_GROUPS, WORKLOADS, Resource
from trimtab_local.checkout import checkout
from trimtab_local.control_plane.build import find_go
from trimtab_local.control_plane.process import spawn, stop, tail

Object = dict[str, Any]
QPS, BURST = 500, 1000
STOP_SECONDS = 10.0
HERE = Path(__file__).parent


class Rival:
    """kube-scheduler, and what others change about it."""

    scheduler: ClassVar[str] = STOCK
    """Name by which pods ask for it."""
    stock: ClassVar[bool] = True
    """Whether kube-scheduler binds."""
    program: ClassVar[str] = ""
    """Its binary, where it has one of its own."""
    module: ClassVar[str] = ""
    """Go module that it is built from; the folder beside this file is called as the rival."""
    kinds: ClassVar[tuple[Resource, ...]] = ()
    """What it makes of gangs, that of the gang itself first; removed after each showing."""
    creator: ClassVar[str] = ""
    """Component that creates the pods; empty where that is the bare binder."""

    def __init__(self, name: str) -> None:
        self.name = name

    def member(self, pod: Task) -> Task:
        """A pod that says to which gang it belongs."""
        return pod

    def group(self, gang: str, size: int) -> Object:
        """The object of a gang."""
        raise NotImplementedError

    def jobs(self, pods: Sequence[Task]) -> list[Object]:
        """What `creator` makes pods of."""
        raise NotImplementedError

    def prepare(self, lab: Lab, directory: Path) -> None:
        """Make what it needs to run; what is there stays."""

    def command(self, lab: Lab, directory: Path, port: int) -> list[str]:
        """Arguments, and where need be a configuration file in `directory`; health is asked at `port`."""
        raise NotImplementedError

    health: ClassVar[str] = "http://{host}:{port}/healthz"

    def companions(self, lab: Lab, program: Path) -> list[list[str | Path]]:
        """Commands of further processes that it consists of, whose binaries lie beside its own."""
        return []

    # --- the same for all -------------------------------------------------------------------------------------------
    def built(self) -> Path:
        """Its binary, which is compiled unless it is there, with patience. Raises LocalClusterError."""
        if not self.module:
            raise LocalClusterError(f"its Go modules cannot all be had; give its binary, --program {self.name}=PATH")
        command = ["nice", "-n", "10", sys.executable, "-m", "hack.bench.peers.programs", self.name]
        environment = {**os.environ, "GOFLAGS": f"{os.environ.get('GOFLAGS', '')} -p=2".strip()}
        done = subprocess.run(command, cwd=checkout(), env=environment, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise LocalClusterError("it cannot be built here, see above")
        return Path(done.stdout.strip()) / self.program

    def sources(self) -> Path:
        """Its Go module. Raises LocalClusterError."""
        command = [str(find_go((1, 26))), "list", "-m", "-json", self.module]
        environment = {**os.environ, "GOTOOLCHAIN": "local"}
        found = subprocess.run(
            command, cwd=HERE / self.name, env=environment, capture_output=True, text=True, check=False
        )
        if "Dir" not in (content := json.loads(found.stdout or "{}")):
            raise LocalClusterError(f"the sources of {self.module} cannot be had: {found.stderr}")
        return Path(content["Dir"])

    @asynccontextmanager
    async def running(self, lab: Lab, program: Path | None) -> AsyncIterator[list[int]]:
        """Its own processes, ready, by their pids. Raises LocalClusterError with the end of its log where it dies."""
        if program is None:
            yield []
            return
        directory = lab.log.parent / self.name
        directory.mkdir(exist_ok=True)
        self.prepare(lab, directory)
        port, log = free_port(), directory / "log"
        environment = {**os.environ, "TMPDIR": str(directory), "KUBECONFIG": str(lab.kubeconfig)}
        commands = [[program, *self.command(lab, directory, port)], *self.companions(lab, program)]
        processes = [spawn(command, log, environment) for command in commands]
        try:

            async def ready() -> bool:
                if any(process.poll() is not None for process in processes):
                    raise LocalClusterError(f"{self.name} ended at once:\n{tail(log)}")
                return await _answers(self.health.format(host=HOST, port=port))

            try:
                await until(f"{self.name} is ready", ready)
            except TimeoutError as error:
                raise LocalClusterError(f"{error}:\n{tail(log)}") from error
            yield [process.pid for process in processes]
        finally:
            stop(processes, STOP_SECONDS)


async def _answers(url: str) -> bool:
    """Whether GET is answered with 200; certificates that a program makes for itself are nobody's concern here."""
    try:
        async with aiohttp.ClientSession() as session, session.get(url, ssl=False) as answer:
            return answer.status == 200
    except aiohttp.ClientConnectionError:
        return False


class PodGroups(Rival):
    """kube-scheduler's own gangs."""

    kinds = (POD_GROUPS,)

    def member(self, pod: Task) -> Task:
        return grouped(pod)

    def group(self, gang: str, size: int) -> Object:
        return pod_group(gang, size)


def _labelled(pod: Task, where: str, key: str) -> Task:
    """With its gang's name as a label, or an annotation."""
    meta = pod.body["metadata"]
    told = {**meta.get(where, {}), key: pod.gang}
    return msgspec.structs.replace(pod, body={**pod.body, "metadata": {**meta, where: told}})


class Coscheduling(Rival):
    """A kube-scheduler with the plugin: pods wait in its phase `Permit` until their gang is complete."""

    scheduler, stock, program = "coscheduling", False, "kube-scheduler"
    kinds = (Resource("scheduling.x-k8s.io/v1alpha1", "podgroups"),)
    health = "https://{host}:{port}/readyz"

    def member(self, pod: Task) -> Task:
        return _labelled(pod, "labels", "scheduling.x-k8s.io/pod-group")

    def group(self, gang: str, size: int) -> Object:
        meta = {"name": gang, "namespace": NAMESPACE}
        api = self.kinds[0].api_version
        return {"apiVersion": api, "kind": "PodGroup", "metadata": meta, "spec": {"minMember": size}}

    def prepare(self, lab: Lab, directory: Path) -> None:
        _define(lab, _kind(self.kinds[0], "PodGroup"))

    def command(self, lab: Lab, directory: Path, port: int) -> list[str]:
        plugin = {"enabled": [{"name": "Coscheduling"}]}
        only = {**plugin, "disabled": [{"name": "*"}]}
        configuration = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": {"kubeconfig": str(lab.kubeconfig), "qps": QPS, "burst": BURST},
            "profiles": [{"schedulerName": self.scheduler, "plugins": {"multiPoint": plugin, "queueSort": only}}],
        }
        path = directory / "configuration.yaml"
        path.write_text(yaml.safe_dump(configuration))
        return [f"--config={path}", f"--bind-address={HOST}", f"--secure-port={port}", f"--cert-dir={directory}"]


class Volcano(Rival):
    """Volcano's scheduler with the actions and plugins of its chart (1.15), which takes a look once in a second."""

    scheduler, stock, program = "volcano", False, "vc-scheduler"
    kinds = (Resource("scheduling.volcano.sh/v1beta1", "podgroups"),)
    watched = (
        (Resource("scheduling.volcano.sh/v1beta1", "queues"), "Queue"),
        (Resource("nodeinfo.volcano.sh/v1alpha1", "numatopologies"), "Numatopology"),
        (Resource("topology.volcano.sh/v1alpha1", "hypernodes"), "HyperNode"),
    )
    """What else it waits for at its start."""
    queues = ("root", "default")
    """It would make these itself, but its controllers, which do not run here, are who opens them."""
    tiers = (
        ("priority", "gang", "conformance"),
        ("overcommit", "drf", "predicates", "proportion", "nodeorder", "binpack"),
    )

    def member(self, pod: Task) -> Task:
        return _labelled(pod, "annotations", "scheduling.k8s.io/group-name")

    def group(self, gang: str, size: int) -> Object:
        meta = {"name": gang, "namespace": NAMESPACE}
        spec = {"minMember": size, "queue": "default"}
        return {"apiVersion": self.kinds[0].api_version, "kind": "PodGroup", "metadata": meta, "spec": spec}

    def prepare(self, lab: Lab, directory: Path) -> None:
        others = (_kind(resource, kind, scope="Cluster") for resource, kind in self.watched)
        _define(lab, _kind(self.kinds[0], "PodGroup"), *others)
        queues, kind = self.watched[0]
        for name in self.queues:
            spec = {"weight": 1, "reclaimable": False} | ({"parent": "root"} if name != "root" else {})
            _apply(lab, {"apiVersion": queues.api_version, "kind": kind, "metadata": {"name": name}, "spec": spec})
            opened = ("--subresource=status", "--type=merge", "--patch", '{"status": {"state": "Open"}}')
            lab.kubectl("patch", f"{queues.plural}.{queues.api_version.partition('/')[0]}", name, *opened)

    def command(self, lab: Lab, directory: Path, port: int) -> list[str]:
        tiers = [{"plugins": [{"name": name} for name in tier]} for tier in self.tiers]
        path = directory / "configuration.yaml"
        path.write_text(yaml.safe_dump({"actions": "enqueue, allocate, backfill", "tiers": tiers}))
        return [
            f"--kubeconfig={lab.kubeconfig}",
            f"--scheduler-conf={path}",
            "--leader-elect=false",
            "--enable-healthz=true",
            f"--healthz-address={HOST}:{port}",
            "--cache-dumper=false",
        ]


class Kai(Rival):
    """NVIDIA's KAI scheduler as it is by default, which takes a look once in a second, and its binder, which binds what
    the scheduler has written as requests. Queues are two levels, without limits."""

    scheduler, stock, program = "kai-scheduler", False, "scheduler"
    kinds = (
        Resource("scheduling.run.ai/v2alpha2", "podgroups"),
        Resource("scheduling.run.ai/v1alpha2", "bindrequests"),
    )
    health = "http://{host}:{port}/metrics"
    queues = Resource("scheduling.run.ai/v2", "queues")
    topologies = Resource("kai.scheduler/v1alpha1", "topologies")
    queue = "peers"
    pace = f"--qps={QPS}", f"--burst={BURST}"

    def member(self, pod: Task) -> Task:
        named = _labelled(pod, "annotations", "pod-group-name")
        meta = named.body["metadata"]
        labels = {**meta.get("labels", {}), "kai.scheduler/queue": self.queue}
        return msgspec.structs.replace(named, body={**named.body, "metadata": {**meta, "labels": labels}})

    def group(self, gang: str, size: int) -> Object:
        meta = {"name": gang, "namespace": NAMESPACE, "labels": {"kai.scheduler/queue": self.queue}}
        spec = {"minMember": size, "queue": self.queue}
        return {"apiVersion": self.kinds[0].api_version, "kind": "PodGroup", "metadata": meta, "spec": spec}

    def prepare(self, lab: Lab, directory: Path) -> None:
        own = [_kind(resource, kind) for resource, kind in zip(self.kinds, ("PodGroup", "BindRequest"), strict=True)]
        everywhere = (self.queues, "Queue"), (self.topologies, "Topology")
        _define(lab, *own, *(_kind(resource, kind, scope="Cluster") for resource, kind in everywhere))
        free = {each: {"quota": 0, "limit": -1, "overQuotaWeight": 1} for each in ("cpu", "gpu", "memory")}
        parent = f"all-{self.queue}"
        queues = {parent: {"resources": free}, self.queue: {"resources": free, "parentQueue": parent}}
        about = {"apiVersion": self.queues.api_version, "kind": "Queue"}
        _apply(lab, *({**about, "metadata": {"name": name}, "spec": spec} for name, spec in queues.items()))

    def command(self, lab: Lab, directory: Path, port: int) -> list[str]:
        return [f"--listen-address={HOST}:{port}", f"--plugin-server-port={free_port()}", *self.pace]

    def companions(self, lab: Lab, program: Path) -> list[list[str | Path]]:
        metrics, probe = (f"{HOST}:{free_port()}" for _ in range(2))
        addresses = f"--metrics-bind-address={metrics}", f"--health-probe-bind-address={probe}"
        return [[program.parent / "binder", *addresses, *self.pace]]


class Kueue(Rival):
    """Kueue's controller, which lifts the suspension of Jobs as its quota allows."""

    program, module = "kueue", "sigs.k8s.io/kueue"
    kinds = (Resource("batch/v1", "jobs"), WORKLOADS)
    creator = "kube-controller-manager"
    health = "http://{host}:{port}/readyz"
    namespace, queue = "kueue-system", "peers"

    def __init__(self, name: str, gpus: int = 10**6) -> None:
        """`gpus` is the quota: by default there is room for everything, and what fits is decided by kube-scheduler."""
        super().__init__(name)
        self._quota = gpus

    def jobs(self, pods: Sequence[Task]) -> list[Object]:
        gangs: dict[str, list[Task]] = {}
        for pod in pods:
            gangs.setdefault(pod.gang, []).append(pod)
        return [self._job(gang, members) for gang, members in gangs.items()]

    def _job(self, gang: str, pods: Sequence[Task]) -> Object:
        body = pods[0].body
        spec = {key: value for key, value in body["spec"].items() if key not in ("hostname", "subdomain")}
        meta = {key: body["metadata"][key] for key in ("labels", "annotations") if key in body["metadata"]}
        size = {"parallelism": len(pods), "completions": len(pods), "completionMode": "Indexed"}
        template = {"metadata": meta, "spec": {**spec, "restartPolicy": "Never"}}
        about = {"name": gang, "namespace": NAMESPACE, "labels": {"kueue.x-k8s.io/queue-name": self.queue}}
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": about,
            "spec": {**size, "suspend": True, "template": template},
        }

    def prepare(self, lab: Lab, directory: Path) -> None:
        from trimtab_local.control_plane.pki import Authority  # needs the extra `local`, as the control plane does

        crds = _documents(sorted((self.sources() / "config/components/crd/bases").glob("*.yaml")))
        for crd in crds:  # its rotator of certificates wants a place to write to; no version is ever converted
            hook = {"clientConfig": {"url": f"https://{HOST}:1/convert"}, "conversionReviewVersions": ["v1"]}
            crd["spec"]["conversion"] = {"strategy": "Webhook", "webhook": hook}
        _define(lab, *crds)
        Authority("webhooks").issue(directory / "tls", "webhooks", hosts=[HOST])
        _apply(lab, *self._installed(), *self._queues())

    def _installed(self) -> list[Object]:
        """What its controller looks for at its start."""
        hooks = [
            {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": f"{kind}WebhookConfiguration",
                "metadata": {"name": f"kueue-{kind.lower()}-webhook-configuration"},
                "webhooks": [],
            }
            for kind in ("Validating", "Mutating")
        ]
        secret = {"name": "kueue-webhook-server-cert", "namespace": self.namespace}
        return [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}},
            {"apiVersion": "v1", "kind": "Secret", "metadata": secret},
            *hooks,
        ]

    def _queues(self) -> list[Object]:
        """One queue."""
        api = WORKLOADS.api_version
        covered = {"cpu": "1M", "memory": "10Pi", "nvidia.com/gpu": str(self._quota)}
        quotas = [{"name": name, "nominalQuota": quota} for name, quota in covered.items()]
        groups = [{"coveredResources": list(covered), "flavors": [{"name": "default", "resources": quotas}]}]
        return [
            {"apiVersion": api, "kind": "ResourceFlavor", "metadata": {"name": "default"}, "spec": {}},
            {
                "apiVersion": api,
                "kind": "ClusterQueue",
                "metadata": {"name": self.queue},
                "spec": {"namespaceSelector": {}, "resourceGroups": groups},
            },
            {
                "apiVersion": api,
                "kind": "LocalQueue",
                "metadata": {"name": self.queue, "namespace": NAMESPACE},
                "spec": {"clusterQueue": self.queue},
            },
        ]

    def command(self, lab: Lab, directory: Path, port: int) -> list[str]:
        configuration = {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "namespace": self.namespace,
            "health": {"healthProbeBindAddress": f"{HOST}:{port}"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"host": HOST, "port": free_port(), "certDir": str(directory)},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {
                "enable": True,
                "webhookServiceName": "kueue-webhook-service",
                "webhookSecretName": "kueue-webhook-server-cert",
            },
            "clientConnection": {"qps": QPS, "burst": BURST},
            "controller": {"groupKindConcurrency": {"Job.batch": 5, "Workload.kueue.x-k8s.io": 5}},
            "integrations": {"frameworks": ["batch/job"]},
        }
        path = directory / "configuration.yaml"
        path.write_text(yaml.safe_dump(configuration))
        gates = "--feature-gates=VisibilityOnDemand=false"  # it would listen on a fixed port
        return [f"--config={path}", f"--kubeconfig={lab.kubeconfig}", gates]


def _documents(paths: Sequence[Path]) -> list[Object]:
    return [each for path in paths for each in yaml.safe_load_all(path.read_text()) if each]


def _apply(lab: Lab, *objects: Object) -> None:
    content = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    lab.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=content)


def _kind(resource: Resource, kind: str, scope: str = "Namespaced") -> Object:
    """A CRD of any content."""
    group, version = resource.api_version.split("/")
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "properties": {"spec": anything, "status": anything}}
    served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": kind, "listKind": f"{kind}List", "plural": resource.plural, "singular": kind.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{group}"},
        "spec": {
            "group": group,
            "names": names,
            "scope": scope,
            "versions": [served | {"subresources": {"status": {}}}],
        },
    }


def _define(lab: Lab, *crds: Object) -> None:
    """Have CRDs served."""
    _apply(lab, *crds)
    names = [f"crd/{crd['metadata']['name']}" for crd in crds]
    lab.kubectl("wait", "--for=condition=Established", "--timeout=60s", *names)


RIVALS: dict[str, Rival] = {
    SCHEDULER: Rival(SCHEDULER),
    "podgroups": PodGroups("podgroups"),
    "coscheduling": Coscheduling("coscheduling"),
    "volcano": Volcano("volcano"),
    "kai": Kai("kai"),
    "kueue": Kueue("kueue"),
}
"""In the order in which they run."""
