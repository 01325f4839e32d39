"""One run of an evaluation as plain values, and how it is carried out.

A scenario says all that its run depends on, and nothing else does: it is what workers are sent, what results are
filed under, and what two policies share when they are compared (common random numbers: same jobs, same misfortunes).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from trimtab_lab import workloads
from trimtab_lab.evaluation.contestant import Decider
from trimtab_policy.sim.failures import FailureModel
from trimtab_policy.sim.result import JobRecord, Span
from trimtab_policy.types import Quota

GENERATED = "generator:"
"""What begins the name of a workload that is no file."""


class Scenario(Struct, frozen=True):
    """One policy on one window of one workload on one cluster."""

    policy: str
    """As `evaluation.contestant` reads it: `NAME`, `NAME@SEED`, `NAME+paper`."""
    trace: str
    """File of a trace, or `generator:NAME`."""
    cluster: str
    """As `workloads.clusters.cluster` takes it."""
    load: float | None = None
    """Offered load that arrivals are rescaled to; None: as the trace has them."""
    window: int = 0
    windows: int = 1
    """Of how many windows of the trace this is one; the whole trace where it is one."""
    window_jobs: int = 500
    """Jobs of a window."""
    seed: int = 0
    profiles: str = ""
    """Folder with measured profiles, for workloads that name applications instead of run times."""
    knowledge: str = "fit"
    """What policies know of profiles: `fit`, `pooled`, `exact`, or `model:SIGMA`."""
    estimates: str = "true"
    """Run times of a trace as policies see them, see `estimates`; of jobs of the API, the performance model's error."""
    size_error: float = 0.0
    """Spread of ln(steps that jobs of the API state / true ones)."""
    restart_seconds: float = 30.0
    """What stopping and starting a job of a trace costs; profiles and models have their own."""
    round_seconds: float | None = None
    """None: as the policy's authors have it, or at events."""
    misfortunes: FailureModel = FailureModel()
    quotas: tuple[Quota, ...] = ()
    decider: Decider | None = None
    """For a policy that does not say it itself; None: the controller about jobs of the API, else the policy alone."""
    elastic: float | None = None
    """Share of the jobs that the controller may move and resize, the same ones for all policies; None: those that say
    so. What is not elastic can be stopped for others, or moved as it is."""
    skip_bad: bool = False
    """Leave out bad rows of the trace and jobs that are too large."""
    spans: bool = False
    """Keep who held which GPUs when, to draw it."""

    def files(self) -> list[str]:
        """Files and folders that the run reads."""
        read = [*workloads.files(self.trace), Path(self.cluster), *([Path(self.profiles)] if self.profiles else [])]
        return [str(path) for path in read if path.exists()]


class ToldRuntimes(NamedTuple):
    """What policies are told of run times."""

    users: bool
    """What the users expected, as the trace has it."""
    sigma: float
    """Else the truth times an error, whose logarithm has this spread; 0 for the truth."""

    @property
    def said(self) -> str:
        """In words: the information regime."""
        if self.users:
            return "users' estimates"
        return f"run times estimated, spread of ln {self.sigma:g}" if self.sigma else "run times known"


def estimates(text: str) -> ToldRuntimes:
    """`true`, `user`, or the spread of the error as a number. Raises ValueError for anything else."""
    if text in ("true", "user"):
        return ToldRuntimes(text == "user", 0.0)
    try:
        sigma = float(text)
    except ValueError:
        sigma = math.nan
    if not 0 <= sigma < math.inf:
        raise ValueError(f"--estimates: {text!r}: write true, user, or a spread of ln(estimate / truth) such as 0.5")
    return ToldRuntimes(False, sigma)


class JobGroup(Struct, frozen=True):
    """Some of the measured jobs."""

    jobs: int
    """That finished."""
    avg_jct_h: float


class ScenarioResult(Struct, frozen=True):
    """What came out of a scenario."""

    scenario: Scenario
    regime: str
    """What the policy could know, in words: runs of different regimes do not belong into one table."""
    summary: dict[str, float]
    """`metrics.summary` by its JSON keys."""
    bounds_h: dict[str, float]
    """Certified lower bounds on the average JCT in hours, by name: LB0 to LB3."""
    jct_h: tuple[float, ...]
    """Of the measured jobs that finished."""
    queues: dict[str, JobGroup] = {}
    """Queue -> its measured jobs that finished; of workloads that have queues."""
    decider: Decider = Decider.PAPER
    """What turned the policy's answers into decisions."""
    round_seconds: float | None = None
    """Between two decisions; None: they were made at events."""
    solver_gap: float | None = None
    """Largest relative optimality gap of the policy's solver, if it has one."""
    jobs: tuple[JobRecord, ...] = ()
    """With `spans` only, as are these."""
    held: tuple[Span, ...] = ()
