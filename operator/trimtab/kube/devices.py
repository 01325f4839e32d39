"""A copy of what drivers of dynamic resource allocation offer and who has it, where the API server serves that group.

Nothing counts before all of it has been listed once: without the claims, GPUs of others would look free.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from trimtab.kube.client import KubeClient
from trimtab.kube.metrics_hooks import FactsObserver
from trimtab.kube.objects import (
    AnyObject,
    DeviceClassObject,
    DeviceTaintRuleObject,
    Identity,
    Meta,
    ResourceClaimObject,
    ResourceSliceObject,
)
from trimtab.kube.owned import OwnedObjects
from trimtab.kube.reflector import Reflector
from trimtab.kube.resources import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Resource,
)
from trimtab.kube.served_kinds import ServedKinds
from trimtab.settings import ReflectorSettings


class TaintRuleCache(ServedKinds):
    """DeviceTaintRules, a kind with a feature gate of its own. Where they cannot be read, GPUs count: kube-scheduler
    refuses pods on tainted ones all the same."""

    def __init__(
        self, client: KubeClient, settings: ReflectorSettings, on_change: Callable[[], None], observer: FactsObserver
    ) -> None:
        self.rules: Reflector[DeviceTaintRuleObject] = Reflector(
            client,
            DEVICE_TAINT_RULES,
            DeviceTaintRuleObject,
            settings,
            on_change=lambda old, new: on_change(),
            observer=observer,
        )
        super().__init__(client, "DeviceTaintRules", on_change, self.rules)

    @property
    def known_rules(self) -> Collection[DeviceTaintRuleObject]:
        """Rules that there are; none before all of them were listed."""
        return self.rules.items.values() if self.listed else ()


class DeviceCaches(ServedKinds):
    """What is known of devices. `on_change` is called for every change; with `templates`, those of our gangs are
    followed as well."""

    def __init__(
        self,
        client: KubeClient,
        settings: ReflectorSettings,
        on_change: Callable[[], None],
        observer: FactsObserver,
        *,
        templates: bool = False,
    ) -> None:
        self.owned = OwnedObjects(on_change)
        """ResourceClaimTemplates of our gangs."""

        def reflect(resource: Resource, kind: type[Any]) -> Reflector[Any]:
            return Reflector(
                client, resource, kind, settings, on_change=lambda old, new: on_change(), observer=observer
            )

        self.slices: Reflector[ResourceSliceObject] = reflect(RESOURCE_SLICES, ResourceSliceObject)
        self.claims: Reflector[ResourceClaimObject] = reflect(RESOURCE_CLAIMS, ResourceClaimObject)
        self.classes: Reflector[DeviceClassObject] = reflect(DEVICE_CLASSES, DeviceClassObject)
        self.templates: Reflector[AnyObject] = Reflector(
            client, RESOURCE_CLAIM_TEMPLATES, AnyObject, settings, on_change=self.owned.changed, observer=observer
        )
        self._follows_templates = templates
        followed: tuple[Reflector[Any], ...] = (self.slices, self.claims, self.classes)
        super().__init__(
            client, "dynamic resource allocation", on_change, *followed, *((self.templates,) if templates else ())
        )

    @property
    def offered(self) -> Collection[ResourceSliceObject]:
        """ResourceSlices. Of one that can no longer be read, what it said before does not count: its pool is not
        complete then."""
        slices, unreadable = self.slices.items, self.slices.unreadable
        return [each for key, each in slices.items() if key not in unreadable] if unreadable else slices.values()

    def templates_of(self, job: Identity) -> tuple[Meta, ...] | None:
        """ResourceClaimTemplates that the job controls; None where gangs have none, or they are not listed yet."""
        return self.owned.of(job) if self._follows_templates and self.listed else None
