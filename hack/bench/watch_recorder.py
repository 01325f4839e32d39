"""An independent witness: a process that only watches pods and notes when it saw each one created and bound.

    python -m hack.bench.watch_recorder KUBECONFIG COUNT

Prints one line when the watch stands, and when COUNT pods are bound a JSON object `Sightings`. The times are those at
which the bytes arrived here, by the machine's monotonic clock, which all its processes share. It has a process of its
own so that nobody who is measured can delay it.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import aclosing
from pathlib import Path

import msgspec
from msgspec import Struct, field

from trimtab import names
from trimtab.kube.client import KubeClient
from trimtab.kube.resources import PODS
from trimtab.settings import KubeSettings

READY = b"watching\n"


class _Meta(Struct, rename="camel"):
    resource_version: str
    name: str = ""
    labels: dict[str, str] = {}


class _Spec(Struct, frozen=True, rename="camel"):
    node_name: str = ""


class _Pod(Struct):
    metadata: _Meta
    spec: _Spec = _Spec()


class _Event(Struct):
    type: str
    object: _Pod


_EVENT = msgspec.json.Decoder(_Event)


class Sightings(Struct):
    """When each pod was first seen, and first seen on a node: monotonic seconds by pod name."""

    created: dict[str, float] = field(default_factory=dict)
    bound: dict[str, float] = field(default_factory=dict)
    gang: dict[str, str] = field(default_factory=dict)
    """Pod -> its job."""
    node: dict[str, str] = field(default_factory=dict)

    def take(self, pod: _Pod, moment: float) -> None:
        """Note what is new about a pod."""
        name = pod.metadata.name
        self.created.setdefault(name, moment)
        self.gang[name] = pod.metadata.labels.get(names.LABEL_JOB, "")
        if pod.spec.node_name and name not in self.bound:
            self.bound[name] = moment
            self.node[name] = pod.spec.node_name


async def watch(kubeconfig: Path, count: int) -> Sightings:
    """Watch until `count` pods are bound."""
    seen = Sightings()
    async with await KubeClient.connect(KubeSettings(kubeconfig=kubeconfig)) as client:
        version = msgspec.json.decode(await client.get(PODS.path()))["metadata"]["resourceVersion"]
        while len(seen.bound) < count:  # the API server may close a watch whenever it likes
            version = await _follow(client, version, seen, count)
    return seen


async def _follow(client: KubeClient, version: str, seen: Sightings, count: int) -> str:
    """One connection's worth of events; returns the resourceVersion to go on from."""
    async with aclosing(client.watch(PODS.path(), {"resourceVersion": version})) as stream:
        async for lines in stream:
            moment = time.monotonic()
            if not lines and not seen.created:
                sys.stdout.buffer.write(READY)
                sys.stdout.buffer.flush()
            for line in lines:
                event = _EVENT.decode(line)
                version = event.object.metadata.resource_version
                if event.type in ("ADDED", "MODIFIED"):
                    seen.take(event.object, moment)
            if len(seen.bound) >= count:
                break
    return version


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(watch(Path(sys.argv[1]), int(sys.argv[2])))))
