"""The model against published training runs, where the table of them lies beside the repository.

These are the runs that the constants were fitted on; `hack/perf/run` holds them against runs left out.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from trimtab_policy import catalog
from trimtab_policy.perf import accuracy, constants, hardware, measured, measurements, model_flops, speed
from trimtab_policy.perf.accuracy import Accuracy
from trimtab_policy.perf.forecast import forecast
from trimtab_policy.perf.plan_arrays import PlanColumns

TABLE = Path(__file__).resolve().parents[4] / "shared" / "measured" / "llm_training_throughput.csv"


@pytest.fixture(scope="module")
def found() -> Accuracy:
    if not TABLE.exists():
        pytest.skip("no table of published runs at ../shared/measured beside the repository")
    runs = measured.read_measured(TABLE)
    assert not runs.skipped
    return accuracy.judge(runs, forecast(runs, constants.load()))


def test_step_times_are_met_within_eight_percent_on_average_over_sources(found: Accuracy) -> None:
    assert found.overall.n > 1600
    assert found.overall.macro_mape < 0.08
    assert found.overall.median_ape < 0.05


def test_no_source_is_beyond_fifteen_percent_but_the_one_that_admits_forty_percent_of_noise(found: Accuracy) -> None:
    assert {name for name, errors in found.sources.items() if errors.mape > 0.15} <= {"bigscience-V100"}


@pytest.mark.parametrize(
    ("source", "regret", "rank"),
    [("vTrain-multi", 0.01, 0.75), ("vTrain-single", 0.05, 0.9), ("bigscience-A100", 0.04, 0.5)],
)
def test_plans_are_ranked_as_they_were_measured(found: Accuracy, source: str, regret: float, rank: float) -> None:
    """How much slower than the best the plan ranked first was in truth, and the rank correlation; means over jobs."""
    assert found.ranking[source].mean_regret < regret
    assert found.ranking[source].spearman > rank


MIXTURES = {"DeepSeekV3": "deepseek-v3", "Qwen3_30B_a3B": "qwen3-30b-a3b", "Qwen3_235B_a22B": "qwen3-235b-a22b"}


def _mixture(cells: dict[str, str]) -> float:
    """Predicted over measured step time of a run whose model's shape (latent attention, shared experts) is more than
    the columns of its table can say: the catalogue has it."""
    model = catalog.model(MIXTURES[cells["model"]])
    known = {
        "layers": model.layers,
        "hidden": model.hidden_size,
        "heads": model.attention_heads,
        "act_recompute": "none",
    }
    row = measurements.read_rows(
        cells["id"], measurements.Cells({**cells, **{key: str(value) for key, value in known.items()}}, "here")
    )
    value = constants.load().lookup(constants.generation(row.gpu), row.software, row.recipe)
    seconds = speed.step_time(
        row.work._replace(shape=model_flops.of(model)),
        PlanColumns(*np.array([row.plan]).T),
        hardware.reached(hardware.datasheet(row.gpu, row.precision), value),
        row.gpus_per_node,
        hardware.practised(value, hardware.facts(row.software)),
    ).total
    return float(seconds[0]) / row.seconds


def test_mixtures_of_experts_are_met_although_no_run_of_one_was_fitted() -> None:
    """Half of the published runs within a quarter; software made some of them twice as fast within half a year."""
    table = TABLE.with_name("more_training_throughput.csv")
    if not table.exists():
        pytest.skip("no second table of published runs at ../shared/measured beside the repository")
    with table.open(newline="", encoding="utf-8") as file:
        ratios = [_mixture(cells) for cells in csv.DictReader(file) if cells["model"] in MIXTURES]
    assert len(ratios) > 40
    assert np.median(np.abs(np.log(ratios))) < 0.25
    assert abs(np.median(np.log(ratios))) < 0.15
