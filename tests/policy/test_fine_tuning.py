"""Fine-tuning on logs: what is left of tuned weights keeps its bounds, and goes where its trial shows harm."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.policy.learned.random_offers import random_offers

from trimtab_lab.agents.fine_tuning import (
    Judged,
    Trial,
    TuningBound,
    TuningVerdict,
    Weights,
    bet,
    bounded,
    distance,
    returns,
)
from trimtab_policy.observation.encode import Ints, OfferBatch

OFFERS = random_offers(200)


def answer(weights: Weights, offers: OfferBatch) -> Ints:
    """An agent with one weight for every feature of an option."""
    values = offers.options @ weights["scores"]
    found: Ints = np.where(offers.mask[:, :-1], values, -np.inf).argmax(axis=1)
    return found


def drawn(seed: int, scale: float = 1.0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {"scores": np.float32(random.normal(size=8)), "unused": np.float32(scale * random.normal(size=3))}


@given(st.integers(0, 50), st.integers(51, 99), st.floats(0, 2), st.floats(0, 1))
def test_both_bounds_hold_whatever_the_tuned_weights_are(old: int, new: int, far: float, changed: float) -> None:
    before = drawn(old)
    found = bounded(before, drawn(new), answer, OFFERS, TuningBound(distance=far, changed=changed))

    assert distance(before, found) <= far * (1 + 1e-4) + 1e-6
    assert (answer(found, OFFERS) != answer(before, OFFERS)).mean() <= changed
    assert {name: array.dtype for name, array in found.items()} == {name: array.dtype for name, array in before.items()}


def test_weights_within_the_bounds_are_taken_as_they_are() -> None:
    before = drawn(0)
    tuned = {name: array * np.float32(1.01) for name, array in before.items()}
    found = bounded(before, tuned, answer, OFFERS, TuningBound(distance=0.02, changed=0.0))
    for name, array in tuned.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-6)


def test_weights_that_go_too_far_are_drawn_back_on_the_line_just_to_the_bound() -> None:
    before, tuned = drawn(0), drawn(1)
    found = bounded(before, tuned, answer, OFFERS, TuningBound(distance=0.1, changed=1.0))

    assert distance(before, found) == pytest.approx(0.1, rel=1e-4)
    part = (found["scores"] - before["scores"]) / (tuned["scores"] - before["scores"])
    np.testing.assert_allclose(part, part[0], rtol=1e-3)


def test_a_change_of_answers_that_no_part_of_the_way_avoids_leaves_the_old_weights() -> None:
    """Equal scores: the first option wins, until any other weight is a little above 0."""
    before = {"scores": np.zeros(8, dtype=np.float32), "unused": np.ones(3, dtype=np.float32)}
    tuned = before | {"scores": np.full(8, 0.01, dtype=np.float32)}
    found = bounded(before, tuned, answer, OFFERS, TuningBound(changed=0.0))
    np.testing.assert_array_equal(found["scores"], before["scores"])


def test_weights_of_another_network_are_refused() -> None:
    with pytest.raises(ValueError, match="same network"):
        bounded(drawn(0), {"scores": np.zeros(8)}, answer, OFFERS, TuningBound())
    with pytest.raises(ValueError, match="distance must be"):
        TuningBound(distance=-1.0)
    with pytest.raises(ValueError, match="changed must lie"):
        TuningBound(changed=1.5)
    with pytest.raises(ValueError, match="updates must be"):
        TuningBound(updates=0)


def test_returns_add_up_what_follows_until_nothing_counts() -> None:
    found = returns(np.array([1.0, 2.0, 4.0, 8.0]), np.array([0.5, 0.0, 1.0, 0.5]))
    assert found.tolist() == [2.0, 2.0, 12.0, 8.0]


# --- the trial ----------------------------------------------------------------------------------------
def judged(pairs: list[tuple[float, float]]) -> Trial:
    """The trial after these decisions, or after as many as there were when it ended."""
    trial = Trial()
    for tuned, before in pairs:
        if trial.verdict is TuningVerdict.OPEN:
            trial = bet(trial, Judged(tuned, before))
    return trial


def test_better_weights_are_kept_when_the_trial_ends_and_not_before() -> None:
    assert judged([(0.9, 1.0)] * 199).verdict is TuningVerdict.OPEN
    assert judged([(0.9, 1.0)] * 200).verdict is TuningVerdict.KEPT


def test_worse_weights_are_rolled_back_before_the_trial_ends() -> None:
    back = judged([(1.3, 1.0)] * 200)
    assert back.verdict is TuningVerdict.ROLLED_BACK
    assert back.count < 100


def test_weights_that_are_slightly_worse_on_average_do_not_outlive_the_trial() -> None:
    assert judged([(1.001, 1.0)] * 200).verdict is TuningVerdict.ROLLED_BACK
    assert judged([(1.0, 1.0)] * 200).verdict is TuningVerdict.KEPT


def test_the_bet_wins_against_harmless_weights_as_seldom_as_it_promises() -> None:
    """However often one looks: the highest stake of 1,000 decisions counts."""
    random, won = np.random.default_rng(5), 0
    for _ in range(200):
        trial, highest = Trial(), 0.0
        for tuned, before in random.exponential(1.0, (1000, 2)).tolist():
            trial = bet(trial, Judged(tuned, before))
            highest = max(highest, trial.wealth)
        won += highest >= -math.log(trial.risk)
    assert won / 200 <= Trial().risk


def test_a_trial_names_the_field_that_is_wrong() -> None:
    with pytest.raises(ValueError, match="tuned must be"):
        Judged(-1.0, 1.0)
    with pytest.raises(ValueError, match="risk"):
        Trial(risk=1.0)
    with pytest.raises(ValueError, match="window"):
        Trial(window=0)
