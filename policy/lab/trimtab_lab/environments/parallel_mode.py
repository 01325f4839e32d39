"""`trimtab/ParallelMode-v0`: how many GPUs, and data, model or hybrid parallelism, while the servers' CPUs are in use.

The environment of seed 000 (Dadizadeh Dargiry 2025, Management Strategies and Engineering Sciences). It gives the
parts (real CPU usage; simulated latency, energy and bandwidth; actions GPU count x {data, model, hybrid}; a reward
that mixes low CPU and memory use, low latency, low energy and high bandwidth) and neither numbers nor formulas: those
are in `parallel_physics`. An LLM is trained on up to 16 GPUs of four hosts. Every five minutes, a reading of the CPU
series, it may be given another configuration; that restarts it, and the time of the restart earns nothing.

Observation, Box (7,) in [0, 1]: CPU that others use (the real series); memory in use; latency and energy of the running
configuration now, as the least possible over its own; share of the network's bandwidth to be had; log2 of its GPUs over
that of the most; its mode over 2. Action, Discrete (counts x 3): `configurations()[action]`. Reward, in [0, 1]: the
weighted mean of the five scores of `parallel_physics.outcome`, times the part of the interval that no restart takes. A
masked action (that no plan exists for) is not started: training stands still for the interval, which earns 0, and the
configuration stays. Episodes are truncated after `steps`: the process itself has no end.

`info`: `action_mask` (int8); `best_action`, the first move of the best possible future (dynamic programming over every
configuration, the rest of the episode and two hours beyond it, all conditions known), against which the seed's
accuracy, precision and F1 are counted; after a step `latency_seconds` and `energy_joules` of one optimizer step. With
equal weights `best_action` is nearly always one of two; by default latency counts more and bandwidth, which acts
through latency already, less. In 100 episodes the mean reward is then 0.674 at best; 0.673 for the best table over the
default cells of `discretise` (value iteration on their estimated transitions; 91 % of its actions are the best); 0.643
for the best fixed configuration (16 GPUs, hybrid; 73 %).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from trimtab_lab.environments import arguments, cpu_usage, parallel_physics
from trimtab_lab.environments.parallel_physics import MODES, OBJECTIVES, Floats, Ints, Physics
from trimtab_policy.observation.features import columns
from trimtab_policy.specs import Mode

Observation = NDArray[np.float32]

WEIGHTS: Mapping[str, float] = {"cpu": 0.2, "memory": 0.2, "latency": 0.3, "energy": 0.2, "bandwidth": 0.1}
FEATURES = ("cpu", "memory", "latency", "energy", "bandwidth", "gpus", "mode")
BINS = (8, 1, 1, 1, 8, 5, 3)
"""For tables: what decides is the CPU, the network, and what is running; the rest follows from these."""

LOOKAHEAD = 24
"""Steps beyond the episode that `best_action` looks at, so that its end does not make restarts useless."""
_PERSISTENCE = 0.95  # of other traffic from one reading to the next: it is as smooth as the CPU series
_STEEPNESS, _EASE = 2.5, 1.0  # bandwidth left by others: 1 / (1 + exp(2.5 z - 1)), 0.7 in the median


class ParallelModeSettings(NamedTuple):
    """An environment's constructor arguments, checked."""

    world: Physics
    weights: Floats
    steps: int
    restart: float
    """Share of an interval."""
    series: tuple[str, ...]


class ParallelModeEpisode(NamedTuple):
    """Everything that happens whatever is done, for h intervals; drawn at reset, so that actions cannot change it."""

    cpu: Floats
    """(h,)"""
    level: Ints
    """(h,)"""
    reward: Floats
    """(h, a) of each configuration, without restart."""
    best: Ints
    """(h, a) best action for each running configuration."""


def settings(
    model: str = "gpt3-1.3b",
    gpu: str = "V100-SXM2-32GB",
    counts: Sequence[int] = (1, 2, 4, 8, 16),
    steps: int = 288,
    restart_seconds: float = 30.0,
    weights: Mapping[str, float] = WEIGHTS,
    series: Sequence[str] | None = None,
) -> ParallelModeSettings:
    """Check arguments: presets of the catalogue, GPU counts, steps an episode (288 are a day), weights, CPU series.

    Raises ValueError that names the argument.
    """
    names = cpu_usage.names() if series is None else tuple(series)
    arguments.known("series", names, cpu_usage.names())
    arguments.known("weights", weights, OBJECTIVES)
    given = np.array([arguments.between(f"weights[{key}]", weights.get(key, 0.0), 0, np.inf) for key in OBJECTIVES])
    arguments.positive("weights, their sum", given.sum())
    if not names or not counts or sorted(set(counts)) != list(counts):
        raise ValueError(f"series and counts must not be empty, counts ascending: got {names!r} and {counts!r}")
    shortest = min(len(cpu_usage.read_cpu_usage(name)) for name in names)
    return ParallelModeSettings(
        world=parallel_physics.physics(model, gpu, tuple(arguments.whole("counts", count, 1) for count in counts)),
        weights=given / given.sum(),
        steps=int(arguments.between("steps", arguments.whole("steps", steps, 1), 1, shortest - LOOKAHEAD - 2)),
        restart=arguments.between("restart_seconds", restart_seconds, 0, cpu_usage.SECONDS) / cpu_usage.SECONDS,
        series=names,
    )


def draw(
    given: ParallelModeSettings, random: np.random.Generator, options: Mapping[str, Any] | None = None
) -> ParallelModeEpisode:
    """A stretch of a series, and other traffic; `options` may fix the `series` and its first reading (`start`)."""
    fixed = options or {}
    arguments.known("options", fixed, ("series", "start"))
    length = given.steps + LOOKAHEAD + 1
    name = given.series[random.integers(len(given.series))]
    readings = cpu_usage.read_cpu_usage(fixed.get("series", name))
    start = int(random.integers(len(readings) - length + 1))
    start = arguments.whole("options['start']", fixed.get("start", start), 0)
    if start + length > len(readings):
        raise ValueError(f"options['start'] must be at most {len(readings) - length}, got {start}")
    cpu = readings[start : start + length]
    level = parallel_physics.level(cpu, _traffic(random, length))
    everything = np.arange(len(given.world.gpus))
    scores = parallel_physics.outcome(given.world, cpu[:, None], level[:, None], everything).scores
    reward: Floats = np.where(given.world.possible, scores @ given.weights, 0.0)
    return ParallelModeEpisode(cpu, level, reward, best_actions(reward, given.world.possible, given.restart))


def _traffic(random: np.random.Generator, length: int) -> Floats:
    """(length,) share of the network's bandwidth that others leave: an autoregressive process through a sigmoid."""
    noise = random.standard_normal(length)
    noise[1:] *= np.sqrt(1 - _PERSISTENCE**2)
    for index in range(1, length):
        noise[index] += _PERSISTENCE * noise[index - 1]
    left: Floats = 1 / (1 + np.exp(_STEEPNESS * noise - _EASE))
    return left


def best_actions(reward: Floats, possible: NDArray[np.bool_], restart: float) -> Ints:
    """(h, a) what to do at each time while a runs, so that the rest of `reward` (h, a) is worth most.

    Staying earns reward[t, a], moving to b reward[t, b] * (1 - restart). Backwards: the best move is the same whatever
    runs, so that a step costs as much as there are actions.
    """
    best = np.empty(reward.shape, dtype=np.int64)
    stay, value = np.arange(reward.shape[1]), np.zeros(reward.shape[1])
    for time in range(len(reward) - 1, -1, -1):
        staying = np.where(possible, reward[time] + value, -np.inf)
        moving = np.where(possible, reward[time] * (1 - restart) + value, -np.inf)
        goal = int(moving.argmax())
        best[time] = np.where(staying >= moving[goal], stay, goal)
        value = np.maximum(staying, moving[goal])
    return best


def observe(given: ParallelModeSettings, cpu: Floats, level: Ints, running: Ints) -> Observation:
    """(n, 7) observations of n environments."""
    world = given.world
    scores = parallel_physics.outcome(world, cpu, level, running).scores
    share = (level + 1) / parallel_physics.LEVELS
    count = np.log2(world.gpus[running]) / max(1.0, float(np.log2(world.gpus.max())))
    features = (cpu, world.memory[running], scores[:, 2], scores[:, 3], share, count, world.mode[running] / 2)
    return columns(*features)


def discretise(observation: Observation, bins: Sequence[int] = BINS) -> Ints:
    """The cells (...) of observations (..., 7) on a grid with so many equal bins a feature: a tabular learner's state.

    There are `states(bins)` of them. One bin leaves a feature out. Raises ValueError for bins that do not fit.
    """
    if len(bins) != observation.shape[-1] or min(bins) < 1:
        raise ValueError(f"bins must be {observation.shape[-1]} numbers of at least 1, got {tuple(bins)}")
    sizes = np.array(bins)
    cells = np.minimum((observation * sizes).astype(np.int64), sizes - 1)
    found: Ints = np.ravel_multi_index(tuple(np.moveaxis(cells, -1, 0)), tuple(bins))
    return found


def states(bins: Sequence[int] = BINS) -> int:
    """Number of cells of `discretise`."""
    return int(np.prod(bins))


def configurations(world: Physics) -> tuple[tuple[int, Mode], ...]:
    """(GPUs, mode) of every action."""
    return tuple((int(count), MODES[mode]) for count, mode in zip(world.gpus, world.mode, strict=True))


class ParallelModeVectorEnv(VectorEnv[Observation, Ints, NDArray[Any]]):
    """n environments at once, all steps a few array operations; resets the finished ones at their next step."""

    def __init__(self, num_envs: int = 1, **given: Any) -> None:
        self.metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}
        self.num_envs = arguments.whole("num_envs", num_envs, 1)
        self.given = settings(**given)
        self.single_observation_space = gym.spaces.Box(0.0, 1.0, (len(FEATURES),), np.float32)
        self.single_action_space = gym.spaces.Discrete(len(self.given.world.gpus))
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._rows = np.arange(num_envs)
        self._randoms: list[np.random.Generator] = []
        self._first = int(self.given.world.possible.argmax())
        length, actions = self.given.steps + LOOKAHEAD + 1, len(self.given.world.gpus)
        self._episodes = ParallelModeEpisode(
            cpu=np.empty((num_envs, length)),
            level=np.empty((num_envs, length), dtype=np.int64),
            reward=np.empty((num_envs, length, actions)),
            best=np.empty((num_envs, length, actions), dtype=np.int64),
        )
        self._time = np.zeros(num_envs, dtype=np.int64)
        self._running = np.full(num_envs, self._first)
        self._done = np.ones(num_envs, dtype=np.bool_)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start all anew; a number seeds environment i with seed + i, a sequence each with its own."""
        if seed is not None or not self._randoms:
            self.use([seeding.np_random(each)[0] for each in self._seeds(seed)])
        self._start(self._rows, options)
        return self._observations(), self._infos()

    def use(self, randoms: list[np.random.Generator]) -> None:
        """Draw everything from these generators, one an environment, instead of from seeds."""
        self._randoms = randoms

    @property
    def finished(self) -> NDArray[np.bool_]:
        """(n,) which environments start a new episode at the next step."""
        return self._done.copy()

    def step(self, actions: Ints) -> tuple[Observation, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """One interval in each; those that were truncated at the last step start a new episode instead, earning 0."""
        if not self._randoms:
            raise ResetNeeded("no episode is running: call reset() before step()")
        starting, rows = self._done.copy(), self._rows
        possible = self.given.world.possible[actions] & ~starting
        earned = self._episodes.reward[rows, self._time, actions] * possible
        earned *= 1 - self.given.restart * (actions != self._running)
        self._running = np.where(possible, actions, self._running)
        used = self._outcome()
        self._time += 1
        if starting.any():
            self._start(np.flatnonzero(starting), None)
        self._done = self._time >= self.given.steps
        infos = self._infos()
        if not starting.all():
            for key, values in (("latency_seconds", used.latency), ("energy_joules", used.energy)):
                infos |= {key: values * ~starting, f"_{key}": ~starting}
        return self._observations(), earned, np.zeros(self.num_envs, dtype=np.bool_), self.finished, infos

    def _start(self, rows: Ints, options: Mapping[str, Any] | None) -> None:
        for row in rows.tolist():
            for whole, part in zip(self._episodes, draw(self.given, self._randoms[row], options), strict=True):
                whole[row] = part
        self._time[rows] = 0
        self._running[rows] = self._first
        self._done[rows] = False

    def _seeds(self, seed: int | Sequence[int | None] | None) -> Sequence[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, Sequence):
            arguments.whole("seed, its length", len(seed), self.num_envs)
            return seed
        return [seed + row for row in self._rows.tolist()]

    def _now(self) -> tuple[Floats, Ints, Ints]:
        episodes, rows, time = self._episodes, self._rows, self._time
        return episodes.cpu[rows, time], episodes.level[rows, time], self._running

    def _outcome(self) -> parallel_physics.ParallelOutcome:
        return parallel_physics.outcome(self.given.world, *self._now())

    def _observations(self) -> Observation:
        return observe(self.given, *self._now())

    def _infos(self) -> dict[str, Any]:
        every = np.ones(self.num_envs, dtype=np.bool_)
        mask = np.tile(self.given.world.possible.astype(np.int8), (self.num_envs, 1))
        best = self._episodes.best[self._rows, self._time, self._running]
        return {"action_mask": mask, "_action_mask": every, "best_action": best, "_best_action": every.copy()}


class ParallelModeEnv(gym.Env[Observation, np.int64]):
    """One environment; takes the arguments of `settings`."""

    def __init__(self, **given: Any) -> None:
        self._batch = ParallelModeVectorEnv(1, **given)
        self.given = self._batch.given
        self.observation_space = self._batch.single_observation_space
        self.action_space = self._batch.single_action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Draw a new stretch of CPU usage and traffic; it starts with the first possible configuration running."""
        super().reset(seed=seed)
        self._batch.use([self.np_random])
        observations, infos = self._batch.reset(options=options)
        return observations[0], _first(infos)

    def step(self, action: np.int64 | int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """One interval of five minutes. Raises ValueError for a number that is no action."""
        if not self.action_space.contains(action):
            raise ValueError(f"action must be in 0..{len(self.given.world.gpus) - 1}, got {action!r}")
        if self._batch.finished[0]:
            raise ResetNeeded("no episode is running: call reset() before step()")
        observations, earned, _, truncated, infos = self._batch.step(np.array([action]))
        return observations[0], float(earned[0]), False, bool(truncated[0]), _first(infos)


def _first(infos: Mapping[str, Any]) -> dict[str, Any]:
    """The info of environment 0: what vector environments add is left out."""
    return {key: value[0] for key, value in infos.items() if not key.startswith("_")}
