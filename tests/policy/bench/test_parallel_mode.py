"""The table of seed 000: its figures, what is kept apart, and a short run of all of it."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from trimtab_lab.agents.table_tasks import ParallelModeTask
from trimtab_lab.bench import parallel_mode
from trimtab_lab.bench.parallel_mode import COLUMNS, FIRST_TEST, best_fixed, judge, one, run, scores, split
from trimtab_lab.environments import cpu_usage
from trimtab_lab.evaluation.statistics import TooFewWindows

SHORT = {"segments": 1, "steps": 50, "environments": 8}


def test_scores_are_those_of_a_confusion_counted_by_hand() -> None:
    # rows: 0 was best 5 times, 1 three times, 2 twice; 3 never was, and was never chosen
    confusion = np.array([[4, 1, 0, 0], [1, 2, 0, 0], [2, 0, 0, 0], [0, 0, 0, 0]])
    accuracy, precision, f1, weighted = scores(confusion)
    assert accuracy == 6 / 10
    assert precision == pytest.approx((4 / 7 + 2 / 3 + 0) / 3)
    assert f1 == pytest.approx((8 / 12 + 4 / 6 + 0) / 3)
    assert weighted == pytest.approx((5 * 8 / 12 + 3 * 4 / 6 + 0) / 10)


def test_an_action_that_is_chosen_and_never_best_counts_against_precision() -> None:
    _, precision, f1, weighted = scores(np.array([[5, 5], [0, 0]]))
    assert precision == 1 / 2
    assert f1 == pytest.approx((10 / 15 + 0) / 2)
    assert weighted == pytest.approx(10 / 15)


@pytest.mark.parametrize("seed", range(20))
def test_no_seed_is_judged_on_series_that_it_trained_on(seed: int) -> None:
    train, test = split(seed)
    assert sorted(train + test) == sorted(cpu_usage.names())
    assert not set(train) & set(test)
    assert len(test) == 3


def test_every_two_series_are_kept_apart_by_one_of_seven_seeds() -> None:
    together = [pair for seed in range(7) for pair in combinations(split(seed)[1], 2)]
    assert sorted(together) == sorted(combinations(cpu_usage.names(), 2))


def test_the_best_fixed_configuration_earns_more_than_all_others() -> None:
    environment = ParallelModeTask(series=("ec2_825cc2",), steps=40)
    chosen = best_fixed(environment, 0)
    possible = np.flatnonzero(environment.environment(1).given.world.possible)

    def earned(action: int) -> float:
        return judge(environment, lambda seen, _: np.full(len(seen), action), 48, 0).total_reward

    rewards = {action: earned(action) for action in possible.tolist()}
    assert rewards[chosen] > 0.98 * max(rewards.values())
    assert rewards[chosen] > 1.02 * np.median(list(rewards.values()))


def test_a_policy_is_judged_by_what_the_environment_says() -> None:
    environment = ParallelModeTask(series=("rds_e47b3b",), steps=30)
    env = environment.environment(4)
    _, info = env.reset(seed=FIRST_TEST + 3 * 4)
    total, right, joules = np.zeros(4), 0, []
    for _ in range(30):
        action = np.full(4, 14)
        right += int((info["best_action"] == 14).sum())
        _, reward, _, _, info = env.step(action)
        total += reward
        joules.append(info["energy_joules"])
    judged = judge(environment, lambda seen, _: np.full(len(seen), 14), 4, 3)
    assert judged.total_reward == pytest.approx(total.mean())
    assert judged.accuracy == right / 120
    assert judged.kilojoules == pytest.approx(np.mean(joules) / 1000)


def test_nobody_earns_more_than_hindsight() -> None:
    found = one(4, 6, SHORT)
    best = found.pop("hindsight")
    assert best.accuracy == best.f1 == best.weighted_f1 == best.precision == 1.0
    assert set(found) == {"Q-learning", "SARSA", "best fixed", "default fixed"}
    assert all(judged.total_reward < best.total_reward for judged in found.values())
    assert all(judged.accuracy < 1.0 for judged in found.values())


def test_a_short_run_makes_the_whole_table() -> None:
    told: list[str] = []
    found = run(seeds=[0, 1, 2], progress=told.append, episodes=2, training=SHORT)
    assert len(told) == 3
    assert found.columns == COLUMNS
    names = ["Q-learning, paper", "Q-learning", "SARSA, paper", "SARSA", "best fixed, paper", "best fixed"]
    assert [row[0] for row in found.rows] == [*names, "default fixed", "hindsight"]
    assert found.rows[0][1:4] == parallel_mode.PAPER["Q-learning"][:3]
    assert sum("over splits:" in note for note in found.notes) == 3
    assert sum("over seeds, these servers given:" in note for note in found.notes) == 3


def test_two_seeds_are_too_few() -> None:
    with pytest.raises(TooFewWindows):
        run(seeds=[0, 1], progress=str, episodes=1, training=SHORT)


def test_figures_that_the_configuration_lacks_are_named() -> None:
    with pytest.raises(ValueError, match="gamma"):
        run(seeds=[0, 1, 2], progress=str, training={"gamma": 0.5})


def test_seeds_that_are_judged_on_the_same_series_count_as_one() -> None:
    judged = [parallel_mode.ParallelModeScore(*[float(seed)] * 7) for seed in range(9)]
    means = [each.accuracy for each in parallel_mode.by_split(range(9), judged)]
    assert means == [3.5, 4.5, 2, 3, 4, 5, 6]  # 0 and 7, 1 and 8
