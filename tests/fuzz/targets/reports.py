"""What trainings post: a body is taken, ignored or refused with a reason, and the job's status can tell of it."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

from tests.builders import MOMENT, NOW, gang_pod, job_object, placement, plan_of
from tests.fuzz.draw import Draw, Json
from tests.fuzz.target import Target

from trimtab.api.status import JobStatus, StopRequest
from trimtab.apply import transitions
from trimtab.controller.reports import endpoint
from trimtab.controller.reports.progress import MeasuredSteps, ProgressReports, ReportRefused
from trimtab.kube.objects import JobObject, PodObject
from trimtab.observe.jobs import JobFacts, facts
from trimtab_policy.types import StopCause

KEY, POD = "default/job", "pod-job-3-0"
_PLAN = plan_of(placement(nodes={"n1": 8, "n2": 8}), 3)
_STOP = StopRequest(
    epoch=3,
    cause=StopCause.PREEMPTED,
    message="x",
    requested_time=MOMENT,
    deadline_time=MOMENT + timedelta(seconds=60),
)
_JOBS = [
    job_object(status=JobStatus(plan=_PLAN, last_epoch=3)),
    job_object(status=JobStatus(plan=_PLAN, last_epoch=3, stop=_STOP)),
    job_object(spec={"training.steps": 1_000_000_000}, status=JobStatus(plan=_PLAN, last_epoch=3)),
    job_object(status=JobStatus(last_epoch=3)),
]
_FACTS = {id(job): facts(job) for job in _JOBS}
_PODS = (gang_pod("job", 3, 0, "n1", phase="Running"), gang_pod("job", 3, 1, "n2", phase="Running"))


class _Stage:
    """One job with a gang under epoch 3."""

    def __init__(self, job: JobObject) -> None:
        self.job = job
        self.now = 0.0
        self.learned: list[MeasuredSteps] = []
        self.progress = ProgressReports(
            self, self.read, news=lambda uid: None, learn=self.learned.append, clock=lambda: self.now, wall=lambda: NOW
        )

    def job_named(self, key: str) -> JobObject | None:
        return self.job if key == KEY else None

    def pods_of(self, uid: str) -> tuple[PodObject, ...]:
        return _PODS

    @staticmethod
    def read(job: JobObject) -> JobFacts:
        return _FACTS[id(job)]


def _body(draw: Draw, step: int) -> Json:
    said: Json = {"job": KEY, "epoch": 3, "step": step}
    optional: dict[str, Any] = {
        "stepSeconds": lambda: draw.number(1e-6, 86_400.0),
        "tokensPerSecond": lambda: draw.number(1e-300, 1e15),
        "checkpointStep": lambda: draw.integer(0, 1 << 53),
        "acknowledged": lambda: bool(draw.byte() & 1),
        "metrics": lambda: draw.listed(lambda: {"name": draw.text(63, 1), "value": draw.text(64)}),
        "step": lambda: draw.integer(0, 1 << 53),
        "epoch": lambda: draw.integer(1, 1 << 53),
        "job": lambda: draw.text(330, usual=("default/other", "a/b/c")),
    }
    for name, make in optional.items():
        if draw.chance(6 if name in ("step", "epoch", "job") else 2):
            said[name] = make()
    return said


def run(data: bytes) -> None:
    """Several reports of one gang, and what becomes of them."""
    draw = Draw(data)
    stage = _Stage(draw.pick(_JOBS))
    for turn in range(1 + draw.below(3)):
        raw = draw.rest() if draw.chance(16) else draw.encoded(draw.spoiled(_body(draw, turn * 100)))
        stage.now += draw.pick((10.0, 0.0, 1e9))
        try:
            body = endpoint._understood(raw)
            taken = stage.progress.take(body, draw.pick((POD, POD, POD, "pod-job-3-1", "else")))
            assert taken in ("accepted", "ignored")
        except ReportRefused as refused:
            assert refused.status in (403, 409, 422, 429), refused.status
            assert len(str(refused)) < 20_000
        stage.progress.asked(KEY)
    _told(stage, _FACTS[id(stage.job)])


def _told(stage: _Stage, known: JobFacts) -> None:
    """The status that is written of it is one that can be read again, and every figure is finite."""
    stage.progress.forget()
    for measured in stage.learned:
        assert math.isfinite(measured.seconds)
        assert measured.seconds > 0
    if report := stage.progress.report(known.meta.uid, known):
        for figure in (report.step_seconds, report.tokens_per_second, report.ratio, report.received):
            assert figure is None or (math.isfinite(figure) and figure > 0), report
        status = transitions.reported(known.status, known.meta, report, NOW)
        assert JobStatus.model_validate(status.to_wire()) == status


TARGET = Target("bodies posted by trainings", run)
