"""What `sac_imitation` can be trained on: environments with continuous shares as actions, and experts for them.

`rlalloc` is the seed's own world; most of its decisions take no time, so its `info["steps"]` says how many times ten
seconds each took, and waiting is not made to look cheap by refusing many jobs in between. `offers` is a cluster
(`sim.envs.offers`) whose offers are flattened and whose options are chosen by shares as in the controller
(`learned.sac_imitation`); `toy` is the smallest such cluster.

Costs of waiting make bad rewards: values start at 0 and fall for whatever is tried, so that what was never tried looks
best. With D(t) jobs done of A(t) that came, the number in the system is A - D, and nothing that is done changes A.
Discounted by exp(-t / memory), minus the mean of A - D is, but for that constant, the sum of exp(-end / memory) over
jobs, i.e. of exp(-start / memory) exp(-run time / memory). So in `offers` the same objective is earned by starting a
job, by the run time of what it is given; validation goes by the environment's own rewards. In `rlalloc` jobs slow each
other down, and rewards are the user's: they stay as they are.

Experts are objects with the interface of the seed's README, `get_demonstration(state) -> action`, by their name in
`rlalloc_experts.EXPERTS` or OFFER_EXPERTS, or as `module:Class`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from msgspec import Struct, structs
from numpy.typing import NDArray

from trimtab_lab.environments.offers import OffersVectorEnv
from trimtab_lab.environments.rlalloc import RLAllocEnv
from trimtab_lab.environments.rlalloc_experts import EXPERTS, Expert
from trimtab_lab.environments.toy import toy
from trimtab_policy.learned.sac_imitation import ACTIONS, AGE_RANK, DURATION_RANK, FEATURES, granted, state
from trimtab_policy.observation import features
from trimtab_policy.observation.encode import SCHEMA, Single

Info = dict[str, Any]
Vector = VectorEnv[Any, Any, Any]
VALIDATION_SEED = 1 << 32
"""Those of training are below 2^31 plus the number of environments."""
CLOCK_SECONDS = 10.0
"""A step of `rlalloc`, of which its histories hold one sample each."""
RUN_TIME = 4
"""Place among the features of an option."""
_WORST = 1e6


class SacEnvironment(Struct, frozen=True, forbid_unknown_fields=True):
    """The section `environment:`; what is left out is as the environment has it, which checks the rest."""

    max_gpu_memory: int | None = None
    """Bytes; this and the next four are the keys of the seed's README."""
    max_cpu_memory: int | None = None
    max_cpu_cores: int | None = None
    time_horizon: int | None = None
    max_steps: int | None = None
    jobs: int | None = None
    load: float | tuple[float, float] | None = None
    reward: str | None = None
    """`module:function`, as of `RLAllocEnv`."""
    metrics: dict[str, str] | None = None
    """`module:function` by the name that each is reported under."""
    cluster: str | None = None
    """Of `offers`, like all that follows."""
    slots: int | None = None
    largest_gang: int | None = None
    estimate_sigma: float | None = None
    deadline_share: float | None = None
    memory_seconds: float | None = None


class SacTask(NamedTuple):
    """A kind of environment, and what there is to know about it."""

    schema: str
    keys: frozenset[str]
    """Those of `SacEnvironment` that it knows."""
    make: Callable[[int, Mapping[str, Any], bool], Vector]
    """So many environments with these arguments, to learn from (True) or to be judged in."""
    experts: Mapping[str, Expert]
    instant: bool
    """Whether most decisions take no time, i.e. steps are worth no entropy of their own."""
    score: Callable[[NDArray[np.float64], Sequence[Info]], dict[str, float]]
    """Figures from the returns of episodes (n,) and the infos at their ends; in `score` higher is better."""


class SharesVectorEnv(VectorEnv[Single, Single, Any]):
    """Clusters whose jobs are granted shares; see `learned.sac_imitation`.

    Observation (n, FEATURES), action (n, 3) in [0, 1]; `info` as of `OffersVectorEnv`, and rewards, too, unless starts
    are rewarded: by exp(-run time / memory).
    """

    def __init__(self, env: OffersVectorEnv, *, starts: bool) -> None:
        self.metadata = env.metadata
        self._env, self.num_envs, self._starts = env, env.num_envs, starts
        self.single_observation_space = gym.spaces.Box(0.0, 1.0, (FEATURES,), np.float32)
        self.single_action_space = gym.spaces.Box(0.0, 1.0, (ACTIONS,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Single, Info]:
        """Begin an episode in every cluster."""
        _, info = self._env.reset(seed=seed, options=options)
        return state(self._env.offers), info

    def step(self, actions: Single) -> tuple[Single, NDArray[Any], NDArray[Any], NDArray[Any], Info]:
        """Grant the offered jobs these shares."""
        offers = self._env.offers
        answers = granted(offers, actions)
        _, rewards, terminated, truncated, info = self._env.step(answers)
        if self._starts:
            started = answers < offers.wait
            times = offers.options[np.arange(self.num_envs), np.where(started, answers, 0), RUN_TIME]
            rewards = np.where(started, np.exp(-features.seconds(times) / self._env.memory_seconds), 0.0)
        return state(self._env.offers), rewards, terminated, truncated, info


class Guided(gym.Wrapper[Single, Single, Single, Single]):
    """`rlalloc` with its mask and its clock.

    Where nothing else will ever happen (`action_mask`), a grant is raised to what the job runs with: ten seconds of
    idling change too little for a critic to see. `info["steps"]` says how many steps of its clock a decision took.
    """

    def __init__(self, env: RLAllocEnv) -> None:
        super().__init__(env)
        self._world = env
        self._least = np.zeros(ACTIONS, dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Single, Info]:
        """As of `RLAllocEnv`."""
        state, info = self.env.reset(seed=seed, options=options)
        return state, self._guided(info)

    def step(self, action: Single) -> tuple[Single, SupportsFloat, bool, bool, Info]:
        """As of `RLAllocEnv`."""
        state, reward, terminated, truncated, info = self.env.step(np.maximum(action, self._least))
        return state, reward, terminated, truncated, self._guided(info)

    def _guided(self, info: Info) -> Info:
        may_wait, offered = info["action_mask"]
        self._least = info["action_low"].astype(np.float32) * (offered and not may_wait)
        return info | {"steps": self._world.elapsed / CLOCK_SECONDS}


class First:
    """All that it could use for the job that comes first by a rank among its features; the others wait behind it."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def get_demonstration(self, state: Single) -> Single:
        """Ones, or zeros to wait."""
        return np.full(ACTIONS, state[self._rank] == 0, dtype=np.float32)


class InTurn:
    """Whichever job's turn it is, with all that it could use."""

    def get_demonstration(self, state: Single) -> Single:
        """Ones."""
        return np.ones(ACTIONS, dtype=np.float32)


OFFER_EXPERTS: dict[str, Expert] = {"sjf": First(DURATION_RANK), "fcfs": First(AGE_RANK), "round_robin": InTurn()}


def make_environments(task: str, environment: SacEnvironment, count: int, *, learn: bool = False) -> Vector:
    """`count` environments of a task, as `SacTask.make`. Raises ValueError naming what the task does not have."""
    given = {key: value for key, value in structs.asdict(environment).items() if value is not None}
    if strange := sorted(given.keys() - TASKS[task].keys):
        raise ValueError(f"$.environment.{strange[0]}: the task {task} has none; it knows {_listed(TASKS[task].keys)}")
    return TASKS[task].make(count, given, learn)


def experts(task: str, names: Sequence[str]) -> tuple[Expert, ...]:
    """The experts of these names. Raises ValueError for one that does not exist."""
    return tuple(_expert(TASKS[task].experts, name) for name in names)


def box(space: gym.Space[Any]) -> gym.spaces.Box:
    """The space, if it is a box of one axis. Raises ValueError."""
    if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
        raise ValueError(f"states and actions must be vectors, not {space}")
    return space


def demonstration(expert: Expert, state: Single, actions: gym.spaces.Box) -> Single:
    """What the expert would do in this state. Raises ValueError where that is none of the `actions`."""
    action = np.asarray(expert.get_demonstration(state), dtype=np.float32)
    if not actions.contains(action):
        wanted = f"{actions.shape} numbers from {actions.low.min()} to {actions.high.max()}"
        raise ValueError(f"{type(expert).__name__}.get_demonstration must return {wanted}, not {action}")
    return action


def play(envs: Vector, act: Callable[[Single], Single], seed: int) -> tuple[NDArray[np.float64], list[Info]]:
    """One episode of each environment: returns (n,) and the infos at the ends. `act` maps states to actions."""
    states, _ = envs.reset(seed=seed)
    returns, running = np.zeros(envs.num_envs), np.ones(envs.num_envs, dtype=np.bool_)
    infos: list[Info] = [{}] * envs.num_envs
    while running.any():
        states, rewards, terminated, truncated, info = envs.step(act(states))
        returns += rewards * running
        for number in np.flatnonzero(running & (terminated | truncated)):
            infos[number] = _one(info, int(number))
        running &= ~(terminated | truncated)
    return returns, infos


def _one(info: Info, number: int) -> Info:
    """Of one environment of a vector."""
    return {
        name: _one(values, number) if isinstance(values, dict) else values[number]
        for name, values in info.items()
        if not name.startswith("_")
    }


def named(where: str, path: str) -> Any:
    """What `module:attribute` means. Raises ValueError that begins with `where` it was written."""
    module, _, attribute = path.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{where}: {path!r} is no `module:name` that can be imported ({error})") from error


def _expert(known: Mapping[str, Expert], name: str) -> Expert:
    if name in known:
        return known[name]
    where = "$.training.experts"
    if ":" not in name:
        raise ValueError(f"{where}: unknown expert {name!r}; known are {_listed(known)}, and any `module:Class`")
    found = named(where, name)
    expert: Expert = found() if isinstance(found, type) else found
    if not callable(getattr(expert, "get_demonstration", None)):
        raise ValueError(f"{where}: {name!r} has no method get_demonstration(state) -> action")
    return expert


def _listed(names: Mapping[str, Any] | frozenset[str]) -> str:
    return ", ".join(sorted(names))


def _rlalloc(count: int, given: Mapping[str, Any], learn: bool) -> Vector:
    arguments = dict(given)
    if "reward" in given:
        arguments["reward"] = named("$.environment.reward", given["reward"])
    metrics = {name: named(f"$.environment.metrics.{name}", path) for name, path in given.get("metrics", {}).items()}
    arguments["metrics"] = metrics | {"jobs": lambda env: float(env.count)}
    return SyncVectorEnv([lambda: Guided(RLAllocEnv(**arguments))] * count, autoreset_mode=AutoresetMode.NEXT_STEP)


def _offers(count: int, given: Mapping[str, Any], learn: bool) -> Vector:
    return SharesVectorEnv(OffersVectorEnv(count, **given), starts=learn)


def _toy(count: int, given: Mapping[str, Any], learn: bool) -> Vector:
    return SharesVectorEnv(toy(count, **given), starts=learn)


def _slowdown(returns: NDArray[np.float64], infos: Sequence[Info]) -> dict[str, float]:
    """The metrics, on average over episodes; score is minus the slowdown, over the share of the jobs that got done."""
    metrics = [info["metrics"] for info in infos]
    figures = {name: float(np.mean([each[name] for each in metrics])) for name in metrics[0]}
    return figures | {"score": -float(np.mean([charged(each) for each in metrics]))}


def charged(metrics: Mapping[str, float]) -> float:
    """The average slowdown of an episode of `rlalloc`, over the share of the jobs that got done; finite if none did."""
    return float(min(_WORST, metrics["avg_slowdown"] * metrics["jobs"] / max(1.0, metrics["done"])))


def _return(returns: NDArray[np.float64], infos: Sequence[Info]) -> dict[str, float]:
    return {"score": float(returns.mean())}


_README = frozenset(("max_gpu_memory", "max_cpu_memory", "max_cpu_cores", "time_horizon", "max_steps"))
_BOTH = frozenset(("jobs", "load"))
_CLUSTER = frozenset(("cluster", "slots", "largest_gang", "estimate_sigma", "deadline_share", "memory_seconds"))
TASKS = {
    "rlalloc": SacTask("rlalloc/1", _README | _BOTH | {"reward", "metrics"}, _rlalloc, EXPERTS, True, _slowdown),
    "offers": SacTask(SCHEMA, _BOTH | _CLUSTER, _offers, OFFER_EXPERTS, True, _return),
    "toy": SacTask(SCHEMA, _BOTH, _toy, OFFER_EXPERTS, True, _return),
}
