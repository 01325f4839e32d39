"""One job while it is in the system: what it holds, since when, and what that adds up to."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from trimtab_policy.sim.job import Alone, SimJob
from trimtab_policy.sim.result import JobRecord, Span
from trimtab_policy.types import Grant, Job, Placement


class Active:
    """Bookkeeping of a job between submission and completion. `index` is its place in the workload."""

    def __init__(self, index: int, model: SimJob) -> None:
        self.index = index
        self.model = model
        self.placement: Placement | None = None
        self.grants: tuple[Grant, ...] = ()
        self.resuming = 0.0
        self.restarts = 0
        self.started: float | None = None
        self.finished: float | None = None
        self.company = 0.0
        """Integral of the number of jobs in the system over the time that this one is there."""
        self.lost_gpu_seconds = 0.0
        self.computed = 0.0
        """Seconds of computing, lost ones included."""
        self._since = 0.0
        self._waits_since: float | None = None
        self._gpus = 0
        self._productive = 0.0
        self._served: dict[str, float] = {}
        self._before = 0.0
        """GPU-seconds that it held before the run."""
        self._seen: Job | None = None
        self._template: Job | None = None
        self._told: Job | None = None
        """What a live snapshot said of the gang, as long as it stands."""

    def remember(self, told: Job, now: float) -> None:
        """What a live snapshot of POSIX time `now`, from here on 0, tells of its past, and of the gang that it has."""
        self.restarts, self._served = told.restarts, dict(told.served)
        self._before = sum(told.served.values())
        if told.placement:
            self._told = since(told, now)

    def begin(self, placement: Placement, now: float, speed: float, grants: tuple[Grant, ...]) -> None:
        """Start, move or resize at `now`; what it held before must have ended."""
        self._seen = None
        self._since = now
        self.started = now if self.started is None else self.started
        self.placement, self.grants, self._gpus = placement, grants, placement.gpus
        self.model.place(placement, speed)

    def end(self, now: float) -> Span:
        """Give back what it holds; the span that this closes."""
        if self.placement is None:
            raise ValueError(f"{self.model.uid} holds no GPUs")
        placement = self.placement
        held = now - self._since
        self._served[placement.gpu_type] = self._served.get(placement.gpu_type, 0.0) + held * self._gpus
        self._seen, self._told, self.placement, self.resuming = None, None, None, 0.0
        self._waits_since = now
        self.model.place(None)
        return Span(self.index, self._since, now, placement.gpu_type, placement.shares)

    def advance(self, now: float, seconds: float) -> None:
        """Live through `seconds` from `now` on, restarting first; sets `finished` if the work ends in them."""
        waited = min(self.resuming, seconds)
        self.resuming -= waited
        left = seconds - waited
        if left <= 0:
            return
        used = self.model.advance(left)
        self.computed += used
        self._productive += used * self._gpus
        if self.model.progress >= 1:
            self.finished = now + waited + used

    def fail(self) -> None:
        """Lose the work since the last checkpoint."""
        lost = self.model.fail() * self._gpus
        self._productive -= lost
        self.lost_gpu_seconds += lost

    def ends_in(self) -> float:
        """Seconds until it would be done; infinite while it waits."""
        return self.resuming + self.model.finish_in() if self.placement else float("inf")

    def seen(self, now: float) -> Job:
        """The job as policies see it at this moment. Nothing changes about one that waits."""
        template = self.model.seen()
        if self.placement is None:
            if self._seen is None or template is not self._template:
                self._seen = replace(
                    template,
                    placement=None,
                    grants=(),
                    **self._steps(template),
                    restarts=self.restarts,
                    served=dict(self._served),
                    started=None,
                    expected_finish=None,
                    resuming=0.0,
                    lost_seconds=0.0,
                    waits_since=template.waits_since if self._waits_since is None else self._waits_since,
                )
                self._template = template
            return self._seen
        steps = self._steps(template)
        left = (template.training.steps - steps["steps_done"]) * self.placement.prediction.step_seconds
        told, finish = self._told, now + self.resuming + left
        started: float | None = self._since
        if told and told.expected_finish is not None:
            finish = told.expected_finish
        if told and (told.started is not None or now <= 0):  # whose pods come up at 0 runs from then on
            started = told.started
        return replace(
            template,
            placement=self.placement,
            grants=self.grants,
            started=started,
            expected_finish=finish,
            **steps,
            restarts=self.restarts,
            resuming=self.resuming,
            served=self._served_until(now),
            lost_seconds=told.lost_seconds if told else 0.0,
        )

    def _steps(self, template: Job) -> dict[str, int]:
        """Steps of those that the job states, and beyond, as fields of `Job`."""
        stated, made = template.training.steps, self.model.steps_done()
        return {"steps_done": min(made, stated), "steps_beyond": max(0, made - stated)}

    def record(self, gpu_shares: dict[str, float], now: float) -> JobRecord:
        """The job's line of the result. `gpu_shares` maps every GPU type of the cluster to its number of GPUs."""
        seen, end = self.model.seen(), now if self.finished is None else self.finished
        stay = max(0.0, end - self.model.submitted)
        contention = max(1.0, self.company / stay) if stay > 0 else 1.0
        return JobRecord(
            uid=self.model.uid,
            application=self.model.application,
            submitted=self.model.submitted,
            started=self.started,
            finished=self.finished,
            gpu_seconds=sum(self._served_until(now).values()) - self._before,
            productive_gpu_seconds=self._productive,
            restarts=self.restarts,
            isolated_seconds=_isolated(self.model, gpu_shares, contention),
            queue=seen.queue,
            priority=seen.priority,
            deadline=seen.deadline,
        )

    def _served_until(self, now: float) -> dict[str, float]:
        if self.placement is None:
            return dict(self._served)
        gpu_type, held = self.placement.gpu_type, (now - self._since) * self._gpus
        return self._served | {gpu_type: self._served.get(gpu_type, 0.0) + held}


def since(told: Job, begin: float) -> Job:
    """A running job of a live snapshot with its moments in seconds since `begin`, a POSIX time: what it waits for, and
    a deadline, is left out of this, for it runs."""
    finish, stoppable = told.expected_finish, told.stoppable_from
    return replace(
        told,
        created=told.created - begin,
        started=None if told.started is None else told.started - begin,
        expected_finish=None if finish is None else finish - begin,
        movable_from=told.movable_from - begin,
        stoppable_from=None if stoppable is None else stoppable - begin,
    )


def _isolated(job: SimJob, gpus: dict[str, float], contention: float) -> float:
    """Time alone on 1/N of the cluster: mean over GPU types, weighted by their GPUs (Sia, SOSP 2023, equation 3)."""
    times = {name: _on_share(job.alone(name), count / contention) for name, count in gpus.items()}
    able = {name: seconds for name, seconds in times.items() if seconds < float("inf")}
    weight = sum(gpus[name] for name in able)
    return sum(gpus[name] * seconds for name, seconds in able.items()) / weight if weight else 0.0


def _on_share(alone: Mapping[int, Alone], gpus: float) -> float:
    """Seconds on a share of GPUs; one that is less than the smallest gang is that gang for a part of the time."""
    if not alone or gpus <= 0:
        return float("inf")
    smallest = min(alone)
    within = (each.seconds for count, each in alone.items() if count <= max(gpus, smallest))
    return min(within) / min(1.0, gpus / smallest)
