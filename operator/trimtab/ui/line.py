"""The table of `trimtab queue`: who waits, in line, for what, and until when."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from trimtab.api.convert import to_eta
from trimtab.errors import TrimtabError
from trimtab.observe.snapshot import Observation
from trimtab.settings import PriceSettings
from trimtab.ui import usage, words
from trimtab.ui.listing import Listing
from trimtab_policy.inputs.nearest import did_you_mean
from trimtab_policy.scheduling.etas import forecasts, intervals
from trimtab_policy.scheduling.fair_share import in_line
from trimtab_policy.scheduling.forecast import seconds
from trimtab_policy.scheduling.vacancies import GangShape
from trimtab_policy.types import Job, Pending, PendingReason

FREE = PriceSettings()
COLUMNS = ("PLACE", "JOB", "QUEUE", "PRIORITY", "WAITS FOR", "WAITED", "STARTS IN", "ON")
LEAST = ("PRIORITY", "QUEUE", "WAITED", "ON", "STARTS IN")


class WaitingRow(Struct, frozen=True, rename="camel"):
    """One job that waits."""

    place: int
    job: str
    queue: str
    priority: int
    reason: str
    waited_seconds: float
    starts_in_seconds: float | None
    """None: nobody knows."""
    gpu_type: str
    gpus: int
    """0 with no forecast."""
    cost: float | None
    """Of its run on these, as predicted, in the currency of the settings; None without forecast or price."""


def rows(observation: Observation, queue: str = "", prices: PriceSettings = FREE) -> list[WaitingRow]:
    """The jobs that wait, in order; of one queue where it is named. Raises TrimtabError for one that there is not."""
    if queue and queue not in observation.queues:
        raise TrimtabError(f"there is no queue {queue}{did_you_mean(queue, observation.queues)}")
    now = in_line(observation.snapshot)
    line = now.waiting()
    told = {facts.meta.uid: facts for facts in observation.jobs.values()}
    waits = [
        Pending(job.uid, said.reason if (said := told[job.uid].status.pending) else PendingReason.INSUFFICIENT_GPUS, "")
        for job in line
    ]
    plans = forecasts(now, waits)
    starts = intervals(now, plans)
    made = []
    for place, (job, pending) in enumerate(zip(line, waits, strict=True), start=1):
        said, shape = told[job.uid].status.pending, plans[job.uid][1].shape if job.uid in plans else None
        eta = to_eta(said.start_time if said else None, now.time) or starts.get(job.uid)
        made.append(
            WaitingRow(
                place=place,
                job=f"{job.namespace}/{job.name}",
                queue=job.queue,
                priority=job.priority,
                reason=pending.reason.value,
                waited_seconds=round(max(0.0, now.time - told[job.uid].created), 1),
                starts_in_seconds=round(max(0.0, eta.expected - now.time), 1) if eta else None,
                gpu_type=shape.gpu_type if shape else "",
                gpus=shape.gpus if shape else 0,
                cost=_cost(job, shape, prices, now.speedup) if shape else None,
            )
        )
    return [row for row in made if queue in ("", row.queue)]


def _cost(job: Job, shape: GangShape, prices: PriceSettings, speedup: float) -> float | None:
    return usage.cost(shape.gpus * seconds(job, shape) / speedup, prices.per_gpu_hour.get(shape.gpu_type))


def table(found: Sequence[WaitingRow], currency: str | None = None) -> Listing:
    """One line a job; with `currency` (empty for one without a name) also what its run is expected to cost."""
    more = () if currency is None else (f"COST {currency}".strip(),)
    made = Listing((*COLUMNS, *more), less=LEAST, right=("PLACE", "PRIORITY", *more))
    for row in found:
        made.add(
            str(row.place),
            row.job,
            row.queue or "-",
            str(row.priority),
            row.reason,
            words.minutes(row.waited_seconds),
            "-" if row.starts_in_seconds is None else words.minutes(row.starts_in_seconds),
            f"{row.gpus}×{row.gpu_type}" if row.gpus else "-",
            *(["-" if row.cost is None else f"{row.cost:.2f}"] if more else []),
        )
    return made
