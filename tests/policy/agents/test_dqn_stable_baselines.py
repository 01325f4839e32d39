"""The yardstick: on a standard environment our algorithm learns as fast as stable-baselines3's DQN."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import gymnasium as gym
import numpy as np
import pytest
import torch
from scipy import stats
from stable_baselines3 import DQN
from stable_baselines3.common.monitor import Monitor
from torch import Tensor, nn

from trimtab_lab.agents.dqn_cnn import DoubleDqn, DqnTraining
from trimtab_lab.agents.dqn_worlds import Arrays, DqnObservation, DqnStep, Ints
from trimtab_policy.learned.dqn_cnn import Inputs

STEPS, SEEDS = 10_000, (0, 1, 2)
RANDOM = 22.0
"""What random actions earn in CartPole-v1."""
EVERY, TARGET = 4, 50
"""Steps to an update, updates to a new target."""


class Poles:
    """CartPole-v1 as a world: one vector is seen, and everything is allowed."""

    schema = "cartpole/1"

    def __init__(self) -> None:
        self.environments = 1
        self._env = gym.make_vec("CartPole-v1", num_envs=1, vectorization_mode="sync")
        self._over = np.zeros(1, dtype=np.bool_)

    def reset(self, seed: int) -> DqnObservation:
        self._over[:] = False
        return self._seen(self._env.reset(seed=seed)[0])

    def step(self, actions: Ints) -> DqnStep:
        happened = ~self._over
        seen, reward, terminated, truncated, _ = self._env.step(actions)
        self._over = terminated | truncated
        ended: dict[int, dict[str, float]] = {0: {}} if self._over[0] else {}
        return DqnStep(self._seen(seen), reward, 0.99 * ~terminated, reward, happened, self._over.copy(), ended)

    def inputs(self, observation: Arrays) -> Inputs:
        return observation

    def _seen(self, seen: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> DqnObservation:
        return DqnObservation({"pole": seen.copy()}, np.ones((1, 2), dtype=np.bool_))


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, inputs: Mapping[str, Tensor], mask: Tensor) -> Tensor:
        values: Tensor = self.layers(inputs["pole"])
        return values.masked_fill(~mask, -torch.inf)


def ours(seed: int) -> float:
    """Mean return of the episodes in the second half of a training."""
    torch.manual_seed(seed)
    training = DqnTraining(
        *(2, STEPS // 2),
        environments=1,
        learning_rate=1e-3,
        batch=64,
        replay=STEPS,
        warm_up=500,
        steps_per_update=EVERY,
        target_every=TARGET,
        last_epsilon=0.04,
        epsilon_share=0.2,
    )
    learner = DoubleDqn(Poles(), Poles(), Perceptron(), training, seed)
    learner.learn(0)
    return learner.learn(1)["return"]


def theirs(seed: int) -> float:
    """The same of theirs."""
    env = Monitor(gym.make("CartPole-v1"))
    learner = DQN(
        "MlpPolicy",
        env,
        learning_rate=1e-3,
        buffer_size=STEPS,
        learning_starts=500,
        batch_size=64,
        gamma=0.99,
        train_freq=EVERY,
        target_update_interval=EVERY * TARGET,
        exploration_fraction=0.2,
        exploration_final_eps=0.04,
        policy_kwargs={"net_arch": [64, 64]},
        seed=seed,
        device="cpu",
    )
    learner.learn(STEPS)
    lengths = np.array(env.get_episode_lengths())
    return float(np.mean(np.array(env.get_episode_rewards())[np.cumsum(lengths) > STEPS // 2]))


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("one_thread")
def test_cartpole_is_learned_as_fast_as_by_stable_baselines3() -> None:
    mine, others = (np.log([learn(seed) for seed in SEEDS]) for learn in (ours, theirs))
    assert np.exp(mine.mean()) > 3 * RANDOM
    assert mine.mean() > others.mean() - np.log(1.5)
    assert stats.ttest_ind(mine, others, equal_var=False).pvalue > 0.01
