"""Who runs as it should is left alone, and nobody is who has something to do."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.builders import NOW, fault, gang_pod, gpu_reading, gpunode_object, job_object, node_object, owned_by
from tests.controller.test_verdicts_on_failures import EXITED, GOING, NODES, Stage

from trimtab.api.status import JobStatus
from trimtab.apply import stops, transitions
from trimtab.apply.steps import Step, next_step
from trimtab.apply.stops import StopOrder
from trimtab.apply.transitions import REPORT_SECONDS, GangReport
from trimtab.controller import views
from trimtab.controller.jobs.attention import EARLY, Attention, is_quiet
from trimtab.controller.loop.mass_failure import MassFailureGuard
from trimtab.kube.objects import Meta
from trimtab.observe.nodes import NodeFacts, facts
from trimtab.settings import Settings
from trimtab_policy.types import StopCause

SECONDS = 60.0
UID = "uid-job"
ORDER = StopOrder(epoch=1, cause=StopCause.IDLE, message="its notice is over")
WAITS = {
    "phase": "Running",
    "containerStatuses": [{"name": "t", "state": {"waiting": {"reason": "ErrImageNeverPull"}}}],
}


class Watched(Stage):
    """The gang of a `Stage` that runs well and reports, and the controller's attention to it."""

    def __init__(self) -> None:
        super().__init__()
        self.told: GangReport | None = None
        reports: Any = self
        self.views._progress = reports
        settings = Settings()
        clocks: dict[str, Any] = {"clock": self.monotonic, "wall": self.time}
        self.views.mass_failures = MassFailureGuard(settings.gang, settings.failures, **clocks)
        self.attention = Attention(SECONDS, self.monotonic)
        self.cluster.listen(self.attention.attend)
        self.version = 10**6
        self.service()

    def report(self, uid: str, facts: object) -> GangReport | None:
        return self.told

    def _next(self) -> str:
        self.version += 1
        return str(self.version)

    def service(self) -> None:
        meta = {"name": "job", "namespace": "default", "uid": "s", "resourceVersion": self._next()}
        self.cluster.services.apply_written(
            json.dumps({"metadata": meta | {"ownerReferences": [owned_by("job")]}}).encode()
        )

    def lose_service(self) -> None:
        if found := self.cluster.services.items.get("default/job"):
            self._remove(self.cluster.services, found.metadata)

    def _remove(self, reflector: Any, found: Meta) -> None:
        reflector._cache.remove(replace(found, resource_version=self._next()))

    def put_pod(self, rank: int = 0, epoch: int = 1, meta: dict[str, Any] | None = None, **status: Any) -> None:
        made = gang_pod("job", epoch, rank, NODES[rank], phase="Running", status=status, metadata=meta or {})
        made = replace(made, metadata=replace(made.metadata, resource_version=self._next()))
        self.cluster.pods.apply_written(msgspec.json.encode(made))

    def lose_pod(self) -> None:
        if found := self.cluster.pods.items.get("default/job-1-0"):
            self._remove(self.cluster.pods, found.metadata)

    def node(self, name: str = "n1", **changes: Any) -> None:
        made = node_object(name, **changes)
        made = replace(made, metadata=replace(made.metadata, resource_version=self._next()))
        self.cluster.nodes.apply_written(msgspec.json.encode(made))

    def lose_node(self) -> None:
        if found := self.cluster.nodes.items.get("n2"):
            self._remove(self.cluster.nodes, found.metadata)

    def gpus(self, *, broken: bool) -> None:
        read = [gpu_reading(i, "n2", faults=[fault(code=79)] if broken and i == 3 else []) for i in range(8)]
        self.gpunodes.take(gpunode_object("n2", read, observed=int(self.now)))

    def job(self, status: Callable[[JobStatus, Meta], JobStatus] = lambda s, m: s, **changes: Any) -> None:
        found = self.cluster.job(UID)
        assert found
        before = self.views._observer.job(found)
        made = job_object(status=status(before.status, before.meta), **({"resource_version": self._next()} | changes))
        self.cluster.jobs.apply_written(msgspec.json.encode(made))

    def ask(self) -> None:
        self.job(lambda s, m: stops.requested(s, m, ORDER, 30, self.time()))

    def order(self) -> None:
        self.gang.order = ORDER
        self.attention.attend(UID)

    def hear(self, ratio: float, step: int) -> None:
        self.told = GangReport(epoch=1, step=step, steps=1000, received=self.time(), step_seconds=ratio, ratio=ratio)
        self.attention.attend(UID)

    def note(self) -> None:
        """What it has reported is written."""
        if told := self.told:
            self.job(lambda s, m: transitions.reported(s, m, told, self.time()))

    def step(self) -> Step:
        """What a controller that leaves nobody alone would do."""
        return next_step(self.view()) if self.views.sight(UID) else ()

    def round(self, seconds: float = 0.0) -> bool:
        """Time passes, and a round is made. Returns whether the gang was left alone in it."""
        self.now += seconds
        self.look_at_gpus()
        job = self.cluster.job(UID)
        known = {UID: self.views._observer.job(job)} if job else {}
        nodes = self.views._observer.look(self.cluster.caches())
        self.views.mass_failures.watch(nodes, known)
        self.attention.see(nodes, {}, self.views.suspects)
        self.attention.sweep(self.time())
        if not self.attention.restless([UID]):
            return True
        sight = self.views.sight(UID)
        self.views.remember(self.gang, sight)
        if sight and not next_step(view := self.views.view(self.gang, sight)) and is_quiet(view, SECONDS):
            self.attention.settle(UID, NODES, self.gang.due)
        return False


EVENTS: dict[str, Callable[[Watched], None]] = {
    "nothing": lambda w: None,
    "a program fails": lambda w: w.put_pod(**EXITED),
    "all is well": lambda w: (w.put_pod(0), w.put_pod(1))[0],
    "a container waits": lambda w: w.put_pod(**WAITS),
    "a pod ends": lambda w: w.put_pod(1, meta=GOING),
    "a pod is gone": Watched.lose_pod,
    "a pod of an earlier gang": lambda w: w.put_pod(1, epoch=0),
    "a node is not ready": lambda w: w.node(ready="False"),
    "a node is silent": lambda w: w.node(ready="Unknown"),
    "a node is closed": lambda w: w.node(spec={"unschedulable": True}),
    "nodes are well": lambda w: (w.node(), w.node("n2"))[0],
    "a node is gone": Watched.lose_node,
    "a GPU breaks": lambda w: w.gpus(broken=True),
    "GPUs are well": lambda w: w.gpus(broken=False),
    "the Service is gone": Watched.lose_service,
    "the Service is back": Watched.service,
    "it is suspended": lambda w: w.job(spec={"suspend": True}),
    "it goes on": lambda w: w.job(),
    "its spec asks for less": lambda w: w.job(spec={"resources.gpus.max": 4}, generation=2),
    "it is asked to stop": Watched.ask,
    "a round orders it to stop": Watched.order,
    "it reports as predicted": lambda w: w.hear(1.0, 100),
    "it reports to be slow": lambda w: w.hear(3.0, 200),
    "its report is noted": Watched.note,
    "it is deleted": lambda w: w.job(deletion_timestamp="2026-01-02T03:04:05Z"),
}


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[Watched], None]:
    """Puts a gang's clock in the place of time."""
    return lambda watched: monkeypatch.setattr(views, "time", watched)


@given(st.lists(st.tuples(st.sampled_from(sorted(EVENTS)), st.sampled_from([0.0, 0.5, 4.0, 20.0, 45.0])), max_size=12))
def test_who_is_left_alone_has_nothing_to_do(history: list[tuple[str, float]]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        watched = Watched()
        patched.setattr(views, "time", watched)
        watched.round()
        for event, seconds in history:
            EVENTS[event](watched)
            for pause in (seconds, 1.0):
                if watched.round(pause):
                    assert watched.step() == (), (event, pause)


async def test_a_gang_that_runs_well_is_looked_at_once_in_its_time(clock: Callable[[Watched], None]) -> None:
    watched = Watched()
    clock(watched)
    looked = [second for second in range(600) if not watched.round(1.0)]
    gaps = {later - sooner for sooner, later in pairwise(looked)}
    assert looked[0] == 0
    assert EARLY * SECONDS <= min(gaps) <= max(gaps) <= SECONDS + 1


NO_NEWS = {"nothing", "all is well", "nodes are well", "GPUs are well", "it goes on", "the Service is back"}
"""Where all is well already."""


@pytest.mark.parametrize("event", sorted(EVENTS.keys() - NO_NEWS - {"its report is noted"}))
async def test_whatever_happens_to_it_is_looked_at_in_the_next_round(
    event: str, clock: Callable[[Watched], None]
) -> None:
    watched = Watched()
    clock(watched)
    assert [watched.round(), watched.round()] == [False, True]
    EVENTS[event](watched)
    assert not watched.round()


async def test_what_a_gang_has_said_is_noted_when_that_has_become_old(clock: Callable[[Watched], None]) -> None:
    """What it said may be noted only a while after what was noted last: nothing else happens then."""
    watched = Watched()
    clock(watched)
    watched.hear(1.0, 100)
    watched.note()
    watched.now += 1.0
    watched.hear(1.0, 200)
    assert not watched.round()
    assert watched.attention.restless([UID]), "within its time there will be something to note"
    watched.now += REPORT_SECONDS
    assert watched.step()


def test_gangs_are_looked_at_in_slices_and_none_too_late() -> None:
    now = 0.0
    attention = Attention(SECONDS, lambda: now)
    for number in range(1000):
        attention.settle(str(number), (f"n{number}",), math.inf)
    most, last = 0, dict.fromkeys(map(str, range(1000)), 0.0)
    for _ in range(1200):
        now += 0.1
        attention.sweep(NOW)
        due = attention.restless(last)
        most = max(most, len(due))
        for uid in due:
            assert now - last[uid] <= SECONDS
            last[uid] = now
            attention.settle(uid, (f"n{uid}",), math.inf)
    assert most <= 3
    now += SECONDS
    attention.sweep(NOW)
    assert attention.restless(last) == list(last)
    assert not attention._on_node


def test_a_queue_that_changes_a_node_and_a_time_of_its_own_end_the_rest() -> None:
    attention, nodes = Attention(SECONDS, lambda: 0.0), {"n1": _facts("n1"), "n2": _facts("n2")}
    attention.see(nodes, {})

    def rests() -> list[bool]:
        found = [not attention.restless([uid]) for uid in "ab"]
        attention.settle("a", ("n1",), NOW + 5)
        attention.settle("b", ("n2",), math.inf)
        return found

    rests()
    attention.see(nodes, {})
    attention.sweep(NOW)
    assert rests() == [True, True]
    attention.see(nodes, {"q": cast(Any, None)})
    assert rests() == [False, False]
    attention.see(nodes | {"n2": _facts("n2")}, {"q": cast(Any, None)})
    assert rests() == [True, False]
    attention.see(nodes, {"q": cast(Any, None)}, ("n1",))
    assert rests() == [False, False], "n2 has changed once more"
    attention.see({"n1": nodes["n1"]}, {"q": cast(Any, None)})
    assert rests() == [True, False]
    attention.sweep(NOW + 5)
    assert rests() == [False, True]


def _facts(name: str) -> NodeFacts:
    found = facts(node_object(name), ())
    assert found
    return found
