"""Rudder's constants and network, found by an evolution strategy through the compiled simulator.

A candidate is as good as its average JCT on a handful of windows is short, over that of the analytic form (all zeros)
on the same windows: the mean of the logarithms, and a part of that of the 99th percentile besides, so that nobody pays
for the mean. All candidates of a generation meet the same windows. The first segments look for the constants only; the
network joins in when these have settled, beginning at zero.

The windows differ in all that a cluster may: GPU types, jobs, load, how many jobs may move, how long a gang must be
left alone, how wrong predictions and told sizes are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.random import Generator
from numpy.typing import NDArray

from trimtab_lab.agents.evolution import EvolutionStrategy
from trimtab_lab.agents.learner import Arrays, segment_seed
from trimtab_lab.evaluation.scenario import Scenario
from trimtab_lab.evaluation.workload import workload
from trimtab_lab.kernel.rescaling import ElasticWindow, nothing_seen, run_window
from trimtab_lab.workloads import clusters
from trimtab_policy.learned import rudder, worth
from trimtab_policy.learned.worth import ANALYTIC, SHAPES, Network, analytic
from trimtab_policy.perf.restarts import SCHEDULE_SECONDS, STARTUP_SECONDS, restart_seconds
from trimtab_policy.placement.options import market

FloatArray = NDArray[np.float64]

VALIDATION = 1 << 32
"""Seeds from here on are never trained on."""
SCORES = {"rescaling": "minus the mean of ln(average JCT / that of the analytic form) on validation windows"}
SPREAD = np.array([0.2, 1.5, 0.25, 0.6, 0.4, 0.3, 0.2, 0.15, 0.15, 0.3, 0.4, 0.3, 0.3, 0.1, 0.2, 2.0])
"""How far the constants are looked for, in the order of `worth.CONSTANTS`."""
LEAST = np.array([-2, -20, -0.5, 3, 0.05, -1, -2, -1, -1, 0, -2, 0, 0, 0.3, -2, -20], dtype=np.float64)
MOST = np.array([1.5, 40, 2, 9.5, 5, 1.5, 2, 1, 1, 5, 2, 10, 3, 1, 2, 40], dtype=np.float64)
OF_NETWORK = 0.15
"""How far weights of the network are looked for, over the square root of the inputs that they are summed with."""
FAILED = 3.0
"""Value of a candidate under which jobs do not end."""


class RudderCell(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Windows of one kind."""

    trace: str
    cluster: str
    loads: tuple[float, ...] = (0.6, 0.8, 1.0, 1.3)
    jobs: int = 100
    windows: int = 24


class RudderEnvironment(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is trained on; each window draws one of each list."""

    cells: tuple[RudderCell, ...]
    movable: tuple[float, ...] = (1.0, 1.0, 1.0, 0.5, 0.0)
    """Part of the jobs that may be moved."""
    min_run: tuple[float, ...] = (0.0, 600.0)
    """Seconds."""
    model_errors: tuple[float, ...] = (0.0, 0.0, 0.1, 0.2, 0.4)
    """Spread of ln(true / predicted speed), for each job and GPU type."""
    size_errors: tuple[float, ...] = (0.0, 0.0, 0.5, 1.0)
    """Spread of ln(stated / true steps), drawn once for each job."""
    heartbeat: float = 300.0


class RudderTraining(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How it is trained."""

    segments: int = 60
    constants_segments: int = 20
    """The first ones, in which the network stays zero."""
    generations: int = 4
    """In a segment."""
    pairs: int = 10
    windows: int = 20
    """Of a generation."""
    tail: float = 0.15
    """Part of the value that is the 99th percentile's."""
    validation_windows: int = 4
    """Of each cell."""
    threads: int = 2


class RudderConfig(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A training."""

    task: str
    environment: RudderEnvironment
    training: RudderTraining = RudderTraining()


class _Episode(NamedTuple):
    window: ElasticWindow
    measured: NDArray[np.bool_]
    mean: float
    """ln of the average JCT of the analytic form."""
    tail: float
    """The same of the 99th percentile."""


class RudderLearner:
    """Implements `Learner`."""

    schema = rudder.SCHEMA

    def __init__(self, config: RudderConfig, seed: int) -> None:
        self._training, self._environment, self._seed = config.training, config.environment, seed
        self.segments = self._training.segments
        self._episodes = _episodes(self._environment, seed, [cell.windows for cell in self._environment.cells])
        few = [self._training.validation_windows] * len(self._environment.cells)
        self._validation = _episodes(self._environment, VALIDATION, few)
        self._search = self._begun(np.zeros(len(SPREAD)))
        self._steps, self._with_network = 0, False

    def learn(self, segment: int) -> dict[str, float]:
        """As of `Learner`: `steps` are episodes, `loss` the mean value of the last generation."""
        training, random = self._training, np.random.default_rng(segment_seed(self._seed, segment))
        if segment >= training.constants_segments and not self._with_network:
            self._search = self._begun(np.concatenate([self._search.mean, np.zeros(_network_size())]))
            self._with_network = True
        loss = 0.0
        for _ in range(training.generations):
            episodes = self._drawn(random)
            candidates = self._search.ask(random)
            found = self._values([_network(each) for each in candidates], episodes)
            self._search.tell(candidates, found)
            loss = float(found.mean())
            self._steps += len(candidates) * len(episodes)
        return {"steps": self._steps, "loss": loss}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """As of `Learner`."""
        counters = np.array([self._steps, int(self._with_network)])
        return {"counters": counters, **self._search.arrays()}

    def restore(self, arrays: Arrays) -> None:
        """As of `Learner`."""
        self._steps, self._with_network = int(arrays["counters"][0]), bool(arrays["counters"][1])
        self._search = self._begun(np.zeros(len(arrays["mean"])))
        self._search.restore(arrays)

    def weights(self) -> dict[str, NDArray[Any]]:
        """As of `Learner`; with the ranges of what these weights see in the windows of the training."""
        network = _network(self._search.mean)
        return {**network._asdict(), worth.RANGES: self.ranges(network)}

    def ranges(self, network: Network) -> FloatArray:
        """Lowest and highest value of each feature in the windows of the training under this network, (2, 17)."""
        seen = nothing_seen()
        for episode in self._episodes:
            run_window(network, episode.window, seen)
        return seen

    def validate(self) -> dict[str, float]:
        """As of `Learner`; `mean` and `tail` are ratios to the analytic form."""
        network = _network(self._search.mean)
        found = np.array([_ratios(network, each) for each in self._validation])
        mean, tail = found.mean(axis=0)
        return {"score": -float(mean), "mean": float(np.exp(mean)), "tail": float(np.exp(tail))}

    def _begun(self, start: FloatArray) -> EvolutionStrategy:
        fresh = len(start) == len(SPREAD)
        return EvolutionStrategy(start, 0.6 if fresh else 0.3, self._training.pairs)

    def _drawn(self, random: Generator) -> Sequence[_Episode]:
        chosen = random.choice(len(self._episodes), min(self._training.windows, len(self._episodes)), replace=False)
        return [self._episodes[k] for k in chosen.tolist()]

    def _values(self, networks: Sequence[Network], episodes: Sequence[_Episode]) -> FloatArray:
        """One value for each network; compiled code holds no lock, so threads are enough."""
        pairs = [(network, episode) for network in networks for episode in episodes]
        with ThreadPoolExecutor(self._training.threads) as pool:
            found = np.array(list(pool.map(lambda pair: _ratios(*pair), pairs)))
        mean, tail = found.reshape(len(networks), len(episodes), 2).mean(axis=1).T
        value: FloatArray = (1 - self._training.tail) * mean + self._training.tail * tail
        return value


def make(config: RudderConfig, seed: int) -> RudderLearner:
    """The learner that a configuration describes. Raises ValueError naming the field."""
    if not config.environment.cells:
        raise ValueError("environment.cells: name at least one workload and cluster to train on")
    return RudderLearner(config, seed)


Config = RudderConfig


def elastic_window(
    scenario: Scenario, *, movable: float = 1.0, min_run: float = 0.0, model_error: float = 0.0,
    size_error: float = 0.0, heartbeat: float = 300.0,
) -> tuple[ElasticWindow, NDArray[np.bool_]]:  # fmt: skip
    """The window of a scenario of generated LLM jobs for the compiled simulator, and which jobs are measured.

    Parameters as of `RudderEnvironment`. Raises ValueError in one line as `workload` does.
    """
    drawn, cluster = workload(scenario), clusters.cluster(scenario.cluster)
    described = tuple(replace(job, preemptible=True) for job in drawn.described)
    snapshot = replace(cluster, time=0.0, jobs=described)
    offered = market(snapshot)
    by_uid = {menu.job.uid: menu for menu in offered.menus}
    menus = [by_uid[job.uid] for job in described]
    jobs, options, owner = rudder.columns(snapshot, offered, menus)
    options[:, worth.PAUSE] = [
        restart_seconds(menu.job.model, menu.job.training, option.option.nodes)
        for menu in menus
        for option in menu.options
    ]
    random = np.random.default_rng(drawn.seed)
    random_sizes = np.random.default_rng([drawn.seed, 1])  # as in `sim.llm`: what jobs state is the same in both worlds
    kind = np.concatenate([menu.kind for menu in menus])
    wrong = np.exp(model_error * random.standard_normal((len(menus), len(offered.types))))
    window = ElasticWindow(
        capacity=offered.capacity,
        submitted=np.array([job.created for job in described]),
        steps=np.array([float(job.training.steps) for job in described]),
        told=np.exp(size_error * random_sizes.standard_normal(len(menus))),
        movable=random.random(len(menus)) < movable,
        jobs=jobs,
        first=np.cumsum([0, *(len(menu.options) for menu in menus)]),
        kind=kind,
        options=options,
        truth=options[:, worth.RATE] / wrong[owner, kind],
        launch=SCHEDULE_SECONDS + STARTUP_SECONDS,
        min_run=min_run,
        heartbeat=heartbeat,
    )
    return window, drawn.measured


def _episodes(environment: RudderEnvironment, seed: int, counts: Sequence[int]) -> list[_Episode]:
    found = []
    for number, (cell, count) in enumerate(zip(environment.cells, counts, strict=True)):
        random = np.random.default_rng([seed, number])
        for window in range(count):
            load = cell.loads[window % len(cell.loads)]
            scenario = Scenario(
                "", cell.trace, cell.cluster, load=load, window=window, windows=count, window_jobs=cell.jobs, seed=seed
            )
            drawn = elastic_window(
                scenario,
                movable=float(random.choice(environment.movable)),
                min_run=float(random.choice(environment.min_run)),
                model_error=float(random.choice(environment.model_errors)),
                size_error=float(random.choice(environment.size_errors)),
                heartbeat=environment.heartbeat,
            )
            found.append(_Episode(*drawn, *_figures(analytic(), *drawn)))
    return found


def _figures(network: Network, window: ElasticWindow, measured: NDArray[np.bool_]) -> tuple[float, float]:
    """ln of the average JCT and of its 99th percentile; infinite if a job did not end."""
    jct = run_window(network, window).jct[measured]
    if not np.isfinite(jct).all():
        return math.inf, math.inf
    return float(np.log(jct.mean())), float(np.log(np.percentile(jct, 99)))


def _ratios(network: Network, episode: _Episode) -> tuple[float, float]:
    mean, tail = _figures(network, episode.window, episode.measured)
    if not np.isfinite(mean):
        return FAILED, FAILED
    return mean - episode.mean, tail - episode.tail


def _network_size() -> int:
    return sum(int(np.prod(shape)) for name, shape in SHAPES.items() if name != "constants")


def _network(parameters: FloatArray) -> Network:
    """What a point of the search stands for: the constants alone, or all weights."""
    constants = np.clip(ANALYTIC + SPREAD * parameters[: len(SPREAD)], LEAST, MOST)
    if len(parameters) == len(SPREAD):
        return analytic()._replace(constants=constants)
    arrays: dict[str, FloatArray] = {"constants": constants}
    at = len(SPREAD)
    for name, shape in SHAPES.items():
        if name != "constants":
            size = int(np.prod(shape))
            arrays[name] = OF_NETWORK * parameters[at : at + size].reshape(shape)
            at += size
    hidden = arrays["hidden"] * (1.0 / OF_NETWORK) + _directions()
    return Network(**{**arrays, "hidden": hidden})


def _directions() -> FloatArray:
    """What the hidden units look at before any training: random, but the same in every training."""
    found: FloatArray = np.random.default_rng(19).standard_normal(SHAPES["hidden"]) / np.sqrt(SHAPES["hidden"][1])
    return found
