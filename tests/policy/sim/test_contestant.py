"""Who decides by how long jobs will take: decisions of all others are the same whatever they are told of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest
from msgspec.structs import replace

from trimtab_lab import rigid
from trimtab_lab.evaluation import controls
from trimtab_lab.evaluation.contestant import CONTROLS, uses_sizes
from trimtab_lab.rigid import RigidRules
from trimtab_lab.workloads import cluster_v0, clusters
from trimtab_lab.workloads.trace import FloatArray, Trace, trace
from trimtab_policy import policy as registry
from trimtab_policy.policy import Kind, Policy
from trimtab_policy.sim.engine import SimRules, Stuck, simulate
from trimtab_policy.types import Decision, Snapshot

SIA = clusters.preset("sia-heterogeneous")
CLUSTER = clusters.cluster("T4=8x4,A100-SXM4-40GB=4")
RULES = RigidRules(restart_seconds=10.0, type_speeds={"A100-SXM4-40GB": 3.0})
JOBS = 16


class Heard:
    """A policy whose decisions are written down: when, what is stopped, and who gets which GPUs."""

    def __init__(self, policy: Policy) -> None:
        self.name = policy.name
        self.said: list[object] = []
        self._policy = policy

    def decide(self, snapshot: Snapshot) -> Decision:
        decision = self._policy.decide(snapshot)
        placed = [(each.job, each.gpu_type, each.shares, each.plan) for each in decision.placements]
        self.said.append((snapshot.time, {stop.job for stop in decision.stops}, placed))
        return decision


Told = Callable[[np.random.Generator, FloatArray], FloatArray]
"""What is told of true run times."""


def truth(_: np.random.Generator, seconds: FloatArray) -> FloatArray:
    return seconds


def shuffled(draw: np.random.Generator, seconds: FloatArray) -> FloatArray:
    return draw.permutation(seconds)


def extreme(draw: np.random.Generator, seconds: FloatArray) -> FloatArray:
    """A minute or a month."""
    return np.where(draw.random(len(seconds)) < 0.5, 60.0, 30 * 86400.0)


def workload(tell: Told) -> Trace:
    """Jobs whose run times are told so."""
    draw = np.random.default_rng(0)
    seconds, gpus = np.ceil(draw.lognormal(5, 1.2, JOBS)), draw.choice([1, 2, 4, 8], JOBS)
    submitted = np.sort(draw.uniform(0, 200, JOBS))
    told = tell(draw, seconds)
    return trace([f"job-{number}" for number in range(JOBS)], submitted, gpus, seconds, estimate=told)


def decisions(name: str, tell: Told) -> list[object]:
    heard = Heard(controls.load(name))
    jobs = rigid.jobs(workload(tell), CLUSTER, RULES)
    with suppress(Stuck):  # Pollux has no idea of gangs; what it decides until then counts
        simulate(heard, jobs, CLUSTER, SimRules(until=1000.0))
    return heard.said


LEARNED = [name for name in registry.names() if registry.entry(name).kind is Kind.LEARNED]


def placements(name: str, seed: int, *, shuffled: bool) -> list[tuple[str, str, int]]:
    """Which jobs of Cluster-v0 get which GPUs of an empty cluster, told their steps, or fifty times those of others."""
    jobs = cluster_v0.jobs(JOBS, SIA, 1.0, seed)
    steps = [job.training.steps for job in jobs]
    told = np.random.default_rng(seed).permutation(50 * np.array(steps)).tolist() if shuffled else steps
    waiting = tuple(
        replace(job, created=0.0, deadline=None, training=replace(job.training, steps=number))
        for job, number in zip(jobs, told, strict=True)
    )
    found = controls.load(name).decide(replace(SIA, time=600.0, jobs=waiting))
    return [(each.job, each.gpu_type, each.gpus) for each in found.placements]


@pytest.mark.parametrize("name", [*LEARNED, "analytic_rudder"])
def test_so_it_is_with_learned_policies_which_choose_among_gangs(name: str) -> None:
    seeds = range(20)
    assert any(placements(name, seed, shuffled=True) != placements(name, seed, shuffled=False) for seed in seeds) == (
        uses_sizes(name)
    )


@pytest.mark.parametrize("name", [name for name in [*registry.names(), "sized_sia"] if name not in LEARNED])
def test_only_who_is_said_to_use_run_times_decides_by_them(name: str) -> None:
    same = all(decisions(name, tell) == decisions(name, truth) for tell in (shuffled, extreme))
    assert same != uses_sizes(name)


def test_controls_are_known_by_name_and_no_list_of_policies_shows_them() -> None:
    for name in CONTROLS:
        assert controls.load(name).name == name
        assert name not in registry.names()


def test_of_two_jobs_that_are_alike_sia_told_sizes_begins_with_the_shorter_one() -> None:
    long, short = (
        replace(job, training=replace(job.training, steps=steps), created=0.0)
        for job, steps in zip(cluster_v0.jobs(2, SIA, 1.0, 0), (10_000, 10), strict=True)
    )
    short = replace(long, uid="short", name="short", training=short.training)
    now = replace(clusters.cluster("T4=1"), time=600.0)
    for jobs in ((long, short), (short, long)):
        [placed] = controls.load("sized_sia").decide(replace(now, jobs=jobs)).placements
        assert placed.job == "short"


def test_a_seed_for_ties_changes_nothing_about_it() -> None:
    assert uses_sizes("srtf@3")
    assert not uses_sizes("las@3")
