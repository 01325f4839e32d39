"""No schedule is below a bound: held against optimal schedules of tiny workloads and against known optima."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_array, vstack
from tests import builders

from trimtab_lab import bounds, rigid
from trimtab_lab.bounds import BelowBound, Bound, BoundsDemand, InvalidDemand
from trimtab_lab.rigid import RigidRules
from trimtab_lab.workloads.trace import trace
from trimtab_policy.sim.result import JobRecord, Run

HOUR = 3600.0


def jobs_of(submitted: list[float], seconds: list[float], gpus: list[int], capacity: float) -> BoundsDemand:
    n = len(submitted)
    return bounds.demand(submitted, seconds, np.arange(n), np.zeros(n, int), gpus, np.ones(n), [capacity])


# --- optimal schedules of tiny workloads ---------------------------------------------------------------
class Tiny:
    """A few jobs with whole times, work and rates, scheduled anew at every second, with all choices tried."""

    def __init__(self, rng: np.random.Generator, kinds: int, elastic: bool) -> None:
        n = int(rng.integers(2, 4 if elastic else 5))
        self.capacity = tuple(int(c) for c in rng.integers(2, 5, kinds))
        self.submitted = tuple(int(t) for t in rng.integers(0, 5, n))
        self.work = tuple(int(w) for w in rng.integers(1, 6, n) * (2 if elastic else 1))
        self.rows = [self._rows(rng, elastic) for _ in range(n)]

    def _rows(self, rng: np.random.Generator, elastic: bool) -> list[tuple[int, int, int]]:
        """(type, GPUs, work per second) of one job."""
        if not elastic:
            kind = int(rng.integers(len(self.capacity)))
            return [(kind, int(rng.integers(1, self.capacity[kind] + 1)), 1)]
        return [
            (kind, gpus, int(rng.integers(1, 2 + gpus)))
            for kind, limit in enumerate(self.capacity)
            for gpus in {1, limit}
        ]

    def demand(self) -> BoundsDemand:
        rows = [(job, *row) for job, options in enumerate(self.rows) for row in options]
        job, kind, gpus, rate = zip(*rows, strict=True)
        return bounds.demand(self.submitted, self.work, job, kind, gpus, rate, self.capacity)

    def optimum(self) -> float:
        """Least sum of JCT when jobs are started, stopped and resized at whole seconds: no bound is above it."""

        @cache
        def least(now: int, left: tuple[int, ...]) -> float:
            if not any(left):
                return 0.0
            here = tuple(job for job, work in enumerate(left) if work > 0 and self.submitted[job] <= now)
            return min(
                self._second(choice, here, left) + least(now + 1, self._after(choice, left))
                for choice in self._choices(here)
            )

        return least(0, self.work)

    @cache  # noqa: B019 - a handful of instances, alive as long as their test
    def _choices(self, here: tuple[int, ...]) -> list[tuple[tuple[int, int, int] | None, ...]]:
        """What those jobs can run on together; never nothing at all while one of them could run."""
        options = [[None, *rows] if job in here else [None] for job, rows in enumerate(self.rows)]
        return [choice for choice in product(*options) if self._fits(choice) and (any(choice) or not here)]

    def _fits(self, choice: tuple[tuple[int, int, int] | None, ...]) -> bool:
        used = [0] * len(self.capacity)
        for row in filter(None, choice):
            used[row[0]] += row[1]
        return all(u <= c for u, c in zip(used, self.capacity, strict=True))

    @staticmethod
    def _second(choice: tuple[tuple[int, int, int] | None, ...], here: list[int], left: tuple[int, ...]) -> float:
        """Time that jobs spend in the system in this second; those that end in it leave at once."""
        return sum(min(1.0, left[job] / row[2]) if (row := choice[job]) else 1.0 for job in here)

    @staticmethod
    def _after(choice: tuple[tuple[int, int, int] | None, ...], left: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(max(0, work - row[2]) if row else work for work, row in zip(left, choice, strict=True))


@pytest.mark.parametrize(("kinds", "elastic"), [(1, False), (2, False), (1, True), (2, True)])
def test_no_bound_is_above_the_optimum(kinds: int, elastic: bool) -> None:
    rng = np.random.default_rng(7 + 2 * kinds + elastic)
    for _ in range(20 if elastic else 40):
        tiny = Tiny(rng, kinds, elastic)
        bound, optimum = bounds.best(tiny.demand()), tiny.optimum() / len(tiny.work)
        assert bound.mean_jct <= optimum * (1 + 1e-9), (tiny.__dict__, bound)
        assert bound.lb3 >= bound.lb0 * (1 - 1e-12)


# --- how tight they are --------------------------------------------------------------------------------
def test_srpt_on_one_gpu_is_the_optimum_itself() -> None:
    bound = bounds.best(jobs_of([0, 1, 2], [10, 1, 2], [1, 1, 1], 1))
    assert bound.lb1 == pytest.approx((13 + 1 + 2) / 3)
    assert bound.binding == "LB1"


def test_mean_busy_times_of_equal_jobs_are_those_of_one_after_the_other() -> None:
    # three jobs of 4 s on one GPU from 0 on: 4 + 8 + 12; a unit of work lies half a job before the end
    bound = bounds.best(jobs_of([0, 0, 0], [4, 4, 4], [1, 1, 1], 1))
    assert bound.lb2 == pytest.approx(8)
    assert bound.lb3 == pytest.approx(8, rel=0.015)  # less what slots of finite length lose


def test_jobs_that_do_not_meet_take_their_own_time() -> None:
    demand = jobs_of([0, 100, 200], [50, 60, 70], [4, 2, 1], 4)
    bound = bounds.best(demand)
    assert (bound.lb0, bound.lb3, bound.binding) == (60, 60, "LB0")
    assert bound.makespan == 270


def test_makespan_counts_what_comes_late() -> None:
    # 4 GPUs, 40 GPU-seconds from 0 on and 80 from 10 on: all work takes 30 s, but the late part ends at 30 at best, too
    assert bounds.best(jobs_of([0, 10, 10], [10, 10, 10], [4, 4, 4], 4)).makespan == 30
    assert bounds.best(jobs_of([0, 100], [10, 10], [4, 4], 4)).makespan == 110
    assert bounds.best(jobs_of([5, 5], [10, 50], [1, 1], 4)).makespan == 50


def fine_program(demand: BoundsDemand, horizon: int, step: float) -> float:
    """The linear program of LB3 by HiGHS, work spread evenly in short slots: a solution of it, so not below LB3."""
    starts = np.arange(0, horizon, step)
    owner = np.repeat(np.arange(demand.submitted.size), np.diff(demand.first))
    row, slot = (grid.ravel() for grid in np.meshgrid(np.arange(owner.size), np.arange(starts.size), indexing="ij"))
    there = starts[slot] >= demand.submitted[owner[row]]
    row, slot = row[there], slot[there]
    column, job = np.arange(row.size), owner[row]
    cost = demand.rate[row] * step * (starts[slot] + step / 2)
    all_done = coo_array((demand.rate[row] * step, (job, column)), (demand.submitted.size, row.size))
    one_each = coo_array((np.ones(row.size), (job * starts.size + slot, column)))
    within = coo_array((demand.gpus[row], (demand.kind[row] * starts.size + slot, column)))
    limits = np.zeros(within.shape[0]) + np.repeat(demand.capacity, starts.size)[: within.shape[0]]
    limits = np.concatenate((np.ones(one_each.shape[0]), limits))
    solved = linprog(
        cost, A_ub=vstack((one_each, within)), b_ub=limits, A_eq=all_done, b_eq=np.ones(demand.submitted.size)
    )
    assert solved.status == 0, solved.message
    return float(solved.fun + (demand.alone / 2 - demand.submitted).sum())


@pytest.mark.parametrize("elastic", [False, True])
def test_prices_find_the_linear_program(elastic: bool) -> None:
    rng = np.random.default_rng(3)
    n, capacity = 8, [4.0, 6.0]
    rows = [
        (job, kind, gpus, (1 + kind) * gpus ** (0.8 if elastic else 1.0) * rng.uniform(0.8, 1.2))
        for job in range(n)
        for kind, sizes in enumerate(((1, 2, 4), (1, 3, 6)))
        for gpus in (sizes if elastic else sizes[job % 3 : job % 3 + 1])
    ]
    job, kind, gpus, rate = zip(*rows, strict=True)
    demand = bounds.demand(rng.integers(0, 12, n), rng.uniform(5, 60, n), job, kind, gpus, rate, capacity)
    exact = fine_program(demand, horizon=80, step=0.5)
    assert 0.985 * exact < bounds.best(demand).lb3 * n <= exact


def srsf(demand: BoundsDemand) -> NDArray[np.float64]:
    """(n,) ends when the least remaining GPU-seconds go first, at every arrival and end, free of charge."""
    left, ends, now = 1 / demand.rate, np.full(demand.submitted.size, np.inf), 0.0
    while (waiting := np.isinf(ends)).any():
        here = np.flatnonzero(waiting & (demand.submitted <= now))
        free, run = demand.capacity[0], []
        for job in here[np.argsort((left * demand.gpus)[here], kind="stable")]:
            if demand.gpus[job] <= free:
                free -= demand.gpus[job]
                run.append(job)
        arrival = min((t for t in demand.submitted[waiting] if t > now), default=np.inf)
        until = min(arrival, now + min(left[run], default=np.inf))
        left[run] -= until - now
        ends[[job for job in run if left[job] <= 1e-9]] = now = until
    return ends


@given(st.integers(0, 1000), st.sampled_from([0.7, 1.0, 1.3]))
@settings(max_examples=6, deadline=None)
def test_srsf_on_rigid_jobs_is_hardly_above_the_bound(seed: int, load: float) -> None:
    rng = np.random.default_rng(seed)
    n, capacity = 150, 32
    seconds, gpus = rng.lognormal(7, 1.5, n), rng.choice([1, 2, 4, 8], n, p=[0.7, 0.15, 0.1, 0.05])
    submitted = np.sort(rng.uniform(0, (seconds * gpus).sum() / (capacity * load), n))
    demand = jobs_of(list(submitted), list(seconds), list(gpus), capacity)
    ratio = float((srsf(demand) - submitted).mean()) / bounds.best(demand).mean_jct
    assert 1 - 1e-9 <= ratio < 1.15


@given(st.integers(0, 1000))
@settings(max_examples=5, deadline=None)
def test_names_of_jobs_and_types_and_units_do_not_matter(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, capacity = 20, np.array([8.0, 4.0, 2.0])
    submitted, work = rng.uniform(0, 100, n), rng.uniform(10, 100, n)
    rate = rng.uniform(0.5, 2, (n, 3))
    owner, kind = np.repeat(np.arange(n), 3), np.tile(np.arange(3), n)
    gpus = np.ones(3 * n)
    one = bounds.best(bounds.demand(submitted, work, owner, kind, gpus, rate.ravel(), capacity))
    jobs, types = rng.permutation(n), rng.permutation(3)
    other = bounds.best(
        bounds.demand(
            submitted[jobs] * HOUR,
            work[jobs] * 7,
            owner,
            kind,
            gpus,
            rate[jobs][:, types].ravel() * 7 / HOUR,
            capacity[types],
        )
    )
    assert other.lb0 == pytest.approx(one.lb0 * HOUR)
    assert other.lb3 == pytest.approx(one.lb3 * HOUR, rel=1e-3)
    assert other.lb1 == pytest.approx(one.lb1 * HOUR, rel=0.02)  # its search moves one type after the other


# --- a run held against its bound ----------------------------------------------------------------------
def run(*jobs: tuple[float, float | None]) -> Run:
    """A run with jobs of (submitted, finished)."""
    records = tuple(JobRecord(f"j{i}", "x", s, s, f, 1.0, 1.0, 0, 0.0) for i, (s, f) in enumerate(jobs))
    return Run("fast", builders.snapshot([builders.node("n1")]), records, (), 100.0, (), 0.0)


TWO = jobs_of([0, 0], [10, 10], [8, 8], 8)


def test_a_run_at_its_bound_passes_and_says_how_far_above_it_is() -> None:
    bound = bounds.best(TWO)
    assert bounds.check(run((0, 10), (0, 20)), TWO, bound) == pytest.approx(1.0)
    assert bounds.check(run((0, 20), (0, 40)), TWO, bound) == pytest.approx(2.0)


def test_a_run_below_its_bound_fails() -> None:
    bound = bounds.best(TWO)
    with pytest.raises(BelowBound, match=r"fast: mean JCT \(LB1\) of 10 s is below its lower bound of 15 s"):
        bounds.check(run((0, 10), (0, 10)), TWO, bound)
    with pytest.raises(BelowBound, match="makespan of 15 s is below its lower bound of 20 s"):
        bounds.check(run((0, 15), (0, 15)), TWO, bound)
    with pytest.raises(BelowBound, match="job j1 took 9 s, alone it takes 10 s"):
        bounds.check(run((0, 40), (0, 9)), TWO, bound)


def test_a_brief_job_may_end_as_early_as_the_engine_lets_it_and_not_earlier() -> None:
    brief = jobs_of([0], [0.01], [8], 8)
    bounds.check(run((0, 0.01 - 1e-6)), brief, bounds.best(brief))
    with pytest.raises(BelowBound, match="alone it takes"):
        bounds.check(run((0, 0.009)), brief, bounds.best(brief))


def test_a_run_that_was_cut_off_is_judged_job_by_job() -> None:
    bound = bounds.best(TWO)
    assert bounds.check(run((0, 10), (0, None)), TWO, bound) is None
    with pytest.raises(BelowBound, match="job j0"):
        bounds.check(run((0, 9), (0, None)), TWO, bound)


def test_only_measured_jobs_are_held_against_a_bound_of_theirs() -> None:
    measured = np.array([True, False])
    part = TWO.select(measured)
    assert bounds.check(run((0, 10), (0, 10)), part, bounds.best(part), measured) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="2 jobs of the run are measured, the bound is of 1"):
        bounds.check(run((0, 10), (0, 10)), part, bounds.best(part))


def test_the_greatest_bound_counts() -> None:
    bound = Bound(jobs=1, lb0=1.0, lb1=5.0, lb2=2.0, lb3=4.0, makespan=9.0)
    assert (bound.mean_jct, bound.binding) == (5.0, "LB1")


# --- what goes in --------------------------------------------------------------------------------------
def test_simulated_jobs_are_a_workload_of_their_true_rates() -> None:
    cluster = builders.snapshot([builders.node("a", builders.A100), builders.node("t", builders.T4, gpus=4)])
    rules = RigidRules(type_speeds={builders.A100: 2.0}, estimate_sigma=1.0)
    jobs = rigid.jobs(trace(["small", "large"], [5.0, 6.0], [2, 8], [100.0, 400.0]), cluster, rules)
    demand = bounds.of_jobs(jobs, cluster)
    assert demand.capacity.tolist() == [8, 4]
    assert demand.submitted.tolist() == [5, 6]
    assert demand.alone == pytest.approx([50, 200])
    assert demand.efficiency() == pytest.approx(np.array([[1 / 50 / 2, 1 / 100 / 2], [1 / 200 / 8, 0]]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"submitted": [0, -1]}, r"submitted\[1\] is -1"),
        ({"submitted": [0, float("nan")]}, r"submitted\[1\] is nan"),
        ({"work": [1, 0]}, r"work\[1\] is 0"),
        ({"work": [1]}, "submitted has 2 jobs, work has 1"),
        ({"rate": [1, float("inf")]}, r"rate\[1\] is inf"),
        ({"gpus": [1, 9]}, "job 1 cannot run: no configuration of it fits"),
        ({"job": [0, 0]}, "job 1 cannot run"),
        ({"kind": [0, 1]}, "kind must index 1 of them, it goes from 0 to 1"),
        ({"submitted": []}, "no jobs"),
    ],
)
def test_arrays_that_are_no_workload_are_refused(changes: dict[str, list[float]], message: str) -> None:
    good = {"submitted": [0, 1], "work": [5, 5], "job": [0, 1], "kind": [0, 0], "gpus": [1, 1], "rate": [1, 1]}
    with pytest.raises(InvalidDemand, match=message):
        bounds.demand(**(good | changes), capacity=[8])
