"""Which nodes are lost, which are only late, and a circuit breaker: where half of all are lost at once, no gang is
evicted for that.

A node is lost when it has been NotReady for a grace, or its object is gone for a moment. Its gangs are then planned
anew. But when a large part of the nodes is lost at once, the network or the control plane has failed more likely than
the machines: what runs there still runs, and would not all fit elsewhere. So no gang is evicted until most are back;
then all that are still lost have their grace anew (as in Kubernetes' node-lifecycle-controller).

A node that has fallen silent (Ready is Unknown: its heartbeats came late, no kubelet says that anything is wrong) is
not lost before its grace is over, neither for a gang that runs there nor for one that is just starting. When a control
plane is slow the heartbeats of many nodes are late: the more nodes have been silent lately, the longer is the grace of
those that are, up to `MOST_GRACE` times where the brake would hold. A kubelet's own word, False, has no such effect.

It looks at the nodes that count: those that are ready, those that plans name, and those that have been lost for
less than an hour. Machines that were switched off long ago, and without gangs, must not hold it for ever.

It keeps what may still run, and nothing else. Pods that have failed, or are gone (the garbage collector deletes those
of a node whose object was deleted), end their gang as ever; and a gang that is not bound as a whole leaves nodes that
take no pods.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import chain

import structlog
from msgspec import Struct

from trimtab.observe.jobs import JobFacts
from trimtab.observe.kept import Each, Kept
from trimtab.observe.nodes import NodeFacts
from trimtab.settings import FailureSettings, GangSettings
from trimtab.telemetry import metrics

GONE_SECONDS = 2.0
"""Of a node whose object is gone: so that many that are deleted one after the other count together."""
LONG_SECONDS = 3600.0
"""A node without gangs that is NotReady for so long counts no more."""
LATELY_SECONDS = 600.0
"""A silence counts for so long after its end: nodes that flicker are silent by turns."""
MOST_GRACE = 10.0
"""Times the setting."""
GONE = "deleted, or no longer a GPU node"

log = structlog.get_logger(__name__)


class _Trouble(Struct, frozen=True):
    """Nodes that are not as they should be."""

    unready: frozenset[str]
    silent: frozenset[str]


class MassFailureGuard:
    """Remembers since when each node is down, by the local monotonic clock; all else is what nodes and jobs say now."""

    def __init__(
        self,
        gang: GangSettings,
        failures: FailureSettings,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._grace = gang.node_grace_seconds
        self._failures = failures
        self._clock = clock
        self._wall = wall
        self._since: dict[str, float] = {}
        self._gone: frozenset[str] = frozenset()
        self._silent: dict[str, float] = {}
        """Nodes that were silent lately -> when they were last seen so."""
        self._patience = 1.0
        """How many times longer the grace of silent nodes is just now."""
        self._figures = ""
        """Of a mass failure; empty where there is none."""
        self._plans: Each[tuple[str, ...]] = Each()
        self._planned: Kept[frozenset[str]] = Kept()
        self._missing: Kept[frozenset[str]] = Kept()
        self._trouble: Kept[_Trouble] = Kept()

    def watch(self, nodes: Mapping[str, NodeFacts], jobs: Mapping[str, JobFacts]) -> float:
        """Note which nodes are down, all being told by name and jobs by UID; return the seconds until the first of them
        has used up its grace."""
        now = self._clock()
        plans = self._plans.of(jobs, lambda facts: facts.gang_nodes)
        planned = self._planned.of((plans,), lambda: frozenset(chain.from_iterable(plans.values())))
        self._gone = self._missing.of((planned, nodes), lambda: planned.difference(nodes))
        trouble = self._trouble.of((nodes,), lambda: _in_trouble(nodes))
        down = trouble.unready | self._gone
        self._since = {name: self._since.get(name, now) for name in down}
        self._wait_for_late(nodes, trouble.silent, now)
        self._judge(nodes, planned, down, now)
        ends = (self._since[name] + self._grace_of(name, nodes.get(name)) for name in down)
        left = [end - now for end in ends if end > now]
        return min(left, default=float("inf"))

    @property
    def holds(self) -> bool:
        """Whether so many nodes are lost that it is not they who have failed."""
        return bool(self._figures)

    def lost(self, name: str, node: NodeFacts | None) -> str:
        """Why pods that run on the node must be given up; empty when they need not."""
        if self._figures or (node and node.ready) or not self._overdue(name, node):
            return ""
        return f"NotReady for {self._grace_of(name, node):g} s" if node else GONE

    def late(self, name: str, node: NodeFacts) -> bool:
        """Whether a gang that is starting waits for the node: it was ready a moment ago, and only its heartbeats are
        missing."""
        return node.silent and not self._overdue(name, node)

    def spared(self, plan: Mapping[str, NodeFacts | None]) -> str:
        """Why a gang on these nodes is not given up though some are lost; empty where none is, or it would be."""
        own = sorted(name for name, node in plan.items() if self._overdue(name, node)) if self._figures else []
        if not own:
            return ""
        some = ", ".join(own[:3]) + (f" and {len(own) - 3} more" if len(own) > 3 else "")
        return f"{self._figures}, of this gang {some}; nothing is taken down for it until most are back"

    def _judge(self, nodes: Mapping[str, NodeFacts], planned: frozenset[str], down: frozenset[str], now: float) -> None:
        wall = self._wall()
        long_down = {name for name in down - planned if wall - nodes[name].turned >= LONG_SECONDS}
        lost, count = len(down - long_down), len(nodes) + len(self._gone) - len(long_down)
        holds = lost >= self._failures.brake_nodes and lost >= self._failures.brake * count
        figures = f"{lost} of {count} GPU nodes are lost at once"
        if holds and not self._figures:
            log.warning("nothing is taken down because of lost nodes", why=figures)
        if self._figures and not holds:
            log.warning("lost nodes are acted on again after their grace", lost=lost, nodes=count)
            self._since = dict.fromkeys(down, now)
        self._figures = figures if holds else ""
        metrics.BRAKE.set(holds)

    def _wait_for_late(self, nodes: Mapping[str, NodeFacts], silent: frozenset[str], now: float) -> None:
        seen = dict.fromkeys(silent, now)
        lately = {name: at for name, at in self._silent.items() if now - at < LATELY_SECONDS and name in nodes}
        self._silent = lately | seen
        many = len(self._silent) if len(self._silent) >= self._failures.brake_nodes else 0
        share = min(1.0, many / (self._failures.brake * max(1, len(nodes))))
        self._patience = 1.0 + (MOST_GRACE - 1.0) * share

    def _overdue(self, name: str, node: NodeFacts | None) -> bool:
        since = self._since.get(name)
        return since is not None and self._clock() - since >= self._grace_of(name, node)

    def _grace_of(self, name: str, node: NodeFacts | None) -> float:
        if name in self._gone:
            return min(GONE_SECONDS, self._grace)
        return self._grace * (self._patience if node and node.silent else 1.0)


def _in_trouble(nodes: Mapping[str, NodeFacts]) -> _Trouble:
    return _Trouble(
        unready=frozenset(name for name, facts in nodes.items() if not facts.ready),
        silent=frozenset(name for name, facts in nodes.items() if facts.silent),
    )
