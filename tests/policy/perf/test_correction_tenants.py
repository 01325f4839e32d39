"""What tenants teach one another: several that agree teach everybody, and none alone moves anybody else's predictions.

How much is gained and lost by that among many tenants `hack/bench/run tenants` measures.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.builders import A100, H100

from trimtab_policy.perf.correction import alarm, change, learn
from trimtab_policy.perf.hierarchy import CorrectionEstimates, Learned
from trimtab_policy.perf.lessons import CorrectionRules, Key, State
from trimtab_policy.perf.votes import by_namespace, consensus

KEYS = [Key(model, gpu, plan) for model in "abcd" for gpu in (A100, H100) for plan in ("x", "y")]
Errors = st.floats(-8, 8)
Lessons = st.lists(st.tuples(st.sampled_from(KEYS), Errors), max_size=30)


def taught(
    state: State, namespace: str, lessons: Iterable[tuple[Key, float]], rules: CorrectionRules | None = None
) -> State:
    for number, (key, error) in enumerate(lessons):
        job = f"{namespace}-{state.count}-{number}"
        state = learn(state, key, job, error, rules, namespace=namespace)
    return state


def honest(dice: random.Random, truth: dict[Key, float], jobs: int) -> list[tuple[Key, float]]:
    return [(key, dice.gauss(truth[key], 0.05)) for key in dice.choices(KEYS, k=jobs)]


def factors(known: CorrectionEstimates) -> dict[Key, float]:
    return {key: found.factor for key in KEYS if (found := known.of(key))}


@given(Lessons, Lessons)
def test_one_other_namespace_moves_no_prediction_for_what_one_has_not_run_oneself(
    mine: list[tuple[Key, float]], theirs: list[tuple[Key, float]]
) -> None:
    before = taught(State(), "mine", mine)
    after = taught(before, "theirs", theirs)
    ran = {key for key, _ in mine}
    alone, beside = Learned(before).by("mine"), Learned(after).by("mine")
    for key in KEYS:
        if key not in ran:
            assert beside.of(key) == alone.of(key)
    assert factors(Learned(taught(State(), "theirs", theirs)).by("mine")) == {}


@given(Lessons)
def test_what_a_liar_says_erases_nobody_else_s_lessons(lies: list[tuple[Key, float]]) -> None:
    mine = taught(State(), "mine", [(key, 0.2) for key in KEYS[:4]])
    after = taught(mine, "liar", [*lies, *((KEYS[0], 3.0) for _ in range(40))])
    kept = [known for known in after.known if known.namespace == "mine"]
    assert kept == list(mine.known)
    assert all(watch.stream.alarms == 0 for watch in after.watches if watch.namespace == "mine")


def test_nobody_s_many_models_push_out_what_others_have_taught() -> None:
    rules = CorrectionRules(keys=10)
    state = taught(State(), "mine", [(key, 0.2) for key in KEYS[:4]], rules)
    flood = [(Key(f"custom-{number}", A100, "x"), 0.1) for number in range(50)]
    after = taught(state, "liar", flood, rules)
    assert len(after.known) == 10
    assert {known.key for known in after.known if known.namespace == "mine"} == set(KEYS[:4])
    assert [known.key.model for known in after.known if known.namespace == "liar"][-1] == "custom-49"


def test_several_that_agree_teach_who_has_run_nothing_yet() -> None:
    state = State()
    for namespace in "abc":
        state = taught(state, namespace, [(KEYS[0], 0.4)] * 8)
    found = Learned(state).by("newcomer").of(KEYS[0])
    assert found
    assert found.factor == pytest.approx(math.exp(0.4), rel=0.05)
    assert found.jobs == 24
    own = Learned(state).by("a").of(KEYS[0])
    assert own
    assert (own.jobs, own.factor) == (24, pytest.approx(found.factor, rel=0.001)), "one's own count as much as others'"


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(KEYS), Errors), max_size=40), st.randoms())
def test_what_was_learned_last_of_all_makes_no_difference_at_all(
    lessons: list[tuple[str, Key, float]], dice: random.Random
) -> None:
    """To the last bit: what is written down in another order, or read back from it, decides the same."""
    state = State()
    for namespace, key, error in lessons:
        state = taught(state, namespace, [(key, error)])
    mixed = tuple(
        replace(known, seen=tuple(dice.sample(known.seen, len(known.seen))))
        for known in dice.sample(state.known, len(state.known))
    )
    first, second = Learned(state), Learned(replace(state, known=mixed))
    for namespace in "abcd-":
        assert first.by(namespace) == second.by(namespace)
        assert first.spreads(namespace) == second.spreads(namespace)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(KEYS), Errors), min_size=1, max_size=40))
def test_every_interval_is_finite_and_holds_what_it_is_of(lessons: list[tuple[str, Key, float]]) -> None:
    state = State()
    for namespace, key, error in lessons:
        state = taught(state, namespace, [(key, error)])
    known = Learned(state)
    for namespace in "abcd-":
        found = known.by(namespace)
        assert 0 <= found.measured < 1
        for key in KEYS:
            if estimate := found.of(key):
                low, high = found.next(estimate)
                assert 0.001 < low < estimate.factor < high < 1000
                product = math.prod(effect.factor for effect in found.effects(key))
                assert product == pytest.approx(math.exp(estimate.mean))


@pytest.mark.parametrize("lie", [math.log(1000), math.log(3), -math.log(10), 0.3])
def test_a_liar_with_a_third_of_all_jobs_changes_nothing_for_three_that_are_honest(lie: float) -> None:
    dice = random.Random(7)
    truth = {key: dice.gauss(0.1, 0.1) for key in KEYS}
    lessons = {name: honest(dice, truth, 60) for name in "abc"}
    lies = [(key, error + lie) for key, error in honest(dice, truth, 90)]
    state = State()
    for name, each in lessons.items():
        state = taught(state, name, each)
    before, after = Learned(state), Learned(taught(state, "liar", lies))
    for name in ("a", "b", "c", "newcomer"):
        was, now = factors(before.by(name)), factors(after.by(name))
        moved = [abs(math.log(now[key] / was[key])) for key in was]
        assert sum(moved) / len(moved) <= 0.02, name


def test_who_comes_before_the_liar_does_not_matter() -> None:
    dice = random.Random(3)
    truth = dict.fromkeys(KEYS, 0.2)
    parts = [(name, honest(dice, truth, 40)) for name in "abc"] + [("liar", [(key, 2.0) for key in KEYS * 4])]
    found = []
    for order in (parts, parts[::-1]):
        state = State()
        for name, lessons in order:
            state = taught(state, name, lessons)
        found.append(factors(Learned(state).by("newcomer")))
    assert found[0].keys() == found[1].keys()
    for key, factor in found[0].items():
        assert factor == pytest.approx(found[1][key], rel=0.02)


# --- changes that concern all -----------------------------------------------------------------------------------------
def usual(state: State, *namespaces: str, models: str = "ab", error: float = 0.0, jobs: int = 30) -> State:
    for number in range(jobs):
        for namespace in namespaces:
            key = Key(models[number % len(models)], A100, "x")
            state = learn(state, key, f"{namespace}-{state.count}", error, namespace=namespace)
    return state


def alarms(state: State, *namespaces: str, error: float, models: str = "ab") -> int:
    """How often it is told that the type has changed for all, while these namespaces say so."""
    told = 0
    for number in range(30):
        for namespace in namespaces:
            key = Key(models[number % len(models)], A100, "x")
            after = learn(state, key, f"{namespace}-{state.count}", error, namespace=namespace)
            told += alarm(state, after, A100)
            state = after
    return told


def test_one_of_several_namespaces_raises_no_alarm_and_two_do() -> None:
    state = usual(State(), "a", "b", "liar")
    assert alarms(state, "liar", error=3.0) == 0
    assert alarms(state, "a", "b", error=0.7) >= 1


def test_the_only_namespace_there_is_raises_one_itself() -> None:
    assert alarms(usual(State(), "a"), "a", error=0.7) == 1


def test_one_model_of_several_is_no_change_of_all() -> None:
    state = usual(State(), "a", "b")
    assert alarms(state, "a", "b", error=0.7, models="a") == 0
    assert alarms(usual(State(), "a", "b", models="a"), "a", "b", error=0.7, models="a") >= 1


def test_two_that_see_the_opposite_do_not_agree() -> None:
    state = usual(State(), "a", "b")
    up = alarms(state, "a", error=0.9)
    after = usual(usual(state, "a", error=0.9), "b", error=-0.9)
    assert (up, change(after, A100)) == (0, 0.0)


# --- votes ------------------------------------------------------------------------------------------------------------
@given(st.lists(st.floats(-10, 10), max_size=9), st.floats(-1, 1))
def test_votes_come_to_something_between_what_was_said_and_what_goes_without_saying(
    votes: list[float], neutral: float
) -> None:
    found = consensus(votes, neutral)
    assert min([*votes, neutral]) <= found <= max([*votes, neutral])
    if len(votes) < 2:
        assert found == neutral
    assert consensus([*votes, math.nan], neutral) == found


@given(st.floats(-10, 10), st.lists(st.floats(-0.1, 0.1), min_size=3, max_size=9))
def test_one_voter_among_three_others_moves_it_no_farther_than_these_are_apart(lie: float, others: list[float]) -> None:
    assert abs(consensus([*others, lie])) <= 0.1


def test_a_namespace_has_one_vote_whatever_its_jobs_are() -> None:
    assert by_namespace([("a", 1.0), ("a", 9.0), ("a", 2.0), ("b", 5.0)]) == {"a": 2.0, "b": 5.0}


@pytest.mark.parametrize("lie", [-2.0, -1.0, -0.5, 0.5, 1.0, 2.0])
def test_one_job_of_a_liar_does_not_make_one_of_two_honest_namespaces_look_odd(lie: float) -> None:
    """It says little, so that what it says may be anything; the median of it and one other says no more."""
    dice, key = random.Random(2), KEYS[0]
    known = State()
    for namespace in ("a", "b"):
        known = taught(known, namespace, [(key, 0.5 + dice.gauss(0, 0.05)) for _ in range(24)])
    before = Learned(known).by("new").of(key)
    after = Learned(taught(known, "liar", [(key, 0.5 + lie)])).by("new").of(key)
    assert before
    assert after
    assert after.factor == pytest.approx(before.factor, rel=0.02)
