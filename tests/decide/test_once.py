"""One decision, whoever asks: the live controller, `plan`, the first step of `replay` and of `whatif`.

All are asked about the same snapshot as it was written to a file and read again.
"""

from __future__ import annotations

import math
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as bounded
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.builders import A100, NOW, T4, job, node, snapshot
from tests.strategies import snapshots

from trimtab import settings
from trimtab.api.v1alpha1 import Elasticity
from trimtab.commands.dumps import portable, read_snapshot
from trimtab.decide.engine import Engine
from trimtab.decide.rules import rules_of
from trimtab_policy.policy import Policy, load
from trimtab_policy.scheduling.accounts import after
from trimtab_policy.scheduling.choice import Choice
from trimtab_policy.scheduling.rules import Rules
from trimtab_policy.sim import replay
from trimtab_policy.sim.controller import ControllerRules, SimulatedController
from trimtab_policy.sim.engine import SimRules, simulate
from trimtab_policy.specs import Precision
from trimtab_policy.types import Decision, Job, Quota, Snapshot

CONFIGURED = settings.Settings()
LIVE = rules_of(CONFIGURED, resize=True)


class First(Exception):
    """Ends a simulation with its first decision."""

    def __init__(self, decision: Decision) -> None:
        super().__init__()
        self.decision = decision


class Stopping:
    """Decides once."""

    def __init__(self, inner: Policy) -> None:
        self.name, self._inner = inner.name, inner

    def decide(self, snapshot: Snapshot) -> Decision:
        raise First(self._inner.decide(snapshot))


def in_what_ships(now: Snapshot, policy: str, rules: Rules) -> Decision:
    """As the controller decides, and `plan`."""
    found = Engine().decide(now, Choice(policy, "fcfs", deadline_seconds=30.0), rules)
    assert not found.fallbacks
    moves = tuple(move.placement for move in found.moves)
    return Decision(policy, (*found.placements, *moves), found.pending, found.stops)


def at_first(now: Snapshot, policy: str, how: ControllerRules) -> Decision:
    """As `replay` and `whatif` begin."""
    start = replay.sorted_out(now)
    controller = SimulatedController(load(policy), how, lambda job: job.elastic, begin=start.cluster)
    with pytest.raises(First) as raised:
        simulate(Stopping(controller), replay.jobs_of(start, preempt=True), start.cluster, SimRules())
    return raised.value.decision


def comparable(decision: Decision) -> tuple[object, ...]:
    """What is done; and who waits for which reason, whose words may tell of times."""
    placed = sorted((p.job, p.gpu_type, p.shares, p.plan.describe()) for p in decision.placements)
    stopped = sorted((stop.job, stop.cause, stop.beneficiary) for stop in decision.stops)
    return placed, stopped, sorted((each.job, each.reason) for each in decision.pending)


def told_again(now: Snapshot) -> Snapshot:
    """As `trimtab snapshot` writes it, and `replay` reads it."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "now.json"
        path.write_bytes(msgspec.json.encode(portable(now)))
        return read_snapshot(path)


@st.composite
def busy(draw: st.DrawFn) -> Snapshot:
    """A cluster that has been lived in: some gangs run, have run for a while, and may give way; one may be
    coming up; others wait."""
    sizes, types = st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from([A100, A100, T4])
    cluster = [node(f"n{i}", draw(types)) for i in range(draw(st.integers(1, 4)))]

    def drawn(name: str) -> Job:
        least = draw(sizes)
        return job(
            name,
            model=draw(st.sampled_from(["gpt2", "gpt3-1.3b"])),
            gpus=(least, draw(st.sampled_from([least, 16]))),
            precision=Precision.FP16,
            created=NOW - draw(st.sampled_from([10, 3600, 30_000])),
            steps=draw(st.sampled_from([500, 2_000_000])),
            priority=draw(st.integers(0, 2)),
            queue=draw(st.sampled_from(["", "a", "b"])),
            elastic=draw(st.booleans()),
        )

    first = snapshot(cluster, [drawn(f"r{i}") for i in range(draw(st.integers(0, 5)))])
    placed = after(first, load("best_fit").decide(first))
    runs = [
        replace(
            each,
            started=NOW - draw(st.sampled_from([30, 900, 7200])),
            expected_finish=NOW + draw(st.sampled_from([-60, 120, 7200])),
            steps_done=draw(st.sampled_from([0, 100])),
            movable_from=(movable := NOW + draw(st.sampled_from([-600, -600, 300]))),
            preemptible=each.elastic and movable <= NOW,
            restart_seconds=draw(st.sampled_from([20.0, 300.0])),
            lost_seconds=draw(st.sampled_from([0.0, 600.0])),
            restarts=draw(st.integers(0, 3)),
        )
        for each in placed.jobs
        if each.placement
    ]
    if runs and draw(st.booleans()):
        overdue = draw(st.sampled_from([None, NOW - 60, NOW + 60]))
        runs[0] = replace(runs[0], started=None, movable_from=math.inf, preemptible=False, stoppable_from=overdue)
    waiting = [drawn(f"w{i}") for i in range(draw(st.integers(0, 4)))]
    quotas = draw(st.sampled_from([(), (Quota("a", "*", 16, 8), Quota("b", "*", 32, 4))]))
    return replace(placed, jobs=(*runs, *waiting), quotas=quotas)


@given(snapshots() | busy(), st.sampled_from(["best_fit", "fcfs", "srtf", "sia"]))
@bounded(max_examples=150, deadline=None)
def test_the_same_snapshot_gets_the_same_decision_wherever_it_is_asked_about(now: Snapshot, policy: str) -> None:
    case = replay.sorted_out(replace(now, speedup=1.0))
    if not case.snapshot.jobs:
        return
    written = told_again(case.snapshot)
    live = in_what_ships(written, policy, LIVE)
    assert comparable(in_what_ships(told_again(written), policy, replace(LIVE, times=False))) == comparable(live)
    assert comparable(at_first(written, policy, ControllerRules())) == comparable(live)


def test_what_is_evaluated_by_default_is_what_runs_by_default() -> None:
    how = ControllerRules()
    assert how.rules == replace(LIVE, times=False)
    assert how.resize_seconds == CONFIGURED.elasticity.interval_seconds
    assert how.per_job_per_hour == CONFIGURED.preemption.per_job_per_hour
    assert how.min_runtime_seconds == Elasticity().min_runtime_seconds
