"""The table of `trimtab get queues`: what each queue is promised, may have, and has, by GPU type."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from trimtab.api.convert import UNLIMITED
from trimtab.observe.queues import QueueFacts, Usage, usage
from trimtab.observe.snapshot import Observation
from trimtab.ui.listing import Listing
from trimtab_policy.placement.capacity import ALL_TYPES
from trimtab_policy.types import Quota

COLUMNS = ("NAME", "WEIGHT", "GPU TYPE", "GUARANTEED", "LIMIT", "HELD", "BORROWED", "SHARE", "PENDING", "NEXT")
LEAST = ("WEIGHT", "BORROWED", "SHARE", "NEXT", "LIMIT", "GUARANTEED", "GPU TYPE")
"""Columns by how much a narrow terminal can do without them, those first that go first."""
NUMBERS = COLUMNS[1:2] + COLUMNS[3:9]


class QueueTypeUse(Struct, frozen=True, rename="camel"):
    """One queue and one GPU type, or all of them together (`*`)."""

    gpu_type: str
    guaranteed: int
    limit: int | None
    """None: no limit."""
    held: int
    borrowed: int


class QueueRow(Struct, frozen=True, rename="camel"):
    """One queue, as `-o json` shows it."""

    name: str
    weight: int
    namespaces: tuple[str, ...]
    max_pending_jobs: int | None
    running: int
    pending: int
    share: float
    next: str | None
    """Job whose turn is next."""
    quotas: tuple[QueueTypeUse, ...]
    """By GPU type, for those with a quota and those that its jobs hold GPUs of."""
    problems: tuple[str, ...]
    """What somebody should mend."""


def rows(observation: Observation) -> list[QueueRow]:
    """Every queue, by name."""
    uses = usage(observation.queues.values(), observation.jobs.values(), observation.snapshot)
    return [
        QueueRow(
            name=name,
            weight=queue.weight,
            namespaces=queue.namespaces,
            max_pending_jobs=queue.max_pending,
            running=uses[name].running,
            pending=uses[name].pending,
            share=round(uses[name].holding.share, 3),
            next=uses[name].first or None,
            quotas=tuple(_kinds(queue, uses[name])),
            problems=tuple(problem.message for problem in observation.problems if problem.uid == queue.meta.uid),
        )
        for name, queue in observation.queues.items()
    ]


def _kinds(queue: QueueFacts, used: Usage) -> Iterator[QueueTypeUse]:
    held, lent = used.holding.gpus, used.holding.borrowed
    quotas = {quota.gpu_type: quota for quota in queue.quotas}
    for name in sorted(quotas.keys() | held.keys(), key=lambda name: (name == ALL_TYPES, name)):
        quota = quotas.get(name, Quota(queue.meta.name, name, UNLIMITED))
        whole = name == ALL_TYPES
        yield QueueTypeUse(
            gpu_type=name,
            guaranteed=quota.guaranteed,
            limit=None if quota.gpus == UNLIMITED else quota.gpus,
            held=sum(held.values()) if whole else held.get(name, 0),
            borrowed=sum(lent.values()) if whole else lent.get(name, 0),
        )


def table(queues: list[QueueRow], *, headers: bool = True) -> Listing:
    """A line for each queue and GPU type; what is said of the whole queue stands in its first line."""
    table = Listing(COLUMNS, less=LEAST, right=NUMBERS, headers=headers)
    for queue in queues:
        whole = queue.name, str(queue.weight), f"{queue.share:.1%}", str(queue.pending), queue.next or "-"
        for place, kind in enumerate(queue.quotas or (None,)):
            name, weight, share, pending, first = whole if place == 0 else ("",) * len(whole)
            table.add(name, weight, *_cells(kind), share, pending, first)
    return table


def _cells(kind: QueueTypeUse | None) -> tuple[str, ...]:
    if kind is None:
        return ("-",) * 5
    limit = "-" if kind.limit is None else str(kind.limit)
    return kind.gpu_type, str(kind.guaranteed), limit, str(kind.held), str(kind.borrowed)
