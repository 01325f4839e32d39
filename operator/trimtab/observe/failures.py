"""Which nodes are kept from waiting jobs because of failures: those that end one gang after another, and warm spares.

Bad nodes. Every job keeps its last failures in its status, with the node that was to blame. Read together they tell of
nodes that fail again and again though each single failure has an excuse. Nothing is remembered here: a new controller
reads the same. A node is bad when it has ended gangs of different jobs, at different times, within a window: one job
that fails wherever it goes condemns no node, and a restart that ends two gangs at once is one failure, not two. It is
told as a problem, takes no new gangs, and those that run there stay. It comes back when the last failure is a window
ago, when somebody annotates it (or its GPUNode) with `trimtab.dev/repaired`, or as a new object. At most a part of all
nodes is held back, agents' verdicts included: where most nodes are bad, something else is.

Warm spares. Nodes fail independently, at a known rate, and are away for a known time: how many are out at once is
Poisson distributed. So many free nodes are kept for gangs that have just lost one that a further one is needed with a
small probability only ("Robust LLM Training Infrastructure at ByteDance", SOSP 2025, sizes warm standbys alike). For
small clusters that is none.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime

from msgspec import Struct

from trimtab import names
from trimtab.api.history import FailureCause
from trimtab.observe import health
from trimtab.observe.gpunodes import Look
from trimtab.observe.jobs import JobFacts
from trimtab.observe.nodes import NodeFacts
from trimtab.observe.problems import Problem
from trimtab.settings import FailureSettings

BLAMES = (FailureCause.NODE, FailureCause.GPU)
BAD_NODE = "BadNode"
KEPT = "kept as a warm spare for gangs that lose a node"
MAX_SAID = 4
DAY_SECONDS = 86_400.0


class Blow(Struct, frozen=True):
    """A gang that a node has ended."""

    node: str
    job: str
    """UID."""
    said: str
    """The job and the reason, in words."""
    time: float
    """POSIX seconds."""


class Bad(Struct, frozen=True):
    """A node that ends one gang after another."""

    node: str
    events: int
    """How often it did, what came at once counted once."""
    message: str


class Held(Struct, frozen=True):
    """Nodes that waiting jobs do not get."""

    unavailable: Mapping[str, str] = {}
    """Node -> why nobody gets it."""
    bad: tuple[str, ...] = ()
    """Those of them that are bad."""
    spares: Mapping[str, str] = {}
    """Free node that is kept -> its GPU type."""
    bereft: frozenset[str] = frozenset()
    """UIDs of the waiting jobs that may have the spares: a node, or a GPU, has ended their last gang."""
    deaf: frozenset[str] = frozenset()
    """UIDs of the jobs with a gang on a node that is not ready: it cannot be asked to save its state, so nobody moves
    or resizes it. It goes on, or its node is given up."""
    problems: tuple[Problem, ...] = ()

    def leave(self, job: str, admitted: tuple[str, ...] | None, takes: Iterable[str]) -> tuple[str, ...] | None:
        """Of the nodes that admit a job (None: all of `takes`), those that it may have."""
        kept = self.spares.keys() - self.unavailable.keys()
        if not kept or job in self.bereft:
            return admitted
        return tuple(name for name in (takes if admitted is None else admitted) if name not in kept)


class Failures:
    """Judges nodes by the failures in the statuses of all jobs.

    `share` is the largest part of the nodes that may be held back; what a node ends within `apart` seconds is one
    failure.
    """

    def __init__(self, settings: FailureSettings | None = None, *, share: float = 0.25, apart: float = 60.0) -> None:
        self._settings = settings or FailureSettings()
        self._share = share
        self._apart = apart

    def look(
        self,
        nodes: Mapping[str, NodeFacts],
        jobs: Collection[JobFacts],
        unfit: Mapping[str, str],
        reports: Look,
        requested: Callable[[str], int],
        now: float,
    ) -> Held:
        """Judge all nodes. Those that are `unfit` take no pods anyway; `requested` gives the GPUs of all pods that are
        on a node or on their way."""
        bad = self._bad(nodes, jobs, reports, now)
        acted_on = bad[: health.room(len(reports.unavailable), len(nodes), self._share)]
        out = {each.node: each.message for each in acted_on}
        problems = [_problem(nodes[each.node], each, acted_on=each.node in out) for each in bad]
        spares: dict[str, str] = {}
        bereft: frozenset[str] = frozenset()
        if self._settings.spares == "Auto":
            held = out.keys() | unfit.keys() | reports.unavailable.keys()
            left = {name: facts for name, facts in nodes.items() if name not in held}
            spares = dict(_spares(left, jobs, requested, self._settings))
            bereft = frozenset(facts.meta.uid for facts in jobs if is_bereft(facts))
        hidden = {} if bereft else dict.fromkeys(spares, KEPT)
        deaf = frozenset(facts.meta.uid for facts in jobs if _is_deaf(facts, nodes))
        return Held(hidden | out, tuple(out), spares, bereft, deaf, tuple(problems))

    def _bad(self, nodes: Mapping[str, NodeFacts], jobs: Iterable[JobFacts], reports: Look, now: float) -> list[Bad]:
        """Bad nodes, the worst first."""
        window, least = self._settings.bad_node_seconds, self._settings.bad_node_gangs
        by_node: dict[str, list[Blow]] = {}
        for blow in blows(jobs, now - window):
            told = reports.telemetry.get(blow.node)
            if blow.node in nodes and blow.time > max(nodes[blow.node].renewed, told.repaired if told else 0.0):
                by_node.setdefault(blow.node, []).append(blow)
        found = []
        for name, dealt in by_node.items():
            dealt.sort(key=lambda blow: blow.time)
            events = count_events([blow.time for blow in dealt], self._apart)
            if events >= least and len({blow.job for blow in dealt}) >= min(2, least):
                found.append(Bad(name, events, _in_words(dealt, dealt[-1].time + window)))
        return sorted(found, key=lambda bad: (-bad.events, bad.node))


def blows(jobs: Iterable[JobFacts], since: float) -> Iterator[Blow]:
    """Failures that nodes are to blame for."""
    for facts in jobs:
        for record in reversed(facts.status.failures):
            if record.time.timestamp() <= since:
                break
            if record.node and record.cause in BLAMES:
                said = f"{facts.meta.key} ({record.reason})"
                yield Blow(record.node, facts.meta.uid, said, record.time.timestamp())


def count_events(times: Iterable[float], apart: float) -> int:
    """How many things have happened, where whatever comes within `apart` seconds of the first is one; in order."""
    events, began = 0, -math.inf
    for time in times:
        if time - began >= apart:
            events, began = events + 1, time
    return events


def is_bereft(facts: JobFacts) -> bool:
    """Whether the job waits because a node or a GPU has ended its last gang."""
    status = facts.status
    if facts.finished or facts.suspended or status.plan or not status.failures:
        return False
    last = status.failures[-1]
    return last.cause in BLAMES and last.epoch == status.last_epoch


def _is_deaf(facts: JobFacts, nodes: Mapping[str, NodeFacts]) -> bool:
    plan = facts.status.plan if facts.holds_gpus else None
    return plan is not None and not all((node := nodes.get(each.name)) and node.ready for each in plan.nodes)


def spares_needed(busy: int, settings: FailureSettings) -> int:
    """The fewest spares so that more nodes of `busy` are out at a time with at most the probability `spare_risk`.

    >>> [spares_needed(busy, FailureSettings()) for busy in (8, 32, 128, 512, 2048)]
    [0, 1, 2, 5, 13]
    """
    expected = busy * settings.failures_per_node_day * settings.repair_seconds / DAY_SECONDS
    if not expected:
        return 0
    spares, within = 0, math.exp(-expected)
    while within < 1 - settings.spare_risk and spares < busy:
        spares += 1
        within += math.exp(spares * math.log(expected) - expected - math.lgamma(spares + 1))
    return spares


def _spares(
    nodes: Mapping[str, NodeFacts],
    jobs: Iterable[JobFacts],
    requested: Callable[[str], int],
    settings: FailureSettings,
) -> Iterator[tuple[str, str]]:
    """Free nodes to be kept, with their types; first those that stand in the smallest groups of free ones, for these
    are worth least to large gangs."""
    running = {node.name for facts in jobs if facts.holds_gpus and (p := facts.status.plan) for node in p.nodes}
    busy = Counter(spec.name for name, facts in nodes.items() if name in running and (spec := facts.gpu))
    free: dict[str, list[NodeFacts]] = {}
    for name, facts in nodes.items():
        if facts.gpu and facts.gpu.name in busy and not requested(name):
            free.setdefault(facts.gpu.name, []).append(facts)
    for gpu_type, there in sorted(free.items()):
        beside = Counter(facts.topology for facts in there)
        there.sort(key=lambda facts: (beside[facts.topology], facts.name))
        for facts in there[: spares_needed(busy[gpu_type], settings)]:
            yield facts.name, gpu_type


def _in_words(dealt: list[Blow], until: float) -> str:
    said = list(dict.fromkeys(blow.said for blow in dealt))
    more = f" and {len(said) - MAX_SAID} more" if len(said) > MAX_SAID else ""
    return (
        f"it has ended the gangs of {len({blow.job for blow in dealt})} jobs since {_clock(dealt[0].time)}: "
        f"{', '.join(said[:MAX_SAID])}{more}; it takes none until {_clock(until)}, or until it is annotated "
        f"{names.ANNOTATION_REPAIRED}=$(date -u +%FT%TZ)"
    )


def _clock(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%MZ")


def _problem(node: NodeFacts, bad: Bad, *, acted_on: bool) -> Problem:
    left = "" if acted_on else "; not acted on: too large a part of the nodes is held back already"
    return Problem("Node", "", node.name, node.uid, BAD_NODE, bad.message + left)
