"""`trimtab evaluate`: schedulers compared on windows of a workload, simulated.

What belongs together is told together: one table for what policies could know alike at one load, with the bound that
no schedule can beat. Runs are kept, so that an evaluation that was stopped goes on where it was.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType

from trimtab.commands import simulation
from trimtab.commands.options import OutputOption, reported
from trimtab.errors import UsageError
from trimtab.ui import output
from trimtab.ui.form import Output
from trimtab.ui.output import spaced
from trimtab.ui.terminal import Text
from trimtab_lab.commands import runs
from trimtab_lab.evaluation.timeline import Timeline, timelines
from trimtab_lab.ui import canvas, pictures
from trimtab_lab.ui import evaluation as ui

if TYPE_CHECKING:
    from trimtab_lab.commands.runs import RunPlan
    from trimtab_lab.evaluation.compare import ComparisonTable
    from trimtab_lab.evaluation.scenario import ScenarioResult

PoliciesOption = Annotated[
    str,
    typer.Option(
        help="Policies with commas between; NAME@SEED breaks ties by a seed, NAME+paper decides without the controller."
    ),
]
ClusterOption = Annotated[str, typer.Option(help="Preset, TYPE=COUNTxPER_NODE,... or a CSV file of nodes.")]
SeedOption = Annotated[int, typer.Option(help="Of everything that is random, the same for all policies.", min=0)]
ProfilesOption = Annotated[
    Path | None, typer.Option(help="Folder of measured profiles, for workloads that name applications.")
]
KnowledgeOption = Annotated[
    str, typer.Option(help="What policies know of profiles: fit (online), pooled, exact, or model:SIGMA.")
]
EstimatesOption = Annotated[
    str, typer.Option(help="Run times that policies see: true, user (the trace's), or a spread of ln(estimate / true).")
]
SizeErrorOption = Annotated[
    float, typer.Option(help="Spread of ln(steps that jobs of the API state / true ones).", min=0)
]
RoundOption = Annotated[
    float | None, typer.Option("--round", help="Seconds between decisions; by default as the policy's authors have it.")
]
MtbfOption = Annotated[float | None, typer.Option(help="Mean hours between failures of one GPU; by default none fail.")]
StragglerOption = Annotated[
    float | None, typer.Option(help="Mean hours between slow spells of one node; by default there are none.")
]
QuotasOption = Annotated[
    list[str] | None,
    typer.Option("--quota", metavar="QUEUE:TYPE=GPUS", help="Most GPUs of a type that a queue may hold; * for any."),
]
ElasticOption = Annotated[
    float | None,
    typer.Option(help="Share of jobs that may be moved and resized, 0 to 1; else those that say so.", min=0, max=1),
]
SkipOption = Annotated[bool, typer.Option("--skip-bad", help="Count bad rows and jobs that fit nowhere, do not stop.")]


@reported()
def evaluate(
    policies: PoliciesOption,
    trace: Annotated[str, typer.Option(help="File of a trace, or generator:NAME.")],
    cluster: ClusterOption,
    load: Annotated[str, typer.Option(help="Offered loads to rescale arrivals to, e.g. 0.7,1.0; else as traced.")] = "",
    windows: Annotated[int, typer.Option(help="Windows of the trace; 1: the whole trace.", min=1)] = 1,
    window_jobs: Annotated[int, typer.Option(help="Jobs of a window.", min=1)] = 500,
    jobs: Annotated[int, typer.Option(help="Processes that make runs.", min=1)] = 1,
    seed: SeedOption = 0,
    profiles: ProfilesOption = None,
    knowledge: KnowledgeOption = "fit",
    estimates: EstimatesOption = "true",
    size_error: SizeErrorOption = 0.0,
    round_seconds: RoundOption = None,
    mtbf_hours: MtbfOption = None,
    straggler_mtbf_hours: StragglerOption = None,
    quota: QuotasOption = None,
    elastic: ElasticOption = None,
    skip_bad: SkipOption = False,
    ray: Annotated[str | None, typer.Option(help="Spread runs over a Ray cluster: its address, or local.")] = None,
    reference: Annotated[str, typer.Option(help="Policy that the others are compared to; by default the first.")] = "",
    plot: Annotated[
        bool, typer.Option(help="Draw distributions, who held which GPUs, and how full nodes were.")
    ] = True,
    out: Annotated[Path, typer.Option(help="Folder for runs, CSV files and pictures.")] = Path("trimtab-evaluation"),
    form: OutputOption = Output.TABLE,
) -> None:
    """Compare policies on windows of a trace: completion times, use of GPUs, fairness, and what no policy can beat.

    All policies meet the same jobs and failures. Runs are kept in --out: stopped with Ctrl-C, the same command goes on.

    Examples: trimtab evaluate --policies fcfs,srtf --trace philly.csv.gz --cluster h100-64 --load 0.7,1.0 --windows 30

    trimtab evaluate --policies sia,gavel --trace workload-1.csv --cluster sia-heterogeneous --profiles profiles

    trimtab evaluate --policies fcfs,best_fit --trace generator:llm --cluster llm-mixed --windows 5 -o json
    """
    asked = runs.RunOptions(
        policies, trace, cluster, load, windows, window_jobs, seed, profiles, knowledge, estimates, round_seconds,
        mtbf_hours, straggler_mtbf_hours, tuple(quota or ()), skip_bad, elastic, size_error,
    )  # fmt: skip
    plan = runs.plan(asked, drawn=plot)
    if reference and reference not in plan.policies:
        raise UsageError(f"--reference: {reference!r} is none of --policies {', '.join(plan.policies)}")
    found = runs.outcomes(plan.scenarios(), runs.work(jobs, ray), out)
    with simulation.extras():
        _tell(form, plan, found, reference, out)


def _tell(form: Output, plan: RunPlan, found: Sequence[ScenarioResult], reference: str, out: Path) -> None:
    """Files first, so that they are there even if nobody reads on."""
    from trimtab_lab.evaluation import compare

    single = compare.tables(found, plan.policies, reference)
    summed = compare.summed_up(found, plan.policies, reference) if len(plan.loads) > 1 else single
    drawn = _timelines(plan, found)
    written = [*_write_csv(found, out), *(_draw(plan, single, drawn, out) if plan.drawn else ())]
    parts: list[Any] = []
    for table in single:
        parts.append(ui.table(table))
        if plan.drawn:
            parts.append(canvas.Distributions({row.policy: row.jct_h for row in table.rows}))
    parts += list(_shown(plan, single, drawn)) if plan.drawn else []
    names = ", ".join(path.name for path in written)
    parts.append(Text(f"In {out}: {names}; runs/ holds what the next evaluation need not make again.", "dim"))
    output.show(form, compare.as_json(summed, single), spaced(parts))


def _write_csv(found: Sequence[ScenarioResult], out: Path) -> Iterator[Path]:
    from trimtab_lab.evaluation import compare

    rows = {"windows.csv": list(compare.window_rows(found)), "jobs.csv": list(compare.job_rows(found))}
    for name, lines in rows.items():
        if lines:
            with (out / name).open("w", newline="") as file:
                table = csv.DictWriter(file, list(dict.fromkeys(key for line in lines for key in line)))
                table.writeheader()
                table.writerows(lines)
            yield out / name


def _draw(plan: RunPlan, tables: Sequence[ComparisonTable], drawn: Mapping[str, Timeline], out: Path) -> Iterator[Path]:
    """Distributions of all windows, and for every policy who held which GPUs in the first one."""
    path = out / "jct.png"
    pictures.distributions(
        path, [pictures.Panel(ui.title(table), {row.policy: row.jct_h for row in table.rows}) for table in tables]
    )
    yield path
    for policy, run in drawn.items():
        title = f"{policy}, {_first(plan)}"
        for kind, draw in (("gantt", pictures.gantt), ("heat", pictures.heat)):
            path = out / f"{kind}-{policy}.png"
            draw(path, title, run)
            yield path


def _shown(plan: RunPlan, tables: Sequence[ComparisonTable], drawn: Mapping[str, Timeline]) -> Iterator[RenderableType]:
    """The same in the terminal, for the policy with the lowest average and for the one that others are compared to."""
    rows = [row for row in tables[0].rows if row.figures.get("avg_jct_h") is not None]
    best = min(rows, key=lambda row: row.figures["avg_jct_h"] or 0.0).policy if rows else ""
    titles = {tables[0].reference: "reference", best: "lowest average JCT"}
    for policy, run in drawn.items():
        if policy in titles:
            title = Text.assemble((f"{policy} ({titles[policy]}), {_first(plan)}", "bold"))
            yield Group(title, Text("who held most of each node", "dim"), canvas.Gantt(run))
            yield Group(Text(f"{policy}: share of each node's GPUs held, and its average", "dim"), canvas.Heat(run))


def _first(plan: RunPlan) -> str:
    load = plan.loads[0]
    return ("first window" if plan.base.windows > 1 else "whole trace") + (f" at load {load:g}" if load else "")


def _timelines(plan: RunPlan, found: Iterable[ScenarioResult]) -> dict[str, Timeline]:
    """Policy -> its run in the first window."""
    from trimtab_lab.workloads.clusters import cluster

    kept = [each for each in found if each.held]
    names = [job.uid for job in kept[0].jobs] if kept else []
    return timelines(cluster(plan.base.cluster), {each.scenario.policy: each.held for each in kept}, names)
