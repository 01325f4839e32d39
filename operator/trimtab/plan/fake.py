"""Run times of fake pods: in fake-node mode KWOK ends a pod after the delay in its annotation.

A pod runs for the time that the performance model predicts for the job, divided by the speed-up. A job may ask for a
failure with the annotation `fake.trimtab.dev/fail: RANK@FRACTION[xTIMES]`: the pod of that node rank fails after that
part of its run time, in the first TIMES (default 1) epochs.
"""

from __future__ import annotations

import math
import re

from msgspec import Struct

from trimtab import names
from trimtab.api.status import JobStatus, Plan
from trimtab.kube.objects import Meta
from trimtab.plan.objects import pod_name

COMPLETE_DELAY = "pod-complete.stage.kwok.x-k8s.io/delay"
FAIL_DELAY = "pod-fail.stage.kwok.x-k8s.io/delay"
_CENTURY = 100 * 365 * 24 * 3600 * 1000
_FAILURE = re.compile(r"(?P<rank>\d+)@(?P<fraction>[01](?:\.\d+)?)(?:x(?P<times>\d+))?")


class FailureRequest(Struct, frozen=True):
    """A parsed `fake.trimtab.dev/fail` annotation."""

    rank: int
    fraction: float
    times: int


def failure_request(text: str) -> FailureRequest | None:
    """`1@0.5x2` -> rank 1 fails halfway in the first two epochs; None when malformed."""
    match = _FAILURE.fullmatch(text)
    if match is None or float(match["fraction"]) > 1:
        return None
    return FailureRequest(int(match["rank"]), float(match["fraction"]), int(match["times"] or 1))


def pod_annotations(meta: Meta, plan: Plan, speedup: float) -> dict[str, dict[str, str]]:
    """Pod name -> annotations that make KWOK complete or fail it in time."""
    seconds = plan.predicted.run_seconds / speedup
    pods = [pod_name(meta.name, plan.epoch, rank) for rank in range(len(plan.nodes))]
    delays = {pod: {COMPLETE_DELAY: _delay(seconds)} for pod in pods}
    failure = failure_request(meta.annotations.get(names.ANNOTATION_FAKE_FAIL, ""))
    if failure and plan.epoch <= failure.times and failure.rank < len(plan.nodes):
        delays[pods[failure.rank]] = {FAIL_DELAY: _delay(seconds * failure.fraction)}
    return delays


def progress(status: JobStatus, now: float) -> int | None:
    """Per cent of a fake gang's run time that has passed, in steps of ten; None before it runs."""
    if (span := _span(status)) is None:
        return None
    began, end = span
    return min(90, max(0, int(10 * (now - began) / (end - began)) * 10))


def next_progress(status: JobStatus, now: float) -> float:
    """Seconds until `progress` changes; infinite when it will not."""
    done = progress(status, now)
    if (span := _span(status)) is None or done is None or done == 90:
        return math.inf
    began, end = span
    return max(0.0, began + (end - began) * (done + 10) / 100 - now)


def _span(status: JobStatus) -> tuple[float, float] | None:
    """When the gang of the standing plan began to run and is to end, as POSIX times."""
    if status.plan is None or status.start_time is None:
        return None
    began = max(status.start_time.timestamp(), status.plan.created_time.timestamp())
    return began, max(began + 1.0, status.plan.predicted.finish_time.timestamp())


def _delay(seconds: float) -> str:
    """Go's time.Duration (which ends after 292 years), at least a blink: a pod is seen running before it ends."""
    return f"{min(max(1, round(seconds * 1000)), _CENTURY)}ms"
