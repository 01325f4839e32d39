"""Soft actor-critic with imitation: its parts against their definitions, and what it learns where that is plain."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.policy.agents.toy_rules import returns, right_size, smallest
from torch.distributions import Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from trimtab_lab.agents import recipe, sac_imitation, sac_tasks
from trimtab_lab.agents.sac_imitation import Actor, SacConfig, SacImitation, log_density
from trimtab_lab.environments import toy
from trimtab_lab.environments.offers import OffersVectorEnv
from trimtab_lab.environments.rlalloc import RLAllocEnv
from trimtab_lab.environments.rlalloc_experts import ShortestJobFirst
from trimtab_policy.learned import store
from trimtab_policy.learned.sac_imitation import FEATURES, NAMES, granted, mean_action
from trimtab_policy.learned.store import ModelCard
from trimtab_policy.observation.encode import SCHEMA

README = """
environment:
  max_gpu_memory: 42949672960  # 40GB
  max_cpu_memory: 274877906944  # 256GB
  max_cpu_cores: 32
  time_horizon: 39
  max_steps: 1000

training:
  total_episodes: 200
  learning_rate: 0.003
  batch_size: 64
  buffer_size: 1000000
  gamma: 0.99
"""
SHORT = {
    "environment": {"jobs": 6, "time_horizon": 18},
    "training": {
        "total_episodes": 6,
        "episodes_per_segment": 2,
        "environments": 2,
        "warm_up_steps": 10,
        "batch_size": 16,
        "hidden": 16,
        "imitation_episodes": 4,
        "buffer_size": 60,
        "validation_episodes": 2,
    },
}
"""Three segments of some dozen steps each; the replay runs full."""


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def learner(seed: int = 0, **changed: Mapping[str, Any]) -> SacImitation:
    plain = {section: {**SHORT.get(section, {}), **changed.get(section, {})} for section in ("environment", "training")}
    return sac_imitation.make(msgspec.convert(plain, SacConfig), seed)


def written(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text)
    return path


def equal(ours: Mapping[str, NDArray[Any]], theirs: Mapping[str, NDArray[Any]]) -> bool:
    return ours.keys() == theirs.keys() and all(np.array_equal(ours[name], theirs[name]) for name in ours)


class Half:
    """An expert of somebody's own."""

    def get_demonstration(self, state: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.full(3, 0.5, dtype=np.float32)


class Greedy:
    """One who asks for more than there is."""

    def get_demonstration(self, state: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.full(3, 2.0, dtype=np.float32)


def minus_elapsed(env: RLAllocEnv) -> float:
    return -env.elapsed


def busy(env: RLAllocEnv) -> float:
    return float(env.used[0])


# --- the configuration -------------------------------------------------------------------------------------
def test_the_configuration_of_the_readme_is_taken_as_it_stands(tmp_path: Path) -> None:
    config = recipe.read_recipe("sac_imitation", written(tmp_path, README))
    assert isinstance(config, SacConfig)
    assert (config.task, config.environment.max_cpu_cores, config.training.learning_rate) == ("rlalloc", 32, 0.003)
    made = sac_imitation.make(config, 0)
    assert (made.schema, made.segments) == ("rlalloc/1", 10)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("training: {learning_rate: fast}", r"\$\.training\.learning_rate"),
        ("training: {learning_rate: 0}", r"\$\.training\.learning_rate"),
        ("training: {gamma: 1.5}", r"\$\.training\.gamma"),
        ("training: {episodes: 3}", "episodes"),
        ("environment: {max_gpus: 3}", "max_gpus"),
        ("task: chess", r"\$\.task"),
    ],
)
def test_a_wrong_key_or_value_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(recipe.RecipeError, match=complaint):
        recipe.read_recipe("sac_imitation", written(tmp_path, text))


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"environment": {"cluster": "sia-heterogeneous"}}, r"\$\.environment\.cluster: the task rlalloc has none"),
        ({"environment": {"time_horizon": 40}}, "time_horizon"),
        ({"environment": {"reward": "nowhere:at_all"}}, r"\$\.environment\.reward: 'nowhere:at_all'"),
        ({"environment": {"metrics": {"mine": "math"}}}, r"\$\.environment\.metrics\.mine"),
        (
            {"training": {"experts": ["sjf", "oracle"]}},
            r"\$\.training\.experts: unknown expert 'oracle'; known are fcfs",
        ),
        ({"training": {"experts": ["math:pi"]}}, "get_demonstration"),
    ],
)
def test_what_the_task_does_not_know_is_named(changed: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        learner(**changed)


@pytest.mark.parametrize("task", recipe.tasks("sac_imitation"))
def test_shipped_configurations_make_learners(task: str) -> None:
    config = recipe.read_recipe("sac_imitation", task)
    assert isinstance(config, SacConfig)
    assert config.task == task
    assert sac_imitation.make(config, 0).segments > 0


def test_reward_metrics_and_experts_can_be_the_users_own() -> None:
    here = __name__
    mine = learner(
        environment={"reward": f"{here}:minus_elapsed", "metrics": {"busy": f"{here}:busy"}},
        training={"experts": [f"{here}:Half"]},
    )
    figures = mine.learn(0)
    makespans = mine.validate()
    assert figures["return"] < -60  # seconds, the shortest job alone
    assert makespans["busy"] == 0  # at the end of an episode


def test_an_expert_that_shows_what_is_no_action_is_named() -> None:
    with pytest.raises(ValueError, match=r"Greedy.get_demonstration must return \(3,\) numbers from 0.0 to 1.0"):
        learner(training={"experts": [f"{__name__}:Greedy"]}).learn(0)


# --- the algorithm -----------------------------------------------------------------------------------------
def test_the_density_of_a_squashed_gaussian_is_that_of_torch_distributions() -> None:
    torch.manual_seed(0)
    mean, log_std, noise = torch.randn(100, 3), torch.randn(100, 3), torch.randn(100, 3)
    raw = mean + log_std.exp() * noise
    reference = TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform(cache_size=1)])
    told = reference.log_prob(reference.transforms[0](raw)).sum(dim=1)
    torch.testing.assert_close(log_density(raw, noise, log_std), told, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (1.5, 0.3), (-2.0, 0.8)])
def test_the_density_integrates_to_1_and_explains_how_often_actions_fall_where(mean: float, std: float) -> None:
    actions = torch.linspace(-1, 1, 200_001, dtype=torch.float64)[1:-1]
    raw = torch.atanh(actions)
    noise = (raw - mean) / std
    density = log_density(raw[:, None], noise[:, None], torch.tensor([[np.log(std)]])).exp()
    assert torch.trapezoid(density, actions).item() == pytest.approx(1.0, abs=2e-3)
    below = torch.trapezoid(density[actions < 0.5], actions[actions < 0.5]).item()
    drawn = np.tanh(np.random.default_rng(0).normal(mean, std, 100_000))
    assert below == pytest.approx((drawn < 0.5).mean(), abs=0.006)


def test_the_density_is_finite_where_the_tanh_is_saturated() -> None:
    far = torch.tensor([[30.0, -30.0, 0.0]])
    assert torch.isfinite(log_density(far, torch.zeros(1, 3), torch.zeros(1, 3))).all()


def test_actions_are_drawn_from_the_density_that_is_told() -> None:
    torch.manual_seed(1)
    actor = Actor(4, 1, 8)
    actions, density, _ = actor.sample(torch.ones(50_000, 4))
    low, high = actions.quantile(0.4).item(), actions.quantile(0.6).item()
    inside = (actions[:, 0] > low) & (actions[:, 0] < high)
    assert density[inside].exp().mean().item() * (high - low) == pytest.approx(0.2, rel=0.03)


def test_the_weight_of_imitation_falls_in_a_line_to_its_floor_and_is_nothing_without_experts() -> None:
    mine = learner(training={"imitation": 0.9, "imitation_floor": 0.3})
    seen = [mine.learn(segment)["imitation_share"] for segment in range(2)]
    assert seen == pytest.approx([0.6, 0.3])
    assert learner(training={"experts": []}).learn(0)["imitation_share"] == 0


def test_imitation_alone_becomes_the_expert() -> None:
    """In states that the expert comes to, in episodes that were not trained on."""
    cloning = learner(
        environment={"jobs": 20},
        training={
            "experts": ["sjf"],
            "imitation_floor": 1.0,
            "learning_rate": 0.003,
            "batch_size": 64,
            "hidden": 64,
            "total_episodes": 10,
            "episodes_per_segment": 10,
            "buffer_size": 5000,
        },
    )
    expert, seen = ShortestJobFirst(), []

    def act(states: NDArray[np.float32]) -> NDArray[np.float32]:
        seen.extend(states)
        return np.stack([expert.get_demonstration(state) for state in states])

    config = msgspec.convert({"jobs": 20, "time_horizon": 18}, sac_tasks.SacEnvironment)
    sac_tasks.play(sac_tasks.make_environments("rlalloc", config, 5), act, sac_tasks.VALIDATION_SEED)
    states = np.array(seen)
    shown, begun = act(states), mean_action(cloning.weights(), states)
    cloning.learn(0)
    learned = mean_action(cloning.weights(), states)
    assert np.abs(begun - shown).mean() > 0.3
    assert np.abs(learned - shown).mean() < 0.06


def test_it_solves_the_toy_world() -> None:
    config = recipe.read_recipe("sac_imitation", "toy")
    assert isinstance(config, SacConfig)
    solving = sac_imitation.make(config, 0)
    before = solving.validate()["score"]
    for segment in range(solving.segments):
        solving.learn(segment)
    world = toy.toy(config.training.validation_episodes)
    right, wrong = (returns(world, rule, sac_tasks.VALIDATION_SEED).mean() for rule in (right_size, smallest))
    assert before < wrong + 0.1
    assert solving.validate()["score"] > right - 0.1 * (right - wrong)


# --- a training --------------------------------------------------------------------------------------------
def test_the_same_seed_learns_the_same_and_another_does_not() -> None:
    first, second, other = learner(1), learner(1), learner(2)
    figures = [each.learn(0) for each in (first, second, other)]
    assert figures[0] == figures[1]
    assert equal(first.arrays(), second.arrays())
    assert not equal(first.weights(), other.weights())


@pytest.mark.parametrize("prioritised", [True, False])
def test_a_restored_training_goes_on_bit_for_bit(prioritised: bool) -> None:
    whole, begun, resumed = (learner(training={"prioritised": prioritised}) for _ in range(3))
    for segment in range(whole.segments):
        whole.learn(segment)
    begun.learn(0)
    resumed.restore(begun.arrays())
    for segment in range(1, resumed.segments):
        resumed.learn(segment)
    assert equal(whole.arrays(), resumed.arrays())
    assert whole.validate() == resumed.validate()


def test_a_checkpoint_from_before_the_first_update_can_be_restored() -> None:
    begun, resumed = (learner(training={"warm_up_steps": 10_000}) for _ in range(2))
    begun.learn(0)
    resumed.restore(begun.arrays())
    assert equal(begun.arrays(), resumed.arrays())


def test_numpy_acts_as_torch_does_on_10_000_states(tmp_path: Path) -> None:
    """Shares to within rounding, and the same options for the same jobs."""
    random, actor = np.random.default_rng(0), Actor(FEATURES, 3, 64)
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter.mul_(3)  # as far from the middle as trained ones
    weights = {name: value.numpy() for name, value in actor.state_dict().items() if name in NAMES}
    facts = {"agent": "sac_imitation", "task": "offers", "schema": SCHEMA, "catalogue": "", "commit": ""}
    store.save(tmp_path / "mine", weights, ModelCard(**facts, seeds=(0,), score=0.0, score_name="", config={}))
    loaded = store.load(tmp_path / "mine", SCHEMA, NAMES).arrays
    states = random.random((10_000, FEATURES), dtype=np.float32)
    with torch.no_grad():
        theirs = ((torch.tanh(actor(torch.from_numpy(states))[0]) + 1) / 2).numpy()
    ours = mean_action(loaded, states)
    assert np.abs(ours - theirs).max() < 1e-5
    assert np.ptp(ours) > 0.9
    env = OffersVectorEnv(50, load=1.2, jobs=30)
    env.reset(seed=3)
    for batch in range(200):
        rows = slice(50 * batch, 50 * batch + 50)
        answers = granted(env.offers, ours[rows])
        np.testing.assert_array_equal(answers, granted(env.offers, theirs[rows]))
        env.step(answers)
