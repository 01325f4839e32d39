"""Means over readings that come irregularly, or not at all."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.agent.backend import NA, Gpu, known
from trimtab.agent.smoothing import HOLD_SECONDS, GpuSmoother, Mean, Share

VALUES = st.floats(0, 1) | st.just(NA)
STEPS = st.lists(st.tuples(st.floats(0, 20), VALUES), max_size=60)


@given(STEPS)
def test_a_mean_stays_within_what_was_read(steps: list[tuple[float, float]]) -> None:
    mean, now, read = Mean(10.0), 0.0, []
    for elapsed, value in steps:
        now += elapsed
        read += [value] if known(value) else []
        taken = mean.take(value, now)
        assert not known(taken) or min(read) - 1e-12 <= taken <= max(read) + 1e-12


@pytest.mark.parametrize("pieces", [1, 7, 100])
def test_after_its_time_constant_a_step_is_taken_over_to_63_percent_however_often_it_is_read(pieces: int) -> None:
    mean = Mean(10.0)
    mean.take(0.0, 0.0)
    taken = [mean.take(1.0, 10.0 * (piece + 1) / pieces) for piece in range(pieces)]
    assert taken[-1] == pytest.approx(1 - math.exp(-1))


def test_one_missing_reading_changes_nothing_and_a_lasting_gap_is_na() -> None:
    mean = Mean(10.0)
    assert mean.take(0.5, 0.0) == 0.5
    assert mean.take(NA, 1.0) == 0.5
    assert math.isnan(mean.take(NA, HOLD_SECONDS + 1))
    assert mean.take(0.9, HOLD_SECONDS + 2) == 0.9, "it begins anew, not from what was an hour ago"


def test_what_was_never_read_is_na_and_not_zero() -> None:
    assert math.isnan(Mean(10.0).take(NA, 5.0))
    assert math.isnan(Share(30.0).take(None, 5.0))


def test_throttling_is_counted_over_the_window() -> None:
    share = Share(30.0)
    assert [share.take(second < 3, float(second)) for second in (0, 1, 2, 3)] == [1.0, 1.0, 1.0, 0.75]
    assert share.take(False, 32.5) == 0.0, "what is older than the window does not count"


@given(st.lists(st.tuples(st.floats(0, 40), st.sampled_from([True, False, None])), max_size=40))
def test_a_share_is_between_0_and_1(steps: list[tuple[float, bool | None]]) -> None:
    share, now = Share(30.0), 0.0
    for elapsed, so in steps:
        now += elapsed
        taken = share.take(so, now)
        assert math.isnan(taken) or 0 <= taken <= 1


def test_only_what_jumps_is_smoothed() -> None:
    smoother = GpuSmoother(30.0)
    smoother.take(Gpu("u", 0, temperature=40.0, memory_used=10.0, throttle_reasons=()), 0.0)
    gpu, throttled = smoother.take(Gpu("u", 0, temperature=80.0, memory_used=70.0, throttle_reasons=("X",)), 1.0)
    assert 40 < gpu.temperature < 50
    assert gpu.memory_used == 70.0
    assert throttled == 0.5
