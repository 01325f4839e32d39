"""Windows: as long, as loaded and as even as they say, and the same every time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab_lab.workloads.trace import Trace, trace
from trimtab_lab.workloads.windows import (
    LARGEST_SHARE,
    cut,
    middle,
    offered_load,
    rescale,
    windows,
)


def stream(jobs: int = 1000, seed: int = 0) -> Trace:
    draw = np.random.default_rng(seed)
    names = [f"job-{number}" for number in range(jobs)]
    at = 500 + np.cumsum(draw.exponential(60, jobs))
    seconds = draw.lognormal(6, 1, jobs)
    return trace(names, at, draw.choice([1, 2, 8], jobs), seconds, deadline=at + 3 * seconds, source="stream")


def test_load_is_work_over_what_the_gpus_could_do_while_jobs_arrive() -> None:
    assert offered_load(trace(["a", "b"], [100, 200], [4, 2], [50, 100]), gpus=8) == 400 / (8 * 100)


@given(load=st.floats(0.1, 3), gpus=st.integers(1, 512))
def test_a_rescaled_trace_has_the_load_and_the_rhythm(load: float, gpus: int) -> None:
    before = stream(50)
    after = rescale(before, gpus, load)
    assert offered_load(after, gpus) == pytest.approx(load)
    assert after.submitted[0] == 0
    gaps, stretched = np.diff(before.submitted), np.diff(after.submitted)
    assert stretched / stretched.sum() == pytest.approx(gaps / gaps.sum())
    assert after.deadline - after.submitted == pytest.approx(before.deadline - before.submitted)


def test_jobs_that_come_all_at_once_cannot_be_rescaled() -> None:
    with pytest.raises(ValueError, match="all jobs arrive at once"):
        rescale(trace(["a", "b"], [0, 0], [1, 1], [5, 5]), 8, 1.0)
    assert offered_load(trace(["a", "b"], [0, 0], [1, 1], [5, 5]), 8) == float("inf")


def test_a_trace_without_jobs_is_said_to_have_none() -> None:
    with pytest.raises(ValueError, match="there are no jobs"):
        rescale(stream(3).take(slice(0, 0)), 8, 1.0)


def test_without_run_times_there_is_no_load() -> None:
    with pytest.raises(ValueError, match="run times are unknown"):
        rescale(trace(["a", "b"], [0, 9], [1, 1]), 8, 1.0)


@pytest.mark.parametrize(("gpus", "load"), [(0, 1.0), (8, 0.0), (8, float("nan")), (8, float("inf"))])
def test_a_load_is_a_positive_number(gpus: int, load: float) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        rescale(stream(10), gpus, load)


def test_windows_are_disjoint_consecutive_and_in_order() -> None:
    found = cut(stream(), 100, 7)
    rows = [window.row.tolist() for window in found]
    assert all(part == list(range(part[0], part[0] + 100)) for part in rows)
    starts = [part[0] for part in rows]
    assert starts == sorted(starts)
    assert len({row for part in rows for row in part}) == 700
    assert all(window.submitted[0] == 0 for window in found)


def test_a_window_that_one_job_dominates_is_passed_over() -> None:
    even = stream(300)
    giant = trace(even.name, even.submitted, even.gpus, np.where(np.arange(300) == 150, 1e9, even.seconds))
    assert [window.row[0] for window in cut(giant, 100, 2)] == [1, 201]
    assert all(window.gpu_seconds.max() <= LARGEST_SHARE * window.gpu_seconds.sum() for window in cut(giant, 100, 2))
    with pytest.raises(ValueError, match=r"has 2 windows of 100 jobs \(1 more have one job with most of the work\), 3"):
        cut(giant, 100, 3)


def test_windows_for_one_seed_are_always_the_same_and_differ_for_another() -> None:
    first, again, other = (windows(stream(), 64, 0.9, jobs=50, count=5, seed=seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a.trace.row, b.trace.row) for a, b in zip(first, again, strict=True))
    assert [window.seed for window in first] == [window.seed for window in again]
    assert any(not np.array_equal(a.trace.row, b.trace.row) for a, b in zip(first, other, strict=True))
    assert len({window.seed for window in first}) == 5


def test_every_window_has_the_stated_load_and_counts_its_middle() -> None:
    for window in windows(stream(), 64, 0.7, jobs=100, count=10):
        assert offered_load(window.trace, 64) == pytest.approx(0.7)
        assert window.measured.tolist() == [False] * 20 + [True] * 60 + [False] * 20


@given(st.integers(1, 2000))
def test_the_middle_is_central_and_three_fifths(jobs: int) -> None:
    counted = middle(jobs)
    assert counted.tolist() == counted[::-1].tolist()
    assert abs(counted.sum() - 0.6 * jobs) <= 1


@pytest.mark.parametrize(("jobs", "count"), [(0, 1), (1, 0)])
def test_windows_hold_at_least_a_job(jobs: int, count: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        cut(stream(10), jobs, count)
