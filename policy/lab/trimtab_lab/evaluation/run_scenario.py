"""From a scenario to its outcome: simulate, measure, and hold against the lower bound.

What several scenarios share (profiles, bounds) is kept for the next one in the same process.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Protocol, runtime_checkable

import msgspec
import numpy as np

from trimtab_lab import bounds, goodput, rigid
from trimtab_lab.bounds import Bound, BoundsDemand
from trimtab_lab.evaluation import controls, hyperscore, metrics
from trimtab_lab.evaluation.contestant import Contestant, Decider, contestant
from trimtab_lab.evaluation.metrics import Summary
from trimtab_lab.evaluation.scenario import JobGroup, Scenario, ScenarioResult, ToldRuntimes, estimates
from trimtab_lab.evaluation.workload import WindowWorkload, workload
from trimtab_lab.goodput import Form, Knowledge, Regime
from trimtab_lab.goodput.profiles import Profiles
from trimtab_lab.kernel import Discipline
from trimtab_lab.kernel import run as kernel_run
from trimtab_lab.rigid import RigidRules
from trimtab_lab.workloads import clusters
from trimtab_lab.workloads.trace import Trace
from trimtab_policy.policy import Policy, Solves
from trimtab_policy.sim import llm
from trimtab_policy.sim.controller import SimulatedController, is_elastic
from trimtab_policy.sim.engine import SimRules, simulate
from trimtab_policy.sim.failures import FailureModel
from trimtab_policy.sim.job import SimJob
from trimtab_policy.sim.llm import LlmRules
from trimtab_policy.sim.result import JobRecord, Run
from trimtab_policy.types import Job, Snapshot

PROFILE_ROUND = 60.0
"""Seconds of a round on measured profiles, of Sia and of whoever is not in `_ROUNDS`."""
_ROUNDS = {"sia": 60.0, "pollux": 60.0, "gavel": 360.0}
"""Length of rounds by what a policy's name begins with: those that its authors use."""
_FORMS = dict.fromkeys(("sia", "sized_sia", "rudder", "analytic_rudder"), Form.ADAPTIVE) | {"pollux": Form.UNAWARE}
"""What policies may change about measured jobs; all others get requests that were tuned by hand."""
MANY = 20_000
"""Jobs from which on the kernel is used; it measures no decisions."""
_ROUNDING = 0.02
"""By how much measured jobs may beat their bound: their epochs end on whole seconds."""


@runtime_checkable
class _KnowsRounds(Protocol):
    round_seconds: float


@runtime_checkable
class _BreaksTies(Protocol):
    tie_seed: int | None


def run_scenario(scenario: Scenario) -> ScenarioResult:
    """Carry out a scenario.

    Raises ValueError in one line: for bad files, for names that are unknown or do not go together, for a policy that
    breaks rules (BrokenDecision, Stuck) or is better than can be (BelowBound).
    """
    cluster, who = clusters.cluster(scenario.cluster), contestant(scenario.policy)
    work = workload(_without_policy(scenario))
    decider = who.decider or scenario.decider or (Decider.CONTROLLER if work.trace is None else Decider.PAPER)
    length = _round(scenario, who, decider)
    policy = _policy(who, length)
    alone = decider is Decider.PAPER
    if alone and scenario.elastic is not None:
        raise ValueError(f"--elastic: {who.name} decides alone here; write {who.name}+{Decider.CONTROLLER}")
    if alone and work.trace and len(work.trace) >= MANY and _covered(scenario, who):
        result, regime = _by_kernel(scenario, who, work.trace, cluster)
    else:
        decides = policy if alone else SimulatedController(policy, elastic=elastic(scenario))
        result, regime = _by_engine(scenario, _form(who.name), decides, work, length)
    demand, bound = _bound(_without_policy(scenario), _form(who.name) if scenario.profiles else None)
    bounds.check(result, demand, bound, work.measured, _ROUNDING if scenario.profiles else 1e-6)
    figures = metrics.summary(result, work.measured)
    chosen = [record for record, counts in zip(result.jobs, work.measured.tolist(), strict=True) if counts]
    summary = msgspec.to_builtins(figures) | {
        "hyperscore": _hyperscore(figures, bound),
        "worst_slowdown": _worst_slowdown(chosen, demand, result.end),
    }
    return ScenarioResult(
        scenario=scenario,
        regime=regime,
        summary={name: math.nan if value is None else float(value) for name, value in summary.items()},
        bounds_h={name: getattr(bound, name.lower()) / 3600 for name in ("LB0", "LB1", "LB2", "LB3")},
        jct_h=tuple(jct for job in chosen if (jct := _jct_h(job)) is not None),
        queues=_queues(chosen),
        decider=decider,
        round_seconds=length,
        solver_gap=policy.largest_gap if isinstance(policy, Solves) else None,
        jobs=result.jobs if scenario.spans else (),
        held=result.spans if scenario.spans else (),
    )


def elastic(scenario: Scenario) -> Callable[[Job], bool]:
    """Which jobs may be moved and resized: by a hash of their names, so that the same ones may at any share above."""
    share = scenario.elastic
    if share is None:
        return is_elastic
    return lambda job: zlib.crc32(f"{scenario.seed} {job.uid}".encode()) < share * 2**32


def _jct_h(job: JobRecord) -> float | None:
    return None if job.finished is None else (job.finished - job.submitted) / 3600


def _worst_slowdown(jobs: Sequence[JobRecord], demand: BoundsDemand, end: float) -> float:
    """Largest JCT over what the job takes on the best GPUs for it, alone: the same denominator for all policies, which
    neither the finish-time fairness nor the slowdown of `metrics` has. A job that was cut off counts as it stands."""
    jct = [(end if job.finished is None else job.finished) - job.submitted for job in jobs]
    return float((np.array(jct) / demand.alone).max())


def _queues(jobs: Sequence[JobRecord]) -> dict[str, JobGroup]:
    times: dict[str, list[float]] = {}
    for job in jobs:
        if job.queue and (jct := _jct_h(job)) is not None:
            times.setdefault(job.queue, []).append(jct)
    return {queue: JobGroup(len(of_queue), fmean(of_queue)) for queue, of_queue in sorted(times.items())}


def _by_kernel(scenario: Scenario, who: Contestant, trace: Trace, cluster: Snapshot) -> tuple[Run, str]:
    """Where it is worth it, and covers all that is asked for."""
    run = kernel_run.run_kernel(Discipline(who.name), trace, cluster, _rigid(scenario))
    return run, estimates(scenario.estimates).said


def _by_engine(
    scenario: Scenario, form: Form, policy: Policy, work: WindowWorkload, round_seconds: float | None
) -> tuple[Run, str]:
    cluster = clusters.cluster(scenario.cluster)
    jobs, regime = _jobs(scenario, form, work, cluster)
    rules = SimRules(
        round_seconds=round_seconds, misfortunes=scenario.misfortunes, quotas=scenario.quotas, seed=work.seed
    )
    return simulate(policy, jobs, cluster, rules), regime


def _covered(scenario: Scenario, who: Contestant) -> bool:
    """LAS is left to the engine: the kernel does without the promotion of starved jobs."""
    asked = (scenario.profiles, scenario.round_seconds, scenario.quotas, who.seed is not None)
    return (
        not any(asked)
        and estimates(scenario.estimates) == ToldRuntimes(users=False, sigma=0.0)
        and scenario.misfortunes == FailureModel()
        and who.name in set(Discipline) - {Discipline.LAS}
    )


def _rigid(scenario: Scenario) -> RigidRules:
    return RigidRules(restart_seconds=scenario.restart_seconds, estimate_sigma=estimates(scenario.estimates).sigma)


def _hyperscore(figures: Summary, bound: Bound) -> float | None:
    """None where nothing was computed. Rounding may bring a time below its bound, see `_ROUNDING`."""
    if not figures.goodput_utilisation:
        return None
    times = (figures.avg_jct_h * 3600, figures.makespan_h * 3600)
    jct, makespan = (min(least, time) for least, time in zip((bound.mean_jct, bound.makespan), times, strict=True))
    return hyperscore.hyperscore(hyperscore.value(times[0], jct, times[1], makespan, figures.goodput_utilisation))


def _policy(who: Contestant, round_seconds: float | None) -> Policy:
    policy = controls.load(who.name)
    if round_seconds and isinstance(policy, _KnowsRounds):
        policy.round_seconds = round_seconds
    if who.seed is not None:
        if not isinstance(policy, _BreaksTies):
            raise ValueError(f"policy {who.name}@{who.seed}: {who.name} has no ties to break by a seed")
        policy.tie_seed = who.seed
    return policy


def _without_policy(scenario: Scenario) -> Scenario:
    """What all policies have in common."""
    return msgspec.structs.replace(scenario, policy="", round_seconds=None, spans=False)


@lru_cache(maxsize=2)
def _profiles(path: str) -> Profiles:
    return Profiles(Path(path))


def _jobs(scenario: Scenario, form: Form, work: WindowWorkload, cluster: Snapshot) -> tuple[Sequence[SimJob], str]:
    """The simulated jobs, and what is known about them."""
    if work.trace is None:
        sigma = estimates(scenario.estimates).sigma
        rules = LlmRules(error_sigma=sigma, size_sigma=scenario.size_error)
        known = f"performance model, in error by {sigma:g}" if sigma else "performance model, without error"
        wrong = f", sizes in error by {scenario.size_error:g}" if scenario.size_error else ""
        return llm.jobs(work.described, cluster, rules, work.seed), known + wrong
    if scenario.profiles:
        return _measured(scenario, form, work.trace, cluster)
    return rigid.jobs(work.trace, cluster, _rigid(scenario), work.seed), estimates(scenario.estimates).said


def _measured(scenario: Scenario, form: Form, trace: Trace, cluster: Snapshot) -> tuple[Sequence[SimJob], str]:
    knowledge = _knowledge(scenario.knowledge, scenario.seed)
    found = goodput.jobs(trace, _profiles(scenario.profiles), form, knowledge, cluster=cluster)
    if form is Form.TUNED:
        return found, "requests tuned by hand, true throughput"
    said = {
        Regime.FIT: "fitted online by each job, at most doubling",
        Regime.POOLED: "fitted online by application, at most doubling",
        Regime.MODEL: f"performance model, in error by {knowledge.sigma:g}, corrected online",
        Regime.EXACT: "true goodput",
    }
    return found, said[knowledge.regime]


def _form(name: str) -> Form:
    return _FORMS.get(name, Form.TUNED)


def _knowledge(text: str, seed: int) -> Knowledge:
    """`fit`, `pooled`, `exact` or `model:SIGMA`."""
    name, _, sigma = text.partition(":")
    regimes = {regime.lower(): regime for regime in Regime}
    if name not in regimes or (name == "model") != bool(sigma):
        raise ValueError(f"knowledge {text!r}: write fit, pooled, exact or model:SIGMA, such as model:0.1")
    try:
        return Knowledge(regimes[name], sigma=float(sigma or 0), seed=seed)
    except ValueError as error:
        raise ValueError(f"knowledge {text!r}: {error}") from error


def _round(scenario: Scenario, who: Contestant, decider: Decider) -> float | None:
    """The controller decides at events, unless rounds are asked for."""
    if scenario.round_seconds is not None or decider is Decider.CONTROLLER:
        return scenario.round_seconds
    own = next((seconds for name, seconds in _ROUNDS.items() if who.name.startswith(name)), None)
    return own or (PROFILE_ROUND if scenario.profiles else None)


@lru_cache(maxsize=8)
def _bound(scenario: Scenario, form: Form | None) -> tuple[BoundsDemand, Bound]:
    """What nobody can beat on the measured jobs, in that form of them."""
    cluster, work = clusters.cluster(scenario.cluster), workload(scenario)
    jobs, _ = _jobs(scenario, form or Form.TUNED, work, cluster)
    chosen = bounds.of_jobs(jobs, cluster).select(work.measured)
    return chosen, bounds.best(chosen)
