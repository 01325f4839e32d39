"""What people and machines do to a cluster, in words, as its administrator and past every proxy. No process is started
for it: a `kubectl` costs more processor time than most of what is done here.
"""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import aiohttp
from tests.faults.witness_state import Object

from trimtab.kube.connection import connect
from trimtab.settings import KubeSettings

NAMESPACE = "default"
GROUPS = {
    "llmtrainingjobs": "/apis/trimtab.dev/v1alpha1",
    "queues": "/apis/trimtab.dev/v1alpha1",
    "gpunodes": "/apis/trimtab.dev/v1alpha1",
    "priorityclasses": "/apis/scheduling.k8s.io/v1",
    "customresourcedefinitions": "/apis/apiextensions.k8s.io/v1",
    "jobs": "/apis/batch/v1",
    "jobsets": "/apis/jobset.x-k8s.io/v1alpha2",
    "trainjobs": "/apis/trainer.kubeflow.org/v1alpha1",
    "mpijobs": "/apis/kubeflow.org/v2beta1",
    "rayjobs": "/apis/ray.io/v1",
    "podgroups": "/apis/scheduling.k8s.io/v1alpha2",
    "leases": "/apis/coordination.k8s.io/v1",
}
CLUSTERED = {"nodes", "queues", "gpunodes", "priorityclasses", "customresourcedefinitions", "namespaces"}
MERGE = "application/merge-patch+json"


class Refused(Exception):
    """The API server said no."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Hands:
    """`async with Hands(kubeconfig) as hands: await hands.create("nodes", gpu_node("n"))`."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig

    async def __aenter__(self) -> Hands:
        connection = await connect(KubeSettings(kubeconfig=self._kubeconfig))
        self._server = connection.server
        tls = aiohttp.TCPConnector(ssl=connection.ssl_context(), limit=32)
        self._session = aiohttp.ClientSession(connector=tls)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()
        await asyncio.sleep(0.1)  # TLS transports end a moment after their session

    async def create(self, kind: str, *objects: Object, namespace: str = NAMESPACE) -> None:
        """Create objects; those that exist are left as they are."""

        async def one(obj: Object) -> None:
            try:
                await self.ask("POST", path(kind, namespace=namespace), obj)
            except Refused as refused:
                if refused.code != 409:
                    raise

        await asyncio.gather(*(one(each) for each in objects))

    async def get(self, kind: str, name: str, namespace: str = NAMESPACE) -> Object:
        """The object, or an empty one."""
        try:
            return await self.ask("GET", path(kind, name, namespace))
        except Refused as refused:
            if refused.code != 404:
                raise
            return {}

    async def patch(
        self, kind: str, name: str, patch: Object, *, namespace: str = NAMESPACE, status: bool = False
    ) -> Object:
        """A JSON merge patch, of the status where asked."""
        where = path(kind, name, namespace) + ("/status" if status else "")
        return await self.ask("PATCH", where, patch, MERGE)

    async def delete(self, kind: str, name: str, *, namespace: str = NAMESPACE, grace: int | None = None) -> None:
        """Delete an object; nothing happens where there is none."""
        body = {} if grace is None else {"gracePeriodSeconds": grace}
        try:
            await self.ask("DELETE", path(kind, name, namespace), body)
        except Refused as refused:
            if refused.code != 404:
                raise

    async def ask(self, method: str, where: str, body: Any = None, content_type: str = "application/json") -> Object:
        """One request. Raises Refused."""
        headers = {"Content-Type": content_type}
        data = None if body is None else io.BytesIO(json.dumps(body).encode())
        async with self._session.request(method, f"{self._server}{where}", data=data, headers=headers) as answer:
            content: Object = await answer.json()
        if answer.status >= 400:
            raise Refused(answer.status, str(content.get("message", content)))
        return content


def path(kind: str, name: str = "", namespace: str = NAMESPACE) -> str:
    """Where the API server has it."""
    group = GROUPS.get(kind, "/api/v1")
    space = "" if kind in CLUSTERED else f"/namespaces/{namespace}"
    return f"{group}{space}/{kind}{f'/{name}' if name else ''}"
