"""The paper's table of ADLRO with ours beside it: made from a training of seconds, all columns mean what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from trimtab_lab.agents import dqn_worlds
from trimtab_lab.bench import adlro
from trimtab_lab.bench.adlro import AFFINITY, FASTEST, FCFS, UNSEEN
from trimtab_lab.bench.report import BenchReport, markdown
from trimtab_lab.environments.adlro import AdlroEnv

CONFIG = """
task: adlro
environment: {jobs: 20, window: 2, memory_seconds: 30}
training: {segments: 99, steps: 150, environments: 2, warm_up: 50, batch: 8, replay: 200, validation_episodes: 2}
network: {channels: 4, hidden: 8, hypervectors: 16}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adlro")


def run(folder: Path, told: list[str], ablation: bool = True) -> BenchReport:
    config = folder / "short.yaml"
    config.write_text(CONFIG)
    few = {"segments": 2}
    return adlro.run(
        seeds=[0, 1],
        progress=told.append,
        folder=folder,
        episodes=6,
        ablation=ablation,
        training=few,
        config=str(config),
    )


@pytest.fixture(scope="module")
def report(folder: Path) -> BenchReport:
    return run(folder, [])


def number(cell: str | float) -> float:
    return float(str(cell).split()[0])


def test_every_policy_of_the_paper_has_its_numbers_beside_ours(report: BenchReport) -> None:
    rows = {row[0]: row for row in report.rows}
    assert [rows[name][2] for name in (FCFS, AFFINITY, adlro.AGENT)] == [25.8, 22.1, 19.5]
    assert [rows[name][6] for name in (FCFS, AFFINITY, adlro.AGENT)] == [58.1, 65.4, 79.8]
    assert list(rows) == [FCFS, AFFINITY, FASTEST, adlro.AGENT, adlro.ABLATED]
    assert rows[FCFS][8] == rows[AFFINITY][9] == rows[FASTEST][10] == "1"
    for row in report.rows:
        assert 100 <= number(row[7]) <= 110


def test_baselines_see_the_whole_queue_and_have_the_figures_that_the_environment_tells(report: BenchReport) -> None:
    expected = []
    for seed in range(6):
        env = AdlroEnv(jobs=20, window=20)
        observation, info = env.reset(seed=UNSEEN + seed)
        over = False
        while not over:
            action = adlro.adlro.static_affinity(observation, info["action_mask"])
            observation, _, terminated, truncated, info = env.step(action)
            over = terminated or truncated
        expected.append(info["metrics"])
    row = next(row for row in report.rows if row[0] == AFFINITY)
    for column, figure, scale in ((1, "avg_jct_s", 1), (3, "jobs_per_hour", 1), (5, "gpu_utilisation", 100)):
        mean = scale * sum(each[figure] for each in expected) / 6
        assert number(row[column]) == pytest.approx(mean, rel=0.005)


def test_no_episode_is_one_that_was_trained_or_validated_on() -> None:
    assert dqn_worlds.VALIDATION + 1_000_000 < UNSEEN
    assert dqn_worlds.VALIDATION > 1 << 31


def test_trainings_that_are_done_are_not_done_again(folder: Path, report: BenchReport) -> None:
    told: list[str] = []
    assert markdown(run(folder, told)) == markdown(report)
    assert len(told) == 4
    assert all("segment 2 of 2" in each for each in told)


def test_the_ablation_can_be_left_out(folder: Path, report: BenchReport) -> None:
    told: list[str] = []
    rows = run(folder, told, ablation=False).rows
    assert [row[0] for row in rows] == [FCFS, AFFINITY, FASTEST, adlro.AGENT]
    assert rows[3][1] == report.rows[3][1]
    assert len(told) == 2


def test_notes_say_how_much_less_was_trained_than_in_the_paper(report: BenchReport) -> None:
    assert "2 trainings of 300 steps, some 6 episodes; the paper trains 1,000,000" in " ".join(report.notes)
    assert "R2" in report.notes[-1]
