"""`sac_imitation` in the seed's own world, `trimtab/RLAlloc-v0`: with its parts and without them, and its experts.

Learners are trained here, as the shipped configuration says, and kept with the highest validation score; all policies
then meet the same windows, whose seeds nothing was trained or validated on. Compared are average slowdowns within a
window (`sim.statistics`): geometric mean of the ratios, BCa interval over windows and seeds of training, p-values of
the whole table corrected after Holm. A policy that leaves jobs unfinished within the steps of an episode is charged
for it: its slowdown counts over the share of the jobs that got done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from trimtab_lab.agents import recipe, sac_tasks, train
from trimtab_lab.agents.sac_imitation import SacConfig
from trimtab_lab.bench.report import BenchReport, Cell, interval
from trimtab_lab.environments.rlalloc_experts import EXPERTS
from trimtab_lab.evaluation import statistics
from trimtab_lab.evaluation.statistics import Comparison
from trimtab_policy.learned.sac_imitation import mean_action
from trimtab_policy.observation.encode import Single

Act = Callable[[Single], Single]
Floats = NDArray[np.float64]

AGENT, TASK = "sac_imitation", "rlalloc"
REFERENCE = "SJF"
UNSEEN = sac_tasks.VALIDATION_SEED + 1_000_000
"""First seed of the windows."""
_ALL = {"experts": tuple(EXPERTS), "q_filter": True}
_CLONE = {"imitation": 1.0, "imitation_floor": 1.0, "q_filter": False}
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "SAC + imitation of SJF": {},
    "SAC + imitation of all": _ALL,
    "SAC alone": {"imitation": 0.0, "imitation_floor": 0.0},
    "imitation of SJF alone": _CLONE,
    "imitation of all alone": _ALL | _CLONE,
}
"""What differs from the configuration in `training:`."""
RULES = {"SJF": "sjf", "FCFS": "fcfs", "round robin": "round_robin"}
FIGURES = {"average JCT, s": "avg_jct_s", "GPU used": "gpu_utilisation", "jobs done": "done"}
"""Column -> metric of `RLAllocEnv`."""


class RlallocFigures(NamedTuple):
    """What a policy did in the windows, (seeds, windows) each."""

    slowdown: Floats
    figures: dict[str, Floats]
    """By column of FIGURES."""


def run(
    *,
    seeds: list[int],
    progress: Callable[[str], None],
    folder: Path,
    windows: int = 30,
    training: Mapping[str, Any] | None = None,
) -> BenchReport:
    """Train every variant with every seed and let it, its experts and chance schedule so many unseen windows.

    `training` is put in the place of what the shipped configuration says. Trainings are kept in `folder`: stopped, they
    go on from there. Raises what `train.learn` raises.
    """
    config = recipe.read_recipe(AGENT, TASK)
    assert isinstance(config, SacConfig)
    config = replace(config, training=replace(config.training, **(training or {})))
    trials = sac_tasks.make_environments(TASK, config.environment, windows)
    found: dict[str, RlallocFigures] = {}
    for name, changed in VARIANTS.items():
        variant = replace(config, training=replace(config.training, **changed))
        found[name] = _stacked([_play(trials, _trained(variant, name, seed, folder, progress)) for seed in seeds])
    progress("experts and chance")
    for name, expert in RULES.items():
        found[name] = _stacked([_play(trials, _rule(expert))])
    found["random"] = _stacked([_play(trials, _chance())])
    return _report(found, windows, len(seeds))


def _trained(config: SacConfig, name: str, seed: int, folder: Path, progress: Callable[[str], None]) -> Act:
    """The mean action of the best weights of one training."""
    task = train.TrainingTask(AGENT, recipe.module(AGENT), config, seed, folder / f"{name.replace(' ', '-')}-{seed}")
    for event in train.learn(task):
        if isinstance(event, train.TrainedAgent):
            weights = dict(event.weights)
        else:
            progress(f"{name}, seed {seed}: segment {event.segment} of {event.segments}")
    return lambda states: mean_action(weights, states)


def _rule(expert: str) -> Act:
    shows = EXPERTS[expert].get_demonstration
    return lambda states: np.stack([shows(state) for state in states])


def _chance() -> Act:
    random = np.random.default_rng(UNSEEN)
    return lambda states: random.random((len(states), 3), dtype=np.float32)


def _play(trials: sac_tasks.Vector, act: Act) -> RlallocFigures:
    """(windows,) each."""
    _, infos = sac_tasks.play(trials, act, UNSEEN)
    metrics = [info["metrics"] for info in infos]
    slowdown = np.array([sac_tasks.charged(each) for each in metrics])
    return RlallocFigures(
        slowdown, {column: np.array([each[key] for each in metrics]) for column, key in FIGURES.items()}
    )


def _stacked(played: list[RlallocFigures]) -> RlallocFigures:
    figures = {column: np.stack([each.figures[column] for each in played]) for column in FIGURES}
    return RlallocFigures(np.stack([each.slowdown for each in played]), figures)


def _report(found: Mapping[str, RlallocFigures], windows: int, seeds: int) -> BenchReport:
    others = [name for name in found if name != REFERENCE]
    theirs = found[REFERENCE].slowdown[0]
    ratios = {name: statistics.compare(found[name].slowdown, theirs) for name in others}
    p_values = dict(zip(others, statistics.holm([ratios[name].p for name in others]), strict=True))
    return BenchReport(
        title="RLAlloc-v0: average slowdown of seed 001's method, its parts and its experts",
        columns=("policy", "average slowdown", *FIGURES, f"slowdown over {REFERENCE}'s", "p"),
        rows=tuple(_row(name, played, ratios.get(name), p_values.get(name)) for name, played in found.items()),
        notes=(
            "The seed states no numbers: its repository has neither its environment nor a result to compare with.",
            f"{windows} windows of 60 jobs at load 0.8; learners trained with {seeds} seeds each. The ratio is the "
            "geometric mean over windows, with the 95 % interval over windows and seeds; p is two-sided, after Holm.",
            "All are SJF, FCFS and round robin, one drawn for every episode. They contradict each other: their mean, "
            "which is what imitation alone learns, is the advice of none.",
        ),
    )


def _row(name: str, played: RlallocFigures, ratio: Comparison | None, p: float | None) -> tuple[Cell, ...]:
    means = (float(played.slowdown.mean()), *(float(played.figures[column].mean()) for column in FIGURES))
    if ratio is None or p is None:
        return (name, *means, "1", "–")
    return (name, *means, interval(*(getattr(ratio.ratio, key) for key in ("value", "low", "high"))), p)
