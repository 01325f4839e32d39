"""What is told of a race of `peers`: from what a witness saw, and what /proc says of the processes, to a table.

Nothing here runs anything. Times are seconds by the machine's monotonic clock, CPU is milliseconds per pod, memory MiB.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from hack.bench.binding import RESOLUTION_SECONDS
from hack.bench.percentiles import Spread, spread
from hack.bench.watch_recorder import Sightings
from msgspec import Struct
from msgspec.structs import astuple
from prometheus_client.parser import text_string_to_metric_families
from rich.table import Table

OURS, BOUND = "trimtab", "bare"
"""We, and the bare binder, which decides nothing: nobody here can be faster."""
GANGS_KNOWN = ("podgroups", "coscheduling", "volcano", "kai", "kueue")
"""Rivals that start a gang whole or not at all."""
NEAR_BOUND, LEAST_LEAD, LATENCY_PART = 0.85, 2.0, 0.2
"""Goals: the part of the bare binder's rate where that leaves no room for twice the best rival's, else twice that;
gang latency in parts of the best rival's."""


class Partial(Struct):
    """Gangs of which some pods were bound and others not."""

    most: int
    """At one instant."""
    longest: float
    """Seconds that one gang was so: its bound pods hold GPUs and can do nothing."""


class Served(Struct, frozen=True):
    """What the API server was asked and has told, all clients together: the contestant, whoever creates pods, the
    control plane's own and our witness, who watches pods."""

    writes: float = 0.0
    """Requests that create, change or delete."""
    reads: float = 0.0
    """Requests for an object or a list."""
    events: float = 0.0
    """That watchers were told, each counted."""
    told: float = 0.0
    """Bytes of these, and of what was read."""

    def since(self, before: Served, pods: int) -> Served:
        """What came after that, per pod."""
        return Served(*((now - then) / pods for now, then in zip(astuple(self), astuple(before), strict=True)))


class Showing(Struct):
    """One contestant, once."""

    rate: float
    """Pods per second, from the first gang's creation to the last binding."""
    seconds: float
    """The same span: until all gangs are placed."""
    latency: Spread
    """Per gang, from its creation (of its job; else of its first pod) to its last binding."""
    waits: Spread
    """Per gang, from its last pod's creation to its last binding."""
    partial: Partial
    cpu: dict[str, float]
    """By part: `scheduler` (with whatever belongs to it), `creator` of the pods where that is another process, and the
    processes of the control plane by name."""
    memory: float
    """Of the scheduler's processes at their peak, summed up."""
    load: float = 0.0
    """Of the machine in the minute before."""
    served: Served = Served()
    """Per pod."""

    @property
    def scheduling(self) -> float:
        """CPU of the scheduler and of whoever creates the pods."""
        return self.cpu.get("scheduler", 0.0) + self.cpu.get("creator", 0.0)

    @property
    def serving(self) -> float:
        """CPU of the API server."""
        return self.cpu.get("kube-apiserver", 0.0)

    @property
    def total(self) -> float:
        """CPU of both."""
        return self.scheduling + self.serving


WRITES = frozenset({"POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"})
READS = frozenset({"GET", "LIST"})


def served(metrics: str) -> Served:
    """From the API server's own metrics, counted since its start."""
    writes = reads = events = told = 0.0
    for family in text_string_to_metric_families(metrics):
        for name, labels, value, *_ in family.samples:
            if name == "apiserver_request_total":
                writes += value * (labels["verb"] in WRITES)
                reads += value * (labels["verb"] in READS)
            elif name in ("apiserver_watch_events_sizes_sum", "apiserver_response_sizes_sum"):
                told += value
            elif name == "apiserver_watch_events_sizes_count":
                events += value
    return Served(writes, reads, events, told)


def node_changes(metrics: str) -> float:
    """How often nodes were changed, their status left out, counted since the API server's start."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(metrics)
        for sample in family.samples
        if sample.name == "apiserver_request_total"
        and (sample.labels["verb"], sample.labels["resource"]) == ("PATCH", "nodes")
        and not sample.labels.get("subresource")
    )


class Race(Struct):
    """All showings on a cluster of one size."""

    nodes: int
    gangs: int
    gang: int
    """Pods per gang."""
    showings: dict[str, list[Showing]]
    stalled: dict[str, int] = {}
    """Showings in which a contestant left pods unbound. Each was tried again, with fresh schedulers."""
    left_out: dict[str, str] = {}
    """Contestants that did not run, and why."""

    def median(self, who: str, figure: str) -> float:
        """Of a contestant's showings: `rate`, `scheduling`, `serving`, `total`, `memory`; `p50` and `p99` of the gang
        latency, and `waits p50` and `waits p99`; and those of `Served`."""
        return statistics.median(_figure(each, figure) for each in self.showings[who])


Goal = tuple[str, float, float, bool]
"""What, its value, the goal, and whether that is the least rather than the most."""


def _figure(showing: Showing, figure: str) -> float:
    part, _, percentile = figure.rpartition(" ")
    if percentile in ("p50", "p99"):
        return float(getattr(showing.waits if part else showing.latency, percentile))
    return float(getattr(showing.served if figure in Served.__struct_fields__ else showing, figure))


def gangs_of(seen: Sightings) -> dict[str, list[str]]:
    """Gang -> its pods."""
    gangs: dict[str, list[str]] = {}
    for pod, gang in seen.gang.items():
        gangs.setdefault(gang, []).append(pod)
    return gangs


def partly_bound(seen: Sightings) -> Partial:
    """How many gangs were partly bound at the worst instant, and for how long the slowest of them was.

    What arrived in one read of the witness has one time, and counts as one instant: a gang that was bound within it
    never was partial.
    """
    spans = [(min(times), max(times)) for times in ([seen.bound[p] for p in pods] for pods in gangs_of(seen).values())]
    steps = sorted((time, step) for first, last in spans if last > first for time, step in ((first, 1), (last, -1)))
    return Partial(
        most=max(accumulate(step for _, step in steps), default=0),  # at one time, ends are sorted before beginnings
        longest=max((last - first for first, last in spans), default=0.0),
    )


def showing(seen: Sightings, created: Mapping[str, float], cpu: Mapping[str, float], memory: float) -> Showing:
    """What one contestant did.

    `created` has the moments at which gangs were handed in, for those that are not born with their first pod; `cpu`
    is in seconds by part.
    """
    gangs = gangs_of(seen)
    born = {gang: created.get(gang, min(seen.created[pod] for pod in pods)) for gang, pods in gangs.items()}
    ready = {gang: max(seen.bound[pod] for pod in pods) for gang, pods in gangs.items()}
    seconds = max(max(ready.values()) - min(born.values()), RESOLUTION_SECONDS)
    return Showing(
        rate=len(seen.bound) / seconds,
        seconds=seconds,
        latency=spread([ready[gang] - born[gang] for gang in gangs]),
        waits=spread([ready[gang] - max(seen.created[pod] for pod in pods) for gang, pods in gangs.items()]),
        partial=partly_bound(seen),
        cpu={part: 1000 * spent / len(seen.bound) for part, spent in cpu.items()},
        memory=memory,
    )


def goals(race: Race) -> Iterator[Goal]:
    """The goals at this size, against those rivals that ran."""
    rivals = [name for name in race.showings if name not in (OURS, BOUND)]
    if OURS not in race.showings or not rivals:
        return
    where = f"{race.nodes:,} nodes"
    rate = race.median(OURS, "rate")
    if knowing := [name for name in rivals if name in GANGS_KNOWN]:
        best = max(knowing, key=lambda name: race.median(name, "rate"))
        there = race.median(best, "rate")
        most = race.median(BOUND, "rate") if BOUND in race.showings else float("inf")
        if most * NEAR_BOUND < LEAST_LEAD * there:
            yield (f"{where}: pods/s, Trimtab / bare", rate / most, NEAR_BOUND, True)
        else:
            yield (f"{where}: pods/s, Trimtab / {best}", rate / there, LEAST_LEAD, True)
    for figure, what, goal in (
        ("p50", "gang latency p50", LATENCY_PART),
        ("p99", "gang latency p99", LATENCY_PART),
        ("waits p50", "last pod created to last bound, p50", LATENCY_PART),
        ("waits p99", "last pod created to last bound, p99", LATENCY_PART),
        ("total", "CPU per pod, API server included", 1.0),
    ):
        best = min(rivals, key=lambda name: race.median(name, figure))
        value = race.median(OURS, figure) / race.median(best, figure)
        yield (f"{where}: {what}, Trimtab / {best}", value, goal, False)


def table(race: Race) -> Table:
    """One line for each contestant: medians of all its showings, and the worst of what is partial.

    How many times our rate is theirs; gang latency; most gangs that were partly bound at once, and for how
    long one was; CPU of scheduler and creator per pod, and with the API server's; memory of the scheduler.
    """
    title = f"peers: {race.gangs} gangs of {race.gang} pods on {race.nodes:,} nodes; seconds, ms of CPU a pod, MiB"
    made = Table(title=title, title_justify="left", box=None, pad_edge=False)
    made.add_column("RIVAL", no_wrap=True)
    for column in ("PODS/S", "OURS ÷", "p50", "p99", "PARTLY", "FOR", "CPU", "+ API", "MEMORY"):
        made.add_column(column, justify="right", no_wrap=True)
    for name, showings in race.showings.items():
        made.add_row(name, *_cells(race, name, showings))
    return made


def requests_table(race: Race) -> Table:
    """One line for each contestant: how long the last pod of a gang waits; and per pod that was bound, medians of what
    the API server was asked, of the events that watchers were told, and of all that it sent; and its CPU."""
    title = f"peers: a gang's last pod to its last binding, s; per pod; {race.nodes:,} nodes"
    made = Table(title=title, title_justify="left", box=None, pad_edge=False)
    made.add_column("RIVAL", no_wrap=True)
    for column in ("p50", "p99", "WRITES", "READS", "EVENTS", "kB TOLD", "API SERVER, ms"):
        made.add_column(column, justify="right", no_wrap=True)
    for name in race.showings:
        waits = (f"{race.median(name, figure):.2f}" for figure in ("waits p50", "waits p99"))
        writes, reads, events, told, cpu = (
            race.median(name, figure) for figure in ("writes", "reads", "events", "told", "serving")
        )
        asked = f"{writes:.2f}", f"{reads:.2f}", f"{events:.1f}", f"{told / 1000:.1f}", f"{cpu:.1f}"
        made.add_row(name, *waits, *asked)
    return made


def _cells(race: Race, name: str, showings: Sequence[Showing]) -> Iterator[str]:
    rate = race.median(name, "rate")
    yield f"{rate:.0f}"
    yield f"{race.median(OURS, 'rate') / rate:.2f}" if OURS in race.showings and name != OURS else ""
    yield from (f"{race.median(name, figure):.2f}" for figure in ("p50", "p99"))
    yield str(max(each.partial.most for each in showings))
    yield f"{max(each.partial.longest for each in showings):.2f}"
    yield from (f"{race.median(name, figure):.1f}" for figure in ("scheduling", "total"))
    memory = race.median(name, "memory")
    yield f"{memory:.0f}" if memory else ""


def remarks(race: Race) -> Iterator[str]:
    """What a table has no room for."""
    for name, why in race.left_out.items():
        yield f"{name} left out: {why}"
    for name, count in race.stalled.items():
        yield f"{name} left pods unbound in {count} runs, which were run again with fresh schedulers"
