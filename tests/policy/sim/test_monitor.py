"""Whether a policy is worse than its fallback: found where it is, by jobs of more than one tenant, not by chance."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.builders import H100, NOW, job, node, running, snapshot

from trimtab_policy.policy import Kind, Policy, load
from trimtab_policy.sim import monitor
from trimtab_policy.sim.monitor import Budget, Comparison, Contest, Figures, MonitorRules, OutOfTime, Standing
from trimtab_policy.types import Bounds, Decision, Job, Snapshot

DAY = 86400.0
RULES = MonitorRules(least_jobs=20, resamples=500)


class Poisoned:
    """Decides as `best_fit` does, but gives every job as few GPUs as it may have."""

    name, kind, source = "poisoned", Kind.LEARNED, "tests"

    def decide(self, snapshot: Snapshot) -> Decision:
        return load("best_fit").decide(replace(snapshot, jobs=tuple(map(starved, snapshot.jobs))))


class Lazy:
    """Starts nothing at all."""

    name, kind, source = "lazy", Kind.LEARNED, "tests"

    def decide(self, snapshot: Snapshot) -> Decision:
        held = replace(snapshot, nodes=tuple(replace(each, free_gpus=0) for each in snapshot.nodes))
        return load("fcfs").decide(held)


def starved(each: Job) -> Job:
    low = each.requirements.gpus.low
    return replace(each, requirements=replace(each.requirements, gpus=Bounds(low, low)))


def find(name: str) -> Policy:
    own: dict[str, Callable[[], Policy]] = {"poisoned": Poisoned, "lazy": Lazy}
    return own[name]() if name in own else load(name)


def day(jobs: int = 30, seed: int = 1, tenants: int = 4) -> Snapshot:
    """A window of one day on two nodes, in which that many jobs came."""
    draw = np.random.default_rng(seed)
    come = [
        job(
            f"j{number}",
            gpus=(1, 8),
            namespace=f"team-{number % tenants}",
            created=NOW - DAY + 600.0 * number,
            steps=int(draw.integers(2_000, 40_000)),
            elastic=number % 2 == 0,
        )
        for number in range(jobs)
    ]
    return monitor.window(snapshot([node("a"), node("b", H100)]), come, NOW - DAY)


def contest(policy: str, window: Snapshot, rules: MonitorRules = RULES) -> Contest:
    return Contest(policy, "best_fit", window, DAY, rules=rules)


def compared(policy: str, window: Snapshot, rules: MonitorRules = RULES) -> Comparison:
    found = monitor.compare(contest(policy, window, rules), find, Budget(1e6))
    assert found
    return found


# --- lives ------------------------------------------------------------------------------------------------------------
def test_a_poisoned_policy_is_found_at_the_first_look() -> None:
    found = compared("poisoned", day())
    assert found.low > 1 + RULES.margin
    assert monitor.judge(Standing(), found, RULES, NOW) == Standing(
        "poisoned", "best_fit", fallen=True, since=NOW, compared=NOW, latest=found
    )


def test_a_policy_that_starts_nothing_is_found_and_its_run_ends() -> None:
    found = compared("lazy", day())
    assert found.ours.unfinished == found.jobs
    assert monitor.worse(found, RULES)


def test_a_policy_beside_itself_is_exactly_as_good_and_stays() -> None:
    found = compared("best_fit", day())
    assert (found.ratio, found.low, found.high, found.without_one) == (1.0, 1.0, 1.0, 1.0)
    assert not monitor.judge(Standing(), found, RULES, NOW).fallen


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_shipped_default_stays(seed: int) -> None:
    assert not monitor.worse(compared("rudder", day(seed=seed)), RULES)


def test_the_same_window_gives_the_same_answer_and_so_does_what_was_written_and_read() -> None:
    once = contest("poisoned", day())
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(once), type=Contest)
    assert monitor.compare(once, find, Budget(1e6)) == monitor.compare(again, find, Budget(1e6))


def test_of_too_few_jobs_nothing_is_said() -> None:
    assert monitor.compare(contest("poisoned", day(jobs=19)), find, Budget(1e6)) is None


def test_jobs_that_could_never_run_are_left_out() -> None:
    window = day()
    huge = job("huge", gpus=(512, 512), created=NOW - 60)
    found = compared("poisoned", replace(window, jobs=(*window.jobs, huge)))
    assert found.of == len(window.jobs)


def test_what_a_waiting_job_states_is_believed_for_the_length_of_the_window_at_most() -> None:
    window = day()
    last = window.jobs[-1]
    said = [replace(last, training=replace(last.training, steps=steps)) for steps in (10**12, 10**17)]
    one, other = (compared("poisoned", replace(window, jobs=(*window.jobs[:-1], each))) for each in said)
    assert one == other


# --- time -------------------------------------------------------------------------------------------------------------
class Clock:
    """CPU time that passes by a step each time it is asked for."""

    def __init__(self, step: float) -> None:
        self.now, self.step, self.rested = 0.0, step, 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now

    def rest(self, seconds: float) -> None:
        self.rested += seconds


def test_where_time_is_short_the_jobs_that_came_last_are_compared() -> None:
    clock = Clock(1.0)
    window = day(jobs=60)
    whole = Budget(1e6, clock=clock)
    assert monitor.compare(contest("poisoned", window), find, whole)
    part = monitor.compare(contest("poisoned", window), find, Budget((1e6 - whole.left) / 3, clock=Clock(1.0)))
    assert part
    assert (part.of, part.jobs) in {(60, 20), (60, 40)}
    assert part == replace(compared("poisoned", replace(window, jobs=window.jobs[-part.jobs :])), of=60)


def test_where_there_is_hardly_any_time_nothing_is_said() -> None:
    assert monitor.compare(contest("poisoned", day()), find, Budget(5.0, clock=Clock(1.0))) is None


def test_it_rests_so_that_it_takes_no_more_than_its_share_of_a_core() -> None:
    clock = Clock(1.0)
    budget = Budget(100.0, 0.25, clock, clock.rest)
    for _ in range(10):
        budget.spend()
    used = 100.0 - budget.left
    assert clock.rested == pytest.approx(3 * used)
    budget.left = 0.5
    with pytest.raises(OutOfTime):
        budget.spend()


def test_a_flood_of_one_namespace_does_not_take_the_places_of_the_others() -> None:
    came = [f"team-{number % 4}" for number in range(40)] + ["flood"] * 1000
    found = monitor.latest(came, str, 40, 0.25)
    assert len(found) == 40
    assert found.count("flood") == 10
    assert found == sorted(found, key=lambda name: name == "flood"), "as they came"


def test_where_all_fit_or_there_are_two_namespaces_nobody_is_left_out() -> None:
    came = ["a"] * 3 + ["b", "c"] + ["a"] * 95
    assert monitor.latest(came, str, 100, 0.25) == came
    assert monitor.latest(["b", *["a"] * 99], str, 50, 0.25) == ["a"] * 50


# --- windows ----------------------------------------------------------------------------------------------------------
def test_a_window_begins_with_nodes_that_our_jobs_have_left_and_others_have_not() -> None:
    runs = running("runs", {"a": 4}, created=NOW - DAY)
    gone = running("gone", {"lost": 4}, created=NOW - DAY)
    now = snapshot([node("a", free=2), node("b", free=8)], [runs, gone, job("waits")])
    found = monitor.window(now, [replace(runs, steps_done=7, policy="random", restarts=3)], NOW - DAY)
    assert {each.name: each.free_gpus for each in found.nodes} == {"a": 6, "b": 8}
    [come] = found.jobs
    assert (come.placement, come.steps_done, come.policy, come.restarts) == (None, 0, None, 0)
    assert found.time == NOW - DAY


# --- verdicts ---------------------------------------------------------------------------------------------------------
def said(ratio: float, *, low: float | None = None, without: float | None = None, jobs: int = 100) -> Comparison:
    figures = Figures(100.0, 200.0, 0, 0)
    least = ratio - 0.01 if low is None else low
    without = ratio if without is None else without
    return Comparison("rudder", "best_fit", jobs, jobs, ratio, least, ratio + 0.01, without, figures, figures)


@pytest.mark.parametrize(
    ("found", "falls"),
    [
        (said(1.2), True),
        (said(1.04), False),  # within the margin
        (said(1.2, low=0.98), False),  # may be chance
        (said(1.2, without=1.03), False),  # one namespace alone says so
        (said(3.0, jobs=19), False),  # too few
    ],
)
def test_it_falls_for_what_is_large_sure_and_of_more_than_one_tenant(found: Comparison, falls: bool) -> None:
    assert monitor.judge(Standing(), found, RULES, NOW).fallen is falls


def test_who_has_fallen_comes_back_after_several_good_looks_in_a_row_and_not_before() -> None:
    standing = monitor.judge(Standing(), said(1.2), RULES, NOW)
    seen = []
    for ratio in (0.9, 0.9, 0.9, 1.01, 0.9, 0.9, 0.9, 0.9, 0.9):
        standing = monitor.judge(standing, said(ratio), RULES, NOW + 1)
        seen.append(standing.fallen)
    assert seen == [True] * 7 + [False] * 2
    assert standing.since == NOW + 1


def test_what_was_found_of_one_policy_says_nothing_of_another() -> None:
    standing = monitor.judge(Standing(), said(1.2), RULES, NOW)
    other = replace(said(1.0), policy="sia")
    assert monitor.judge(standing, other, RULES, NOW) == Standing("sia", "best_fit", compared=NOW, latest=other)


@given(st.lists(st.floats(0.3, 3.0), max_size=30))
@settings(max_examples=50, deadline=None)
def test_in_no_history_does_it_change_more_often_than_once_in_so_many_looks(ratios: list[float]) -> None:
    standing, changes = Standing("rudder", "best_fit"), []
    for number, ratio in enumerate(ratios):
        after = monitor.judge(standing, said(ratio), RULES, NOW)
        if after.fallen != standing.fallen:
            changes.append((number, after.fallen))
        standing = after
    returns = [(fell, back) for (fell, _), (back, _) in zip(changes[::2], changes[1::2], strict=False)]
    assert all(back - fell >= RULES.returns_after for fell, back in returns)


# --- statistics -------------------------------------------------------------------------------------------------------
def test_where_no_namespace_is_too_large_the_ratio_is_that_of_the_averages() -> None:
    draw = np.random.default_rng(3)
    theirs, ours = draw.uniform(50, 150, 400), draw.uniform(50, 200, 400)
    ratio, low, high = monitor.interval(ours, theirs, np.arange(400) % 8, RULES)
    assert ratio == pytest.approx(ours.mean() / theirs.mean())
    assert low < ratio < high


def test_one_namespace_counts_for_its_bounded_part_however_much_it_has() -> None:
    namespaces = np.arange(100) % 5
    theirs = np.where(namespaces == 0, 1e9, 100.0)
    ours = np.where(namespaces == 0, 1.2 * theirs, theirs)
    ratio, _, _ = monitor.interval(ours, theirs, namespaces, RULES)
    assert ratio == pytest.approx(1 + 0.2 * RULES.most_share)


@given(st.integers(3, 7), st.floats(0.01, 1e4), st.floats(1.0, 1e6), st.integers(1, 200))
@settings(max_examples=100, deadline=None)
def test_no_single_namespace_makes_a_policy_fall(tenants: int, factor: float, size: float, jobs: int) -> None:
    """Whatever its own jobs are like, and however many, if others are served as well by both."""
    namespaces = np.concatenate((np.zeros(jobs, dtype=np.int64), np.arange(60) % (tenants - 1) + 1))
    theirs = np.where(namespaces == 0, size, 100.0)
    ours = np.where(namespaces == 0, factor * size, 100.0)
    assert monitor.without_one(ours, theirs, namespaces, RULES) <= 1.0 + 1e-9


@pytest.mark.parametrize(
    ("field", "value"),
    [("margin", -0.1), ("margin", np.inf), ("most_share", 0.0), ("level", 1.0), ("least_jobs", 0), ("resamples", 0)],
)
def test_rules_that_make_no_sense_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{field} "):
        replace(RULES, **{field: value})  # type: ignore[arg-type]  # fields of several types
