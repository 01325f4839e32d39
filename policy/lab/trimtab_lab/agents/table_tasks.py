"""What Q-learning and SARSA can be trained on, cut into cells.

`parallel_mode` is the world of seed 000. `offers` are clusters (`sim.envs.offers`), each with as many environments,
whose cells and actions are those of the controller's policy (`learned.tables`); `toy` is the smallest such cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from msgspec import Struct, field, structs
from numpy.typing import NDArray

from trimtab_lab.agents.tables import Ints, TableObservation, TableStep, TableTraining, TableWorld
from trimtab_lab.environments import cpu_usage, parallel_mode
from trimtab_lab.environments.offers import OffersVectorEnv
from trimtab_lab.environments.parallel_mode import ParallelModeVectorEnv
from trimtab_lab.environments.toy import toy
from trimtab_policy.learned import tables
from trimtab_policy.observation import encode, features

_RUN_TIME = 4
"""Column of `OffersTask.options`."""


class ParallelModeTask(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`trimtab/ParallelMode-v0`, parameters as of `parallel_mode.settings`."""

    model: str = "gpt3-1.3b"
    gpu: str = "V100-SXM2-32GB"
    counts: tuple[int, ...] = (1, 2, 4, 8, 16)
    steps: int = 288
    restart_seconds: float = 30.0
    weights: dict[str, float] = field(default_factory=lambda: dict(parallel_mode.WEIGHTS))
    series: tuple[str, ...] = field(default_factory=cpu_usage.names)
    """CPU usage that is trained on."""
    bins: tuple[int, ...] = parallel_mode.BINS
    """Of `parallel_mode.discretise`."""
    gamma: float = 0.9
    """What the next step counts."""

    def environment(self, number: int) -> ParallelModeVectorEnv:
        """So many environments. Raises ValueError naming the parameter."""
        return ParallelModeVectorEnv(
            number,
            model=self.model,
            gpu=self.gpu,
            counts=self.counts,
            steps=self.steps,
            restart_seconds=self.restart_seconds,
            weights=self.weights,
            series=self.series,
        )


class ParallelModeWorld:
    """n servers of seed 000; an episode has no end, so that what follows its last step counts, too."""

    schema = "parallel_mode/1"

    def __init__(self, given: ParallelModeTask, number: int) -> None:
        self._environment, self._given = given.environment(number), given
        self.bins, self.environments = given.bins, number
        self.states = parallel_mode.states(given.bins)
        self.actions = len(self._environment.given.world.gpus)
        self._allowed = np.tile(self._environment.given.world.possible, (number, 1))

    def reset(self, seed: int) -> TableObservation:
        """As of `TableWorld`."""
        return self._seen(self._environment.reset(seed=seed)[0])

    def step(self, actions: Ints) -> TableStep:
        """As of `TableWorld`."""
        happened = ~self._environment.finished
        observations, rewards, _, over, _ = self._environment.step(actions)
        endless = np.zeros(len(rewards), dtype=np.bool_)
        discounts = np.full(len(rewards), self._given.gamma)
        return TableStep(self._seen(observations), rewards, rewards, discounts, endless, happened, over)

    def _seen(self, observations: parallel_mode.Observation) -> TableObservation:
        return TableObservation(parallel_mode.discretise(observations, self._given.bins), self._allowed)


class OffersTask(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`trimtab/Offers-v0`; what is left out is as the environment has it."""

    bins: dict[str, int]
    """Of `learned.tables.FEATURES`; a feature that is left out has one."""
    clusters: tuple[str, ...] = ("sia-heterogeneous",)
    load: tuple[float, float] | None = None
    """Every episode draws one between them."""
    memory_seconds: float | None = None
    jobs: int | None = None
    slots: int | None = None
    largest_gang: int | None = None
    estimate_sigma: float | None = None
    deadline_share: float | None = None

    def __post_init__(self) -> None:
        """Raise ValueError naming the field."""
        _check_bins(self.bins)
        if not self.clusters:
            raise ValueError("environment.clusters must name at least one cluster")


class Toy(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`sim.envs.toy`; what is left out is as it has it."""

    bins: dict[str, int]
    """As of `OffersTask`."""
    load: tuple[float, float] | None = None
    memory_seconds: float | None = None
    jobs: int | None = None

    def __post_init__(self) -> None:
        """Raise ValueError naming the field."""
        _check_bins(self.bins)


def clusters(given: OffersTask, number: int) -> OffersTableWorld:
    """So many environments of each of the clusters. Raises ValueError naming the parameter."""
    parameters = _set(given, "bins", "clusters")
    return OffersTableWorld(
        [OffersVectorEnv(number, cluster=each, **parameters) for each in given.clusters], given.bins
    )


def toys(given: Toy, number: int) -> OffersTableWorld:
    """So many toy clusters. Raises ValueError naming the parameter."""
    return OffersTableWorld([toy(number, **_set(given, "bins"))], given.bins)


class OffersTableWorld:
    """Clusters of any sizes side by side, one job on offer in each.

    What is learned from is not the environment's reward, minus the integral of the jobs in the system. Discounted over
    all time, that is (by parts) the jobs that finish less those that arrive, and who arrives does not depend on what is
    done. Nothing that runs is touched, so that a job's end is known when it starts: it pays exp(-its run time /
    memory_seconds) then, and nothing later. This has the same best policy, and an answer's own part of what follows
    need not be told from that of all others.
    """

    schema = encode.SCHEMA

    def __init__(self, vectors: Sequence[OffersVectorEnv], bins: Mapping[str, int]) -> None:
        self.bins = tuple(bins.get(name, 1) for name in tables.FEATURES)
        self.states, self.actions = tables.states(self.bins), tables.ACTIONS
        self._vectors = vectors
        self._ends = np.cumsum([each.num_envs for each in vectors])[:-1]
        self.environments = sum(each.num_envs for each in vectors)
        self._over = np.zeros(self.environments, dtype=np.bool_)
        self._answers: list[Ints] = []

    def reset(self, seed: int) -> TableObservation:
        """As of `TableWorld`."""
        for number, vector in enumerate(self._vectors):
            vector.reset(seed=seed + number * self.environments)
        self._over[:] = False
        return self._seen()

    def step(self, actions: Ints) -> TableStep:
        """As of `TableWorld`."""
        happened = ~self._over
        chosen = zip(self._vectors, self._answers, np.split(actions, self._ends), strict=True)
        parts = [np.stack(_answered(*each)) for each in chosen]
        earned, paid, discounts, ended, over = np.concatenate(parts, axis=1)
        self._over = over > 0
        return TableStep(self._seen(), earned, paid, discounts, ended > 0, happened, self._over.copy())

    def _seen(self) -> TableObservation:
        self._answers = [tables.menu(vector.offers) for vector in self._vectors]
        here = np.concatenate([tables.cells(vector.offers, self.bins) for vector in self._vectors])
        return TableObservation(here, np.concatenate(self._answers) != tables.NOTHING)


def _answered(vector: OffersVectorEnv, answers: Ints, actions: Ints) -> tuple[NDArray[Any], ...]:
    """One step: what it earned and paid, discounts, and where an episode is finished, and over."""
    chosen = np.take_along_axis(answers, actions[:, None], axis=1)[:, 0]
    taken = (actions != tables.WAIT) & (chosen != tables.NOTHING)
    runs = features.seconds(vector.offers.options[np.arange(len(actions)), np.where(taken, chosen, 0), _RUN_TIME])
    paid = np.exp(-runs / vector.memory_seconds) * taken
    # between episodes nothing is on offer, and any answer will do
    _, earned, finished, cut, info = vector.step(np.where(taken, chosen, vector.offers.wait))
    return earned, paid, info["discount"], finished, finished | cut


def _set(given: Struct, *without: str) -> dict[str, Any]:
    return {key: value for key, value in structs.asdict(given).items() if value is not None and key not in without}


def _check_bins(bins: Mapping[str, int]) -> None:
    """Raise ValueError naming the field."""
    for name, number in bins.items():
        if name not in tables.FEATURES or number < 1:
            known = ", ".join(tables.FEATURES)
            raise ValueError(f"environment.bins.{name}: must be at least 1, for one of {known}; got {number}")


class _Config(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="task"):
    training: TableTraining


class ParallelModeConfig(_Config, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="parallel_mode"):
    """What a YAML file says whose `task` is parallel_mode."""

    task: ClassVar[str] = "parallel_mode"
    environment: ParallelModeTask = field(default_factory=ParallelModeTask)


class OffersConfig(_Config, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="offers"):
    """What a YAML file says whose `task` is offers."""

    task: ClassVar[str] = "offers"
    environment: OffersTask


class ToyConfig(_Config, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="toy"):
    """What a YAML file says whose `task` is toy."""

    task: ClassVar[str] = "toy"
    environment: Toy


Config = ParallelModeConfig | OffersConfig | ToyConfig


def worlds(config: Config) -> tuple[TableWorld, TableWorld]:
    """What a configuration trains and validates on. Raises ValueError naming the field."""
    train, trial = (
        _world(config, number) for number in (config.training.environments, config.training.validation_episodes)
    )
    return train, trial


def _world(config: Config, number: int) -> TableWorld:
    match config:
        case ParallelModeConfig():
            return ParallelModeWorld(config.environment, number)
        case OffersConfig():
            return clusters(config.environment, number)
        case ToyConfig():
            return toys(config.environment, number)
