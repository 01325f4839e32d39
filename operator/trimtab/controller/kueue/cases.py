"""Jobs that name a queue of Kueue, each with its Workload: what they ask for, and what they were given."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import msgspec
import structlog

from trimtab import names
from trimtab.api import conditions
from trimtab.api.v1alpha1 import ElasticPolicy
from trimtab.controller.cluster import Cluster
from trimtab.controller.kueue.caches import KueueCaches
from trimtab.interop import request
from trimtab.interop.admission import Admission, admission, words
from trimtab.interop.reply import WorkloadPair
from trimtab.interop.request import KueueRequest
from trimtab.interop.workload import Workload, read_workload
from trimtab.kube.objects import WorkloadObject
from trimtab.observe.facts_memo import FactsMemo
from trimtab.observe.jobs import JobFacts
from trimtab.observe.nodes import NodeFacts
from trimtab.observe.running import startable
from trimtab.observe.snapshot import ClusterObserver

log = structlog.get_logger(__name__)


class Cases:
    """Puts together what is decided by. Remembers Workloads that it has understood, and nothing else."""

    def __init__(
        self, cluster: Cluster, caches: KueueCaches, observer: ClusterObserver, wall: Callable[[], float] = time.time
    ) -> None:
        self._cluster = cluster
        self._caches = caches
        self._observer = observer
        self._wall = wall
        self._workloads: FactsMemo[WorkloadObject, Workload | None] = FactsMemo(
            "workload", _read, lambda workload, error: None
        )
        self._usable: tuple[NodeFacts, ...] = ()
        self._hardware: Counter[tuple[str, str]] = Counter()
        """GPUs of the usable nodes by type and resource."""

    def refresh(self) -> None:
        """Look at nodes, with their devices, and Workloads anew; to be called at the beginning of a round."""
        self._workloads.all(self._caches.workloads.items.values())
        found, aside = self._observer.look(self._cluster.caches()), self._observer.set_aside
        usable = tuple(facts for facts in found.values() if facts.gpu and facts.name not in aside)
        if usable == self._usable:
            return
        self._usable, self._hardware = usable, Counter()
        for facts in usable:
            if facts.gpu:
                self._hardware[facts.gpu.name, facts.resource] += facts.gpus

    def labelled(self) -> Iterator[JobFacts]:
        """Jobs of ours that name a queue of Kueue, can be understood, and have not finished."""
        for job in self._cluster.jobs.items.values():
            if job.metadata.labels.get(names.LABEL_KUEUE_QUEUE) and not job.metadata.deletion_timestamp:
                facts = self._observer.job(job)
                if facts.ours and facts.requirements and not facts.finished:
                    yield facts

    def written(self, uid: str) -> WorkloadObject | None:
        """The Workload that the job with this UID controls; None where either is missing."""
        job = self._cluster.job(uid)
        return self._caches.workload_of(job.metadata.identity) if job else None

    def workload(self, uid: str) -> Workload | None:
        """The job's Workload; None where there is none, or it cannot be understood."""
        there = self.written(uid)
        return self._workloads.one(there) if there else None

    def admission(self, uid: str) -> Admission | str:
        """What is admitted, or why nothing is; empty where there is no Workload."""
        there, workload = self.written(uid), self.workload(uid)
        if workload is None:
            return f"Workload {there.metadata.name} cannot be read: is this Kueue too new, or too old?" if there else ""
        return admission(workload, self._caches.flavors.items) if workload.admitted else words(workload)

    def template(self, facts: JobFacts) -> Mapping[str, Any]:
        """The job's template with what its quota adds: pods are made of this."""
        present = self._caches.presence == "Present"
        found = self.admission(facts.meta.uid) if present and queue_of(facts) else ""
        return found.on(facts.template) if isinstance(found, Admission) else facts.template

    def node(self, name: str) -> NodeFacts | None:
        """Facts of a node, if it has GPUs."""
        return self._observer.node(self._cluster.nodes.items.get(name))

    def types(self, resource: str) -> frozenset[str] | None:
        """GPU types whose GPUs are called so; None where all are."""
        fitting = frozenset(name for name, called in self._hardware if called == resource)
        return None if len(fitting) == len({name for name, _ in self._hardware}) else fitting

    def case(self, uid: str, promised: Collection[str]) -> WorkloadPair | None:
        """What the next write about a job depends on; None for one that is gone, going, or not understood.

        `promised` are jobs that are about to get a plan.
        """
        job = self._cluster.job(uid)
        facts = self._observer.job(job) if job and not job.metadata.deletion_timestamp else None
        if facts is None or facts.unreadable or facts.spec is None or not facts.ours:
            return None
        workload = self.workload(uid)
        if workload is None and self.written(uid):
            return None
        plan, pods = facts.status.plan, self._cluster.pods_of(facts.meta.identity.digest)
        running = any(pod.status.phase not in ("Succeeded", "Failed") for pod in pods)
        return WorkloadPair(
            workload=workload,
            ask=self._ask(facts, workload),
            living=running if facts.finished else bool(plan or pods or uid in promised),
            running=plan is not None and conditions.holds(facts.status.conditions, names.PODS_READY),
            gpus=plan.gpus if plan else 0,
            elastic=facts.spec.elasticity.policy is ElasticPolicy.ELASTIC,
            ended=_ended(facts),
            now=self._wall(),
        )

    def _ask(self, facts: JobFacts, workload: Workload | None) -> KueueRequest | None:
        """What the job asks for; None where it asks for nothing, or cannot yet."""
        queue, allowed, spec = queue_of(facts), startable(facts), facts.spec
        if not queue or facts.suspended or allowed is None or spec is None:
            return None
        ranked = self._priority(spec.priority_class_name)
        if ranked is None:
            return None
        return KueueRequest(
            job=facts.meta,
            queue=queue,
            gpus=allowed.gpus,
            resource=self._resource(allowed.gpu_types, workload.resource if workload else ""),
            template=facts.template,
            cpu_milli_per_gpu=allowed.cpu_milli_per_gpu,
            memory_per_gpu=allowed.memory_per_gpu,
            priority_class=ranked[0],
            priority=ranked[1],
        )

    def _resource(self, types: Collection[str], now: str) -> str:
        """What the quota is asked of. While it is not known which devices there are, what was asked for stays: a node
        that has its GPUs so looks as if it had none, and who asks anew loses his place in the queue."""
        devices = self._cluster.devices
        if now and devices and devices.presence == "Unknown":
            return now
        return request.gpu_resource(self._offered(types), now)

    def _offered(self, types: Collection[str]) -> Counter[str]:
        """GPUs by resource, of these types (none: of any)."""
        offered: Counter[str] = Counter()
        for (name, resource), gpus in self._hardware.items():
            if not types or name in types:
                offered[resource] += gpus
        return offered

    def _priority(self, named: str | None) -> tuple[str, int] | None:
        """Name and value of the job's PriorityClass, or the cluster's default; None where the named one is missing."""
        classes = self._cluster.priority_classes.items
        if named:
            return (named, classes[named].value) if named in classes else None
        default = next((each for each in classes.values() if each.global_default), None)
        return (default.metadata.name, default.value) if default else ("", 0)


def queue_of(facts: JobFacts) -> str:
    """The LocalQueue that is to admit the job; empty where Kueue has no say."""
    return facts.meta.labels.get(names.LABEL_KUEUE_QUEUE, "")


def _read(obj: WorkloadObject) -> Workload | None:
    """The Workload, or None where it cannot be understood: then nothing is written to it, and its job waits."""
    try:
        return read_workload(obj)
    except msgspec.DecodeError as error:
        log.warning("Workload cannot be read", workload=obj.metadata.key, error=str(error))
        return None


def _ended(facts: JobFacts) -> tuple[bool, str] | None:
    """Whether a finished job has completed, and what is said about it."""
    if not facts.finished:
        return None
    completed = conditions.holds(facts.status.conditions, names.COMPLETE)
    condition = conditions.find(facts.status.conditions, names.COMPLETE if completed else names.FAILED)
    return completed, condition.message if condition else ""
