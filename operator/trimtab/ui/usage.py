"""Who holds GPUs and has held them, and what that costs: by queue, namespace and GPU type, of jobs that exist."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from msgspec import Struct

from trimtab.observe.queues import Queues
from trimtab.observe.snapshot import Observation
from trimtab.settings import PriceSettings


class Used(Struct, frozen=True, rename="camel"):
    """Use of one GPU type by the jobs of one namespace that count against one queue."""

    queue: str
    """Empty for none."""
    namespace: str
    gpu_type: str
    """`*` for what earlier gangs of a job have held: of which type, its status does not say."""
    gpus: int
    """Held now."""
    gpu_seconds: int
    """Held so far."""
    per_hour: float | None
    """Price of one GPU for one hour; None where the settings say none."""
    cost: float | None
    """Of all of it, in the currency of the settings."""


def used(seen: Observation, prices: PriceSettings, shown: Callable[[str], bool] = lambda _: True) -> list[Used]:
    """By queue, namespace and type; `shown` says whether jobs of a namespace count."""
    lines = Queues(seen.queues.values())
    held, served = Counter[tuple[str, str, str]](), Counter[tuple[str, str, str]]()
    jobs = {job.uid: job for job in seen.snapshot.jobs}
    for uid, facts in seen.jobs.items():
        if not shown(facts.meta.namespace):
            continue
        queue, job = lines.of(facts), jobs.get(uid)
        for gpu_type, had in (job.served if job else {}).items():
            served[queue, facts.meta.namespace, gpu_type] += round(had)
        if facts.holds_gpus and (plan := facts.status.plan):
            held[queue, facts.meta.namespace, plan.gpu_type] += plan.gpus
            if not (job and job.served) and facts.status.start_time:
                since = max(plan.created_time.timestamp(), facts.status.start_time.timestamp())
                lasted = max(0.0, seen.snapshot.time - since)
                served[queue, facts.meta.namespace, plan.gpu_type] += round(plan.gpus * lasted)
    return [
        Used(
            queue=queue,
            namespace=namespace,
            gpu_type=gpu_type,
            gpus=held[queue, namespace, gpu_type],
            gpu_seconds=served[queue, namespace, gpu_type],
            per_hour=prices.per_gpu_hour.get(gpu_type),
            cost=cost(served[queue, namespace, gpu_type], prices.per_gpu_hour.get(gpu_type)),
        )
        for queue, namespace, gpu_type in sorted(held.keys() | served.keys())
    ]


def cost(gpu_seconds: float, per_hour: float | None) -> float | None:
    """What so many GPU-seconds cost, to the hundredth; None where there is no price."""
    return None if per_hour is None else round(gpu_seconds / 3600 * per_hour, 2)


def in_all(uses: Iterable[Used]) -> tuple[int, float | None]:
    """GPU-seconds of all of these, and their cost; None where one that was used has no price."""
    uses = [each for each in uses if each.gpu_seconds]
    costs = [each.cost for each in uses if each.cost is not None]
    whole = round(sum(costs), 2) if costs and len(costs) == len(uses) else None
    return sum(each.gpu_seconds for each in uses), whole
