"""A copy of Kueue's Workloads and ResourceFlavors, for as long as Kueue is installed."""

from __future__ import annotations

from collections.abc import Callable

from trimtab.kube.client import KubeClient
from trimtab.kube.metrics_hooks import FactsObserver
from trimtab.kube.objects import FlavorObject, Identity, WorkloadObject
from trimtab.kube.reflector import Reflector
from trimtab.kube.resources import RESOURCE_FLAVORS, WORKLOADS
from trimtab.kube.served_kinds import ServedKinds
from trimtab.settings import ReflectorSettings


class KueueCaches(ServedKinds):
    """What is known of Kueue. `on_change` is called for every change."""

    def __init__(
        self, client: KubeClient, settings: ReflectorSettings, on_change: Callable[[], None], observer: FactsObserver
    ) -> None:
        self._on_change = on_change
        self._names: dict[Identity, str] = {}
        self.workloads: Reflector[WorkloadObject] = Reflector(
            client, WORKLOADS, WorkloadObject, settings, on_change=self._workload_changed, observer=observer
        )
        self.flavors: Reflector[FlavorObject] = Reflector(
            client, RESOURCE_FLAVORS, FlavorObject, settings, on_change=lambda old, new: on_change(), observer=observer
        )
        super().__init__(client, "Kueue", on_change, self.workloads, self.flavors)

    def workload_of(self, job: Identity) -> WorkloadObject | None:
        """The Workload that the job controls, if there is one."""
        name = self._names.get(job)
        return self.workloads.items.get(name) if name else None

    @property
    def owners(self) -> tuple[str, ...]:
        """UIDs of all who control a Workload."""
        return tuple(job.uid for job in self._names)

    def _workload_changed(self, old: WorkloadObject | None, new: WorkloadObject | None) -> None:
        if old and (job := old.metadata.job):
            self._names.pop(job, None)
        if new and (job := new.metadata.job):
            self._names[job] = new.metadata.key
        self._on_change()
