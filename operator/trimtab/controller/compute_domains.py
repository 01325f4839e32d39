"""A copy of the ComputeDomains of our gangs, where NVIDIA's driver is installed: its CRD may come while we run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import structlog

from trimtab.api.status import Plan
from trimtab.controller.discovery import serves_compute_domains
from trimtab.controller.owned import OwnedObjects
from trimtab.kube.client import KubeClient
from trimtab.kube.metrics_hooks import FactsObserver
from trimtab.kube.objects import AnyObject, Identity, Meta
from trimtab.kube.reflector import Reflector
from trimtab.kube.resources import COMPUTE_DOMAINS
from trimtab.observe.nodes import NodeFacts
from trimtab.settings import ReflectorSettings

ASK_SECONDS = 300.0
"""Between two questions whether the kind is served."""

log = structlog.get_logger(__name__)


class ComputeDomainCache:
    """What is known of ComputeDomains. `on_change` is called for every change."""

    def __init__(
        self, client: KubeClient, settings: ReflectorSettings, on_change: Callable[[], None], observer: FactsObserver
    ) -> None:
        self._client = client
        self._owned = OwnedObjects(on_change)
        self.known = asyncio.Event()
        """Set once it is known that there is no such kind, or all of it has been listed."""
        self.domains: Reflector[AnyObject] = Reflector(
            client, COMPUTE_DOMAINS, AnyObject, settings, on_change=self._owned.changed, observer=observer
        )

    def of(self, job: Identity) -> tuple[Meta, ...] | None:
        """Those that the job controls; None where there is no such kind, or it is not listed yet."""
        return self._owned.of(job) if self.domains.synced.is_set() else None

    async def run(self) -> None:
        """Follow them until cancelled."""
        while not await serves_compute_domains(self._client):
            self.known.set()
            await asyncio.sleep(ASK_SECONDS)
        log.info("ComputeDomains are served: gangs that span nodes of an NVLink domain get one each")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.domains.run(), name=f"reflect {COMPUTE_DOMAINS.plural}")
            await self.domains.synced.wait()
            self.known.set()


def spans_domain(plan: Plan, nodes: Mapping[str, NodeFacts | None]) -> bool:
    """Whether some nodes of the plan share an NVLink domain, and the gang has all its nodes for itself: a node has one
    ComputeDomain at a time. `nodes` are the facts of the plan's nodes by name; None of one that is gone."""
    whole = all((node := nodes.get(share.name)) is not None and node.gpus == share.gpus for share in plan.nodes)
    domains = [node.link_domain for node in nodes.values() if node and node.link_domain]
    return whole and len(set(domains)) < len(domains)
