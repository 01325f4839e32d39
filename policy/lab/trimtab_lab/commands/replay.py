"""`trimtab replay SNAPSHOT|TRACE`: what another policy would have done, side by side.

A dumped snapshot lives on: running jobs stay where they are, waiting ones are decided by each policy until all are
done. A trace starts on an empty cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, NamedTuple

import numpy as np
import typer
from rich.console import Group, RenderableType

from trimtab import settings
from trimtab.commands import calibration, simulation
from trimtab.commands.dumps import read_snapshot
from trimtab.commands.options import OutputOption, reported
from trimtab.errors import UsageError
from trimtab.ui import output, words
from trimtab.ui.form import Output
from trimtab.ui.output import spaced
from trimtab.ui.progress import step
from trimtab.ui.terminal import Text
from trimtab_lab.commands import evaluate, runs
from trimtab_lab.evaluation.contestant import Decider, contestant
from trimtab_lab.evaluation.timeline import Timeline, timelines
from trimtab_lab.ui import canvas, pictures
from trimtab_lab.ui import replay as ui
from trimtab_lab.ui.replay import Fate, Story
from trimtab_policy.types import Snapshot

if TYPE_CHECKING:
    from trimtab_policy.sim.result import JobRecord, Span

SNAPSHOTS = (".json", ".yaml", ".yml")


class PolicyCourse(NamedTuple):
    """What came of all jobs under one policy."""

    records: Sequence[JobRecord]
    spans: Sequence[Span]
    decider: Decider


class ReplayedPolicies(NamedTuple):
    """The same jobs under several policies."""

    names: Sequence[str]
    heading: str
    states: Sequence[str]
    """Of each job when the replay begins, and what that is called."""
    since: Sequence[float]
    """Seconds for which each job had been there when the replay began: part of its JCT."""
    courses: Mapping[str, PolicyCourse]
    cluster: Snapshot
    set_aside: Mapping[str, str]
    speedup: float = 1.0
    """Pods run so many times as fast as is told."""


@reported()
def replay(
    source: Annotated[str, typer.Argument(help="Dump of `trimtab snapshot -o json`, or with --cluster a trace.")],
    policies: evaluate.PoliciesOption,
    cluster: Annotated[str, typer.Option(help="Cluster that a trace runs on: preset, TYPE=COUNT or CSV file.")] = "",
    preempt: Annotated[
        bool,
        typer.Option(
            "--preempt", help="Let policies stop, move and resize all jobs of a snapshot, not only elastic ones."
        ),
    ] = False,
    profiles: evaluate.ProfilesOption = None,
    knowledge: evaluate.KnowledgeOption = "fit",
    estimates: evaluate.EstimatesOption = "true",
    round_seconds: evaluate.RoundOption = None,
    skip_bad: evaluate.SkipOption = False,
    jobs: Annotated[int, typer.Option(help="Processes that replay a trace.", min=1)] = 1,
    plot: Annotated[Path | None, typer.Option(help="Folder for pictures of who held which GPUs.")] = None,
    form: OutputOption = Output.TABLE,
) -> None:
    """Show what other policies would have done with the jobs of a snapshot or a trace, side by side.

    Examples: trimtab snapshot -o json > now.json; trimtab replay now.json --policies best_fit,fcfs

    trimtab replay workload-1.csv --cluster sia-heterogeneous --profiles profiles --policies sia,gavel
    """
    if cluster:
        asked = runs.RunOptions(
            policies, source, cluster, profiles=profiles, knowledge=knowledge, estimates=estimates,
            round_seconds=round_seconds, skip_bad=skip_bad,
        )  # fmt: skip
        found = _of_trace(asked, jobs)
    else:
        found = _of_snapshot(source, runs.names(policies), preempt)
    _tell(form, found, plot)


def _of_snapshot(source: str, policies: Sequence[str], preempt: bool) -> ReplayedPolicies:
    if not source.endswith(SNAPSHOTS):
        raise UsageError(f"{source}: a trace needs --cluster; a snapshot is a file of {', '.join(SNAPSHOTS)}")
    now = read_snapshot(Path(source))
    calibration.use(settings.load().perf)
    with simulation.extras():
        from trimtab_lab.evaluation import replay as lives

        with simulation.input_errors():
            start = lives.case(now)
        courses = {}
        for policy in policies:
            with step(f"replaying under {policy}"), runs.run_errors():
                run = lives.live_on(start, policy, preempt=preempt)
            courses[policy] = PolicyCourse(run.jobs, run.spans, contestant(policy).decider or Decider.CONTROLLER)
    jobs = start.snapshot.jobs
    return ReplayedPolicies(
        names=_names([(job.namespace, job.name) for job in jobs]),
        heading="NOW",
        states=["runs" if job.placement else "waits" for job in jobs],
        since=[max(0.0, now.time - job.created) for job in jobs],
        courses=courses,
        cluster=start.snapshot,
        set_aside=start.set_aside,
        speedup=now.speedup,
    )


def _of_trace(asked: runs.RunOptions, jobs: int) -> ReplayedPolicies:
    plan = runs.plan(asked, drawn=True)
    found = runs.outcomes(plan.scenarios(), runs.work(jobs, None), None)
    from trimtab_lab.workloads.clusters import cluster

    return ReplayedPolicies(
        names=[record.uid for record in found[0].jobs],
        heading="SUBMITTED",
        states=[f"at {words.duration(record.submitted)}" for record in found[0].jobs],
        since=[0.0] * len(found[0].jobs),
        courses={each.scenario.policy: PolicyCourse(each.jobs, each.held, each.decider) for each in found},
        cluster=cluster(asked.cluster),
        set_aside={},
    )


def _tell(form: Output, found: ReplayedPolicies, plot: Path | None) -> None:
    stories = _stories(found)
    figures = {policy: _figures(stories, course.records, policy) for policy, course in found.courses.items()}
    deciders = {policy: course.decider for policy, course in found.courses.items()}
    value = {
        "policies": {
            policy: figures[policy]
            | {"decided": deciders[policy], "jobs": {story.name: story.fates[policy]._asdict() for story in stories}}
            for policy in found.courses
        },
        "set_aside": found.set_aside,
    }
    parts: list[RenderableType] = [ui.table(stories, found.heading), ui.totals(stories, figures, deciders)]
    parts += [ui.set_aside(found.set_aside)] if found.set_aside else []
    parts += [ui.tempo(found.speedup)] if found.speedup != 1 else []
    spans = {policy: course.spans for policy, course in found.courses.items()}
    for policy, run in timelines(found.cluster, spans, found.names).items():
        parts.append(Group(Text(f"{policy}: who held most of each node", "bold"), canvas.Gantt(run)))
        if plot:
            _draw(plot, policy, run)
    output.show(form, value, spaced(parts))


def _stories(found: ReplayedPolicies) -> list[Story]:
    short = _short_types([node.gpu_type for node in found.cluster.nodes])
    held = {policy: _longest_held(course.spans, short) for policy, course in found.courses.items()}
    return [
        Story(
            name,
            state,
            {
                policy: _fate(course.records[number], since, held[policy].get(number, ""))
                for policy, course in found.courses.items()
            },
        )
        for number, (name, state, since) in enumerate(zip(found.names, found.states, found.since, strict=True))
    ]


def _fate(record: JobRecord, since: float, held: str) -> Fate:
    done = None if record.finished is None else record.finished - record.submitted
    return Fate(done, None if done is None else since + done, held, record.restarts)


def _figures(stories: Sequence[Story], records: Sequence[JobRecord], policy: str) -> dict[str, float | None]:
    """Hours; times of jobs that are done."""
    jct = [time for story in stories if (time := story.fates[policy].jct) is not None]
    done = [record.finished for record in records if record.finished is not None]
    return {
        "avg_jct_h": fmean(jct) / 3600 if jct else None,
        "p99_jct_h": float(np.percentile(jct, 99)) / 3600 if jct else None,
        "last_h": max(done) / 3600 if done else None,
        "gpu_hours_per_job": fmean(record.gpu_seconds for record in records) / 3600,
        "restarts_per_job": fmean(record.restarts for record in records),
    }


def _longest_held(spans: Sequence[Span], short: Mapping[str, str]) -> dict[int, str]:
    """Job -> the GPUs that it had for the longest time."""
    seconds: dict[int, dict[str, float]] = {}
    for span in spans:
        gpus = f"{sum(share.gpus for share in span.shares)}×{short[span.gpu_type]}"
        of_job = seconds.setdefault(span.job, {})
        of_job[gpus] = of_job.get(gpus, 0.0) + span.end - span.begin
    return {job: max(of_job, key=of_job.__getitem__) for job, of_job in seconds.items()}


def _short_types(types: Sequence[str]) -> dict[str, str]:
    """`A100` for `A100-SXM4-80GB`, where that is not ambiguous."""
    begins = {name: name.partition("-")[0] for name in dict.fromkeys(types)}
    return {name: begin if list(begins.values()).count(begin) == 1 else name for name, begin in begins.items()}


def _names(keys: Sequence[tuple[str, str]]) -> list[str]:
    """Without the namespace where there is only one."""
    return [name if len({space for space, _ in keys}) == 1 else f"{space}/{name}" for space, name in keys]


def _draw(folder: Path, policy: str, run: Timeline) -> None:
    """Raises UsageError when the folder cannot be written, or without matplotlib."""
    with simulation.extras():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            pictures.gantt(folder / f"gantt-{policy}.png", f"{policy}: who held which GPUs", run)
            pictures.heat(folder / f"heat-{policy}.png", policy, run)
        except OSError as error:
            raise UsageError(f"--plot: cannot write {folder}: {error.strerror}") from error
