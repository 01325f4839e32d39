"""The table of `trimtab get queues`: what each queue is promised, may have, and has, by GPU type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from trimtab.api.convert import UNLIMITED
from trimtab.observe.queues import QueueFacts, Usage
from trimtab.observe.queues import usage as usage_of
from trimtab.observe.snapshot import Observation
from trimtab.settings import PriceSettings
from trimtab.ui import usage
from trimtab.ui.listing import Listing
from trimtab.ui.usage import Used
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
    gpu_seconds: int
    """Held so far, by jobs that exist."""
    cost: float | None
    """Of these, in the currency of the settings; None where there is no price for some of it."""


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


def rows(observation: Observation, prices: PriceSettings) -> list[QueueRow]:
    """Every queue, by name."""
    spent = usage.used(observation, prices)
    uses = usage_of(observation.queues.values(), observation.jobs.values(), observation.snapshot)
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
            quotas=tuple(_kinds(queue, uses[name], [each for each in spent if each.queue == name])),
            problems=tuple(problem.message for problem in observation.problems if problem.uid == queue.meta.uid),
        )
        for name, queue in observation.queues.items()
    ]


def _kinds(queue: QueueFacts, used: Usage, spent: Sequence[Used]) -> Iterator[QueueTypeUse]:
    held, lent = used.holding.gpus, used.holding.borrowed
    quotas = {quota.gpu_type: quota for quota in queue.quotas}
    types = {each.gpu_type for each in spent if each.gpu_seconds}
    for name in sorted(quotas.keys() | held.keys() | types, key=lambda name: (name == ALL_TYPES, name)):
        quota = quotas.get(name, Quota(queue.meta.name, name, UNLIMITED))
        whole = name == ALL_TYPES
        seconds, cost = usage.in_all(each for each in spent if whole or each.gpu_type == name)
        yield QueueTypeUse(
            gpu_type=name,
            guaranteed=quota.guaranteed,
            limit=None if quota.gpus == UNLIMITED else quota.gpus,
            held=sum(held.values()) if whole else held.get(name, 0),
            borrowed=sum(lent.values()) if whole else lent.get(name, 0),
            gpu_seconds=seconds,
            cost=cost,
        )


def table(queues: list[QueueRow], *, headers: bool = True, currency: str | None = None) -> Listing:
    """A line for each queue and GPU type; what is said of the whole queue stands in its first line. With `currency`
    (empty for one without a name) also what each has used, and what that costs."""
    money = f"COST {currency}".strip()
    more = () if currency is None else ("GPU-HOURS", money)
    table = Listing((*COLUMNS, *more), less=LEAST, right=(*NUMBERS, *more), headers=headers)
    for queue in queues:
        whole = queue.name, str(queue.weight), f"{queue.share:.1%}", str(queue.pending), queue.next or "-"
        for place, kind in enumerate(queue.quotas or (None,)):
            name, weight, share, pending, first = whole if place == 0 else ("",) * len(whole)
            spent = () if currency is None else _spent(kind)
            table.add(name, weight, *_cells(kind), share, pending, first, *spent)
    return table


def _spent(kind: QueueTypeUse | None) -> tuple[str, ...]:
    if kind is None:
        return "-", "-"
    return f"{kind.gpu_seconds / 3600:.1f}", "-" if kind.cost is None else f"{kind.cost:.2f}"


def _cells(kind: QueueTypeUse | None) -> tuple[str, ...]:
    if kind is None:
        return ("-",) * 5
    limit = "-" if kind.limit is None else str(kind.limit)
    return kind.gpu_type, str(kind.guaranteed), limit, str(kind.held), str(kind.borrowed)
