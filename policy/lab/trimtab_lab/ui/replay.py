"""What a replay looks like: a line a job, a column a policy, and who is ahead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table

from trimtab.ui import words
from trimtab.ui.output import folding_table
from trimtab.ui.terminal import Text
from trimtab_lab.evaluation.contestant import Decider, uses_sizes
from trimtab_lab.ui.evaluation import USES_SIZES, decided_note, sizes_note

MOST_JOBS = 40
"""Lines; of more jobs those are shown whose fate depends most on the policy."""
AHEAD = 0.01
"""Relative differences below it are none."""


class Fate(NamedTuple):
    """What became of one job under one policy; seconds."""

    done: float | None
    """Until it is done, from the snapshot or, if that is later, from its submission; None if it never is."""
    jct: float | None
    """From its submission to its end."""
    held: str
    """The GPUs that it had longest: `8×A100`; empty if it never had any."""
    restarts: int


class Story(NamedTuple):
    """One job under all policies."""

    name: str
    state: str
    fates: Mapping[str, Fate]


def table(stories: Sequence[Story], state: str) -> Group:
    """Side by side: how long each job takes until it is done, and on what; the best of a line stands out.

    `state` heads the column of states.
    """
    shown = sorted(stories, key=_spread, reverse=True)[:MOST_JOBS] if len(stories) > MOST_JOBS else stories
    made = folding_table("JOB", state)
    for policy in stories[0].fates:
        made.add_column(policy, overflow="fold")
    for story in shown:
        made.add_row(story.name, story.state, *_cells(story.fates))
    parts: list[RenderableType] = [
        Text("time until each job is done, the GPUs that it had longest, ↻ restarts", "bold"),
        made,
    ]
    if len(shown) < len(stories):
        parts.append(
            Text(f"The {len(shown)} of {len(stories)} jobs that policies differ most on; -o json has all.", "dim")
        )
    return Group(*parts)


def totals(
    stories: Sequence[Story], figures: Mapping[str, Mapping[str, float | None]], deciders: Mapping[str, Decider]
) -> Group:
    """A line a policy, how each decided, and a sentence about the winner."""
    made = folding_table("POLICY")
    for heading in ("AVG JCT", "P99 JCT", "LAST DONE", "GPU-H/JOB", "RESTARTS/JOB", "FIRST DONE"):
        made.add_column(heading, justify="right")
    first = _firsts(stories)
    for policy, found in figures.items():
        times = (_time(found.get(name)) for name in ("avg_jct_h", "p99_jct_h", "last_h"))
        rates = (_number(found.get(name)) for name in ("gpu_hours_per_job", "restarts_per_job"))
        made.add_row(policy + USES_SIZES * uses_sizes(policy), *times, *rates, f"{first[policy]} of {len(stories)}")
    marked = [Text(sizes_note(list(figures)), "dim")] if any(map(uses_sizes, figures)) else []
    return Group(
        made,
        *marked,
        Text(decided_note({name: by.described for name, by in deciders.items()}), "dim"),
        *_verdict(figures),
    )


def set_aside(reasons: Mapping[str, str]) -> Table:
    """Jobs that no policy can do anything for."""
    made = folding_table("SET ASIDE", "WHY")
    for name, why in reasons.items():
        made.add_row(name, why)
    return made


def tempo(speedup: float) -> Text:
    """Of a cluster whose pods are fake."""
    return Text(f"Pods are fake and run {speedup:,g} times as fast: times here are as if they did not.", "dim")


def _cells(fates: Mapping[str, Fate]) -> Iterator[Text]:
    best = min((fate.jct for fate in fates.values() if fate.jct is not None), default=None)
    tied = all(fate.jct is not None and best is not None and fate.jct <= best * (1 + AHEAD) for fate in fates.values())
    for fate in fates.values():
        ahead = not tied and best is not None and fate.jct is not None and fate.jct <= best * (1 + AHEAD)
        time = "never" if fate.done is None else words.duration(fate.done)
        moved = f" ↻{fate.restarts}" if fate.restarts else ""
        yield Text.assemble((time, "bold green" if ahead else ""), (f" {fate.held}{moved}", "dim"))


def _spread(story: Story) -> float:
    """Seconds between the best fate of a job and the worst."""
    times = [fate.jct for fate in story.fates.values()]
    known = [time for time in times if time is not None]
    return float("inf") if known and len(known) < len(times) else max(known, default=0.0) - min(known, default=0.0)


def _firsts(stories: Sequence[Story]) -> dict[str, int]:
    """Policy -> jobs of which none is done sooner than under it."""
    count = dict.fromkeys(stories[0].fates, 0)
    for story in stories:
        times = {policy: fate.jct for policy, fate in story.fates.items() if fate.jct is not None}
        for policy, time in times.items():
            count[policy] += time <= min(times.values()) * (1 + AHEAD)
    return count


def _verdict(figures: Mapping[str, Mapping[str, float | None]]) -> Iterator[Text]:
    averages = {policy: average for policy, found in figures.items() if (average := found.get("avg_jct_h"))}
    if len(averages) < 2:
        return
    least = min(averages.values())
    best = [policy for policy, average in averages.items() if average <= least * (1 + AHEAD)]
    gains = [f"{1 - least / average:.0%} below {policy}" for policy, average in averages.items() if policy not in best]
    verb = "have" if len(best) > 1 else "has"
    told = f" {verb} the lowest average JCT: {', '.join(gains)}." if gains else f" {verb} the same average JCT."
    yield Text.assemble("\n", (" and ".join(best), "bold green"), told)


def _time(hours: float | None) -> str:
    return "-" if hours is None else words.duration(3600 * hours)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
