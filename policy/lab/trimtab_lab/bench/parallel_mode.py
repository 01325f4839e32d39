"""The table of seed 000 (Dadizadeh Dargiry 2025) with ours beside it: Q-learning, SARSA and the fixed policy.

What the seed calls accuracy, precision and F1 compares actions with the exhaustively best one (`best_action` of
`sim.envs.parallel_mode`). Every seed trains both algorithms anew, on four of the seven CPU series, and judges them on
the other three, none of whose readings they have seen: seed k keeps the series k, k + 1 and k + 3 (mod 7), so that each
is kept by three of seven seeds, and any two together by one. The fixed policies are the best configuration on the same
four series, and the one that the controller's `fixed` has by default. All meet the same conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from msgspec import convert, to_builtins
from msgspec.structs import replace
from numpy.typing import NDArray
from scipy.stats import t as student

from trimtab_lab.agents import q_learning, recipe, sarsa
from trimtab_lab.agents.table_tasks import ParallelModeConfig, ParallelModeTask
from trimtab_lab.agents.tables import TableTraining
from trimtab_lab.bench.report import BenchReport, Cell, interval
from trimtab_lab.environments import cpu_usage, parallel_mode
from trimtab_lab.environments.parallel_mode import Observation
from trimtab_lab.evaluation import statistics
from trimtab_policy.heuristics.fixed import Fixed

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Act = Callable[[Observation, Mapping[str, Any]], Ints]

KEPT = (0, 1, 3)
"""Series that seed 0 is judged on; their distances mod 7 are all different."""
FIRST_TEST = 1 << 33
"""First seed of test episodes, beyond those of training and validation."""
_CHOICE_EPISODES = 64
"""Of the training series, that the best fixed configuration is chosen on."""
PAPER = {
    "Q-learning": (0.85, 0.83, 0.84, 26.7),
    "SARSA": (0.79, 0.76, 0.77, 22.4),
    "best fixed": (0.74, 0.71, 0.72, 19.6),
}
"""Accuracy, precision, F1, mean total reward; the seed has one fixed policy and does not say which."""
_PAIRS = (("Q-learning", "SARSA"), ("Q-learning", "best fixed"), ("SARSA", "best fixed"))
_MEASURES = {"total_reward": "reward", "kilojoules": "energy", "seconds": "latency"}
COLUMNS = (
    "policy",
    "accuracy",
    "precision (macro)",
    "F1 (macro)",
    "F1 (weighted)",
    "mean total reward",
    "energy (kJ a step)",
    "latency (s a step)",
)


class ParallelModeScore(NamedTuple):
    """What a policy came to on test episodes; the order is that of COLUMNS."""

    accuracy: float
    precision: float
    f1: float
    weighted_f1: float
    total_reward: float
    """Mean over episodes."""
    kilojoules: float
    """Of an optimizer step, mean over time; latency too."""
    seconds: float


def run(
    *,
    seeds: Sequence[int],
    progress: Callable[[str], None],
    episodes: int = 35,
    training: Mapping[str, Any] | None = None,
) -> BenchReport:
    """Train and judge with each seed; `training` replaces figures of the shipped configurations.

    Raises ValueError for figures that they do not have, statistics.TooFewWindows below three splits of the series.
    """
    found: dict[str, list[ParallelModeScore]] = {}
    for seed in seeds:
        progress(f"seed {seed}: training Q-learning and SARSA, and judging them on other servers")
        for name, judged in one(seed, episodes, training or {}).items():
            found.setdefault(name, []).append(judged)
    return report(seeds, found, _steps())


def _steps() -> int:
    """Of an episode."""
    return _config("q_learning", {}).environment.steps


def by_split(seeds: Sequence[int], judged: Sequence[ParallelModeScore]) -> list[ParallelModeScore]:
    """The means of the seeds that were judged on the same series. Only these can count as repetitions: most of what
    differs between seeds is what servers they were judged on."""
    groups: dict[tuple[str, ...], list[ParallelModeScore]] = {}
    for seed, each in zip(seeds, judged, strict=True):
        groups.setdefault(split(seed)[1], []).append(each)
    return [ParallelModeScore(*np.mean(group, axis=0).tolist()) for group in groups.values()]


def split(seed: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """CPU series to train on, and to be judged on."""
    names = cpu_usage.names()
    kept = {(seed + offset) % len(names) for offset in KEPT}
    train, test = (
        tuple(name for index, name in enumerate(names) if (index in kept) is wanted) for wanted in (False, True)
    )
    return train, test


def one(seed: int, episodes: int, training: Mapping[str, Any]) -> dict[str, ParallelModeScore]:
    """All policies of one seed, on the same test episodes."""
    series, unseen = split(seed)
    acts: dict[str, Act] = {}
    for name, agent in (("Q-learning", "q_learning"), ("SARSA", "sarsa")):
        acts[name] = _trained(agent, series, seed, training)
    environment = replace(_config("q_learning", training).environment, series=series)
    acts["best fixed"] = _constant(best_fixed(environment, seed))
    acts["default fixed"] = _constant(_default(environment))
    acts["hindsight"] = lambda _, info: cast(Ints, info["best_action"])
    test = replace(environment, series=unseen)
    return {name: judge(test, act, episodes, seed) for name, act in acts.items()}


def _config(agent: str, training: Mapping[str, Any]) -> ParallelModeConfig:
    found = cast(ParallelModeConfig, recipe.read_recipe(agent, "parallel_mode"))
    return replace(found, training=convert({**to_builtins(found.training), **training}, TableTraining))


def _trained(agent: str, series: tuple[str, ...], seed: int, training: Mapping[str, Any]) -> Act:
    """The greedy policy of the table that this agent learns on these series."""
    config = _config(agent, training)
    config = replace(config, environment=replace(config.environment, series=series))
    learner = {"q_learning": q_learning, "sarsa": sarsa}[agent].make(config, seed)
    for segment in range(learner.segments):
        learner.learn(segment)
    q, bins = learner.weights()["q"], config.environment.bins

    def act(seen: Observation, info: Mapping[str, Any]) -> Ints:
        values = np.where(info["action_mask"], q[parallel_mode.discretise(seen, bins)], -np.inf)
        found: Ints = values.argmax(axis=1)
        return found

    return act


def best_fixed(environment: ParallelModeTask, seed: int) -> int:
    """The configuration with the highest mean reward on episodes of this environment's series."""
    given, random = environment.environment(1).given, np.random.default_rng([seed, 1])
    episodes = [parallel_mode.draw(given, random) for _ in range(_CHOICE_EPISODES)]
    return int(np.mean([each.reward[: given.steps].mean(axis=0) for each in episodes], axis=0).argmax())


def _default(environment: ParallelModeTask) -> int:
    """What the policy `fixed` always wants."""
    usual = Fixed()
    return parallel_mode.configurations(environment.environment(1).given.world).index((usual.gpus, usual.modes[0]))


def _constant(action: int) -> Act:
    return lambda seen, _: np.full(len(seen), action)


def judge(environment: ParallelModeTask, act: Act, episodes: int, seed: int) -> ParallelModeScore:
    """One policy on so many episodes, which follow from the seed."""
    env = environment.environment(episodes)
    actions = len(env.given.world.gpus)
    confusion = np.zeros((actions, actions), dtype=np.int64)
    seen, info = env.reset(seed=FIRST_TEST + seed * episodes)
    earned, joules, seconds = 0.0, 0.0, 0.0
    for _ in range(env.given.steps):
        chosen = act(seen, info)
        np.add.at(confusion, (info["best_action"], chosen), 1)
        seen, rewards, _, _, info = env.step(chosen)
        earned += rewards.mean()
        joules += info["energy_joules"].mean()
        seconds += info["latency_seconds"].mean()
    steps = env.given.steps
    return ParallelModeScore(*scores(confusion), float(earned), float(joules) / steps / 1000, float(seconds) / steps)


def scores(confusion: Ints) -> tuple[float, float, float, float]:
    """Accuracy, macro precision, macro F1 and weighted F1 of counts (best actions, chosen actions).

    Macro is the plain mean over the actions that were best or chosen at least once, where one that was never chosen
    has precision 0; weighted by how often each was best.
    """
    right, best, chosen = np.diag(confusion), confusion.sum(axis=1), confusion.sum(axis=0)
    occurs = best + chosen > 0
    precision = right[occurs] / np.maximum(1, chosen[occurs])
    f1 = 2 * right[occurs] / (best + chosen)[occurs]
    weighted = float(np.average(f1, weights=best[occurs]))
    return float(right.sum() / confusion.sum()), float(precision.mean()), float(f1.mean()), weighted


def report(seeds: Sequence[int], found: Mapping[str, Sequence[ParallelModeScore]], steps: int) -> BenchReport:
    """The table of policies (seeds,), the paper's above each of ours."""
    rows: list[tuple[Cell, ...]] = []
    splits = {name: by_split(seeds, each) for name, each in found.items()}
    for name, judged in splits.items():
        if name in PAPER:
            accuracy, precision, f1, reward = PAPER[name]
            rows.append((f"{name}, paper", accuracy, precision, f1, "–", reward, "–", "–"))
        rows.append((name, *(_mean(column) for column in zip(*judged, strict=True))))
    notes = (*_notes(splits, len(seeds), steps), *_comparisons(splits, found))
    return BenchReport("GPU count and parallel mode (seed 000)", COLUMNS, tuple(rows), notes)


def _mean(values: Sequence[float]) -> str:
    """Mean over the splits with Student's 95 % interval."""
    mean, count = float(np.mean(values)), len(values)
    half = float(np.std(values, ddof=1) / np.sqrt(count) * student.ppf(0.975, count - 1))
    return interval(mean, mean - half, mean + half)


def _notes(found: Mapping[str, Sequence[ParallelModeScore]], seeds: int, steps: int) -> tuple[str, ...]:
    splits = len(found["Q-learning"])
    learned, fixed, best = (
        float(np.mean([each.total_reward for each in found[name]]))
        for name in ("Q-learning", "best fixed", "hindsight")
    )
    return (
        f"{seeds} seeds. Each trains on four CPU series and is judged on the other three. There are {splits} such "
        "splits, and seeds of one split count as one: means over splits with 95 % intervals. These are wide because "
        "series differ, which comparisons in pairs leave out; splits share series, so even they are not independent.",
        f"The total reward is that of {steps} steps (a day), each at most 1; the seed does not say what its 26.7, 22.4 "
        "and 19.6 are sums of, nor how precision and F1 are averaged, nor which configuration is its fixed policy.",
        "Hindsight knows all conditions of the day: no policy can earn more. Of what lies between the best fixed "
        f"configuration and it, Q-learning gains {(learned - fixed) / (best - fixed):.0%}.",
    )


def _comparisons(
    splits: Mapping[str, Sequence[ParallelModeScore]], seeds: Mapping[str, Sequence[ParallelModeScore]]
) -> Iterator[str]:
    """For servers in general over the splits; for these servers, where only training is left to chance, over seeds."""
    count = len(splits["Q-learning"])
    least = 2.0 ** (1 - count) * len(_PAIRS) * len(_MEASURES)
    yield (
        "Ratios within pairs with BCa intervals, p of permutation tests after Holm. Over the "
        f"{count} splits no p can be below {min(1.0, least):.2g}, however clear a difference is."
    )
    yield from _compared("splits", splits)
    yield from _compared("seeds, these servers given", seeds)


def _compared(over: str, found: Mapping[str, Sequence[ParallelModeScore]]) -> Iterator[str]:
    made = {
        (ours, theirs, measure): statistics.compare(
            [getattr(each, measure) for each in found[ours]], [getattr(each, measure) for each in found[theirs]]
        )
        for ours, theirs in _PAIRS
        for measure in _MEASURES
    }
    p_values = dict(zip(made, statistics.holm([each.p for each in made.values()]), strict=True))

    def told(key: tuple[str, str, str]) -> str:
        ratio = made[key].ratio
        return f"{_MEASURES[key[2]]} {ratio.value:.4f} ({ratio.low:.4f}–{ratio.high:.4f}), p = {p_values[key]:.2g}"

    for ours, theirs in _PAIRS:
        yield f"{ours} over {theirs}, over {over}: {'; '.join(told((ours, theirs, each)) for each in _MEASURES)}."
