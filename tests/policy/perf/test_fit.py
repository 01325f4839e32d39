"""Fitting: constants that made a table are found in it, few runs move them little, and what was left out stays so."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from tests.policy.perf.runs import Cells, cells, runs

from trimtab_policy.perf import constants, fit, measured
from trimtab_policy.perf.constants import beliefs
from trimtab_policy.perf.forecast import forecast, scene, step_times
from trimtab_policy.perf.measured import Measurements
from trimtab_policy.perf.model_flops import Array, Number


def table(**other: object) -> list[Cells]:
    """A sweep over sizes, widths and micro-batches on A100 and H100."""
    sweep = product(("A100-SXM-80GB", "H100-SXM-80GB"), (2048, 4096, 8192), (1, 4), (1, 8), (8, 64))
    return [
        cells(gpu_type=gpu, hidden=h, heads=h // 128, ffn_hidden=4 * h, micro_batch=b, tp=t, n_gpus=n, group=h, **other)
        for gpu, h, b, t, n in sweep
    ]


def told(rows: list[Cells], truth: dict[str, float], noise: float = 0.0) -> Measurements:
    """The table as a world would give it whose constants are `truth`, and beliefs otherwise."""
    found = runs(*rows)
    what = scene(found)
    believed = beliefs().columns(what.generations, list(found.software), list(found.recipes))

    def value(name: str) -> Number:
        factor = np.array([truth.get(f"{name}.{generation}", 1.0) for generation in what.generations])
        return truth.get(name, believed(name)) * factor

    times: Array = step_times(what, value).total
    return found._replace(seconds=times * np.exp(np.random.default_rng(0).normal(0, noise, len(times))))


def test_constants_that_made_a_table_are_found_in_it() -> None:
    truth = {"gemm.Hopper": 0.8, "link": 0.6, "launch": 4e-3}
    found = fit.fit(told(table(), truth))
    here = found.lookup("Hopper", "torchtitan", "")
    there = beliefs().lookup("Hopper", "torchtitan", "")
    assert here("gemm") * here("skill") == pytest.approx(0.8 * there("gemm"), rel=0.05)
    assert here("launch") == pytest.approx(4e-3, rel=0.1)
    assert here("link") == pytest.approx(0.6, rel=0.15)


def test_what_no_run_tells_of_stays_believed() -> None:
    found = fit.fit(told(table(), {}))
    for name in ("fp32", "pcie", "score_bytes"):
        assert found.lookup("Volta", "paxml", "mxfp8")(name) == pytest.approx(
            beliefs().lookup("Volta", "paxml", "mxfp8")(name), rel=1e-3
        )
    assert found.seen == {("Ampere", "torchtitan"), ("Hopper", "torchtitan")}


def test_few_runs_move_a_constant_less_and_leave_it_less_certain_than_many() -> None:
    rows = table()
    many, few = (fit.fit(told(part, {"gemm": 0.55})) for part in (rows, rows[:2]))
    ampere, alone = many.families["gemm"].each["Ampere"], few.families["gemm"].each["Ampere"]
    believed = beliefs().lookup("Ampere", "", "")("gemm")
    assert abs(np.log(ampere.value / believed)) > abs(np.log(alone.value / believed))
    assert ampere.high / ampere.low < alone.high / alone.low


def test_a_few_wrong_rows_do_little_harm() -> None:
    right = told(table(), {})
    seconds = right.seconds.copy()
    seconds[::12] *= 5
    spoilt = fit.fit(right._replace(seconds=seconds))
    error = np.abs(forecast(right, spoilt).seconds / right.seconds - 1)
    assert np.median(error) < 0.05


def test_a_fit_starts_from_given_constants_and_keeps_to_them_where_runs_are_silent() -> None:
    start = constants.load()
    found = fit.fit(told(table(), {"link": 0.5}), start=start)
    assert found.families["gemm"].each["Volta"] == start.families["gemm"].each["Volta"]
    assert found.families["link"].value < start.families["link"].value
    assert found.interval == start.interval


def test_cross_validation_predicts_every_run_without_its_fold() -> None:
    seen = told(table(), {"gemm.Hopper": 0.7}, noise=0.02)
    generations = np.array([gpu.architecture for gpu in seen.gpus])
    by_group = fit.cross_validate(seen, seen.groups)
    by_generation = fit.cross_validate(seen, generations)
    hopper = generations == "Hopper"

    def error(seconds: Array) -> float:
        return float(np.mean(np.abs(np.log(seconds / seen.seconds))[hopper]))

    assert error(by_group.seconds) < 0.05
    assert error(by_generation.seconds) > 0.1
    width = by_generation.high / by_generation.low
    assert (width[hopper] > (by_group.high / by_group.low)[hopper]).all()


def test_the_interval_holds_four_of_five_runs_that_were_left_out() -> None:
    seen = told(table(), {}, noise=0.15)
    out = fit.cross_validate(seen, seen.groups)
    whole = fit.calibrated(seen, fit.fit(seen), out, by_generation=out, by_software=out)
    said = forecast(seen, whole)
    covered = (said.low <= seen.seconds) & (seen.seconds <= said.high)
    assert 0.7 <= covered.mean() <= 0.95


def test_progress_is_told_and_an_interrupt_ends_the_fit() -> None:
    steps: list[int] = []

    def stop(step: int, share: float) -> None:
        steps.append(step)
        assert share > 0
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit.fit(told(table()[:4], {"gemm": 0.5}), progress=stop)
    assert steps == [1]


def test_a_table_without_usable_runs_is_an_error() -> None:
    with pytest.raises(ValueError, match="no usable runs"):
        fit.fit(measured.collect([]))
