"""What every gymnasium environment promises, whatever it is about."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

import trimtab_lab.environments

SEEDS = ("trimtab/ADLRO-v0", "trimtab/RLAlloc-v0", "trimtab/ParallelMode-v0")
each = pytest.mark.parametrize("name", SEEDS)


def trajectory(name: str, seed: int, steps: int = 60, **given: Any) -> list[tuple[Any, ...]]:
    """What happens when actions are drawn without a look at the mask."""
    env = gym.make(name, **given)
    env.action_space.seed(seed)
    observation, info = env.reset(seed=seed)
    happened: list[tuple[Any, ...]] = [(observation, info["action_mask"])]
    for _ in range(steps):
        observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
        assert observation in env.observation_space
        happened.append((observation, reward, terminated, truncated, info["action_mask"]))
        if terminated or truncated:
            observation, info = env.reset()
    return happened


def test_all_four_are_registered() -> None:
    assert trimtab_lab.environments.__doc__
    names = {*SEEDS, "trimtab/Cluster-v0"}
    assert names <= set(gym.registry)
    assert all(gym.spec(name).entry_point for name in names)


@each
def test_gymnasium_finds_nothing_to_complain_about(name: str) -> None:
    check_env(gym.make(name).unwrapped)


@each
def test_the_same_seed_gives_the_same_trajectory(name: str) -> None:
    first, again, other = (trajectory(name, seed) for seed in (3, 3, 4))
    np.testing.assert_equal(first, again)
    with pytest.raises(AssertionError):
        np.testing.assert_equal(first, other)


@each
def test_copies_side_by_side_are_the_single_ones(name: str) -> None:
    together = gym.make_vec(name, num_envs=2, vectorization_mode="sync")
    observations, infos = together.reset(seed=7)
    assert infos["action_mask"].shape[0] == 2
    for index in range(2):
        alone, _ = gym.make(name).reset(seed=7 + index)
        of_index = (
            {key: values[index] for key, values in observations.items()}
            if isinstance(observations, dict)
            else observations[index]
        )
        np.testing.assert_equal(of_index, alone)


@each
def test_a_step_without_an_episode_is_refused(name: str) -> None:
    env = gym.make(name).unwrapped
    with pytest.raises(ResetNeeded, match=r"call reset\(\)"):
        env.step(env.action_space.sample())


@pytest.mark.parametrize(
    ("name", "argument", "value"),
    [
        ("trimtab/ADLRO-v0", "jobs", 0),
        ("trimtab/ADLRO-v0", "jobs", True),
        ("trimtab/ADLRO-v0", "jobs", float("nan")),
        ("trimtab/ADLRO-v0", "window", -1),
        ("trimtab/ADLRO-v0", "idle_weight", 1.0),
        ("trimtab/ADLRO-v0", "idle_weight", 0.0),
        ("trimtab/ADLRO-v0", "arrivals_per_second", float("nan")),
        ("trimtab/ADLRO-v0", "mean_work", float("inf")),
        ("trimtab/RLAlloc-v0", "max_gpu_memory", 1 << 30),
        ("trimtab/RLAlloc-v0", "max_cpu_memory", 1 << 30),
        ("trimtab/RLAlloc-v0", "max_cpu_cores", 0),
        ("trimtab/RLAlloc-v0", "time_horizon", 40),
        ("trimtab/RLAlloc-v0", "max_steps", 0),
        ("trimtab/RLAlloc-v0", "load", -0.5),
        ("trimtab/RLAlloc-v0", "profiles", ()),
        ("trimtab/ParallelMode-v0", "counts", ()),
        ("trimtab/ParallelMode-v0", "counts", (4, 2)),
        ("trimtab/ParallelMode-v0", "steps", 100_000),
        ("trimtab/ParallelMode-v0", "restart_seconds", 301.0),
        ("trimtab/ParallelMode-v0", "weights", {"speed": 1.0}),
        ("trimtab/ParallelMode-v0", "weights", {"latency": -1.0}),
        ("trimtab/ParallelMode-v0", "weights", {"latency": 0.0}),
        ("trimtab/ParallelMode-v0", "series", ("none-such",)),
        ("trimtab/ParallelMode-v0", "model", "gpt3-175b"),
        ("trimtab/ParallelMode-v0", "model", "gpt-none"),
        ("trimtab/ParallelMode-v0", "gpu", "none"),
    ],
)
def test_a_bad_argument_is_named(name: str, argument: str, value: Any) -> None:
    with pytest.raises(ValueError, match=argument):
        gym.make(name, **{argument: value})


@each
def test_a_bad_option_or_action_is_refused(name: str) -> None:
    env = gym.make(name).unwrapped
    with pytest.raises(ValueError, match="options"):
        env.reset(options={"sede": 1})
    env.reset(seed=0)
    with pytest.raises(ValueError, match="action"):
        env.step(np.array([2.0, 0.0, 0.0]) if isinstance(env.action_space, gym.spaces.Box) else 10_000)


def test_only_the_environments_need_gymnasium_and_nothing_needs_torch() -> None:
    check = (
        "import sys, trimtab_policy.sim.engine, trimtab_lab.rigid; assert 'gymnasium' not in sys.modules;"
        "import trimtab_lab.environments, trimtab_lab.environments.rlalloc_experts, gymnasium;"
        "[gymnasium.make(name) for name in ('trimtab/ADLRO-v0', 'trimtab/RLAlloc-v0', 'trimtab/ParallelMode-v0')];"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", check], check=True)
