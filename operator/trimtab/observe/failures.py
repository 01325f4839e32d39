"""Which nodes are kept from waiting jobs because of failures: those that end one gang after another, and warm spares.

Bad nodes. Every job keeps its last failures in its status, with the node that was to blame. Read together they tell of
nodes that fail again and again though each single failure has an excuse. Nothing is remembered here: a new controller
reads the same. A node is suspect when it has ended gangs of different jobs, at different times, within a window: one
job that fails wherever it goes says nothing of nodes, and a restart that ends two gangs at once is one failure, not
two.

What a pod died of is told by words that its author may have put there, so nobody condemns a node for others. A suspect
node is bad, takes no new gangs and is told as a problem, when one of these agrees: gangs of a second namespace, the
node itself (not ready), its agent (a broken GPU, or no readings), or the cluster, which has given it up under a gang
before. A gang that has never run there is no witness once one of another namespace has. Otherwise the node is kept from
the namespace alone whose gangs it has ended: who says so is believed for himself. Where all jobs are of one namespace,
there is nobody to be misled.

A gang that runs on such a node stays. The node comes back when the last failure is a window ago, when somebody
annotates it (or its GPUNode) with `trimtab.dev/repaired`, or as a new object. At most a part of all nodes is held back
from anybody, agents' verdicts included: where most nodes are bad, something else is.

Warm spares. Nodes fail independently, at a known rate, and are away for a known time: how many are out at once is
Poisson distributed. So many free nodes are kept for gangs that have just lost one that a further one is needed with a
small probability only ("Robust LLM Training Infrastructure at ByteDance", SOSP 2025, sizes warm standbys alike). For
small clusters that is none.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain

from msgspec import Struct

from trimtab import names
from trimtab.api import conditions
from trimtab.api.history import FailureCause
from trimtab.observe import health
from trimtab.observe.gpunodes import Look
from trimtab.observe.jobs import JobFacts
from trimtab.observe.kept import Each, Kept
from trimtab.observe.nodes import NodeFacts
from trimtab.observe.problems import Problem
from trimtab.settings import FailureSettings

BLAMES = (FailureCause.NODE, FailureCause.GPU)
BAD_NODE, SUSPECT_NODE = "BadNode", "SuspectNode"
NODE_LOST = "NodeLost"
"""Reason of a failure that no pod tells of: the node was not ready, or its agent had it left."""
KEPT = "kept as a warm spare for gangs that lose a node"
SUSPECTED = (
    "it has ended gangs of several jobs of namespace {}, as their pods say and nobody else does: it is kept from that "
    "namespace alone"
)
"""Always the same words: one tenant's pods make one event of it, and not one with every end of theirs."""
MAX_SAID = 4
DAY_SECONDS = 86_400.0


class Blow(Struct, frozen=True):
    """A gang that a node has ended."""

    node: str
    job: str
    """UID."""
    namespace: str
    said: str
    """The job and the reason, in words."""
    time: float
    """POSIX seconds."""
    ran: bool = False
    """Whether the gang had run as a whole before."""
    seen: bool = False
    """Whether the cluster itself has seen that, and not only a pod's words say so."""


class FailingNode(Struct, frozen=True):
    """A node that ends one gang after another."""

    node: str
    events: int
    """How often it did, what came at once counted once."""
    message: str
    namespace: str = ""
    """The only one that says so; empty where it is so for everybody."""


class Held(Struct, frozen=True):
    """Nodes that waiting jobs do not get."""

    unavailable: Mapping[str, str] = {}
    """Node -> why nobody gets it."""
    bad: tuple[str, ...] = ()
    """Those of them that are bad."""
    suspect: Mapping[str, frozenset[str]] = {}
    """Namespace -> nodes that only its own gangs speak against, and that its jobs do not get."""
    spares: Mapping[str, str] = {}
    """Free node that is kept -> its GPU type."""
    bereft: frozenset[str] = frozenset()
    """UIDs of the waiting jobs that may have the spares: a node, or a GPU, has ended their last gang."""
    deaf: frozenset[str] = frozenset()
    """UIDs of the jobs with a gang on a node that is not ready: it cannot be asked to save its state, so nobody moves
    or resizes it. It goes on, or its node is given up."""
    problems: tuple[Problem, ...] = ()
    until: float = math.inf
    """POSIX time from which other failures count though nothing has happened."""

    def leave(
        self, job: str, namespace: str, admitted: tuple[str, ...] | None, takes: Iterable[str]
    ) -> tuple[str, ...] | None:
        """Of the nodes that admit a job (None: all of `takes`), those that it may have."""
        spares = frozenset() if job in self.bereft else self.spares.keys() - self.unavailable.keys()
        kept = spares | self.suspect.get(namespace, frozenset())
        if not kept:
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
        self._failed: Each[JobFacts] = Each()
        self._plans: Each[tuple[str, ...]] = Each()
        self._ready: Kept[frozenset[str]] = Kept()
        self._deaf: Kept[frozenset[str]] = Kept()

    def look(
        self,
        nodes: Mapping[str, NodeFacts],
        jobs: Mapping[str, JobFacts],
        unfit: Mapping[str, str],
        reports: Look,
        requested: Callable[[str], int],
        now: float,
    ) -> Held:
        """Judge all nodes, by the jobs by UID. Those that are `unfit` take no pods anyway; `requested` gives the GPUs
        of all pods that are on a node or on their way."""
        found, until = self._bad(nodes, jobs, reports, now)
        acted_on = self._acted_on(found, len(reports.unavailable), len(nodes))
        out = {each.node: each.message for each in acted_on if not each.namespace}
        suspect: dict[str, frozenset[str]] = {}
        for each in acted_on:
            if each.namespace:
                suspect[each.namespace] = suspect.get(each.namespace, frozenset()) | {each.node}
        problems = [_problem(nodes[each.node], each, acted_on=each in acted_on) for each in found]
        spares: dict[str, str] = {}
        bereft: frozenset[str] = frozenset()
        if self._settings.spares == "Auto":
            held = out.keys() | unfit.keys() | reports.unavailable.keys()
            left = {name: facts for name, facts in nodes.items() if name not in held}
            spares = dict(_spares(left, jobs.values(), requested, self._settings))
            bereft = frozenset(uid for uid, facts in jobs.items() if is_bereft(facts))
        hidden = {} if bereft else dict.fromkeys(spares, KEPT)
        ready = self._ready.of((nodes,), lambda: frozenset(name for name, facts in nodes.items() if facts.ready))
        plans = self._plans.of(jobs, lambda facts: facts.gang_nodes)
        deaf = self._deaf.of((ready, plans), lambda: _deaf(ready, plans))
        return Held(hidden | out, tuple(out), suspect, spares, bereft, deaf, tuple(problems), until)

    def _acted_on(self, found: Iterable[FailingNode], held: int, nodes: int) -> list[FailingNode]:
        """As many as may be held back: from everybody, and besides from each namespace; the worst first."""
        taken: Counter[str] = Counter()
        chosen = []
        for each in sorted(found, key=lambda bad: (bool(bad.namespace), -bad.events, bad.node)):
            used = held + taken[""] + (taken[each.namespace] if each.namespace else 0)
            if health.allowance(used, nodes, self._share):
                taken[each.namespace] += 1
                chosen.append(each)
        return chosen

    def _bad(
        self, nodes: Mapping[str, NodeFacts], jobs: Mapping[str, JobFacts], reports: Look, now: float
    ) -> tuple[list[FailingNode], float]:
        """Nodes that are bad for everybody or for one namespace, the worst first; and until when that is so if nothing
        happens, as a POSIX time."""
        by_node: dict[str, list[Blow]] = {}
        window = self._settings.bad_node_seconds
        failed = self._failed.of(jobs, lambda facts: facts if facts.status.failures else None).values()
        over = (record.time.timestamp() + window for facts in failed for record in facts.status.failures)
        until = min((moment for moment in over if moment > now), default=math.inf)
        for blow in blows(failed, now - window):
            told = reports.telemetry.get(blow.node)
            if blow.node in nodes and blow.time > max(nodes[blow.node].renewed, told.repaired if told else 0.0):
                by_node.setdefault(blow.node, []).append(blow)
        if not by_node:
            return [], until
        runs = _running(jobs.values(), by_node)
        concerned = (facts for facts in jobs.values() if not facts.finished or facts.status.failures)
        alone = len({facts.meta.namespace for facts in concerned}) < 2
        agents = _agents_agree(reports)
        found: list[FailingNode] = []
        for name, dealt in by_node.items():
            dealt.sort(key=lambda blow: blow.time)
            agreed = alone or name in agents or not nodes[name].ready
            found += self._verdicts(name, dealt, runs.get(name, ()), agreed=agreed)
        return sorted(found, key=lambda bad: (bool(bad.namespace), -bad.events, bad.node)), until

    def _verdicts(
        self, node: str, dealt: list[Blow], runs: Collection[tuple[str, float]], *, agreed: bool
    ) -> Iterator[FailingNode]:
        """What is thought of a node, for everybody or for single namespaces."""
        believed = [blow for blow in dealt if not _refuted(blow, dealt, runs)]
        voices = {"" if blow.seen else blow.namespace for blow in believed}
        if agreed and self._enough(dealt):
            yield self._as_bad(node, dealt)
        elif self._enough(believed) and (len(voices) > 1 or voices == {""}):
            yield self._as_bad(node, believed)
        else:
            for namespace in dict.fromkeys(blow.namespace for blow in dealt):
                if self._enough(own := [blow for blow in dealt if blow.namespace == namespace]):
                    yield self._as_bad(node, own, namespace)

    def _enough(self, dealt: Sequence[Blow]) -> bool:
        least = self._settings.bad_node_gangs
        events = count_events([blow.time for blow in dealt], self._apart)
        return events >= least and len({blow.job for blow in dealt}) >= min(2, least)

    def _as_bad(self, node: str, dealt: list[Blow], namespace: str = "") -> FailingNode:
        events, until = count_events([blow.time for blow in dealt], self._apart), dealt[-1].time
        said = SUSPECTED.format(namespace) if namespace else _in_words(dealt, until + self._settings.bad_node_seconds)
        return FailingNode(node, events, said, namespace)


def _deaf(ready: frozenset[str], plans: Mapping[str, Collection[str]]) -> frozenset[str]:
    """UIDs of the jobs with a gang on a node that is not ready, or gone."""
    if ready.issuperset(chain.from_iterable(plans.values())):
        return frozenset()
    return frozenset(uid for uid, named in plans.items() if not ready.issuperset(named))


def _running(jobs: Iterable[JobFacts], nodes: Collection[str]) -> dict[str, list[tuple[str, float]]]:
    """Node -> namespace of each gang that runs there, and since when, of the nodes that are asked for."""
    found: dict[str, list[tuple[str, float]]] = {}
    for facts in jobs:
        plan = facts.status.plan if facts.holds_gpus else None
        ready = conditions.find(facts.status.conditions, names.PODS_READY) if plan else None
        if plan and ready and ready.status == "True":
            for node in plan.nodes:
                if node.name in nodes:
                    since = ready.last_transition_time.timestamp()
                    found.setdefault(node.name, []).append((facts.meta.namespace, since))
    return found


def _refuted(blow: Blow, dealt: Iterable[Blow], runs: Iterable[tuple[str, float]]) -> bool:
    """Whether a gang of another namespace has run since where this one did not start."""
    if blow.ran or blow.seen:
        return False
    later = any(each.ran and each.namespace != blow.namespace and each.time > blow.time for each in dealt)
    return later or any(namespace != blow.namespace and since > blow.time for namespace, since in runs)


def _agents_agree(reports: Look) -> set[str]:
    """Nodes of which their agents say as well that something is wrong now; what programs do to GPUs is not."""
    blind = {problem.name for problem in reports.problems if problem.reason == names.REASON_NO_READINGS}
    return blind | {name for name, told in reports.telemetry.items() if health.bad_gpus(told)}


def blows(jobs: Iterable[JobFacts], since: float) -> Iterator[Blow]:
    """Failures that nodes are to blame for."""
    for facts in jobs:
        for record in reversed(facts.status.failures):
            if record.time.timestamp() <= since:
                break
            if record.node and record.cause in BLAMES:
                said = f"{facts.meta.key} ({record.reason})"
                seen = record.cause is FailureCause.GPU or record.reason == NODE_LOST
                time = record.time.timestamp()
                yield Blow(record.node, facts.meta.uid, facts.meta.namespace, said, time, record.running, seen)


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


def _problem(node: NodeFacts, bad: FailingNode, *, acted_on: bool) -> Problem:
    left = "" if acted_on else "; not acted on: too large a part of the nodes is held back already"
    reason = SUSPECT_NODE if bad.namespace else BAD_NODE
    return Problem("Node", "", node.name, node.uid, reason, bad.message + left)
