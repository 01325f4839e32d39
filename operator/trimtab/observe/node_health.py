"""The health of every node, from round to round: the steps of `health` for all nodes, and one limit on those held back.

What is kept can be lost: a new controller goes on from the conditions of the objects. Healthy nodes cost nothing here;
whatever is done for all nodes is done for those with something to be said about.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from trimtab import names
from trimtab.observe import health
from trimtab.observe.health import HealthCondition, HealthState, NodeHealth, SickGpu
from trimtab.observe.kept import Each
from trimtab.observe.nodes import NodeFacts
from trimtab.observe.telemetry import NodeTelemetry
from trimtab.settings import TelemetrySettings

AHEAD_SECONDS: Final = 60.0
"""A device plugin may take a GPU away so long before its fault is reported; what it took earlier, it took for another
reason."""


class NodeHealthTracker:
    """Judgements by node. Times are those of one clock that never jumps; `wall` is POSIX time, for conditions alone."""

    def __init__(self, settings: TelemetrySettings, wall: Callable[[], float]) -> None:
        self._settings = settings
        self._wall = wall
        self._all: dict[str, NodeHealth] = {}
        self._notable: dict[str, NodeHealth] = {}
        """Those with a fault, or recovering from one."""
        self.unhealthy: set[str] = set()
        """Nodes with a fault that counts."""
        self._unchecked: set[str] = set()
        """Nodes held back for which the limit was not asked yet: a condition says so, or a device plugin has
        given back what it had taken away."""
        self._withdrawn: dict[str, int] = {}
        """GPUs that the node's device plugin has withdrawn."""
        self._lacking: Each[int] = Each()
        """The same, of the nodes of the last look."""
        self._moved: dict[str, tuple[float, int]] = {}
        """When that number moved lately for the first time, and what it was before."""
        self._others: dict[str, int] = {}
        """Of faulty nodes: how many of the withdrawn GPUs are so for other reasons than the faults."""
        self._acted_on: set[str] = set()
        """Nodes whose device plugin has withdrawn the broken GPUs: their others go on."""

    def __getitem__(self, name: str) -> NodeHealth:
        return self._all[name]

    def get(self, name: str) -> NodeHealth | None:
        """The node's health, if it was judged yet."""
        return self._all.get(name)

    def forget(self, name: str) -> None:
        """The node, or its reports, are gone."""
        for table in (self._all, self._notable, self._withdrawn, self._moved, self._others):
            table.pop(name, None)
        for members in (self.unhealthy, self._unchecked, self._acted_on):
            members.discard(name)

    def judge(self, told: NodeTelemetry, *, fresh: bool, withdrawn: int, now: float) -> None:
        """Look at a node once more."""
        name = told.name
        before = self._all.get(name)
        if before is None:
            age = self._wall() - told.judged.since if told.judged else 0.0
            before = health.remembered(told, age, now)
            if before.held:
                self._unchecked.add(name)
        self._note_withdrawn(name, withdrawn, now)
        after = health.step(before, told, fresh=fresh, now=now, recovery=self._settings.recovery_seconds)
        self._set(name, after)
        if not after.bad:
            self._others.pop(name, None)
        elif name in self._others:
            self._others[name] = min(self._others[name], withdrawn)
        else:
            self._others[name] = self._taken_before(told, after.bad, withdrawn, now)
        if 0 < len(after.bad) <= withdrawn - self._others.get(name, 0):
            self._acted_on.add(name)
        elif name in self._acted_on:
            self._acted_on.discard(name)
            self._unchecked.add(name)

    def admit(self, nodes: int, now: float) -> Sequence[str]:
        """Let reported faults count as far as the limit allows; those that a device plugin has acted on cost nothing.

        `nodes` is the number of GPU nodes. Returns those that stand otherwise now: to be judged once more.
        """
        known = self._notable
        waiting = {
            name: each
            for name, each in known.items()
            if each.state is HealthState.REPORTED or (each.held and name in self._unchecked)
        }
        self._unchecked.clear()
        if not waiting:
            return ()
        free = [name for name in waiting if name in self._acted_on]
        rest = {name: each for name, each in waiting.items() if name not in self._acted_on}
        held = sum(name not in waiting for name in self.held())
        counting = {*free, *health.admitted(rest, held, nodes, self._settings.excluded_share)}
        moved = []
        for name, each in waiting.items():
            if each.state is HealthState.REPORTED and name in counting:
                self._set(name, replace(each, state=HealthState.UNHEALTHY, since=now))
            elif each.held and name not in counting:
                state = HealthState.REPORTED if each.state is HealthState.UNHEALTHY and each.bad else HealthState.UNSEEN
                self._set(
                    name, replace(each, state=state, bad=each.bad if state is HealthState.REPORTED else (), since=now)
                )
            else:
                continue
            moved.append(name)
        return moved

    def restless(self, nodes: Mapping[str, NodeFacts], now: float) -> list[str]:
        """Nodes to be judged again though nothing was reported: time is up, or the node itself is another one."""
        recovered = now - self._settings.recovery_seconds
        some = self._lacking.of(nodes, lambda node: node.withdrawn or None).keys() | self._withdrawn.keys()
        withdrawn = {n for n in some if n in nodes and nodes[n].withdrawn != self._withdrawn.get(n, 0)}
        for name in withdrawn:
            self._note_withdrawn(name, nodes[name].withdrawn, now)
        return [
            name
            for name, each in self._notable.items()
            if name in withdrawn
            or name not in nodes
            or (each.state is HealthState.RECOVERING and each.since <= recovered)
        ]

    def _note_withdrawn(self, name: str, withdrawn: int, now: float) -> None:
        before = self._withdrawn.get(name, 0)
        if withdrawn != before:
            if now - self._moved.get(name, (-math.inf, 0))[0] > AHEAD_SECONDS:
                self._moved[name] = now, before
            self._withdrawn[name] = withdrawn

    def _taken_before(self, told: NodeTelemetry, bad: Sequence[SickGpu], withdrawn: int, now: float) -> int:
        """How many GPUs had been withdrawn when a fault came up that was seen just now."""
        if told.judged and told.judged.status == "False":
            return 0 if told.judged.contained else withdrawn
        if any(each.reason == names.REASON_ROW_REMAP_FAILED for each in bad):
            return withdrawn  # device plugins hear of XIDs and lost GPUs; this they can at most be told later
        since, before = self._moved.get(told.name, (-math.inf, 0))
        return min(before, withdrawn) if now - since <= AHEAD_SECONDS else withdrawn

    def held(self) -> Iterator[str]:
        """Nodes that take no pods. Where a device plugin has withdrawn the broken GPUs, the node's others go on."""
        return (name for name, each in self._notable.items() if each.held and name not in self._acted_on)

    def is_held(self, name: str) -> bool:
        """Whether this node is one of them."""
        known = self._notable.get(name)
        return known is not None and known.held and name not in self._acted_on

    def reported(self) -> Iterator[str]:
        """Nodes with a fault that does not count, because as many are held back as may be."""
        return (name for name, each in self._notable.items() if each.state is HealthState.REPORTED)

    def faulty(self) -> Iterator[tuple[str, str]]:
        """(node, reason) of every broken GPU."""
        for name, known in self._notable.items():
            if known.state in (HealthState.UNHEALTHY, HealthState.REPORTED):
                yield from ((name, bad.reason) for bad in known.bad)

    def must_leave(
        self,
        told: NodeTelemetry,
        had: Mapping[str, tuple[str, ...]],
        pods: Collection[str],
        planned: float,
        now: float,
        *,
        grace: bool = True,
    ) -> str:
        """Why a gang with these pods on the node must be given up, once the grace is over; empty if it need not.

        Where the kubelet says who has the broken GPU, only that gang; elsewhere all that were planned (POSIX time)
        before, for those that came later were given other GPUs by the device plugin. `had` are the pods that a GPU
        without any had last (by its UUID): the kubelet forgets a pod as soon as it has died of the fault.
        """
        if told.name not in self.unhealthy:
            return ""
        known = self._notable[told.name]
        if grace and now - known.since < self._settings.grace_seconds:
            return ""
        gpus = {gpu.uuid: gpu for gpu in told.gpus}
        earlier = planned <= self.since(told.name, now)
        for bad in known.bad:
            gpu = gpus.get(bad.uuid)
            if gpu is not None and gpu.pods is not None:
                on_it = any(pod in (gpu.pods or had.get(bad.uuid, ())) for pod in pods)
            else:
                on_it = earlier or told.name not in self._acted_on
            if on_it:
                return f"node {told.name}: {bad}"
        return ""

    def verdict(self, told: NodeTelemetry) -> HealthCondition | None:
        """What the node's condition should say; None before the first look."""
        known = self._all.get(told.name)
        if known is None:
            return None
        withdrawn = told.name in self._acted_on
        return health.verdict(known, told, self._settings.recovery_seconds, withdrawn=withdrawn)

    def since(self, name: str, now: float) -> float:
        """POSIX time since when it stands so."""
        return self._wall() - (now - self._all[name].since)

    def due(self) -> Iterator[float]:
        """When graces and recoveries end."""
        for known in self._notable.values():
            if known.state is HealthState.UNHEALTHY:
                yield known.since + self._settings.grace_seconds
            elif known.state is HealthState.RECOVERING:
                yield known.since + self._settings.recovery_seconds

    def _set(self, name: str, known: NodeHealth) -> None:
        self._all[name] = known
        if known.held or known.state is HealthState.REPORTED:
            self._notable[name] = known
        else:
            self._notable.pop(name, None)
        if known.state is HealthState.UNHEALTHY:
            self.unhealthy.add(name)
        else:
            self.unhealthy.discard(name)
