"""The shared machine of seed 001: what is granted, what an episode earns, and the experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab_lab.environments import rlalloc_experts, rlalloc_jobs
from trimtab_lab.environments.rlalloc import AGE_RANK, DURATION_RANK, SCALARS, RLAllocEnv
from trimtab_lab.environments.rlalloc_experts import EXPERTS, Action, State
from trimtab_lab.environments.rlalloc_jobs import RlallocProfile, SharedMachine, speed

README = """
environment:
  max_gpu_memory: 42949672960  # 40GB
  max_cpu_memory: 274877906944  # 256GB
  max_cpu_cores: 32
  time_horizon: 39
  max_steps: 1000
"""
TOY = RlallocProfile("toy", (10, 20), (100.0, 150.0), tokens_per_core=50.0, host_memory=10)
NOTHING = np.zeros(3, dtype=np.float32)


def play(env: RLAllocEnv, act: Callable[[State], Action], seed: int) -> tuple[float, bool, dict[str, float]]:
    """(return, terminated, metrics) of an episode in which nothing was over-allocated."""
    state, _ = env.reset(seed=seed)
    earned, over = 0.0, False
    while not over:
        state, reward, terminated, truncated, info = env.step(act(state))
        assert (env.used <= 1 + 1e-9).all()
        assert (env.used >= 0).all()
        earned += reward
        over = terminated or truncated
    return earned, terminated, info["metrics"]


def test_the_keys_of_the_readme_are_the_arguments_and_their_values_the_defaults() -> None:
    env = gym.make("trimtab/RLAlloc-v0", **yaml.safe_load(README)["environment"]).unwrapped
    assert env.observation_space.shape == (39,)
    assert env.action_space.shape == (3,)
    assert isinstance(env, RLAllocEnv)
    assert (env.machine, env.max_steps) == (RLAllocEnv().machine, RLAllocEnv().max_steps)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([0.3, 1.0, 3.0]), st.sampled_from([0.7, 1.0]))
def test_whatever_is_done_nothing_is_over_allocated_and_slowdowns_add_up(seed: int, load: float, greed: float) -> None:
    random = np.random.default_rng(seed)
    env = RLAllocEnv(jobs=10, load=load, max_steps=400)
    earned, terminated, metrics = play(env, lambda _: (random.random(3) * greed).astype(np.float32), seed)
    if terminated:
        slowdowns = (env.finished - env.jobs.arrival) / env.jobs.ideal
        assert (slowdowns >= 1 - 1e-9).all()
        assert earned == pytest.approx(-slowdowns.sum())
        assert metrics["sum_slowdown"] == pytest.approx(slowdowns.sum())


def test_a_job_alone_with_all_that_it_wishes_takes_its_ideal_time() -> None:
    _, _, metrics = play(RLAllocEnv(jobs=10, load=1e-4), EXPERTS["fcfs"].get_demonstration, seed=0)
    assert metrics["avg_slowdown"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("grant", "alone", "demand"),
    [
        ((10, 4, 110), 100.0, 1.0),  # enough cores, all in memory: the GPU sets the pace
        ((19, 4, 110), 100.0, 1.0),  # memory between two steps is of no use
        ((20, 4, 110), 150.0, 1.0),
        ((20, 1, 110), 50.0, 1 / 3),  # one core prepares 50 tokens a second
        ((20, 1, 10), 12.5, 1 / 12),  # a quarter of that from disk
        ((20, 1, 60), 31.25, 0.625 / 3),  # half of the dataset in memory
    ],
)
def test_the_slower_of_gpu_and_loader_sets_the_pace(
    grant: tuple[float, float, float], alone: float, demand: float
) -> None:
    assert speed(TOY, 100.0, np.array(grant, dtype=np.float64)) == pytest.approx((alone, demand))


def test_jobs_that_share_the_gpu_slow_each_other_down() -> None:
    env = RLAllocEnv(20, 10**12, 64, jobs=2, load=1e6, profiles=[TOY])
    env.reset(seed=0)
    half = np.array([0.5, 0.5, 0.5], dtype=np.float32)
    _, _, _, _, info = env.step(half)
    assert info["granted"]
    env.step(half)
    shorter = np.argmin(env.jobs.tokens)
    first = 2 * env.jobs.tokens[shorter] / 100.0  # each at half of 100 tokens/s
    last = first + (env.jobs.tokens.max() - env.jobs.tokens.min()) / 100.0
    alone = 2 * env.jobs.arrival[1]  # the first had the GPU for itself for that long
    assert env.finished[shorter] == pytest.approx(first, abs=alone)
    assert env.finished[1 - shorter] == pytest.approx(last, abs=alone)


def test_a_grant_is_cut_to_what_is_free_and_refused_below_what_the_job_runs_with() -> None:
    env = RLAllocEnv(40, 10**12, 64, jobs=3, load=1e6, profiles=[TOY])
    env.reset(seed=0)
    *_, info = env.step(np.array([0.2, 1.0, 1.0], dtype=np.float32))
    assert not info["granted"]
    *_, info = env.step(np.array([0.7, 0.3, 0.3], dtype=np.float32))
    assert info["granted"]
    np.testing.assert_allclose(info["action_high"], [0.3, 0.7, 0.7], rtol=1e-6)
    *_, info = env.step(np.ones(3, dtype=np.float32))
    assert info["granted"]
    np.testing.assert_allclose(env.grants[:2].sum(axis=0), env.machine.whole)


def test_refusing_everything_lets_time_pass_to_the_next_event() -> None:
    env = RLAllocEnv(jobs=2, load=0.5)
    _, info = env.reset(seed=0)
    assert info["action_mask"].tolist() == [1, 1]
    *_, info = env.step(NOTHING)
    assert info["time"] == env.jobs.arrival[1]


def test_where_nothing_else_will_happen_refusing_is_masked_and_takes_ten_seconds() -> None:
    env = RLAllocEnv(jobs=1)
    _, info = env.reset(seed=0)
    assert info["action_mask"].tolist() == [0, 1]
    *_, info = env.step(NOTHING)
    assert (info["time"], env.waiting) == (10.0, [0])


def test_an_agent_that_grants_nothing_is_cut_off() -> None:
    env = RLAllocEnv(jobs=3, max_steps=50)
    _, terminated, metrics = play(env, lambda _: NOTHING, seed=0)
    assert not terminated
    assert metrics["done"] == 0


def test_the_state_holds_the_use_of_the_last_samples_and_of_now() -> None:
    env = RLAllocEnv(20, 10**12, 64, time_horizon=18, jobs=1, profiles=[TOY])
    state, _ = env.reset(seed=0)
    assert not state[:9].any()
    env.step(NOTHING)  # ten seconds
    state, *_ = env.step(np.ones(3, dtype=np.float32))
    histories = state[:9].reshape(3, 3)
    np.testing.assert_allclose(histories[:, :2], 1.0)  # the samples while it ran
    assert not histories[:, 2].any()  # it is done


def test_ranks_are_by_age_and_by_length() -> None:
    env = RLAllocEnv(jobs=5, load=1e6)
    state, _ = env.reset(seed=3)
    while len(env.waiting) < 5:
        state, *_ = env.step(NOTHING)
    ranks = set()
    for _ in range(5):
        ranks.add((float(state[-SCALARS + AGE_RANK]), float(state[-SCALARS + DURATION_RANK])))
        state, *_ = env.step(NOTHING)
    oldest_first = sorted(ranks)
    assert [age for age, _ in oldest_first] == [0.0, 0.25, 0.5, 0.75, 1.0]
    lengths = np.argsort(np.argsort(env.jobs.ideal)) / 4
    assert [length for _, length in oldest_first] == lengths.tolist()


def test_experts_act_on_jobs_and_the_shortest_first_is_the_best_of_them() -> None:
    env = RLAllocEnv()
    slowdown = {
        name: np.mean([play(env, expert.get_demonstration, seed)[2]["avg_slowdown"] for seed in range(10)])
        for name, expert in EXPERTS.items()
    }
    assert slowdown["sjf"] < 0.7 * slowdown["fcfs"]
    assert slowdown["sjf"] < slowdown["round_robin"]


def test_an_expert_leaves_a_job_waiting_that_is_not_the_first_or_does_not_fit() -> None:
    state = np.zeros(39, dtype=np.float32)
    state[-SCALARS:][rlalloc_experts.WISH] = (0.5, 0.25, 0.125)
    np.testing.assert_array_equal(EXPERTS["fcfs"].get_demonstration(state), np.float32([0.5, 0.25, 0.125]))
    state[9] = 0.6  # of the GPU's memory is held
    assert not EXPERTS["fcfs"].get_demonstration(state).any()
    assert EXPERTS["round_robin"].get_demonstration(state).any()
    state[9], state[-SCALARS + DURATION_RANK] = 0.0, 0.5
    assert not EXPERTS["sjf"].get_demonstration(state).any()
    assert EXPERTS["fcfs"].get_demonstration(state).any()


def test_reward_and_metrics_are_the_users_if_they_wish() -> None:
    env = RLAllocEnv(jobs=3, reward=lambda env: -env.elapsed, metrics={"twice": lambda env: 2 * env.now})
    earned, _, metrics = play(env, EXPERTS["fcfs"].get_demonstration, seed=0)
    assert metrics["twice"] == pytest.approx(2 * metrics["makespan_s"])
    assert earned == pytest.approx(-metrics["makespan_s"])

    class Mine(RLAllocEnv):
        def _calculate_reward(self) -> float:
            return 1.0

    env = Mine(jobs=3)
    env.reset(seed=0)
    assert env.step(NOTHING)[1] == 1.0


def test_predicted_profiles_get_faster_with_memory_and_slower_with_the_model() -> None:
    small, medium, large = rlalloc_jobs.predicted(42949672960)
    assert [each.name for each in (small, medium, large)] == list(rlalloc_jobs.MODELS)
    assert small.tokens_per_second[-1] > medium.tokens_per_second[-1] > large.tokens_per_second[-1]
    assert small.gpu_memory[0] < medium.gpu_memory[0] < large.gpu_memory[0]
    assert len(rlalloc_jobs.predicted(15 << 30)) == 2  # the large one needs more


@pytest.mark.parametrize(
    "changed",
    [
        {"gpu_memory": (20, 10)},
        {"gpu_memory": (10,)},
        {"tokens_per_second": (100.0, 50.0)},
        {"tokens_per_second": (0.0, 50.0)},
        {"gpu_memory": (), "tokens_per_second": ()},
        {"tokens_per_core": 0.0},
    ],
)
def test_an_unsound_profile_is_refused(changed: dict[str, Any]) -> None:
    fields = {"gpu_memory": (10, 20), "tokens_per_second": (100.0, 150.0)} | changed
    with pytest.raises(ValueError, match="profiles: odd"):
        rlalloc_jobs.check([RlallocProfile("odd", **fields)], SharedMachine(100, 4, 100))
