"""ADLRO's agent: targets, masks, what it can learn, and that a run which was interrupted is the run that was not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.policy.agents.toy_rules import largest, returns, right_size, smallest
from torch import Tensor, nn

from trimtab_lab.agents import dqn_cnn, dqn_worlds, recipe
from trimtab_lab.agents.dqn_cnn import CnnQNetwork, DoubleDqn, DqnConfig, DqnTraining, Sizes, double_q
from trimtab_lab.agents.dqn_worlds import VALIDATION, Adlro, Arrays, DqnEnvironment, DqnObservation, DqnStep, Ints
from trimtab_lab.environments import adlro
from trimtab_lab.environments.adlro import AdlroEnv
from trimtab_lab.environments.adlro_cluster import GPUS
from trimtab_lab.environments.toy import toy
from trimtab_policy.learned import dqn_cnn as learned
from trimtab_policy.learned import store
from trimtab_policy.learned.dqn_cnn import Inputs, Network
from trimtab_policy.learned.store import ModelCard

SMALL = {"segments": 2, "steps": 120, "environments": 3, "warm_up": 40, "batch": 8, "replay": 200, "target_every": 7}
"""Training that is over in a moment: the replay is filled more than once."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def config(task: str, environment: Mapping[str, Any] | None = None, **changes: Any) -> DqnConfig:
    training = {**SMALL, "validation_episodes": 2, **changes}
    network = {"channels": 4, "hidden": 8, "hypervectors": 16}
    given_ = {"task": task, "environment": environment or {}, "training": training, "network": network}
    return msgspec.convert(given_, DqnConfig)


NETWORKS = {
    "adlro": (dqn_worlds.codebook, False),
    "offers": (learned.codebook, True),
    "toy": (learned.codebook, True),
}
TASKS = {
    "adlro": {"jobs": 12, "window": 2},
    "offers": {"clusters": ["adlro", "T4=2x4"], "jobs": 10, "load": [0.5, 1.4]},
    "toy": {"jobs": 10},
}


# --- the algorithm ------------------------------------------------------------------------------------
def test_the_target_lets_one_network_choose_and_the_other_judge() -> None:
    online = torch.tensor([[1.0, 5.0, 3.0], [4.0, 2.0, -torch.inf], [-torch.inf] * 3])
    target = torch.tensor([[10.0, 20.0, 30.0], [7.0, 8.0, -torch.inf], [-torch.inf] * 3])
    reward, discount = torch.tensor([1.0, -1.0, 2.0]), torch.tensor([0.5, 0.9, 0.0])
    found = double_q(reward, discount, online, target)
    assert found.tolist() == pytest.approx([1 + 0.5 * 20, -1 + 0.9 * 7, 2])


class Corridor:
    """Rooms in a row: to the right it goes to the treasure, in the last room; the left door of the first is shut."""

    schema = "corridor/1"
    rooms = 6

    def __init__(self, environments: int) -> None:
        self.environments = environments

    def reset(self, seed: int) -> DqnObservation:
        self._room = np.zeros(self.environments, dtype=np.int64)
        self._over = np.zeros(self.environments, dtype=np.bool_)
        return self._seen()

    def step(self, actions: Ints) -> DqnStep:
        assert self._seen().mask[np.arange(self.environments), actions].all(), "a shut door was taken"
        happened = ~self._over
        self._room = np.where(happened, self._room + 2 * actions - 1, 0)
        self._over = happened & (self._room == self.rooms - 1)
        reward = self._over.astype(np.float64)
        return DqnStep(
            self._seen(),
            reward,
            0.9 * ~self._over,
            reward,
            happened,
            self._over.copy(),
            {n: {} for n in np.flatnonzero(self._over).tolist()},
        )

    def inputs(self, observation: Arrays) -> Inputs:
        return observation

    def _seen(self) -> DqnObservation:
        mask = np.ones((self.environments, 2), dtype=np.bool_)
        mask[self._room == 0, 0] = False
        return DqnObservation({"room": np.eye(self.rooms, dtype=np.float32)[self._room]}, mask)


class Flat(nn.Module):
    """A network for observations that are one vector."""

    def __init__(self, name: str, features: int, actions: int, hidden: tuple[int, ...] = ()) -> None:
        super().__init__()
        sizes = (features, *hidden)
        layers = [each for a, b in zip(sizes, hidden, strict=False) for each in (nn.Linear(a, b), nn.ReLU())]
        self.layers, self.name = nn.Sequential(*layers, nn.Linear(sizes[-1], actions)), name

    def forward(self, inputs: Mapping[str, Tensor], mask: Tensor) -> Tensor:
        values: Tensor = self.layers(inputs[self.name])
        return values.masked_fill(~mask, -torch.inf)


def test_values_come_to_what_bellman_says_and_shut_doors_are_never_taken() -> None:
    torch.manual_seed(0)
    rooms = Corridor.rooms
    training = DqnTraining(
        4,
        2000,
        environments=4,
        learning_rate=0.02,
        batch=32,
        replay=2000,
        warm_up=200,
        steps_per_update=4,
        target_every=20,
        last_epsilon=0.3,
    )
    learner = DoubleDqn(Corridor(4), Corridor(4), Flat("room", rooms, 2), training, seed=0)
    for segment in range(learner.segments):
        learner.learn(segment)
    with torch.no_grad():
        values = learner.network({"room": torch.eye(rooms)}, torch.ones(rooms, 2, dtype=torch.bool)).numpy()
    right = 0.9 ** np.arange(rooms - 2, -1, -1)
    np.testing.assert_allclose(values[:-1, 1], right, atol=0.02)
    np.testing.assert_allclose(values[1:-1, 0], 0.9 * right[:-1], atol=0.02)
    assert learner.validate() == {"score": 1.0}


def test_the_target_network_becomes_the_present_one_every_so_many_updates() -> None:
    learner = dqn_cnn.make(config("toy", TASKS["toy"], segments=1, target_every=10_000), seed=0)
    before = {name: values.copy() for name, values in learner.arrays().items() if name.startswith("target/")}
    learner.learn(0)
    after = learner.arrays()
    assert int(after["counter/updates"]) == 10
    for name, values in before.items():
        np.testing.assert_array_equal(after[name], values)
    assert any((after[name] != after[name.replace("target", "online")]).any() for name in before)

    often = dqn_cnn.make(config("toy", TASKS["toy"], segments=1, target_every=10), seed=0)
    often.learn(0)
    after = often.arrays()
    for name in before:
        np.testing.assert_array_equal(after[name], after[name.replace("target", "online")])


def test_the_learning_rate_stays_unless_it_is_told_to_fall() -> None:
    assert DqnTraining(10, 100, learning_rate=1e-3).rate(500) == 1e-3
    falling = DqnTraining(10, 100, learning_rate=1e-3, last_learning_rate=1e-4)
    assert [falling.rate(steps) for steps in (0, 500, 1000, 1100)] == pytest.approx([1e-3, 5.5e-4, 1e-4, 1e-4])


def test_exploration_falls_to_its_floor_in_its_share_of_the_training() -> None:
    training = DqnTraining(10, 100, first_epsilon=1.0, last_epsilon=0.2, epsilon_share=0.5)
    assert [training.epsilon(steps) for steps in (0, 250, 500, 1000)] == pytest.approx([1.0, 0.6, 0.2, 0.2])


# --- every task ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("task", TASKS)
def test_a_run_that_was_interrupted_is_the_run_that_was_not(task: str) -> None:
    whole, first, second = (dqn_cnn.make(config(task, TASKS[task]), seed=3) for _ in range(3))
    figures = [whole.learn(segment) for segment in range(2)]
    first.learn(0)
    second.validate()  # which must not matter
    second.restore(first.arrays())
    assert second.learn(1) == pytest.approx(figures[1], nan_ok=True, abs=0)
    ours, theirs = second.arrays(), whole.arrays()
    assert ours.keys() == theirs.keys()
    for name, values in ours.items():
        np.testing.assert_array_equal(values, theirs[name], err_msg=name)


def test_another_seed_is_another_run() -> None:
    one, other = (dqn_cnn.make(config("toy", TASKS["toy"]), seed) for seed in (0, 1))
    assert any((values != other.weights()[name]).any() for name, values in one.weights().items())
    assert one.learn(0) != other.learn(0)


@pytest.mark.parametrize("task", TASKS)
def test_what_was_learned_survives_being_saved(task: str, tmp_path: Path) -> None:
    learner = dqn_cnn.make(config(task, TASKS[task], segments=1), seed=0)
    learner.learn(0)
    path = tmp_path / "mine.safetensors"
    facts = {"agent": "dqn_cnn", "task": task, "schema": learner.schema, "catalogue": "", "commit": ""}
    store.save(path, learner.weights(), ModelCard(**facts, seeds=(0,), score=0.0, score_name="", config={}))
    network = Network(store.load(path, learner.schema).arrays, *NETWORKS[task])
    world = dqn_worlds.make_world(task, config(task, TASKS[task]).environment, 20)
    seen = world.reset(VALIDATION)
    ours = network.values(world.inputs(seen.observation), seen.mask)
    np.testing.assert_array_equal(ours.argmax(axis=1), learner.act(seen))


@settings(max_examples=20)
@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 2**31))
def test_the_network_gives_a_value_to_what_is_allowed_and_to_nothing_else(states: int, options: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    mask = random.random((states, options + 1)) < 0.5
    inputs = {
        "grid": random.random((states, 2, 3, 5), dtype=np.float32),
        "weight": np.full((states, 3), 1 / 3, dtype=np.float32),
        "cluster": random.random((states, 1), dtype=np.float32),
        "jobs": random.random((states, 2, 3), dtype=np.float32),
        "place": random.integers(3, size=(states, options)),
        "job": random.integers(2, size=(states, options)),
        "code": random.integers(4, size=(states, options)),
        "options": random.random((states, options, 2), dtype=np.float32),
    }
    network = CnnQNetwork(inputs, Sizes(4, 8, 16), (1, 3), True, np.ones((4, 16), dtype=np.int8))
    values = network({name: torch.from_numpy(of) for name, of in inputs.items()}, torch.from_numpy(mask))
    np.testing.assert_array_equal(values.isfinite().numpy(), mask)
    values[torch.from_numpy(mask)].sum().backward()
    assert all(torch.isfinite(each.grad).all() for each in network.parameters() if each.grad is not None)


# --- what it can learn ------------------------------------------------------------------------------------
class Pattern:
    """Sixteen GPUs, some of them busy. Only one idle GPU stands between two busy ones, and it is the right one."""

    schema = "pattern/1"
    environments = 16

    def reset(self, seed: int) -> DqnObservation:
        self._random = np.random.default_rng(seed)
        return self._draw()

    def step(self, actions: Ints) -> DqnStep:
        right = (actions == self._right).astype(np.float64)
        return DqnStep(self._draw(), right, np.zeros(16), right, right > -1, right > -1, {n: {} for n in range(16)})

    def inputs(self, observation: Arrays) -> Inputs:
        n = len(observation["grid"])
        nothing = np.zeros((n, 16), dtype=np.int64)
        return {
            "grid": observation["grid"],
            "weight": np.full((n, 16), 1 / 16, dtype=np.float32),
            "cluster": np.zeros((n, 1), dtype=np.float32),
            "jobs": np.ones((n, 1, 1), dtype=np.float32),
            "place": np.tile(np.arange(16), (n, 1)),
            "job": nothing,
            "code": nothing,
            "options": np.ones((n, 16, 1), dtype=np.float32),
        }

    def _draw(self) -> DqnObservation:
        busy = self._random.random((4000, 4, 4)) < 0.5
        between = np.zeros_like(busy)
        between[:, :, 1:3] = ~busy[:, :, 1:3] & busy[:, :, :2] & busy[:, :, 2:]
        found = np.flatnonzero(between.sum(axis=(1, 2)) == 1)[:16]
        self._right = between[found].reshape(16, -1).argmax(axis=1)
        idle = ~busy[found].reshape(16, -1)
        grid = busy[found][:, None].astype(np.float32)
        return DqnObservation({"grid": grid}, np.append(idle, np.zeros((16, 1), dtype=np.bool_), axis=1))


def accuracy(kernel: tuple[int, int]) -> float:
    """How often the right GPU is chosen after a short training with convolutions of this size."""
    torch.manual_seed(0)
    world = Pattern()
    network = CnnQNetwork(world.inputs(world.reset(0).observation), Sizes(8, 16, 0), kernel, False, None)
    training = DqnTraining(1, 8000, learning_rate=5e-3, batch=64, replay=4000, warm_up=500, steps_per_update=16)
    learner = DoubleDqn(world, Pattern(), network, training, seed=0)
    learner.learn(0)
    trial = Pattern()
    seen, right = trial.reset(VALIDATION), []
    for _ in range(20):
        after = trial.step(learner.act(seen))
        right.append(after.reward.mean())
        seen = after.seen
    return float(np.mean(right))


@pytest.mark.timeout(600)
def test_a_spatial_pattern_of_the_gpu_matrix_tells_the_right_gpu_to_a_convolution_only() -> None:
    assert accuracy((3, 3)) > 0.95
    assert accuracy((1, 1)) < 0.4


@pytest.mark.timeout(600)
def test_it_solves_the_toy_world_in_seconds() -> None:
    learner = dqn_cnn.make(recipe.read_recipe("dqn_cnn", "toy"), seed=0)
    for segment in range(learner.segments):
        learner.learn(segment)
    trial = toy(16)
    right, *wrong = (returns(trial, rule, VALIDATION).mean() for rule in (right_size, smallest, largest))
    assert learner.validate()["score"] > right - 0.25 * (right - max(wrong))


# --- the worlds --------------------------------------------------------------------------------------------
def objective(env: AdlroEnv, run: Mapping[int, float], memory: float) -> float:
    """Minus the discounted mean of the jobs in the system and of lambda times the idle GPUs, up to infinity."""
    ends = np.array([env.finished[job] for job in run])
    starts = ends - np.array(list(run.values()))
    left, begun, came = (np.exp(-moments / memory) for moments in (ends, starts, env.jobs.arrival))
    return float(-(came.sum() - left.sum()) - env.idle_weight * (GPUS - (begun - left).sum()))


def test_what_is_learned_from_is_the_discounted_objective_but_for_what_no_agent_can_change() -> None:
    memory, constants = 40.0, []
    for seed in (0, 1):  # two agents that meet the same jobs
        env = AdlroEnv(jobs=30, idle_weight=0.3)
        world, dice = Adlro([env], memory), np.random.default_rng(seed)
        seen, earned, factor, over, run = world.reset(7), 0.0, 1.0, False, dict[int, float]()
        while not over:
            action = dice.choice(np.flatnonzero(seen.mask[0]))
            if action != env.wait:
                job, gpu = env.waiting[action // GPUS], action % GPUS
                run[job] = env.jobs.work[job] / env.hardware.speed[env.jobs.kind[job], gpu]
            after = world.step(np.array([action]))
            earned, factor = earned + factor * after.reward[0], factor * after.discount[0]
            seen, over = after.seen, bool(after.over[0])
        constants.append(objective(env, run, memory) - earned)
    assert constants[0] == pytest.approx(constants[1], rel=1e-9)


def test_in_a_cluster_a_start_earns_by_its_run_time_and_nothing_else_does() -> None:
    world = dqn_worlds.make_world("toy", DqnEnvironment(memory_seconds=3600.0), 4)
    seen = world.reset(0)
    option = seen.mask[:, :-1].argmax(axis=1)
    seconds = np.expm1(seen.observation["options"][np.arange(4), option, 4] * np.log1p(30 * 86400))
    assert (seconds > 300).all()
    np.testing.assert_allclose(world.step(option).reward, np.exp(-seconds / 3600), rtol=1e-5)
    wait = np.full(4, seen.mask.shape[1] - 1)
    assert world.step(wait).reward.tolist() == [0.0] * 4


def test_what_is_reported_is_the_reward_of_the_environment() -> None:
    world = dqn_worlds.make_world("toy", DqnEnvironment(jobs=10), 3)
    plain = toy(3, jobs=10)
    plain.reset(seed=5)
    seen = world.reset(5)
    for _ in range(60):
        action = seen.mask.argmax(axis=1)
        _, reward, *_ = plain.step(action)
        after = world.step(action)
        np.testing.assert_array_equal(after.earned, reward)
        seen = after.seen


def test_clusters_of_different_sizes_share_one_menu() -> None:
    world = dqn_worlds.make_world("offers", DqnEnvironment(clusters=("T4=2x4", "sia-heterogeneous"), jobs=5), 2)
    seen = world.reset(0)
    pools, mask = seen.observation["pools"], seen.mask
    assert pools.shape == (4, 3, 11)
    assert (pools[:2, 1:] == 0).all()
    assert not mask[:2, 4:-1].any()
    after = world.step(np.full(4, mask.shape[1] - 1))
    assert after.happened.all()


def test_baselines_of_the_seed_act_on_what_the_world_shows() -> None:
    world = Adlro([AdlroEnv(jobs=5) for _ in range(2)], 30.0)
    seen = world.reset(0)
    chosen = [
        adlro.fastest_first({name: of[number] for name, of in seen.observation.items()}, seen.mask[number])
        for number in range(2)
    ]
    assert seen.mask[np.arange(2), chosen].all()


# --- configurations ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("task", TASKS)
def test_the_shipped_configurations_can_be_made(task: str) -> None:
    made = recipe.read_recipe("dqn_cnn", task)
    assert isinstance(made, DqnConfig)
    assert made.task == task
    assert dqn_cnn.make(made, seed=0).segments == made.training.segments


@pytest.mark.parametrize(
    ("task", "section", "wrong", "message"),
    [
        ("toy", "training", {"learning_rate": 0}, r"\$.training.learning_rate"),
        ("toy", "training", {"learning_rat": 1}, r"learning_rat.*\$.training"),
        ("toy", "environment", {"window": 3}, r"\$.environment.window: the task toy has none; it knows .*"),
        ("adlro", "environment", {"clusters": ["adlro"]}, r"\$.environment.clusters: the task adlro has none"),
        ("adlro", "environment", {"idle_weight": 1.5}, "idle_weight must lie between"),
        ("offers", "environment", {"load": [0.5, -1]}, "load must be"),
        ("toy", "network", {"hidden": 0}, r"\$.network.hidden"),
    ],
)
def test_what_is_wrong_in_a_configuration_is_named(
    task: str, section: str, wrong: dict[str, Any], message: str
) -> None:
    given_ = {"task": task, "training": {"segments": 1, "steps": 1}} | {section: {"segments": 1, "steps": 1} | wrong}
    given_[section] = wrong if section != "training" else given_[section]
    with pytest.raises(ValueError, match=message):
        dqn_cnn.make(msgspec.convert(given_, DqnConfig), seed=0)
