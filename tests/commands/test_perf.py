"""`trimtab perf`: predictions held against a table of runs, and constants fitted to one."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from trimtab.cli import app
from trimtab_policy.perf import constants, fit, measured
from trimtab_policy.perf.accuracy import PEERS
from trimtab_policy.perf.forecast import forecast

SLOWER = 1.25
"""Measured times over predicted ones, in the tables of these tests."""
MODELS = {"small": (12, 768, 12), "medium": (24, 2048, 16), "large": (32, 4096, 32)}
PLANS = ((1, 1), (2, 1), (4, 1), (1, 2), (2, 2))


def row(number: int, model: str, tensor: int, micro_batch: int, **changes: str) -> dict[str, str]:
    layers, hidden, heads = MODELS[model]
    cells = {
        "id": f"run-{number}", "source_kind": "mine", "gpu_type": "H100-SXM5-80GB", "n_gpus": "8", "model": model,
        "layers": str(layers), "hidden": str(hidden), "heads": str(heads), "seq_len": "2048", "global_batch": "64",
        "tp": str(tensor), "micro_batch": str(micro_batch), "zero_or_fsdp": "ZeRO-1", "act_recompute": "none",
        "precision": "bf16", "framework": "Megatron-Core", "date": "2025", "step_time_s": "1.0",
    }  # fmt: skip
    return cells | changes


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    names = list(dict.fromkeys(name for each in rows for name in each))
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, names)
        table.writeheader()
        table.writerows(rows)
    return path


FINE_TUNES = Path(__file__).parents[1] / "policy" / "perf" / "data" / "fine_tunes.csv"


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Three models under five plans each, measured a quarter slower than the model says."""
    rows = [row(i, model, *plan) for i, (model, plan) in enumerate((m, p) for m in MODELS for p in PLANS)]
    said = forecast(measured.collect(rows), constants.load())
    for cells, seconds in zip(rows, said.seconds.tolist(), strict=True):
        cells["step_time_s"] = repr(SLOWER * seconds)
    return write(tmp_path / "runs.csv", rows)


def perf(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["perf", *map(str, arguments)])


def told(*arguments: str | Path) -> dict[str, Any]:
    result = perf(*arguments, "-o", "json")
    assert result.exit_code == 0, result.stderr
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


# --- validate --------------------------------------------------------------------------------------------------------
def test_the_documented_keys_are_there_and_fractions(runs: Path) -> None:
    answer = told("validate", runs)
    error = 1 - 1 / SLOWER
    each = {"n": 15, "mape": pytest.approx(error), "median_ape": pytest.approx(error), "coverage80": 0.0}
    assert answer["overall"] == each | {"macro_mape": pytest.approx(error)}
    assert answer["sources"] == {"mine": each}
    assert answer["gpus"] == {"H100-SXM5-80GB": each}
    assert answer["ranking"] == {"mine": {"groups": 3, "mean_regret": 0.0, "spearman": pytest.approx(1.0)}}


def test_fine_tunes_are_runs_like_others() -> None:
    answer = told("validate", FINE_TUNES)
    assert {"qwen", "fsdp-qlora", "torchtune", "megatron-bridge-lora"} == answer["sources"].keys()
    assert answer["overall"]["n"] + len(answer["skipped"]) == len(read(FINE_TUNES))
    assert 0.1 < answer["overall"]["median_ape"] < 0.3


def test_a_fine_tune_is_predicted_otherwise_than_training_of_all_weights(tmp_path: Path) -> None:
    whole = row(0, "large", 1, 4)
    table = write(tmp_path / "both.csv", [whole | {"lora_rank": "16"}, whole | {"id": "whole"}])
    worst = {each["row"]: each["predicted_seconds"] for each in told("validate", table, "--worst", "2")["worst"]}
    assert 0.6 < worst["run-0"] / worst["whole"] < 0.95


def test_bias_peers_and_what_predicted_are_told_besides(runs: Path) -> None:
    answer = told("validate", runs)
    assert answer["bias"]["sources"]["mine"] == pytest.approx(1 / SLOWER - 1)
    assert [peer["name"] for peer in answer["peers"]] == [peer.name for peer in PEERS]
    assert answer["predicted_by"].startswith("constants fitted on")
    assert answer["skipped"] == {}


def test_skipped_rows_are_counted_by_reason(tmp_path: Path, runs: Path) -> None:
    rows = read(runs)
    rows += [row(90 + i, "small", 3, 1) for i in range(2)] + [row(99, "small", 1, 1, gpu_type="Abacus")]
    table = write(tmp_path / "more.csv", rows)
    assert told("validate", table)["skipped"].keys() == {"run-90", "run-91", "run-99"}
    lines = perf("validate", table).stdout.splitlines()
    assert any(
        line.split() == ["2", "tp", "x", "pp", "x", "cp", "=", "3", "does", "not", "divide", "8", "GPUs"]
        for line in lines
    )
    assert any("Abacus" in line for line in lines)


def test_the_worst_rows_are_the_ones_furthest_off(tmp_path: Path, runs: Path) -> None:
    rows = read(runs)
    rows[7]["step_time_s"] = "1000"
    table = write(tmp_path / "odd.csv", rows)
    assert [each["row"] for each in told("validate", table, "--worst", "1")["worst"]] == ["run-7"]
    assert "run-7" in perf("validate", table, "--worst", "1").stdout


def test_people_get_a_picture_tables_and_the_peers_in_eighty_columns(
    monkeypatch: pytest.MonkeyPatch, runs: Path
) -> None:
    monkeypatch.setattr("trimtab.ui.output.WIDE_ENOUGH", 80)
    shown = perf("validate", runs).stdout
    assert max(map(len, shown.splitlines())) <= 80
    for word in ("predicted / measured", "SOURCE", "MAPE", "SPEARMAN", "Calculon", "34.1%", "over sources"):
        assert word in shown


def test_a_plot_is_written(tmp_path: Path, runs: Path) -> None:
    picture = tmp_path / "runs.png"
    assert perf("validate", runs, "--plot", picture).exit_code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_constants_of_ones_own_predict_instead(tmp_path: Path, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "constants.yaml"
    constants.load().save(mine)
    same = told("validate", runs, "--constants", mine)
    assert same["overall"]["mape"] == pytest.approx(told("validate", runs)["overall"]["mape"], rel=0.01)
    monkeypatch.setenv("TRIMTAB_PERF__CONSTANTS", str(tmp_path / "absent.yaml"))
    result = perf("validate", runs)
    assert result.exit_code == 1
    assert "absent.yaml" in result.stderr


def test_left_out_groups_are_predicted_by_what_the_others_say(runs: Path) -> None:
    answer = told("validate", runs, "--cross-validate")
    assert answer["overall"]["n"] == 15
    assert "without the group" in answer["predicted_by"]


def test_one_generation_cannot_be_left_out_of_itself(runs: Path) -> None:
    result = perf("validate", runs, "--leave-out", "gpu")
    assert result.exit_code == 2
    assert "the only gpu" in result.stderr


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ({"tp": "two"}, ("run-1", "tp", "'two'")),
        ({"global_batch": "-4"}, ("run-1", "global_batch", "'-4'")),
        ({"step_time_s": "nan"}, ("run-1", "step_time_s", "'nan'")),
    ],
)
def test_a_cell_that_is_no_number_is_named_by_file_row_and_column(
    tmp_path: Path, cells: dict[str, str], said: tuple[str, ...]
) -> None:
    table = write(tmp_path / "wrong.csv", [row(0, "small", 1, 1), row(1, "small", 1, 1, **cells)])
    result = perf("validate", table)
    assert result.exit_code == 2
    assert result.stdout == ""
    for word in (str(table), *said):
        assert word in result.stderr


@pytest.mark.parametrize(
    ("content", "said"),
    [("", "no column"), ("a,b\n1,2\n", "no column"), (b"\x89PNG\xff", "decode"), (None, "No such file")],
)
def test_what_is_no_table_of_runs_is_refused(tmp_path: Path, content: str | bytes | None, said: str) -> None:
    table = tmp_path / "table.csv"
    if content is not None:
        table.write_bytes(content if isinstance(content, bytes) else content.encode())
    result = perf("validate", table)
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_table_without_any_usable_row_is_refused_with_a_reason(tmp_path: Path) -> None:
    result = perf("validate", write(tmp_path / "none.csv", [row(0, "small", 3, 1)]))
    assert result.exit_code == 2
    assert "run-0: tp x pp x cp = 3 does not divide 8 GPUs" in result.stderr


def test_no_file_and_none_at_hand_says_what_a_file_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimtab.commands.perf.PUBLISHED", ("no", "such", "table.csv"))
    result = perf("validate")
    assert result.exit_code == 2
    assert "source_kind, gpu_type" in result.stderr


# --- calibrate -------------------------------------------------------------------------------------------------------
def test_constants_fitted_to_runs_predict_runs_of_other_groups_better(tmp_path: Path, runs: Path) -> None:
    out = tmp_path / "mine.yaml"
    answer = told("calibrate", runs, "--out", out)
    before, after, unseen = (answer[name]["overall"]["mape"] for name in ("before", "after", "cross_validated"))
    assert after < 0.5 * before
    assert unseen < before
    assert told("validate", runs, "--constants", out)["overall"]["mape"] == pytest.approx(after, rel=0.05)


def test_the_report_says_how_to_use_the_result(tmp_path: Path, runs: Path) -> None:
    out = tmp_path / "mine.yaml"
    shown = perf("calibrate", runs, "--out", out).stdout.replace("\n", "")
    assert f"TRIMTAB_PERF__CONSTANTS={out}" in shown
    assert "by constants fitted without it" in shown


def test_too_few_groups_are_said_to_prove_nothing(tmp_path: Path, runs: Path) -> None:
    rows = [each for each in read(runs) if each["model"] == "small"]
    table = write(tmp_path / "one.csv", rows)
    result = perf("calibrate", table, "--out", tmp_path / "mine.yaml")
    assert result.exit_code == 0, result.stderr
    assert "Too few groups" in result.stdout


def test_an_interrupted_fit_leaves_the_old_file(tmp_path: Path, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fit, "fit", interrupted)
    out = tmp_path / "mine.yaml"
    out.write_text("old")
    assert perf("calibrate", runs, "--out", out).exit_code == 130
    assert out.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.yaml", "runs.csv"]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path, runs: Path) -> None:
    out = tmp_path / "absent" / "mine.yaml"
    result = perf("calibrate", runs, "--out", out)
    assert result.exit_code == 2
    assert str(out) in result.stderr


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("scipy.optimize", ["calibrate"]),
        ("scipy.optimize", ["validate", "--cross-validate"]),
        ("matplotlib.figure", []),
    ],
)
def test_what_is_not_installed_is_named_with_the_way_to_install_it(
    tmp_path: Path, runs: Path, monkeypatch: pytest.MonkeyPatch, module: str, arguments: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    chosen = arguments or ["validate", "--plot", str(tmp_path / "runs.png")]
    result = perf(*chosen, runs)
    assert result.exit_code == 2
    assert "pip install 'trimtab[perf]'" in result.stderr


def test_predicted_times_are_those_of_the_model(runs: Path) -> None:
    """The table of these tests is what it says: all other tests rest on that."""
    found = measured.read_measured(runs)
    said = forecast(found, constants.load())
    assert np.allclose(found.seconds, SLOWER * said.seconds)
