"""The table of the hosts that bid: everybody plays the same unseen episodes, and nobody better than is possible."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trimtab_lab.agents import recipe, vdn
from trimtab_lab.agents.vdn_tasks import AdlroWorld, Hosts
from trimtab_lab.bench import decentralised
from trimtab_lab.bench.decentralised import TEST, baselines, bidding, play
from trimtab_lab.environments import adlro
from trimtab_lab.environments.adlro import AdlroEnv

TINY = """
task: adlro
environment: {window: 4, jobs: 12}
training: {segments: 1, steps: 20, environments: 2, batch: 8, warm_up: 20, hidden: 8, validation_episodes: 1}
"""


def tiny(folder: Path) -> str:
    path = folder / "tiny.yaml"
    path.write_text(TINY)
    return str(path)


def test_rules_play_the_test_episodes_as_the_environment_alone_does() -> None:
    played = play(AdlroWorld(Hosts(jobs=30, window=4), 3), baselines()["fastest_first"])

    for episode in range(3):
        env = AdlroEnv(jobs=30, window=4)
        observation, info = env.reset(seed=TEST + episode)
        while "metrics" not in info:
            action = adlro.fastest_first(observation, info["action_mask"])
            observation, _, _, _, info = env.step(action)
        assert {name: float(of[episode]) for name, of in played.items()} == pytest.approx(info["metrics"])


def test_hosts_in_numpy_act_as_in_training(tmp_path: Path) -> None:
    config = recipe.read_recipe("vdn", tiny(tmp_path))
    assert isinstance(config, vdn.VdnConfig)
    learner = vdn.make(config, 0)
    world = AdlroWorld(Hosts(jobs=12, window=4), 4)
    act, seen = bidding(world, learner.weights()), world.reset(TEST)
    for _ in range(15):
        actions = act(seen)
        np.testing.assert_array_equal(actions, learner.greedy(world, seen))
        seen = world.step(actions).seen


def test_the_table_has_a_row_for_every_policy_and_is_the_same_again(tmp_path: Path) -> None:
    def made(folder: str) -> tuple[tuple[object, ...], ...]:
        said: list[str] = []
        found = decentralised.run(
            seeds=[0, 1], progress=said.append, folder=tmp_path / folder, episodes=4, config=tiny(tmp_path)
        )
        assert said == ["fcfs", "static_affinity", "fastest_first", "vdn, seed 0", "vdn, seed 1"]
        return found.rows

    rows = made("a")
    assert [row[0] for row in rows] == ["fcfs", "static_affinity", "fastest_first", "vdn"]
    assert rows[0][4] == "1"
    assert rows == made("b") == made("a")  # trained anew, and taken up where all is done


def test_only_trainings_of_hosts_are_taken(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="its task must be adlro"):
        decentralised.run(seeds=[0], progress=print, folder=tmp_path, episodes=3, config="toy")
