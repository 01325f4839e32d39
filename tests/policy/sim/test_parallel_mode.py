"""GPU count and parallel mode of seed 000: the physics, what a step earns, and the action to compare with."""

from __future__ import annotations

import csv
from importlib.resources import files
from itertools import product
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from trimtab_lab.environments import cpu_usage, parallel_mode, parallel_physics
from trimtab_lab.environments.parallel_mode import ParallelModeEnv, ParallelModeVectorEnv
from trimtab_policy.specs import Mode

ORIGINALS = Path(__file__).resolve().parents[3] / "../shared/traces/cpu"
WORLD = parallel_mode.settings().world
ACTIONS = {pair: index for index, pair in enumerate(parallel_mode.configurations(WORLD))}
TOP = parallel_physics.LEVELS - 1


def outcome(pair: tuple[int, Mode], cpu: float = 0.1, level: int = TOP) -> dict[str, float]:
    found = parallel_physics.outcome(WORLD, np.array(cpu), np.array(level), np.array(ACTIONS[pair]))
    scores = dict(zip(parallel_physics.OBJECTIVES, found.scores.tolist(), strict=True))
    return scores | {"seconds": float(found.latency), "joules": float(found.energy)}


def test_the_cpu_series_are_the_published_ones() -> None:
    if not ORIGINALS.exists():
        pytest.skip(f"no published series at {ORIGINALS}")
    for name in cpu_usage.names():
        kind, mark = name.split("_")
        with (ORIGINALS / f"{kind}_cpu_utilization_{mark}.csv").open() as lines:
            published = [float(row["value"]) for row in csv.DictReader(lines)]
        np.testing.assert_allclose(cpu_usage.read_cpu_usage(name) * 100, published, atol=0.0051)


def test_the_cpu_series_carry_their_licence() -> None:
    folder = files("trimtab_lab") / "data" / "cpu"
    assert "Copyright 2014-2024 Numenta Inc." in (folder / "LICENSE").read_text()
    assert "numenta/NAB" in (folder / "README.md").read_text()
    assert all(
        ((read := cpu_usage.read_cpu_usage(name)) >= 0).all() and (read <= 1).all() for name in cpu_usage.names()
    )


def test_only_what_can_be_is_possible() -> None:
    impossible = {pair for pair, index in ACTIONS.items() if not WORLD.possible[index]}
    assert impossible == {(1, Mode.MODEL), (1, Mode.HYBRID), (2, Mode.HYBRID)}


def test_more_gpus_are_faster_and_take_more_energy() -> None:
    few, many = outcome((4, Mode.MODEL)), outcome((16, Mode.MODEL))
    assert many["seconds"] < few["seconds"]
    assert many["joules"] > few["joules"]


def test_data_parallelism_takes_more_cpu_and_more_memory_than_model_parallelism() -> None:
    data, model = outcome((8, Mode.DATA)), outcome((8, Mode.MODEL))
    assert data["cpu"] < model["cpu"]
    assert data["memory"] < model["memory"]


def test_a_busy_host_slows_what_needs_its_cpu() -> None:
    slowed = {
        mode: outcome((8, mode), 0.9)["seconds"] / outcome((8, mode), 0.1)["seconds"]
        for mode in (Mode.DATA, Mode.MODEL)
    }
    assert slowed[Mode.DATA] > 1.2 * slowed[Mode.MODEL] > 1.0


def test_a_busy_network_slows_gangs_of_several_nodes_only() -> None:
    assert outcome((4, Mode.DATA), level=0)["seconds"] == outcome((4, Mode.DATA))["seconds"]
    assert outcome((16, Mode.DATA), level=0)["seconds"] > 1.5 * outcome((16, Mode.DATA))["seconds"]
    assert outcome((16, Mode.DATA), level=0)["bandwidth"] < outcome((16, Mode.DATA))["bandwidth"]


def test_busy_hosts_leave_less_of_the_network() -> None:
    levels = parallel_physics.level(np.array([0.0, 0.5, 0.9, 1.0]), np.ones(4))
    assert levels.tolist() == [15, 15, 3, 0]


def test_the_best_of_each_objective_scores_one() -> None:
    scores = parallel_physics.outcome(WORLD, np.array(0.0), np.array(TOP), np.arange(len(ACTIONS))).scores
    assert scores[WORLD.possible].min() >= 0
    assert scores[WORLD.possible].max() <= 1
    np.testing.assert_allclose(scores[WORLD.possible][:, 2:].max(axis=0), 1.0)


def test_a_step_earns_the_weighted_scores() -> None:
    env = ParallelModeEnv()
    env.reset(seed=1, options={"series": "ec2_825cc2", "start": 100})
    cpu = cpu_usage.read_cpu_usage("ec2_825cc2")[100]
    observation, info = env.reset(seed=1, options={"series": "ec2_825cc2", "start": 100})
    assert observation[0] == np.float32(cpu)
    stay = ACTIONS[(1, Mode.DATA)]
    _, reward, _, _, info = env.step(stay)
    expected = outcome((1, Mode.DATA), cpu)  # one GPU knows no network
    weighted = sum(weight * expected[name] for name, weight in parallel_mode.WEIGHTS.items())
    assert reward == pytest.approx(weighted)
    assert info["latency_seconds"] == pytest.approx(expected["seconds"])
    assert info["energy_joules"] == pytest.approx(expected["joules"])


def test_a_restart_costs_its_part_of_the_interval() -> None:
    free, dear = ParallelModeEnv(restart_seconds=0.0), ParallelModeEnv(restart_seconds=60.0)
    move = ACTIONS[(8, Mode.MODEL)]
    for env in (free, dear):
        env.reset(seed=2)
    assert dear.step(move)[1] == pytest.approx(0.8 * free.step(move)[1])
    assert dear.step(move)[1] == pytest.approx(free.step(move)[1])


def test_a_masked_action_earns_nothing_and_changes_nothing() -> None:
    env = ParallelModeEnv()
    before, info = env.reset(seed=3)
    masked = ACTIONS[(1, Mode.HYBRID)]
    assert info["action_mask"][masked] == 0
    after, reward, *_ = env.step(masked)
    assert reward == 0
    np.testing.assert_array_equal(after[5:], before[5:])


@settings(max_examples=50, deadline=None)
@given(arrays(np.float64, (4, 3), elements=st.floats(0, 1, width=16)), st.sampled_from([0.0, 0.1, 1.0]))
def test_best_actions_are_those_of_trying_everything(reward: np.ndarray, restart: float) -> None:
    possible = np.array([True, True, False])

    def worth(plan: tuple[int, ...], running: int) -> float:
        total = 0.0
        for time, action in enumerate(plan):
            total += reward[time, action] * (1 - restart * (action != running))
            running = action
        return total

    best = parallel_mode.best_actions(reward, possible, restart)
    for start in range(2):
        followed, running = [], start
        for time in range(4):
            running = int(best[time, running])
            followed.append(running)
        exhaustive = max(worth(plan, start) for plan in product(range(2), repeat=4))
        assert worth(tuple(followed), start) == pytest.approx(exhaustive)


def test_no_single_configuration_is_good_enough() -> None:
    given_settings = parallel_mode.settings()
    best, rewards, chosen = [], [], []
    for seed in range(30):
        episode = parallel_mode.draw(given_settings, np.random.default_rng(seed))
        running = 0
        for time in range(given_settings.steps):
            action = int(episode.best[time, running])
            best.append(episode.reward[time, action] * (1 - given_settings.restart * (action != running)))
            running = action
            chosen.append(action)
        rewards.append(episode.reward[: given_settings.steps].mean(axis=0))
    fixed = np.mean(rewards, axis=0)
    assert np.mean(best) > 1.03 * fixed.max()
    assert np.mean(np.array(chosen) == fixed.argmax()) < 0.85
    assert len(set(chosen)) >= 4


def test_the_native_vector_environment_is_the_single_one_bit_for_bit() -> None:
    native = gym.make_vec("trimtab/ParallelMode-v0", 3, "vector_entry_point", steps=12)
    single = gym.make_vec("trimtab/ParallelMode-v0", 3, "sync", steps=12)
    np.testing.assert_equal(native.reset(seed=11), single.reset(seed=11))
    native.action_space.seed(0)
    for _ in range(30):  # two and a half episodes
        actions = native.action_space.sample()
        np.testing.assert_equal(native.step(actions), single.step(actions))


def test_a_vector_environment_takes_a_seed_for_each() -> None:
    env = ParallelModeVectorEnv(2)
    observations, _ = env.reset(seed=[5, 5])
    np.testing.assert_array_equal(observations[0], observations[1])
    with pytest.raises(ValueError, match="seed"):
        env.reset(seed=[1])


@pytest.mark.parametrize("options", [{"series": "none-such"}, {"start": -1}, {"start": 5000}])
def test_options_are_checked(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        ParallelModeEnv().reset(seed=0, options=options)


@given(arrays(np.float32, (5, 7), elements=st.floats(0, 1, width=32)))
def test_every_observation_has_a_cell(observations: np.ndarray) -> None:
    cells = parallel_mode.discretise(observations)
    assert cells.shape == (5,)
    assert cells.min() >= 0
    assert cells.max() < parallel_mode.states()


def test_cells_tell_configurations_and_loads_apart() -> None:
    given_settings = parallel_mode.settings()
    running = np.flatnonzero(WORLD.possible)
    idle, busy = (
        parallel_mode.observe(given_settings, np.full(len(running), cpu), np.full(len(running), TOP), running)
        for cpu in (0.05, 0.95)
    )
    cells = parallel_mode.discretise(np.concatenate([idle, busy]))
    assert len(set(cells.tolist())) == 2 * len(running)
    with pytest.raises(ValueError, match="bins"):
        parallel_mode.discretise(idle, (2, 2))
