"""Two lives of one cluster, as it is and as it would be after a change: when each job starts and ends in either.

Both are simulated from the same moment on. Who decides is the caller's to say. Nobody else comes.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from trimtab_policy.policy import Policy
from trimtab_policy.sim.engine import SimRules, simulate
from trimtab_policy.sim.replay import Case, jobs_of
from trimtab_policy.sim.result import Run
from trimtab_policy.types import Snapshot


class Course(Struct, frozen=True):
    """What becomes of one job; seconds from now."""

    start: float | None
    """When it first has GPUs; None if it never does."""
    end: float | None
    held: str
    """The GPUs that it had longest: `8×H100-SXM5-80GB`; empty if it never had any."""
    restarts: int
    runs: bool
    """Whether it runs already."""


class Life(Struct, frozen=True):
    """What becomes of all of them."""

    policy: str
    jobs: dict[str, Course]
    """By `namespace/name`."""
    set_aside: dict[str, str]
    """Those that nothing can be said about -> why."""
    average_wait: float | None
    """Seconds that jobs which do not run now wait until they start."""
    average_jct: float | None
    """Seconds from a job's creation to its end."""
    utilization: float
    """Part of the GPU time that is held until the last job ends."""
    end: float
    """Seconds until then."""


def live(start: Case, policy: Policy) -> Life:
    """Simulate until all jobs are done. Raises what `simulate` raises."""
    return _life(start, policy.name, simulate(policy, jobs_of(start, preempt=True), start.cluster, SimRules()))


def _life(start: Case, policy: str, run: Run) -> Life:
    now, held = start.snapshot, _longest_held(run)
    jobs, waits, stays = {}, list[float](), list[float]()
    for number, (job, record) in enumerate(zip(now.jobs, run.jobs, strict=True)):
        begun = 0.0 if job.placement else record.started
        name, runs = f"{job.namespace}/{job.name}", job.placement is not None
        jobs[name] = Course(begun, record.finished, held.get(number, ""), record.restarts, runs)
        if not job.placement and begun is not None:
            waits.append(begun)
        if record.finished is not None:
            stays.append(record.finished + max(0.0, now.time - job.created))
    total = sum(node.gpus for node in now.nodes)
    used = sum((span.end - span.begin) * sum(share.gpus for share in span.shares) for span in run.spans)
    return Life(
        policy=policy,
        jobs=jobs,
        set_aside=start.set_aside,
        average_wait=sum(waits) / len(waits) if waits else None,
        average_jct=sum(stays) / len(stays) if stays else None,
        utilization=used / (total * run.end) if total and run.end else 0.0,
        end=run.end,
    )


def _longest_held(run: Run) -> dict[int, str]:
    """Number of a job -> the GPUs that it had for the longest time."""
    seconds: dict[int, dict[str, float]] = {}
    for span in run.spans:
        gpus = f"{sum(share.gpus for share in span.shares)}×{span.gpu_type}"
        of_job = seconds.setdefault(span.job, {})
        of_job[gpus] = of_job.get(gpus, 0.0) + span.end - span.begin
    return {job: max(of_job, key=of_job.__getitem__) for job, of_job in seconds.items()}


def unsure(now: Snapshot) -> list[str]:
    """What such a simulation cannot know of a cluster, in sentences."""
    said = ["no further jobs come, no node fails, and jobs take as long as predicted (often a fifth more or less)"]
    silent = [job for job in now.jobs if job.placement and not job.steps_done]
    if silent:
        names = ", ".join(f"{job.namespace}/{job.name}" for job in silent[:3])
        said.append(f"{len(silent)} running jobs report no steps and count as if they had just begun: {names}")
    if now.speedup != 1:
        said.append(f"pods are fake and run {now.speedup:,g} times as fast: times here are as if they did not")
    if now.unavailable:
        said.append(f"{len(now.unavailable)} nodes that take no pods now never do")
    return said


def differences(before: Mapping[str, Course], after: Mapping[str, Course]) -> dict[str, float | None]:
    """By how many seconds each job ends later; negative for sooner, None where it ends in one of them only."""
    found: dict[str, float | None] = {}
    for name in dict.fromkeys([*before, *after]):
        was, will = before.get(name), after.get(name)
        if was is None or will is None or was.end is None or will.end is None:
            found[name] = None
        else:
            found[name] = will.end - was.end
    return found
