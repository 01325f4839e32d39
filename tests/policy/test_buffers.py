"""Replay: what is kept, how often it is drawn, and what that counts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chisquare

from trimtab_lab.agents.buffers import PrioritisedReplay, ReplayBuffer, SumTree

ERRORS = np.array([0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 0.0, 16.0])


def numbered(count: int, start: int = 0) -> dict[str, NDArray[np.float32]]:
    """Transitions that say which one they are."""
    return {"value": np.arange(start, start + count, dtype=np.float32)}


def surprised() -> PrioritisedReplay:
    """Eight transitions, whose last errors were ERRORS."""
    replay = PrioritisedReplay(8, {"value": ()})
    replay.update(replay.add(numbered(8)), ERRORS)
    return replay


updates = st.lists(
    st.tuples(st.integers(0, 36), st.one_of(st.just(0.0), st.floats(1e-6, 1e6))), min_size=1, max_size=60
)


@given(updates)
def test_a_sum_tree_holds_what_was_put_last_and_its_sum(given_updates: list[tuple[int, float]]) -> None:
    tree, naive = SumTree(37), np.zeros(37)
    for number in range(0, len(given_updates), 7):
        places, values = map(np.array, zip(*given_updates[number : number + 7], strict=True))
        tree.put(places, values)
        for place, value in zip(places, values, strict=True):
            naive[place] = value
    np.testing.assert_array_equal(tree.get(slice(37)), naive)
    assert tree.total == pytest.approx(naive.sum())


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40).filter(any), st.integers(0, 2**31))
def test_a_point_of_the_sum_falls_on_whom_it_falls_on_when_one_counts_through(values: list[int], seed: int) -> None:
    tree = SumTree(len(values))
    tree.put(np.arange(len(values)), np.array(values, dtype=np.float64))
    points = np.random.default_rng(seed).random(50) * sum(values)
    np.testing.assert_array_equal(tree.find(points), np.searchsorted(np.cumsum(values), points, side="right"))


@given(updates, st.integers(0, 2**31))
def test_what_has_no_priority_is_never_found_however_sums_are_rounded(
    given_updates: list[tuple[int, float]], seed: int
) -> None:
    tree = SumTree(37)
    places, values = map(np.array, zip(*given_updates, strict=True))
    tree.put(places, values)
    if tree.total > 0:
        points = np.append(np.random.default_rng(seed).random(50), np.nextafter(1.0, 0.0)) * tree.total
        assert (tree.get(tree.find(points)) > 0).all()


def test_a_full_replay_forgets_the_oldest() -> None:
    replay = ReplayBuffer(5, {"value": (), "pair": (2,)})
    for start in (0, 3):
        replay.add(numbered(3, start) | {"pair": np.full((3, 2), start)})
    batch = replay.sample(np.random.default_rng(0), 200)
    assert set(batch.fields["value"]) == {1, 2, 3, 4, 5}
    assert batch.fields["pair"].shape == (200, 2)
    assert (batch.weights == 1).all()


@pytest.mark.parametrize("replay", [ReplayBuffer(4, {"value": ()}), PrioritisedReplay(4, {"value": ()})])
def test_nothing_can_be_drawn_from_an_empty_replay(replay: ReplayBuffer) -> None:
    with pytest.raises(ValueError, match="empty"):
        replay.sample(np.random.default_rng(0), 1)


def test_only_what_was_added_is_drawn() -> None:
    replay = PrioritisedReplay(100, {"value": ()})
    replay.add(numbered(3, 1))
    assert set(replay.sample(np.random.default_rng(0), 100).fields["value"]) == {1, 2, 3}


def test_transitions_are_drawn_as_often_as_their_errors_say() -> None:
    """Chi-square on draws of one each: those of one batch are stratified, i.e. less scattered than it assumes."""
    replay, random = surprised(), np.random.default_rng(1)
    drawn = np.concatenate([replay.sample(random, 1).places for _ in range(20_000)])
    chances = (ERRORS + 1e-3) ** 0.6
    expected = chances / chances.sum() * len(drawn)
    assert chisquare(np.bincount(drawn, minlength=8), expected).pvalue > 0.01
    assert chisquare(np.bincount(drawn, minlength=8), np.full(8, len(drawn) / 8)).pvalue < 1e-6


def test_a_batch_holds_each_as_often_as_its_share_of_the_total_within_one() -> None:
    batch = surprised().sample(np.random.default_rng(2), 64)
    chances = (ERRORS + 1e-3) ** 0.6
    assert (np.abs(np.bincount(batch.places, minlength=8) - 64 * chances / chances.sum()) < 2).all()


def test_importance_weights_take_back_the_bias_and_beta_0_leaves_it() -> None:
    replay, random = surprised(), np.random.default_rng(3)
    truth = np.arange(8).mean()
    corrected, left = replay.sample(random, 50_000, beta=1.0), replay.sample(random, 50_000, beta=0.0)
    assert np.average(corrected.fields["value"], weights=corrected.weights) == pytest.approx(truth, abs=0.05)
    assert np.average(left.fields["value"], weights=left.weights) > truth + 1
    assert corrected.weights.max() == 1
    assert (left.weights == 1).all()


def test_a_new_transition_gets_the_largest_priority_so_far() -> None:
    replay = PrioritisedReplay(9, {"value": ()})
    replay.update(replay.add(numbered(8)), ERRORS)
    replay.add(numbered(1, 8))
    drawn = np.bincount(replay.sample(np.random.default_rng(4), 10_000).places)
    assert abs(drawn[8] - drawn[7]) <= 2


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritisedReplay])
@pytest.mark.parametrize("count", [3, 5, 13])
def test_a_restored_replay_goes_on_bit_for_bit(kind: type[ReplayBuffer], count: int) -> None:
    replay, other = kind(5, {"value": ()}), kind(5, {"value": ()})
    random = np.random.default_rng(5)
    for start in range(count):
        replay.add(numbered(1, start))
        replay.update(replay.sample(random, 4).places, random.random(4))
    other.restore(replay.arrays())
    for each in (replay, other):
        each.add(numbered(2, 90))
    ours, theirs = (each.sample(np.random.default_rng(6), 32, beta=0.5) for each in (replay, other))
    np.testing.assert_array_equal(ours.fields["value"], theirs.fields["value"])
    np.testing.assert_array_equal(ours.weights, theirs.weights)


def test_a_checkpoint_that_does_not_fit_is_refused_by_the_name_of_its_key() -> None:
    large = ReplayBuffer(9, {"value": ()})
    large.add(numbered(9))
    with pytest.raises(ValueError, match="buffer_size is 5: too small for the 9"):
        ReplayBuffer(5, {"value": ()}).restore(large.arrays())
    with pytest.raises(ValueError, match="buffer_size"):
        ReplayBuffer(0, {"value": ()})
