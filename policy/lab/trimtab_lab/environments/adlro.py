"""`trimtab/ADLRO-v0`: which waiting job goes to which of 16 GPUs of three makes.

The environment of seed 002 (ADLRO, Freederia Research Archive, sections 3 to 5); `adlro_cluster` has its hardware and
workload, and what the paper leaves open there. A job takes one GPU, and cores and memory of its host, until it is done;
nothing is preempted. Time passes only when the agent waits, or where no waiting job fits anywhere.

Observation (Dict): `gpus` (8, 4, 4) in [0, 1], a row of the grid a host: utilisation, temperature (of 100 °C), part of
the memory bandwidth in use, one-hot make, and memory, interconnect bandwidth as shares of the largest: the matrix of
the CNN, with the metrics of section 3.1; `queue` (1,): q / (q + 16) for q waiting jobs; `jobs` (window, 8): the oldest
waiting jobs, a row each: 1 if there is one, priority, one-hot kind, cores and memory of those of a host, GPU memory of
that of the largest GPU. `window=1` is the state of section 4. How long jobs will run is not told.

Action, Discrete (window x 16 + 1): job a // 16 of the window to GPU a % 16; the last one waits for the next arrival or
completion. A masked action waits as well, and at most for a second where there is nothing to wait for.

Reward: the episode's is exactly R = -(sum of job completion times + idle_weight * idle GPU time), in seconds; a step
earns what became certain in it, -(jobs in the system + idle_weight * idle GPUs) * seconds. With idle_weight < 1 it
never pays to keep a GPU busy for longer. All jobs are drawn at reset: policies that share a seed meet the same ones.

`info`: `action_mask` (int8), `time` (seconds); at the end `metrics`, of which the paper's table has the first three.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from trimtab_lab.environments import adlro_cluster as cluster
from trimtab_lab.environments import arguments
from trimtab_lab.environments.adlro_cluster import GPUS, KINDS, MAKES, AdlroJobs, Floats
from trimtab_policy.observation.features import Crowd

Observation = dict[str, NDArray[np.float32]]
Mask = NDArray[np.int8]

AFFINITY = (0, 1, 2)
"""Make that each kind is tied to by `static_affinity`: simulation Volta, learning Turing, data processing Radeon."""

_PATIENCE = 1.0  # seconds, of a masked action when there is nothing to wait for
_STEPS_PER_JOB = 20  # after which an agent that does not place its jobs is cut off
_AMBIENT, _HEATING, _THERMAL_SECONDS = 0.30, 0.50, 30.0
"""A GPU goes from 30 °C when idle towards 80 °C at full utilisation, with this time constant."""
_QUEUE = Crowd(GPUS)
_FEATURES = 2 + len(KINDS) + 3


class AdlroEnv(gym.Env[Observation, np.int64]):
    """See the module. `jobs` an episode, `window` of jobs to choose from, lambda of the paper, and the workload.

    Raises ValueError that names the argument.
    """

    def __init__(
        self,
        jobs: int = 100,
        window: int = 8,
        idle_weight: float = 0.5,
        arrivals_per_second: float = cluster.ARRIVALS_PER_SECOND,
        mean_work: float = cluster.MEAN_WORK,
    ) -> None:
        self.count = arguments.whole("jobs", jobs, 1)
        self.window = arguments.whole("window", window, 1)
        self.idle_weight = arguments.between("idle_weight", idle_weight, np.nextafter(0, 1), np.nextafter(1, 0))
        self.arrivals_per_second = arguments.positive("arrivals_per_second", arrivals_per_second)
        self.mean_work = arguments.positive("mean_work", mean_work)
        self.hardware = cluster.hardware()
        grid = (5 + len(MAKES), len(cluster.HOSTS), cluster.HOST_GPUS)
        self.observation_space: gym.Space[Any] = gym.spaces.Dict(
            {
                "gpus": gym.spaces.Box(0.0, 1.0, grid, np.float32),
                "queue": gym.spaces.Box(0.0, 1.0, (1,), np.float32),
                "jobs": gym.spaces.Box(0.0, 1.0, (self.window, _FEATURES), np.float32),
            }
        )
        self.action_space = gym.spaces.Discrete(self.window * GPUS + 1)
        self._static = _static_channels()
        self._over = True

    @property
    def wait(self) -> int:
        """The action that places nothing."""
        return self.window * GPUS

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Draw the jobs of an episode and go to the first decision, which costs nothing: no option is known."""
        super().reset(seed=seed)
        arguments.known("options", options or {}, ())
        self._start(cluster.draw(self.np_random, self.count, self.arrivals_per_second, self.mean_work))
        self._to_decision()
        return self._observation(), self._info()

    def step(self, action: np.int64 | int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Place a job or wait, then go to the next decision. Raises ValueError for a number that is no action."""
        if self._over:
            raise ResetNeeded("no episode is running: call reset() before step()")
        if not self.action_space.contains(action):
            raise ValueError(f"action must be in 0..{self.wait}, got {action!r}")
        before = self._cost
        self._steps += 1
        if action != self.wait and self._mask[action]:
            self._place(*divmod(int(action), GPUS))
        else:
            event = self._next_event()
            self._advance(event if np.isfinite(event) else self._now + _PATIENCE)
        self._to_decision()
        terminated = len(self.waiting) + self._running + self._coming == 0
        truncated = not terminated and self._steps >= _STEPS_PER_JOB * self.count
        self._over = terminated or truncated
        info = self._info() | ({"metrics": self.metrics()} if self._over else {})
        return self._observation(), before - self._cost, terminated, truncated, info

    def metrics(self) -> dict[str, float]:
        """Of the episode so far, over the jobs that are done."""
        done = self.finished[np.isfinite(self.finished)]
        spans = (self.finished - self.jobs.arrival)[np.isfinite(self.finished)]
        return {
            "avg_jct_s": float(spans.mean()) if len(spans) else float("inf"),
            "jobs_per_hour": 3600 * len(done) / self._now,
            "gpu_utilisation": 1 - self._idle_seconds / (GPUS * self._now),
            "idle_gpu_s": self._idle_seconds,
            "sum_jct_s": float(spans.sum()),
            "makespan_s": self._now,
        }

    def _start(self, jobs: AdlroJobs) -> None:
        self.jobs = jobs
        self._now = self._cost = self._idle_seconds = 0.0
        self._arrived = self._steps = 0
        self.waiting: list[int] = []
        self.finished = np.full(self.count, np.inf)
        self._job = np.full(GPUS, -1)
        self._end = np.full(GPUS, np.inf)
        self._cores = np.full(len(cluster.HOSTS), float(cluster.HOST_CORES))
        self._memory = np.full(len(cluster.HOSTS), cluster.HOST_MEMORY)
        self._temperature = np.full(GPUS, _AMBIENT)
        self._over = False

    @property
    def _running(self) -> int:
        return int((self._job >= 0).sum())

    @property
    def _coming(self) -> int:
        return self.count - self._arrived

    def _next_event(self) -> float:
        """Time of the next arrival or completion; infinite when there is none."""
        arrival = self.jobs.arrival[self._arrived] if self._coming else np.inf
        return float(min(arrival, self._end.min()))

    def _to_decision(self) -> None:
        """Let time pass until a waiting job fits somewhere, or nothing happens any more."""
        self._mask = self._masked()
        while not self._mask[:-1].any() and np.isfinite(event := self._next_event()):
            self._advance(event)
            self._mask = self._masked()

    def _advance(self, until: float) -> None:
        seconds, idle = until - self._now, GPUS - self._running
        in_system = len(self.waiting) + GPUS - idle
        self._cost += seconds * (in_system + self.idle_weight * idle)
        self._idle_seconds += seconds * idle
        towards = _AMBIENT + _HEATING * self._utilisation()
        self._temperature = towards + (self._temperature - towards) * np.exp(-seconds / _THERMAL_SECONDS)
        self._now = until
        for gpu in np.flatnonzero(self._end <= until):
            self._finish(gpu)
        while self._coming and self.jobs.arrival[self._arrived] <= until:
            self.waiting.append(self._arrived)
            self._arrived += 1

    def _place(self, slot: int, gpu: int) -> None:
        job, host = self.waiting.pop(slot), self.hardware.host[gpu]
        self._job[gpu] = job
        self._end[gpu] = self._now + self.jobs.work[job] / self.hardware.speed[self.jobs.kind[job], gpu]
        self._cores[host] -= self.jobs.cores[job]
        self._memory[host] -= self.jobs.memory[job]

    def _finish(self, gpu: np.int64) -> None:
        job, host = self._job[gpu], self.hardware.host[gpu]
        self.finished[job] = self._end[gpu]
        self._cores[host] += self.jobs.cores[job]
        self._memory[host] += self.jobs.memory[job]
        self._job[gpu], self._end[gpu] = -1, np.inf

    def _masked(self) -> Mask:
        """Which actions are allowed; waiting is, while there is something to wait for."""
        window, host = self.waiting[: self.window], self.hardware.host
        jobs = self.jobs
        mask = np.zeros((self.window, GPUS), dtype=np.int8)
        mask[: len(window)] = (
            (self._job < 0)
            & (jobs.gpu_memory[window, None] <= self.hardware.memory)
            & (jobs.cores[window, None] <= self._cores[host])
            & (jobs.memory[window, None] <= self._memory[host] + 1e-9)
        )
        return np.append(mask, np.int8(np.isfinite(self._next_event())))

    def _utilisation(self) -> Floats:
        """(16,)"""
        return np.where(self._job >= 0, self.jobs.intensity[self._job], 0.0)

    def _observation(self) -> Observation:
        window, jobs = self.waiting[: self.window], self.jobs
        used = self._utilisation()
        bound = self.hardware.bound[jobs.kind[self._job], np.arange(GPUS)]
        gpus = np.concatenate([[used, self._temperature, used * bound], self._static])
        rows = np.zeros((self.window, _FEATURES), dtype=np.float32)
        rows[: len(window), 0] = 1
        rows[: len(window), 1] = jobs.priority[window]
        rows[range(len(window)), 2 + jobs.kind[window]] = 1
        rows[: len(window), -3] = jobs.cores[window] / cluster.HOST_CORES
        rows[: len(window), -2] = jobs.memory[window] / cluster.HOST_MEMORY
        rows[: len(window), -1] = jobs.gpu_memory[window] / self.hardware.memory.max()
        return {
            "gpus": gpus.astype(np.float32).reshape(-1, len(cluster.HOSTS), cluster.HOST_GPUS),
            "queue": np.array([_QUEUE(len(self.waiting))], dtype=np.float32),
            "jobs": rows,
        }

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self._mask.copy(), "time": self._now}


def fcfs(mask: Mask, random: np.random.Generator) -> int:
    """The paper's first baseline, "independent of resources": the oldest job to any GPU that takes it, else wait."""
    allowed = np.flatnonzero(mask[:GPUS])
    return int(random.choice(allowed)) if len(allowed) else len(mask) - 1


def static_affinity(observation: Observation, mask: Mask) -> int:
    """The paper's second baseline: every kind waits, first come first served, for the make that it is tied to."""
    pairs, makes = mask[:-1].reshape(-1, GPUS), cluster.hardware().make
    kinds = observation["jobs"][:, 2 : 2 + len(KINDS)]
    for kind in range(len(KINDS)):
        slots = np.flatnonzero(kinds[:, kind])
        gpus = np.flatnonzero(pairs[slots[0]] * (makes == AFFINITY[kind])) if len(slots) else slots
        if len(gpus):
            return int(slots[0] * GPUS + gpus[0])
    return len(mask) - 1


def fastest_first(observation: Observation, mask: Mask) -> int:
    """A stronger baseline than the paper's: the oldest job to the fastest GPU for its kind that takes it."""
    kind = int(observation["jobs"][0, 2 : 2 + len(KINDS)].argmax())
    speeds = cluster.hardware().speed[kind] * mask[:GPUS]
    return int(speeds.argmax()) if speeds.any() else len(mask) - 1


def _static_channels() -> Floats:
    """(5, 16) what does not change: one-hot make, memory and interconnect as shares of the largest."""
    hardware = cluster.hardware()
    makes = [hardware.make == make for make in range(len(MAKES))]
    return np.stack([*makes, hardware.memory / hardware.memory.max(), hardware.link / hardware.link.max()])
