"""Jobs of a trace: their time is that of the trace; what policies see of it may be an estimate."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trimtab_lab import rigid
from trimtab_lab.rigid import STEPS_PER_SECOND, RigidRules
from trimtab_lab.workloads import clusters
from trimtab_lab.workloads.trace import Trace, code, trace
from trimtab_policy.sim.job import Alone
from trimtab_policy.specs import ParallelPlan, Prediction
from trimtab_policy.types import NodeShare, Placement

MIXED = clusters.cluster("T4=8x4,A100-SXM4-40GB=8")


def work(**columns: object) -> Trace:
    return trace(["a", "b"], [0.0, 5.0], [2, 6], [100.0, 40.0], **columns)


def placed(gpu_type: str, gpus: int) -> Placement:
    shares = (NodeShare(f"{gpu_type.lower()}-0", gpus),)
    return Placement("a", gpu_type, shares, ParallelPlan(data=gpus), Prediction(1, 1, 1, 1), "test")


def test_a_job_may_run_on_every_type_that_its_trace_allows() -> None:
    first, second = rigid.jobs(work(gpu_types=code([(), ("A100-SXM4-40GB",)])), MIXED)

    assert [(row.gpu_type, row.gpus, row.nodes) for row in first.seen().speeds or ()] == [
        ("T4", 2, 1),
        ("A100-SXM4-40GB", 2, 1),
    ]
    assert [(row.gpu_type, row.gpus, row.nodes) for row in second.seen().speeds or ()] == [("A100-SXM4-40GB", 6, 1)]


def test_a_gang_larger_than_a_node_takes_several() -> None:
    second = rigid.jobs(work(), MIXED)[1]

    assert {row.gpu_type: row.nodes for row in second.seen().speeds or ()} == {"T4": 2, "A100-SXM4-40GB": 1}


def test_faster_types_take_less_time() -> None:
    job = rigid.jobs(work(), MIXED, RigidRules(type_speeds={"A100-SXM4-40GB": 4.0}))[0]

    job.place(placed("A100-SXM4-40GB", 2))
    assert job.finish_in() == 25.0
    assert job.advance(10.0) == 10.0
    assert job.progress == pytest.approx(0.4)
    job.place(placed("T4", 2))
    assert job.finish_in() == 60.0
    assert job.alone("T4") == {2: Alone(100.0, 0.01)}
    assert job.alone("A100-SXM4-40GB")[2].seconds == 25.0
    assert job.alone("H100-SXM5-80GB") == {}


def test_policies_see_milliseconds_as_steps() -> None:
    job = rigid.jobs(work(), MIXED)[0]

    assert job.seen().training.steps == 100 * STEPS_PER_SECOND
    job.place(placed("T4", 2))
    job.advance(2.5)
    assert job.steps_done() == 2500


def test_estimates_err_by_their_sigma_and_by_their_seed() -> None:
    many = trace([str(i) for i in range(4000)], np.arange(4000.0), np.ones(4000, int), np.full(4000, 1e3))

    def told(seed: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        found = rigid.jobs(many, MIXED, RigidRules(estimate_sigma=0.5), seed)
        return np.log([job.seen().training.steps / (1e3 * STEPS_PER_SECOND) for job in found])

    assert np.std(told(1)) == pytest.approx(0.5, rel=0.05)
    assert np.array_equal(told(1), told(1))
    assert not np.array_equal(told(1), told(2))


def test_the_users_own_estimate_is_told_where_the_trace_has_one() -> None:
    first, second = rigid.jobs(work(estimate=[300.0, math.nan]), MIXED)

    assert (first.seen().training.steps, second.seen().training.steps) == (300_000, 40_000)


def test_the_first_start_is_free_and_later_ones_cost_what_the_rules_say() -> None:
    job = rigid.jobs(work(), MIXED, RigidRules(restart_seconds=30.0))[0]

    assert job.pause(None, placed("T4", 2)) == 0.0
    job.place(placed("T4", 2))
    job.advance(1.0)
    job.place(None)
    assert job.pause(None, placed("T4", 2)) == 30.0


def test_a_failure_loses_the_work_since_the_last_checkpoint() -> None:
    job = rigid.jobs(work(), MIXED, RigidRules(checkpoint_seconds=30.0))[0]
    job.place(placed("T4", 2))
    job.advance(70.0)

    assert job.fail() == pytest.approx(10.0)
    assert job.finish_in() == pytest.approx(40.0)


def test_a_workload_without_run_times_is_refused() -> None:
    with pytest.raises(ValueError, match="--profiles"):
        rigid.jobs(trace(["a"], [0.0], [1]), MIXED)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("restart_seconds", -1.0),
        ("estimate_sigma", math.inf),
        ("checkpoint_seconds", 0.0),
        ("type_speeds", {"T4": 0.0}),
    ],
)
def test_rules_that_make_no_sense_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        RigidRules(**{field: value})
