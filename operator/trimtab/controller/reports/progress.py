"""What running gangs say of themselves: who may say what, and what is remembered of it.

A report is believed when it comes from the pod of node rank 0 of the job's standing plan, as the API server vouches,
and when its figures can be. Nothing of this is needed to go on: what must survive is written to the job's status and to
the calibration, and a controller that starts anew hears from every gang within seconds.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Protocol

import msgspec
from msgspec import Struct, field

from trimtab import names
from trimtab.api.status import Observed, Plan, StopRequest
from trimtab.apply.transitions import GangReport
from trimtab.errors import TrimtabError
from trimtab.kube.objects import JobObject, PodObject
from trimtab.observe.jobs import JobFacts
from trimtab_policy.specs import TrainingSpec

LEAST_SECONDS = 1.0
"""Between two reports of one job; more are refused."""
SMOOTHED = 9
"""Reported step times whose median counts."""
MIN_STEPS = 20
"""Fewer tell little: finished steps are whole numbers."""
REFINED_STEPS = 10 * MIN_STEPS
"""Steps after which what a job teaches is corrected once: until then its median still moves."""
LATER_STEPS = 1000
"""At least so many more than the job asked for are believed; and up to twice as many."""
BACK_REPORTS = 3
"""In a row that tell of earlier steps are believed: the trainer was started anew in its pod, or had erred before."""
NO_POD_OF_ITS = "job: the token's pod is no pod of {}"
"""Also where there is no such job: what others have is nobody's business."""
_PRECISE = 1000
"""Tokens per second from which on they tell a step's time better than its whole milliseconds do."""

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]


class Figure(Struct, frozen=True):
    """One metric, in the shape of KEP-2779."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=63)]
    value: Annotated[str, msgspec.Meta(max_length=64)]


class Body(Struct, frozen=True, rename="camel"):
    """What `trimtab.report` posts."""

    job: Annotated[str, msgspec.Meta(max_length=320, pattern="^[^/]+/[^/]+$")]
    """`namespace/name`."""
    epoch: Annotated[int, msgspec.Meta(ge=1, le=1 << 53)]
    step: Count
    step_seconds: Annotated[float, msgspec.Meta(ge=1e-6, le=86_400)] | None = None
    tokens_per_second: Annotated[float, msgspec.Meta(gt=0, le=1e15)] | None = None
    checkpoint_step: Count | None = None
    metrics: Annotated[tuple[Figure, ...], msgspec.Meta(max_length=32)] = ()
    acknowledged: bool = False
    """The job has saved its state because it was asked to. Without a request that stands it means nothing."""


class SaveRequest(Struct, frozen=True):
    """What the answer to a report says of a request to save the state."""

    deadline: str
    """RFC 3339."""
    cause: str


class ReportRefused(TrimtabError):
    """A report that is not taken; `status` is the HTTP status that says so."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class KnownJobs(Protocol):
    """What has to be known of the cluster (`controller.cluster.Cluster`)."""

    def job_named(self, key: str) -> JobObject | None:
        """The job `namespace/name`."""

    def pods_of(self, job: str) -> tuple[PodObject, ...]:
        """Pods that the job with this digest of its identity controls."""


class MeasuredSteps(Struct, frozen=True):
    """How long steps of one gang take, after enough of them."""

    facts: JobFacts
    plan: Plan
    seconds: float
    settled: bool = True
    """Whether it will be told of no more."""


class _Told(Struct):
    """What one gang has said."""

    epoch: int
    first: int
    """Step of its first report: steps before it were not measured under this plan."""
    began: float
    """Monotonic time of the first report."""
    at: float
    """Of the last."""
    body: Body
    received: float
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=SMOOTHED))
    saved: int | None = None
    saved_at: float | None = None
    behind: int = 0
    """The latest reports in a row that told of earlier steps."""
    taught: int = 0
    """How often it was learned from: early, and once again when the figure has settled."""
    acknowledged: datetime | None = None
    """When it was asked to save its state, if it has said that it did so."""

    @property
    def measured(self) -> int:
        return self.body.step - self.first

    def steps_back(self, step: int) -> bool:
        """Whether a report of an earlier step is believed; then measuring starts anew."""
        self.behind += 1
        if self.behind < BACK_REPORTS:
            return False
        self.first, self.behind = step, 0
        self.seconds.clear()
        return True


class ProgressReports:
    """Judges and remembers reports. `news` is called with the UID of a job that has said something.

    `learn` hears of a job not before `settle_seconds` after its first report.
    """

    def __init__(
        self,
        cluster: KnownJobs,
        read: Callable[[JobObject], JobFacts],
        *,
        news: Callable[[str], None],
        learn: Callable[[MeasuredSteps], None],
        drift_factor: float = 1.25,
        settle_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._cluster = cluster
        self._read = read
        self._news = news
        self._learn = learn
        self._drift_factor = drift_factor
        self._settle_seconds = settle_seconds
        self._clock = clock
        self._wall = wall
        self._told: dict[str, _Told] = {}

    def take(self, body: Body, pod_uid: str) -> str:
        """Take a report of the pod with this UID: `accepted`, or `ignored` for one of the past. Raises Refused."""
        job = self._cluster.job_named(body.job)
        if job is None:
            raise ReportRefused(403, NO_POD_OF_ITS.format(body.job))
        facts = self._read(job)
        plan, uid = facts.status.plan, job.metadata.uid
        gang = self._cluster.pods_of(job.metadata.identity.digest)
        self._admit(body, plan, next((pod for pod in gang if pod.metadata.uid == pod_uid), None))
        if body.checkpoint_step is not None and body.checkpoint_step > body.step:
            raise ReportRefused(422, f"checkpointStep: {body.checkpoint_step} lies after step {body.step}")
        if facts.training and body.step > (most := facts.training.steps + max(facts.training.steps, LATER_STEPS)):
            raise ReportRefused(
                422, f"step: {body.step} lies far beyond the job's {facts.training.steps} steps (above {most})"
            )
        asked = _asked(facts) if body.acknowledged else None
        told = self._told.get(uid)
        if told and told.epoch == body.epoch:
            done = asked is not None and told.acknowledged != asked.requested_time  # it may end a moment later
            if self._clock() - told.at < LEAST_SECONDS and not done:
                raise ReportRefused(429, f"job: {body.job} has reported less than {LEAST_SECONDS:g} s ago")
            told.at = self._clock()
            if body.step < told.body.step and not done and not told.steps_back(body.step):
                return "ignored"
            told.behind = 0
        else:
            told = self._told[uid] = self._first(body, facts.status.observed)
        if asked:
            told.acknowledged = asked.requested_time
        self._note(told, body)
        if plan and facts.training:
            self._teach(told, facts, plan)
        self._news(uid)
        return "accepted"

    def asked(self, job: str) -> SaveRequest | None:
        """What the gang of the job `namespace/name` is asked, if it is to save its state."""
        found = self._cluster.job_named(job)
        stop = _asked(self._read(found)) if found else None
        return SaveRequest(f"{stop.deadline_time:%Y-%m-%dT%H:%M:%SZ}", stop.cause.value) if stop else None

    def report(self, uid: str, facts: JobFacts) -> GangReport | None:
        """What the job's status may say of it; None while its gang has said nothing."""
        told, plan, training = self._told.get(uid), facts.status.plan, facts.training
        if told is None or plan is None or training is None or told.epoch != plan.epoch:
            return None
        seconds = statistics.median(told.seconds) if told.seconds else None
        known = seconds is not None and told.measured >= MIN_STEPS
        asked = _asked(facts)
        return GangReport(
            epoch=told.epoch,
            step=told.body.step,
            steps=training.steps,
            received=told.received,
            step_seconds=seconds,
            tokens_per_second=told.body.tokens_per_second or (training.tokens_per_step / seconds if seconds else None),
            checkpoint_step=told.saved,
            checkpoint_time=told.saved_at,
            metrics=tuple((figure.name, figure.value) for figure in told.body.metrics),
            ratio=seconds / predicted_seconds(plan, training) if seconds and known else None,
            acknowledged=asked is not None and told.acknowledged == asked.requested_time,
            drift_factor=self._drift_factor,
        )

    def heard(self, uid: str, epoch: int) -> float | None:
        """When the gang of this plan reported last, as a POSIX time; None where it has not, or not to this process."""
        told = self._told.get(uid)
        return told.received if told and told.epoch == epoch else None

    def forget(self) -> None:
        """Drop what jobs said that are gone, or have another plan by now."""
        for uid, told in list(self._told.items()):
            job = self._cluster.job_named(told.body.job)
            plan = self._read(job).status.plan if job and job.metadata.uid == uid else None
            if plan is None or plan.epoch != told.epoch:
                del self._told[uid]

    def _admit(self, body: Body, plan: Plan | None, pod: PodObject | None) -> None:
        """Raises Refused for a pod that may not speak for the job, or not any more."""
        if pod is None:
            raise ReportRefused(403, NO_POD_OF_ITS.format(body.job))
        labels = pod.metadata.labels
        if labels.get(names.LABEL_RANK) != "0":
            raise ReportRefused(403, "only the pod of node rank 0 reports")
        if plan is None or labels.get(names.LABEL_EPOCH) != str(plan.epoch):
            raise ReportRefused(409, "the pod belongs to a plan that stands no more")
        if body.epoch != plan.epoch:
            raise ReportRefused(409, f"epoch: {body.epoch} is not that of the standing plan, {plan.epoch}")
        if pod.status.phase in ("Succeeded", "Failed"):
            raise ReportRefused(409, "the pod has ended")

    def _first(self, body: Body, before: Observed | None) -> _Told:
        """A checkpoint that the status knows of is as old as it says, whoever was told of it."""
        told = _Told(body.epoch, body.step, self._clock(), self._clock(), body, self._wall())
        if before and before.last_checkpoint_step is not None and before.last_checkpoint_time is not None:
            told.saved, told.saved_at = before.last_checkpoint_step, before.last_checkpoint_time.timestamp()
        return told

    def _note(self, told: _Told, body: Body) -> None:
        told.body, told.received = body, self._wall()
        if body.step_seconds is not None:
            told.seconds.append(body.step_seconds)
        if body.checkpoint_step is not None and body.checkpoint_step != told.saved:
            told.saved, told.saved_at = body.checkpoint_step, self._wall()

    def _teach(self, told: _Told, facts: JobFacts, plan: Plan) -> None:
        enough = (MIN_STEPS, REFINED_STEPS)
        if not told.seconds or told.at - told.began < self._settle_seconds:
            return
        lessons = sum(told.measured >= steps for steps in enough)
        if lessons > told.taught:
            told.taught = lessons
            self._learn(MeasuredSteps(facts, plan, statistics.median(told.seconds), lessons == len(enough)))


def _asked(facts: JobFacts) -> StopRequest | None:
    """The request that stands against the gang of the standing plan."""
    plan, stop = facts.status.plan, facts.status.stop
    return stop if plan and stop and stop.epoch == plan.epoch else None


def predicted_seconds(plan: Plan, training: TrainingSpec) -> float:
    """The step time that the plan promises: from its throughput where that is the finer figure."""
    rate = plan.predicted.tokens_per_second
    return training.tokens_per_step / rate if rate >= _PRECISE else plan.predicted.step_milliseconds / 1000
