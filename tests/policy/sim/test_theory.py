"""Simulated mean response times against closed forms of queueing theory.

A run is cut where an arrival finds the system empty: from there on it starts anew, so that cycles are independent and
alike, and no warm-up biases anything. The mean response time is the ratio of two means over cycles, whose confidence
interval follows from the central limit theorem (Crane and Iglehart, "Simulating stable stochastic systems III", 1975).

The interval is that of 99.9 %: a correct simulator would fail a test with probability 0.001 if its seed were drawn
anew. Seeds are fixed, so that what passes once passes always. Every test also demands an interval narrow enough to tell
disciplines apart, and the last ones show that it refutes what is false.
"""

from __future__ import annotations

from collections.abc import Callable
from math import factorial
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from tests.policy.sim.queueing import node_of, of_one_gpu

from trimtab_lab import kernel, rigid
from trimtab_lab.kernel import Discipline
from trimtab_lab.workloads.trace import trace
from trimtab_policy import catalog, policy
from trimtab_policy.sim import engine
from trimtab_policy.types import Node, Snapshot

Floats = NDArray[np.float64]

CONFIDENCE = 0.999
JOBS = 400_000
PLENTY = 1 << 40

SERVICES = {
    "exponential": stats.expon(scale=100),
    "constant": stats.uniform(100, 1e-9),
    "uniform": stats.uniform(20, 160),
    "log-normal": stats.lognorm(s=1.0, scale=100 / np.exp(0.5)),
}
"""Distributions of service times with mean 100 s and squared coefficients of variation of 1, 0, 0.21 and 1.72."""


class Mean(NamedTuple):
    """An estimate, and half the width of its confidence interval."""

    value: float
    half: float

    def agrees(self, exact: float, precision: float) -> bool:
        """Whether the interval holds the exact value. Raises AssertionError for one that is too wide to tell."""
        assert self.half <= precision * exact, f"half-width {self.half:.3g} of {exact:.3g}: take more jobs"
        return abs(self.value - exact) <= self.half


def arrivals(rate: float, service: str, jobs: int, seed: int) -> tuple[Floats, Floats]:
    """Times of submission (a Poisson process), and service times."""
    random = np.random.default_rng(seed)
    return np.cumsum(random.exponential(1 / rate, jobs)), SERVICES[service].rvs(jobs, random_state=random)


def mean_response(submitted: Floats, finished: Floats) -> Mean:
    """Mean response time, by regenerative cycles. The last one, which is not complete, is left out."""
    empty = np.maximum.accumulate(finished)[:-1] <= submitted[1:]
    begin = np.concatenate([[0], np.flatnonzero(empty) + 1])
    sums = np.add.reduceat(finished - submitted, begin)[:-1]
    counts = np.diff(begin)
    ratio = sums.sum() / counts.sum()
    deviation = np.std(sums - ratio * counts, ddof=1) / (counts.mean() * np.sqrt(len(counts)))
    return Mean(ratio, float(stats.norm.ppf((1 + CONFIDENCE) / 2) * deviation))


def simulated(discipline: Discipline, submitted: Floats, work: Floats, servers: int = 1) -> Mean:
    outcome = kernel.simulate(discipline, of_one_gpu(submitted, work), node_of(servers))
    return mean_response(submitted, outcome.finished)


def by_engine(name: str, submitted: Floats, work: Floats, servers: int = 1) -> Mean:
    cluster = Snapshot(0, (Node("n", "T4", servers, servers, PLENTY, PLENTY, PLENTY),), (), {"T4": catalog.gpu("T4")})
    jobs = trace([f"j{i:05d}" for i in range(len(work))], submitted, np.ones(len(work)), work)
    run = engine.simulate(policy.load(name), rigid.jobs(jobs, cluster), cluster)
    return mean_response(submitted, np.array([job.finished for job in run.jobs], dtype=np.float64))


def pollaczek_khinchine(rate: float, service: str) -> float:
    """M/G/1, first come first served."""
    mean, variance = SERVICES[service].stats(moments="mv")
    return float(mean + rate * (variance + mean**2) / (2 * (1 - rate * mean)))


def erlang_c(rate: float, servers: int) -> float:
    """M/M/c with mean service time 100 s, first come first served."""
    offered = rate * 100
    all_busy = offered**servers / factorial(servers) / (1 - offered / servers)
    waits = all_busy / (sum(offered**k / factorial(k) for k in range(servers)) + all_busy)
    return 100 + waits * 100 / (servers - offered)


def schrage_miller(rate: float, service: str) -> float:
    """M/G/1, shortest remaining processing time first (Schrage and Miller, Operations Research 14, 1966).

    E[T(x)] = rate (int_0^x t^2 dF + x^2 (1 - F(x))) / (2 (1 - rho(x))^2) + int_0^x dt / (1 - rho(t)).
    """
    size = SERVICES[service].ppf(np.linspace(0, 1, 400_001)[1:-1])
    mass = np.full(len(size), 1 / len(size))
    load = rate * np.cumsum(size * mass)
    above = 1 - np.cumsum(mass)
    waiting = rate * (np.cumsum(size**2 * mass) + size**2 * above) / (2 * (1 - load) ** 2)
    steps = np.diff(size, prepend=0.0)
    residence = np.cumsum(steps / (1 - np.concatenate([[0.0], load[:-1]])))
    return float(np.sum((waiting + residence) * mass))


@pytest.mark.parametrize("service", list(SERVICES))
def test_first_come_first_served_is_pollaczek_and_khinchine(service: str) -> None:
    submitted, work = arrivals(0.007, service, JOBS, seed=1)
    assert simulated(Discipline.FCFS, submitted, work).agrees(pollaczek_khinchine(0.007, service), precision=0.06)


@pytest.mark.parametrize(("servers", "load"), [(2, 0.8), (8, 0.7), (16, 0.6)])
def test_many_servers_are_erlang_c(servers: int, load: float) -> None:
    rate = load * servers / 100
    submitted, work = arrivals(rate, "exponential", JOBS, seed=servers)
    assert simulated(Discipline.FCFS, submitted, work, servers).agrees(erlang_c(rate, servers), precision=0.05)


@pytest.mark.parametrize("service", ["exponential", "uniform", "log-normal"])
def test_shortest_remaining_time_is_schrage_and_miller(service: str) -> None:
    submitted, work = arrivals(0.008, service, JOBS, seed=3)
    assert simulated(Discipline.SRTF, submitted, work).agrees(schrage_miller(0.008, service), precision=0.06)


def test_the_schrage_miller_integral_is_right_where_it_is_known() -> None:
    """All jobs equal: nobody overtakes, so it is Pollaczek and Khinchine's."""
    assert schrage_miller(0.008, "constant") == pytest.approx(pollaczek_khinchine(0.008, "constant"), rel=1e-3)


@pytest.mark.parametrize(
    ("name", "servers", "exact"),
    [
        ("fcfs", 1, pollaczek_khinchine(0.005, "uniform")),
        ("srtf", 1, schrage_miller(0.005, "uniform")),
        ("fcfs", 4, erlang_c(0.02, 4)),
    ],
)
def test_the_engine_with_policies_is_as_theory_says(name: str, servers: int, exact: float) -> None:
    service = "uniform" if servers == 1 else "exponential"
    submitted, work = arrivals(0.005 * servers, service, 3000, seed=4)
    assert by_engine(name, submitted, work, servers).agrees(exact, precision=0.15)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda submitted, work: simulated(Discipline.SJF, submitted, work),
        lambda submitted, work: simulated(Discipline.SRTF, submitted, work),
    ],
    ids=["shortest job first", "shortest remaining time first"],
)
def test_other_disciplines_are_refuted(wrong: Callable[[Floats, Floats], Mean]) -> None:
    submitted, work = arrivals(0.007, "uniform", JOBS, seed=5)
    assert not wrong(submitted, work).agrees(pollaczek_khinchine(0.007, "uniform"), precision=0.06)
