"""Q-learning and SARSA: what they converge to where that is known, what they may do, and that runs can be repeated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.policy.agents.toy_rules import largest, returns, right_size, smallest

from trimtab_lab.agents import q_learning, recipe, sarsa
from trimtab_lab.agents.q_learning import QLearning
from trimtab_lab.agents.sarsa import Sarsa
from trimtab_lab.agents.table_tasks import Config, OffersTableWorld
from trimtab_lab.agents.tables import (
    VALIDATION,
    Floats,
    Ints,
    TableObservation,
    TableStep,
    TableTraining,
    Tabular,
    ValueTable,
    epsilon_greedy,
    play,
)
from trimtab_lab.environments.toy import toy
from trimtab_policy.learned.tables import WAIT

AGENTS = {"q_learning": q_learning, "sarsa": sarsa}
SMALL: dict[str, Mapping[str, Any]] = {
    "parallel_mode": {"steps": 20, "series": ["ec2_825cc2"]},
    "offers": {"clusters": ["adlro", "sia-homogeneous"], "jobs": 10, "load": [0.5, 1.4], "bins": {"waiting": 3}},
    "toy": {"jobs": 10, "bins": {"scaling": 2}},
}


def config(task: str, **training: Any) -> Config:
    chosen = {"segments": 2, "steps": 60, "environments": 4, "validation_episodes": 3, **training}
    found: Config = msgspec.convert({"task": task, "environment": SMALL[task], "training": chosen}, Config)
    return found


# --- a cliff: Sutton and Barto (2018), example 6.6, smaller ---------------------------------------------
ROWS, COLUMNS, FALL = 3, 5, -30.0
START, GOAL = (ROWS - 1) * COLUMNS, ROWS * COLUMNS - 1
MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))
EPSILON = 0.2


def moved(cell: int, action: int) -> tuple[int, float]:
    """Where a move leads and what it earns: the last row between start and goal is the cliff."""
    row, column = (
        min(max(place + step, 0), size - 1)
        for place, step, size in zip(divmod(cell, COLUMNS), MOVES[action], (ROWS, COLUMNS), strict=True)
    )
    after = row * COLUMNS + column
    return (START, FALL) if START < after < GOAL else (after, -1.0)


TABLE = np.array([[moved(cell, action) for action in range(4)] for cell in range(ROWS * COLUMNS)])


class Cliff:
    """n walkers, with restarts like those of the environments. Episodes are not cut off."""

    states, actions, schema, bins = ROWS * COLUMNS, len(MOVES), "cliff/1", (ROWS, COLUMNS)

    def __init__(self, number: int) -> None:
        self.environments = number
        self._at = np.full(number, START)

    def reset(self, seed: int) -> TableObservation:
        self._at[:] = START
        return self._seen()

    def step(self, actions: Ints) -> TableStep:
        began = self._at == GOAL
        after, earned = TABLE[self._at, actions].T
        self._at = np.where(began, START, after.astype(np.int64))
        earned = np.where(began, 0.0, earned)
        over = self._at == GOAL
        return TableStep(self._seen(), earned, earned, np.ones(len(over)), over, ~began, over)

    def _seen(self) -> TableObservation:
        return TableObservation(self._at.copy(), np.ones((len(self._at), self.actions), dtype=np.bool_))


def values(policy: Floats) -> Floats:
    """(states, actions) what actions are worth when this policy (states, actions) is followed after them."""
    pairs = [(cell, action) for cell in range(Cliff.states) for action in range(Cliff.actions)]
    system, earned = np.eye(len(pairs)), np.zeros(len(pairs))
    for index, (cell, action) in enumerate(pairs):
        after, earned[index] = moved(cell, action)
        if after != GOAL:
            system[index, after * Cliff.actions : (after + 1) * Cliff.actions] -= policy[after]
    return np.linalg.solve(system, earned).reshape(Cliff.states, Cliff.actions)


def greedy(q: Floats, epsilon: float) -> Floats:
    return epsilon / q.shape[1] + (1 - epsilon) * np.eye(q.shape[1])[q.argmax(axis=1)]


def best_for(epsilon: float) -> Floats:
    """Values of the best policy among those that stumble so often: policy iteration."""
    q = np.zeros((Cliff.states, Cliff.actions))
    q[:, 1] = 1  # to the right, then down, and up from the start: reaches the goal from everywhere
    q[COLUMNS - 1 :: COLUMNS, 2] = 2
    q[START, 0] = 2
    for _ in range(50):
        q = values(greedy(q, epsilon))
    return q


def path(q: Floats) -> list[int]:
    cells = [START]
    while cells[-1] != GOAL and len(cells) < 30:
        cells.append(moved(cells[-1], int(q[cells[-1]].argmax()))[0])
    return cells


def walked(agent: type[Tabular], **training: Any) -> Tabular:
    chosen = TableTraining(segments=1, environments=8, first_epsilon=EPSILON, last_epsilon=EPSILON, **training)
    learner = agent(Cliff(8), Cliff(1), chosen, seed=3)
    learner.learn(0)
    return learner


REACHED = [cell for cell in range(Cliff.states) if not START < cell <= GOAL]
"""Cells of the cliff are never stood upon."""


def test_q_learning_finds_the_values_of_the_best_policy() -> None:
    learner = walked(QLearning, steps=4000, learning_rate_power=0.0)  # nothing is random in this world
    np.testing.assert_allclose(learner.table.q[REACHED], best_for(0.0)[REACHED], atol=1e-9)


def test_sarsa_finds_the_values_of_the_best_policy_that_explores() -> None:
    learner = walked(Sarsa, steps=20_000, learning_rate_power=0.8)
    usual = [(cell, int(learner.table.q[cell].argmax())) for cell in path(learner.table.q)[:-1]]
    expected = best_for(EPSILON)
    for cell, action in usual:
        assert learner.table.q[cell, action] == pytest.approx(expected[cell, action], rel=0.1)


def test_q_learning_walks_along_the_edge_and_sarsa_keeps_away_from_it() -> None:
    edge, away = (path(walked(agent, steps=8000, learning_rate_power=0.8).table.q) for agent in (QLearning, Sarsa))
    row = (ROWS - 2) * COLUMNS
    assert edge == [START, *range(row, row + COLUMNS), GOAL]
    assert away == [START, row, *range(row - COLUMNS, row), row + COLUMNS - 1, GOAL]


# --- the table -----------------------------------------------------------------------------------------
@given(st.integers(1, 5), st.integers(0, 3), st.floats(0.5, 1.0))
def test_meeting_in_a_cell_is_moving_one_after_the_other(meeting: int, before: int, power: float) -> None:
    training = TableTraining(segments=1, steps=1, learning_rate_power=power)
    together, alone = ValueTable(2, 2, 1.0), ValueTable(2, 2, 1.0)
    for table in (together, alone):
        table.visits[1, 0] = before
    cells, actions, targets = np.full(meeting, 1), np.zeros(meeting, dtype=np.int64), np.full(meeting, 5.0)
    together.move(cells, actions, targets, training)
    rate = training.rates(np.array([before]))
    for _ in range(meeting):  # at the rate that all of them found
        alone.q[1, 0] += rate[0] * (5.0 - alone.q[1, 0])
    assert together.q[1, 0] == pytest.approx(alone.q[1, 0])
    assert together.visits[1, 0] == before + meeting
    assert together.q[0].tolist() == [1.0, 1.0]
    assert together.q[1, 1] == 1.0


def test_targets_of_one_cell_are_averaged() -> None:
    table = ValueTable(1, 1, 0.0)
    twice = np.zeros(2, dtype=np.int64)
    loss = table.move(twice, twice, np.array([2.0, 6.0]), TableTraining(segments=1, steps=1))
    assert table.q[0, 0] == 4.0
    assert loss == (2.0**2 + 6.0**2) / 2


def test_learning_rates_fall_with_visits_to_the_least_one() -> None:
    training = TableTraining(segments=1, steps=1, learning_rate_power=0.5, least_learning_rate=0.25)
    assert training.rates(np.array([0, 3, 15, 1000])).tolist() == [1.0, 0.5, 0.25, 0.25]


def test_exploration_falls_linearly_over_its_share_of_the_training() -> None:
    training = TableTraining(segments=1, steps=1, first_epsilon=0.9, last_epsilon=0.1, epsilon_share=0.5)
    assert [training.epsilon(done) for done in (0.0, 0.25, 0.5, 1.0)] == pytest.approx([0.9, 0.5, 0.1, 0.1])


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_what_is_not_allowed_is_never_chosen(epsilon: float) -> None:
    random = np.random.default_rng(0)
    table = ValueTable(3, 4, 0.0)
    table.q[:] = random.normal(size=(3, 4))
    cells, allowed = random.integers(3, size=500), random.random((500, 4)) < 0.5
    allowed[np.arange(500), random.integers(4, size=500)] = True
    chosen = epsilon_greedy(table, TableObservation(cells, allowed), epsilon, random)
    assert allowed[np.arange(500), chosen].all()


def test_all_that_is_allowed_is_explored_alike() -> None:
    allowed = np.tile([True, False, True, True], (6000, 1))
    seen = TableObservation(np.zeros(6000, dtype=np.int64), allowed)
    chosen = epsilon_greedy(ValueTable(1, 4, 0.0), seen, 1.0, np.random.default_rng(1))
    np.testing.assert_allclose(np.bincount(chosen, minlength=4) / 6000, [1 / 3, 0, 1 / 3, 1 / 3], atol=0.02)


# --- the tasks -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("agent", AGENTS)
def test_the_toy_world_is_solved(agent: str) -> None:
    learner = AGENTS[agent].make(recipe.read_recipe(agent, "toy"), 0)
    for segment in range(learner.segments):
        learner.learn(segment)
    rules = {rule: float(returns(toy(64), rule, VALIDATION).mean()) for rule in (right_size, largest, smallest)}
    best, others = rules[right_size], max(rules[largest], rules[smallest])
    assert learner.validate()["score"] > best - 0.3 * (best - others)


@pytest.mark.parametrize("task", SMALL)
@pytest.mark.parametrize("agent", AGENTS)
def test_a_run_in_segments_is_the_run_that_was_not_interrupted(agent: str, task: str) -> None:
    whole, first, rest = (AGENTS[agent].make(config(task), 5) for _ in range(3))
    figures = [whole.learn(0), whole.learn(1)]
    assert first.learn(0) == pytest.approx(figures[0], nan_ok=True, rel=0, abs=0)
    rest.restore(first.arrays())
    assert rest.learn(1) == pytest.approx(figures[1], nan_ok=True, rel=0, abs=0)
    assert whole.arrays().keys() == rest.arrays().keys()
    for name, array in whole.arrays().items():
        np.testing.assert_array_equal(array, rest.arrays()[name])
    assert whole.validate() == rest.validate()


@pytest.mark.parametrize("agent", AGENTS)
def test_seeds_differ_and_validation_does_not_change_what_is_learned(agent: str) -> None:
    one, same, other = (AGENTS[agent].make(config("parallel_mode"), seed) for seed in (1, 1, 2))
    for learner in (one, same, other):
        learner.learn(0)
    one.validate()
    for learner in (one, same, other):
        learner.learn(1)
    np.testing.assert_array_equal(one.weights()["q"], same.weights()["q"])
    assert (one.weights()["q"] != other.weights()["q"]).any()


def test_tables_are_restored_into_tables_of_their_shape_only() -> None:
    small, large = (q_learning.make(config("toy"), 0), q_learning.make(config("parallel_mode"), 0))
    with pytest.raises(ValueError, match="cannot go on"):
        small.restore(large.arrays())


def test_steps_that_begin_an_episode_teach_nothing() -> None:
    learner = q_learning.make(config("parallel_mode", segments=1, steps=63), 0)
    assert learner.learn(0)["steps"] == 4 * 60  # of 63, three are resets
    assert learner.table.visits.sum() == 4 * 60


def test_jobs_pay_when_they_start_what_their_end_is_worth() -> None:
    env = toy(16, jobs=10)
    world, state = OffersTableWorld([env], {}), env._cluster.state
    seen = world.reset(0)
    ends, jct, running = np.zeros(16), np.zeros(16), np.ones(16, dtype=np.bool_)
    submitted = state.submitted.sum(axis=1)
    while running.any():
        now = state.now.copy()
        after = world.step(np.where(seen.allowed.any(axis=1), seen.allowed.argmax(axis=1), WAIT))
        paid = (after.rewards > 0) & running
        ends[paid] += now[paid] - env.memory_seconds * np.log(after.rewards[paid])
        done = after.over & running
        jct[done] = state.stay[done]
        running &= ~after.over
        seen = after.seen
    np.testing.assert_allclose(ends - submitted, jct, rtol=1e-4)  # run times are features, of single precision


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("task", ["offers", "parallel_mode", "toy"])
def test_shipped_configurations_can_be_read(agent: str, task: str) -> None:
    assert getattr(recipe.read_recipe(agent, task), "task", "") == task


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "chess"}, "task"),
        ({"training": {"segments": 0, "steps": 1}}, "training.segments"),
        ({"training": {"segments": 1, "steps": 1, "last_epsilon": 2.0}}, "training.last_epsilon"),
        ({"training": {"segments": 1, "steps": 1, "gamma": 0.9}}, r"\$\.training"),
        ({"environment": {"bins": {"colour": 2}}}, "environment.bins.colour"),
        ({"environment": {"bins": {}, "clusters": []}}, "environment.clusters"),
        ({"environment": {"bins": {}, "jobs": "many"}}, r"\$\.environment\.jobs"),
    ],
)
def test_what_is_wrong_in_a_configuration_is_named(changes: dict[str, Any], message: str) -> None:
    good = {"task": "offers", "environment": {"bins": {}}, "training": {"segments": 1, "steps": 1}}
    with pytest.raises(ValueError, match=message):
        msgspec.convert({**good, **changes}, Config)


def test_an_episode_is_played_to_its_end() -> None:
    returned = play(
        Cliff(2), 0, lambda seen: np.where(seen.cells == START, 0, np.where(seen.cells % COLUMNS == 4, 2, 1))
    )
    assert returned.tolist() == [-float(COLUMNS + 1)] * 2
