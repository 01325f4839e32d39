"""Numbers and names as people write them."""

from __future__ import annotations

from collections.abc import Sequence

from trimtab import names
from trimtab.api import conditions
from trimtab.api.status import Plan, Shadow
from trimtab.observe.jobs import JobFacts


def duration(seconds: float) -> str:
    """`850 ms`, `42 s`, `3m20s`, `5h07m`, `12d4h`: two figures are enough."""
    if (milliseconds := round(seconds * 1000)) < 1000:
        return f"{milliseconds} ms"
    whole = round(seconds)
    for size, unit, below in ((86_400, "d", "h"), (3_600, "h", "m"), (60, "m", "s")):
        if whole >= size:
            part = {"h": 3_600, "m": 60, "s": 1}[below]
            rest = whole % size // part
            return f"{whole // size}{unit}{rest:02d}{below}" if below != "h" else f"{whole // size}d{rest}h"
    return f"{whole} s"


def minutes(seconds: float) -> str:
    """`0 min`, `14 min`, `2h04m`, `3d5h`: for what nobody knows to the second."""
    whole = 60 * max(0, round(seconds / 60))
    return f"{whole // 60} min" if whole < 3_600 else duration(whole)


def rate(value: float) -> str:
    """`41.2k`, `1.03M`, `870`."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if float(f"{value:.3g}") >= size:  # as it is told: 999,999 is a million
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def size(count: float) -> str:
    """`74.5 GiB`."""
    return f"{count / (1 << 30):.1f} GiB"


def nodes(names: Sequence[str], limit: int = 2) -> str:
    """`h100-[0-3], mi300x-0 +2`: numbered nodes together, as Slurm writes them, and how many nodes are not named."""
    groups: dict[tuple[str, bool], list[str]] = {}
    for name in names:
        stem = name.rstrip("0123456789")
        groups.setdefault((stem, name == stem), []).append(name.removeprefix(stem))
    shown = [stem + _ranges(numbers) for (stem, _), numbers in list(groups.items())[:limit]]
    left = sum(len(numbers) for numbers in list(groups.values())[limit:])
    return ", ".join(shown) + (f" +{left}" if left else "")


def parallelism(plan: Plan) -> str:
    """`Hybrid dp=2 tp=4 zero=1`: the mode and every degree that divides something."""
    degrees = [part for part in plan.summary.split() if part == "zero=1" or not part.endswith("=1")]
    return " ".join((plan.mode, *degrees))


def shadow(found: Shadow) -> str:
    """`sia: 8×H100-SXM5-80GB dp=8 tp=1 pp=1, 20m10s sooner`, or `sia: waits: InsufficientGpus`."""
    return f"{found.policy}: {found.summary}{_difference(found)}"


def shadow_in_short(found: Shadow) -> str:
    """`8×H100-SXM5-80GB, 20m10s sooner`, or `waits`."""
    return f"{found.gpus}×{found.gpu_type}{_difference(found)}" if found.gpus else "waits"


def _difference(found: Shadow) -> str:
    late = found.difference_seconds
    return f", {duration(abs(late))} {'later' if late > 0 else 'sooner'}" if late else ""


def state(facts: JobFacts) -> str:
    """The one word of the STATE column: the reason of the condition that tells most."""
    told = facts.status.conditions[-1:]
    return told[0].reason if told else conditions.AT_FIRST[names.PLANNED][0]


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


def _ranges(numbers: Sequence[str]) -> str:
    """`[0-3,7]` of 0, 1, 2, 3 and 7; a single number or none stays as it is."""
    if len(numbers) < 2:
        return "".join(numbers)
    width = min(map(len, numbers))
    runs: list[list[int]] = []
    for number in sorted(map(int, numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    bounds = ((run[0], run[-1]) for run in runs)
    return "[" + ",".join(f"{a:0{width}}" if a == b else f"{a:0{width}}-{b:0{width}}" for a, b in bounds) + "]"
