"""The laboratory: a local control plane with fake nodes, a controller to start and stop, and a broom.

The control plane is that of `trimtab cluster`: etcd, kube-apiserver, kube-controller-manager, kube-scheduler and KWOK.
Everybody who is measured talks to it as the administrator, over TLS.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from resource import RLIMIT_NOFILE, setrlimit
from typing import Any

import aiohttp
import msgspec

from trimtab import names
from trimtab.errors import Overloaded
from trimtab.kube.client import KubeClient
from trimtab.kube.resources import JOBS, LEASES, NODES, PODS, SERVICES, Resource
from trimtab.settings import KubeSettings
from trimtab_local.checkout import checkout
from trimtab_local.control_plane.cluster import LocalCluster
from trimtab_local.control_plane.layout import ClusterPhase
from trimtab_local.control_plane.options import ClusterOptions
from trimtab_local.fake.nodes import expand
from trimtab_local.fake.profile import FakeCluster, NodePool

HOST = "127.0.0.1"
NAMESPACE = "default"
PATIENCE_SECONDS = 120.0
REMOVAL_SECONDS = 600.0
"""What was measured is not lost because hundreds of pods go slowly on a machine that others use."""
POLL_SECONDS = 0.05
NODE_GPUS = 6
TICKS = os.sysconf("SC_CLK_TCK")
URGENT = "urgent"
"""A PriorityClass."""
SCHEDULER = "kube-scheduler"
NODE_GRACE = "1h"
"""KWOK stands still while a race is on, for as long as the slowest needs on a slow machine: no node may go NotReady."""
OPTIONS = ClusterOptions(restarted=(SCHEDULER,), node_grace=NODE_GRACE)


class Lab:
    """A running control plane."""

    def __init__(self, cluster: LocalCluster, client: KubeClient) -> None:
        self.client = client
        self.extender_files = cluster.extender_files
        self._cluster = cluster
        self.kubeconfig = cluster.kubeconfig
        self.log = cluster.log("controller")

    async def add_nodes(self, profile: FakeCluster) -> None:
        """Make fake nodes and wait until KWOK has made all of them Ready."""
        await asyncio.gather(*(self.client.create(NODES.path(), node) for node in expand(profile)))
        await until("all nodes are Ready", self._all_ready)

    async def items(self, resource: Resource) -> list[dict[str, Any]]:
        """All objects of a kind."""
        return list(msgspec.json.decode(await self.client.get(resource.path()))["items"])

    async def clear(self, *more: Resource) -> None:
        """Remove all jobs, pods, Services and objects of `more` kinds; no controller may run meanwhile."""
        for resource in (JOBS, PODS, SERVICES, *more):
            await self.remove(resource)

    async def remove(self, resource: Resource) -> None:
        """Delete all objects of a kind, and wait until they are gone."""
        options = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
        ours = {"labelSelector": names.LABEL_JOB} if resource == SERVICES else None
        late = True

        async def gone() -> bool:
            nonlocal late
            if late:  # thousands are not deleted within the time that a request may take: those that are left, again
                late = False
                try:
                    await self.client.request("DELETE", resource.path(NAMESPACE), body=options, params=ours)
                except Overloaded:
                    late = True
            return len(await self.items(resource)) <= (resource == SERVICES)  # one is the API server's own

        await until(f"all {resource.plural} are gone", gone, REMOVAL_SECONDS)

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        """Output of kubectl. Raises LocalClusterError."""
        return self._cluster.kubectl(*arguments, stdin=stdin)

    def pid(self, component: str) -> int:
        """Process of a component."""
        return self._cluster.status().components[component]

    @contextmanager
    def frozen(self, component: str) -> Iterator[None]:
        """Stop a component's process for the length of a `with` block; seconds only, or others will miss it."""
        pid = self.pid(component)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    async def restart(self, component: str) -> None:
        """Kill a component that the control plane starts again, and wait until it is ready."""
        pid = self.pid(component)
        os.kill(pid, signal.SIGKILL)

        async def anew() -> bool:
            state = self._cluster.status()
            return state.phase == ClusterPhase.READY and state.components[component] != pid

        await until(f"{component} is there again", anew)

    @asynccontextmanager
    async def extender(self, port: int, *, health: int = 0, descriptors: int = 0) -> AsyncIterator[int]:
        """A real `trimtab extender` process, by its pid, which answers the second scheduler only.

        `health` is its other port, `descriptors` how many files it may open.
        """
        files, health = self.extender_files, health or free_port()
        tls = {"CERTIFICATE": files.certificate, "KEY": files.key, "CLIENT_CA": files.ca, "PORT": port}
        own = {f"TRIMTAB_EXTENDER__{name}": str(value) for name, value in tls.items()}
        own |= {"TRIMTAB_METRICS__PORT": str(health), "TRIMTAB_METRICS__HOST": HOST, "TRIMTAB_LOG__FORMAT": "json"}
        command = (sys.executable, "-m", "trimtab", "extender", "--host", HOST, "--kubeconfig", str(self.kubeconfig))
        with self.log.with_name("extender.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command, env=os.environ | own, stdout=log, stderr=log, preexec_fn=_may_open(descriptors)
            )
        try:
            await until("the extender is ready", lambda: _answers(f"http://{HOST}:{health}/readyz"))
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            await process.wait()

    @asynccontextmanager
    async def controller(
        self, *, standby: bool = False, variables: Mapping[str, str] | None = None, port: int = 0, descriptors: int = 0
    ) -> AsyncIterator[int]:
        """A real `trimtab controller` process, by its pid, that leads; or one on standby, ready to take over.

        `port` is that of its metrics, `descriptors` how many files it may open. A rule decides where `variables` do not
        say otherwise: what is measured must not change with weights.
        """
        command = (sys.executable, "-m", "trimtab", "controller", "--kubeconfig", str(self.kubeconfig))
        port = port or free_port()
        own = {"TRIMTAB_METRICS__PORT": str(port), "TRIMTAB_METRICS__HOST": "127.0.0.1", "TRIMTAB_LOG__FORMAT": "json"}
        own |= {"TRIMTAB_POLICY__NAME": "best_fit", "TRIMTAB_POLICY__FALLBACK": "fcfs"}
        with self.log.open("ab") as log:
            environment = os.environ | own | dict(variables or {})
            process = await asyncio.create_subprocess_exec(
                *command, env=environment, stderr=log, preexec_fn=_may_open(descriptors)
            )
        try:
            await until("the controller is ready", lambda: _answers(f"http://127.0.0.1:{port}/readyz"))
            if not standby:
                await until("the controller leads", self._led)
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            await process.wait()

    async def give_lease(self, holder: str) -> None:
        """Write who leads into the Lease; an empty name means that nobody does."""
        spec = {"holderIdentity": holder, "leaseDurationSeconds": 3600, "renewTime": _micro_time()}
        await self.client.merge_patch(LEASES.path(names.SYSTEM_NAMESPACE, names.LEASE_NAME), {"spec": spec})

    async def _all_ready(self) -> bool:
        return all(
            any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
            for node in await self.items(NODES)
            for conditions in [node["status"].get("conditions", ())]
        )

    async def _led(self) -> bool:
        return any(
            lease["spec"].get("holderIdentity")
            for lease in await self.items(LEASES)
            if lease["metadata"]["name"] == names.LEASE_NAME
        )


@asynccontextmanager
async def following(
    client: KubeClient, kind: Resource, see: Callable[[str, dict[str, Any], float], None]
) -> AsyncIterator[None]:
    """Have every change of objects of a kind seen, with its type and the moment by the monotonic clock. Raises what the
    watch raises."""
    version = msgspec.json.decode(await client.get(kind.path()))["metadata"]["resourceVersion"]

    async def follow() -> None:
        last = version
        while True:  # the API server may close a watch whenever it likes
            async with aclosing(client.watch(kind.path(), {"resourceVersion": last})) as stream:
                async for lines in stream:
                    moment = time.monotonic()
                    for event in map(msgspec.json.decode, lines):
                        last = event["object"]["metadata"]["resourceVersion"]
                        see(event["type"], event["object"], moment)

    task = asyncio.create_task(follow())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and (failure := task.exception()):
            raise failure


@asynccontextmanager
async def lab(title: str, options: Callable[[str], ClusterOptions] = lambda name: OPTIONS) -> AsyncIterator[Lab]:
    """A control plane of our own with Trimtab's CRDs, for the length of a `with` block.

    `options` makes what is unusual about it from its name.
    """
    name = f"bench-{title}-{os.getpid()}"
    async with LocalCluster(name, options=options(name)) as cluster:
        for part in ("crds", "rbac.yaml"):
            cluster.kubectl("apply", "--server-side", "-f", str(checkout() / "manifests" / part))
        cluster.kubectl("create", "priorityclass", URGENT, "--value=1000")
        cluster.kubectl("wait", "--for=condition=Established", "-f", str(checkout() / "manifests" / "crds"))
        settings = KubeSettings(kubeconfig=cluster.kubeconfig, request_timeout=PATIENCE_SECONDS)
        async with await KubeClient.connect(settings) as client:
            yield Lab(cluster, client)


async def until(what: str, holds: Callable[[], Awaitable[bool]], patience: float = PATIENCE_SECONDS) -> None:
    """Poll until something holds. Raises TimeoutError that names it after `patience` seconds."""
    deadline = time.monotonic() + patience
    while not await holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {patience:.0f} s until {what}")
        await asyncio.sleep(POLL_SECONDS)


async def _answers(url: str) -> bool:
    """Whether GET is answered with 200."""
    try:
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return answer.status == 200
    except aiohttp.ClientConnectionError:
        return False


def _may_open(descriptors: int) -> Callable[[], None] | None:
    """What limits a new process's files."""
    return (lambda: setrlimit(RLIMIT_NOFILE, (descriptors, descriptors))) if descriptors else None


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


def _micro_time() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def job(name: str, *, gpus: int, tensor: int, priority_class: str | None = None) -> dict[str, Any]:
    """A job of exactly `gpus` GPUs in tensor-parallel groups of `tensor`."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.JOB_KIND,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "model": {"preset": "gpt3-1.3b"},
            "training": {"sequenceLength": 2048, "globalBatchSize": 512, "steps": 100_000, "precision": "FP16"},
            "resources": {"gpus": {"max": gpus}},
            "parallelism": {"tensor": {"fixed": tensor}, "pipeline": {"fixed": 1}, "context": {"fixed": 1}},
            "elasticity": {"policy": "Fixed"},
            "launcher": "Torchrun",
            **({"priorityClassName": priority_class} if priority_class else {}),
            "template": {"spec": {"containers": [{"name": "trainer", "image": "example.com/trainer:1"}]}},
        },
    }


async def create_jobs(client: KubeClient, jobs: Sequence[dict[str, Any]]) -> None:
    """Create jobs, all at once."""
    await asyncio.gather(*(client.create(JOBS.path(NAMESPACE), one) for one in jobs))


def v100_nodes(count: int) -> FakeCluster:
    """Nodes with six V100s, as in Summit."""
    pool = NodePool(name="v100", count=count, product="Tesla-V100-SXM2-32GB", gpus=NODE_GPUS, cpu=96, memory="1Ti")
    return FakeCluster(name="bench", pools=(pool,))


def rss_mib(pid: int) -> dict[str, float]:
    """Resident memory of a process now and at its peak, in MiB."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    kib = {words[0]: int(words[1]) for words in lines if words[0] in ("VmRSS:", "VmHWM:")}
    return {"now": kib["VmRSS:"] / 1024, "peak": kib["VmHWM:"] / 1024}


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS
