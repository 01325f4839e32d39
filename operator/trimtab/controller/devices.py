"""A copy of what drivers of dynamic resource allocation offer and who has it, where the API server serves that group.

Whether it does is asked until it is so: a cluster may be upgraded while the controller runs. Nothing counts before all
of it has been listed once: without the claims, GPUs of others would look free.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import structlog

from trimtab.controller.discovery import serves_devices
from trimtab.controller.owned import OwnedObjects
from trimtab.kube.client import KubeClient
from trimtab.kube.metrics_hooks import FactsObserver
from trimtab.kube.objects import AnyObject, DeviceClassObject, ResourceClaimObject, ResourceSliceObject
from trimtab.kube.reflector import Reflector
from trimtab.kube.resources import (
    DEVICE_CLASSES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Resource,
)
from trimtab.settings import ReflectorSettings

ASK_SECONDS = 300.0
"""Between two questions whether the group is served."""

log = structlog.get_logger(__name__)


class DeviceCaches:
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
        self._client = client
        self._on_change = on_change
        self.known = asyncio.Event()
        """Set once it is known that the group is not served, or all of it has been listed."""
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
        self._reflectors: tuple[Reflector[Any], ...] = (self.slices, self.claims, self.classes)
        if templates:
            self._reflectors += (self.templates,)

    @property
    def present(self) -> bool:
        """Whether everything has been listed once."""
        return all(reflector.synced.is_set() for reflector in self._reflectors)

    @property
    def makes_templates(self) -> bool:
        """Whether gangs may have ResourceClaimTemplates: those that are there have been listed."""
        return self._follows_templates and self.present

    async def run(self) -> None:
        """Follow them until cancelled."""
        while not await serves_devices(self._client):
            self.known.set()
            await asyncio.sleep(ASK_SECONDS)
        log.info("dynamic resource allocation is served: nodes may have their GPUs by ResourceSlices")
        async with asyncio.TaskGroup() as tasks:
            for reflector in self._reflectors:
                tasks.create_task(reflector.run(), name=f"reflect {reflector.resource.plural}")
            for reflector in self._reflectors:
                await reflector.synced.wait()
            self.known.set()
            self._on_change()
