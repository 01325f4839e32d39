"""Certified lower bounds: what no schedule of a workload can beat, however clever.

Preemption free and instant, no placement, no restart, the future known; so a policy that is far above a bound may still
be the best there is, but one that is below it has been simulated wrongly. Four bounds on the sum of JCT, of which the
greatest counts:

- LB0 every job alone on the best GPUs for it
- LB1 shortest remaining processing time on one machine of all GPUs (`fluid`)
- LB2 mean busy times on that machine (`fluid`)
- LB3 a linear program over time with limits of speed, by prices (`prices`); it is never below LB0

and one on the makespan. All hold for a subset of the jobs, too (`BoundsDemand.select`).
"""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from trimtab_lab.bounds import fluid, prices
from trimtab_lab.bounds.demand import BoundsDemand, FloatArray, InvalidDemand, demand, of_jobs
from trimtab_policy.sim.result import JobRecord, Run

__all__ = ["BelowBound", "Bound", "BoundsDemand", "InvalidDemand", "best", "check", "demand", "of_jobs"]


EARLY = 1e-5
"""Seconds by which a job may end before it could: the engine counts what is left of its work in less as done."""


class BelowBound(ValueError):
    """A run beat what cannot be beaten: the simulator, or the rates that the bound was given, are wrong."""


class Bound(Struct, frozen=True):
    """Lower bounds in seconds: on the mean JCT four, on the makespan one."""

    jobs: int
    lb0: float
    lb1: float
    lb2: float
    lb3: float
    makespan: float
    """From the first submission to the last end."""

    @property
    def mean_jct(self) -> float:
        """The greatest of the four."""
        return max(self.lb0, self.lb1, self.lb2, self.lb3)

    @property
    def binding(self) -> str:
        """Which one that is; of equal ones the simplest."""
        return max(("LB0", "LB1", "LB2", "LB3"), key=lambda name: getattr(self, name.lower()))


def best(demand: BoundsDemand) -> Bound:
    """All bounds of a workload. 600 rigid jobs take half a second, 600 elastic ones on three types three."""
    jobs = demand.submitted.size
    single = fluid.bounds(demand)
    return Bound(
        jobs=jobs,
        lb0=float(demand.alone.mean()),
        lb1=single.srpt / jobs,
        lb2=single.busy / jobs,
        lb3=prices.total_jct(demand) / jobs,
        makespan=single.makespan - float(demand.submitted.min()),
    )


def check(
    run: Run, demand: BoundsDemand, bound: Bound, measured: NDArray[np.bool_] | None = None, tolerance: float = 1e-6
) -> float | None:
    """Mean JCT over its bound, or None where jobs are unfinished and only finished ones can be judged, each alone.

    `demand` and `bound` are those of the jobs in `measured` (n,), all if None, in the order of `run.jobs`.
    Raises BelowBound if a job was faster than it is alone, or the mean JCT or the makespan is below its bound, each by
    more than the relative `tolerance` and `EARLY`; ValueError if `demand` has another number of jobs.
    """
    jobs = [job for job, counts in zip(run.jobs, _mask(run, measured), strict=True) if counts]
    if len(jobs) != demand.submitted.size:
        raise ValueError(f"{len(jobs)} jobs of the run are measured, the bound is of {demand.submitted.size}")
    jct = np.array([math.nan if job.finished is None else job.finished - job.submitted for job in jobs])
    _check_alone(run.policy, jobs, jct, demand.alone, tolerance)
    if np.isnan(jct).any():
        return None
    makespan = float((demand.submitted + jct).max() - demand.submitted.min())
    for name, value, least in (
        (f"mean JCT ({bound.binding})", float(jct.mean()), bound.mean_jct),
        ("makespan", makespan, bound.makespan),
    ):
        if value < least * (1 - tolerance) - EARLY:
            raise BelowBound(f"{run.policy}: {name} of {value:g} s is below its lower bound of {least:g} s")
    return float(jct.mean()) / bound.mean_jct


def _mask(run: Run, measured: NDArray[np.bool_] | None) -> NDArray[np.bool_]:
    return np.ones(len(run.jobs), dtype=bool) if measured is None else measured


def _check_alone(policy: str, jobs: list[JobRecord], jct: FloatArray, alone: FloatArray, tolerance: float) -> None:
    early = np.flatnonzero(jct < alone * (1 - tolerance) - EARLY)  # false for NaN
    if early.size:
        worst = early[np.argmin(jct[early] / alone[early])]
        raise BelowBound(
            f"{policy}: job {jobs[worst].uid} took {jct[worst]:g} s, alone it takes {alone[worst]:g} s"
            f" ({early.size} such jobs)"
        )
