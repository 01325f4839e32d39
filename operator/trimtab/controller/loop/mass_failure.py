"""Which nodes are lost, and a circuit breaker: where half of all are lost at once, no gang is evicted for that.

A node is lost when it has been NotReady for a grace, or its object is gone for a moment. Its gangs are then planned
anew. But when a large part of the nodes is lost at once, the network or the control plane has failed more likely than
the machines: what runs there still runs, and would not all fit elsewhere. So no gang is evicted until most are back;
then all that are still lost have their grace anew (as in Kubernetes' node-lifecycle-controller).

It looks at the nodes that count: those that are ready, those that plans name, and those that have been lost for
less than an hour. Machines that were switched off long ago, and without gangs, must not hold it for ever.

It keeps what may still run, and nothing else. Pods that have failed, or are gone (the garbage collector deletes those
of a node whose object was deleted), end their gang as ever; and a gang that is not bound as a whole leaves nodes that
take no pods.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

import structlog

from trimtab.observe.jobs import JobFacts
from trimtab.observe.nodes import NodeFacts
from trimtab.settings import FailureSettings, GangSettings
from trimtab.telemetry import metrics

GONE_SECONDS = 2.0
"""Of a node whose object is gone: so that many that are deleted one after the other count together."""
LONG_SECONDS = 3600.0
"""A node without gangs that is NotReady for so long counts no more."""
GONE = "deleted, or no longer a GPU node"

log = structlog.get_logger(__name__)


class MassFailureGuard:
    """Remembers since when each node is down, by the local monotonic clock; all else is read anew in every round."""

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
        self._figures = ""
        """Of a mass failure; empty where there is none."""

    def watch(self, nodes: Mapping[str, NodeFacts], jobs: Iterable[JobFacts]) -> float:
        """Note which nodes are down; return the seconds until the first of them has used up its grace."""
        now = self._clock()
        planned = {node.name for facts in jobs if facts.holds_gpus and (p := facts.status.plan) for node in p.nodes}
        self._gone = frozenset(planned - nodes.keys())
        down = {name for name, facts in nodes.items() if not facts.ready} | self._gone
        self._since = {name: self._since.get(name, now) for name in down}
        self._judge(nodes, planned, down, now)
        left = [ends - now for name in down if (ends := self._since[name] + self._grace_of(name)) > now]
        return min(left, default=float("inf"))

    @property
    def holds(self) -> bool:
        """Whether so many nodes are lost that it is not they who have failed."""
        return bool(self._figures)

    def lost(self, name: str, node: NodeFacts | None) -> str:
        """Why pods that run on the node must be given up; empty when they need not."""
        if self._figures or (node and node.ready) or not self._overdue(name):
            return ""
        return f"NotReady for {self._grace:g} s" if node else GONE

    def spared(self, plan: Iterable[str]) -> str:
        """Why a gang on these nodes is not given up though some are lost; empty where none is, or it would be."""
        own = sorted(name for name in plan if self._overdue(name)) if self._figures else []
        if not own:
            return ""
        some = ", ".join(own[:3]) + (f" and {len(own) - 3} more" if len(own) > 3 else "")
        return f"{self._figures}, of this gang {some}; nothing is taken down for it until most are back"

    def _judge(self, nodes: Mapping[str, NodeFacts], planned: set[str], down: set[str], now: float) -> None:
        wall = self._wall()
        long_down = {name for name in down - planned if wall - nodes[name].turned >= LONG_SECONDS}
        lost, count = len(down - long_down), len(nodes.keys() | self._gone) - len(long_down)
        holds = lost >= self._failures.brake_nodes and lost >= self._failures.brake * count
        figures = f"{lost} of {count} GPU nodes are lost at once"
        if holds and not self._figures:
            log.warning("nothing is taken down because of lost nodes", why=figures)
        if self._figures and not holds:
            log.warning("lost nodes are acted on again after their grace", lost=lost, nodes=count)
            self._since = dict.fromkeys(down, now)
        self._figures = figures if holds else ""
        metrics.BRAKE.set(holds)

    def _overdue(self, name: str) -> bool:
        since = self._since.get(name)
        return since is not None and self._clock() - since >= self._grace_of(name)

    def _grace_of(self, name: str) -> float:
        return min(GONE_SECONDS, self._grace) if name in self._gone else self._grace
