"""Shares of GPUs, cores and memory as answers to offers, and the policy that gives them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.builders import job, node, running, snapshot
from tests.strategies import snapshots

from trimtab_policy.learned import store
from trimtab_policy.learned.offers import BadAnswer
from trimtab_policy.learned.sac_imitation import (
    ACTIONS,
    FEATURES,
    SHARES,
    SacImitationPolicy,
    granted,
    mean_action,
    state,
)
from trimtab_policy.learned.store import Arrays, ModelCard
from trimtab_policy.observation.encode import CLUSTER, JOB, OPTION, POOL, SCHEMA, OfferBatch, OfferScene
from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.types import Snapshot

HIDDEN = 8
ROOM = [True, True, True, True]


def offer(room: list[bool], *, may_wait: bool = True) -> OfferBatch:
    """One job that could run on 1, 2, 4 or 16 GPUs; 16 are no faster than 4."""
    options = np.zeros((1, 4, OPTION), dtype=np.float32)
    options[0, :, 0] = (0.4, 0.7, 1.0, 1.0)
    return OfferBatch(
        job=np.zeros((1, JOB), dtype=np.float32),
        cluster=np.zeros((1, CLUSTER), dtype=np.float32),
        pools=np.zeros((1, 1, POOL), dtype=np.float32),
        options=options,
        kind=np.zeros((1, 4), dtype=np.int64),
        gpus=np.array([[1, 2, 4, 16]]),
        mode=np.zeros((1, 4), dtype=np.int64),
        mask=np.array([[*room, may_wait]]),
    )


def answer(offers: OfferBatch, *shares: float) -> int:
    return int(granted(offers, np.float32([shares]))[0])


def weights(seed: int = 0, scale: float = 1.0) -> Arrays:
    """Of an actor that nobody has trained."""
    random = np.random.default_rng(seed)
    shapes = {"first": (HIDDEN, FEATURES), "second": (HIDDEN, HIDDEN), "mean": (ACTIONS, HIDDEN)}
    matrices = {f"{name}.weight": np.float32(scale * random.normal(size=shape)) for name, shape in shapes.items()}
    biases = {f"{name}.bias": np.float32(scale * random.normal(size=shape[0])) for name, shape in shapes.items()}
    return matrices | biases


def saved(folder: Path, arrays: Arrays, schema: str = SCHEMA) -> Path:
    path = folder / "mine.safetensors"
    facts = {"agent": "sac_imitation", "task": "offers", "schema": schema, "catalogue": "", "commit": ""}
    store.save(path, arrays, ModelCard(**facts, seeds=(0,), score=0.0, score_name="", config={}))
    return path


@pytest.mark.parametrize(
    ("share", "option"),
    [(0.0, 4), (0.03, 4), (0.032, 0), (0.09, 0), (0.1, 1), (0.2, 1), (0.25, 2), (0.9, 2), (1.0, 2)],
)
def test_the_fastest_option_within_the_granted_gpus_is_chosen_the_smallest_of_equals(share: float, option: int) -> None:
    assert answer(offer(ROOM), share, share, share) == option


def test_the_scarcest_of_the_three_shares_counts() -> None:
    assert {answer(offer(ROOM), *shares) for shares in ((0.1, 1, 1), (1, 0.1, 1), (1, 1, 0.1))} == {1}


def test_shares_are_of_the_largest_option_that_has_room() -> None:
    assert answer(offer([True, True, False, False]), 1, 1, 1) == 1
    assert answer(offer([True, True, False, False]), 0.5, 0.5, 0.5) == 0
    assert answer(offer([False, False, False, True]), 0.9, 0.9, 0.9) == 4


def test_a_job_that_may_not_wait_gets_its_smallest_option() -> None:
    assert answer(offer(ROOM, may_wait=False), 0, 0, 0) == 0
    assert answer(offer([False, False, True, True], may_wait=False), 0, 0, 0) == 2


def test_where_nothing_is_on_offer_the_answer_is_to_wait() -> None:
    assert answer(offer([False] * 4, may_wait=False), 1, 1, 1) == 4
    assert answer(offer([False] * 4), 1, 1, 1) == 4


masks = st.lists(st.booleans(), min_size=4, max_size=4).filter(any)


@given(masks, st.booleans(), st.lists(st.floats(0, 1, width=32), min_size=3, max_size=3))
def test_whatever_is_granted_may_be_answered(room: list[bool], may_wait: bool, shares: list[float]) -> None:
    offers = offer(room, may_wait=may_wait)
    assert offers.mask[0, answer(offers, *shares)]


@given(masks, st.lists(st.floats(0, 1, width=32), min_size=2, max_size=2))
def test_more_is_never_slower(room: list[bool], shares: list[float]) -> None:
    offers = offer(room, may_wait=True)
    speeds = [*offers.options[0, :, 0].tolist(), 0.0]
    less, more = (speeds[answer(offers, share, share, share)] for share in sorted(shares))
    assert less <= more


def test_the_state_holds_the_fastest_option_within_parts_of_the_largest() -> None:
    seen = state(offer([True, True, True, True]))
    fastest = seen[0, JOB + CLUSTER + 1 :].reshape(len(SHARES), -1)[:, 0]
    np.testing.assert_allclose(fastest, [0.7, 1.0, 1.0, 1.0])  # within 2, 4, 8 and 16 GPUs
    nothing = state(offer([False] * 4))
    assert not nothing[0, JOB + CLUSTER :].any()


@given(snapshots())
@settings(max_examples=40, deadline=None)
def test_whatever_the_cluster_looks_like_the_policy_answers(
    tmp_path_factory: pytest.TempPathFactory, now: Snapshot
) -> None:
    policy = SacImitationPolicy(saved(tmp_path_factory.mktemp("weights"), weights()))
    decision = policy.decide(now)
    assert {each.job for each in decision.placements} | {each.job for each in decision.pending} == {
        each.uid for each in now.waiting()
    }


@given(snapshots())
@settings(max_examples=40, deadline=None)
def test_states_are_features_from_0_to_1(now: Snapshot) -> None:
    scene = OfferScene(now, Capacity(now))
    for waiting in now.waiting():
        if found := scene.offer(waiting):
            seen = state(found[0])
            assert seen.shape == (1, FEATURES)
            assert seen.dtype == np.float32
            assert ((seen >= 0) & (seen <= 1)).all()


def test_actions_are_shares() -> None:
    states = np.random.default_rng(0).random((50, FEATURES), dtype=np.float32)
    shares = mean_action(weights(scale=3.0), states)
    assert shares.shape == (50, ACTIONS)
    assert ((shares >= 0) & (shares <= 1)).all()
    assert np.ptp(shares) > 0.5


def test_weights_that_make_no_numbers_are_complained_about(tmp_path: Path) -> None:
    broken = SacImitationPolicy(saved(tmp_path, weights(scale=1e30)))
    now = snapshot([node("a")], [job("new"), running("old", {"a": 1})])
    with np.errstate(all="ignore"), pytest.raises(BadAnswer, match="shares that are no numbers"):
        broken.decide(now)


def test_weights_of_another_world_are_refused(tmp_path: Path) -> None:
    policy = SacImitationPolicy(saved(tmp_path, weights(), schema="rlalloc/1"))
    with pytest.raises(store.WeightsError, match="rlalloc/1"):
        policy.decide(snapshot([node("a")], [job("new")]))
