"""Tables in the controller: cells and actions of offers, what is chosen, and that it is what was learned."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab_lab.agents import q_learning, sarsa
from trimtab_lab.agents.table_tasks import Config
from trimtab_lab.environments.offers import OffersVectorEnv
from trimtab_policy.learned import store, tables
from trimtab_policy.learned.offers import BadAnswer
from trimtab_policy.learned.tables import (
    ACTIONS,
    FEATURES,
    NOTHING,
    WAIT,
    QLearningPolicy,
    SarsaPolicy,
    cells,
    menu,
    states,
)
from trimtab_policy.observation import encode
from trimtab_policy.observation.encode import OfferBatch

BINS = tuple({"scaling": 2, "waiting": 3, "free": 2, "best_free": 2}.get(name, 1) for name in FEATURES)


def some_offers(number: int = 64, rounds: int = 40) -> Iterator[OfferBatch]:
    env, random = OffersVectorEnv(number, load=(0.5, 1.5), jobs=30), np.random.default_rng(0)
    env.reset(seed=0)
    for _ in range(rounds):
        if env.offers.mask.any(axis=1).all():
            yield env.offers
        env.step((random.random(env.offers.mask.shape) * env.offers.mask).argmax(axis=1))


def weights(seed: int = 0, tried: float = 0.7) -> dict[str, NDArray[Any]]:
    random = np.random.default_rng(seed)
    shape = (states(BINS), ACTIONS)
    return {"bins": np.array(BINS), "q": random.normal(size=shape), "tried": random.random(shape) < tried}


def test_every_option_is_of_one_action_and_each_action_takes_its_fastest() -> None:
    for offers in some_offers(rounds=15):
        answers = menu(offers)
        for row in range(len(answers)):
            groups: dict[int, list[int]] = {}
            for option in np.flatnonzero(offers.mask[row, :-1]).tolist():
                count = max(index for index, least in enumerate(tables.COUNTS) if offers.gpus[row, option] >= least)
                groups.setdefault(3 * count + int(offers.mode[row, option]), []).append(option)
            expected = {
                action: max(found, key=lambda each: offers.options[row, each, 0]) for action, found in groups.items()
            }
            assert {
                action: int(answers[row, action]) for action in np.flatnonzero(answers[row, :-1] != NOTHING)
            } == expected
            assert (answers[row, WAIT] == offers.wait) == offers.mask[row, -1]


def test_cells_are_within_the_grid_and_tell_offers_apart() -> None:
    seen = np.concatenate([cells(offers, BINS) for offers in some_offers()])
    assert seen.min() >= 0
    assert seen.max() < states(BINS)
    assert len(np.unique(seen)) > 10


def test_a_grid_of_one_cell_knows_nothing() -> None:
    offers = next(some_offers())
    assert cells(offers, (1,) * len(FEATURES)).tolist() == [0] * 64


@pytest.mark.parametrize("policy", [QLearningPolicy, SarsaPolicy])
@pytest.mark.parametrize("tried", [0.0, 0.05, 0.7, 1.0])
def test_only_what_is_on_offer_is_answered(policy: type[tables.TablePolicy], tried: float) -> None:
    agent = policy(weights(tried=tried))
    for offers in some_offers():
        answers = agent.choose(offers)
        assert offers.mask[np.arange(len(answers)), answers].all()


def test_where_nothing_was_tried_the_fastest_option_is_taken() -> None:
    for offers in some_offers(rounds=10):
        answers = QLearningPolicy(weights(tried=0.0)).choose(offers)
        speed = np.where(offers.mask[:, :-1], offers.options[:, :, 0], -1.0)
        able = speed.max(axis=1) >= 0
        np.testing.assert_array_equal(answers[able], speed.argmax(axis=1)[able])


def test_of_what_was_tried_the_best_is_taken() -> None:
    given = weights(tried=1.0)
    for offers in some_offers(rounds=10):
        answers, options = QLearningPolicy(given).choose(offers), menu(offers)
        q = np.where(options != NOTHING, given["q"][cells(offers, BINS)], -np.inf)
        np.testing.assert_array_equal(answers, options[np.arange(len(q)), q.argmax(axis=1)])


def test_offers_are_answered_alike_one_by_one_and_together() -> None:
    agent = QLearningPolicy(weights())
    for offers in some_offers(rounds=5):
        alone = [agent.choose(OfferBatch(*(column[[row]] for column in offers)))[0] for row in range(64)]
        assert agent.choose(offers).tolist() == alone


def test_values_that_are_no_numbers_are_refused() -> None:
    broken = weights()
    broken["q"][:] = np.nan
    with pytest.raises(BadAnswer, match="q_learning"):
        QLearningPolicy(broken).choose(next(some_offers()))


@pytest.mark.parametrize(("module", "policy"), [(q_learning, QLearningPolicy), (sarsa, SarsaPolicy)])
def test_what_was_learned_is_done_after_it_was_saved_and_loaded(
    module: Any, policy: type[tables.TablePolicy], tmp_path: Path
) -> None:
    bins = dict(zip(FEATURES, BINS, strict=True))
    training = {"segments": 1, "steps": 200, "environments": 8, "validation_episodes": 2}
    given = {"task": "offers", "environment": {"bins": bins, "jobs": 30}, "training": training}
    learner = module.make(msgspec.convert(given, Config), 0)
    learner.learn(0)
    card = store.ModelCard(
        agent=policy.name,
        task="offers",
        schema=learner.schema,
        catalogue=store.catalogue_hash(),
        commit="unknown",
        seeds=(0,),
        score=learner.validate()["score"],
        score_name=module.SCORE,
        config=given,
    )
    store.save(tmp_path / "table.safetensors", learner.weights(), card)
    loaded = store.load(tmp_path / "table.safetensors", encode.SCHEMA, tables.ARRAYS).arrays
    before, after = policy(learner.weights()), policy(loaded)
    for offers in some_offers():
        np.testing.assert_array_equal(before.choose(offers), after.choose(offers))


@pytest.mark.parametrize("policy", [QLearningPolicy, SarsaPolicy])
def test_the_weights_of_the_package_answer_what_is_on_offer(policy: type[tables.TablePolicy]) -> None:
    agent, waited, answered = policy(), 0, 0
    for offers in some_offers():
        answers = agent.choose(offers)
        assert offers.mask[np.arange(len(answers)), answers].all()
        waited, answered = waited + int((answers == offers.wait).sum()), answered + len(answers)
    assert 0 < waited < answered


def test_waiting_is_not_the_best_for_want_of_anything_else_that_was_tried() -> None:
    offers = next(each for each in some_offers(1, rounds=200) if each.mask[0, -1])
    answers = menu(offers)
    q, tried = np.zeros((1, ACTIONS)), np.zeros((1, ACTIONS), dtype=np.bool_)
    tried[0, WAIT], q[0, WAIT] = True, 1.0
    fastest = np.where(offers.mask[0, :-1], offers.options[0, :, 0], -1).argmax()
    assert tables.greedy(q, tried, answers, offers).tolist() == [fastest]
    tried[0] = True
    assert tables.greedy(q, tried, answers, offers).tolist() == [offers.wait]
