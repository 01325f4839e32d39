"""What was measured, as tables for people, with the goals of the project next to it."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator

from hack.bench import artifact, decisions, flood, gangs, news, online, others, restart, room, simulator, tenants
from hack.bench.agreement import Agreement
from hack.bench.agreement import Outcome as Hours
from hack.bench.binding import Outcome, Run, rate
from hack.bench.burden import Burden
from hack.bench.decisions import Line
from hack.bench.extender import KINDS, Times
from hack.bench.latency import Latencies
from hack.bench.peers import figures, stream
from hack.bench.percentiles import Spread
from hack.bench.plans import Searches
from hack.bench.rounds import Costs
from hack.bench.verdicts import Verdicts
from msgspec import Struct, field
from rich.console import Console
from rich.table import Table


class Machine(Struct):
    """Where it was measured. A load far above what is measured says that others were at work."""

    cpus: int = field(default_factory=lambda: os.cpu_count() or 0)
    python: str = field(default_factory=platform.python_version)
    load: float = field(default_factory=lambda: os.getloadavg()[0])


class Report(Struct):
    """All that was measured; None for what was left out."""

    machine: Machine
    binding: Outcome | None = None
    decisions: list[Line] | None = None
    rounds: Costs | None = None
    news: list[news.Line] | None = None
    latency: Latencies | None = None
    others: others.Outcome | None = None
    plans: list[Searches] | None = None
    agreement: list[Agreement] | None = None
    artifact: list[artifact.Line] | None = None
    simulator: simulator.Speeds | None = None
    extender: Times | None = None
    gangs: Outcome | None = None
    verdicts: Verdicts | None = None
    room: room.Outcome | None = None
    flood: flood.Floods | None = None
    burden: Burden | None = None
    tenants: tenants.Outcome | None = None
    online: online.Outcome | None = None
    peers: list[figures.Race] | None = None
    stream: stream.Stream | None = None
    restart: restart.Restart | None = None


class Goal(Struct):
    """Something that was wished for, and what it came to."""

    what: str
    value: float
    goal: float
    at_least: bool

    @property
    def met(self) -> bool:
        return self.value >= self.goal if self.at_least else self.value <= self.goal


def goals(report: Report) -> Iterator[Goal]:
    """The goals for what was measured."""
    if binding := report.binding:
        for discipline in ("whole", "bind"):
            yield Goal(f"{discipline}: Trimtab / bare binder", binding.ratio(discipline, "trimtab", "bare"), 0.6, True)
            yield Goal(
                f"{discipline}: Trimtab / kube-scheduler",
                binding.ratio(discipline, "trimtab", "kube-scheduler"),
                3.0,
                True,
            )
        memory = max(run.memory["now"] for run in binding.whole["trimtab"])
        yield Goal("controller memory, MiB", memory, 200, False)
    for what, value, most in decisions.goals(report.decisions or ()):
        yield Goal(what, value, most, False)
    for searches in report.plans or ():
        what = f"plans of a 70B model, batch {searches.batch}"
        yield Goal(f"{what}: all of six GPU types, ms of CPU (p50)", searches.all_types.p50, 20, False)
        yield Goal(f"{what}: one prediction, µs of CPU (p50)", searches.prediction.p50, 1, False)
    if report.others:
        what = "batch Job that is placed, created to bound, added to a job of ours"
        yield Goal(f"{what}, % (p50)", report.others.added("whole"), 10, False)
    for found in report.agreement or ():
        yield Goal(f"{found.policy}: simulated / live avg JCT, % off", 100 * abs(found.jct_error), 5, False)
        yield Goal(f"{found.policy}: simulated / live makespan, % off", 100 * abs(found.makespan_error), 5, False)
    for what, off, goal in artifact.goals(report.artifact or []):
        yield Goal(f"{what}, % off the artifact", 100 * off, 100 * goal, False)
    if report.simulator:
        for what, value, goal, at_least in simulator.goals(report.simulator):
            yield Goal(what, value, goal, at_least)
    if report.room:
        for what, value, goal, at_least in room.goals(report.room):
            yield Goal(what, value, goal, at_least)
    if report.extender:
        what = f"a filter request at {report.extender.nodes:,} nodes, p99 ms"
        yield Goal(f"{what}: pod of a gang", report.extender.ours.p99, 5, False)
        yield Goal(f"{what}: foreign pod", report.extender.foreign.p99, 1, False)
    if report.gangs:
        for without, beside in gangs.PAIRS:
            value = gangs.added(report.gangs, without, beside)
            yield Goal(f"{beside}: added to kube-scheduler's time per pod, %", value, 5, False)
    if found := report.verdicts:
        what = f"{found.pending} jobs wait at {found.nodes:,} nodes"
        yield Goal(f"{what}: a decision with reasons, cold, s of CPU", found.cold / 1000, 2, False)
        yield Goal(f"{what}: expected starts of all, ms of CPU (p50)", found.starts.p50, 100, False)
        if found.live:
            yield Goal(f"{what}: one more created to its reason in status, s (max)", found.live.one.max, 2, False)
        for policy, starts in found.punctual.items():
            yield Goal(f"{policy}: starts within their 80 % interval, %", 100 * starts.covered, 75, True)
    if report.tenants:
        for what, value, goal, at_least in tenants.goals(report.tenants):
            yield Goal(what, value, goal, at_least)
    if report.online:
        for what, value, goal, at_least in online.goals(report.online):
            yield Goal(what, value, goal, at_least)
    if report.flood:
        most = max(each.memory_mib for each in report.flood.floods)
        yield Goal(
            "probes without an answer within 1 s in a flood", sum(e.failed for e in report.flood.floods), 0, False
        )
        yield Goal("memory that a flood takes, MiB", most, 30, False)
        yield Goal("lines that a flood writes to a log", max(e.log_lines for e in report.flood.floods), 100, False)
    if found := report.burden:
        what = f"{found.jobs:,} jobs at the size limit"
        yield Goal(f"{what}: memory of the controller, MiB (peak)", found.most, 700, False)
        for when in ("coming", "crowded", "anew"):
            cost: Spread = getattr(found, when)
            yield Goal(f"{what}, {when}: another's job created to bound, s (max)", cost.max, 2, False)
    for race in report.peers or ():
        for what, value, wished, at_least in figures.goals(race):
            yield Goal(what, value, wished, at_least)
    if report.rounds:
        yield Goal("unchanged round, ms of CPU (p50)", report.rounds.unchanged.p50, 10, False)
    for what, value, wished in news.goals(report.news or []):
        yield Goal(what, value, wished, False)
    for what, value, wished in restart.goals(report.restart) if report.restart else ():
        yield Goal(what, value, wished, False)


def show(report: Report, console: Console) -> None:
    """Print everything."""
    parts: tuple[tuple[object, Callable[[Report], Table]], ...] = (
        (report.binding, lambda found: _race("binding", found.binding)),
        (report.gangs, lambda found: _race("gangs", found.gangs)),
        (report.extender, _extender),
        (report.decisions, _decisions),
        (report.rounds, _rounds),
        (report.news, lambda found: news.table(found.news)),
        (report.latency, _latency),
        (report.others, lambda found: others.table(found.others)),
        (report.verdicts, _verdicts),
        (report.verdicts, _punctual),
        (report.room, lambda found: room.table(found.room)),
        (report.room, lambda found: room.think_table(found.room)),
        (report.flood, lambda found: flood.table(found.flood)),
        (report.burden, _burden),
        (report.tenants, lambda found: tenants.table(found.tenants)),
        (report.online, lambda found: online.table(found.online)),
        (report.plans, _plans),
        (report.agreement, _agreement),
        (report.artifact, lambda found: artifact.table(found.artifact or [])),
        (report.simulator, lambda found: simulator.costs(found.simulator)),
        (report.simulator, lambda found: simulator.steps(found.simulator)),
        *((race, lambda _, race=race: figures.table(race)) for race in report.peers or ()),
        *((race, lambda _, race=race: figures.requests_table(race)) for race in report.peers or ()),
        (report.restart, lambda found: restart.table(found.restart)),
        (report.stream, lambda found: stream.table(found.stream)),
        (True, _goals),
    )
    for present, table in parts:
        if present:
            console.print(table(report))
    for race in (report.binding, report.gangs):
        for name, count in (race.stalled if race else {}).items():
            console.print(f"{name} left pods unbound in {count} runs, which were run again with fresh schedulers")
    for peers in report.peers or ():
        for remark in figures.remarks(peers):
            console.print(f"{peers.nodes:,} nodes: {remark}")
    for name, why in (report.stream.left_out if report.stream else {}).items():
        console.print(f"{name} left out: {why}")
    if report.binding:
        most = ", ".join(f"{report.binding.ratio(d, 'bare', 'kube-scheduler'):.2f} ({d})" for d in ("whole", "bind"))
        console.print(f"bare binder / kube-scheduler, the most that anybody could reach here: {most}")
    machine = report.machine
    console.print(f"{machine.cpus} CPUs, Python {machine.python}, load {machine.load:.1f} at the start")


def _race(title: str, outcome: Outcome | None) -> Table:
    table = _table(title, "DISCIPLINE", "CONTESTANT", "PODS/S", "RUNS", "GANG LATENCY p50", "p99", "MiB")
    for discipline in ("whole", "bind"):
        contestants: dict[str, list[Run]] = getattr(outcome, discipline)
        for name, runs in contestants.items():
            waits = [run.latency for run in runs]
            table.add_row(
                *(discipline, name, f"{rate(runs):.0f}", " ".join(f"{run.rate:.0f}" for run in runs)),
                *(f"{min(w.p50 for w in waits):.2f} s", f"{min(w.p99 for w in waits):.2f} s")
                if discipline == "whole"
                else ("", ""),
                f"{runs[-1].memory['now']:.0f} (peak {runs[-1].memory['peak']:.0f})" if runs[-1].memory else "",
            )
    return table


def _extender(report: Report) -> Table:
    table = _table("filter requests, ms", "POD", "NODES", "p50", "p99", "MAX", "÷ EMPTY HANDLER")
    if found := report.extender:
        for kind in KINDS:
            cost: Spread = getattr(found, kind)
            numbers = (f"{ms:.2f}" for ms in (cost.p50, cost.p99, cost.max))
            table.add_row(kind, "1" if kind == "pinned" else str(found.nodes), *numbers, f"{found.ratio(kind):.2f}")
    return table


def _decisions(report: Report) -> Table:
    table = _table(
        "decisions, ms of CPU", "POLICY", "NODES", "CLUSTER", "WAITING", "PLACED", "COLD", "WARM p50", "p99", "GAP"
    )
    for line in report.decisions or ():
        counts = (str(line.nodes), line.load, str(line.pending), str(line.placed))
        times = (f"{ms:.0f}" for ms in (line.cold, line.warm.p50, line.warm.p99))
        table.add_row(line.policy, *counts, *times, "" if line.gap is None else f"{line.gap:.2%}")
    return table


def _rounds(report: Report) -> Table:
    table = _table("rounds, ms of CPU", "WHAT CHANGED", "p50", "p99")
    if costs := report.rounds:
        table.add_row("first round", f"{costs.first:.1f}", "")
        for name in ("unchanged", "heartbeat", "pod_changed", "node_changed"):
            cost: Spread = getattr(costs, name)
            table.add_row(name.replace("_", " "), f"{cost.p50:.1f}", f"{cost.p99:.1f}")
    return table


def _verdicts(report: Report) -> Table:
    table = _table("why a job waits; ms of CPU", "WHAT", "p50", "p99", "MAX")
    if found := report.verdicts:
        table.add_row(f"first decision about {found.pending} jobs, {found.nodes} full nodes", f"{found.cold:.0f} ms")
        for what, cost in (("later decisions", found.warm), ("of that, expected starts", found.starts)):
            table.add_row(what, *(f"{ms:.0f} ms" for ms in (cost.p50, cost.p99, cost.max)))
        if live := found.live:
            reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(live.reasons.items()))
            for what, cost in ((f"all created at once, to the reason ({reasons})", live.burst), ("one more", live.one)):
                table.add_row(what, *(f"{seconds:.2f} s" for seconds in (cost.p50, cost.p99, cost.max)))
    return table


def _punctual(report: Report) -> Table:
    table = _table("expected starts", "POLICY", "TOLD", "WITHIN", "EARLY", "LATE", "EXPECTED / ACTUAL", "NO ANSWER")
    for policy, found in (report.verdicts.punctual if report.verdicts else {}).items():
        parts = (f"{part:.0%}" for part in (found.covered, found.early, found.late))
        table.add_row(policy, str(found.told), *parts, f"{found.median_ratio:.2f}", f"{found.unseen:.0%}")
    return table


def _latency(report: Report) -> Table:
    table = _table("quiet cluster of 24 nodes, s", "FROM ... TO ...", "p50", "p99")
    if found := report.latency:
        table.add_row("job created to pod bound", f"{found.bound.p50:.3f}", f"{found.bound.p99:.3f}")
        table.add_row("controller started to first plan", f"{found.started.p50:.2f}", f"{found.started.p99:.2f}")
    return table


def _burden(report: Report) -> Table:
    table = _table(
        "a crowd of jobs at the size limit",
        "JOBS",
        "ANOTHER'S JOB TO BOUND, s p50",
        "p99",
        "MAX",
        "SHOWN BY A WATCH p50",
        "p99",
        "MiB",
        "PEAK",
    )
    if found := report.burden:
        for when in ("alone", "coming", "crowded", "anew"):
            cost: Spread = getattr(found, when)
            shown = found.shown[when]
            times = (f"{seconds:.2f}" for seconds in (cost.p50, cost.p99, cost.max, shown.p50, shown.p99))
            kept = (f"{found.memory[each]:.0f}" if each in found.memory else "" for each in (when, f"{when} peak"))
            table.add_row("0" if when == "alone" else f"{found.jobs:,} {when}", *times, *kept)
        table.add_row("", f"controller started to bound: {found.recovery:.1f}")
    return table


def _plans(report: Report) -> Table:
    table = _table("plans of a 70B model up to 1,024 GPUs, ms of CPU", "BATCH", "THAT FIT", "SEARCHED", "p50", "p99")
    for found in report.plans or ():
        for name in ("all_types", "one_type", "one_gang", "front", "prediction"):
            cost: Spread = getattr(found, name)
            what = "one prediction, µs" if name == "prediction" else name.replace("_", " ")
            table.add_row(str(found.batch), str(found.plans), what, f"{cost.p50:.2f}", f"{cost.p99:.2f}")
    return table


def _agreement(report: Report) -> Table:
    title = "simulator against live system, hours of simulated time"
    table = _table(title, "POLICY", "JOBS", "SAME GPUS", "LAUNCH", "", "AVG JCT", "MAKESPAN")
    for found in report.agreement or ():
        about = (found.policy, str(found.jobs), str(found.alike), f"{found.launch_seconds:.2f} s at {found.speedup:g}×")
        for name in ("live", "simulated", "without_launch"):
            row: Hours = getattr(found, name)
            table.add_row(*about, name.replace("_", " "), f"{row.avg_jct:.4f}", f"{row.makespan:.4f}")
            about = ("", "", "", "")
    return table


def _goals(report: Report) -> Table:
    table = _table("goals", "", "MEASURED", "GOAL", "")
    for goal in goals(report):
        sign = "≥" if goal.at_least else "≤"
        table.add_row(goal.what, f"{goal.value:.3g}", f"{sign} {goal.goal:g}", "met" if goal.met else "missed")
    return table


def _table(title: str, *columns: str) -> Table:
    return Table(*columns, title=title, title_justify="left", box=None, pad_edge=False)
