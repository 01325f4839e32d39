"""What `dqn_cnn` can be trained on: environments side by side, and what its network takes of their observations.

`adlro` is the seed's own world, 16 GPUs of three makes, each a cell of the GPU matrix. `offers` is a set of clusters
(`sim.envs.offers`), each with as many environments, whose loads are drawn anew for every episode; smaller menus are
padded to the largest one. `toy` is the smallest such cluster.

What is learned from: the paper's R = -(JCT + lambda idle), and the reward of the environments that integrates it over
time, tell of a choice long after it. With D(t) jobs done of A(t) that came, A - D are in the system, and A does not
depend on what the agent does. Discounted by exp(-t / memory), minus the mean of A - D is, but for what A adds to it,

    sum over jobs of exp(-end / memory) = sum over jobs of exp(-start / memory) * exp(-run time / memory)

and a GPU is idle for so much less as jobs run: lambda (1 - exp(-run time / memory)) for each. So the same objective is
earned when a job starts, by the run time of what it was given: lambda + (1 - lambda) exp(-run time / memory), lambda 0
in clusters. Nothing else earns anything; a step discounts the future by exp(-seconds / memory), and most take none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray

from trimtab_lab.environments import arguments
from trimtab_lab.environments.adlro import AdlroEnv
from trimtab_lab.environments.adlro_cluster import GPUS, HOST_GPUS, HOSTS, MAKES
from trimtab_lab.environments.offers import OffersVectorEnv
from trimtab_lab.environments.toy import toy
from trimtab_policy import catalog
from trimtab_policy.learned import dqn_cnn
from trimtab_policy.learned import hyperdimensional as hd
from trimtab_policy.learned.dqn_cnn import Inputs
from trimtab_policy.observation import encode, features
from trimtab_policy.observation.encode import OfferBatch

Arrays = dict[str, NDArray[Any]]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

VALIDATION = 1 << 32
"""First seed of validation episodes. Those of training are below 2^31 plus the number of environments."""


class DqnEnvironment(Struct, frozen=True, forbid_unknown_fields=True):
    """The section `environment:`; what is left out is as the environment has it, which checks the rest."""

    memory_seconds: float | None = None
    jobs: int | None = None
    window: int | None = None
    """Of `adlro`, like the next three."""
    idle_weight: float | None = None
    arrivals_per_second: float | None = None
    mean_work: float | None = None
    clusters: tuple[str, ...] = ()
    """Of `offers`, like all that follows. At least one."""
    load: tuple[float, float] | None = None
    slots: int | None = None
    largest_gang: int | None = None
    estimate_sigma: float | None = None
    deadline_share: float | None = None


class DqnObservation(NamedTuple):
    """What is seen of n environments."""

    observation: Arrays
    """(n, ...) each."""
    mask: Bools
    """(n, actions) what may be done."""


class DqnStep(NamedTuple):
    """What a step led to."""

    seen: DqnObservation
    reward: Floats
    """(n,) what is learned from."""
    discount: Floats
    """(n,) what the future counts; 0 where there is none."""
    earned: Floats
    """(n,) the environment's own reward: what is reported."""
    happened: Bools
    """(n,) False where an episode has begun instead: nothing to learn from."""
    over: Bools
    """(n,) whether the episode has ended; the next step begins another."""
    figures: Mapping[int, Mapping[str, float]]
    """Of the episodes that ended, by the number of the environment."""


class DqnWorld(Protocol):
    """n environments that reset themselves, and how their observations enter the network."""

    schema: str
    environments: int

    def reset(self, seed: int) -> DqnObservation:
        """Begin anew; everything that is random follows from the seed."""
        ...

    def step(self, actions: Ints) -> DqnStep:
        """One step of each."""
        ...

    def inputs(self, observation: Arrays) -> Inputs:
        """What the network takes of observations, one of n environments or n remembered ones."""
        ...


def play(world: DqnWorld, seed: int, choose: Callable[[DqnObservation], Ints]) -> list[dict[str, float]]:
    """Figures of one episode of every environment, by its number: `return`, and those of the world."""
    seen, earned = world.reset(seed), np.zeros(world.environments)
    figures: dict[int, dict[str, float]] = {}
    while len(figures) < world.environments:
        after = world.step(choose(seen))
        earned += after.earned
        for number, of_episode in after.figures.items():
            figures.setdefault(number, {"return": float(earned[number]), **of_episode})
        seen = after.seen
    return [figures[number] for number in range(world.environments)]


class Clusters:
    """The world of `offers` and `toy`."""

    schema = encode.SCHEMA

    def __init__(self, vectors: Sequence[OffersVectorEnv]) -> None:
        """Clusters of any sizes, side by side."""
        self._vectors = vectors
        self.environments = sum(vector.num_envs for vector in vectors)
        self._ends = np.cumsum([vector.num_envs for vector in vectors])[:-1]
        self._memory = np.concatenate([np.full(each.num_envs, each.memory_seconds) for each in vectors])
        self._over = np.zeros(self.environments, dtype=np.bool_)

    def reset(self, seed: int) -> DqnObservation:
        """As of `DqnWorld`."""
        for number, vector in enumerate(self._vectors):
            vector.reset(seed=seed + number * self.environments)
        self._over[:] = False
        self._seen = self._look()
        return self._seen

    def step(self, actions: Ints) -> DqnStep:
        """As of `DqnWorld`."""
        happened, reward = ~self._over, self._reward(actions)
        parts = [
            vector.step(np.minimum(part, vector.offers.wait))
            for vector, part in zip(self._vectors, np.split(actions, self._ends), strict=True)
        ]
        earned, terminated, truncated = (np.concatenate([part[column] for part in parts]) for column in (1, 2, 3))
        info = {name: np.concatenate([part[4][name] for part in parts]) for name in ("discount", "sum_jct", "finished")}
        self._over = terminated | truncated
        jct = info["sum_jct"] / np.maximum(1, info["finished"])
        figures = {number: {"avg_jct_s": float(jct[number])} for number in np.flatnonzero(self._over).tolist()}
        self._seen = self._look()
        return DqnStep(self._seen, reward, info["discount"] * ~terminated, earned, happened, self._over.copy(), figures)

    def _reward(self, actions: Ints) -> Floats:
        """By the run times that the features tell of."""
        rows, mask = np.arange(len(actions)), self._seen.mask
        starts = mask[rows, actions] & (actions < mask.shape[1] - 1)
        option = np.where(starts, actions, 0)
        seconds = features.seconds(self._seen.observation["options"][rows, option, _RUN_TIME])
        return np.where(starts, np.exp(-seconds / self._memory), 0.0)

    def inputs(self, observation: Arrays) -> Inputs:
        """As of `DqnWorld`."""
        return dqn_cnn.inputs(OfferBatch(mask=np.zeros((0, 0), dtype=np.bool_), **observation))

    def _look(self) -> DqnObservation:
        offers = [vector.offers for vector in self._vectors]
        types = max(each.pools.shape[1] for each in offers)
        most = max(each.wait for each in offers)
        columns = [_padded(each, types, most) for each in offers]
        together = OfferBatch(*(np.concatenate(column) for column in zip(*columns, strict=True)))
        return DqnObservation(
            {name: values for name, values in together._asdict().items() if name != "mask"}, together.mask
        )


class Adlro:
    """The world of the seed: the matrix has a row for every host and a cell for every GPU."""

    schema = "adlro/1"

    def __init__(self, envs: Sequence[AdlroEnv], memory_seconds: float) -> None:
        self.envs, self._memory = envs, memory_seconds
        self.environments = len(envs)
        self._time = np.zeros(self.environments)
        self._over = np.zeros(self.environments, dtype=np.bool_)

    def reset(self, seed: int) -> DqnObservation:
        """As of `DqnWorld`."""
        self._time[:] = 0
        self._over[:] = False
        return _stacked([env.reset(seed=seed + number) for number, env in enumerate(self.envs)])

    def step(self, actions: Ints) -> DqnStep:
        """As of `DqnWorld`."""
        happened = ~self._over
        reward, earned = np.zeros((2, self.environments))
        terminated = np.zeros(self.environments, dtype=np.bool_)
        before, pairs, figures = self._time.copy(), [], {}
        for number, env in enumerate(self.envs):
            if self._over[number]:
                observation, info = env.reset()
                self._over[number], before[number] = False, 0.0
            else:
                reward[number] = self._reward(env, int(actions[number]))
                observation, earned[number], terminated[number], truncated, info = env.step(actions[number])
                self._over[number] = terminated[number] or truncated
                if self._over[number]:
                    figures[number] = info["metrics"]
            self._time[number] = info["time"]
            pairs.append((observation, info))
        discount = np.exp((before - self._time) / self._memory) * ~terminated
        return DqnStep(_stacked(pairs), reward, discount, earned, happened, self._over.copy(), figures)

    def _reward(self, env: AdlroEnv, action: int) -> float:
        """By the run time as it will be, which the agent is not told beforehand."""
        if action == env.wait:
            return 0.0
        slot, gpu = divmod(action, GPUS)
        job = env.waiting[slot]
        seconds = env.jobs.work[job] / env.hardware.speed[env.jobs.kind[job], gpu]
        return float(env.idle_weight + (1 - env.idle_weight) * np.exp(-seconds / self._memory))

    def inputs(self, observation: Arrays) -> Inputs:
        """As of `DqnWorld`."""
        return adlro_inputs(observation)


def adlro_inputs(observation: Arrays) -> Inputs:
    """What the network takes of observations of `trimtab/ADLRO-v0`."""
    grid, jobs = observation["gpus"], observation["jobs"]
    states, window = jobs.shape[:2]
    place = np.tile(np.arange(GPUS), (states, window))
    memory = grid.reshape(states, -1, GPUS)[:, _GPU_MEMORY]
    return {
        "grid": grid,
        "weight": np.full((states, GPUS), 1 / GPUS, dtype=np.float32),
        "cluster": observation["queue"],
        "jobs": jobs,
        "options": (jobs[:, :, None, _JOB_MEMORY] / memory[:, None]).reshape(states, -1, 1).clip(0, 1),
        "place": place,
        "job": np.tile(np.repeat(np.arange(window), GPUS), (states, 1)),
        "code": _codes(grid, jobs),
    }


_RUN_TIME = 4
"""Feature of an option of `encode.OfferBatch`."""
_GPU_MEMORY, _JOB_MEMORY, _PRIORITY = 3 + len(MAKES), -1, 1
"""Channel and features of the observation of `AdlroEnv`: memory of a GPU and of a job over that of the largest GPU."""
_PRODUCTS = ("V100-SXM2-32GB", "Quadro-RTX-6000", "Radeon-VII")
"""What `adlro_cluster` takes for the makes."""
_BANDS = 4
"""Of utilisation and of priority."""


def _codes(grid: NDArray[np.float32], jobs: NDArray[np.float32]) -> Ints:
    """(n, window x 16) rows of the codebook, by the utilisation of the whole host: a GPU that is on offer has none."""
    host = grid[:, 0].mean(axis=2).repeat(HOST_GPUS, axis=1)
    make = np.array(HOSTS).repeat(HOST_GPUS)
    gpu = make * _BANDS + hd.band(host, _BANDS)
    codes: Ints = gpu[:, None] * _BANDS + hd.band(jobs[:, :, _PRIORITY], _BANDS)[:, :, None]
    return codes.reshape(len(grid), -1)


def codebook(dimension: int) -> hd.Hypervectors:
    """(makes x bands of utilisation x bands of priority, dimension) what `adlro` is encoded by."""
    bands = np.linspace(0, 1, _BANDS)
    gpus = np.stack([hd.gpu_model(catalog.gpu(product), dimension) for product in _PRODUCTS])
    return hd.situation(gpus[:, None, None], bands[:, None], bands).reshape(-1, dimension)


class DqnTask(NamedTuple):
    """A kind of world, and what the network is there."""

    keys: frozenset[str]
    """Those of `DqnEnvironment` that it knows."""
    make: Callable[[int, DqnEnvironment], DqnWorld]
    """So many environments; of several clusters, of each."""
    kernel: tuple[int, int]
    whole_rows: bool
    """What a place is, as of `learned.dqn_cnn.cells`."""
    hypervectors: Callable[[int], hd.Hypervectors]


def make_world(task: str, environment: DqnEnvironment, count: int) -> DqnWorld:
    """`count` environments of a task. Raises ValueError that names what the task does not know."""
    known = TASKS[task].keys
    if strange := sorted(_given(environment).keys() - known):
        raise ValueError(f"$.environment.{strange[0]}: the task {task} has none; it knows {', '.join(sorted(known))}")
    return TASKS[task].make(count, environment)


def _given(environment: DqnEnvironment) -> dict[str, Any]:
    return {key: value for key, value in structs.asdict(environment).items() if value not in (None, ())}


def _adlro(count: int, environment: DqnEnvironment) -> DqnWorld:
    given = _given(environment)
    memory = arguments.positive("memory_seconds", given.pop("memory_seconds", _MEMORY_SECONDS))
    return Adlro([AdlroEnv(**given) for _ in range(count)], memory)


def _offers(count: int, environment: DqnEnvironment) -> DqnWorld:
    given = _given(environment)
    clusters = given.pop("clusters", _CLUSTERS)
    return Clusters([OffersVectorEnv(count, cluster=cluster, **given) for cluster in clusters])


def _toy(count: int, environment: DqnEnvironment) -> DqnWorld:
    return Clusters([toy(count, **_given(environment))])


def _stacked(pairs: Sequence[tuple[Arrays, Mapping[str, Any]]]) -> DqnObservation:
    observations = {name: np.stack([seen[name] for seen, _ in pairs]) for name in pairs[0][0]}
    return DqnObservation(observations, np.stack([info["action_mask"] for _, info in pairs]).astype(np.bool_))


def _padded(offers: OfferBatch, types: int, options: int) -> OfferBatch:
    """The same with pools without GPUs and options that may not be chosen."""
    pools, more = types - offers.pools.shape[1], options - offers.wait
    menu = ((0, 0), (0, more))
    return offers._replace(
        pools=np.pad(offers.pools, ((0, 0), (0, pools), (0, 0))),
        options=np.pad(offers.options, (*menu, (0, 0))),
        kind=np.pad(offers.kind, menu),
        gpus=np.pad(offers.gpus, menu),
        mode=np.pad(offers.mode, menu),
        mask=np.concatenate([np.pad(offers.mask[:, :-1], menu), offers.mask[:, -1:]], axis=1),
    )


_MEMORY_SECONDS = 30.0
"""Of `adlro`: twice the mean work of a job."""
_CLUSTERS = ("sia-heterogeneous",)
_WORKLOAD = frozenset(("memory_seconds", "jobs"))
_CLUSTER = _WORKLOAD | {"load", "slots", "largest_gang", "estimate_sigma", "deadline_share"}
_ADLRO = _WORKLOAD | {"window", "idle_weight", "arrivals_per_second", "mean_work"}
TASKS = {
    "adlro": DqnTask(_ADLRO, _adlro, (3, 3), False, codebook),
    "offers": DqnTask(_CLUSTER | {"clusters"}, _offers, (1, 3), True, dqn_cnn.codebook),
    "toy": DqnTask(_CLUSTER, _toy, (1, 3), True, dqn_cnn.codebook),
}
