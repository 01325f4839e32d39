"""An independent witness: reads pods and nodes straight from the API server and checks what must always hold.

It shares no code with the product on purpose: it counts GPUs itself, because neither the API server nor KWOK does.

    I1  no node ever has more GPUs requested by live pods than it has
    I5  never two live pods for one rank of one job, never bound pods of two epochs of one job
    I8  the leader epoch in a job's status never decreases
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp

from trimtab.kube.connection import connect
from trimtab.settings import KubeSettings

GPUS = ("nvidia.com/gpu", "amd.com/gpu")
PODS, NODES = "/api/v1/pods", "/api/v1/nodes"
JOBS = "/apis/trimtab.dev/v1alpha1/llmtrainingjobs"


class Oracle:
    """`async with Oracle(kubeconfig) as oracle: ...; assert not oracle.violations`."""

    def __init__(self, kubeconfig: Path) -> None:
        self.violations: list[str] = []
        self.events = 0
        self._kubeconfig = kubeconfig
        self._objects: dict[str, dict[str, dict[str, Any]]] = {PODS: {}, NODES: {}, JOBS: {}}
        self._leader: dict[str, int] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Oracle:
        connection = await connect(KubeSettings(kubeconfig=self._kubeconfig))
        self._server = connection.server
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=connection.ssl_context()), read_bufsize=1 << 22
        )
        started = [asyncio.Event() for _ in self._objects]
        self._tasks = [
            asyncio.create_task(self._follow(path, event)) for path, event in zip(self._objects, started, strict=True)
        ]
        for task, event in zip(self._tasks, started, strict=True):
            while not event.is_set():
                if task.done():
                    task.result()
                await asyncio.sleep(0.01)
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
        await self._session.close()
        await asyncio.sleep(0.1)  # TLS transports end a moment after their session

    async def _follow(self, path: str, started: asyncio.Event) -> None:
        while True:
            async with self._session.get(f"{self._server}{path}") as answer:
                listed = await answer.json()
            if answer.status == 429:  # "storage is (re)initializing", right after a CRD was created
                await asyncio.sleep(0.2)
                continue
            assert answer.status == 200, listed
            self._objects[path] = {item["metadata"]["uid"]: item for item in listed["items"]}
            self._check()
            started.set()
            version = listed["metadata"]["resourceVersion"]
            query = f"?watch=1&resourceVersion={version}&timeoutSeconds=600"
            timeout = aiohttp.ClientTimeout(total=None)
            async with self._session.get(f"{self._server}{path}{query}", timeout=timeout) as stream:
                async for line in stream.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        break
                    uid = event["object"]["metadata"]["uid"]
                    if event["type"] == "DELETED":
                        self._objects[path].pop(uid, None)
                    else:
                        self._objects[path][uid] = event["object"]
                    self.events += 1
                    self._check()

    def _check(self) -> None:
        pods = [
            pod for pod in self._objects[PODS].values() if pod["status"].get("phase") not in ("Succeeded", "Failed")
        ]
        self._check_gpus([pod for pod in pods if pod["spec"].get("nodeName")])
        self._check_ranks(pods)
        for uid, job in self._objects[JOBS].items():
            epoch = job.get("status", {}).get("leaderEpoch", 0)
            if epoch < self._leader.get(uid, 0):
                self._violated(f"job {job['metadata']['name']}: leader epoch went back to {epoch}")
            self._leader[uid] = epoch

    def _check_gpus(self, bound: list[dict[str, Any]]) -> None:
        used: Counter[tuple[str, str]] = Counter()
        for pod in bound:
            for container in pod["spec"]["containers"]:
                for resource, amount in container.get("resources", {}).get("requests", {}).items():
                    if resource in GPUS:
                        used[pod["spec"]["nodeName"], resource] += int(amount)
        nodes = {node["metadata"]["name"]: node for node in self._objects[NODES].values()}
        for (name, resource), amount in used.items():
            if name in nodes and amount > int(nodes[name]["status"]["allocatable"].get(resource, 0)):
                self._violated(f"node {name}: {amount} {resource} requested")

    def _check_ranks(self, pods: list[dict[str, Any]]) -> None:
        ranks: Counter[tuple[str, str, str]] = Counter()
        epochs: dict[str, set[str]] = {}
        for pod in pods:
            labels = pod["metadata"].get("labels", {})
            owners = pod["metadata"].get("ownerReferences", [])
            if not owners or "trimtab.dev/epoch" not in labels:
                continue
            job, epoch = owners[0]["uid"], labels["trimtab.dev/epoch"]
            ranks[job, epoch, labels["trimtab.dev/node-rank"]] += 1
            if pod["spec"].get("nodeName"):
                epochs.setdefault(job, set()).add(epoch)
        for (job, epoch, rank), count in ranks.items():
            if count > 1:
                self._violated(f"job {job}: {count} live pods for rank {rank} of epoch {epoch}")
        for job, live in epochs.items():
            if len(live) > 1:
                self._violated(f"job {job}: bound pods of epochs {sorted(live)} at the same time")

    def _violated(self, what: str) -> None:
        if what not in self.violations:
            self.violations.append(what)
