"""Which gangs need no look in this round: those that run as they should, and of which nothing has been heard since.

On a large cluster almost all gangs are such, and to look at each in every round cost more than all else together. A
gang is left alone (`settle`) when a look has found that there is nothing to do for it, now and for as long as it would
be left alone were nothing to happen. It is looked at again

  - when something was heard of it: its job, its pods, what else it controls, its node, a report of its training, an
    order from a round (`attend`, `see`);
  - when a time of its own has come, which the look has told;
  - after `seconds` in any case: watches lose things, and so may this file. These looks are spread over the rounds.

All of it is memory that may be lost: a gang that is not known here is looked at.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from trimtab import names
from trimtab.api import conditions
from trimtab.apply import steps, transitions
from trimtab.apply.gang_failures import RUNNING
from trimtab.apply.steps import JobContext
from trimtab.observe.nodes import NodeFacts
from trimtab.observe.queues import QueueFacts

EARLY = 0.8
"""In slices every gang is looked at after this part of its time: no round has to look at many at once."""


class _Settled(Struct, frozen=True):
    """A gang that is left alone."""

    nodes: tuple[str, ...]
    until: float
    """Monotonic time."""
    due: float
    """POSIX time; infinite where it has none."""


class Attention:
    """Gangs by UID of their job. `seconds` is for how long none is left alone, and `clock` never jumps."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._swept = clock()
        self._owed = 0.0
        """Gangs that are to be looked at by now, so that all are in their time: part of one, too."""
        self._settled: dict[str, _Settled] = {}
        """Who was looked at longest ago comes first."""
        self._on_node: dict[str, set[str]] = {}
        self._timed: dict[str, float] = {}
        """UID -> POSIX time, of those that have one."""
        self._nodes: Mapping[str, NodeFacts] = {}
        self._queues: Mapping[str, QueueFacts] = {}

    def restless(self, uids: Iterable[str]) -> list[str]:
        """Of these gangs, in their order, those that need a look."""
        settled = self._settled
        return [uid for uid in uids if uid not in settled]

    def settle(self, uid: str, nodes: Iterable[str], due: float) -> None:
        """Leave a gang on these nodes alone, until the POSIX time `due` at the latest."""
        self.attend(uid)
        settled = self._settled[uid] = _Settled(tuple(nodes), self._clock() + self.seconds, due)
        for node in settled.nodes:
            self._on_node.setdefault(node, set()).add(uid)
        if due < math.inf:
            self._timed[uid] = due

    def attend(self, uid: str) -> None:
        """Something was heard of the job: its gang is to be looked at."""
        settled = self._settled.pop(uid, None)
        if settled is None:
            return
        self._timed.pop(uid, None)
        for node in settled.nodes:
            here = self._on_node.get(node)
            if here is not None:
                here.discard(uid)
                if not here:
                    del self._on_node[node]

    def see(
        self, nodes: Mapping[str, NodeFacts], queues: Mapping[str, QueueFacts], suspects: Iterable[str] = ()
    ) -> None:
        """Take the nodes and queues of this round; gangs on nodes that have changed, or are `suspects`, are to be
        looked at, and all where a queue has."""
        if queues != self._queues:
            self._attend_all(list(self._settled))
        before, self._nodes, self._queues = self._nodes, nodes, queues
        if nodes is not before:
            for name, facts in nodes.items():
                if before.get(name) is not facts:
                    self._attend_all(self._on_node.get(name, ()))
            for name in before.keys() - nodes.keys():
                self._attend_all(self._on_node.get(name, ()))
        for name in suspects:
            self._attend_all(self._on_node.get(name, ()))

    def sweep(self, now: float) -> None:
        """Have those looked at whose time has come, `now` being a POSIX time, and a slice of all others."""
        self._attend_all([uid for uid, due in self._timed.items() if due <= now])
        at = self._clock()
        passed, self._swept = at - self._swept, at
        self._owed += len(self._settled) * passed / (EARLY * self.seconds)
        found: list[str] = []
        for uid, settled in self._settled.items():
            if len(found) + 1 > self._owed and settled.until > at:
                break
            found.append(uid)
        self._owed = max(0.0, self._owed - len(found))
        self._attend_all(found)

    def _attend_all(self, uids: Iterable[str]) -> None:
        for uid in tuple(uids):
            self.attend(uid)


def is_quiet(view: JobContext, seconds: float) -> bool:
    """Whether the gang runs as it should, and there is nothing to do for it for so many seconds, unless something
    happens to it. `view` is one for which there is nothing to do now.

    Whoever is in any other state changes soon, or by what others do, and is looked at in every round.
    """
    plan, status = view.status.plan, view.status
    if plan is None or view.being_deleted or view.finished or view.suspended or view.theirs:
        return False
    if not (transitions.is_scheduled(status) and conditions.holds(status.conditions, names.PODS_READY)):
        return False
    waits = status.stop or status.idle or view.order or view.unwanted or view.plan or view.setback or view.outdated
    fails = view.unready or view.lost or view.spared or view.silent or view.gone_nodes or view.unavailable
    if waits or fails or view.assumed or view.deleted or view.binding_overdue or view.holding:
        return False
    if view.idle or view.progress is not None or len(view.pods) != len(plan.nodes):
        return False
    if any(pod.status.phase != RUNNING or pod.metadata.deletion_timestamp for pod in view.pods):
        return False
    return not steps.next_step(replace(view, now=view.now + seconds))
