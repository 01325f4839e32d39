"""Whose turn it is: what each queue holds of the cluster, whose guarantee is not met, and what is only borrowed.

What a gang holds counts by what it is worth to that very model: each of its GPUs is as many GPUs of the fastest type
of the cluster as it has of that type's throughput with the same plan, by the performance model (by the job's own speeds
where it brings them). So an H100-hour is not a T4-hour, and the two differ less for a model that is bound by memory
than for one that is bound by computing. This is dominant-resource fairness (Ghodsi et al. 2011) with throughput as the
one resource, as in Gavel (Narayanan et al. 2020). The share of a queue is what its jobs hold, over what the cluster is
worth (there by the peaks of its GPUs, since there is no job to ask), over its weight. Jobs without a queue share one of
weight 1 with all others of their namespace: nobody gets more by leaving queues out.

Jobs that wait see the share as it will be when their turn comes: the k-th of a queue sees it with the k - 1 before it
served. Sorted by it, queues take turns within one decision as they would over many: weighted max-min to within one
job. What a waiting job counts for is not known before it is placed; it is the fewest GPUs that it starts with, of the
fastest type that it allows.

Priority comes before everything, then guarantees, then shares; in a queue it is priority, then age. A job is entitled
where what its queue is guaranteed, and does not hold, is enough for all of it. One that no guarantee of its queue would
ever be enough for takes nothing of it away from those behind it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from trimtab_policy import catalog
from trimtab_policy.perf import constants, effective_gpus
from trimtab_policy.placement import grants
from trimtab_policy.placement.candidates import allowed_types, weight
from trimtab_policy.placement.capacity import ALL_TYPES
from trimtab_policy.placement.node_columns import columns
from trimtab_policy.placement.running_columns import RunningColumns, running_columns
from trimtab_policy.specs import GpuSpec
from trimtab_policy.types import Grant, Job, Placement, Snapshot, Speed

REMEMBERED = 1 << 13
"""Gangs whose worth is kept."""
DIGITS = 9
"""Of a share: what is equal must not differ by the order in which it was added up."""


class QueueHolding(Struct, frozen=True):
    """What the jobs of a queue hold."""

    gpus: dict[str, int] = {}
    """By GPU type."""
    borrowed: dict[str, int] = {}
    """Of those, what is beyond its guarantees, by GPU type."""
    share: float = 0.0
    """Part of the cluster's throughput over the weight of the queue."""


def line_of(job: Job) -> str:
    """The queue that the job is served with: its own, or that of all jobs of its namespace without one."""
    return job.queue or f"namespace/{job.namespace}"


def in_line(snapshot: Snapshot) -> Snapshot:
    """The snapshot with the waiting jobs in line: `Job.share` and `Job.entitled` of each, for `Snapshot.waiting`."""
    waiting = [job for job in snapshot.jobs if job.placement is None]
    if not waiting:
        return snapshot
    turns = _Turns(snapshot)
    waiting.sort(key=lambda job: (-job.priority, job.created, job.namespace, job.name))
    placed = {job.uid: turns.next(job) for job in waiting}
    return replace(
        snapshot, jobs=tuple(placed.get(job.uid, job) if job.placement is None else job for job in snapshot.jobs)
    )


def borrowed(snapshot: Snapshot) -> dict[str, int]:
    """Job UID -> GPUs that it holds beyond what its queue is guaranteed; jobs that borrow nothing are left out.

    The guarantee covers the jobs of highest priority and, among those, the GPUs that were given first (`grants`).
    """
    lines: dict[str, list[Job]] = {}
    for job in snapshot.jobs:
        if job.placement:
            lines.setdefault(line_of(job), []).append(job)
    guarantees = _guarantees(snapshot)
    found: dict[str, int] = {}
    for name, jobs in lines.items():
        found |= _beyond(guarantees.get(name, {}), jobs)
    return found


def queue_holdings(snapshot: Snapshot) -> dict[str, QueueHolding]:
    """Queue -> what its jobs hold, for every queue that has quotas or a weight, and for all that hold anything."""
    beyond, parts = borrowed(snapshot), shares(snapshot)
    gpus: dict[str, Counter[str]] = {}
    lent: dict[str, Counter[str]] = {}
    for job in snapshot.jobs:
        if held := job.placement:
            gpus.setdefault(line_of(job), Counter())[held.gpu_type] += held.gpus
            if of_job := beyond.get(job.uid):
                lent.setdefault(line_of(job), Counter())[held.gpu_type] += of_job
    known = [*(quota.queue for quota in snapshot.quotas), *snapshot.weights, *gpus]
    return {
        name: QueueHolding(dict(gpus.get(name, {})), dict(lent.get(name, {})), parts.get(name, 0.0))
        for name in sorted(set(known))
    }


# --- guarantees ------------------------------------------------------------------------------------------------------
def _guarantees(snapshot: Snapshot) -> dict[str, dict[str, int]]:
    """Queue -> GPU type (or `*`) -> GPUs that it is guaranteed."""
    found: dict[str, dict[str, int]] = {}
    for quota in snapshot.quotas:
        if quota.guaranteed:
            found.setdefault(quota.queue, {})[quota.gpu_type] = quota.guaranteed
    return found


def _beyond(guaranteed: dict[str, int], jobs: Sequence[Job]) -> dict[str, int]:
    """Job UID -> GPUs that the guarantees of its queue do not cover, of those that hold such. A guarantee of any type
    covers what those by type have left over, together they cover no more than the larger of the two."""
    if not any(guaranteed.values()):
        return {job.uid: job.placement.gpus for job in jobs if job.placement}
    parts = [_Part(job, job.placement, grant) for job in jobs if job.placement for grant in grants.held(job)]
    of_type = {name: gpus for name, gpus in guaranteed.items() if name != ALL_TYPES}
    for part in sorted(parts, key=lambda part: part.seniority(part.grant.type_order)):
        left = of_type.get(part.placement.gpu_type, 0)
        part.lent -= (kept := min(part.lent, left))
        of_type[part.placement.gpu_type] = left - kept
    of_any = guaranteed.get(ALL_TYPES, 0) - sum(part.grant.gpus - part.lent for part in parts)
    for part in sorted(parts, key=lambda part: part.seniority(part.grant.order)):
        part.lent -= (kept := min(part.lent, max(0, of_any)))
        of_any -= kept
    lent: Counter[str] = Counter()
    for part in parts:
        lent[part.job.uid] += part.lent
    return {uid: gpus for uid, gpus in lent.items() if gpus}


class _Part:
    """GPUs that a gang was given at one time, and how many of them are lent to it."""

    def __init__(self, job: Job, placement: Placement, grant: Grant) -> None:
        self.job, self.placement, self.grant = job, placement, grant
        self.lent = grant.gpus

    def seniority(self, order: int) -> tuple[int, int, float, float, str, str, str]:
        """Which ones the guarantee covers first. Times count only where nobody has noted an order."""
        job = self.job
        since = math.inf if job.started is None else job.started
        return -job.priority, order, since, job.created, job.namespace, job.name, job.uid


# --- turns -----------------------------------------------------------------------------------------------------------
class _Turns:
    """Waiting jobs served one after the other, on paper."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._size, self._peaks = _size(snapshot), _peaks(snapshot)
        self._shares = shares(snapshot)
        self._guaranteed = _guarantees(snapshot)
        self._left = {name: dict(kinds) for name, kinds in self._guaranteed.items()}
        for job in snapshot.jobs if self._left else ():
            if job.placement and (left := self._left.get(line_of(job))):
                _charge(left, job.placement.gpu_type, job.placement.gpus)

    def next(self, job: Job) -> Job:
        """The next one of its queue, with what it sees of it; those behind it see it served."""
        line, need = line_of(job), job.requirements.gpus.low
        share = self._shares.get(line, 0.0)
        counts = need * max((self._peaks[gpu.name] for gpu in self._usable(job)), default=1.0)
        self._shares[line] = share + counts / self._size / self._snapshot.weights.get(line, 1.0)
        entitled = line in self._left and self._claim(line, job, need)
        seen = round(share, DIGITS)
        return job if (seen, entitled) == (job.share, job.entitled) else replace(job, share=seen, entitled=entitled)

    def _usable(self, job: Job) -> list[GpuSpec]:
        allowed = allowed_types(self._snapshot, job.requirements)
        return [gpu for gpu in allowed if job.training.precision in gpu.peak_flops] or allowed

    def _claim(self, line: str, job: Job, need: int) -> bool:
        """Whether what is left of a guarantee is enough for the job, which takes it."""
        guaranteed, left = self._guaranteed[line], self._left[line]
        kinds = [*sorted((gpu.name for gpu in self._usable(job)), key=lambda name: -left.get(name, 0)), ALL_TYPES]
        able = [kind for kind in kinds if guaranteed.get(kind, 0) >= need]
        enough = next((kind for kind in able if left[kind] >= need), None)
        for kind in able if enough is None else (enough,):
            _charge(left, kind, need)
        return enough is not None


def _charge(left: dict[str, int], kind: str, gpus: int) -> None:
    for name in {kind, ALL_TYPES} & left.keys():
        left[name] -= gpus


# --- what GPUs are worth ---------------------------------------------------------------------------------------------
def shares(snapshot: Snapshot) -> dict[str, float]:
    """Queue -> what its running jobs hold, over the cluster and over its weight."""
    size = _size(snapshot)
    held = _recent.held(tuple(snapshot.gpu_types.values()), running_columns(snapshot))
    return {name: gpus / size / snapshot.weights.get(name, 1.0) for name, gpus in held.items()}


def _size(snapshot: Snapshot) -> float:
    """GPUs of the fastest type that the cluster is worth."""
    peaks = _peaks(snapshot)
    kinds = columns(snapshot.nodes).gpus_of_type.items()
    return sum(gpus * peaks.get(gpu_type, 1.0) for gpu_type, gpus in kinds) or 1.0


def _peaks(snapshot: Snapshot) -> dict[str, float]:
    """GPU type -> its peak over that of the fastest type of the cluster."""
    most = max(map(weight, snapshot.gpu_types.values()), default=1.0)
    return {name: weight(gpu) / most for name, gpu in snapshot.gpu_types.items()}


class _Recent:
    """What a GPU is worth to the gangs of the last snapshots, told apart by the objects that tell it: these are the
    same from round to round, and to look into them is most of what it costs to ask."""

    def __init__(self) -> None:
        self._for: tuple[object, ...] = ()
        self._rates: dict[tuple[int, ...], tuple[tuple[object, ...], float]] = {}
        """Identities -> the objects, which keeps these identities theirs, and the rate."""
        self._held: tuple[RunningColumns | None, tuple[object, ...], dict[str, float]] = None, (), {}

    def held(self, types: tuple[GpuSpec, ...], running: RunningColumns) -> dict[str, float]:
        """Queue -> what its running jobs hold, as GPUs of the fastest type."""
        asked_for = types, constants.active() if running.modelled else None  # to read them takes a while
        about, by, found = self._held
        if about is not running or by != asked_for:
            gangs = [(job, job.placement) for job in running.jobs if job.placement]
            found = {}
            for (job, _), gpus, rate in zip(gangs, running.gpus.tolist(), self._rates_of(types, gangs), strict=True):
                found[line_of(job)] = found.get(line_of(job), 0.0) + gpus * rate
            self._held = running, asked_for, found
        return found

    def _rates_of(self, types: tuple[GpuSpec, ...], running: Sequence[tuple[Job, Placement]]) -> list[float]:
        """That of each gang."""
        if not any(job.speeds is None for job, _ in running):
            return _of_all(types, running)  # without the constants of the performance model
        asked_for, known = (types, constants.active()), self._rates
        if asked_for != self._for or len(known) > REMEMBERED:
            self._for, known = asked_for, {}
            self._rates = known
        keys = [(id(j.model), id(j.training), id(j.requirements), id(j.speeds), id(held)) for j, held in running]
        found = list(map(known.get, keys))
        if lacking := [i for i, each in enumerate(found) if each is None]:
            for i, rate in zip(lacking, _of_all(types, [running[i] for i in lacking]), strict=True):
                job, held = running[i]
                found[i] = known[keys[i]] = (job.model, job.training, job.requirements, job.speeds, held), rate
        return [each[1] for each in found if each]


_recent = _Recent()


def _of_all(types: tuple[GpuSpec, ...], running: Sequence[tuple[Job, Placement]]) -> list[float]:
    """The same by what the objects say: others may have said it, too."""
    known = _remembered
    keys = [_key(job, held, types) for job, held in running]
    new = {key: each for key, each in zip(keys, running, strict=True) if key not in known}
    if new:
        if len(known) + len(new) > REMEMBERED:
            known.clear()
            new = dict(zip(keys, running, strict=True))
        known.update(zip(new, _rates(types, list(new.values())), strict=True))
    return [known[key] for key in keys]


_remembered: dict[tuple[object, ...], float] = {}


def _key(job: Job, held: Placement, types: tuple[GpuSpec, ...]) -> tuple[object, ...]:
    """All that the worth of a GPU to a gang depends on."""
    if job.speeds is not None:
        return job.speeds, held.gpu_type, types
    return (*_gang(job, held), held.gpu_type, types, id(constants.active()))


def _gang(job: Job, held: Placement) -> effective_gpus.PlannedTraining:
    widest = max(share.gpus for share in held.shares)
    return effective_gpus.PlannedTraining(job.model, job.training, held.plan, widest, job.requirements.software)


def _rates(types: Sequence[GpuSpec], gangs: Sequence[tuple[Job, Placement]]) -> list[float]:
    """What each of their GPUs does, over what one of the fastest type of the cluster would do for them."""
    modelled = [(job, held) for job, held in gangs if job.speeds is None]
    known = {gpu.name: column for column, gpu in enumerate(types)}
    # Nodes of a type may all be cordoned while gangs on them go on: then the catalogue knows it.
    absent = [gpu for gpu in catalog.all_gpus() if gpu.name in {held.gpu_type for _, held in modelled} - known.keys()]
    known |= {gpu.name: len(types) + number for number, gpu in enumerate(absent)}
    seconds = effective_gpus.step_seconds([_gang(job, held) for job, held in modelled], [*types, *absent])
    rates = iter(
        _ratio(float(row[: len(types)].min(initial=math.inf)), float(row[known[held.gpu_type]]))
        if held.gpu_type in known
        else 1.0
        for row, (_, held) in zip(seconds, modelled, strict=True)
    )
    return [next(rates) if job.speeds is None else _given(job.speeds, held, types) for job, held in gangs]


def _given(speeds: Sequence[Speed], held: Placement, types: Iterable[GpuSpec]) -> float:
    """The same by the speeds that the job brings."""
    best: dict[str, float] = {}
    for row in speeds:
        best[row.gpu_type] = max(best.get(row.gpu_type, 0.0), row.steps_per_second / row.gpus)
    fastest = max((best.get(gpu.name, 0.0) for gpu in types), default=0.0)
    return _ratio(best.get(held.gpu_type, 0.0), fastest)


def _ratio(part: float, whole: float) -> float:
    """1 where there is nothing to compare with."""
    return part / whole if 0 < part < math.inf and 0 < whole < math.inf else 1.0
