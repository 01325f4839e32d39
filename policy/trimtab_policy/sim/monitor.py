"""Whether a policy does worse than its fallback on a cluster: the jobs of its last day, lived again under both.

Both decide through the whole pipeline of the controller, on the same nodes and the same jobs, which were as large as
they turned out to be. What is compared is the ratio of their average job completion times (JCT), with a bootstrap
interval over jobs in pairs (Efron and Tibshirani 1993, chapter 8), and a verdict needs more than a ratio:

- *enough jobs*, and an interval that lies above 1;
- *more than one tenant*: what one namespace counts for is bounded, and where there are three or more, the policy must
  be worse without any one of them, too. So no single namespace can drive a policy out, whatever its own jobs are like.

Who has fallen comes back after several comparisons in a row in which it was no worse (`judge`). All of this depends on
its arguments and the seed alone, but for how many of the jobs fit into the time (`Budget`): those that came last.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from trimtab_policy.perf.plans import Offer, options_by_type
from trimtab_policy.policy import Policy
from trimtab_policy.sim import llm, replay
from trimtab_policy.sim.controller import ControllerRules, SimulatedController
from trimtab_policy.sim.engine import SimRules, Stuck, simulate
from trimtab_policy.sim.llm import LlmRules
from trimtab_policy.sim.node_accounts import NodeAccounts
from trimtab_policy.types import Job, Snapshot

T = TypeVar("T")
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

CUT = 3.0
"""The policy's run is cut off after so many times what the fallback's takes: who starves jobs would never end."""
MOST_RATIO = 4.0
"""What the ratio of one namespace counts as at most, and its inverse at least."""
SEVERAL = 3
"""Namespaces from which on none of them alone decides."""
GROWTH = 2
"""By how much the part of the window grows that is lived next."""


class OutOfTime(Exception):
    """The time for a comparison is used up."""


class MonitorRules(Struct, frozen=True):
    """When a policy counts as worse than its fallback, and as better again."""

    margin: float = 0.05
    """By how much its average JCT is longer than the fallback's: 0.05 is 5 %."""
    least_jobs: int = 30
    """Of fewer jobs nothing is concluded."""
    most_share: float = 0.25
    """Of all time that jobs take under the fallback, the part that one namespace counts for at most; where there are
    too few namespaces for that, all count the same."""
    returns_after: int = 4
    """Comparisons in a row in which it is no worse, before it decides again."""
    level: float = 0.95
    """Confidence of the interval."""
    resamples: int = 2000
    seed: int = 0
    """Draws the resamples."""

    def __post_init__(self) -> None:
        """Raise ValueError naming the field."""
        if not 0 <= self.margin < math.inf:
            raise ValueError(f"margin must be finite and not negative, got {self.margin}")
        for name in ("most_share", "level"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name} must be between 0 and 1, got {getattr(self, name)}")
        for name in ("least_jobs", "returns_after", "resamples"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


class Figures(Struct, frozen=True):
    """What became of the jobs under one policy."""

    average_jct: float
    """Seconds."""
    p99_jct: float
    restarts: int
    unfinished: int
    """Jobs that had not ended when the run was cut off; they count as if they had ended then."""


class Comparison(Struct, frozen=True):
    """A policy beside its fallback on the same jobs. Ratios are of average JCTs: below 1, the policy is faster."""

    policy: str
    fallback: str
    jobs: int
    of: int
    """Jobs of the whole window: where it has more than `jobs`, time was up."""
    ratio: float
    low: float
    high: float
    without_one: float
    """The lowest ratio without one of the namespaces; `ratio` where there are too few of them."""
    ours: Figures
    theirs: Figures
    queues: dict[str, float] = {}
    """Queue -> the plain ratio of its jobs."""
    priorities: dict[str, float] = {}

    def describe(self) -> str:
        """`rudder: average JCT of 120 jobs of the last day 1.31 times that under best_fit (1.12 to 1.50), ...`."""
        ours, theirs = self.ours, self.theirs
        return (
            f"{self.policy}: average JCT of {self.jobs} jobs of the last day {self.ratio:.2f} times that under"
            f" {self.fallback} ({self.low:.2f} to {self.high:.2f}), 99th percentile"
            f" {ours.p99_jct / max(1.0, theirs.p99_jct):.2f} times, {ours.restarts} restarts beside {theirs.restarts}"
        )


class Standing(Struct, frozen=True):
    """Who decides by what was found so far. It outlives a controller."""

    policy: str = ""
    fallback: str = ""
    fallen: bool = False
    """The fallback decides in the policy's place."""
    better: int = 0
    """Comparisons in a row, since it fell, in which it was no worse."""
    since: float = 0.0
    """When it fell or came back last, as a POSIX time; 0: never."""
    compared: float = 0.0
    """When it was compared last, as a POSIX time."""
    latest: Comparison | None = None

    def concerns(self, policy: str, fallback: str) -> bool:
        """Whether it is about these two."""
        return (self.policy, self.fallback) == (policy, fallback)


def judge(standing: Standing, found: Comparison, rules: MonitorRules, now: float) -> Standing:
    """What follows from one more comparison, made at POSIX time `now`. What was known of others is forgotten."""
    if not standing.concerns(found.policy, found.fallback):
        standing = Standing(found.policy, found.fallback)
    standing = replace(standing, compared=now, latest=found)
    if found.jobs < rules.least_jobs:
        return standing
    if not standing.fallen:
        return replace(standing, fallen=True, better=0, since=now) if worse(found, rules) else standing
    better = standing.better + 1 if found.ratio <= 1.0 else 0
    if better < rules.returns_after:
        return replace(standing, better=better)
    return replace(standing, fallen=False, better=0, since=now)


def worse(found: Comparison, rules: MonitorRules) -> bool:
    """Whether the policy is worse by more than the margin, surely so, and for more than one tenant."""
    return found.low > 1.0 and min(found.ratio, found.without_one) > 1.0 + rules.margin


class Budget:
    """CPU time for a comparison, and how much of a core it may take: it rests in between."""

    def __init__(
        self,
        seconds: float,
        share: float = 1.0,
        clock: Callable[[], float] = time.process_time,
        rest: Callable[[float], None] = time.sleep,
    ) -> None:
        self.left, self._share, self._clock, self._rest = seconds, share, clock, rest
        self._seen = clock()

    def spend(self, finished: int = 0, now: float = 0.0) -> None:
        """Charge what was used since the last call, as `sim.engine.Watch`. Raises OutOfTime."""
        used, self._seen = max(0.0, self._clock() - self._seen), self._clock()
        self.left -= used
        if self.left <= 0:
            raise OutOfTime
        if self._share < 1:
            self._rest(used * (1 / self._share - 1))


class Contest(Struct, frozen=True):
    """What is compared, and how the controller decides."""

    policy: str
    fallback: str
    window: Snapshot
    """As of `window` ..."""
    seconds: float
    """... and its length: no job is taken to be longer than this on what it is fastest on, whatever it states."""
    how: ControllerRules = ControllerRules()
    elastic: bool = True
    """Whether elastic jobs may be resized at all."""
    rules: MonitorRules = MonitorRules()


def window(now: Snapshot, jobs: Iterable[Job], begin: float) -> Snapshot:
    """The nodes of a live snapshot, free of its jobs, with those jobs to come that were there from `begin` (POSIX) on.

    `jobs` wait, with `training.steps` as many as they turned out to make from then on. Nobody's own choice of a policy
    counts, and sizes are told to policies as they turned out.
    """
    accounts, known = NodeAccounts(now), {node.name for node in now.nodes}
    for job in now.jobs:
        if job.placement and all(share.node in known for share in job.placement.shares):
            accounts.give(job, job.placement)
    come = sorted((_new(job) for job in jobs), key=lambda job: (job.created, job.uid))
    return replace(now, time=begin, nodes=accounts.nodes, jobs=tuple(come), ending={}, granted=0)


def _new(job: Job) -> Job:
    return replace(
        job,
        placement=None,
        grants=(),
        started=None,
        expected_finish=None,
        steps_done=0,
        policy=None,
        restarts=0,
        served={},
        not_before=0.0,
        waits_since=None,
        corrections=(),
        share=0.0,
        entitled=False,
        deadline=None,
        movable_from=0.0,
        stoppable_from=None,
    )


def compare(contest: Contest, load: Callable[[str], Policy], budget: Budget) -> Comparison | None:
    """Live the window under both policies: all of it, or as many of the jobs that came last as the budget allows.

    None where not even the fewest that a verdict needs fit into the budget, or are there. Raises whatever a policy
    raises, and BrokenDecision or Stuck where the fallback does not get through.
    """
    case = replay.sorted_out(contest.window)
    longest = contest.seconds * contest.window.speedup
    jobs = tuple(_at_most(job, case.snapshot, longest) for job in case.snapshot.jobs)
    found: Comparison | None = None
    number = min(len(jobs), contest.rules.least_jobs)
    if number < contest.rules.least_jobs:
        return None
    try:
        while True:
            before = budget.left
            part = latest(jobs, lambda job: job.namespace, number, contest.rules.most_share)
            found = replace(_lived(contest, load, case.snapshot, part, budget), of=len(jobs))
            used = before - budget.left
            if number == len(jobs) or GROWTH * used > budget.left:
                return found
            number = min(len(jobs), GROWTH * number)
    except OutOfTime:
        return found


def latest(items: Sequence[T], namespace: Callable[[T], str], number: int, most: float) -> Sequence[T]:
    """The last `number` of what is in the order in which it came, in that order, or all.

    Where that are not all, and several namespaces have some, one has the part `most` of them at most: its many do not
    take the places of all others, nor the verdict into its hands.
    """
    if number >= len(items):
        return items
    there = len({namespace(each) for each in items})
    limit = math.ceil(max(most, 1 / there) * number) if there >= SEVERAL else number
    taken: list[T] = []
    counted: Counter[str] = Counter()
    for each in reversed(items):
        if counted[namespace(each)] < limit:
            counted[namespace(each)] += 1
            taken.append(each)
        if len(taken) == number:
            break
    return taken[::-1]


def _at_most(job: Job, cluster: Snapshot, seconds: float) -> Job:
    """The job with no more steps than it could make in so many seconds: of one that waits nobody knows the truth."""
    sizes: dict[str, int] = {}
    for node in cluster.nodes:
        sizes[node.gpu_type] = max(node.gpus, sizes.get(node.gpu_type, 0))
    offers = tuple(Offer(cluster.gpu_types[name], gpus) for name, gpus in sizes.items())
    found = options_by_type(job.model, job.training, job.requirements, offers)
    fastest = min((each.prediction.step_seconds for of_type in found for each in of_type), default=0.0)
    if not fastest or job.training.steps * fastest <= seconds:
        return job
    return replace(job, training=replace(job.training, steps=max(1, int(seconds / fastest))))


def _lived(
    contest: Contest, load: Callable[[str], Policy], cluster: Snapshot, jobs: Sequence[Job], budget: Budget
) -> Comparison:
    """Two lives of these jobs, which are in the order in which they came."""
    begin = max(cluster.time, jobs[0].created)
    empty = replace(cluster, time=begin, jobs=())

    def live(name: str, until: float) -> tuple[FloatArray, Figures, float]:
        made = llm.jobs(jobs, empty, LlmRules(restarts_told=True))
        policy = SimulatedController(load(name), contest.how, lambda job: contest.elastic and job.elastic)
        try:
            run = simulate(policy, made, empty, SimRules(until=until), budget.spend)
        except Stuck:
            if math.isinf(until):
                raise
            stays = np.array([max(1.0, until - each.submitted) for each in made])
            return stays, Figures(float(stays.mean()), float(np.percentile(stays, 99)), 0, len(made)), until
        ended = np.array([until if each.finished is None else each.finished for each in run.jobs])
        stays = np.maximum(1.0, ended - np.array([each.submitted for each in run.jobs]))
        restarts = sum(each.restarts for each in run.jobs)
        unfinished = sum(each.finished is None for each in run.jobs)
        return stays, Figures(float(stays.mean()), float(np.percentile(stays, 99)), restarts, unfinished), run.end

    theirs, their_figures, end = live(contest.fallback, math.inf)
    ours, our_figures, _ = live(contest.policy, CUT * end)
    namespaces = np.unique([job.namespace for job in jobs], return_inverse=True)[1]
    ratio, low, high = interval(ours, theirs, namespaces, contest.rules)
    return Comparison(
        contest.policy,
        contest.fallback,
        jobs=len(jobs),
        of=len(jobs),
        ratio=ratio,
        low=low,
        high=high,
        without_one=without_one(ours, theirs, namespaces, contest.rules),
        ours=our_figures,
        theirs=their_figures,
        queues=_plain(ours, theirs, [job.queue for job in jobs]),
        priorities=_plain(ours, theirs, [str(job.priority) for job in jobs]),
    )


# --- statistics -------------------------------------------------------------------------------------------------------
def interval(
    ours: FloatArray, theirs: FloatArray, namespaces: IntArray, rules: MonitorRules
) -> tuple[float, float, float]:
    """The ratio of the averages of `ours` and `theirs`, in seconds and (jobs,) both, and its percentile interval.

    `namespaces` (jobs,) are numbered from 0 on, without gaps. A job is drawn with what became of it under both.
    """
    jobs, members = len(ours), _members(namespaces)
    draws = np.random.default_rng(rules.seed).multinomial(jobs, np.full(jobs, 1 / jobs), size=rules.resamples)
    counts = draws.astype(np.float64)
    drawn = _ratio(counts @ (ours[:, None] * members), counts @ (theirs[:, None] * members), rules.most_share)
    low, high = np.quantile(drawn, ((1 - rules.level) / 2, (1 + rules.level) / 2))
    return _all(ours, theirs, members, rules), float(low), float(high)


def without_one(ours: FloatArray, theirs: FloatArray, namespaces: IntArray, rules: MonitorRules) -> float:
    """The lowest ratio that is left without one of the namespaces; that of all where they are fewer than `SEVERAL`."""
    members = _members(namespaces)
    every = members.shape[1]
    if every < SEVERAL:
        return _all(ours, theirs, members, rules)
    return min(_all(ours, theirs, np.delete(members, left_out, axis=1), rules) for left_out in range(every))


def _members(namespaces: IntArray) -> FloatArray:
    """(jobs, namespaces), 1 where a job is of a namespace."""
    return np.asarray(np.arange(namespaces.max() + 1)[None, :] == namespaces[:, None], dtype=np.float64)


def _all(ours: FloatArray, theirs: FloatArray, members: FloatArray, rules: MonitorRules) -> float:
    return float(_ratio((ours @ members)[None, :], (theirs @ members)[None, :], rules.most_share)[0])


def _ratio(ours: FloatArray, theirs: FloatArray, most: float) -> FloatArray:
    """(rows,) ratios of sums over namespaces, (rows, namespaces) both: where no namespace has more than the part `most`
    of `theirs`, that of all jobs together; else as if it had no more."""
    there = theirs > 0
    each = np.clip(np.divide(ours, theirs, out=np.ones_like(ours), where=there), 1 / MOST_RATIO, MOST_RATIO)
    share = theirs / theirs.sum(axis=1, keepdims=True)
    limit = np.maximum(most, 1 / np.maximum(1, there.sum(axis=1, keepdims=True)))
    full = np.zeros(share.shape, dtype=bool)
    for _ in range(math.ceil(1 / most)):  # in each turn one is full at least, and no more than that can be
        rest = np.where(full, 0.0, share)
        left = 1.0 - limit * full.sum(axis=1, keepdims=True)
        total = rest.sum(axis=1, keepdims=True)
        spread = rest * np.divide(left, total, out=np.zeros_like(left), where=total > 0)
        part = np.where(full, limit, spread)
        full |= there & (part >= limit - 1e-12)
    return np.asarray((part * each).sum(axis=1) / part.sum(axis=1))


def _plain(ours: FloatArray, theirs: FloatArray, groups: Sequence[str]) -> dict[str, float]:
    """Group -> ratio of the averages of its jobs."""
    found: dict[str, float] = {}
    for name in sorted(set(groups)):
        of_group = np.array([each == name for each in groups])
        found[name] = float(ours[of_group].sum() / theirs[of_group].sum())
    return found
