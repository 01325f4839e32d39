"""Which gangs are found to do nothing, and which of them are to stop: never on a guess, and in few at a time."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from tests.builders import NOW, gpu_reading, job_object, placement, plan_of
from tests.observe.world import World, job_of_pod

from trimtab import names
from trimtab.api.status import Condition, IdleStatus, JobStatus, Plan, StopRequest
from trimtab.apply.stops import StopOrder
from trimtab.controller.jobs.idle import SURE_SECONDS, IdleJobs
from trimtab.controller.loop.accounting import Accounting
from trimtab.kube.objects import JobObject
from trimtab.observe.snapshot import Caches
from trimtab.settings import IdleSettings, PreemptionSettings, Settings
from trimtab.telemetry import metrics
from trimtab_policy.types import StopCause

AFTER, NOTICE = 600.0, 300.0
STOPS = IdleSettings(after_seconds=AFTER, stop="AfterNotice", notice_seconds=NOTICE)
NEVER = IdleSettings(after_seconds=AFTER)


def moment(at: float) -> datetime:
    return datetime.fromtimestamp(NOW + at, UTC)


class Watch:
    """A controller that watches the gangs of a cluster; jobs `a`, `b`, ... have node `n1`, `n2`, ... each."""

    def __init__(self, rules: IdleSettings = NEVER, at_once: int = 16) -> None:
        self.world = World(4)
        self.settings = Settings(idle=rules, preemption=PreemptionSettings(at_once=at_once))
        self.jobs: dict[str, JobObject] = {}
        self.heard: dict[str, float] = {}
        self.restart()

    def restart(self) -> None:
        self.idle = IdleJobs(self.settings, lambda uid, _epoch: self.heard.get(uid))
        self.accounting = Accounting(0.02, 60.0, job_of_pod, clock=lambda: self.world.now)

    def plan(self, name: str, planned: float = -7200.0) -> Plan:
        return plan_of(placement(f"uid-{name}", {f"n{ord(name) - 96}": 8}), now=moment(planned))

    def job(
        self,
        name: str,
        idle: IdleStatus | None = None,
        stop: StopRequest | None = None,
        least: int = 0,
        planned: float = -7200.0,
    ) -> None:
        ready = Condition(type=names.PODS_READY, status="True", reason="Yes", last_transition_time=moment(-7200.0))
        status = JobStatus(plan=self.plan(name, planned), last_epoch=1, conditions=(ready,), idle=idle, stop=stop)
        self.jobs[name] = job_object(name, {"elasticity.minRuntimeSeconds": least}, status)

    def look(self, after: float = 0.0, **utilization: float | None) -> dict[str, StopOrder]:
        """A round, before which the agents of the nodes of these jobs report that much; None: they say nothing."""
        world = self.world
        world.now += after
        for name, percent in utilization.items():
            if percent is not None:
                own = {"pods": [f"default/{name}-1-0"], "smUtilizationPercent": percent}
                node = f"n{ord(name) - 96}"
                world.report(node, [gpu_reading(index, node, **own) for index in range(8)])
        seen = world.observer.observe(Caches(world.nodes.values(), [], self.jobs.values()), NOW + world.now)
        self.seen = seen
        self.accounting.see(seen)
        return self.idle.see(seen, self.accounting.uses)

    def idles(self, seconds: float, **utilization: float | None) -> dict[str, StopOrder]:
        """Time passes, with a round every 30 s."""
        found: dict[str, StopOrder] = {}
        for _ in range(int(seconds // 30)):
            found = self.look(30.0, **utilization)
        return found

    def found(self, name: str) -> bool:
        uid = f"uid-{name}"
        return self.idle.found(uid, self.seen.jobs[uid]) is not None


def test_a_gang_all_of_whose_gpus_do_nothing_for_long_is_found() -> None:
    watch = Watch()
    watch.job("a")
    watch.job("b")
    watch.look(a=0, b=90)
    watch.idles(AFTER - 30, a=0, b=90)
    assert not watch.found("a")
    watch.look(30, a=1, b=90)
    assert watch.found("a")
    assert not watch.found("b")
    gang = watch.idle.found("uid-a", watch.seen.jobs["uid-a"])
    assert gang
    assert (gang.gpus, gang.since, gang.notice_seconds) == (8, NOW, None)


def test_one_that_computes_meanwhile_is_not() -> None:
    watch = Watch()
    watch.job("a")
    watch.look(a=0)
    watch.idles(AFTER - 60, a=0)
    watch.look(30, a=50)
    watch.idles(AFTER - 60, a=0)
    assert not watch.found("a")


def test_one_that_reports_steps_is_not_whatever_its_gpus_are_said_to_do() -> None:
    watch = Watch()
    watch.job("a")
    watch.look(a=0)
    for _ in range(50):
        watch.heard["uid-a"] = NOW + watch.world.now
        watch.look(30, a=0)
        assert not watch.found("a")


@pytest.mark.parametrize("silent", ["never reported", "stopped reporting"])
def test_where_the_agent_is_silent_nobody_is_idle(silent: str) -> None:
    watch = Watch()
    watch.job("a")
    if silent == "stopped reporting":
        watch.look(a=0)
        watch.idles(AFTER + 60, a=0)
        assert watch.found("a")
    watch.idles(3 * AFTER, a=None)
    assert not watch.found("a")


def test_a_gang_that_waits_for_its_images_is_not_watched() -> None:
    watch = Watch()
    watch.job("a")
    bare = JobStatus(plan=watch.plan("a"), last_epoch=1)
    watch.jobs["a"] = job_object("a", {}, bare)
    watch.look(a=0)
    watch.idles(2 * AFTER, a=0)
    assert not watch.found("a")


# --- stopping --------------------------------------------------------------------------------------------------------
def promised(until: float) -> IdleStatus:
    return IdleStatus(since_time=moment(-AFTER), stop_time=moment(until))


def test_nobody_is_stopped_unless_the_settings_say_so() -> None:
    watch = Watch(NEVER)
    watch.job("a", promised(-10.0))
    watch.look(a=0)
    assert watch.idles(2 * AFTER, a=0) == {}


def test_once_the_notice_is_over_the_gang_is_to_stop_and_not_before() -> None:
    watch = Watch(STOPS)
    watch.job("a", promised(300.0))
    watch.look(a=0)
    assert watch.idles(270, a=0) == {}
    found = watch.look(30, a=0)
    assert [(uid, order.cause, order.epoch, order.beneficiary) for uid, order in found.items()] == [
        ("uid-a", StopCause.IDLE, 1, "")
    ]


def test_a_promise_that_was_never_made_is_not_kept() -> None:
    watch = Watch(STOPS)
    watch.job("a", IdleStatus(since_time=moment(-AFTER)))
    watch.look(a=0)
    assert watch.idles(3 * NOTICE, a=0) == {}


def test_a_controller_that_starts_anew_looks_for_itself_first() -> None:
    watch = Watch(STOPS)
    watch.job("a", promised(-1000.0))
    assert watch.look(a=0) == {}, "the first report may be old"
    assert watch.idles(SURE_SECONDS - 30, a=0) == {}
    assert watch.look(30, a=0).keys() == {"uid-a"}
    watch.restart()
    assert watch.look(30, a=0) == {}
    assert watch.idles(SURE_SECONDS + 60, a=None) == {}, "nor does it stop whom nobody sees any more"


def test_no_more_stop_at_once_than_may_for_others_and_none_before_its_time() -> None:
    watch = Watch(STOPS, at_once=2)
    for name in "abc":
        watch.job(name, promised(-10.0 * ord(name)))
    asked = StopRequest(epoch=1, cause=StopCause.IDLE, message="m", requested_time=moment(0), deadline_time=moment(900))
    watch.job("d", promised(-10.0), stop=asked)
    watch.look(a=0, b=0, c=0, d=0)
    found = watch.idles(SURE_SECONDS, a=0, b=0, c=0, d=0)
    assert found.keys() == {"uid-c"}, "d is being stopped, and the notice of c ended first"
    watch = Watch(STOPS)
    watch.job("a", promised(-10.0), least=3000, planned=-600.0)
    watch.look(a=0)
    assert watch.idles(2370, a=0) == {}
    assert watch.look(30, a=0).keys() == {"uid-a"}


def test_rounds_that_follow_each_other_look_once() -> None:
    watch = Watch()
    watch.job("a")
    watch.look(a=0)
    due = watch.idle.next_deadline(NOW + watch.world.now)
    assert due == AFTER
    watch.look(0.01, a=90)
    assert watch.idle.next_deadline(NOW + watch.world.now) == pytest.approx(AFTER - 0.01)


def test_gpus_of_idle_jobs_are_told_by_queue() -> None:
    watch = Watch()
    watch.job("a", promised(900.0))
    watch.look(a=0)
    assert (
        metrics.REGISTRY.get_sample_value("trimtab_idle_gpus", {"queue": "", "gpu_type": watch.plan("a").gpu_type}) == 8
    )
    metrics.stand_back()
