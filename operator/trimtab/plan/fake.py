"""Fake gangs: their pods run as long as predicted (KWOK ends a pod after the delay in its annotation), and answer.

A pod runs for the time that the performance model predicts for the steps that the job has left, divided by the
speed-up. How far the training is, follows from the time that it has run. Annotations of the job change its course:

    fake.trimtab.dev/fail: RANK@FRACTION[xTIMES]   the pod of that node rank fails after that part of its run time, in
                                                   the first TIMES (default 1) epochs
    fake.trimtab.dev/checkpoint: SECONDS|Ignores   asked to save its state, the gang has done so after these seconds
                                                   (default 0), or never: it has one of every tenth of its run
"""

from __future__ import annotations

import math
import re
from typing import Final

from msgspec import Struct

from trimtab import names
from trimtab.api import conditions
from trimtab.api.status import JobStatus, Plan
from trimtab.kube.objects import Meta
from trimtab.plan.objects import pod_name

COMPLETE_DELAY = "pod-complete.stage.kwok.x-k8s.io/delay"
FAIL_DELAY = "pod-fail.stage.kwok.x-k8s.io/delay"
IGNORES: Final = "Ignores"
_CENTURY = 100 * 365 * 24 * 3600 * 1000
_FAILURE = re.compile(r"(?P<rank>\d+)@(?P<fraction>[01](?:\.\d+)?)(?:x(?P<times>\d+))?")
_SECONDS = re.compile(r"\d{1,9}(\.\d+)?")


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


def pod_annotations(meta: Meta, plan: Plan, speedup: float, left: float = 1.0) -> dict[str, dict[str, str]]:
    """Pod name -> annotations that make KWOK complete or fail it in time; `left` is the part of the steps to do."""
    seconds = plan.predicted.run_seconds * left / speedup
    pods = [pod_name(meta.name, plan.epoch, rank) for rank in range(len(plan.nodes))]
    delays = {pod: {COMPLETE_DELAY: _delay(seconds)} for pod in pods}
    failure = failure_request(meta.annotations.get(names.ANNOTATION_FAKE_FAIL, ""))
    if failure and plan.epoch <= failure.times and failure.rank < len(plan.nodes):
        delays[pods[failure.rank]] = {FAIL_DELAY: _delay(seconds * failure.fraction)}
    return delays


class FakeRun(Struct, frozen=True):
    """A fake gang that runs."""

    began: float
    """POSIX seconds."""
    seconds: float
    """From the first step that it does to the last."""
    first: int
    """Steps that an earlier gang has done."""
    steps: int
    """Of the whole training."""

    @property
    def step_seconds(self) -> float:
        """What a step takes."""
        return self.seconds / max(1, self.steps - self.first)

    def step(self, now: float) -> int:
        """The step that it has reached."""
        return min(self.steps, self.first + max(0, int((now - self.began) / self.step_seconds)))


class Answer(Struct, frozen=True):
    """What the trainer of a fake gang says that was asked to save its state."""

    step: int
    saved: int
    """Step of its last checkpoint."""
    done: bool
    """Whether it has done as it was asked."""


def run_of(status: JobStatus, steps: int, speedup: float) -> FakeRun | None:
    """The gang of the standing plan, of a training of so many steps; None before it runs."""
    plan, observed = status.plan, status.observed
    ready = conditions.find(status.conditions, names.PODS_READY)
    if plan is None or ready is None or ready.status != "True":
        return None
    began, first = ready.last_transition_time.timestamp(), min(steps, observed.steps_done) if observed else 0
    if observed and observed.epoch == plan.epoch and observed.last_checkpoint_time:  # it has answered: from there on
        began = observed.last_checkpoint_time.timestamp()
    seconds = plan.predicted.run_seconds / speedup * (1 - first / steps)
    return FakeRun(began, max(1.0, seconds), first, steps)


def progress(run: FakeRun, now: float) -> int:
    """Per cent of the training that is done, in steps of ten; it never says that it is complete."""
    return min(90, 10 * (10 * run.step(now) // run.steps))


def next_progress(run: FakeRun, now: float) -> float:
    """Seconds until `progress` changes; infinite when it will not."""
    done = progress(run, now)
    if done >= 90:
        return math.inf
    steps = -(-run.steps * (done + 10) // 100) - run.first
    return max(0.0, run.began + steps * run.step_seconds - now)


def answers_at(meta: Meta, asked: float) -> float:
    """When the trainer will have saved its state that was asked to at this time; infinite where it does not listen."""
    text = meta.annotations.get(names.ANNOTATION_FAKE_CHECKPOINT, "0")
    if text == IGNORES:
        return math.inf
    return asked + (float(text) if _SECONDS.fullmatch(text) else 0.0)


def answer(meta: Meta, run: FakeRun, asked: float, now: float) -> Answer:
    """What the trainer says now, asked to save its state at this time."""
    step, done = run.step(now), now >= answers_at(meta, asked)
    tenth = max(1, run.steps // 10)
    return Answer(step, step if done else max(run.first, step // tenth * tenth), done)


def _delay(seconds: float) -> str:
    """Go's time.Duration (which ends after 292 years), at least a blink: a pod is seen running before it ends."""
    return f"{min(max(1, round(seconds * 1000)), _CENTURY)}ms"
