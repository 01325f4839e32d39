"""Plain SAC, i.e. ours without imitation and priorities, against that of stable-baselines3 on Pendulum."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from stable_baselines3 import SAC

from trimtab_lab.agents import sac_tasks
from trimtab_lab.agents.sac_imitation import SacImitation, SacTraining
from trimtab_lab.agents.sac_tasks import VALIDATION_SEED as SEED
from trimtab_lab.agents.sac_tasks import SacTask, Vector

EPISODES, STEPS = 22, 200
"""Of training; an episode of Pendulum takes 200 steps."""


def pendulums(count: int) -> Vector:
    return SyncVectorEnv([lambda: gym.make("Pendulum-v1")] * count, autoreset_mode=AutoresetMode.NEXT_STEP)


def ours(seed: int) -> float:
    task = SacTask(
        "pendulum/1",
        frozenset(),
        lambda n, _, __: pendulums(n),
        {},
        False,
        lambda returns, _: {"score": returns.mean()},
    )
    training = SacTraining(
        total_episodes=EPISODES,
        episodes_per_segment=EPISODES,
        environments=1,
        learning_rate=1e-3,
        batch_size=128,
        gamma=0.98,
        prioritised=False,
        temperature=1.0,
        imitation=0.0,
        imitation_floor=0.0,
        warm_up_steps=300,
        validation_episodes=10,
    )
    learner = SacImitation(pendulums(1), pendulums(10), task, (), training, seed)
    learner.learn(0)
    return learner.validate()["score"]


def theirs(seed: int) -> float:
    model = SAC(
        "MlpPolicy",
        "Pendulum-v1",
        learning_rate=1e-3,
        batch_size=128,
        gamma=0.98,
        learning_starts=300,
        policy_kwargs={"net_arch": [64, 64]},
        seed=seed,
        device="cpu",
    )
    model.learn(EPISODES * STEPS)
    returns, _ = sac_tasks.play(pendulums(10), lambda states: model.predict(states, deterministic=True)[0], SEED)
    return float(returns.mean())


@pytest.mark.long
@pytest.mark.timeout(900)
def test_plain_sac_learns_pendulum_as_well_as_that_of_stable_baselines3() -> None:
    """Untrained ones earn some -1400, the best possible some -150, by the angles that episodes begin with."""
    torch.set_num_threads(1)
    scores = np.array([[learns(seed) for seed in range(2)] for learns in (ours, theirs)])
    assert (scores > -450).all()
    assert abs(scores[0].mean() - scores[1].mean()) < 150
