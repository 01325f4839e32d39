"""`trimtab/RLAlloc-v0`: how much GPU memory, how many cores and how much memory each GPT training job gets.

The environment of seed 001 (RLAlloc4LM), whose own was never published: re-created from its README (the YAML keys are
arguments), from its experts (which read ten steps each of GPU, CPU and memory use out of a state of `time_horizon` = 39
numbers) and from DeepRM (Mao et al., HotNets 2016), which it builds on. One machine is shared; `rlalloc_jobs` says what
jobs make of it. Waiting jobs are offered one at a time, in turn, and only those that what is free suffices for. The
action grants the offered job shares of the machine until it is done, or leaves it waiting. When all have been refused,
time goes on to the next arrival or completion.

State, Box (time_horizon,) in [0, 1]: use of GPU memory, of cores and of memory, (time_horizon - 9) / 3 samples each,
ten seconds apart, the newest of them now; then nine scalars: waiting jobs n as n / (n + 10); running ones likewise; of
the offered job the shares of GPU memory, cores and memory beyond which it gets no faster; its seconds alone, as a
logarithm over that of a day; time w that it has waited as w / (w + those seconds); its rank among those waiting by
length (0 shortest, 1 longest) and by age (0 oldest).

Action, Box (3,) in [0, 1]: shares of the machine's GPU memory, cores and memory. More than is free is cut to that; less
than the job runs with leaves it waiting, as zeros do. Nothing is ever over-allocated.

Reward: `reward(env)`, by default DeepRM's: minus the sum over jobs in the system of seconds / seconds alone, so that
the episode's is exactly minus the sum of slowdowns. `info`: `action_mask` (int8: may it be left waiting, may it be
granted; the first is 0 where nothing else will ever happen: time then passes in ten-second steps), `action_low` and
`action_high` (3,) shares that it runs with and that are free, `granted`, `time`; at the end `metrics`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from trimtab_lab.environments import arguments
from trimtab_lab.environments.rlalloc_jobs import (
    SLACK,
    Floats,
    GrantedSpeed,
    RlallocJobs,
    RlallocProfile,
    SharedMachine,
    check,
    draw,
    predicted,
    speed,
)
from trimtab_policy.observation.features import DAY, Crowd, LogScale, cut

State = NDArray[np.float32]
Measure: TypeAlias = "Callable[[RLAllocEnv], float]"

SCALARS = 9
WISH = slice(2, 5)
DURATION_RANK, AGE_RANK = 7, 8
"""Places among the scalars."""

_SAMPLE_SECONDS = 10.0
_MANY = Crowd(10)


def minus_slowdown(env: RLAllocEnv) -> float:
    """DeepRM's reward: each job in the system costs the time that passed over the time that it takes alone."""
    return -env.delay


class RLAllocEnv(gym.Env[State, NDArray[np.float32]]):
    """See the module. The first five arguments are the seed's `environment:` keys, in bytes, cores, numbers and steps.

    `jobs` arrive an episode, at a rate that would keep the machine busy for `load` of the time if they ran one by one;
    `profiles` say what they are; `metrics` are added to those at the end. Raises ValueError that names the argument.
    """

    def __init__(
        self,
        max_gpu_memory: int = 42949672960,
        max_cpu_memory: int = 274877906944,
        max_cpu_cores: int = 32,
        time_horizon: int = 39,
        max_steps: int = 1000,
        jobs: int = 60,
        load: float = 0.8,
        profiles: Sequence[RlallocProfile] | None = None,
        reward: Measure = minus_slowdown,
        metrics: Mapping[str, Measure] | None = None,
    ) -> None:
        self.machine = SharedMachine(
            arguments.whole("max_gpu_memory", max_gpu_memory, 1),
            arguments.whole("max_cpu_cores", max_cpu_cores, 1),
            arguments.whole("max_cpu_memory", max_cpu_memory, 1),
        )
        if arguments.whole("time_horizon", time_horizon, SCALARS + 3) % 3:
            raise ValueError(f"time_horizon must be {SCALARS} more than a multiple of 3, got {time_horizon}")
        self.max_steps = arguments.whole("max_steps", max_steps, 1)
        self.count = arguments.whole("jobs", jobs, 1)
        self.load = arguments.positive("load", load)
        self.profiles = check(predicted(max_gpu_memory) if profiles is None else profiles, self.machine)
        self._reward, self._metrics = reward, dict(metrics or {})
        self._samples = (time_horizon - SCALARS) // 3
        self.observation_space = gym.spaces.Box(0.0, 1.0, (time_horizon,), np.float32)
        self.action_space = gym.spaces.Box(0.0, 1.0, (3,), np.float32)
        self._over = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[State, dict[str, Any]]:
        """Draw the jobs of an episode; the first one is offered. No option is known."""
        super().reset(seed=seed)
        arguments.known("options", options or {}, ())
        self._start(draw(self.np_random, self.count, self.load, self.profiles, self.machine))
        self._to_offer()
        return self._state(), self._info(granted=False)

    def step(self, action: NDArray[np.float32]) -> tuple[State, float, bool, bool, dict[str, Any]]:
        """Grant the offered job these shares, or leave it waiting. Raises ValueError for what is no action."""
        if self._over:
            raise ResetNeeded("no episode is running: call reset() before step()")
        shares = np.asarray(action, dtype=np.float64)
        if shares.shape != (3,) or not ((shares >= 0) & (shares <= 1)).all():
            raise ValueError(f"action must be three shares in 0..1, got {action!r}")
        self.elapsed = self.delay = 0.0
        self._steps += 1
        granted = self._grant(self._offered, shares)
        if not granted:
            self._refused.add(self._offered)
        self._to_offer()
        terminated = self._offered < 0
        truncated = not terminated and self._steps >= self.max_steps
        self._over = terminated or truncated
        info = self._info(granted) | ({"metrics": self.metrics()} if self._over else {})
        return self._state(), self._calculate_reward(), terminated, truncated, info

    def _calculate_reward(self) -> float:
        """What the last step earned; the name is that of the seed's README, for those who subclass instead."""
        return float(self._reward(self))

    def metrics(self) -> dict[str, float]:
        """Of the episode so far, over the jobs that are done; and the user's own."""
        done = np.isfinite(self.finished)
        spans = (self.finished - self.jobs.arrival)[done]
        nothing = float("inf")
        found = {
            "avg_jct_s": float(spans.mean()) if done.any() else nothing,
            "avg_slowdown": float((spans / self.jobs.ideal[done]).mean()) if done.any() else nothing,
            "sum_slowdown": float((spans / self.jobs.ideal[done]).sum()),
            "done": float(done.sum()),
            "gpu_utilisation": self._busy_seconds / self.now if self.now else 0.0,
            "makespan_s": self.now,
        }
        return found | {name: float(measure(self)) for name, measure in self._metrics.items()}

    @property
    def used(self) -> Floats:
        """(3,) shares of GPU memory, cores and memory that are granted."""
        return self._held / self.machine.whole

    def _start(self, jobs: RlallocJobs) -> None:
        self.jobs = jobs
        self.now = self.elapsed = self.delay = self._busy_seconds = 0.0
        self.finished = np.full(self.count, np.inf)
        self.waiting: list[int] = []
        self.running: dict[int, GrantedSpeed] = {}
        self.grants = np.zeros((self.count, 3))
        self._held = np.zeros(3)
        self._left = jobs.tokens.copy()
        self._past = np.zeros((3, self._samples - 1))
        self._refused: set[int] = set()
        self._arrived = self._steps = 0
        self._offered = -1
        self._over = False
        self._arrive()

    def _grant(self, job: int, shares: Floats) -> bool:
        """Start the job with these shares, as far as they are free, unless it cannot run with that."""
        grant = np.minimum(shares * self.machine.whole, self.machine.whole - self._held)
        least = self.jobs.least[job]
        if (grant < least * (1 - SLACK)).any():
            return False
        self.grants[job] = np.maximum(grant, least)
        self._held = self._held + self.grants[job]
        self.waiting.remove(job)
        self.running[job] = speed(self.profiles[self.jobs.profile[job]], self.jobs.dataset[job], self.grants[job])
        self._refused.clear()
        return True

    def _to_offer(self) -> None:
        """Let time pass until there is a job to offer, or all are done (then none is)."""
        while (job := self._next_offer()) is None and np.isfinite(event := self._next_event()):
            self._advance(event)
        if job is None and self.waiting:
            self._advance(self.now + _SAMPLE_SECONDS)
            job = self._next_offer()
        self._offered = -1 if job is None else job

    def _next_offer(self) -> int | None:
        """The next job in turn that has not been refused since anything changed, and that could run now."""
        room = self.machine.whole - self._held
        turn = [job for job in self.waiting if job > self._offered] + self.waiting
        return next((job for job in turn if job not in self._refused and (self.jobs.least[job] <= room).all()), None)

    def _ends(self) -> dict[int, float]:
        """When each running job is done if nothing changes."""
        slowdown = max(1.0, self._demand)
        return {job: self.now + self._left[job] * slowdown / rate.alone for job, rate in self.running.items()}

    @property
    def _demand(self) -> float:
        return sum(rate.demand for rate in self.running.values())

    def _next_event(self) -> float:
        """Time of the next arrival or completion; infinite when there is none."""
        arrival = float(self.jobs.arrival[self._arrived]) if self._arrived < self.count else np.inf
        return min(arrival, *self._ends().values(), np.inf)

    def _advance(self, until: float) -> None:
        """Compute until then, which is not beyond the next event."""
        seconds, slowdown, ends = until - self.now, max(1.0, self._demand), self._ends()
        self.elapsed += seconds
        self.delay += seconds * sum(1 / self.jobs.ideal[job] for job in [*self.waiting, *self.running])
        self._busy_seconds += seconds * min(1.0, self._demand)
        passed = int(until // _SAMPLE_SECONDS) - int(self.now // _SAMPLE_SECONDS)
        fresh = np.repeat(self.used[:, None], min(passed, self._samples - 1), axis=1)
        self._past = np.concatenate([self._past, fresh], axis=1)[:, fresh.shape[1] :]
        for job, rate in self.running.items():
            self._left[job] -= rate.alone / slowdown * seconds
        self.now = until
        for job in [job for job, end in ends.items() if end <= until]:
            self._finish(job)
        self._arrive()
        self._refused.clear()

    def _arrive(self) -> None:
        while self._arrived < self.count and self.jobs.arrival[self._arrived] <= self.now:
            self.waiting.append(self._arrived)
            self._arrived += 1

    def _finish(self, job: int) -> None:
        self.finished[job] = self.now
        del self.running[job]
        self._held = self.grants[list(self.running)].sum(axis=0)

    def _state(self) -> State:
        histories = np.concatenate([self._past, self.used[:, None]], axis=1)
        return cut(np.concatenate([histories.ravel(), self._scalars()]))

    def _scalars(self) -> Floats:
        """(9,), of which all but the first two are 0 when no job is offered."""
        counts = [_MANY(len(self.waiting)), _MANY(len(self.running))]
        job, others = self._offered, max(1, len(self.waiting) - 1)
        if job < 0:
            return np.array(counts + [0.0] * (SCALARS - 2))
        ideal, waited = self.jobs.ideal[job], self.now - self.jobs.arrival[job]
        shorter = int((self.jobs.ideal[self.waiting] < ideal).sum())
        wish = self.jobs.wish[job] / self.machine.whole
        ranks = [shorter / others, self.waiting.index(job) / others]
        return np.array([*counts, *wish, LogScale(DAY)(ideal), waited / (waited + ideal), *ranks])

    def _info(self, granted: bool) -> dict[str, Any]:
        offered, whole = self._offered >= 0, self.machine.whole
        later = bool(self.running) or self._arrived < self.count
        least = self.jobs.least[self._offered] / whole if offered else np.zeros(3)
        return {
            "action_mask": np.array([later, offered], dtype=np.int8),
            "action_low": least,
            "action_high": 1 - self.used,
            "granted": granted,
            "time": self.now,
        }
