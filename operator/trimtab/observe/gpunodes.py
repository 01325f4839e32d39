"""All GPUNodes: what was reported, when it arrived, and what a round makes of it.

A report is fresh for as long as its agent's next one is not overdue, by when it arrived here; the agent's clock is
never asked. Between two rounds only arrivals are noted, at 0.1 ms each; a round looks at the nodes whose report says
something else than before, at those whose time has come, and at no other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set

from msgspec import Struct

from trimtab import names
from trimtab.kube.objects import GpuNodeObject
from trimtab.observe import health, telemetry
from trimtab.observe.health import HealthCondition
from trimtab.observe.node_health import NodeHealthTracker
from trimtab.observe.nodes import NodeFacts
from trimtab.observe.problems import Problem
from trimtab.observe.telemetry import GpuFacts, HealthyCondition, NodeTelemetry
from trimtab.observe.unmanaged_load import Foreign
from trimtab.settings import TelemetrySettings
from trimtab_policy import catalog
from trimtab_policy.types import Readings

IMPLAUSIBLE = "ImplausibleReadings"


class _AgentReport(Struct):
    """One agent's last report."""

    told: NodeTelemetry
    arrived: float
    """On our clock."""
    fresh: bool
    readings: Readings
    news: tuple[object, ...]
    """What a round must hear of, if it is another one than before."""
    had: Mapping[str, tuple[str, ...]] = {}
    """UUID of a GPU that no pod has -> pods that had it last."""


class Look(Struct, frozen=True):
    """What a round makes of all reports."""

    telemetry: Mapping[str, NodeTelemetry] = {}
    """Node -> its fresh readings."""
    readings: Mapping[str, Readings] = {}
    """The same in short, as policies see it."""
    unavailable: Mapping[str, str] = {}
    """Node -> why it takes no pods, on its agent's word."""
    foreign: Mapping[str, int] = {}
    """Node -> GPUs that count as taken though no pod asked for them."""
    faulty: tuple[tuple[str, str], ...] = ()
    """(node, reason) of every GPU with a fault."""
    stale: int = 0
    """Nodes whose readings are too old."""
    problems: tuple[Problem, ...] = ()


class GpuNodes:
    """Judges nodes by what their agents report. `clock` never jumps; `wall` is POSIX time, for conditions alone."""

    def __init__(
        self,
        settings: TelemetrySettings,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._periods = settings.stale_periods
        self._share = settings.foreign_share
        self._clock = clock
        self._wall = wall
        self._entries: dict[str, _AgentReport] = {}
        self._health = NodeHealthTracker(settings, wall)
        self._foreign = Foreign(settings)
        self._owners: dict[str, tuple[str, ...]] = {}
        """UUID of a GPU -> nodes that report it: one, unless an agent is wrong."""
        self._dirty: set[str] = set()
        """Nodes to be judged anew in the next round."""
        self._nodeless: set[str] = set()
        """Reports of nodes that are not there (yet), or have no GPUs."""
        self._untold: set[str] = set()
        """Nodes whose condition may have to be written."""
        self._stale: set[str] = set()
        self._problems: dict[str, tuple[Problem, ...]] = {}
        self._fresh: dict[str, NodeTelemetry] = {}
        self._readings: dict[str, Readings] = {}
        self._overdue_at = 0.0
        """No report becomes stale before."""

    # --- as reports arrive ------------------------------------------------------------------------------------------
    def take(self, obj: GpuNodeObject) -> bool:
        """A GPUNode was created or changed; says whether a round should hear of it."""
        told = telemetry.read_telemetry(obj)
        before = self._entries.get(told.name)
        if before is not None and before.told.uid != told.uid:
            self.forget(told.name)
            before = None
        if before is not None and _same_report(before.told, told):
            return self._amended(before, told)
        self._own(told.name, before.told.gpus if before else (), told.gpus)
        self._foreign.take(told.name, told.gpus)
        entry = self._entries[told.name] = _AgentReport(
            told=told,
            arrived=self._clock(),
            fresh=before is not None or not _was_stale(told),
            readings=told.means(self._wall()),
            news=self._news(told),
            had=_had(before, told),
        )
        self._note(entry)
        if before is not None and before.fresh and before.news == entry.news:
            return False
        self._dirty.add(told.name)
        return True

    def forget(self, name: str) -> None:
        """The GPUNode was deleted: its node is judged by nothing any more."""
        entry = self._entries.pop(name, None)
        self._own(name, entry.told.gpus if entry else (), ())
        self._health.forget(name)
        self._foreign.forget(name)
        for table in (self._problems, self._fresh, self._readings):
            table.pop(name, None)
        for members in (self._dirty, self._nodeless, self._untold, self._stale):
            members.discard(name)

    def _amended(self, entry: _AgentReport, told: NodeTelemetry) -> bool:
        """The same report: what is new is a condition, or the annotation."""
        mended = told.repaired != entry.told.repaired
        entry.told = told
        self._note(entry)
        self._untold.add(told.name)
        if mended:
            entry.news = self._news(told)
            self._dirty.add(told.name)
        return mended

    def _note(self, entry: _AgentReport) -> None:
        name = entry.told.name
        if entry.fresh and entry.told.gpus:
            self._fresh[name], self._readings[name] = entry.told, entry.readings
        else:
            self._fresh.pop(name, None)
            self._readings.pop(name, None)
        if entry.fresh:
            self._stale.discard(name)
        else:
            self._stale.add(name)

    def _own(self, name: str, before: Iterable[GpuFacts], after: Iterable[GpuFacts]) -> None:
        """Note whose GPUs these are. No GPU is in two machines, and nobody knows which of two agents is wrong: what
        either says of its own node counts, and both are told of."""
        gone, come = {gpu.uuid for gpu in before}, {gpu.uuid for gpu in after}
        for uuid in gone - come:
            others = self._owners[uuid] = tuple(each for each in self._owners[uuid] if each != name)
            self._dirty.update(others)
            if not others:
                del self._owners[uuid]
        for uuid in come - gone:
            owners = self._owners[uuid] = (*self._owners.get(uuid, ()), name)
            if len(owners) > 1:
                self._dirty.update(owners)

    def _shared(self, told: NodeTelemetry) -> list[str]:
        return [
            f"GPU {gpu.index} ({gpu.uuid}) by node {others[0]}"
            for gpu in told.gpus
            if (others := [each for each in self._owners[gpu.uuid] if each != told.name])
        ]

    def _news(self, told: NodeTelemetry) -> tuple[object, ...]:
        """Everything but the readings themselves, which change all the time."""
        faults = any(gpu.faults or gpu.row_remap_failed for gpu in told.gpus)
        bad, remarks = (health.bad_gpus(told), health.remarks(told)) if faults else ((), ())
        load = self._foreign.load(told.name), self._foreign.proven(told.name)
        return bad, remarks, load, len(told.gpus), told.error, bool(told.implausible), told.boot_id

    # --- as rounds look ---------------------------------------------------------------------------------------------
    def look(self, nodes: Mapping[str, NodeFacts], requested: Callable[[str], int]) -> Look:
        """Judge all nodes by now. `requested` gives the GPUs of all pods that are on a node or on their way."""
        now = self._clock()
        if now >= self._overdue_at:
            self._find_overdue(now)
        arrived = {name for name in self._nodeless if name in nodes}
        for name in self._dirty.union(arrived, self._health.restless(nodes, now)):
            self._judge(name, nodes.get(name), now)
        self._dirty.clear()
        for name in self._health.admit(len(nodes), now):
            self._judge(name, nodes.get(name), now)
        foreign = self._follow_foreign(nodes, requested, now)
        return Look(
            telemetry=dict(self._fresh),
            readings=dict(self._readings),
            unavailable={name: self.unavailable(name) for name in self._health.held()},
            foreign=foreign,
            faulty=tuple(self._health.faulty()),
            stale=len(self._stale),
            problems=tuple(self._all_problems(foreign)),
        )

    def _follow_foreign(
        self, nodes: Mapping[str, NodeFacts], requested: Callable[[str], int], now: float
    ) -> Mapping[str, int]:
        """Foreign load takes single GPUs, and has a limit of its own: it never switches off what faults do."""
        allowance = health.allowance(len(self._foreign.taken().keys() & nodes.keys()), len(nodes), self._share)

        def usable(name: str) -> bool:
            node = nodes.get(name)
            return name in self._fresh and node is not None and node.gpu is not None

        return self._foreign.look(usable, requested, allowance, now)

    def _find_overdue(self, now: float) -> None:
        """Reports that are too old now; when to look for the next ones."""
        soonest = now + self._periods * telemetry.DEFAULT_PERIOD
        for name, entry in self._entries.items():
            if not entry.fresh:
                continue
            due = entry.arrived + self._periods * entry.told.period
            if now >= due:
                entry.fresh = False
                self._note(entry)
                self._dirty.add(name)
            else:
                soonest = min(soonest, due)
        self._overdue_at = soonest

    def _judge(self, name: str, node: NodeFacts | None, now: float) -> None:
        entry = self._entries[name]
        before = self._problems.pop(name, ())
        if node is None:
            self._health.forget(name)
            self._nodeless.add(name)
            return
        self._nodeless.discard(name)
        self._health.judge(entry.told, fresh=entry.fresh, withdrawn=node.withdrawn, now=now)
        self._untold.add(name)
        if problems := tuple(_problems(entry, node, self._shared(entry.told))):
            self._problems[name] = tuple(_as_told(each, before) for each in problems)

    def _all_problems(self, foreign: Mapping[str, int]) -> Iterator[Problem]:
        for problems in self._problems.values():
            yield from problems
        for table, what in (
            (foreign, "they count as taken"),
            (self._foreign.beyond, "not acted on, too many nodes have such load already (telemetry.foreign_share)"),
        ):
            for name, gpus in table.items():
                said = f"{gpus} GPUs are busy with processes that no pod asked for: {what}"
                yield _problem(self._entries[name], "ForeignLoad", said)
        for name in self._health.reported():
            if verdict := self._health.verdict(self._entries[name].told):
                yield _problem(self._entries[name], verdict.reason, verdict.message)

    # --- between rounds ---------------------------------------------------------------------------------------------
    def unavailable(self, name: str) -> str:
        """Why the node takes no pods on its agent's word, as of the last round; empty where it does."""
        if not self._health.is_held(name):
            return ""
        said = self._health.verdict(self._entries[name].told)
        return f"its GPUs are unhealthy: {said.message}" if said else ""

    def follows(self, name: str) -> bool:
        """Whether the node's agent reports."""
        return name in self._fresh

    @property
    def unhealthy(self) -> Set[str]:
        """Nodes that gangs may have to leave."""
        return self._health.unhealthy

    def must_leave(self, name: str, pods: Collection[str], planned: float, *, grace: bool = True) -> str:
        """Why a gang with these pods (`namespace/name`) on the node must be given up; empty if it need not.

        Without `grace`: why it will have to be, if nothing changes.
        """
        entry = self._entries.get(name)
        if entry is None:
            return ""
        return self._health.must_leave(entry.told, entry.had, pods, planned, self._clock(), grace=grace)

    def next_deadline(self) -> float:
        """Seconds until something is to be judged anew though nothing was reported."""
        if not self._entries:
            return float("inf")
        now = self._clock()
        due = (self._overdue_at, *self._health.due(), *self._foreign.due())
        return min((at - now for at in due if at > now), default=float("inf"))

    def untold(self) -> list[tuple[NodeTelemetry, HealthCondition, float]]:
        """Objects whose condition says something else than we do, what it should say, and since when (POSIX)."""
        found = []
        for name in sorted(self._untold):
            told = self._entries[name].told
            said, judged = self._health.verdict(told), told.judged
            if said and (judged is None or said != _verdict_of(judged)):
                same = judged is not None and judged.status == said.status
                found.append((told, said, judged.since if judged and same else self._since(name)))
        self._untold.clear()
        return found

    def _since(self, name: str) -> float:
        return self._health.since(name, self._clock())


def _verdict_of(judged: HealthyCondition) -> HealthCondition:
    return HealthCondition(judged.status, judged.reason, judged.message, judged.contained)


def _same_report(before: NodeTelemetry, after: NodeTelemetry) -> bool:
    """Whether it is the same one, with another condition or annotation."""
    return before.observed == after.observed and before.gpus == after.gpus and before.error == after.error


def _was_stale(told: NodeTelemetry) -> bool:
    """At first sight nobody knows how old a report is: it is fresh unless it was stale to a controller before."""
    return told.judged is not None and told.judged.reason == names.REASON_STALE_READINGS


def _had(before: _AgentReport | None, told: NodeTelemetry) -> Mapping[str, tuple[str, ...]]:
    """Which pods had those GPUs that no pod has now: one that dies of a fault is gone before anybody can look."""
    if before is None:
        return {}
    earlier = {**before.had, **{gpu.uuid: gpu.pods for gpu in before.told.gpus if gpu.pods}}
    return {gpu.uuid: pods for gpu in told.gpus if not gpu.pods and (pods := earlier.get(gpu.uuid))}


def _as_told(problem: Problem, before: Iterable[Problem]) -> Problem:
    """In the words of the last time: nonsense that is another one in every report is to be told of once."""
    if problem.reason != IMPLAUSIBLE:
        return problem
    return next((told for told in before if told.reason == IMPLAUSIBLE), problem)


def _problem(entry: _AgentReport, reason: str, message: str) -> Problem:
    return Problem(names.GPUNODE_KIND, "", entry.told.name, entry.told.uid, reason, message)


def _problems(entry: _AgentReport, node: NodeFacts, shared: Sequence[str]) -> Iterator[Problem]:
    told = entry.told
    if not entry.fresh:
        said = "the agent has stopped reporting: its readings count no more"
        yield _problem(entry, names.REASON_STALE_READINGS, said)
        return
    if told.error:
        yield _problem(entry, names.REASON_NO_READINGS, f"the agent cannot read the GPUs: {told.error}")
    if told.implausible:
        yield _problem(entry, IMPLAUSIBLE, f"left out: {'; '.join(told.implausible)}")
    if shared:
        said = f"the same GPUs are reported twice, one agent is wrong: {'; '.join(shared[: telemetry.MAX_SAID])}"
        yield _problem(entry, "DuplicateGpus", said)
    for remark in health.remarks(told):
        yield _problem(entry, "GpuFault", remark)
    whole = sum(not gpu.partitioned for gpu in told.gpus)
    if whole and node.gpu and whole != node.gpus + node.withdrawn:
        said = f"the agent sees {whole} GPUs, the node's capacity is {node.gpus + node.withdrawn}"
        yield _problem(entry, "GpuMismatch", said)
    for product in sorted({gpu.product for gpu in told.gpus if gpu.product}):
        spec = catalog.by_product(product)
        if spec and node.gpu and spec.name != node.gpu.name:
            yield _problem(entry, "GpuMismatch", f"the agent sees {product}, the node's labels say {node.gpu.name}")
