"""`trimtab/Offers-v0`: Cluster-v0 job by job, in the order of the queue, with nothing running touched."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import trimtab_lab.environments
from trimtab_lab.environments.cluster_kernel import NONE, KernelState
from trimtab_lab.environments.offers import OffersVectorEnv


def state_of(env: OffersVectorEnv) -> KernelState:
    return env._cluster.state


def at_random(info: dict[str, Any], random: np.random.Generator) -> np.ndarray[Any, Any]:
    return (random.random(info["action_mask"].shape) * info["action_mask"]).argmax(axis=1)


def test_it_is_registered() -> None:
    assert trimtab_lab.environments.__doc__
    env = gym.make_vec("trimtab/Offers-v0", num_envs=2, jobs=3)
    assert isinstance(env.unwrapped, OffersVectorEnv)


@pytest.mark.parametrize("seed", range(3))
def test_the_return_of_an_episode_is_minus_the_sum_of_completion_times(seed: int) -> None:
    env, random = OffersVectorEnv(1, jobs=30, slots=8, load=1.3), np.random.default_rng(seed)
    _, info = env.reset(seed=seed)
    total, ends, finished, over = 0.0, 0.0, 0, False
    while not over:
        _, reward, terminated, truncated, info = env.step(at_random(info, random))
        total += reward[0]
        ends += (info["finished"][0] - finished) * info["time"][0]  # a step may see several end at different times
        finished, over = info["finished"][0], bool(terminated[0] or truncated[0])
    assert finished == 30
    assert -total * env.reward_seconds == pytest.approx(info["sum_jct"][0], rel=1e-9)
    assert info["sum_jct"][0] <= ends - state_of(env).submitted[0].sum() + 1e-6


def test_jobs_are_offered_in_the_order_of_the_queue_and_once_at_a_time() -> None:
    env, random = OffersVectorEnv(8, jobs=40, load=1.5), np.random.default_rng(0)
    _, info = env.reset(seed=0)
    last = [(-1.0, -1)] * 8
    for _ in range(300):
        state = state_of(env)
        for number in np.flatnonzero(env._slot != NONE).tolist():
            job = int(state.job[number, env._slot[number]])
            assert state.option[number, env._slot[number]] == NONE
            when = float(state.now[number])
            assert last[number] < (when, job)
            last[number] = when, job
        _, _, terminated, truncated, info = env.step(at_random(info, random))
        for number in np.flatnonzero(terminated | truncated):
            last[number] = (-1.0, -1)


def test_what_is_on_offer_has_room_and_running_jobs_go_on() -> None:
    env, random = OffersVectorEnv(4, jobs=40, load=1.5), np.random.default_rng(1)
    _, info = env.reset(seed=1)
    gangs = env.machines
    for _ in range(300):
        state = state_of(env)
        held = {(c, int(j)): int(o) for c in range(4) for j, o in zip(state.job[c], state.option[c], strict=True)}
        for number in np.flatnonzero(env._slot != NONE).tolist():
            free = state.free[number]
            family = state.family[number, state.job[number, env._slot[number]]]
            for option, allowed in enumerate(info["action_mask"][number][:-1]):
                here = (gangs.node_type == gangs.option_type[option]) & (free >= gangs.option_width[option])
                can = here.sum() >= gangs.option_nodes[option] and env.families.speed[family, option] > 0
                assert allowed == can
            runs = any(option != NONE for (c, job), option in held.items() if c == number and job != NONE)
            assert info["action_mask"][number][-1] == runs
        _, _, terminated, truncated, info = env.step(at_random(info, random))
        for c in np.flatnonzero(~(terminated | truncated)).tolist():
            for job, option in zip(state.job[c], state.option[c], strict=True):
                if held.get((c, int(job)), NONE) != NONE:
                    assert option == held[c, int(job)]


def test_a_masked_answer_waits() -> None:
    masked, waiting = (OffersVectorEnv(1, cluster="T4=4x4", jobs=6, load=3.0) for _ in range(2))
    pair = masked, waiting
    infos = [env.reset(seed=2)[1] for env in pair]
    for _ in range(40):
        refused = np.flatnonzero(infos[0]["action_mask"][0] == 0)
        may_wait = infos[0]["action_mask"][0][-1]
        first = int(np.flatnonzero(infos[0]["action_mask"][0])[0]) if infos[0]["action_mask"].any() else 0
        answers = (int(refused[0]), waiting.offers.wait) if may_wait and len(refused) else (first, first)
        infos = [env.step(np.array([answer]))[4] for env, answer in zip(pair, answers, strict=True)]
        np.testing.assert_array_equal(infos[0]["time"], infos[1]["time"])
        np.testing.assert_array_equal(infos[0]["action_mask"], infos[1]["action_mask"])


def test_the_future_is_discounted_by_the_time_that_passes() -> None:
    env, random = OffersVectorEnv(4, jobs=20, memory_seconds=1000.0), np.random.default_rng(0)
    _, info = env.reset(seed=0)
    for _ in range(60):
        before = info["time"]
        _, _, _, _, info = env.step(at_random(info, random))
        passed = info["time"] - before
        going_on = passed >= 0  # an episode that begins again goes back to 0
        np.testing.assert_allclose(info["discount"][going_on], np.exp(-passed[going_on] / 1000))
        assert (info["discount"][~going_on] == 1).all()


def test_a_cluster_of_a_vector_is_a_cluster_by_itself_and_the_seed_decides() -> None:
    vector, alone = OffersVectorEnv(3, jobs=8), [OffersVectorEnv(1, jobs=8) for _ in range(3)]
    seen, info = vector.reset(seed=5)
    singles = [env.reset(seed=5 + number) for number, env in enumerate(alone)]
    random = np.random.default_rng(0)
    for _ in range(60):
        for number, (one, one_info) in enumerate(singles):
            for name, values in one.items():
                np.testing.assert_array_equal(seen[name][number], values[0])
            np.testing.assert_array_equal(info["action_mask"][number], one_info["action_mask"][0])
        answers = at_random(info, random)
        seen, reward, _, _, info = vector.step(answers)
        stepped = [env.step(answers[[number]]) for number, env in enumerate(alone)]
        assert [float(step[1][0]) for step in stepped] == reward.tolist()
        singles = [(step[0], step[4]) for step in stepped]
    assert vector.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP


def test_episodes_draw_their_load_from_a_range() -> None:
    env = OffersVectorEnv(200, jobs=200, load=(0.5, 1.5))
    env.reset(seed=0)
    rates = 200 / state_of(env).submitted[:, -1] / env._saturation
    assert 0.4 < rates.min() < 0.7
    assert 1.3 < rates.max() < 1.9
    with pytest.raises(ValueError, match="load must be a finite number above 0"):
        OffersVectorEnv(1, load=(0.0, 1.0))


def test_observations_lie_in_their_space() -> None:
    env, random = OffersVectorEnv(2, jobs=10), np.random.default_rng(0)
    seen, info = env.reset(seed=0)
    for _ in range(100):
        assert env.observation_space.contains(seen)
        seen, _, _, _, info = env.step(at_random(info, random))
