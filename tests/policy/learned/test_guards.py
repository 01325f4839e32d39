"""What rudder does not do whatever it has learned: starve, thrash, idle, or believe what it was never trained on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from msgspec.structs import replace
from tests.builders import A100, H100, NOW, T4, job, node, placement, running, snapshot
from tests.strategies import snapshots

from trimtab.decide.engine import Engine
from trimtab_lab.evaluation.scenario import Scenario
from trimtab_lab.evaluation.workload import workload
from trimtab_lab.workloads import clusters
from trimtab_policy import catalog
from trimtab_policy.heuristics.best_fit import BestFit
from trimtab_policy.learned import guards, rudder, store, worth
from trimtab_policy.learned.rudder import Rudder
from trimtab_policy.learned.worth import Network, Trained, analytic, on_purpose
from trimtab_policy.placement.candidates import candidates, has_room
from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.policy import Policy
from trimtab_policy.scheduling.accounts import after
from trimtab_policy.scheduling.choice import Choice
from trimtab_policy.scheduling.shield import check
from trimtab_policy.sim import llm
from trimtab_policy.sim.controller import ControllerRules, SimulatedController
from trimtab_policy.sim.engine import SimRules, simulate
from trimtab_policy.sim.failures import FailureModel
from trimtab_policy.sim.result import Run
from trimtab_policy.types import Correction, Decision, DoubtReason, Job, PendingReason, Quota, Snapshot

HOUR = 3600.0
OVERDUE = NOW - guards.LONGEST_WAIT - 60
"""When a job was submitted that has waited for too long and takes less than that."""
OVERDUE_FOR_WEEKS = NOW - guards.WAITS_IN_ANY_CASE - 60
"""The same of a job that takes weeks."""
LONG_AGO = NOW - 1e12
"""For longer than any job of these takes anywhere."""


def placed(decision: Decision) -> set[str]:
    return {each.job for each in decision.placements}


def wild(seed: int = 1, size: float = 0.5) -> Network:
    """A network that says something about everything."""
    draw = np.random.default_rng(seed)
    shapes = {name: shape for name, shape in worth.SHAPES.items() if name != "constants"}
    return Network(worth.ANALYTIC.copy(), *(size * draw.standard_normal(shape) for shape in shapes.values()))


def shipped() -> Trained:
    return rudder.trained(store.load("rudder", rudder.SCHEMA, (*worth.SHAPES, worth.RANGES)).arrays)


# --- waiting ----------------------------------------------------------------------------------------------------------
def crowd(large: float, *, urgent: int = 0) -> Snapshot:
    """A job that takes the whole cluster for weeks, created then, and eight short ones that have just come."""
    gang = job("large", gpus=(8, 8), steps=10_000_000, created=large)
    short = [job(f"s{number}", gpus=(1, 1), steps=2_000, created=NOW, priority=urgent) for number in range(8)]
    return snapshot([node("n1")], [gang, *short])


def test_who_has_waited_too_long_gets_gpus_before_newcomers() -> None:
    assert "uid-large" not in placed(Rudder(analytic()).decide(crowd(NOW - HOUR)))
    assert placed(Rudder(analytic()).decide(crowd(OVERDUE_FOR_WEEKS))) == {"uid-large"}


@pytest.mark.parametrize(("alone", "longest"), [(1.0, 6.0), (20.0, 20.0), (500.0, 48.0)])
def test_who_takes_long_waits_for_as_long_as_it_takes_alone_on_the_best_gpus(alone: float, longest: float) -> None:
    """Hours, both."""
    known = snapshot([node("slow"), node("fast", H100)], [job("j", gpus=(8, 8), steps=10**9, steps_done=10)])
    rate = float(rudder.market(known).menus[0].rate.max())
    [it] = known.jobs
    it = replace(it, training=replace(it.training, steps=round(rate * alone * HOUR)))
    [menu] = rudder.market(replace(known, jobs=(it,))).menus
    assert guards.longest_wait(menu) == pytest.approx(longest * HOUR, rel=1e-4)


def test_the_pipeline_keeps_gpus_for_whoever_waits_and_may_not_be_moved_later_from_six_hours_on() -> None:
    assert ControllerRules().rules.starvation_seconds == guards.LONGEST_WAIT


def test_nobody_comes_before_a_more_urgent_job_that_waits() -> None:
    assert "uid-large" not in placed(Rudder(analytic()).decide(crowd(OVERDUE_FOR_WEEKS, urgent=1)))


def test_a_job_that_was_stopped_waits_anew() -> None:
    now = crowd(OVERDUE_FOR_WEEKS)
    again = replace(now.jobs[0], restarts=1, waits_since=NOW - 60)
    assert "uid-large" not in placed(Rudder(analytic()).decide(replace(now, jobs=(again, *now.jobs[1:]))))


def lifted(now: Snapshot) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    menus = rudder.market(now).menus
    waits = np.array([guards.waited(now, menu.job) for menu in menus])
    return guards.lift(menus, waits, np.ones(len(menus)), np.ones(len(menus), dtype=np.bool_))


def test_only_so_many_come_before_others_at_a_time_and_those_first_who_have_waited_longest() -> None:
    jobs = [job(f"j{number}", created=OVERDUE - number) for number in range(guards.MOST_OVERDUE + 3)]
    now = snapshot([node("n1")], jobs)
    assert np.flatnonzero(lifted(now)).tolist() == list(range(3, len(jobs)))


def test_a_tenant_with_many_old_jobs_leaves_a_place_to_others() -> None:
    many = [job(f"j{number}", created=OVERDUE - 600 - number, namespace="many") for number in range(40)]
    now = snapshot([node("n1")], [*many, job("few", created=OVERDUE, namespace="few")])
    assert np.flatnonzero(lifted(now)).tolist() == [37, 38, 39, 40]


def test_jobs_that_can_have_nothing_do_not_take_the_places_of_those_that_have_waited_too_long() -> None:
    """Of four tenants whose queue has no quota left, and a fifth."""
    queue = {"queue": "empty", "priority": 1, "created": OVERDUE - HOUR}
    stuck = [job(f"stuck{n}", namespace=f"t{n}", **queue) for n in range(guards.MOST_OVERDUE)]
    now = crowd(OVERDUE_FOR_WEEKS)
    now = replace(now, jobs=(*stuck, *now.jobs), quotas=(Quota("empty", "*", 0),))
    assert "uid-large" in placed(Rudder(analytic()).decide(now))


def test_no_size_of_any_job_ends_the_turn_of_another() -> None:
    """Work of centuries makes the worth of all others as large as one likes: worth is relative to the mean."""
    now = crowd(OVERDUE_FOR_WEEKS)
    held = placement("uid-large", {"n1": 8})
    mine = replace(now.jobs[0], placement=held, preemptible=True, elastic=True, started=NOW - 60, priority=9)
    tiny = [job(f"t{n}", gpus=(8, 8), steps=1, created=OVERDUE - n, priority=9) for n in range(8)]
    ages = [job(f"a{n}", model="llama3-8b", steps=10**9, global_batch_size=4096, created=NOW) for n in range(30)]
    levels = [job(f"p{n}", created=NOW, priority=n) for n in range(9)]
    world = replace(now, nodes=(node("n1", free=0),), jobs=(mine, *tiny, *ages, *levels))
    assert not Rudder(analytic()).decide(world).stops


def test_who_got_gpus_after_a_long_wait_is_not_stopped_at_once() -> None:
    held = placement("uid-large", {"n1": 8})
    now = crowd(OVERDUE_FOR_WEEKS)
    large = replace(now.jobs[0], placement=held, preemptible=True, elastic=True)
    full = replace(now, nodes=(node("n1", free=0),))

    def stopped(ran: float) -> bool:
        mine = replace(large, started=NOW - ran)
        return bool(Rudder(analytic()).decide(replace(full, jobs=(mine, *now.jobs[1:]))).stops)

    assert not stopped(60.0)
    assert stopped(guards.TURN + 60)


def stream(hours: float) -> list[Job]:
    """A gang that needs the whole cluster, and short jobs that would fill it for so long."""
    large = job("large", gpus=(8, 8), model="gpt3-1.3b", steps=20_000, created=0.0)
    every = range(0, int(hours * 60), 5)
    return [large, *(job(f"s{at}", gpus=(2, 8), model="gpt3-1.3b", steps=1_500, created=60.0 * at) for at in every)]


def first_start(policy: Policy, jobs: list[Job]) -> float:
    """Seconds until the large job starts."""
    cluster = replace(snapshot([node("n1")]), time=0.0)
    run = simulate(policy, llm.jobs(jobs, cluster), cluster)
    [record] = [each for each in run.jobs if each.uid == "uid-large"]
    assert record.started is not None
    return record.started


@pytest.mark.parametrize("controller", [False, True])
def test_in_a_stream_of_short_jobs_a_wait_is_bounded(controller: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound: what is due at once, and until the GPUs may be taken from those that hold them."""
    policy: Policy = Rudder()
    bound = guards.LONGEST_WAIT + guards.LEAST_RUN + SimRules().heartbeat
    assert first_start(SimulatedController(policy) if controller else policy, stream(12)) <= bound
    if not controller:
        monkeypatch.setattr(guards, "lift", lambda menus, waits, best, possible: np.zeros(len(menus)))
        assert first_start(policy, stream(12)) > bound


@pytest.mark.parametrize(
    ("now", "longest"), [(0.0, guards.LONGEST_WAIT), (1e6 / HOUR, guards.LONGEST_WAIT), (1e6 / (30 * HOUR), 30 * HOUR)]
)
def test_nobody_waits_on_purpose_for_longer_than_it_would_take_on_what_is_there(now: float, longest: float) -> None:
    """`now`: steps/s on the best of what is free, 0 if nothing is; a million steps are left."""
    fixed, options = np.zeros((1, 8)), np.zeros((2, 6))
    fixed[:, [worth.LEFT, worth.BEST, worth.SPAN]] = 1e6, 1e3, 1e12
    options[:, worth.RATE] = 1e3, now
    owner, comes = np.zeros(2, dtype=np.int64), np.array([600.0, 0.0 if now else np.inf])

    def waits(waited: float) -> bool:
        return bool(on_purpose(fixed, options, owner, comes, np.array([waited]))[0])

    assert waits(0.0)
    assert waits(longest - 600)
    assert not waits(longest - 599)


def awaits_fast_gpus(created: float, seconds: float) -> Snapshot:
    """A job that takes so long on the GPUs that are free beside faster ones, whose holder has been about to end ever
    since."""
    fixed = job("fixed", gpus=(8, 8), model="gpt3-1.3b", steps=1_000, created=created)
    holder = running("holder", {"fast": 8}, H100, finish=NOW + 60)
    now = snapshot([node("fast", H100, free=0), node("slow", A100)], [holder, fixed])
    slow = max(each.option.prediction.step_seconds for each in candidates(now, Capacity(now), fixed))
    long = replace(fixed, training=replace(fixed.training, steps=round(seconds / slow)))
    return replace(now, jobs=(holder, long))


@pytest.mark.parametrize(
    ("waited", "seconds", "starts"),
    [
        (60.0, 20 * HOUR, False),
        (guards.LONGEST_WAIT + 60, 20 * HOUR, False),
        (21 * HOUR, 20 * HOUR, True),
        (guards.LONGEST_WAIT + 60, 5 * HOUR, True),
    ],
)
def test_who_waited_on_purpose_takes_what_there_is_once_it_could_have_ended_there(
    waited: float, seconds: float, starts: bool
) -> None:
    decision = Rudder().decide(awaits_fast_gpus(NOW - waited, seconds))
    assert placed(decision) == ({"uid-fixed"} if starts else set())
    if not starts:
        [waits] = decision.pending
        assert waits.reason is PendingReason.WAITING_FOR_BETTER
        assert waits.awaited is not None
        assert (waits.awaited.gpu_type, waits.awaited.gpus) == (H100, 8)


def test_who_could_have_nothing_sooner_waits_for_want_of_gpus_and_not_on_purpose() -> None:
    holder = running("holder", {"n1": 8}, finish=NOW + 60)
    now = snapshot([node("n1", free=0)], [holder, job("fixed", gpus=(8, 8), steps=1000)])
    [waits] = Rudder().decide(now).pending
    assert waits.reason is PendingReason.INSUFFICIENT_GPUS
    assert "needs at least 8×A100-SXM4-80GB" in waits.message
    assert waits.awaited is not None
    assert (waits.awaited.gpu_type, waits.awaited.gpus) == (A100, 8)


def test_who_comes_first_is_said_of_jobs_that_cannot_be_moved_later_by_what_they_make_of_gpus() -> None:
    holder = running("holder", {"n1": 8}, finish=NOW + 6 * HOUR)
    long, short = (job(name, gpus=(8, 8), steps=steps) for name, steps in (("long", 10**6), ("short", 10**3)))
    later = job("later", gpus=(8, 8), steps=10**3, elastic=True)
    decision = Rudder(analytic()).decide(snapshot([node("n1", free=0)], [holder, long, short, later]))
    assert decision.line == ("uid-short", "uid-long")


def test_before_all_these_come_those_that_have_waited_for_too_long_whether_they_can_be_moved_later_or_not() -> None:
    """Whose GPUs cannot be taken from anybody has to be kept what becomes free: else small jobs take it, one by one."""
    holders = [running(f"h{half}", {"n1": 4}, finish=NOW + (half + 1) * HOUR) for half in range(2)]
    whole = job("whole", gpus=(8, 8), steps=10**3, elastic=True, created=OVERDUE)
    small = job("small", gpus=(4, 4), steps=10**6)
    now = snapshot([node("n1", free=0)], [*holders, small, whole])
    assert Rudder(analytic()).decide(now).line == ("uid-whole", "uid-small")

    stuck = job("stuck", gpus=(4, 4), queue="empty", priority=1, created=OVERDUE, elastic=True)
    beside = replace(now, jobs=(*now.jobs, stuck), quotas=(Quota("empty", "*", 0),))
    line = Rudder(analytic()).decide(beside).line or ()
    assert "uid-whole" in line, "whoever is more urgent and can have nothing is not in its way"

    ended = replace(now, jobs=now.jobs[1:], nodes=(node("n1", free=4),))

    def starts(seen: Snapshot) -> set[str]:
        return {each.job for each in SimulatedController(Rudder(analytic())).decide(seen).placements}

    assert starts(ended) == set()
    later = replace(whole, created=NOW - HOUR)
    assert starts(replace(ended, jobs=(*ended.jobs[:-1], later))) == {"uid-small"}


def test_an_option_is_weighed_against_what_the_job_gets_or_waits_for() -> None:
    now = awaits_fast_gpus(NOW - 60, 20 * HOUR)
    rudder_ = Rudder()
    assert "which it waits for" in str(rudder_.weigh(now, "uid-fixed", A100, 8))
    assert rudder_.weigh(now, "uid-fixed", T4, 8) is None, "it has no such option"
    assert rudder_.weigh(now, "uid-holder", H100, 8) is None, "it is not decided about"
    free = replace(now, nodes=(node("fast", H100), node("slow", A100)), jobs=now.jobs[1:])
    assert rudder_.weigh(free, "uid-fixed", H100, 8) == "worth most to it, all things considered"
    assert str(rudder_.weigh(free, "uid-fixed", A100, 8)).startswith("worth ")


# --- moving -----------------------------------------------------------------------------------------------------------
class Noisy:
    """Rudder, whose predictions are corrected anew in each decision, by any factor."""

    name = "rudder"

    def __init__(self, seed: int) -> None:
        self._rudder, self._random = Rudder(analytic()), np.random.default_rng(seed)

    def decide(self, now: Snapshot) -> Decision:
        """As of `Policy`."""
        return self._rudder.decide(replace(now, jobs=tuple(self._misjudged(each) for each in now.jobs)))

    def _misjudged(self, each: Job) -> Job:
        factors = np.exp(self._random.normal(0.0, 1.0, 3))
        errors = (Correction(name, "", float(by), 1.2) for name, by in zip((A100, H100, T4), factors, strict=True))
        return replace(each, corrections=tuple(errors))


def most_restarts_in_an_hour(run: Run) -> int:
    begins: dict[int, list[float]] = {}
    for span in run.spans:
        begins.setdefault(span.job, []).append(span.begin)
    hours = ((begin, each) for each in begins.values() for begin in each)
    return max(sum(begin <= other < begin + HOUR for other in sorted(each)[1:]) for begin, each in hours)


def test_however_predictions_change_no_job_is_restarted_more_often_than_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = replace(snapshot([node("a"), node("h", H100), node("t", T4, gpus=4)]), time=0.0)
    jobs = [job(f"j{n}", gpus=(1, 8), model="gpt2-xl", steps=60_000, created=600.0 * n) for n in range(6)]
    often = SimRules(heartbeat=100.0)

    def run() -> int:
        return most_restarts_in_an_hour(simulate(Noisy(3), llm.jobs(jobs, cluster), cluster, often))

    assert run() <= guards.MOST_PER_HOUR
    monkeypatch.setattr(guards, "rested", lambda now: now)
    assert run() > guards.MOST_PER_HOUR


@pytest.mark.parametrize(
    ("restarts", "age", "ran", "kept"),
    [
        (5, HOUR, 1.0, False),
        (6, HOUR, 299.0, True),
        (6, HOUR, 300.0, False),
        (10, HOUR, 300.0, False),
        (11, HOUR, 899.0, True),
        (11, HOUR, 900.0, False),
        (11, 2 * HOUR, 300.0, False),
    ],
)
def test_after_some_restarts_a_gang_is_left_alone_for_a_while_and_for_longer_the_more_they_were_in_its_time(
    restarts: int, age: float, ran: float, kept: bool
) -> None:
    gang = running("r", {"n1": 4}, preemptible=True, restarts=restarts, started=NOW - ran, created=NOW - age)
    now = snapshot([node("n1", free=4)], [gang])
    assert guards.rested(now).jobs[0].preemptible is not kept


# --- what users state -------------------------------------------------------------------------------------------------
def test_who_runs_on_beyond_all_that_it_stated_is_not_about_to_end() -> None:
    def left(hours: float) -> float:
        liar = running("liar", {"n1": 8}, steps=100, steps_done=100, served={A100: hours * HOUR * 8}, preemptible=True)
        (menu,) = rudder.market(snapshot([node("n1", free=0)], [liar])).menus
        return guards.steps_left(menu) / float(menu.rate[menu.current])

    assert left(0.0) < 60.0
    assert left(10.0) > HOUR
    assert left(100.0) > 9 * left(10.0)


def test_who_has_made_more_than_it_stated_has_a_part_of_that_left_and_who_may_just_be_saving_has_none() -> None:
    def left(beyond: int) -> float:
        longer = running("longer", {"n1": 8}, steps=1000, steps_done=1000, steps_beyond=beyond, preemptible=True)
        return guards.steps_left(rudder.market(snapshot([node("n1", free=0)], [longer])).menus[0])

    assert [left(beyond) for beyond in (0, 1, 25, 249, 400)] == [1.0, 10.0, 250.0, 250.0, 400.0]


def test_who_stated_a_step_and_runs_for_hours_gives_way_to_who_stated_the_truth() -> None:
    def world(hours: float) -> Snapshot:
        liar = running(
            "liar", {"n1": 8}, steps=100, steps_done=100, preemptible=True, elastic=True,
            created=NOW - hours * HOUR, started=NOW - hours * HOUR, served={A100: hours * HOUR * 8},
        )  # fmt: skip
        liar = replace(liar, requirements=job(gpus=(8, 8)).requirements)
        return snapshot([node("n1", free=0)], [liar, job("honest", gpus=(8, 8), steps=20_000, created=NOW)])

    assert not Rudder(analytic()).decide(world(0.0)).stops
    assert [stop.job for stop in Rudder(analytic()).decide(world(1000.0)).stops] == ["uid-liar"]


# --- idling -----------------------------------------------------------------------------------------------------------
def idle_beside(now: Snapshot, decision: Decision, waits: Iterable[str]) -> list[str]:
    """Jobs of these that have no GPUs although there is room for them now, once all is done that was decided."""
    then = after(now, decision)
    free = Capacity(then)
    left = {each.job for each in decision.pending} & set(waits)
    return [
        each.name
        for each in then.jobs
        if each.uid in left and any(has_room(free, each, option) for option in candidates(then, free, each))
    ]


@pytest.mark.parametrize("steps", [1, 60, 2000])
@pytest.mark.parametrize("preemptible", [False, True])
def test_a_job_that_is_over_sooner_than_it_begins_starts_on_what_nobody_else_wants(
    steps: int, preemptible: bool
) -> None:
    tiny = job("tiny", gpus=(1, 8), steps=steps, preemptible=preemptible, created=NOW)
    alone = snapshot([node("n1"), node("n2", free=0)], [tiny, running("other", {"n2": 8})])
    assert placed(Rudder().decide(alone)) == {"uid-tiny"}
    rest = snapshot([node("n1", free=2)], [tiny, running("other", {"n1": 6})])
    assert placed(Rudder().decide(rest)) == {"uid-tiny"}


def test_what_anybody_else_wants_is_not_for_a_job_that_nothing_is_worth_anything_to() -> None:
    tiny = job("tiny", gpus=(1, 8), steps=1, preemptible=True, created=NOW)
    large = job("large", gpus=(8, 8), steps=1_000_000, created=NOW)
    assert placed(Rudder().decide(snapshot([node("n1")], [tiny, large]))) == {"uid-large"}


def test_a_tiny_job_that_is_starting_is_not_stopped_for_nothing() -> None:
    tiny = running("tiny", {"n1": 4}, steps=60, preemptible=True, elastic=True, resuming=80.0, started=NOW - 1)
    assert not Rudder().decide(snapshot([node("n1", free=4)], [tiny])).stops
    beside = job("beside", gpus=(1, 2), steps=100_000, created=NOW)
    assert not Rudder().decide(snapshot([node("n1", free=4)], [tiny, beside])).stops


@given(snapshots())
@settings(max_examples=40, deadline=None)
def test_nothing_is_idle_beside_who_may_be_moved_later_or_has_waited_for_long(now: Snapshot) -> None:
    movable = replace(now, jobs=tuple(replace(each, elastic=True) for each in now.jobs))
    overdue = replace(now, jobs=tuple(replace(each, created=LONG_AGO) for each in now.jobs))
    for seen in (movable, overdue):
        for policy in (Rudder(analytic()), Rudder(wild())):
            decision = policy.decide(seen)
            assert check(seen, decision).refused == ()
            assert idle_beside(seen, decision, placed(decision) | {each.job for each in decision.pending}) == []


@given(snapshots())
@settings(max_examples=25, deadline=None)
def test_in_the_controller_gpus_are_idle_only_where_they_are_kept_for_somebody(now: Snapshot) -> None:
    movable = replace(now, jobs=tuple(replace(each, elastic=True) for each in now.jobs))
    controller = SimulatedController(Rudder(analytic()))
    outcome = controller.outcome(movable)
    decision = Decision("rudder", outcome.placements, outcome.pending, outcome.stops)
    idle = idle_beside(movable, decision, {each.job for each in outcome.pending})
    assert not idle or outcome.reserved


def test_a_quota_is_kept_where_gpus_are_idle() -> None:
    jobs = [job(f"j{n}", gpus=(2, 2), queue="q", created=OVERDUE) for n in range(4)]
    decision = Rudder(analytic()).decide(snapshot([node("n1")], jobs, quotas=[Quota("q", "*", 4)]))
    assert sum(each.gpus for each in decision.placements) == 4


# --- believing --------------------------------------------------------------------------------------------------------
def ordinary() -> Snapshot:
    jobs = [job(f"j{n}", gpus=(1, 8), steps=10 ** (2 + n), elastic=True) for n in range(4)]
    return snapshot([node("n1"), node("n2", H100)], jobs)


def narrow(now: Snapshot, *, by: float = 0.0) -> np.ndarray:
    """The ranges of just this snapshot, narrowed by so much on both sides."""
    offered = rudder.market(now)
    given_ = rudder.columns(now, offered, offered.menus)
    z = worth.features(*worth.pressure(analytic(), given_.jobs), *given_)
    return np.array([z.min(axis=1) + by, z.max(axis=1) - by])


def test_what_it_was_trained_on_it_decides_by_its_network() -> None:
    now = ordinary()
    known, unbound = Rudder(Trained(wild(), narrow(now))).decide(now), Rudder(wild()).decide(now)
    # The words differ: contributions of features are counted from the middle of the training.
    assert [replace(each, reason="") for each in known.placements] == [
        replace(each, reason="") for each in unbound.placements
    ]
    assert (known.pending, known.stops, known.doubts) == (unbound.pending, unbound.stops, ())


def test_a_job_unlike_all_of_training_is_scored_without_the_network_and_told_so() -> None:
    now = ordinary()
    ranges = narrow(now)
    odd = replace(now.jobs[0], uid="uid-odd", name="odd", training=replace(now.jobs[0].training, steps=10**9))
    seen = replace(now, jobs=(*now.jobs, odd))
    wider = np.array([np.minimum(ranges[0], -50.0), np.maximum(ranges[1], 50.0)])
    wider[:, 1] = ranges[:, 1]  # the work left
    decision = Rudder(Trained(wild(), wider)).decide(seen)
    [doubt] = decision.doubts
    assert (doubt.reason, doubt.jobs) == (DoubtReason.OUT_OF_TRAINING, ("uid-odd",))
    assert "work left" in doubt.message
    texts = {each.job: each.reason for each in decision.placements}
    texts |= {each.job: each.message for each in decision.pending}
    assert [uid for uid, text in texts.items() if doubt.message in text] == ["uid-odd"]


def test_where_all_is_unlike_training_the_analytic_form_decides() -> None:
    now = ordinary()
    beyond = np.array([[60.0] * worth.FEATURES, [61.0] * worth.FEATURES])
    strange, base = Rudder(Trained(wild(), beyond)).decide(now), Rudder(analytic()).decide(now)
    assert [each.shares for each in strange.placements] == [each.shares for each in base.placements]
    assert {uid for doubt in strange.doubts for uid in doubt.jobs} == {each.uid for each in now.jobs}


def test_a_little_beyond_the_ranges_is_still_believed() -> None:
    now = ordinary()
    assert Rudder(Trained(wild(), narrow(now, by=guards.LEAST_MARGIN / 2))).decide(now).doubts == ()


def test_where_what_was_learned_is_not_finite_the_form_before_any_training_decides() -> None:
    now = ordinary()
    broken = analytic()._replace(constants=np.where(np.arange(len(worth.CONSTANTS)) == 1, np.inf, worth.ANALYTIC))
    decision, base = Rudder(broken).decide(now), Rudder(analytic()).decide(now)
    assert [each.shares for each in decision.placements] == [each.shares for each in base.placements]
    assert {doubt.reason for doubt in decision.doubts} == {DoubtReason.NOT_FINITE}


def test_the_shipped_ranges_hold_what_it_was_trained_on() -> None:
    ranges = shipped().ranges
    assert np.isfinite(ranges).all()
    assert (ranges[0] <= ranges[1]).all()
    drawn = workload(Scenario("", "generator:llm", "h100-64", window_jobs=40, seed=9))
    waiting = tuple(replace(each, elastic=True, created=0.0) for each in drawn.described[:12])
    now = replace(clusters.cluster("h100-64"), time=60.0, jobs=waiting)
    assert Rudder(Trained(wild(), ranges)).decide(now).doubts == ()


def test_one_job_of_centuries_makes_nobody_elses_case_strange() -> None:
    now, trained = burst(5), Trained(wild(), shipped().ranges)
    assert Rudder(trained).decide(now).doubts == ()
    liar = job("liar", model="llama3-8b", steps=10**9, global_batch_size=65536, gpus=(8, 8), created=0.0)
    doubted = Rudder(trained).decide(replace(now, jobs=(*now.jobs, liar))).doubts
    assert {uid for doubt in doubted for uid in doubt.jobs} == {"uid-liar"}


def test_a_flood_of_jobs_that_can_have_nothing_changes_no_more_than_the_heaviest_load_of_training() -> None:
    usual = burst(10)
    flood = [job(f"f{number}", queue="empty", gpus=(8, 8), created=NOW) for number in range(400)]
    menus = [menu for menu in rudder.market(replace(usual, jobs=(*usual.jobs, *flood))).menus if menu.options]
    given = rudder.columns(usual, rudder.market(usual), menus)
    first = np.cumsum([0, *(len(menu.options) for menu in menus)])
    trained = Trained(analytic(), shipped().ranges)
    load, log_w = worth.pressure(trained.network, given.jobs)
    heaviest = float(guards.bounds(trained.ranges)[1, worth.LOAD])
    assert load > heaviest
    found = rudder._judged(trained, given, first, menus).worth
    assert np.array_equal(found, worth.analytic_worth(trained.network, heaviest, log_w, *given))


# --- weights that cannot be used --------------------------------------------------------------------------------------
def weights(folder: Path, schema: str = rudder.SCHEMA, **changes: np.ndarray) -> Path:
    """A file of weights, with whatever is in it."""
    arrays = {**shipped().network._asdict(), worth.RANGES: shipped().ranges} | changes
    card = replace(store.read_card("rudder"), schema=schema)
    path = folder / "rudder.safetensors"
    store.save(path, {name: np.nan_to_num(array) for name, array in arrays.items()}, card)
    data = store.pack(path, arrays)
    store.replace(path, data)
    digest = store.hashlib.sha256(data).hexdigest()
    store.replace(path.with_suffix(".json"), store.msgspec.json.encode(replace(card, sha256=digest)))
    return path


def told(policy: Policy, now: Snapshot) -> tuple[str, str]:
    """Who decided in the end, and why rudder did not."""
    outcome = Engine(lambda name: policy if name == "rudder" else _fcfs()).decide(now, Choice("rudder", "fcfs"))
    [failure] = {(each.policy, each.message) for each in outcome.fallbacks}
    assert failure[0] == "rudder"
    assert outcome.placements
    return next(iter(outcome.policies.values())), failure[1]


def _fcfs() -> Policy:
    from trimtab_policy.policy import load

    return load("fcfs")


def test_weights_that_are_no_numbers_are_refused_and_another_policy_decides(tmp_path: Path) -> None:
    path = weights(tmp_path, skip=np.full(worth.FEATURES, np.nan))
    with pytest.raises(store.WeightsError, match="skip"):
        Rudder(path).decide(ordinary())
    assert told(Rudder(path), ordinary())[0] == "fcfs"


def test_weights_without_ranges_are_refused_with_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(store.WeightsError, match="options/1"):
        Rudder(weights(tmp_path, schema="options/1")).decide(ordinary())


# --- clusters as they should not be ----------------------------------------------------------------------------------
def test_gpu_types_that_nobody_has_ever_seen_are_used() -> None:
    now = ordinary()
    fast = replace(
        catalog.gpu(H100), name="Z900", peak_flops={k: 5 * v for k, v in catalog.gpu(H100).peak_flops.items()}
    )
    seen = replace(now, nodes=(node("z", "Z900"), *now.nodes), gpu_types=now.gpu_types | {"Z900": fast})
    decision = Rudder().decide(seen)
    assert check(seen, decision).refused == ()
    assert "Z900" in {each.gpu_type for each in decision.placements}


@pytest.mark.parametrize("factor", [1e-300, 1e-30, 1e30, 1e300])
def test_absurd_reports_end_in_a_decision_of_somebody(factor: float) -> None:
    now = ordinary()
    mad = replace(now.jobs[0], corrections=(Correction(A100, "", factor, 1.2), Correction(H100, "", factor, 1.2)))
    seen = replace(now, jobs=(mad, *now.jobs[1:]))
    outcome = Engine(lambda name: Rudder() if name == "rudder" else _fcfs()).decide(seen, Choice("rudder", "fcfs"))
    assert {each.job for each in outcome.placements} & {each.uid for each in now.jobs[1:]}
    answered = {each.job for each in outcome.placements} | {each.job for each in outcome.pending}
    assert answered == {each.uid for each in seen.jobs}


def burst(jobs: int) -> Snapshot:
    drawn = workload(Scenario("", "generator:llm", "h100-64", window_jobs=jobs, seed=5))
    waiting = tuple(replace(each, elastic=True, created=0.0) for each in drawn.described)
    return replace(clusters.cluster("h100-64"), time=60.0, jobs=waiting)


def test_ten_times_as_many_jobs_at_once_are_told_of_and_decided_about() -> None:
    """The network was trained on no such load."""
    usual, much = burst(30), burst(300)
    trained = Trained(wild(), narrow(usual))
    decision = Rudder(trained).decide(much)
    assert check(much, decision).refused == ()
    assert DoubtReason.CLUSTER_OUT_OF_TRAINING in {doubt.reason for doubt in decision.doubts}
    assert idle_beside(much, decision, {each.uid for each in much.jobs}) == []


def jct(
    policy: Policy, rules: SimRules | None = None, *, load: float = 1.0, window: int = 21, nodes: Snapshot | None = None
) -> float:
    """Average, in seconds. `window` is the seed of the jobs that come, and of what becomes of nodes."""
    drawn = workload(Scenario("", "generator:llm", "h100-64", load=load, window_jobs=60, seed=window))
    nodes = nodes or clusters.cluster("h100-64")
    run = simulate(
        policy, llm.jobs(drawn.described, nodes, seed=drawn.seed), nodes, replace(rules or SimRules(), seed=window)
    )
    return float(np.mean([each.finished - each.submitted for each in run.jobs if each.finished is not None]))


def unheard_of() -> Snapshot:
    """A cluster of GPUs that nobody has ever seen, five times as fast as any."""
    known, nodes = catalog.gpu(H100), clusters.cluster("h100-64")
    fast = replace(known, name="Z900", peak_flops={kind: 5 * flops for kind, flops in known.peak_flops.items()})
    return replace(
        nodes,
        nodes=tuple(replace(each, gpu_type=fast.name) for each in nodes.nodes),
        gpu_types={fast.name: fast},
    )


LOST = SimRules(misfortunes=FailureModel(gpu_mtbf_seconds=8 * 24 * HOUR, repair_seconds=24 * HOUR))
"""Half of the nodes are away on average."""
BAD_TIMES: dict[str, tuple[SimRules | None, float, Callable[[], Snapshot | None]]] = {
    "ten times the load": (None, 10.0, lambda: None),
    "half of the nodes lost": (LOST, 0.5, lambda: None),
    "GPUs that nobody knows": (None, 1.0, unheard_of),
}


@pytest.mark.parametrize("times", BAD_TIMES)
@pytest.mark.parametrize("window", [21, *(pytest.param(each, marks=pytest.mark.long) for each in (22, 23))])
def test_in_bad_times_it_is_no_worse_than_its_base(times: str, window: int) -> None:
    rules, load, nodes = BAD_TIMES[times]
    ours, base = (jct(each, rules, load=load, window=window, nodes=nodes()) for each in (Rudder(), Rudder(analytic())))
    print(f"{times}, window {window}: {ours / base:.3f} of the JCT of its base")
    assert ours <= 1.05 * base


def test_weights_that_are_no_numbers_cost_nothing_over_a_whole_window() -> None:
    nan = Network(
        worth.ANALYTIC.copy(), *(np.full(shape, np.nan) for name, shape in worth.SHAPES.items() if name != "constants")
    )
    assert jct(Rudder(Trained(nan, guards.unbounded(worth.FEATURES)))) == jct(Rudder(analytic()))


def test_a_network_that_was_trained_on_something_else_costs_nothing() -> None:
    beyond = np.array([[60.0] * worth.FEATURES, [61.0] * worth.FEATURES])
    assert jct(Rudder(Trained(wild(), beyond))) == pytest.approx(jct(Rudder(analytic())), rel=1e-9)


def test_a_decision_about_64_gpus_costs_a_few_times_what_the_simplest_policy_takes() -> None:
    """Which is three to four times; both take milliseconds, and how many is the machine's affair."""
    now = burst(60)

    def cost(policy: Policy) -> float:
        took = []
        for _ in range(8):
            began = time.process_time()
            policy.decide(now)
            took.append(time.process_time() - began)
        return min(took)

    assert cost(Rudder(Trained(wild(), shipped().ranges))) < 8 * cost(BestFit())
