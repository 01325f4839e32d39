"""A running extender in front of an imitation API server, and the objects that tests put there."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from tests.fakeserver import FakeApiServer

from trimtab import names
from trimtab.extender.app import Extender
from trimtab.extender.pod_index import BooksWatch
from trimtab.kube.client import KubeClient
from trimtab.kube.metrics_hooks import Silent
from trimtab.settings import ExtenderSettings, HttpSettings, KubeSettings, ReflectorSettings, Settings

Object = dict[str, Any]
GOLDEN = Path(__file__).parent / "golden"
LOCAL = "127.0.0.1"


def node(name: str, gpus: int = 8, **spec: Any) -> Object:
    """A Ready node with H100s."""
    return {
        "metadata": {"name": name, "labels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}},
        "spec": spec,
        "status": {
            "allocatable": {"cpu": "128", "memory": "1Ti", "pods": "110", names.NVIDIA_GPU: str(gpus)},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def pod(name: str, gpus: int = 8, bound: str = "", phase: str = "Pending", **meta: Any) -> Object:
    """A pod of anybody's."""
    asked = {names.NVIDIA_GPU: str(gpus)}
    return {
        "metadata": {"name": name, "namespace": "team-a", "uid": f"uid-{name}", **meta},
        "spec": {
            "containers": [{"name": "main", "resources": {"limits": asked, "requests": asked}}],
            **({"nodeName": bound} if bound else {}),
        },
        "status": {"phase": phase},
    }


def owner(job: str = "job7", **changes: Any) -> Object:
    """The ownerReference of a pod of ours."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.JOB_KIND,
        "name": job,
        "uid": f"uid-{job}",
        "controller": True,
        **changes,
    }


def planned(name: str, place: str, gpus: int = 8, bound: str = "", *, gated: bool = False, job: str = "job7") -> Object:
    """A pod of ours whose plan gives it the node `place`."""
    annotations = {names.ANNOTATION_NODE: place, names.ANNOTATION_GANG: "2"}
    labels = {names.LABEL_JOB: job, names.LABEL_EPOCH: "1", names.LABEL_RANK: name.rpartition("-")[2]}
    made = pod(name, gpus, bound, annotations=annotations, labels=labels, ownerReferences=[owner(job)])
    if gated:
        made["spec"]["schedulingGates"] = [{"name": names.SCHEDULING_GATE}]
    return made


class Desk:
    """What a test works with."""

    def __init__(
        self, server: FakeApiServer, watch: BooksWatch, extender: Extender, session: aiohttp.ClientSession
    ) -> None:
        self.server = server
        self.watch = watch
        self.extender = extender
        self.session = session
        self._lines: list[asyncio.StreamWriter] = []

    @property
    def store(self) -> Any:
        """The objects of the API server."""
        return self.server.store

    def url(self, path: str) -> str:
        """A URL at kube-scheduler's door."""
        return f"http://{LOCAL}:{self.extender.ports[0]}{path}"

    async def post(self, path: str, body: Any) -> tuple[int, str]:
        """Status and text of an answer."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.post(self.url(path), data=data) as answer:
            return answer.status, await answer.text()

    async def get(self, path: str) -> tuple[int, str]:
        """Status and text of an answer."""
        async with self.session.get(self.url(path)) as answer:
            return answer.status, await answer.text()

    async def ask(self, verb: str, body: Any) -> Any:
        """The answer to a verb."""
        status, text = await self.post(f"/{verb}", body)
        assert status == 200, text
        return json.loads(text)

    async def filter(self, of: Object, *nodes: str) -> Any:
        """The answer for a pod and the nodes that are left for it."""
        return await self.ask("filter", {"Pod": of, "Nodes": None, "NodeNames": list(nodes)})

    async def dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A bare connection to kube-scheduler's door, closed when the test ends."""
        reader, writer = await asyncio.open_connection(LOCAL, self.extender.ports[0])
        self._lines.append(writer)
        return reader, writer

    async def hang_up(self) -> None:
        """Close what was dialled."""
        for writer in self._lines:
            writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def eventually(holds: Callable[[], bool], patience: float = 20.0) -> None:
    """Wait until something holds."""
    end = time.monotonic() + patience
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        await asyncio.sleep(0.005)


def settings(**extender: Any) -> Settings:
    """Settings of an extender on this machine."""
    return Settings(
        extender=ExtenderSettings(host=LOCAL, port=0, **extender),
        metrics=HttpSettings(host=LOCAL, port=0),
        reflector=ReflectorSettings(stall_seconds=70),
    )


@asynccontextmanager
async def desk(directory: Path, *objects: tuple[str, Object], **extender: Any) -> AsyncIterator[Desk]:
    """An extender that has seen these objects (`("nodes", {...})`)."""
    async with FakeApiServer() as server:
        for plural, obj in objects:
            server.store.create(plural, obj)
        kube = KubeSettings(kubeconfig=server.kubeconfig(directory))
        async with await KubeClient.connect(kube) as client, aiohttp.ClientSession() as session:
            watch = BooksWatch(client, ReflectorSettings(stall_seconds=70), Silent())
            following = asyncio.create_task(watch.run())
            await eventually(lambda: not watch.trouble)
            made = Extender(settings(**extender), watch, client)
            there = Desk(server, watch, made, session)
            try:
                async with made.serving():
                    yield there
            finally:
                await there.hang_up()
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
