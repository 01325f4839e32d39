"""The tasks of the value-decomposition agents: n environments, and what each of their agents sees.

`offers` and `toy`: an agent is a GPU pool, its options are those of the job on offer on this pool (`learned.vdn`).
`adlro`: an agent is one of the four hosts of seed 002, its options are to take one of the window's jobs on one of its
GPUs; it sees its GPUs and the window, not the other hosts.

What is learned from is the objective of the environments, minus the time that jobs are in the system, told at once and
not long after an answer. Of jobs in the system, A(t) that came minus D(t) that are done, an agent can change D only;
discounted by exp(-t / memory), the integral of D is

    memory * sum over jobs of exp(-end / memory) = memory * sum of exp(-start / memory) * exp(-run time / memory)

So a job earns exp(-run time / memory) when it starts, and nothing else earns anything; time counts by the discount. In
`adlro` a GPU is idle for so much less as jobs run, which adds idle_weight * (1 - exp(-run time / memory)). With the
rewards as the environments give them even the toy was learned by chance only: what starting a job changes about them is
a hundredth of what comes and goes meanwhile, and begins as a loss.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from gymnasium.vector import SyncVectorEnv
from msgspec import Struct
from numpy.typing import NDArray

from trimtab_lab.environments.adlro import AdlroEnv
from trimtab_lab.environments.adlro_cluster import GPUS, HOST_GPUS, HOSTS
from trimtab_lab.environments.offers import OffersVectorEnv
from trimtab_lab.environments.toy import toy
from trimtab_policy.learned.vdn import Local, local
from trimtab_policy.observation import encode, features
from trimtab_policy.observation.encode import Bools, Floats, Ints, OfferBatch

Columns = dict[str, NDArray[Any]]

_OPTION_SECONDS = 4
"""Run time among the features of an option, as `encode` scales it."""


class VdnObservation(NamedTuple):
    """The state of n environments."""

    columns: Columns
    """What is to be kept of it: `VdnWorld.local` makes of it what agents see."""
    mask: Bools
    """(n, m + 1) joint actions that are allowed; the last one is that all pass."""


class VdnStep(NamedTuple):
    """What a step led to."""

    seen: VdnObservation
    rewards: Floats
    """(n,) to learn from, as of the module."""
    earned: Floats
    """(n,) by the environment; in `adlro` for each of its jobs."""
    discounts: Floats
    """(n,) what the future counts; 0 where there is none."""
    happened: Bools
    """(n,) False where there is nothing to learn from: an episode has begun instead, or was cut off."""
    over: Bools
    """(n,) whether the episode has ended; the next step begins another."""


class VdnWorld(Protocol):
    """n environments."""

    schema: str

    def reset(self, seed: int) -> VdnObservation:
        """Begin anew; everything that is random follows from the seed."""
        ...

    def step(self, actions: Ints) -> VdnStep:
        """One joint action (n,) in each."""
        ...

    def local(self, columns: Columns) -> Local:
        """What the agents see of states that were kept."""
        ...


class VdnCluster(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`environment` of the tasks `offers` and `toy`, parameters as of `OffersVectorEnv`; None: its default."""

    cluster: str | None = None
    jobs: int | None = None
    load: float | tuple[float, float] | None = None
    slots: int | None = None
    largest_gang: int | None = None
    estimate_sigma: float | None = None
    deadline_share: float | None = None
    memory_seconds: float | None = None

    def given(self) -> dict[str, Any]:
        """Those that were given."""
        named = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: value for name, value in named.items() if value is not None}


class Hosts(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`environment` of the task `adlro`, parameters as of `AdlroEnv`."""

    jobs: int = 100
    window: int = 8
    idle_weight: float = 0.5
    memory_seconds: float = 60.0
    """How far ahead actions are judged: exp(-seconds / memory_seconds) is what a step discounts the future by."""

    def __post_init__(self) -> None:
        """Raise ValueError naming the field."""
        if not 0 < self.memory_seconds < math.inf:
            raise ValueError(f"memory_seconds must be a finite number above 0, got {self.memory_seconds}")


class OffersVdnWorld:
    """Clusters whose pools bid for the job on offer."""

    schema = encode.SCHEMA

    def __init__(self, environment: OffersVectorEnv) -> None:
        self._environment = environment
        self._over: Bools = np.zeros(environment.num_envs, dtype=np.bool_)

    def reset(self, seed: int) -> VdnObservation:
        """As of `VdnWorld`."""
        self._environment.reset(seed=seed)
        self._over[:] = False
        return self._seen()

    def step(self, actions: Ints) -> VdnStep:
        """As of `VdnWorld`."""
        begun, offers = self._over, self._environment.offers
        starts = _starts(actions, offers.mask, begun)
        here = features.seconds(offers.options[starts, actions[starts], _OPTION_SECONDS])
        rewards = np.zeros(len(actions))
        rewards[starts] = np.exp(-here / self._environment.memory_seconds)
        _, earned, terminated, truncated, info = self._environment.step(actions)
        self._over = terminated | truncated
        discounts = np.where(terminated, 0.0, info["discount"])
        return VdnStep(self._seen(), rewards, earned, discounts, ~begun & ~truncated, self._over)

    def local(self, columns: Columns) -> Local:
        """As of `VdnWorld`."""
        return local(OfferBatch(**columns))

    def _seen(self) -> VdnObservation:
        offers = self._environment.offers
        return VdnObservation(offers._asdict(), offers.mask)


class AdlroWorld:
    """Clusters of seed 002, whose hosts bid for the jobs of the window."""

    schema = "adlro/1"

    def __init__(self, given: Hosts, number: int) -> None:
        """Raise ValueError naming the parameter."""
        self._given = given
        self._each = [AdlroEnv(given.jobs, given.window, given.idle_weight) for _ in range(number)]
        self._environment = SyncVectorEnv([partial(_itself, one) for one in self._each])
        self._over: Bools = np.zeros(number, dtype=np.bool_)
        self._time: Floats = np.zeros(number)
        self.metrics: dict[int, dict[str, float]] = {}
        """Of the first episode of each environment since the last reset, once it has ended."""

    def reset(self, seed: int) -> VdnObservation:
        """As of `VdnWorld`."""
        observation, info = self._environment.reset(seed=seed)
        self._over[:] = False
        self._time, self.metrics = info["time"].copy(), {}
        return self._seen(observation, info)

    def step(self, actions: Ints) -> VdnStep:
        """As of `VdnWorld`."""
        begun, given = self._over, self._given
        starts = _starts(actions, self._allowed, begun)
        rewards = np.zeros(len(actions))
        for row in starts:
            run = math.exp(-_run_seconds(self._each[row], int(actions[row])) / given.memory_seconds)
            rewards[row] = given.idle_weight * (1 - run) + run
        observation, earned, terminated, truncated, info = self._environment.step(actions)
        self._over = terminated | truncated
        for row in np.flatnonzero(self._over):
            self.metrics.setdefault(int(row), self._each[row].metrics())
        seconds, self._time = info["time"] - self._time, info["time"].copy()
        discounts = np.where(terminated, 0.0, np.exp(-seconds / given.memory_seconds))
        seen = self._seen(observation, info)
        return VdnStep(seen, rewards, earned / given.jobs, discounts, ~begun & ~truncated, self._over)

    def local(self, columns: Columns) -> Local:
        """(n, 4, 33 + window x 8) the host's four GPUs, the length of the queue and the window; (n, window x 16, 16)
        job and GPU."""
        gpus, jobs, queue = columns["gpus"], columns["jobs"], columns["queue"]
        n, window, row = jobs.shape
        by_gpu = np.moveaxis(gpus, 1, -1)
        hosts = by_gpu.reshape(n, len(HOSTS), -1)
        common = np.concatenate([queue, jobs.reshape(n, -1)], axis=1)[:, None, :]
        agents = np.concatenate([hosts, np.broadcast_to(common, (n, len(HOSTS), common.shape[2]))], axis=2)
        pairs = (n, window, GPUS)
        job = np.broadcast_to(jobs[:, :, None, :], (*pairs, row))
        gpu = np.broadcast_to(by_gpu.reshape(n, 1, GPUS, -1), (*pairs, by_gpu.shape[-1]))
        options = np.concatenate([job, gpu], axis=3).reshape(n, window * GPUS, -1)
        owner = np.tile(np.arange(GPUS) // HOST_GPUS, (n, window))
        return Local(agents, options, owner)

    def _seen(self, observation: dict[str, NDArray[np.float32]], info: dict[str, Any]) -> VdnObservation:
        self._allowed: Bools = np.stack(list(info["action_mask"])).astype(np.bool_)
        return VdnObservation({name: values.copy() for name, values in observation.items()}, self._allowed)


def clusters(given: VdnCluster, number: int) -> OffersVdnWorld:
    """The task `offers`. Raises ValueError naming the parameter."""
    return OffersVdnWorld(OffersVectorEnv(number, **given.given()))


def toys(given: VdnCluster, number: int) -> OffersVdnWorld:
    """The task `toy`. Raises ValueError naming the parameter."""
    return OffersVdnWorld(toy(number, **given.given()))


def _starts(actions: Ints, mask: Bools, begun: Bools) -> Ints:
    """(starts,) environments in which a job is started."""
    rows = np.arange(len(actions))
    found: Ints = np.flatnonzero(~begun & (actions < mask.shape[1] - 1) & mask[rows, actions])
    return found


def _itself(environment: AdlroEnv) -> AdlroEnv:
    """For vectors, which make their environments."""
    return environment


def _run_seconds(environment: AdlroEnv, action: int) -> float:
    """How long the job of an action will run where it is placed."""
    slot, gpu = divmod(action, GPUS)
    job, jobs = environment.waiting[slot], environment.jobs
    return float(jobs.work[job] / environment.hardware.speed[jobs.kind[job], gpu])
