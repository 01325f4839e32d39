"""The bare binder: what an asyncio program does at best, with aiohttp and nothing else.

    python -m hack.bench.bare_binder KUBECONFIG ACTION < work.json

ACTION is `create` (pods), `bind` (pods that exist), or `both`: every gang's pods are created in parallel and then bound
in parallel, all gangs at once. Bodies are encoded before the clock starts, answers are read and not looked at but for
a pod's UID; nothing is retried: any answer but success ends the process. 64 connections, as Trimtab has. It prints the
CPU seconds that it took from the first request on.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from msgspec import Struct

from trimtab.kube.connection import connect
from trimtab.kube.resources import PODS
from trimtab.settings import KubeSettings

CONNECTIONS = 64
HEADERS = {"Content-Type": "application/json", "Accept-Encoding": "identity"}


class Task(Struct):
    """One pod to create and bind."""

    name: str
    namespace: str
    node: str
    gang: str
    body: dict[str, Any]
    """The pod object."""
    uid: str = ""
    """UID of the pod if it exists."""


class _Meta(Struct):
    uid: str


class _Created(Struct):
    metadata: _Meta


class Binder:
    """Sends the requests."""

    def __init__(self, session: aiohttp.ClientSession, server: str) -> None:
        self._session = session
        self._server = server
        self._created = msgspec.json.Decoder(_Created)

    async def create(self, task: Task, body: bytes) -> None:
        """Create a pod and note its UID."""
        answer = await self._post(PODS.path(task.namespace), body)
        task.uid = self._created.decode(answer).metadata.uid

    async def bind(self, task: Task) -> None:
        """Bind a pod."""
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": task.name, "namespace": task.namespace, "uid": task.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": task.node},
        }
        await self._post(PODS.path(task.namespace, task.name, "binding"), msgspec.json.encode(binding))

    async def _post(self, path: str, body: bytes) -> bytes:
        async with self._session.post(self._server + path, data=body, headers=HEADERS) as answer:
            content = await answer.read()
            if answer.status >= 300:
                raise RuntimeError(f"POST {path} was answered with {answer.status}: {content[:300]!r}")
            return content


async def work(kubeconfig: Path, action: str, tasks: list[Task]) -> float:
    """Do it; returns the CPU seconds of it."""
    connection = await connect(KubeSettings(kubeconfig=kubeconfig))
    connector = aiohttp.TCPConnector(limit=CONNECTIONS, ssl=connection.ssl_context())
    gangs: dict[str, list[tuple[Task, bytes]]] = {}
    for task in tasks:
        gangs.setdefault(task.gang, []).append((task, msgspec.json.encode(task.body)))
    async with aiohttp.ClientSession(connector=connector) as session:
        binder = Binder(session, connection.server)

        async def carry(gang: list[tuple[Task, bytes]]) -> None:
            if action in ("create", "both"):
                await asyncio.gather(*(binder.create(task, body) for task, body in gang))
            if action in ("bind", "both"):
                await asyncio.gather(*(binder.bind(task) for task, _ in gang))

        began = time.process_time()
        await asyncio.gather(*(carry(gang) for gang in gangs.values()))
        return time.process_time() - began


if __name__ == "__main__":
    given = msgspec.json.decode(sys.stdin.buffer.read(), type=list[Task])
    print(asyncio.run(work(Path(sys.argv[1]), sys.argv[2], given)))
