"""A copy of the ComputeDomains of our gangs, where NVIDIA's driver is installed: its CRD may come and go."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from trimtab.api.status import Plan
from trimtab.kube.client import KubeClient
from trimtab.kube.metrics_hooks import FactsObserver
from trimtab.kube.objects import AnyObject, Identity, Meta
from trimtab.kube.owned import OwnedObjects
from trimtab.kube.reflector import Reflector
from trimtab.kube.resources import COMPUTE_DOMAINS
from trimtab.kube.served_kinds import ServedKinds
from trimtab.observe.nodes import NodeFacts
from trimtab.settings import ReflectorSettings


class ComputeDomainCache(ServedKinds):
    """What is known of ComputeDomains. `on_change` is called for every change."""

    def __init__(
        self, client: KubeClient, settings: ReflectorSettings, on_change: Callable[[], None], observer: FactsObserver
    ) -> None:
        self.owned = OwnedObjects(on_change)
        self.domains: Reflector[AnyObject] = Reflector(
            client, COMPUTE_DOMAINS, AnyObject, settings, on_change=self.owned.changed, observer=observer
        )
        super().__init__(client, "ComputeDomains", on_change, self.domains)

    def of(self, job: Identity) -> tuple[Meta, ...] | None:
        """Those that the job controls; None where there is no such kind, or it is not listed yet."""
        return self.owned.of(job) if self.listed else None


def spans_domain(plan: Plan, nodes: Mapping[str, NodeFacts | None]) -> bool:
    """Whether some nodes of the plan share an NVLink domain, and the gang has all its nodes for itself: a node has one
    ComputeDomain at a time. `nodes` are the facts of the plan's nodes by name; None of one that is gone."""
    whole = all((node := nodes.get(share.name)) is not None and node.gpus == share.gpus for share in plan.nodes)
    domains = [node.link_domain for node in nodes.values() if node and node.link_domain]
    return whole and len(set(domains)) < len(domains)
