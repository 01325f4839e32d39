"""Queues understood: what they limit and guarantee, whose jobs count against which, and which jobs may not wait in one.

A job counts against the queue that it names; one that names none against the default of its namespace: the queue that
lists the namespace, of several the first by name. A queue that lists namespaces is for their jobs alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

import msgspec
from msgspec import Struct
from pydantic import ValidationError

from trimtab import names
from trimtab.api.convert import to_quotas
from trimtab.api.v1alpha1 import QueueSpec, QueueStatus
from trimtab.kube.objects import Meta, QueueObject
from trimtab.observe.jobs import JobFacts
from trimtab.observe.nodes import NodeFacts
from trimtab.observe.problems import Problem
from trimtab_policy.placement.capacity import ALL_TYPES
from trimtab_policy.scheduling import fair_share
from trimtab_policy.scheduling.fair_share import QueueHolding
from trimtab_policy.types import FITS_NOWHERE, Pending, PendingReason, Quota, Snapshot

TURN_SECONDS = 60.0
"""Of more jobs that fit nowhere than are considered, others have their turn then: the cluster may have changed."""
MOST_EXACT = 10
"""Places behind the last that counts up to which a job is told its own. Further behind it is told roughly: else each
start would be a write for each job in line."""


class QueueFacts(Struct, frozen=True):
    """One queue with everything derived from its own object."""

    meta: Meta
    quotas: tuple[Quota, ...]
    """GPU types in the catalogue's spelling."""
    weight: int = 1
    namespaces: tuple[str, ...] = ()
    """Whose jobs may use it; empty for all."""
    max_pending: int | None = None
    status: QueueStatus | None = None
    """What was last told about it; None where that cannot be read."""
    error: str = ""
    """Why the spec cannot be understood."""


def broken(queue: QueueObject, error: Exception) -> QueueFacts:
    """A queue that nothing can be made of: closed, as one that is malformed."""
    closed = (Quota(queue.metadata.name, ALL_TYPES, 0),)
    why = f"cannot be understood ({type(error).__name__}): this is a bug of Trimtab, please report it"
    return QueueFacts(queue.metadata, closed, error=why)


class _Namespaces(Struct):
    """The one part of a spec that is looked for even where the rest makes no sense."""

    namespaces: tuple[str, ...] = ()


def facts(queue: QueueObject) -> QueueFacts:
    """Understand a queue; one that cannot be understood admits nothing that nobody could account for."""
    meta, status = queue.metadata, _status(queue)
    try:
        spec = QueueSpec.model_validate_json(bytes(queue.spec))
    except ValidationError as error:
        closed = (Quota(meta.name, ALL_TYPES, 0),)
        return QueueFacts(meta, closed, namespaces=_namespaces(queue), status=status, error=str(error))
    quotas = to_quotas(meta.name, spec)
    return QueueFacts(meta, quotas, spec.weight, spec.namespaces, spec.max_pending_jobs, status)


def _status(queue: QueueObject) -> QueueStatus | None:
    try:
        return QueueStatus.model_validate_json(bytes(queue.status))
    except ValidationError:
        return None  # written by another version: it is overwritten


def _namespaces(queue: QueueObject) -> tuple[str, ...]:
    """Of a malformed queue: else its namespaces' jobs would run without any limit until somebody mends it."""
    try:
        return msgspec.json.decode(queue.spec, type=_Namespaces).namespaces
    except msgspec.DecodeError:
        return ()


class Queues:
    """All queues of one moment."""

    def __init__(self, queues: Iterable[QueueFacts] = ()) -> None:
        self.by_name = {queue.meta.name: queue for queue in sorted(queues, key=lambda queue: queue.meta.name)}
        self._default: dict[str, str] = {}
        for name, queue in self.by_name.items():
            for namespace in queue.namespaces:
                self._default.setdefault(namespace, name)

    @property
    def quotas(self) -> tuple[Quota, ...]:
        """Limits and guarantees of all queues."""
        return tuple(quota for queue in self.by_name.values() for quota in queue.quotas)

    @property
    def weights(self) -> dict[str, float]:
        """Queue -> its weight."""
        return {name: float(queue.weight) for name, queue in self.by_name.items()}

    def of(self, job: JobFacts) -> str:
        """The queue that the job counts against, whether there is one of that name or not; empty for none. A gang
        counts against the one that it was planned for until it ends."""
        if job.terms is not None:
            return job.terms.queue
        named = job.spec.queue if job.spec else None
        return named or self.default(job.meta.namespace)

    def default(self, namespace: str) -> str:
        """The queue of jobs of the namespace that name none; empty for none."""
        return self._default.get(namespace, "")

    def refusal(self, job: JobFacts) -> Pending | None:
        """Why the job cannot count against the queue that it names."""
        name, namespace = job.spec.queue if job.spec else None, job.meta.namespace
        if not name:
            return None
        queue = self.by_name.get(name)
        if queue is None:
            message = f"spec.queue: there is no Queue {name!r}; there are: {', '.join(self.by_name) or 'none'}"
            hint = f"create Queue {name}, or name another one"
            return Pending(job.meta.uid, PendingReason.QUEUE_NOT_FOUND, message, alternatives=(hint,))
        if queue.namespaces and namespace not in queue.namespaces:
            message = f"spec.queue: Queue {name} is not for jobs of namespace {namespace} (its spec.namespaces)"
            usable = ", ".join(self._open_to(namespace)) or "none"
            hints = (f"name a queue that the namespace may use: {usable}", f"add {namespace} to Queue {name}")
            return Pending(job.meta.uid, PendingReason.QUEUE_NOT_ALLOWED, message, alternatives=hints)
        return None

    def beyond(self, waiting: Iterable[tuple[JobFacts, int]], now: float, most: int) -> dict[str, Pending]:
        """Waiting jobs (with their priorities), by UID, for which there is no place: the less urgent, the later.

        A queue takes as many as it says (`maxPendingJobs`), and of each queue, or namespace without one, no more than
        `most` are considered. Who has been told that no time helps takes no place of a queue, or a few bad jobs would
        close it to everybody; of these, too, no more than `most` are considered at a time, and they take turns. Nor
        does who has run and comes back in a moment.
        """
        line = [
            (-priority, f.created, f.meta.namespace, f.meta.name, f) for f, priority in waiting if f.retry_at() <= now
        ]
        line.sort(key=lambda each: each[:4])
        places: Counter[str] = Counter()
        in_vain: defaultdict[str, list[JobFacts]] = defaultdict(list)
        out: dict[str, Pending] = {}
        for *_, facts in line:
            queue = self.of(facts)
            kind = queue or f"namespace/{facts.meta.namespace}"
            if fits_nowhere(facts):
                in_vain[kind].append(facts)
                continue
            places[kind] += 1
            cap = self.by_name[queue].max_pending if queue in self.by_name else None
            if cap is not None and places[kind] > cap:
                out[facts.meta.uid] = _full(facts.meta.uid, queue, places[kind], cap)
            elif places[kind] > most:
                out[facts.meta.uid] = _not_considered(facts.meta, queue, most)
        for jobs in in_vain.values():
            out |= {f.meta.uid: _not_considered(f.meta, self.of(f), most) for f in _not_in_turn(jobs, now, most)}
        return out

    def problems(self, nodes: Iterable[NodeFacts]) -> tuple[Problem, ...]:
        """What somebody should mend: specs, namespaces that two queues claim, guarantees that nobody can keep."""
        return (*self._malformed(), *self._claimed_twice(), *self._promised_too_much(nodes))

    def _open_to(self, namespace: str) -> list[str]:
        return [name for name, queue in self.by_name.items() if not queue.namespaces or namespace in queue.namespaces]

    def _malformed(self) -> Iterator[Problem]:
        for queue in self.by_name.values():
            if queue.error:
                yield _problem(queue, "MalformedQueue", queue.error)

    def _claimed_twice(self) -> Iterator[Problem]:
        for name, queue in self.by_name.items():
            for namespace in queue.namespaces:
                if (first := self._default[namespace]) != name:
                    said = f"spec.namespaces: {namespace} is listed by Queue {first}, too, which comes first by name"
                    yield _problem(queue, "NamespaceClaimed", f"{said}: its jobs that name no queue count against that")

    def _promised_too_much(self, nodes: Iterable[NodeFacts]) -> Iterator[Problem]:
        present = _gpus(nodes)
        promised = _guarantees(self.quotas)
        for queue in self.by_name.values():
            for quota in queue.quotas:
                there, sum_ = present.get(quota.gpu_type, 0), promised[quota.gpu_type]
                if quota.guaranteed and sum_ > there:
                    kind = "of all types" if quota.gpu_type == ALL_TYPES else quota.gpu_type
                    said = (
                        f"spec.quotas: the guarantees of all queues come to {sum_} GPUs {kind}, and there are {there}"
                    )
                    yield _problem(queue, "GuaranteeTooLarge", f"{said}: not all of them can be kept")


def _guarantees(quotas: Iterable[Quota]) -> Counter[str]:
    """GPUs promised by type. Of one queue what it is promised by type is part of what it is promised altogether."""
    of_type: Counter[str] = Counter()
    by_queue: Counter[str] = Counter()
    of_any: dict[str, int] = {}
    for quota in quotas:
        if quota.gpu_type == ALL_TYPES:
            of_any[quota.queue] = quota.guaranteed
        else:
            of_type[quota.gpu_type] += quota.guaranteed
            by_queue[quota.queue] += quota.guaranteed
    of_type[ALL_TYPES] = sum(max(by_queue[queue], of_any.get(queue, 0)) for queue in by_queue.keys() | of_any.keys())
    return of_type


def _gpus(nodes: Iterable[NodeFacts]) -> Counter[str]:
    """GPUs by type, also those of nodes that take no pods at the moment, or whose device plugin has taken them away."""
    gpus: Counter[str] = Counter()
    for node in nodes:
        gpus[ALL_TYPES] += node.gpus + node.withdrawn
        if node.gpu:
            gpus[node.gpu.name] += node.gpus + node.withdrawn
    return gpus


def fits_nowhere(job: JobFacts) -> bool:
    """Whether a waiting job was told, of its spec as it stands, that it would find no place even alone."""
    pending, seen = job.status.pending, job.status.observed_generation == job.meta.generation
    return seen and pending is not None and pending.reason in FITS_NOWHERE


def _not_in_turn(jobs: Sequence[JobFacts], now: float, most: int) -> Sequence[JobFacts]:
    """All but the `most` whose turn it is; `now` is a POSIX time."""
    if len(jobs) <= most:
        return ()
    first = int(now // TURN_SECONDS) * most % len(jobs)
    return (*jobs, *jobs)[first + most : first + len(jobs)]


def _problem(queue: QueueFacts, reason: str, message: str) -> Problem:
    return Problem(names.QUEUE_KIND, "", queue.meta.name, queue.meta.uid, reason, message)


def _full(uid: str, queue: str, place: int, cap: int) -> Pending:
    others = place - 1
    rough = 10 ** (len(str(others)) - 1)
    far = place - cap > MOST_EXACT
    where = f"at least {others // rough * rough} others are before it" if far else f"it is number {place} in line"
    takes = "no waiting jobs" if cap == 0 else f"{cap} waiting jobs at a time"
    message = f"queue {queue} takes {takes} (spec.maxPendingJobs); {where}"
    hints = ("wait until others of the queue have started", f"raise spec.maxPendingJobs of Queue {queue}")
    return Pending(uid, PendingReason.QUEUE_FULL, message, alternatives=hints)


def _not_considered(meta: Meta, queue: str, most: int) -> Pending:
    whose = f"queue {queue}" if queue else f"namespace {meta.namespace}"
    message = f"of {whose} the first {most} waiting jobs are considered, by priority and age, and it is not among them"
    hints = ("wait until others have started", "submit what shall run now, and the rest later")
    return Pending(meta.uid, PendingReason.NOT_CONSIDERED, message, alternatives=hints)


class Usage(Struct, frozen=True):
    """How a queue is used."""

    holding: QueueHolding
    """What its jobs hold."""
    running: int = 0
    """Jobs that hold GPUs."""
    pending: int = 0
    """Jobs that wait, whatever for; not those that are suspended, or may not use the queue."""
    first: str = ""
    """namespace/name of the one whose turn is next; empty where policies are asked about none."""


def usage(queues: Iterable[QueueFacts], jobs: Iterable[JobFacts], snapshot: Snapshot) -> dict[str, Usage]:
    """Queue -> how it is used, for each of `queues`."""
    lines = Queues(queues)
    running, pending = Counter[str](), Counter[str]()
    for job in jobs:
        if job.holds_gpus:
            running[lines.of(job)] += 1
        elif not (job.finished or job.suspended or lines.refusal(job)):
            pending[lines.of(job)] += 1
    holdings, first = fair_share.queue_holdings(snapshot), dict[str, str]()
    for waiting in fair_share.in_line(snapshot).waiting():
        first.setdefault(waiting.queue, f"{waiting.namespace}/{waiting.name}")
    return {
        name: Usage(holdings.get(name, QueueHolding()), running[name], pending[name], first.get(name, ""))
        for name in lines.by_name
    }
