"""`generator:cluster-v0`: policies meet the very jobs that agents are trained on, and these take as long as there.

Steps are whole in the live API and work is not in the environment: hence the tolerances, half a step for a job and
one in a thousand for the mean completion time of a workload.
"""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from trimtab_lab.environments.cluster import ClusterVectorEnv
from trimtab_lab.environments.cluster_jobs import Machines, most_efficient, plans
from trimtab_lab.evaluation import workload
from trimtab_lab.evaluation.scenario import Scenario
from trimtab_lab.workloads import cluster_v0, clusters
from trimtab_policy.placement.candidates import placement, with_room
from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.placement.queueing import fastest_first, serve
from trimtab_policy.sim import llm
from trimtab_policy.sim.engine import simulate
from trimtab_policy.types import Decision, Job, Placement, Snapshot

SIA = clusters.preset("sia-heterogeneous")
JOBS = 60


class FastestThatFits:
    """First come, first served: the fastest of the environment's options that has room; nobody overtakes."""

    name = "fastest that fits"

    def __init__(self, gangs: Machines) -> None:
        shapes = zip(gangs.option_type.tolist(), gangs.option_nodes.tolist(), gangs.option_width.tolist(), strict=True)
        self._options = {(gangs.types[kind], nodes, width) for kind, nodes, width in shapes}

    def decide(self, snapshot: Snapshot) -> Decision:
        def choose(snapshot: Snapshot, capacity: Capacity, job: Job) -> Placement | None:
            ordered = [
                each
                for each in fastest_first(snapshot, capacity, job)
                if (each.gpu.name, each.option.nodes, each.option.gpus_per_node) in self._options
            ]
            fitting = next(iter(with_room(capacity, job, ordered)), None)
            return placement(capacity, job, *fitting, "") if fitting else None

        return serve(self.name, snapshot, Capacity(snapshot), snapshot.waiting(), choose, lane=lambda _: "all")


def in_the_environment(load: float, seed: int) -> float:
    """Mean completion time under the same rule, in seconds."""
    env = ClusterVectorEnv(1, cluster=SIA, jobs=JOBS, load=load, slots=JOBS)
    _, info = env.reset(seed=seed)
    choices, over = len(env.machines.option_type) + 1, False
    while not over:
        state, mask = env.state, info["action_mask"][0]
        waiting = [(state.job[0, slot], slot) for slot in np.flatnonzero((state.job[0] >= 0) & (state.option[0] < 0))]
        action = len(mask) - 1
        if waiting:
            job, slot = map(int, min(waiting))
            allowed = mask[slot * choices : slot * choices + choices - 1].astype(bool)
            speed = np.where(allowed, env.families.speed[state.family[0, job]], -1)
            action = slot * choices + int(speed.argmax()) if allowed.any() else action
        _, _, terminated, truncated, info = env.step(np.array([action]))
        over = bool(terminated[0] or truncated[0])
    return float(info["sum_jct"][0]) / JOBS


def in_the_engine(load: float, seed: int) -> float:
    env = ClusterVectorEnv(1, cluster=SIA, jobs=1)
    jobs = llm.jobs(cluster_v0.jobs(JOBS, SIA, load, seed), SIA)
    found = simulate(FastestThatFits(env.machines), jobs, SIA)
    return float(np.mean([(job.finished or np.inf) - job.submitted for job in found.jobs]))


@pytest.mark.parametrize("cluster", ["sia-heterogeneous", "sia-heterogeneous-256", "T4=16x4"])
def test_a_seed_gives_the_submissions_the_work_and_the_deadlines_of_the_environment(cluster: str) -> None:
    empty = clusters.cluster(cluster)
    env = ClusterVectorEnv(1, cluster=empty, jobs=JOBS, load=1.3)
    env.reset(seed=11)
    state, families = env.state, env.families
    per_gpu = np.array([most_efficient(env.machines, each.rate) for each in plans(empty, env.machines).values()])
    jobs = cluster_v0.jobs(JOBS, empty, 1.3, 11)
    assert [job.created for job in jobs] == state.submitted[0].tolist()
    assert [np.inf if job.deadline is None else job.deadline for job in jobs] == state.deadline[0].tolist()
    assert [job.model.name for job in jobs] == [families.names[family] for family in state.family[0]]
    steps = np.array([job.training.steps for job in jobs])
    assert np.abs(steps - state.work[0] * per_gpu[state.family[0]]).max() <= 0.5


@pytest.mark.parametrize(("load", "seed"), [(0.7, 3), (1.3, 4)])
def test_a_rule_has_the_same_mean_completion_time_in_the_environment_and_in_the_engine(load: float, seed: int) -> None:
    assert in_the_engine(load, seed) == pytest.approx(in_the_environment(load, seed), rel=1e-3)


def test_policies_are_asked_as_they_are_in_the_live_controller() -> None:
    """They search plans for a model; they are given no speeds."""
    jobs = cluster_v0.jobs(JOBS, SIA, 1.0, 0)
    assert all(job.speeds is None for job in jobs)
    assert {(job.requirements.gpus.low, job.requirements.gpus.high) for job in jobs} == {(1, 16)}
    assert len({job.uid for job in jobs}) == JOBS


def test_at_another_load_the_same_jobs_come_at_other_times() -> None:
    slow, fast = (cluster_v0.jobs(JOBS, SIA, load, 0) for load in (0.7, 1.4))
    assert [job.training for job in slow] == [job.training for job in fast]
    assert [job.created for job in slow] == pytest.approx([2 * job.created for job in fast])


def test_every_window_of_an_evaluation_is_an_episode_of_its_own() -> None:
    one = Scenario("", "generator:cluster-v0", "sia-heterogeneous", load=1.0, windows=2, window_jobs=JOBS)
    first, second = (workload.workload(replace(one, window=window)) for window in (0, 1))
    assert len(first.described) == len(second.described) == JOBS
    assert first.seed != second.seed
    assert list(first.described) == cluster_v0.jobs(JOBS, SIA, 1.0, first.seed)


@pytest.mark.parametrize(("count", "load"), [(0, 1.0), (5, 0.0), (5, float("inf"))])
def test_numbers_that_make_no_workload_are_named(count: int, load: float) -> None:
    with pytest.raises(ValueError, match=f"jobs and load must be above 0, got {count} jobs at load {load}"):
        cluster_v0.jobs(count, SIA, load, 0)


def test_a_cluster_that_none_of_the_models_fits_is_refused() -> None:
    with pytest.raises(ValueError, match="none of the default models fits"):
        cluster_v0.jobs(JOBS, clusters.cluster("MISC=1x1"), 1.0, 0)
