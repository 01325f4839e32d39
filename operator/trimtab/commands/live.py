"""One look at a live cluster, for commands that answer and end."""

from __future__ import annotations

import asyncio
import time

from trimtab.kube.client import KubeClient
from trimtab.kube.listing import list_all
from trimtab.kube.objects import JobObject, NodeObject, PodObject, PriorityClassObject, QueueObject
from trimtab.kube.resources import JOBS, NODES, PODS, PRIORITY_CLASSES, QUEUES
from trimtab.observe.snapshot import Caches, Observation, Observer
from trimtab.settings import KubeSettings, TopologySettings


async def look(kube: KubeSettings, topology: TopologySettings | None = None) -> Observation:
    """Observe the cluster as the controller does, once. Needs only read access."""
    async with await KubeClient.connect(kube) as client:
        nodes, pods, jobs, queues, classes = await asyncio.gather(
            list_all(client, NODES, NodeObject),
            list_all(client, PODS, PodObject),
            list_all(client, JOBS, JobObject),
            list_all(client, QUEUES, QueueObject),
            list_all(client, PRIORITY_CLASSES, PriorityClassObject),
        )
    levels = (topology or TopologySettings()).levels
    return Observer(levels).observe(Caches(nodes, pods, jobs, queues, classes), time.time())
