"""What it is worth that others give way: the simulator with and without the controller, and how long that takes.

64 A100s, LLM jobs of the generator at 90 % load, half of them elastic, with three priorities (70, 20 and 10 % of the
jobs). Policies meet the same jobs. `best_fit` never touches who runs; under the controller room is made for those
who wait (`+room`), and elastic jobs are resized, too (`+controller`); `srtf` and `sia` stop and move whom they like.

A change back is a job that has again what it lost less than an hour before, in GPUs or in having none. GPU-hours idle
are those held without computing: launches, and restarts. Intervals are of ratios to `best_fit` over seeds, paired.

    hack/bench/run room                          # as a part of everything that is measured
    .venv/bin/python -m hack.bench.room [SEEDS]  # by itself
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

from trimtab_lab.evaluation import metrics
from trimtab_lab.evaluation.statistics import MIN_WINDOWS, Interval, compare
from trimtab_lab.workloads import clusters
from trimtab_lab.workloads.generator import llm_jobs
from trimtab_policy.policy import Policy, load
from trimtab_policy.scheduling.accounts import after
from trimtab_policy.scheduling.fair_share import in_line
from trimtab_policy.scheduling.preemption import PreemptionRules, preempt_others
from trimtab_policy.scheduling.resize import ResizeRules, resizes
from trimtab_policy.sim import llm
from trimtab_policy.sim.controller import ControllerRules, SimulatedController
from trimtab_policy.sim.engine import SimRules, simulate
from trimtab_policy.sim.result import Run
from trimtab_policy.types import Job, Node, Snapshot

CLUSTER, LOAD, JOBS, SEEDS = "A100-SXM4-80GB=64", 0.9, 50, 10
PRIORITIES, SHARES = (0, 1, 2), (0.7, 0.2, 0.1)
HOUR = 3600.0
LARGE = "A100-SXM4-80GB=4000,H100-SXM5-80GB=2000,V100-SXM2-16GB=2000"
"""1,000 nodes."""
RUNNING, WAITING, ASKED = 200, 500, 15


class Result(Struct, frozen=True):
    """One policy on one workload."""

    policy: str
    seed: int
    jct_h: float
    by_priority_h: tuple[float | None, ...]
    """Mean JCT of each of `PRIORITIES`; None without such a job."""
    restarts: float
    """Per job: stops, moves and resizes."""
    back: int
    """Changes back within an hour."""
    idle_gpu_h: float
    utilisation: float


class Thinking(Struct, frozen=True):
    """How long room and resizes take on a large cluster, milliseconds of CPU."""

    room_p50: float
    room_max: float
    resize_p50: float
    resize_max: float


class Outcome(Struct, frozen=True):
    """All that was measured."""

    results: list[Result]
    thinking: Thinking

    def of(self, policy: str) -> list[Result]:
        """By seed."""
        return [result for result in self.results if result.policy == policy]


def measure(seeds: int = SEEDS, jobs: int = JOBS, asked: int = ASKED) -> Outcome:
    """Every policy on as many workloads, and as many questions about the large cluster."""
    results = [result for seed in range(seeds) for result in _workload(seed, jobs)]
    return Outcome(results, thinking(asked))


def _workload(seed: int, jobs: int) -> Iterator[Result]:
    cluster = clusters.cluster(CLUSTER)
    random = np.random.default_rng(seed)
    drawn = llm_jobs("llm", jobs, cluster, LOAD, seed=seed)
    described = [replace(job, priority=int(random.choice(PRIORITIES, p=SHARES))) for job in drawn]
    elastic = {job.uid for job in described if random.random() < 0.5}
    for name, (make, round_seconds) in _contestants(lambda job: job.uid in elastic).items():
        run = simulate(make(), llm.jobs(described, cluster, seed=seed), cluster, SimRules(round_seconds=round_seconds))
        yield _result(name, seed, run)


def _contestants(elastic: Callable[[Job], bool]) -> dict[str, tuple[Callable[[], Policy], float | None]]:
    """Name -> how to make it, and the length of its rounds."""
    usual = ControllerRules()
    room_only = replace(usual, rules=replace(usual.rules, resize=None))
    return {
        "best_fit": (lambda: load("best_fit"), None),
        "best_fit+room": (lambda: SimulatedController(load("best_fit"), room_only, elastic), None),
        "best_fit+controller": (lambda: SimulatedController(load("best_fit"), usual, elastic), None),
        "srtf": (lambda: load("srtf"), None),
        "sia": (lambda: load("sia"), 300.0),
    }


def _result(policy: str, seed: int, run: Run) -> Result:
    figures = metrics.summary(run)
    until = np.array([(job.finished or run.end) - job.submitted for job in run.jobs]) / HOUR
    priority = np.array([job.priority for job in run.jobs])
    means = [float(until[priority == each].mean()) if (priority == each).any() else None for each in PRIORITIES]
    idle = sum(job.gpu_seconds - job.productive_gpu_seconds for job in run.jobs) / HOUR
    return Result(
        policy, seed, figures.avg_jct_h, tuple(means), figures.restarts_per_job, changes_back(run), idle,
        figures.utilisation or 0.0,
    )  # fmt: skip


def changes_back(run: Run) -> int:
    """How often a job had again, within an hour, the GPUs that it had lost, or none after it had some."""
    found = 0
    for number in range(len(run.jobs)):
        spans = sorted((span for span in run.spans if span.job == number), key=lambda span: span.begin)
        states: list[tuple[float, int]] = []
        for span, following in pairwise([*spans, None]):
            if span is None:
                continue
            states.append((span.begin, sum(share.gpus for share in span.shares)))
            if following is None or following.begin > span.end + 1.0:
                states.append((span.end, 0))
        if states and states[-1][1] == 0:
            states.pop()  # its end is no change
        for (_, before), (lost, between), (again, then) in zip(states, states[1:], states[2:], strict=False):
            found += before == then != between and again - lost < HOUR
    return found


# --- thinking ----------------------------------------------------------------------------------------------------
def thinking(asked: int = ASKED) -> Thinking:
    """CPU time of one question about 1,000 full nodes, 200 running jobs and 500 that wait."""
    now = large()
    rules, idle = PreemptionRules(), replace(now, jobs=tuple(job for job in now.jobs if job.placement))
    room = _timed(asked, lambda: preempt_others(now, now.waiting(), rules))
    resize = _timed(asked, lambda: resizes(idle, ResizeRules()))
    return Thinking(float(np.median(room)), max(room), float(np.median(resize)), max(resize))


def _timed(asked: int, question: Callable[[], object]) -> list[float]:
    question()  # plans are searched once, and by the policy
    spent = []
    for _ in range(asked):
        began = time.process_time()
        question()
        spent.append(1e3 * (time.process_time() - began))
    return spent


def large(seed: int = 1) -> Snapshot:
    """A large cluster in use: other nodes are busy with pods of others, but for a few GPUs here and there."""
    cluster, random = clusters.cluster(LARGE), np.random.default_rng(seed)
    drawn = llm_jobs("llm", 2 * RUNNING + WAITING, cluster, LOAD, seed=seed)
    first = replace(cluster, jobs=tuple(drawn[: 2 * RUNNING]))
    placed = after(first, load("best_fit").decide(first))
    running = [_lives(job, random) for job in placed.jobs if job.placement][:RUNNING]
    waiting = [replace(job, priority=int(random.choice(PRIORITIES, p=SHARES))) for job in drawn[2 * RUNNING :]]
    held = {share.node for job in running if job.placement for share in job.placement.shares}
    nodes = tuple(node if node.name in held else _busy(node, random) for node in placed.nodes)
    now = replace(cluster, nodes=nodes, jobs=(*running, *waiting))
    left = after(now, load("best_fit").decide(now))  # who fits as it is is the policy's to place
    return in_line(left)


def _lives(job: Job, random: np.random.Generator) -> Job:
    """A job that has run for a while and may be touched."""
    return replace(
        job,
        started=-float(random.uniform(HOUR, 10 * HOUR)),
        movable_from=0.0,
        preemptible=bool(random.random() < 0.5),
        lost_seconds=float(random.uniform(0, 900)),
        restart_seconds=100.0,
        priority=int(random.choice(PRIORITIES, p=SHARES)),
    )


def _busy(node: Node, random: np.random.Generator) -> Node:
    return replace(node, free_gpus=int(random.choice([0, 1, 2, 4], p=[0.9, 0.04, 0.03, 0.03])))


# --- for people --------------------------------------------------------------------------------------------------
def goals(outcome: Outcome) -> Iterator[tuple[str, float, float, bool]]:
    """What, figure, goal, and whether more is better."""
    yield "room for 500 waiting jobs on 1,000 nodes, CPU ms (max)", outcome.thinking.room_max, 500.0, False


def table(outcome: Outcome) -> Table:
    """A row for each policy: means over seeds, and ratios of mean JCT to the first one."""
    heads = ["POLICY", "JCT h", "÷ best_fit", *(f"PRIO {each} h (÷)" for each in reversed(PRIORITIES))]
    heads += ["RESTARTS/JOB", "BACK", "IDLE GPU-H", "UTILISATION"]
    found = Table(*heads, title="who gives way", title_justify="left", box=None, pad_edge=False)
    names = list(dict.fromkeys(result.policy for result in outcome.results))
    for name in names:
        found.add_row(name, *_row(outcome.of(name), outcome.of(names[0])))
    return found


def _row(ours: Sequence[Result], base: Sequence[Result]) -> list[str]:
    priorities = [
        f"{_mean(ours, i):.2f}"
        f" ({_told(_ratio([o.by_priority_h[i] for o in ours], [b.by_priority_h[i] for b in base]))})"
        for i in reversed(range(len(PRIORITIES)))
    ]
    return [
        f"{np.mean([one.jct_h for one in ours]):.2f}",
        _told(_ratio([one.jct_h for one in ours], [one.jct_h for one in base])),
        *priorities,
        f"{np.mean([one.restarts for one in ours]):.2f}",
        f"{np.mean([one.back for one in ours]):.1f}",
        f"{np.mean([one.idle_gpu_h for one in ours]):.1f}",
        f"{np.mean([one.utilisation for one in ours]):.3f}",
    ]


def _mean(ours: Sequence[Result], priority: int) -> float:
    known = [each for one in ours if (each := one.by_priority_h[priority]) is not None]
    return float(np.mean(known)) if known else math.nan


def _ratio(ours: Sequence[float | None], base: Sequence[float | None]) -> Interval | None:
    """Over the seeds in which there is something to compare."""
    pairs = [(a, b) for a, b in zip(ours, base, strict=True) if a is not None and b is not None]
    if len(pairs) < MIN_WINDOWS:
        return None
    return compare([a for a, _ in pairs], [b for _, b in pairs]).ratio


def _told(ratio: Interval | None) -> str:
    return f"{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]" if ratio else "-"


def think_table(outcome: Outcome) -> Table:
    """How long one question takes."""
    heads = ("1,000 NODES, 200 RUN, 500 WAIT", "p50 ms", "MAX ms")
    found = Table(*heads, title="thinking, CPU", title_justify="left", box=None, pad_edge=False)
    times = outcome.thinking
    found.add_row("preempt", f"{times.room_p50:.0f}", f"{times.room_max:.0f}")
    found.add_row("resizes (nobody waits)", f"{times.resize_p50:.0f}", f"{times.resize_max:.0f}")
    return found


if __name__ == "__main__":
    measured = measure(*(int(each) for each in sys.argv[1:2]))
    Console(width=200).print(table(measured), think_table(measured))
