"""Whom a decision asks to stop, when, for whom, and when it lets them go on: from statuses, round after round."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import pytest
from msgspec.structs import replace
from tests import builders
from tests.builders import MOMENT, NOW, gang_pod, job_object, node_object, placement, plan_of, queue_object

from trimtab import names
from trimtab.api.history import StopRecord
from trimtab.api.status import Condition, JobStatus, Leaving, Plan, PlanGrant, PlanTerms, StopRequest
from trimtab.apply.stops import StopOrder
from trimtab.controller.jobs.evictions import Evictions
from trimtab.controller.jobs.stop_triggers import leaving
from trimtab.controller.views import PlannedPlacement, Promise
from trimtab.kube.objects import JobObject, PodObject
from trimtab.observe.jobs import JobFacts
from trimtab.observe.node_usage import Claim
from trimtab.observe.snapshot import Caches, ClusterObserver, Observation
from trimtab.telemetry import metrics
from trimtab_policy.scheduling.results import Move, Outcome
from trimtab_policy.types import Grant, Stop, StopCause

READY = Condition(type=names.PODS_READY, status="True", reason="Running", last_transition_time=MOMENT)


class Cluster:
    """Jobs as their statuses say, and drivers that only note what they are told."""

    def __init__(self, *jobs: JobObject) -> None:
        self.jobs = {job.metadata.name: job for job in jobs}
        self.ordered: dict[str, StopOrder] = {}
        self.withdrawn: dict[str, int] = {}
        self.promises: dict[str, tuple[Leaving, ...]] = {}
        self.terms: dict[str, PlanTerms | None] = {}
        this = cast(Any, self)
        self.successions = Evictions(this, this)

    def look(self) -> Observation:
        nodes = [node_object(name) for name in ("a", "b", "c")]
        caches = Caches(nodes, [], self.jobs.values(), [queue_object("team-a"), queue_object("team-b")])
        return ClusterObserver(()).observe(caches, NOW, self.successions.claims())

    def round(self, outcome: Outcome | None = None) -> None:
        """What is ordered, and taken back, by one round."""
        self.ordered, self.withdrawn = {}, {}
        seen = self.look()
        if outcome:
            self.successions.note(seen, outcome)
        self.successions.carry_out(seen)

    def promise(self, facts: JobFacts, decided: PlannedPlacement, waits_for: tuple[Leaving, ...]) -> None:
        """As of `Gangs`, like the next three."""
        self.promises[facts.meta.uid] = waits_for
        self.terms[facts.meta.uid] = decided.terms

    def promised(self) -> list[Claim]:
        return [Claim(uid, 1, placement(uid, {"a": 8})) for uid in self.promises]

    def order_stop(self, uid: str, order: StopOrder) -> None:
        self.ordered[uid] = order

    def withdraw_stop(self, uid: str, epoch: int) -> None:
        self.withdrawn[uid] = epoch

    def next_plan(self, facts: JobFacts, decided: PlannedPlacement, waits_for: tuple[Leaving, ...]) -> Plan:
        """As of `Views`."""
        said = {"policy": decided.policy, "terms": decided.terms, "waits_for": waits_for}
        return plan_of(decided.placement, (facts.status.last_epoch or 0) + 1, **said)


def left(name: str = "old", epoch: int = 1) -> Leaving:
    return builders.leaving(name, epoch)


def runs(name: str = "old", node: str = "a", epoch: int = 1, **status: Any) -> JobObject:
    plan = plan_of(placement(f"uid-{name}", {node: 8}), epoch)
    given = {"plan": plan, "last_epoch": epoch, "conditions": (READY,)} | status
    return job_object(name, status=JobStatus(**given))


def heir(*waits_for: Leaving, **meta: Any) -> JobObject:
    plan = plan_of(placement("uid-new", {"a": 8}), waits_for=waits_for)
    return job_object("new", meta.pop("spec", None), JobStatus(plan=plan, last_epoch=1), **meta)


def asked(beneficiary: str | None = "default/new", successor: Plan | None = None) -> StopRequest:
    return StopRequest(
        epoch=1,
        cause=StopCause.PREEMPTED,
        message="x",
        requested_time=MOMENT,
        deadline_time=MOMENT,
        beneficiary=beneficiary,
        successor=successor,
    )


def preempts() -> Outcome:
    stop = Stop("uid-old", "it is more urgent", StopCause.PREEMPTED, "uid-new")
    placed = placement("uid-new", {"a": 8})
    waits = {"uid-new": ("uid-old",)}
    return Outcome({"uid-new": "best_fit"}, (placed,), (), (), (), {}, (stop,), waits=waits)


def moves(beneficiary: str = "", to: str = "b") -> Move:
    return Move(placement("uid-old", {to: 8}), "room", StopCause.MOVED, beneficiary)


def with_a_move(beneficiary: str) -> Outcome:
    heirs = (placement("uid-new", {"a": 8}),) if beneficiary else ()
    waits = {"uid-new": ("uid-old",)} if beneficiary else {}
    return Outcome({"uid-new": "best_fit"}, heirs, (), (), (), {}, moves=(moves(beneficiary),), waits=waits)


# --- stops -----------------------------------------------------------------------------------------------------------
def test_nobody_is_asked_before_the_plan_that_needs_it_is_written() -> None:
    cluster = Cluster(runs(), job_object("new"))
    cluster.round(preempts())
    assert cluster.promises == {"uid-new": (left(),)}
    assert cluster.ordered == {}
    cluster.jobs["new"] = heir(left())
    cluster.round()
    order = cluster.ordered["uid-old"]
    assert (order.epoch, order.cause, order.beneficiary) == (1, StopCause.PREEMPTED, "default/new")
    assert (order.message, order.successor) == ("it is more urgent", None)


def test_a_controller_that_finds_such_a_plan_goes_on_from_it() -> None:
    cluster = Cluster(runs(), heir(left()))
    for _ in range(2):
        cluster.round()
        assert cluster.ordered["uid-old"].message == "default/new gets its GPUs"


@pytest.mark.parametrize(
    "jobs",
    [
        (runs(epoch=2), heir(left())),
        (runs(stop=asked()), heir(left())),
        (heir(left()),),
        (runs(), heir(left(), spec={"suspend": True})),
        (runs(), heir(left(), deletion_timestamp="2026-01-02T03:04:05Z")),
    ],
    ids=["it runs anew", "it was asked", "it is gone", "the heir is suspended", "the heir is being deleted"],
)
def test_nobody_is_asked_twice_or_for_nothing(jobs: tuple[JobObject, ...]) -> None:
    cluster = Cluster(*jobs)
    cluster.round()
    assert cluster.ordered == {}


def test_who_was_asked_for_a_plan_that_was_given_up_goes_on() -> None:
    cluster = Cluster(runs(stop=asked()), heir(left()))
    cluster.round()
    assert cluster.withdrawn == {}
    cluster.jobs["new"] = job_object("new", status=JobStatus(last_epoch=1))
    cluster.round()
    assert cluster.withdrawn == {"uid-old": 1}


def test_an_order_that_was_not_carried_out_yet_is_taken_back_too() -> None:
    cluster = Cluster(runs(), heir(left()))
    cluster.round()
    del cluster.jobs["new"]
    cluster.round()
    assert (cluster.ordered, cluster.withdrawn) == ({}, {"uid-old": 1})


def test_who_stops_for_nobody_in_particular_is_left_alone() -> None:
    cluster = Cluster(runs(stop=asked(beneficiary=None)))
    cluster.round()
    assert cluster.withdrawn == {}


def test_what_a_gang_counts_against_is_written_with_its_plan_and_goes_with_it_where_it_moves() -> None:
    asks = {"queue": "team-a", "resources.cpusPerGpu": 4, "resources.memoryPerGpu": "1Gi"}
    cluster = Cluster(runs(), job_object("new", asks))
    cluster.round(preempts())
    terms = PlanTerms(queue="team-a", cpu_millis_per_gpu=4000, memory_bytes_per_gpu=1 << 30)
    assert cluster.terms == {"uid-new": terms}
    plan = plan_of(placement("uid-old", {"a": 8}), terms=terms)
    edited = job_object("old", {"queue": "team-b"}, JobStatus(plan=plan, last_epoch=1, conditions=(READY,)))
    moved = Cluster(edited)
    moved.round(with_a_move(""))
    successor = moved.ordered["uid-old"].successor
    assert successor
    assert successor.terms == PlanTerms(queue="team-a")


def test_in_which_order_gpus_were_given_is_written_with_the_plan_and_known_before_it_is() -> None:
    cluster = Cluster(runs(), job_object("new"))
    cluster.round(replace(preempts(), grants={"uid-new": (Grant(8, 5, 4),)}))
    terms = cluster.terms["uid-new"]
    assert terms
    assert terms.grants == (PlanGrant(gpus=8, order=5, type_order=4),)
    moved = Cluster(runs())
    moved.round(replace(with_a_move(""), grants={"uid-old": (Grant(8, 2, 2),)}))
    successor = moved.ordered["uid-old"].successor
    assert successor
    assert successor.terms
    assert successor.terms.grants == (PlanGrant(gpus=8, order=2, type_order=2),)
    assert [claim.grants for claim in moved.successions.claims()] == [(Grant(8, 2, 2),)]
    promise = Promise(placement("uid-new"), "best_fit", terms, generation=1, epoch=1)
    assert promise.claim().grants == (Grant(8, 5, 4),)


# --- moves -----------------------------------------------------------------------------------------------------------
def test_a_gang_that_moves_for_its_own_good_is_asked_at_once_with_its_next_plan() -> None:
    cluster = Cluster(runs())
    cluster.round(with_a_move(""))
    order = cluster.ordered["uid-old"]
    assert order.successor
    assert (order.cause, order.beneficiary, order.successor.epoch) == (StopCause.MOVED, "", 2)
    assert [node.name for node in order.successor.nodes] == ["b"]


def test_where_it_goes_is_kept_until_its_status_says_so_and_it_is_not_moved_again_meanwhile() -> None:
    cluster = Cluster(runs())
    cluster.round(with_a_move(""))
    seen = cluster.look()
    assert {node.name: node.free_gpus for node in seen.snapshot.nodes} == {"a": 0, "b": 0, "c": 8}
    assert seen.snapshot.jobs[0].movable_from == float("inf")
    order = cluster.ordered["uid-old"]
    cluster.jobs["old"] = runs(stop=asked(None, order.successor))
    cluster.round()
    assert cluster.successions.claims() == []
    assert {node.name: node.free_gpus for node in cluster.look().snapshot.nodes} == {"a": 0, "b": 0, "c": 8}


def test_a_gang_that_moves_for_another_waits_until_that_is_planned() -> None:
    cluster = Cluster(runs(), job_object("new"))
    cluster.round(with_a_move("uid-new"))
    assert cluster.ordered == {}
    cluster.promises.clear()  # its plan is on the way: the round may look in between
    cluster.round()
    assert (cluster.ordered, len(cluster.successions.claims())) == ({}, 1)
    cluster.jobs["new"] = heir(left())
    cluster.round()
    order = cluster.ordered["uid-old"]
    assert order.successor
    assert (order.beneficiary, order.successor.epoch) == ("default/new", 2)


def test_it_stays_where_the_other_is_not_planned_after_all() -> None:
    cluster = Cluster(runs(), job_object("new"))
    cluster.round(with_a_move("uid-new"))
    cluster.promises.clear()
    cluster.round()
    cluster.round()
    assert (cluster.ordered, cluster.successions.claims()) == ({}, [])


@pytest.mark.parametrize(
    "job", [runs(epoch=2), runs(stop=asked(None)), job_object("old", status=JobStatus(last_epoch=1))]
)
def test_a_move_is_void_once_the_gang_is_another_one(job: JobObject) -> None:
    cluster = Cluster(runs(), job_object("new"))
    cluster.round(with_a_move("uid-new"))
    cluster.jobs["old"] = job
    cluster.round()
    assert (cluster.ordered, cluster.successions.claims()) == ({}, [])


def test_a_gang_whose_place_another_one_takes_is_asked_for_that_from_its_request_on() -> None:
    goes_there = plan_of(placement("uid-old", {"b": 8}), 2, waits_for=(left("there"),))
    cluster = Cluster(runs(stop=asked(None, goes_there)), runs("there", "b"))
    cluster.round()
    assert cluster.ordered["uid-there"].beneficiary == "default/old"


# --- whose pods are still there ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("pod", "waits"),
    [
        (gang_pod("old", 1, 0, "a", phase="Running"), True),
        (gang_pod("old", 1, 0, "", phase="Pending"), True),
        (gang_pod("old", 1, 0, "b", phase="Running"), False),
        (gang_pod("old", 2, 0, "a", phase="Running"), False),
        (gang_pod("old", 1, 0, "a", phase="Succeeded"), False),
    ],
    ids=["running", "on its way", "elsewhere", "of a later plan", "ended"],
)
def test_a_plan_waits_for_pods_that_hold_its_gpus(pod: PodObject, waits: bool) -> None:
    plan = plan_of(placement("uid-new", {"a": 8}), waits_for=(left(),))
    assert leaving(plan, lambda job: [pod] if job == left().digest else []) == (("default/old",) if waits else ())


# --- figures ---------------------------------------------------------------------------------------------------------
def count(name: str) -> float:
    return metrics.REGISTRY.get_sample_value(name, {"cause": "Preempted"} if "repeated" not in name else {}) or 0.0


@pytest.mark.parametrize("seconds", [60, 0], ids=["a minute before", "within one second"])
def test_stops_are_counted_once_and_those_of_the_same_job_within_an_hour_besides(seconds: int) -> None:
    first, again = ("trimtab_preemptions_total", "trimtab_repeated_preemptions_total")
    before = count(first), count(again)
    cluster = Cluster(runs())
    cluster.round()
    earlier, own, later = (
        StopRecord(time=MOMENT - timedelta(seconds=ago), epoch=epoch, cause=cause, beneficiary=for_whom)
        for ago, epoch, cause, for_whom in (
            (seconds, 1, StopCause.PREEMPTED, "default/a"),
            (seconds / 2, 2, StopCause.RESIZED, None),
            (0, 3, StopCause.PREEMPTED, "default/b"),
        )
    )
    timed = earlier.model_copy(update={"save_seconds": 3})
    for stops in ((earlier,), (earlier,), (timed,), (timed, own), (timed, own, later)):
        cluster.jobs["old"] = runs(stops=stops)
        cluster.round()
    assert (count(first) - before[0], count(again) - before[1]) == (2, 1)
