"""What would help a job that waits: the smallest changes that would start it now, or under which it could run at all.

Every hint has been tried on what is free: it names what the job would get, and how fast that would be against the best
it could have as it is. Changes come in the order of what they ask of the user: another division of the same GPUs,
fewer GPUs, other GPUs, and then what others would have to give up.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from functools import partial
from itertools import islice

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from trimtab_policy.perf import constants
from trimtab_policy.perf.memo import BoundedMemo
from trimtab_policy.placement.candidates import Candidate, candidates, could_ever_fit, has_room, nodes_for
from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.placement.running_columns import running_columns
from trimtab_policy.placement.wording import Hint, TimedText, waits
from trimtab_policy.specs import OTHER, GpuSpec
from trimtab_policy.types import Bounds, Job, Pending, PendingReason, Remedy, Requirements, Snapshot

MOST_TRIED = 64
"""Jobs of one decision, of those that ask for different things, for which other wishes are tried."""
MAX_HINTS = 3
"""More suggestions than this nobody reads."""
NOTHING = Remedy()
RESHARDING = (
    "its checkpoint can be loaded only with the degrees that it was saved with; where the training can load it with "
    "others, say so in spec.elasticity.checkpoint.resharding"
)
"""A hint that has not been tried: what the training can do, only its owner knows."""


class WaitingCase(Struct, frozen=True):
    """A job that waits, and what is left for it."""

    snapshot: Snapshot
    capacity: Capacity
    job: Job
    types: list[GpuSpec]
    """GPU types of the cluster that the job allows."""
    known: list[Candidate]
    """Its feasible options on them, cheapest first."""

    def answer(
        self,
        reason: PendingReason,
        message: str | TimedText,
        blockers: Iterable[str | TimedText],
        *hints: str | Hint,
    ) -> Pending:
        return waits(self.job.uid, reason, message, islice(blockers, MAX_HINTS), hints[:MAX_HINTS])

    def unavailable(self) -> Iterator[str]:
        """Nodes that take no pods, and why."""
        return (f"node {name}: {reason}" for name, reason in sorted(self.snapshot.unavailable.items()))

    def possible(self) -> list[Candidate]:
        """Options that the nodes could hold, were they all free."""
        return [candidate for candidate in self.known if could_ever_fit(self.capacity, self.job, candidate)]

    def within_quota(self) -> list[Candidate]:
        """Those of them that the queue's quota leaves room for."""
        left = {gpu.name: self.capacity.quota_left(self.job.queue, gpu.name) for gpu in self.types}
        return [c for c in self.possible() if (limit := left[c.gpu.name]) is None or c.option.gpus <= limit]


def starts_now_if(case: WaitingCase, able: list[Candidate]) -> tuple[str | Hint, ...]:
    """Changes under which the job would start at once. `able` are the options that it only lacks room for.

    Nothing is tried for jobs far back in line, of those that differ: much will have changed when it is their turn.
    """
    case.capacity.tried += 1
    if case.capacity.tried > MOST_TRIED:
        return ()
    return tuple(islice(_changes(case, able), MAX_HINTS))


def _changes(case: WaitingCase, able: list[Candidate]) -> Iterator[str | Hint]:
    need, fastest = case.job.requirements, max(candidate.tokens_per_second for candidate in able)
    least, pinned = min(candidate.option.gpus for candidate in able), is_pinned(case.job)
    fewer, any_type = need.gpus if pinned else Bounds(1, max(1, least - 1)), ()
    found = 0
    for change, wider, changed in (
        ("spread over {nodes} instead of at most {max_nodes}", replace(need, max_nodes=None), 1),
        ("with spec.parallelism left free ({what})", _any_degrees(case.job), 1),
        ("with {gpus} instead of {least} GPUs ({what})", replace(need, gpus=fewer), 1),
        ("with other GPU types allowed ({what})", replace(need, gpu_types=any_type), 1),
        ("with {gpus} GPUs of another type ({what})", replace(need, gpus=fewer, gpu_types=any_type), 2),
    ):
        if wider == need or (changed > 1 and (found or pinned or not need.gpu_types)):
            continue  # two changes at once only where none helps by itself
        if best := _starts(case, wider):
            found += 1
            told = change.format(
                nodes=count_of(best.option.nodes), max_nodes=need.max_nodes, gpus=best.option.gpus, least=least,
                what=best.describe(),
            )  # fmt: skip
            told += f" it would start now at {best.tokens_per_second / fastest:.2f}× the speed"
            yield Hint(told, _remedy(case.job, replace(case.job, requirements=wider), best))
    if pinned:
        yield RESHARDING
    yield from _at_the_cost_of_others(case, able)


def _remedy(job: Job, wider: Job, best: Candidate) -> Remedy:
    """From one to the other, and no further than the option needs."""
    need, wide = job.requirements, wider.requirements
    limits = replace(wide, gpus=need.gpus, gpu_types=need.gpu_types, max_nodes=need.max_nodes)
    return Remedy(
        gpus=None if wide.gpus == need.gpus else best.option.gpus,
        gpu_types=None if wide.gpu_types == need.gpu_types else wide.gpu_types,
        max_nodes=best.option.nodes if need.max_nodes and best.option.nodes > need.max_nodes else None,
        any_degrees=limits != need,
        precision=None if wider.training == job.training else wider.training.precision,
    )


def _starts(case: WaitingCase, requirements: Requirements) -> Candidate | None:
    """The fastest option under other requirements that has room now."""
    capacity, job = case.capacity, replace(case.job, requirements=requirements)
    types = [name for name in case.snapshot.gpu_types if not requirements.gpu_types or name in requirements.gpu_types]
    if not any(capacity.gpus(job, name) >= requirements.gpus.low for name in types):
        return None  # before any plan is searched for
    found = candidates(case.snapshot, capacity, job)
    found = [each for each in found if each.option.gpus <= capacity.free_gpus(each.gpu.name)]
    found.sort(key=lambda candidate: -candidate.tokens_per_second)
    return next((candidate for candidate in found if nodes_for(capacity, job, candidate)), None)


def _at_the_cost_of_others(case: WaitingCase, able: list[Candidate]) -> Iterator[Hint]:
    """With which priority the job could take the place of jobs that may be stopped; counted by GPUs."""
    capacity, job = case.capacity, case.job
    if job.eligible is not None:
        return
    least: tuple[int, Candidate, int] | None = None
    for candidate in able:
        name = candidate.gpu.name
        free = capacity.free_gpus(name)
        for priority, gpus in capacity.remember(("stoppable", name), partial(_held, case.snapshot, name)):
            if free + gpus >= candidate.option.gpus:
                if least is None or priority < least[0]:
                    least = priority, candidate, gpus
                break
    if least and least[0] >= job.priority:
        priority, candidate, gpus = least
        yield Hint(
            f"with a priority above {priority} instead of {job.priority} it could take the place of jobs that may be "
            f"stopped, which hold {gpus}×{candidate.gpu.name}",
            Remedy(priority=priority + 1),
        )


def _held(snapshot: Snapshot, gpu_type: str) -> list[tuple[int, int]]:
    """Priority -> GPUs of the type that jobs of at most this priority hold which may be stopped; by priority."""
    running = running_columns(snapshot)
    able = running.of_types((gpu_type,)) & running.may_be_stopped(snapshot)
    levels, of_level = np.unique(running.priority[able], return_inverse=True)
    gpus = np.bincount(of_level, running.gpus[able], len(levels)).cumsum()
    return list(zip(levels.tolist(), gpus.astype(np.int64).tolist(), strict=True))


def more_quota(case: WaitingCase, smallest: Candidate, left: int) -> Iterator[str | Hint]:
    """What helps a job whose queue has spent its limit: by how much to raise it, or a queue that has room."""
    job, capacity = case.job, case.capacity
    missing, name = smallest.option.gpus - left, smallest.gpu.name
    now = "it would start now" if _room_beyond_quota(case, smallest) else "it would only wait for free GPUs"
    yield Hint(f"with {missing} more GPUs allowed to queue {job.queue} {now}", Remedy(gpu_type=name, quota=missing))
    others = sorted({quota.queue for quota in case.snapshot.quotas} - {job.queue})
    roomy = [queue for queue in others if capacity.within_quota(queue, name, smallest.option.gpus)]
    if roomy:
        text = f"in queue {roomy[0]}, which has {smallest.option.gpus}×{name} left, {now}"
        yield Hint(text, Remedy(queue=roomy[0]))
    yield f"wait for a job of queue {job.queue} to finish"


def _room_beyond_quota(case: WaitingCase, candidate: Candidate) -> bool:
    return has_room(case.capacity, replace(case.job, queue=""), candidate)


def would_work_if(case: WaitingCase) -> tuple[str | Hint, ...]:
    """The smallest change under which there is a plan at all.

    That takes up to a dozen searches, and depends on nothing that changes from decision to decision: it is remembered.
    """
    job, capacity = case.job, case.capacity
    cluster = tuple(
        (gpu, capacity.node_gpus(name), capacity.gpus(job, name, free=False), tuple(capacity.lower_speeds(name)))
        for name, gpu in sorted(case.snapshot.gpu_types.items())
    )
    asked = job.model, job.training, job.requirements, job.speeds, job.corrections, job.steps_done > 0, job.restarts > 0
    return _helpful.get((asked, cluster, constants.active()), lambda: tuple(_first_that_works(case)))


_helpful: BoundedMemo[Hashable, tuple[str | Hint, ...]] = BoundedMemo(1 << 14, len)
"""What has been found to help jobs that have no plan."""


def _first_that_works(case: WaitingCase) -> Iterator[str | Hint]:
    too_large: list[tuple[Candidate, Job]] = []
    for change, job in _wider(case).items():
        found = candidates(case.snapshot, case.capacity, job) if job != case.job else []
        there = [each for each in found if each.option.gpus <= _gpus_of(case, each)]
        if there:
            best = min(there, key=lambda c: c.cost)
            told = f"{change} makes it possible: {best.describe()} would do"
            yield Hint(told, _remedy(case.job, job, best))
            return
        too_large += [(each, job) for each in found]
    if too_large:
        least, wider = min(too_large, key=lambda found: found[0].cost)
        have = f"the job may use {_gpus_of(case, least)} of this cluster"
        told = f"more GPUs, or a smaller model: {least.describe()} would do, and {have}"
        yield Hint(told, with_room(case, least, _remedy(case.job, wider, least)))


def with_room(case: WaitingCase, option: Candidate, remedy: Remedy = NOTHING, *, new: bool = False) -> Remedy:
    """The same, and as many nodes more as the option needs beside those that there are, were they all free; `new`: all
    of its nodes."""
    name, asked = option.gpu.name, option.option
    size = max(1, case.capacity.node_gpus(name), asked.gpus_per_node)
    missing = asked.nodes - (0 if new else case.capacity.eligible_nodes(case.job, name))
    missing = max(missing, -(-(asked.gpus - _gpus_of(case, option)) // size), 1)
    return replace(remedy, gpu_type=name, nodes=missing, node_gpus=size)


def _gpus_of(case: WaitingCase, candidate: Candidate) -> int:
    """GPUs of its type on nodes that the job may use, busy or not."""
    return case.capacity.gpus(case.job, candidate.gpu.name, free=False)


def _wider(case: WaitingCase) -> dict[str, Job]:
    """The job with more freedom, the smallest changes first."""
    job, need = case.job, case.job.requirements
    low, high = need.gpus.low, need.gpus.high
    if is_pinned(job):
        return {"allowing other GPU types": replace(job, requirements=replace(need, gpu_types=()))}
    of_type = max(case.capacity.gpus(job, gpu.name, free=False) for gpu in case.types)
    more_of_type, more_of_any = Bounds(low, max(of_type, high)), Bounds(low, max(int(case.capacity.total.sum()), high))
    requirements = {
        "leaving spec.parallelism free": _any_degrees(job),
        "raising spec.resources.maxNodes": replace(need, max_nodes=None),
        "raising spec.resources.gpus.max": replace(need, gpus=more_of_type, max_nodes=None),
        "allowing other GPU types": replace(need, gpu_types=()),
        "raising spec.resources.gpus.max and allowing other GPU types": replace(
            need, gpu_types=(), gpus=more_of_any, max_nodes=None
        ),
    }
    wider = {change: replace(job, requirements=wide) for change, wide in requirements.items()}
    formats = {precision for gpu in case.types for precision in gpu.peak_flops} - {job.training.precision}
    for precision in sorted(formats):
        wider[f"training in {precision} (spec.training.precision)"] = replace(
            job, training=replace(job.training, precision=precision)
        )
    return wider


def _any_degrees(job: Job) -> Requirements:
    """The same without the user's limits on how the work is divided, where these are the only ones: launchers that the
    performance model knows nothing about have limits of their own, and so has a checkpoint."""
    need = job.requirements
    if need.software == OTHER or job.steps_done or is_pinned(job):
        return need
    free = Requirements(gpus=need.gpus)
    return replace(
        need, modes=free.modes, tensor=free.tensor, pipeline=free.pipeline, context=free.context,
        expert=free.expert, zero_stage=None, recompute=None,
    )  # fmt: skip


def is_pinned(job: Job) -> bool:
    """Whether the job has a checkpoint that can be loaded only as it was saved (`limits.narrowed`): a user who allows
    other GPU counts would have it begin anew, and lose all its work."""
    need = job.requirements
    degrees = need.gpus, need.tensor, need.pipeline, need.virtual, need.context, need.expert
    ran = job.steps_done > 0 or job.restarts > 0
    return ran and need.zero_stage is not None and all(bounds.low == bounds.high for bounds in degrees)


def count_of(count: int) -> str:
    """`1 node`, `2 nodes`."""
    return f"{count} node" if count == 1 else f"{count} nodes"
