"""A job whose speed and statistical efficiency were measured: the job model of the Sia artifact.

It runs a fixed number of epochs. Within one, progress per second is the gain of its batch over the measured time of a
step, divided by the application's slowdown. Batch and micro-batches are chosen anew by its estimator (`knowledge`)
when it is placed, at the end of every epoch, and at the end of every `advance`: once a round, where the engine works in
rounds, and at every event else. Choosing costs nothing. Epochs end on whole seconds.

Every start, and every change of GPU type or split over nodes, the order of the nodes' parts included, stops it for the
application's restart time; other nodes with the same split are free. Checkpoints are made at the end of epochs and
when it is stopped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from trimtab_lab.goodput.batching import Batching
from trimtab_lab.goodput.knowledge import Estimator
from trimtab_lab.goodput.profiles import Split
from trimtab_lab.goodput.site import Site
from trimtab_lab.workloads.trace import Submission
from trimtab_policy.sim.job import Alone
from trimtab_policy.specs import ModelSpec, TrainingSpec
from trimtab_policy.types import Bounds, Job, Placement, Requirements, Speed

NOT_RUNNING = Batching(0, 0)


class GoodputJob:
    """One job of a Sia workload; implements `sim.job.SimJob`."""

    def __init__(
        self, submission: Submission, site: Site, estimator: Estimator, restart_seconds: float, batch: int | None
    ) -> None:
        """`restart_seconds` is what policies believe.

        Its steps are iterations at the global `batch`; with None progress, i.e. steps at the initial batch.
        """
        self.uid, self.submitted, self.application = submission.name, submission.submitted, submission.application
        self._submission, self._restart_seconds, self._batch = submission, restart_seconds, batch
        self._site, self._estimator, self._app = site, estimator, site.application
        self._steps = [0.0, *self._app.iterations(batch)] if batch else self._app.milestones
        """Steps done when epoch 0, 1, ... begins."""
        self._epoch, self._done = 0, 0.0
        self._saved, self._unsaved_seconds = 0.0, 0.0
        self._gpu_type, self._speed = "", 1.0
        self._split: Split = ()
        self._batching = NOT_RUNNING
        self._gains: list[float] = []
        self._step = math.inf
        """Seconds of a step as it runs now."""
        self._speeds: tuple[Speed, ...] = ()
        self._job: Job | None = None

    @property
    def progress(self) -> float:
        return self._done / self._app.work

    def seen(self) -> Job:
        speeds = self._estimator.speeds(min(self._epoch, self._app.facts.epochs - 1))
        if self._job is None or speeds is not self._speeds:
            self._speeds = speeds
            self._job = self._told(speeds, self._estimator.gpus())
        return self._job

    def steps_done(self) -> int:
        if self._epoch == self._app.facts.epochs:
            return int(self._steps[-1])
        begun, ended = self._app.milestones[self._epoch : self._epoch + 2]
        part = (self._done - begun) / (ended - begun)
        first, last = self._steps[self._epoch : self._epoch + 2]
        return int(first + part * (last - first))

    def pause(self, before: Placement | None, after: Placement) -> float:
        if before is not None and self._where(before) == self._where(after):
            return 0.0
        return self._app.facts.restart_seconds

    def place(self, placement: Placement | None, speed: float = 1.0) -> None:
        where: tuple[str, Split] = self._where(placement) if placement else ("", ())
        if where != (self._gpu_type, self._split):
            self._saved, self._unsaved_seconds = self._done, 0.0
        self._gpu_type, self._split = where
        self._speed = speed
        self._batching = NOT_RUNNING
        if self._split and self._epoch < self._app.facts.epochs:
            self._choose()

    def advance(self, seconds: float) -> float:
        left = seconds
        while left > 0 and self._split and self._epoch < self._app.facts.epochs:
            left -= self._advance_in_epoch(left)
        return seconds - left if self._split else 0.0

    def finish_in(self) -> float:
        """As if it kept its batch for all of the epochs that are left."""
        if not self._split:
            return math.inf
        steps, begun = 0.0, self._done
        for ended, gain in zip(self._app.milestones[self._epoch + 1 :], self._gains[self._epoch :], strict=True):
            steps += (ended - begun) / gain
            begun = ended
        return steps * self._step

    def fail(self) -> float:
        lost, self._unsaved_seconds = self._unsaved_seconds, 0.0
        self._done = self._saved
        return lost

    def alone(self, gpu_type: str) -> Mapping[int, Alone]:
        return self._estimator.alone(gpu_type)

    def _advance_in_epoch(self, seconds: float) -> float:
        """Compute for so long, or to the end of the epoch; returns how long."""
        self._estimator.learn(self._gpu_type, self._split, self._batching, self._epoch)
        rate, end = self._rate(), self._app.milestones[self._epoch + 1]
        if self._done + rate * seconds < end:
            self._done += rate * seconds
            self._unsaved_seconds += seconds
        else:
            seconds = min(seconds, float(round((end - self._done) / rate)))
            self._done = self._saved = end
            self._unsaved_seconds = 0.0
            self._epoch += 1
        if self._epoch < self._app.facts.epochs:
            self._choose()
        return seconds

    def _rate(self) -> float:
        """Progress per second."""
        return self._gains[self._epoch] / self._step

    def _choose(self) -> None:
        """Run the batch that the estimator thinks best."""
        batching = self._estimator.divide(self._gpu_type, self._split, self._epoch)
        if batching != self._batching:
            self._batching = batching
            self._gains = self._app.gains(batching.batch(sum(self._split)))
            step = self._site.time(self._gpu_type, self._split, batching).total(batching.accumulations)
            self._step = step * self._app.facts.slowdown / self._speed

    def _where(self, placement: Placement) -> tuple[str, Split]:
        gpu_type = placement.gpu_type
        return gpu_type, self._site.split(gpu_type, tuple([share.gpus for share in placement.shares]))

    def _told(self, speeds: tuple[Speed, ...], gpus: Bounds) -> Job:
        return Job(
            uid=self.uid,
            namespace=self._submission.queue or "default",
            name=self.uid,
            model=ModelSpec(self.application, 1, 1, 1, 1, 1, 1, 1),
            training=TrainingSpec(1, self._batch or self._app.init_batch, steps=int(self._steps[-1])),
            requirements=Requirements(gpus=gpus, gpu_types=tuple(pool.gpu_type for pool in self._site.pools)),
            created=self.submitted,
            queue=self._submission.queue,
            speeds=speeds,
            preemptible=True,
            restart_seconds=self._restart_seconds,
            deadline=None if math.isnan(self._submission.deadline) else self._submission.deadline,
        )
