"""Pictures of evaluations as files: how long jobs took under each policy, who held which GPUs, how full nodes were.

What kind of picture a file is follows from its name: .png, .svg, .pdf. All functions raise ImportError without
matplotlib, and OSError where they cannot write. `ui.canvas` draws the same in a terminal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trimtab_lab.evaluation import timeline
from trimtab_lab.evaluation.timeline import Timeline
from trimtab_policy.types import Node

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INTERVALS = 400
"""Columns of a heat-map."""
MOST_LANES = 256
"""GPUs up to which each has a line of its own in a Gantt chart."""
MOST_NAMED_JOBS = 24
"""Jobs up to which a legend names them; more only differ from their neighbours."""
LINES = ("-", "--", ":", "-.")
MARKS = {
    1 / 3600: "1 s", 10 / 3600: "10 s", 1 / 60: "1 min", 1 / 6: "10 min", 1.0: "1 h", 10.0: "10 h", 100.0: "100 h",
    1000.0: "1,000 h", 10_000.0: "10,000 h",
}  # fmt: skip
"""Hours -> what stands at an axis of times."""


class Panel(NamedTuple):
    """Distributions that are drawn over each other."""

    title: str
    jct_h: Mapping[str, Sequence[float]]
    """Policy -> completion times in hours."""


def distributions(path: Path, panels: Sequence[Panel]) -> None:
    """Cumulative distributions of completion times, a panel for what can be compared, an average as a dot."""
    figure = _figure(8.5, 1.2 + 3.6 * len(panels))
    boxes = figure.subplots(len(panels), 1, squeeze=False, sharex=True)[:, 0]
    policies = list(dict.fromkeys(policy for panel in panels for policy in panel.jct_h))
    looks = {policy: _look(number, len(policies)) for number, policy in enumerate(policies)}
    for axes, panel in zip(boxes, panels, strict=True):
        _distribution(axes, panel, looks)
    boxes[-1].set_xlabel("job completion time")
    boxes[-1].set_xticks(list(MARKS), list(MARKS.values()))
    boxes[-1].minorticks_off()
    boxes[-1].set_xlim(*_range([time for panel in panels for times in panel.jct_h.values() for time in times]))
    figure.savefig(path, dpi=130)


def gantt(path: Path, title: str, run: Timeline) -> None:
    """Who held which GPUs when: a line per GPU (per node in large clusters, thinner where few GPUs were held)."""
    if sum(node.gpus for node in run.nodes) > MOST_LANES:
        _crowd(path, title, run)
        return
    drawn = list(timeline.bars(run))
    colours = _colours(run, [bar.job for bar in drawn])
    lanes = sum(node.gpus for node in run.nodes)
    figure = _figure(12, 2.0 + 0.11 * max(12, lanes))
    axes = figure.add_subplot()
    axes.barh(
        [bar.first + bar.lanes / 2 for bar in drawn],
        [(bar.end - bar.begin) / 3600 for bar in drawn],
        [bar.lanes * 0.94 for bar in drawn],
        [bar.begin / 3600 for bar in drawn],
        color=[colours[bar.job] for bar in drawn],
        edgecolor="white",
        linewidth=0.15,
    )
    _rows(axes, run.nodes, [node.gpus for node in run.nodes], "GPUs, by node")
    _finish(figure, axes, title, run)
    _name(figure, run, colours)
    figure.savefig(path, dpi=130)


def heat(path: Path, title: str, run: Timeline) -> None:
    """How much of every node was held over time."""
    edges = timeline.edges(run, INTERVALS)
    figure = _figure(12, 2.0 + max(1.6, min(9.0, 0.24 * len(run.nodes))))
    axes = figure.add_subplot()
    shares = np.round(100 * timeline.in_use(run, edges))
    mesh = axes.pcolormesh(
        edges / 3600, np.arange(len(run.nodes) + 1), shares, cmap="viridis", vmin=0, vmax=100, rasterized=True
    )
    figure.colorbar(mesh, ax=axes, label="GPUs of the node in use, %", pad=0.01)
    _rows(axes, run.nodes, [1] * len(run.nodes), "nodes")
    _finish(figure, axes, f"{title}: {_average(run):.0%} of all GPU time held", run)
    figure.savefig(path, dpi=130)


def _distribution(axes: Axes, panel: Panel, looks: Mapping[str, Mapping[str, Any]]) -> None:
    for policy, hours in panel.jct_h.items():
        times = np.sort(np.asarray(hours, dtype=np.float64))
        if not len(times):
            continue
        shares = np.arange(1, len(times) + 1) / len(times)
        label = f"{policy}: {times.mean():.3g} h"
        axes.step(times, shares, where="post", label=label, **looks[policy])
        average = np.searchsorted(times, times.mean(), side="right") / len(times)
        axes.plot(
            times.mean(), average, "o", markersize=7, markeredgecolor="white", color=looks[policy]["color"], zorder=4
        )
    axes.set(xscale="log", ylim=(0, 1.01), ylabel="share of jobs done")
    axes.set_title(panel.title, fontsize="medium")
    axes.grid(alpha=0.4, linewidth=0.5)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize="small", frameon=False, title="average (dot)")


def _look(number: int, count: int) -> dict[str, Any]:
    """Ten colours times four kinds of lines; earlier lines are thicker, so that those over them hide none."""
    return {"color": f"C{number % 10}", "linestyle": LINES[number // 10 % 4], "linewidth": 2.8 - 1.6 * number / count}


def _range(times: Sequence[float]) -> tuple[float, float]:
    """Ends of a logarithmic axis that shows all times, at least a decade."""
    low, high = min(times, default=0.1), max(times, default=1.0)
    return max(low, 1e-4) / 1.2, max(high, 10 * low, 1e-3) * 1.2


def _crowd(path: Path, title: str, run: Timeline) -> None:
    """A line per node: the job that held most of it, in its colour."""
    from matplotlib.colors import to_rgb

    edges = timeline.edges(run, 2 * INTERVALS)
    holders = timeline.holders(run, edges)
    colours = _colours(run, np.unique(holders[holders >= 0]).tolist())
    table = np.array([to_rgb(colours.get(job, "white")) for job in range(-1, len(run.names))])
    figure = _figure(12, 2.0 + min(9.0, 0.1 * len(run.nodes)))
    axes = figure.add_subplot()
    axes.pcolormesh(edges / 3600, np.arange(len(run.nodes) + 1), table[holders + 1], rasterized=True)
    _rows(axes, run.nodes, [1] * len(run.nodes), "nodes, by the job that held most of them")
    _finish(figure, axes, title, run)
    _name(figure, run, colours)
    figure.savefig(path, dpi=130)


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _rows(axes: Axes, nodes: Sequence[Node], sizes: Sequence[int], what: str) -> None:
    """Thin lines between nodes, thick ones between GPU types, whose names stand at the left."""
    ends = np.cumsum([0, *sizes])
    if len(nodes) <= 64:
        axes.hlines(ends[1:-1], 0, 1, transform=axes.get_yaxis_transform(), color="0.75", linewidth=0.4, zorder=3)
    begun, ticks, names = 0, [], []
    for gpu_type, alike in groupby(nodes, key=lambda node: node.gpu_type):
        members = list(alike)
        first, last = ends[begun], ends[begun + len(members)]
        begun += len(members)
        axes.axhline(float(last), color="0.2", linewidth=0.9, zorder=4)
        ticks.append((first + last) / 2)
        names.append(f"{gpu_type}\n{_sizes(members)}")
    axes.set_yticks(ticks, names, fontsize="small")
    axes.tick_params(axis="y", length=0)
    axes.set(ylim=(int(ends[-1]), 0), ylabel=what)


def _sizes(nodes: Sequence[Node]) -> str:
    """`6 nodes × 4`: nodes, and the GPUs of each."""
    sizes = sorted({node.gpus for node in nodes})
    each = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]}–{sizes[-1]}"
    return f"{len(nodes)} {'node' if len(nodes) == 1 else 'nodes'} × {each}"


def _finish(figure: Figure, axes: Axes, title: str, run: Timeline) -> None:
    axes.set(xlim=(0, run.end / 3600), xlabel="hours from the start")
    axes.set_title(title, fontsize="medium")
    axes.spines[["top", "right"]].set_visible(False)


def _name(figure: Figure, run: Timeline, colours: Mapping[int, Any]) -> None:
    """A legend where there are few jobs, else what the colours mean."""
    from matplotlib.patches import Patch

    if len(colours) <= MOST_NAMED_JOBS:
        marks = [Patch(color=colour, label=run.names[job]) for job, colour in colours.items()]
        figure.legend(handles=marks, loc="outside right upper", fontsize="small", frameon=False)
    else:
        note = f"{len(colours)} jobs; colours tell neighbours apart and repeat"
        figure.supxlabel(note, fontsize="small", color="0.4")


def _colours(run: Timeline, jobs: Sequence[int]) -> dict[int, Any]:
    """Job -> colour, in the order of the workload; neighbours in time differ most."""
    from matplotlib import colormaps

    strong, pale = np.arange(0, 20, 2), np.arange(1, 20, 2)
    palette = [*colormaps["tab20"](strong), *colormaps["tab20"](pale), *colormaps["Dark2"](np.arange(8))]
    return {job: palette[number % len(palette)] for number, job in enumerate(sorted(set(jobs)))}


def _average(run: Timeline) -> float:
    held = sum((span.end - span.begin) * sum(share.gpus for share in span.shares) for span in run.spans)
    total = sum(node.gpus for node in run.nodes) * run.end
    return held / total if total else 0.0
