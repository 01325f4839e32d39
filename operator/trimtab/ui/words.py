"""Numbers and names as people write them."""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.observe.jobs import JobFacts


def duration(seconds: float) -> str:
    """`850 ms`, `42 s`, `3m20s`, `5h07m`, `12d4h`: two figures are enough."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    whole = round(seconds)
    for size, unit, below in ((86_400, "d", "h"), (3_600, "h", "m"), (60, "m", "s")):
        if whole >= size:
            part = {"h": 3_600, "m": 60, "s": 1}[below]
            rest = whole % size // part
            return f"{whole // size}{unit}{rest:02d}{below}" if below != "h" else f"{whole // size}d{rest}h"
    return f"{whole} s"


def rate(value: float) -> str:
    """`41.2k`, `1.03M`, `870`."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def size(count: float) -> str:
    """`74.5 GiB`."""
    return f"{count / (1 << 30):.1f} GiB"


def nodes(names: Sequence[str], limit: int = 2) -> str:
    """`h100-0, h100-1 +2`: the first few and how many more."""
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} +{len(names) - limit}"


def state(facts: JobFacts) -> str:
    """The one word of the STATE column: the reason of the condition that tells most."""
    told = facts.status.conditions[-1:]
    return told[0].reason if told else "Unseen"


def progress(facts: JobFacts, now: float) -> float | None:
    """Fraction of the run that is done: what the trainer reports, or else the share of the predicted time."""
    status = facts.status
    if facts.finished:
        return 1.0 if status.plan and state(facts) == "Completed" else None
    if status.plan is None or status.start_time is None:
        return None
    began = max(status.start_time.timestamp(), status.plan.created_time.timestamp())
    expected = status.plan.predicted.finish_time.timestamp() - status.plan.created_time.timestamp()
    estimate = (now - began) / max(1.0, expected)
    reported = (status.trainer_status.progress_percentage or 0) / 100 if status.trainer_status else 0.0
    return min(0.99, max(0.0, estimate, reported))
