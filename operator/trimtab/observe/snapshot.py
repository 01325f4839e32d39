"""All caches -> one `Observation`: the snapshot that policies see, and the facts that the other stages need.

GPUs are counted from two sources that together never miss one: every pod that is on a node and has not ended, and
every rank of a standing plan whose pod is not on a node yet. A plan that was decided but is not written yet
(`promised`) counts the same, so that two rounds never give one GPU twice.

Facts of single objects are remembered for as long as the object is the same, so that a round after a small change costs
the change, not the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Generic, TypeVar

from msgspec import Struct
from pydantic import ValidationError

from trimtab import names
from trimtab.api.convert import to_placement, to_quotas
from trimtab.api.v1alpha1 import QueueSpec
from trimtab.kube.objects import JobObject, NodeObject, PodObject, PriorityClassObject, QueueObject
from trimtab.observe import eligibility, jobs, nodes, pods
from trimtab.observe.jobs import JobFacts
from trimtab.observe.nodes import NodeFacts
from trimtab.observe.pods import PodFacts, PodUse, Seat
from trimtab.observe.problems import Problem
from trimtab_policy.capacity import ALL_TYPES
from trimtab_policy.specs import GpuSpec
from trimtab_policy.types import (
    Bounds,
    Job,
    Node,
    Pending,
    PendingReason,
    Placement,
    Quota,
    Requirements,
    Snapshot,
)

Object = TypeVar("Object")
Facts = TypeVar("Facts")


class Caches(Struct, frozen=True):
    """The raw objects of one moment, as the reflectors hold them."""

    nodes: Iterable[NodeObject]
    pods: Iterable[PodObject]
    jobs: Iterable[JobObject]
    queues: Iterable[QueueObject] = ()
    priority_classes: Iterable[PriorityClassObject] = ()


class Observation(Struct, frozen=True):
    """What one look at the cluster gives."""

    snapshot: Snapshot
    jobs: dict[str, JobFacts]
    """UID -> facts, of every job that is ours."""
    nodes: dict[str, NodeFacts]
    """Every node with GPUs, whether it takes pods or not."""
    refused: dict[str, Pending]
    """Jobs that no policy can help: malformed, or referring to what does not exist."""
    overallocated: dict[str, int]
    """Node -> GPUs requested beyond what it has."""
    problems: tuple[Problem, ...]


class Memo(Generic[Object, Facts]):
    """Facts per object, computed anew only when the object was replaced by another one."""

    def __init__(self, compute: Callable[[Object], Facts]) -> None:
        self._compute = compute
        self._known: dict[int, tuple[Object, Facts]] = {}

    def one(self, item: Object) -> Facts:
        """Facts of one object."""
        known = self._known.get(id(item))
        if known is None or known[0] is not item:
            known = self._known[id(item)] = (item, self._compute(item))
        return known[1]

    def all(self, objects: Iterable[Object]) -> list[tuple[Object, Facts]]:
        """Facts of exactly these objects; those of all others are forgotten."""
        facts = [(item, self.one(item)) for item in objects]
        self._known = {id(pair[0]): pair for pair in facts}
        return facts


class Observer:
    """Turns caches into observations. Holds only what it has computed before, never anything it was told once."""

    def __init__(self, levels: Sequence[Sequence[str]]) -> None:
        self._nodes: Memo[NodeObject, NodeFacts | None] = Memo(lambda node: nodes.facts(node, levels))
        self._pods: Memo[PodObject, PodFacts] = Memo(pods.facts)
        self._jobs: Memo[JobObject, JobFacts] = Memo(jobs.facts)
        self._held: Memo[JobFacts, Placement | None] = Memo(_held)
        self._eligible: dict[str, tuple[JobFacts, tuple[NodeFacts, ...], tuple[str, ...] | None]] = {}

    def job(self, job: JobObject) -> JobFacts:
        """Facts of one job."""
        return self._jobs.one(job)

    def node(self, node: NodeObject | None) -> NodeFacts | None:
        """Facts of one node; None when it is gone or has no GPUs."""
        return self._nodes.one(node) if node else None

    def observe(self, caches: Caches, now: float, promised: Mapping[str, Placement] | None = None) -> Observation:
        """One look. `promised` are placements, by job UID, that are decided and about to be written."""
        gpu_nodes = {facts.name: facts for _, facts in self._nodes.all(caches.nodes) if facts}
        known = {f.meta.uid: f for _, f in self._jobs.all(caches.jobs) if f.ours and not f.meta.deletion_timestamp}
        used = _Books(gpu_nodes)
        seats: set[Seat] = set()
        for _, pod in self._pods.all(caches.pods):
            if pod.node:
                used.pod(pod.node, pod.use)
            if pod.seat:
                seats.add(pod.seat)
        held = {facts.meta.uid: placement for facts, placement in self._held.all(known.values()) if placement}
        placements = {uid: placement for uid, placement in (promised or {}).items() if uid in known} | held
        for uid, placement in placements.items():
            used.unbound(placement, known[uid], seats)
        queues, queue_problems = _quotas(caches.queues)
        priorities = {c.metadata.name: c for c in caches.priority_classes}
        refused = {uid: why for uid, f in known.items() if (why := _refusal(f, queues, priorities))}
        takes = {name: facts for name, facts in gpu_nodes.items() if not facts.unavailable}
        self._forget_templates(known)
        snapshot = Snapshot(
            time=now,
            nodes=tuple(used.node(facts) for facts in takes.values()),
            jobs=tuple(
                self._job(facts, placements.get(uid), takes, priorities)
                for uid, facts in known.items()
                if facts.spec and (uid in placements or (uid not in refused and _waits(facts, now)))
            ),
            gpu_types=_gpu_types(takes.values()),
            quotas=tuple(quota for limits in queues.values() for quota in limits),
            unavailable={name: facts.unavailable for name, facts in gpu_nodes.items() if facts.unavailable},
        )
        return Observation(
            snapshot=snapshot,
            jobs=known,
            nodes=gpu_nodes,
            refused=refused,
            overallocated=used.beyond(),
            problems=tuple(problem for facts in gpu_nodes.values() for problem in facts.problems) + queue_problems,
        )

    def _job(
        self,
        facts: JobFacts,
        placement: Placement | None,
        takes: Mapping[str, NodeFacts],
        priorities: Mapping[str, PriorityClassObject],
    ) -> Job:
        plan, status = facts.status.plan, facts.status
        return facts.as_job(
            created=facts.created,
            priority=_priority(facts, priorities),
            placement=placement,
            started=status.start_time.timestamp() if status.start_time and plan else None,
            expected_finish=plan.predicted.finish_time.timestamp() if plan else None,
            eligible=self._eligible_nodes(facts, takes) if placement is None else None,
        )

    def _eligible_nodes(self, facts: JobFacts, takes: Mapping[str, NodeFacts]) -> tuple[str, ...] | None:
        candidates = tuple(takes.values())
        known = self._eligible.get(facts.meta.uid)
        if known and known[0] is facts and known[1] == candidates:
            return known[2]
        admitted = eligibility.eligible(facts.template["spec"], candidates)
        self._eligible[facts.meta.uid] = facts, candidates, admitted
        return admitted

    def _forget_templates(self, known: Mapping[str, JobFacts]) -> None:
        for uid in self._eligible.keys() - known.keys():
            del self._eligible[uid]


class _Books:
    """Running totals per GPU node."""

    def __init__(self, gpu_nodes: Mapping[str, NodeFacts]) -> None:
        self._nodes = gpu_nodes
        self._gpus = dict.fromkeys(gpu_nodes, 0)
        self._cpu = dict.fromkeys(gpu_nodes, 0)
        self._memory = dict.fromkeys(gpu_nodes, 0)
        self._count = dict.fromkeys(gpu_nodes, 0)

    def pod(self, node: str, use: PodUse) -> None:
        if node in self._nodes:
            self._add(node, use.gpus, use.cpu_milli, use.memory)

    def unbound(self, placement: Placement, facts: JobFacts, seats: Set[Seat]) -> None:
        """Charge the ranks whose pods are not on a node yet."""
        need = facts.requirements or Requirements(Bounds())
        uid, epoch = facts.meta.uid, str(facts.status.plan.epoch) if facts.status.plan else ""
        for rank, share in enumerate(placement.shares):
            if (uid, epoch, str(rank)) not in seats and share.node in self._nodes:
                self._add(share.node, share.gpus, need.cpu_milli(share.gpus), need.memory(share.gpus))

    def node(self, facts: NodeFacts) -> Node:
        assert facts.gpu
        return Node(
            name=facts.name,
            gpu_type=facts.gpu.name,
            gpus=facts.gpus,
            free_gpus=facts.gpus - self._gpus[facts.name],
            free_cpu_milli=facts.cpu_milli - self._cpu[facts.name],
            free_memory=facts.memory - self._memory[facts.name],
            free_pods=facts.pods - self._count[facts.name],
            topology=facts.topology,
            link_domain=facts.link_domain,
        )

    def beyond(self) -> dict[str, int]:
        over = {name: self._gpus[name] - facts.gpus for name, facts in self._nodes.items() if facts.gpu}
        return {name: gpus for name, gpus in over.items() if gpus > 0}

    def _add(self, node: str, gpus: int, cpu_milli: int, memory: int) -> None:
        self._gpus[node] += gpus
        self._cpu[node] += cpu_milli
        self._memory[node] += memory
        self._count[node] += 1


def _held(facts: JobFacts) -> Placement | None:
    """What a standing plan gives the job."""
    return to_placement(facts.meta.uid, facts.status.plan) if facts.status.plan and facts.holds_gpus else None


def _gpu_types(takes: Iterable[NodeFacts]) -> dict[str, GpuSpec]:
    """Facts per type. Where labels make nodes of one unknown product differ, the smallest memory counts."""
    specs = [facts.gpu for facts in takes if facts.gpu]
    return {spec.name: spec for spec in sorted(specs, key=lambda spec: -spec.memory_bytes)}


def _waits(facts: JobFacts, now: float) -> bool:
    """Whether a policy should decide about the job now."""
    return not (facts.finished or facts.suspended or facts.holds_gpus or facts.retry_at() > now)


def _quotas(queues: Iterable[QueueObject]) -> tuple[dict[str, tuple[Quota, ...]], tuple[Problem, ...]]:
    limits: dict[str, tuple[Quota, ...]] = {}
    problems: list[Problem] = []
    for queue in queues:
        meta = queue.metadata
        try:
            spec = QueueSpec.model_validate_json(bytes(queue.spec))
        except ValidationError as error:
            problems.append(Problem(names.QUEUE_KIND, "", meta.name, meta.uid, "MalformedQueue", str(error)))
            limits[meta.name] = (Quota(meta.name, ALL_TYPES, 0),)  # nothing is admitted that nobody could account for
            continue
        limits[meta.name] = to_quotas(meta.name, spec)
    return limits, tuple(problems)


def _refusal(
    facts: JobFacts, queues: Mapping[str, object], priorities: Mapping[str, PriorityClassObject]
) -> Pending | None:
    uid = facts.meta.uid
    if facts.error or facts.spec is None:
        return Pending(uid, PendingReason.INVALID_SPEC, facts.error, alternatives=("correct the field",))
    queue, priority_class = facts.spec.queue, facts.spec.priority_class_name
    if queue and queue not in queues:
        present = ", ".join(sorted(queues)) or "none"
        message = f"spec.queue: there is no Queue {queue!r}; there are: {present}"
        hint = f"create Queue {queue}, or name another one"
        return Pending(uid, PendingReason.QUEUE_NOT_FOUND, message, alternatives=(hint,))
    if priority_class and priority_class not in priorities:
        message = f"spec.priorityClassName: there is no PriorityClass {priority_class!r}"
        hint = f"create PriorityClass {priority_class}, or name another one"
        return Pending(uid, PendingReason.PRIORITY_CLASS_NOT_FOUND, message, alternatives=(hint,))
    return None


def _priority(facts: JobFacts, priorities: Mapping[str, PriorityClassObject]) -> int:
    named = facts.spec.priority_class_name if facts.spec else None
    if named:
        return priorities[named].value if named in priorities else 0
    return next((c.value for c in priorities.values() if c.global_default), 0)
