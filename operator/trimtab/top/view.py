"""What `trimtab top` shows of a moment, as lines of text: from the columns and the values of the console, so that page
and terminal tell the same. Pure functions; they know nothing of the library that draws.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from rich.cells import cell_len

from trimtab.kube.resources import NODES
from trimtab.ui import words
from trimtab.ui.listing import Listing
from trimtab.ui.terminal import Console, Text
from trimtab.web import views
from trimtab.web.audience import EVERYTHING
from trimtab.web.columns import FAULT, FOREIGN, FREE, GONE, HOLDS, LOST, OVER, WAITS
from trimtab.web.console import Moment
from trimtab.web.deltas import Columns

HUES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a800", "#7a6ff0")
"""Of jobs, as on the page (`static/colours.js`): Okabe and Ito's."""
COLOURS = {FREE: "#3a4450", FOREIGN: "#8a7d6f", GONE: "#5a2a26"}
HIDDEN_COLOUR, BROKEN_COLOUR, KEPT_COLOUR, CHOSEN_COLOUR = "#8b96a3", "#ff5f56", "#7a6520", "#ffffff"
MOST_JOBS = 1000
"""That are listed: who looks for one of more, asks for it by name (`trimtab explain`)."""
LABEL = 26
"""Columns of a domain's name and numbers, at most."""


class GpuNode(NamedTuple):
    """A node's GPUs: by each, the row of its job or what the console says instead, and whether it is broken."""

    gpus: tuple[tuple[int, bool], ...]
    kept: bool
    """For the first in line."""


class Domain(NamedTuple):
    """Nodes whose GPUs are linked with one another, or that share a rack."""

    name: str
    gpu_type: str
    nodes: tuple[GpuNode, ...]

    @property
    def label(self) -> str:
        """`r3 12/64`: how many of its GPUs are held."""
        holders = [job for node in self.nodes for job, _ in node.gpus]
        return f"{self.name} {sum(job != FREE and job != GONE for job in holders)}/{len(holders)}"


class JobLine(NamedTuple):
    """A job in the list."""

    key: str
    """`namespace/name`"""
    row: int
    """Of the console's columns."""
    cells: tuple[str, ...]
    """Of `COLUMNS`."""
    why: str
    """What is told of one that waits."""


# --- heading ---------------------------------------------------------------------------------------------------------
def heading(moment: Moment, trouble: str) -> Text:
    """What is seen of the cluster in one line, and what is left out; or why it may be out of date."""
    if trouble:
        return Text(f"may be out of date: {trouble}", "bold red")
    told = views.overview(moment.seen, moment.waits, moment.deciders, EVERYTHING)
    sums = Counter[str]()
    for kind in told["gpus"]:
        sums.update({name: count for name, count in kind.items() if isinstance(count, int)})
    parts = [f"{sums['held']} of {sums['gpus']} GPUs held"] if moment.reach.whole(NODES) else []
    parts += [f"{told['running']} run", f"{told['waiting']} wait"]
    policy = told["deciding"]["policy"]
    parts += [f"{policy} decides"] if policy else []
    parts += [f"left out: {moment.reach.left_out}"] if moment.reach.left_out else []
    return Text("  ·  ".join(parts), "bold")


# --- GPUs ------------------------------------------------------------------------------------------------------------
def domains(columns: Columns) -> list[Domain]:
    """All nodes by type, and by link domain, else by rack, in order."""
    found: dict[tuple[str, str], list[tuple[str, GpuNode]]] = {}
    types, holders, states = columns["type"], columns["gpu.job"], columns["gpu.state"]
    told = (columns[f"node.{name}"] for name in ("name", "type", "gpus", "at", "link", "rack", "kept"))
    for name, kind, count, at, link, rack, kept in zip(*told, strict=True):
        if not name:
            continue  # a row that no node has
        broken = [state in (FAULT, LOST) for state in states[at : at + count]]
        node = GpuNode(tuple(zip(holders[at : at + count], broken, strict=True)), kept >= 0)
        gpu_type = types[kind] if kind >= 0 else "unknown"
        found.setdefault((gpu_type, link or rack or "-"), []).append((name, node))
    return [
        Domain(name, gpu_type, tuple(node for _, node in sorted(nodes, key=lambda each: _natural(each[0]))))
        for (gpu_type, name), nodes in sorted(found.items(), key=lambda each: (each[0][0], _natural(each[0][1])))
    ]


def _natural(name: str) -> tuple[str, int, str]:
    """`n10` behind `n9`."""
    stem = name.rstrip("0123456789")
    return stem, int(name.removeprefix(stem) or -1), name


def gpu_lines(moment: Moment, width: int, chosen: int, *, colours: bool) -> list[Text]:
    """The GPUs in lines of `width` columns; those of the job in row `chosen` stand out. Two GPUs share a character, one
    above the other."""
    if not moment.reach.whole(NODES):
        return [Text("you may not see nodes (list and watch of nodes, gpunodes)")]
    told = views.overview(moment.seen, moment.waits, moment.deciders, EVERYTHING)
    types = {kind["gpuType"] or "unknown": kind for kind in told["gpus"]}
    lines: list[Text] = []
    for gpu_type, group in groupby(domains(moment.columns), key=lambda each: each.gpu_type):
        lines.append(_heading_of(gpu_type, types.get(gpu_type, {})))
        lines += _domain_lines(list(group), width, chosen, colours=colours)
    return lines


def _heading_of(gpu_type: str, kind: Mapping[str, Any]) -> Text:
    fields = "held", "free", "kept", "foreign", "unavailable"
    counts = ", ".join(f"{kind[name]} {name}" for name in fields if kind.get(name))
    return Text.assemble((gpu_type, "bold"), f"  {counts}")


def _domain_lines(group: Sequence[Domain], width: int, chosen: int, *, colours: bool) -> Iterator[Text]:
    """Several domains to a line where they are narrow; one over several lines where it is wide."""
    label = min(LABEL, max(len(domain.label) for domain in group))
    node = max(_width(node) for domain in group for node in domain.nodes) + 1
    room = max(1, (width - label - 1) // node)
    most = max(len(domain.nodes) for domain in group)
    block = label + 1 + min(most, room) * node
    side_by_side = max(1, (width + 1) // (block + 1)) if most <= room else 1
    for first in range(0, len(group), side_by_side):
        line = Text()
        for place, domain in enumerate(group[first : first + side_by_side]):
            if place:
                line.append(" " * (place * (block + 1) - line.cell_len))
            for start in range(0, len(domain.nodes), room):
                if start:
                    yield line
                    line = Text()
                line.append(_fit("" if start else domain.label, label) + " ")
                for each in domain.nodes[start : start + room]:
                    _add_node(line, each, chosen, colours=colours)
                    line.append(" " * (node - _width(each)))
        line.rstrip()
        yield line


def _width(node: GpuNode) -> int:
    return (len(node.gpus) + 1) // 2


def _fit(text: str, width: int) -> str:
    """Names give way, numbers stay."""
    if len(text) > width:
        name, _, numbers = text.rpartition(" ")
        text = f"{name[: max(0, width - len(numbers) - 2)]}… {numbers}"
    return text.ljust(width)


def _add_node(line: Text, node: GpuNode, chosen: int, *, colours: bool) -> None:
    pairs = [(node.gpus[at], node.gpus[at + 1] if at + 1 < len(node.gpus) else None)
             for at in range(0, len(node.gpus), 2)]  # fmt: skip
    for pair, same in groupby(pairs):
        count = len(list(same))
        upper, lower = pair
        if not colours:
            line.append(_letter(upper, lower, chosen) * count)
            continue
        above, below = (_colour(each, chosen, kept=node.kept) if each else "" for each in pair)
        line.append("▀" * count, f"{above} on {below}" if below else above)


def _colour(gpu: tuple[int, bool], chosen: int, *, kept: bool) -> str:
    job, broken = gpu
    if broken:
        return BROKEN_COLOUR
    if job == FREE and kept:
        return KEPT_COLOUR
    if job >= 0:
        return CHOSEN_COLOUR if job == chosen else HUES[job % len(HUES)]
    return COLOURS.get(job, HIDDEN_COLOUR)


def _letter(upper: tuple[int, bool], lower: tuple[int, bool] | None, chosen: int) -> str:
    """Without colours: which are held, which are the chosen job's, which are broken."""
    both = [each for each in (upper, lower) if each]
    if any(broken for _, broken in both):
        return "!"
    if chosen >= 0 and any(job == chosen for job, _ in both):
        return "#"
    held = [job not in (FREE, GONE) for job, _ in both]
    return {(True, True): "█", (True, False): "▀", (False, True): "▄", (True,): "▀"}.get(tuple(held), "·")


def legend(*, colours: bool) -> Text:
    """What the cells mean."""
    if not colours:
        return Text("█ held ▀ one · free # chosen ! broken")
    parts = (CHOSEN_COLOUR, "chosen"), (COLOURS[FREE], "free"), (KEPT_COLOUR, "kept"), (COLOURS[FOREIGN], "other"), \
            (BROKEN_COLOUR, "broken")  # fmt: skip
    return Text(" ").join(Text.assemble(("▀", colour), f" {name}") for colour, name in parts)


# --- jobs ------------------------------------------------------------------------------------------------------------
COLUMNS, WHY = ("#", "JOB", "STATE", "GPUS", "WHEN"), "WHY"
LESS = ("GPUS", "#", "STATE")
"""Columns that go first where it is narrow."""
GAP, LEAST_WHY = 2, 24


def job_lines(moment: Moment, *, waiting_only: bool) -> list[JobLine]:
    """Those that wait, in line; then, unless they alone are asked for, those that run, are suspended and have ended."""
    columns, now = moment.columns, moment.seen.snapshot.time
    names = "key", "state", "queue", "type", "gpus", "phase", "end", "start", "place", "progress"
    found = []
    because = _because(moment)
    for row, job in enumerate(zip(*(columns[f"job.{name}"] for name in names), strict=True)):
        told = dict(zip(names, job, strict=True))
        if not told["key"] or (waiting_only and told["phase"] != WAITS):
            continue
        order = (told["phase"] == OVER, told["phase"] != WAITS, told["place"] or 1 << 30, told["key"])
        gpus = f"{told['gpus']}×{told['type']}" if told["gpus"] else "-"
        cells = str(told["place"] or ""), told["key"], told["state"], gpus, _when(told, now)
        found.append((order, JobLine(told["key"], row, cells, because.get(told["key"], ""))))
    return [line for _, line in sorted(found, key=lambda each: each[0])]


def _because(moment: Moment) -> dict[str, str]:
    """What is told of those that wait."""
    return {
        facts.meta.key: facts.status.pending.message
        for facts in moment.seen.jobs.values()
        if facts.status.pending and not facts.holds_gpus
    }


def _when(told: Mapping[str, Any], now: float) -> str:
    """When it starts, or ends."""
    if told["phase"] == WAITS:
        return f"starts in ~{words.minutes(told['start'] - now)}" if told["start"] else ""
    if told["phase"] == HOLDS:
        done = f"{told['progress'] / 10:.0f}%" if told["progress"] >= 0 else ""
        ends = f"ends in ~{words.minutes(told['end'] - now)}" if told["end"] else ""
        return ", ".join(filter(None, (done, ends)))
    return ""


def listed(jobs: Sequence[JobLine], width: int) -> tuple[Text, list[Text]]:
    """Column names, and one line for each job, in `width` columns: less columns where it is narrow, and the sentence
    that says why a job waits where there is room for some of it."""
    widths = {name: max(cell_len(row[at]) for row in (COLUMNS, *(job.cells for job in jobs)))
              for at, name in enumerate(COLUMNS)}  # fmt: skip
    names = list(COLUMNS)
    for name in LESS:
        if sum(widths[each] + GAP for each in names) - GAP > width:
            names.remove(name)
    lines = _table(jobs, names)
    widest = max(line.cell_len for line in lines)
    for line, why in zip(lines, [WHY, *(job.why for job in jobs)], strict=True):
        if width - widest - GAP >= LEAST_WHY and why:
            line.append(" " * (widest + GAP - line.cell_len) + why)
        line.truncate(width, overflow="ellipsis")
    return lines[0], lines[1:]


def _table(jobs: Sequence[JobLine], names: Sequence[str]) -> list[Text]:
    table = Listing(names, right=("#",))
    for job in jobs:
        table.add(*(job.cells[COLUMNS.index(name)] for name in names))
    into_a_pipe = Console(force_terminal=False)  # where nothing is cut or folded
    return list(table.__rich_console__(into_a_pipe, into_a_pipe.options))


# --- why -------------------------------------------------------------------------------------------------------------
def why_lines(rows: Sequence[tuple[str, str]], width: int) -> list[Text]:
    """What `explain` says of a job, folded to `width` columns."""
    label = max((len(name) for name, _ in rows), default=0)
    room, console = max(20, width - label - 2), Console(width=max(20, width))
    lines: list[Text] = []
    for name, text in rows:
        for place, part in enumerate(Text(text).wrap(console, room) or [Text()]):
            part.rstrip()
            lines.append(Text.assemble((f"{'' if place else name:<{label}}", "bold"), "  ") + part)
    return lines
