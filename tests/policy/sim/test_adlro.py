"""The 16 GPUs of seed 002: what an episode earns, what may be placed where, and what baselines make of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab_lab.environments import adlro, adlro_cluster
from trimtab_lab.environments.adlro import AdlroEnv

Policy = Callable[[adlro.Observation, adlro.Mask], int]


class Start(NamedTuple):
    """A placement as an onlooker sees it."""

    time: float
    job: int
    gpu: int

    def end(self, env: AdlroEnv) -> float:
        return self.time + env.jobs.work[self.job] / env.hardware.speed[env.jobs.kind[self.job], self.gpu]


class Played(NamedTuple):
    """An episode."""

    rewards: list[float]
    starts: list[Start]
    terminated: bool
    info: dict[str, Any]


def play(env: AdlroEnv, policy: Policy, seed: int) -> Played:
    observation, info = env.reset(seed=seed)
    rewards, starts, over = [], [], False
    while not over:
        action = policy(observation, info["action_mask"])
        if action != env.wait and info["action_mask"][action]:
            slot, gpu = divmod(action, adlro_cluster.GPUS)
            starts.append(Start(info["time"], env.waiting[slot], gpu))
        observation, reward, terminated, truncated, info = env.step(action)
        rewards.append(reward)
        over = terminated or truncated
    return Played(rewards, starts, terminated, info)


def anything(seed: int, heed: bool) -> Policy:
    """Random actions, those of the mask or any."""
    random = np.random.default_rng(seed)
    return lambda _, mask: int(random.choice(np.flatnonzero(mask))) if heed else int(random.integers(len(mask)))


def fcfs(seed: int = 0) -> Policy:
    random = np.random.default_rng(seed)
    return lambda _, mask: adlro.fcfs(mask, random)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.booleans(), st.integers(1, 6), st.sampled_from([0.1, 0.5, 0.9]))
def test_an_episode_earns_minus_completion_times_and_weighted_idle_time(
    seed: int, heed: bool, window: int, weight: float
) -> None:
    env = AdlroEnv(jobs=12, window=window, idle_weight=weight)
    played = play(env, anything(seed, heed), seed)
    if not played.terminated:
        return
    ends = {start.job: start.end(env) for start in played.starts}
    assert sorted(ends) == list(range(12))
    completion = sum(ends[job] - env.jobs.arrival[job] for job in ends)
    busy = sum(start.end(env) - start.time for start in played.starts)
    idle = adlro_cluster.GPUS * max(ends.values()) - busy
    assert sum(played.rewards) == pytest.approx(-(completion + weight * idle), rel=1e-9)
    assert played.info["metrics"]["idle_gpu_s"] == pytest.approx(idle)
    assert played.info["metrics"]["avg_jct_s"] == pytest.approx(completion / 12)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.booleans())
def test_no_gpu_and_no_host_is_ever_given_away_twice(seed: int, heed: bool) -> None:
    env = AdlroEnv(jobs=40, arrivals_per_second=2.0)
    starts = play(env, anything(seed, heed), seed).starts
    for start in starts:
        beside = [each for each in starts if each.time <= start.time < each.end(env)]
        gpus = [each.gpu for each in beside]
        assert len(gpus) == len(set(gpus))
        here = [each.job for each in beside if env.hardware.host[each.gpu] == env.hardware.host[start.gpu]]
        assert env.jobs.cores[here].sum() <= adlro_cluster.HOST_CORES
        assert env.jobs.memory[here].sum() <= adlro_cluster.HOST_MEMORY + 1e-6
        assert env.jobs.gpu_memory[start.job] <= env.hardware.memory[start.gpu]


def test_a_masked_action_waits() -> None:
    env, twin = AdlroEnv(), AdlroEnv()
    _, info = env.reset(seed=1)
    twin.reset(seed=1)
    masked = int(np.flatnonzero(info["action_mask"] == 0)[0])
    np.testing.assert_equal(env.step(masked), twin.step(twin.wait))


def test_where_nothing_else_will_happen_waiting_is_masked_and_takes_a_second() -> None:
    env = AdlroEnv(jobs=1)
    _, info = env.reset(seed=0)
    assert info["action_mask"][env.wait] == 0
    assert info["action_mask"][:-1].any()
    _, reward, terminated, truncated, info = env.step(env.wait)
    assert (reward, info["time"]) == (-(1 + 0.5 * 16), 1.0)
    assert not terminated
    assert not truncated


def test_an_agent_that_never_places_its_jobs_is_cut_off() -> None:
    played = play(AdlroEnv(jobs=3), lambda _, mask: len(mask) - 1, seed=0)
    assert len(played.rewards) == 60
    assert not played.terminated
    assert played.info["metrics"]["avg_jct_s"] == float("inf")


def test_an_observation_shows_the_grid_and_the_oldest_waiting_jobs() -> None:
    env = AdlroEnv(window=2)
    observation, _ = env.reset(seed=5)
    gpus, jobs = observation["gpus"], observation["jobs"]
    assert gpus.shape == (8, 4, 4)
    assert not gpus[[0, 2]].any()
    np.testing.assert_allclose(gpus[1], 0.3)
    assert gpus[3:6].argmax(axis=0).tolist() == [[0] * 4, [0] * 4, [1] * 4, [2] * 4]
    assert jobs[:, 0].tolist() == [1.0, 0.0]
    assert jobs[0, 1] == np.float32(env.jobs.priority[0])
    assert jobs[0, 2:5].argmax() == env.jobs.kind[0]
    assert observation["queue"] == np.float32(1 / 17)


def test_a_busy_gpu_shows_its_utilisation_and_warms_up() -> None:
    env = AdlroEnv()
    env.reset(seed=5)
    for _ in range(12):
        action = int(np.flatnonzero(env.step(env.wait)[4]["action_mask"][:-1])[0])
        observation, *_ = env.step(action)
    busy = observation["gpus"][0] > 0
    assert observation["gpus"][0][busy].min() >= 0.7
    assert observation["gpus"][1].max() > 0.31
    assert ((observation["gpus"][2] > 0) == busy).all()


def test_speeds_follow_from_the_datasheets() -> None:
    firsts = [0, 8, 12]
    expected = [[1.0, 0.24, 0.86], [1.0, 0.93, 0.28], [1.0, 0.82, 1.03]]
    np.testing.assert_allclose(adlro_cluster.hardware().speed[:, firsts], expected, atol=0.006)


def test_every_job_fits_the_make_that_it_is_tied_to() -> None:
    jobs = adlro_cluster.draw(np.random.default_rng(0), 2000, 1.0, 10.0)
    hardware = adlro_cluster.hardware()
    for kind, make in enumerate(adlro.AFFINITY):
        assert jobs.gpu_memory[jobs.kind == kind].max() <= hardware.memory[hardware.make == make].min()


def test_work_has_the_mean_that_was_asked_for() -> None:
    jobs = adlro_cluster.draw(np.random.default_rng(0), 50_000, 2.0, 10.0)
    assert jobs.work.mean() == pytest.approx(10.0, rel=0.02)
    assert np.diff(jobs.arrival).mean() == pytest.approx(0.5, rel=0.02)


def test_fcfs_comes_near_the_paper_and_knowing_the_makes_is_better() -> None:
    env = AdlroEnv()
    measured = {
        name: [play(env, policy, seed).info["metrics"] for seed in range(25)]
        for name, policy in (("fcfs", fcfs()), ("static", adlro.static_affinity), ("fastest", adlro.fastest_first))
    }
    jct = {name: np.mean([each["avg_jct_s"] for each in runs]) for name, runs in measured.items()}
    assert jct["fcfs"] == pytest.approx(25.8, rel=0.1)
    assert np.mean([each["gpu_utilisation"] for each in measured["fcfs"]]) == pytest.approx(0.581, rel=0.1)
    assert jct["static"] < 0.85 * jct["fcfs"]
    assert jct["fastest"] < 0.95 * jct["fcfs"]
