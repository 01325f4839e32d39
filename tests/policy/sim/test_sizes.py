"""Who decides by how long jobs will take: decisions of all others are the same whatever they are told of it."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest

from trimtab_policy import policy as registry
from trimtab_policy.policy import Policy
from trimtab_policy.sim import clusters, rigid
from trimtab_policy.sim.engine import Rules, Stuck, simulate
from trimtab_policy.sim.evaluation.sizes import uses_sizes
from trimtab_policy.sim.rigid import RigidRules
from trimtab_policy.sim.workloads.trace import Trace, trace
from trimtab_policy.types import Decision, Snapshot

CLUSTER = clusters.typed("T4=8x4,A100-SXM4-40GB=4")
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


def workload(*, shuffled: bool) -> Trace:
    """Jobs whose run times are told, in the right order or in another."""
    draw = np.random.default_rng(0)
    seconds, gpus = np.ceil(draw.lognormal(5, 1.2, JOBS)), draw.choice([1, 2, 4, 8], JOBS)
    submitted = np.sort(draw.uniform(0, 200, JOBS))
    told = draw.permutation(seconds) if shuffled else seconds
    return trace([f"job-{number}" for number in range(JOBS)], submitted, gpus, seconds, estimate=told)


def decisions(name: str, *, shuffled: bool) -> list[object]:
    heard = Heard(registry.load(name))
    jobs = rigid.jobs(workload(shuffled=shuffled), CLUSTER, RULES)
    with suppress(Stuck):  # Pollux has no idea of gangs; what it decides until then counts
        simulate(heard, jobs, CLUSTER, Rules(until=1000.0))
    return heard.said


@pytest.mark.parametrize("name", registry.names())
def test_only_who_is_said_to_use_run_times_decides_by_them(name: str) -> None:
    assert (decisions(name, shuffled=True) == decisions(name, shuffled=False)) != uses_sizes(name)


def test_a_seed_for_ties_changes_nothing_about_it() -> None:
    assert uses_sizes("srtf@3")
    assert not uses_sizes("las@3")
