"""Jobs of the made-up application whose goodput was measured, and what is asked of them."""

from __future__ import annotations

from tests.policy.sim import toy_profiles

from trimtab_lab.goodput import Form, GoodputJob, Knowledge, jobs
from trimtab_lab.goodput.profiles import Profiles
from trimtab_lab.workloads.trace import Trace, code, constant, trace
from trimtab_policy.types import Snapshot

SLOWDOWN = toy_profiles.FACTS["toy"].slowdown
WORK = 2016.0
"""Steps of the toy at its initial batch of 16."""


def workload(count: int = 1, gpus: int = 2, batch: int = 64, application: str = "toy", category: str = "") -> Trace:
    rows = range(count)
    return trace(
        [f"{application}-{row}" for row in rows],
        [10.0 * row for row in rows],
        [gpus] * count,
        application=constant(application, count),
        batch_size=[batch] * count,
        category=code([category] * count),
    )


def one(
    profiles: Profiles,
    form: Form = Form.ADAPTIVE,
    knowledge: Knowledge | None = None,
    trace: Trace | None = None,
    cluster: Snapshot | None = None,
) -> GoodputJob:
    return jobs(trace or workload(), profiles, form, knowledge, cluster=cluster or toy_profiles.cluster())[0]


def speeds(job: GoodputJob) -> dict[tuple[str, int], float]:
    return {(each.gpu_type, each.gpus): each.steps_per_second for each in job.seen().speeds or ()}


def run(job: GoodputJob, interval: float = 60) -> float:
    """Compute to the end in rounds; returns how long it took."""
    took = 0.0
    while job.progress < 1:
        took += job.advance(interval)
    return took
