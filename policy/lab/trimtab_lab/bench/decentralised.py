"""Hosts that bid against one scheduler that sees all: `trimtab/ADLRO-v0`, the cluster of seed 002.

Value decomposition (`agents.vdn`) has four agents, each of which sees its own host; the others decide from one place.
It is trained here, once for each seed, and the weights with the best validation score are judged. All play the same
episodes, from seeds that neither training nor validation uses, and those of the table `adlro`, where the central agent
(`dqn_cnn`) is: rows of both can be compared. Average job completion times are compared in pairs within an episode
(`sim.statistics`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from trimtab_lab.agents import recipe, train, vdn
from trimtab_lab.agents.vdn_tasks import AdlroWorld, Columns, Hosts, VdnObservation
from trimtab_lab.bench.report import BenchReport, interval, written
from trimtab_lab.environments import adlro
from trimtab_lab.evaluation import statistics
from trimtab_policy.learned.vdn import values
from trimtab_policy.observation.encode import Floats, Ints

TEST = 1 << 33
"""First seed of the episodes. Validation begins at 2^32, and training is below 2^31."""
FIGURES = {"avg JCT, s": "avg_jct_s", "jobs/hour": "jobs_per_hour", "GPU utilisation": "gpu_utilisation"}
"""Columns of the paper's table -> figures of `AdlroEnv.metrics`."""
REFERENCES = ("fcfs", "fastest_first")

Act = Callable[[VdnObservation], Ints]
"""The actions of n environments."""


def run(
    *,
    seeds: Sequence[int],
    progress: Callable[[str], None],
    folder: Path,
    episodes: int,
    config: str = "adlro",
) -> BenchReport:
    """Train with each of the `seeds`, and compare on so many episodes.

    `config` names a configuration of vdn or a file. Trainings go on where they were stopped, in `folder`. Raises
    ValueError for one of another task, and as `train.train` does.
    """
    given = recipe.read_recipe("vdn", config)
    if not isinstance(given, vdn.VdnConfig) or given.task != "adlro":
        raise ValueError(f"config: {config} is no training of hosts: its task must be adlro")
    hosts = msgspec.convert(given.environment, Hosts)
    world = AdlroWorld(hosts, episodes)
    whole_queue = AdlroWorld(replace(hosts, window=hosts.jobs), episodes)  # rules need no window
    found: dict[str, list[Mapping[str, Floats]]] = {}
    for name, act in baselines().items():
        progress(name)
        found[name] = [play(whole_queue, act)]
    for seed in seeds:
        progress(f"vdn, seed {seed}")
        weights = train.train("vdn", config, seed, folder / f"vdn-{seed}").weights
        found.setdefault("vdn", []).append(play(world, bidding(world, weights)))
    return _report(found, seeds, episodes)


def baselines() -> dict[str, Act]:
    """The paper's two, and the fastest GPU for the oldest job; with the dice of the table `adlro`."""
    random = np.random.default_rng(0)
    return {
        "fcfs": _each(lambda _, mask: adlro.fcfs(mask, random)),
        "static_affinity": _each(adlro.static_affinity),
        "fastest_first": _each(adlro.fastest_first),
    }


def bidding(world: AdlroWorld, weights: Mapping[str, NDArray[Any]]) -> Act:
    """Hosts with these weights."""

    def act(seen: VdnObservation) -> Ints:
        bids, _ = values(weights, world.local(seen.columns))
        joint = np.append(bids, np.zeros((len(bids), 1), dtype=np.float32), axis=1)
        found: Ints = np.where(seen.mask, joint, -np.inf).argmax(axis=1)
        return found

    return act


def play(world: AdlroWorld, act: Act) -> dict[str, Floats]:
    """(episodes,) of every figure: one episode in each environment."""
    seen = world.reset(TEST)
    environments = len(seen.mask)
    while len(world.metrics) < environments:
        seen = world.step(act(seen)).seen
    names = world.metrics[0].keys()
    return {name: np.array([world.metrics[number][name] for number in range(environments)]) for name in names}


def _each(choose: Callable[[Columns, NDArray[np.int8]], int]) -> Act:
    def act(seen: VdnObservation) -> Ints:
        masks = seen.mask.astype(np.int8)
        rows = range(len(masks))
        return np.array([choose({name: of[row] for name, of in seen.columns.items()}, masks[row]) for row in rows])

    return act


def _report(found: Mapping[str, Sequence[Mapping[str, Floats]]], seeds: Sequence[int], episodes: int) -> BenchReport:
    figures = {name: _figures(played) for name, played in found.items()}
    rows = [
        (name, *map(_mean, own), *(_ratio(own[0], figures[other][0]) if name != other else "1" for other in REFERENCES))
        for name, own in figures.items()
    ]
    each = ", ".join(written(float(jct.mean())) for jct in figures["vdn"][0])
    return BenchReport(
        title="Decentralised: four hosts that bid, on the 16 GPUs of ADLRO",
        columns=("policy", *FIGURES, *(f"JCT ÷ {other}" for other in REFERENCES)),
        rows=tuple(rows),
        notes=(
            f"{episodes} episodes, none of them seen in training or validation; mean and 95 % interval over episodes."
            f" Ratios are geometric means with BCa intervals. vdn is the mean of {len(seeds)} trainings: {each} s.",
            "An agent of vdn sees its own four GPUs and the window, no other host, and is not told how fast a GPU is"
            " for a job; fastest_first sees all GPUs and is told. The rules see the whole queue.",
        ),
    )


def _figures(played: Sequence[Mapping[str, Floats]]) -> list[Floats]:
    """(seeds, episodes) of every column."""
    return [np.stack([each[figure] for each in played]) for figure in FIGURES.values()]


def _mean(figure: Floats) -> str:
    """With the 95 % interval over episodes, of which each is the mean of the seeds."""
    each = figure.mean(axis=0)
    half = _TWO_SIDED * float(each.std(ddof=1)) / math.sqrt(len(each))
    return interval(float(each.mean()), float(each.mean()) - half, float(each.mean()) + half)


def _ratio(ours: Floats, theirs: Floats) -> str:
    """A rule has one row, which all seeds are held against."""
    found = statistics.compare(ours, theirs[0]).ratio
    return interval(found.value, found.low, found.high)


_TWO_SIDED = 1.96
