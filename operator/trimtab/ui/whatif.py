"""What a change would do: a line a job with its start and end before and after, the totals, and what is not known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from rich.console import Group, RenderableType
from rich.table import Table

from trimtab.ui import words
from trimtab.ui.output import folding_table, spaced
from trimtab.ui.terminal import Text

MOST_JOBS = 40
"""Lines; of more jobs those are shown that the change means most to."""
NOTHING = 30.0
"""Seconds that are no difference."""


class Course(Protocol):
    """What becomes of one job; seconds from now (`trimtab_policy.sim.whatif.Course`)."""

    @property
    def start(self) -> float | None: ...
    @property
    def end(self) -> float | None: ...
    @property
    def held(self) -> str: ...
    @property
    def restarts(self) -> int: ...
    @property
    def runs(self) -> bool: ...


class Life(Protocol):
    """What becomes of all of them."""

    @property
    def policy(self) -> str: ...
    @property
    def jobs(self) -> Mapping[str, Course]: ...
    @property
    def set_aside(self) -> Mapping[str, str]: ...
    @property
    def average_wait(self) -> float | None: ...
    @property
    def average_jct(self) -> float | None: ...
    @property
    def utilization(self) -> float: ...
    @property
    def end(self) -> float: ...


def page(before: Life, after: Life, later: Mapping[str, float | None], uncertain: Sequence[str]) -> Group:
    """All of it; `later` are seconds by which jobs end later after the change."""
    parts: list[RenderableType] = [_jobs(before, after, later), _totals(before, after)]
    aside = {**{name: ("after", why) for name, why in after.set_aside.items()}}
    aside |= {name: ("both" if name in after.set_aside else "before", why) for name, why in before.set_aside.items()}
    if aside:
        parts.append(_aside(aside))
    parts.append(Group(Text("Not known:", "bold"), *(Text(f"  {line}", "dim") for line in uncertain)))
    return spaced(parts)


def _jobs(before: Life, after: Life, later: Mapping[str, float | None]) -> Group:
    table = folding_table("JOB", "STARTS", "", "ENDS", "", "DIFFERENCE", "ON")
    order = sorted(later, key=lambda name: (later[name] is not None, -abs(later[name] or 0.0), name))
    for name in order[:MOST_JOBS]:
        was, will = before.jobs.get(name), after.jobs.get(name)
        table.add_row(
            name, _start(was), f"→ {_start(will)}", _end(was), f"→ {_end(will)}", _difference(was, will, later[name]),
            _on(was, will),
        )  # fmt: skip
    more = [Text(f"The {MOST_JOBS} of {len(later)} jobs that it means most to; -o json has all.", "dim")]
    return Group(table, *(more if len(later) > MOST_JOBS else []))


def _start(course: Course | None) -> str:
    if course is None:
        return "-"
    if course.start is None:
        return "never"
    return "runs" if course.runs else "now" if course.start == 0 else f"in {words.minutes(course.start)}"


def _end(course: Course | None) -> str:
    if course is None:
        return "-"
    return "never" if course.end is None else f"in {words.minutes(course.end)}"


def _difference(was: Course | None, will: Course | None, later: float | None) -> Text:
    if later is None:
        return Text("added" if was is None else "gone" if will is None else "-", "dim")
    if abs(later) < NOTHING:
        return Text("same", "dim")
    how, style = ("later", "yellow") if later > 0 else ("sooner", "green")
    return Text(f"{words.minutes(abs(later))} {how}", style)


def _on(was: Course | None, will: Course | None) -> str:
    """The GPUs that it has longest, and how often it is started anew."""
    told = [
        f"{course.held or '-'}{f' ↻{course.restarts}' if course.restarts else ''}" for course in (was, will) if course
    ]
    return " → ".join(dict.fromkeys(told))


def _totals(before: Life, after: Life) -> Table:
    table = folding_table("", "NOW", "AFTER")
    table.add_row("policy", before.policy, after.policy)
    table.add_row("average wait", _time(before.average_wait), _time(after.average_wait))
    table.add_row("average JCT", _time(before.average_jct), _time(after.average_jct))
    table.add_row("last job ends", _time(before.end), _time(after.end))
    table.add_row("GPUs in use until then", f"{before.utilization:.0%}", f"{after.utilization:.0%}")
    return table


def _aside(reasons: Mapping[str, tuple[str, str]]) -> Table:
    table = folding_table("NOT SIMULATED", "IN", "WHY")
    for name, (where, why) in sorted(reasons.items()):
        table.add_row(name, where, why)
    return table


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else words.minutes(seconds)
