"""The engine: clock, books, restarts and misfortunes, with policies that do just what a test needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from trimtab_lab import rigid
from trimtab_lab.rigid import RigidJob, RigidRules
from trimtab_lab.workloads.trace import trace
from trimtab_policy import catalog
from trimtab_policy.sim.engine import SimRules, Stuck, simulate
from trimtab_policy.sim.failures import FailureEvent, FailureKind, FailureModel, events
from trimtab_policy.sim.node_accounts import BrokenDecision
from trimtab_policy.sim.result import Run
from trimtab_policy.specs import ParallelPlan, Prediction
from trimtab_policy.types import Decision, Grant, Job, Node, NodeShare, Placement, Quota, Snapshot, Stop

PLENTY = 1 << 40


def cluster(nodes: int = 2, gpus: int = 4) -> Snapshot:
    each = (Node(f"n{i}", "T4", gpus, gpus, PLENTY, PLENTY, PLENTY) for i in range(nodes))
    return Snapshot(time=0, nodes=tuple(each), jobs=(), gpu_types={"T4": catalog.gpu("T4")})


def jobs(
    *rows: tuple[float, int, float], on: Snapshot | None = None, rules: RigidRules | None = None
) -> list[RigidJob]:
    """Jobs j0, j1, ... of (submitted, GPUs, seconds)."""
    submitted, gpus, seconds = zip(*rows, strict=True)
    return rigid.jobs(trace([f"j{i}" for i in range(len(rows))], submitted, gpus, seconds), on or cluster(), rules)


def on(job: str, *shares: tuple[str, int]) -> Placement:
    gpus = sum(count for _, count in shares)
    said = Prediction(0.001, 1.0, 1, 1.0)
    return Placement(job, "T4", tuple(NodeShare(*share) for share in shares), ParallelPlan(data=gpus), said, "test")


class Script:
    """A policy that says at each decision what a function of (time, snapshot) says."""

    name = "script"

    def __init__(self, say: Callable[[Snapshot], Decision | None]) -> None:
        self._say = say
        self.seen: list[Snapshot] = []

    def decide(self, snapshot: Snapshot) -> Decision:
        self.seen.append(snapshot)
        return self._say(snapshot) or Decision(self.name)


def first_fit(snapshot: Snapshot) -> Decision:
    """Every waiting job on the first node with room for all of it."""
    free = {node.name: node.free_gpus for node in snapshot.nodes}
    placements = []
    for job in snapshot.waiting():
        wanted = job.requirements.gpus.low
        if node := next((name for name, count in free.items() if count >= wanted), None):
            free[node] -= wanted
            placements.append(on(job.uid, (node, wanted)))
    return Decision("script", tuple(placements))


def jcts(run: Run) -> list[float]:
    return [record.finished - record.submitted for record in run.jobs if record.finished is not None]


def test_a_job_alone_takes_just_its_time() -> None:
    run = simulate(Script(first_fit), jobs((10.0, 2, 100.0)), cluster())

    [record] = run.jobs
    assert (record.started, record.finished, record.gpu_seconds) == (10.0, 110.0, 200.0)
    assert record.productive_gpu_seconds == 200.0
    assert record.restarts == 0
    [span] = run.spans
    assert (span.begin, span.end, span.shares) == (10.0, 110.0, (NodeShare("n0", 2),))
    assert run.end == 110.0


def test_a_job_that_does_not_fit_waits_for_the_event_that_frees_its_gpus() -> None:
    run = simulate(Script(first_fit), jobs((0, 4, 100), (1, 4, 50), (2, 4, 10)), cluster())

    assert [record.started for record in run.jobs] == [0, 1, 51]


def test_in_rounds_an_arrival_is_seen_at_the_next_round_and_gpus_are_held_to_the_end_of_the_last() -> None:
    run = simulate(Script(first_fit), jobs((10, 2, 100)), cluster(), SimRules(round_seconds=60))

    [record] = run.jobs
    assert (record.started, record.finished) == (60, 160)
    assert record.gpu_seconds == 2 * 120
    assert record.productive_gpu_seconds == 2 * 100


def test_rounds_in_which_nothing_is_there_are_skipped_but_keep_their_beat() -> None:
    policy = Script(first_fit)
    run = simulate(policy, jobs((0, 1, 30), (100_000, 1, 30)), cluster(), SimRules(round_seconds=60))

    assert [snapshot.time for snapshot in policy.seen] == [60, 100_020]
    assert run.end == 100_050


def test_an_arrival_at_the_very_end_of_a_round_is_seen_in_it() -> None:
    run = simulate(Script(first_fit), jobs((120, 1, 30)), cluster(), SimRules(round_seconds=60))

    assert run.jobs[0].started == 120


def test_a_policy_sees_what_a_running_job_has_done_and_what_it_was_served() -> None:
    policy = Script(first_fit)
    simulate(policy, jobs((0, 2, 100), (40, 1, 10)), cluster())

    first = next(job for job in policy.seen[1].jobs if job.uid == "j0")
    assert policy.seen[1].time == 40
    assert first.steps_done == 40 * rigid.STEPS_PER_SECOND
    assert first.served == {"T4": 80.0}
    assert first.expected_finish == pytest.approx(100)
    assert {node.name: node.free_gpus for node in policy.seen[1].nodes} == {"n0": 2, "n1": 4}


def test_a_stopped_job_pays_for_its_restart_and_keeps_its_work() -> None:
    def say(snapshot: Snapshot) -> Decision | None:
        if snapshot.time == 0:
            return first_fit(snapshot)
        if snapshot.time == 40:
            return Decision("script", stops=(Stop("j0", "test"),))
        return first_fit(snapshot) if snapshot.time >= 70 else None

    rules = RigidRules(restart_seconds=5)
    run = simulate(Script(say), jobs((0, 2, 100), (40, 1, 1), (70, 1, 1), rules=rules), cluster())

    first = run.jobs[0]
    assert first.finished == pytest.approx(70 + 5 + 60)
    assert first.restarts == 1
    assert first.gpu_seconds == pytest.approx(2 * (40 + 65))
    assert first.productive_gpu_seconds == pytest.approx(2 * 100)


def test_a_move_restarts_the_job_and_the_same_placement_again_does_not() -> None:
    def say(snapshot: Snapshot) -> Decision | None:
        node = "n0" if snapshot.time < 40 else "n1"
        return Decision("script", tuple(on(job.uid, (node, 2)) for job in snapshot.jobs if job.uid == "j0"))

    rules = RigidRules(restart_seconds=5)
    run = simulate(Script(say), jobs((0, 2, 100), rules=rules), cluster(), SimRules(heartbeat=20))

    assert run.jobs[0].restarts == 1
    assert run.jobs[0].finished == pytest.approx(105)
    assert [span.shares[0].node for span in run.spans] == ["n0", "n1"]


def test_two_jobs_may_swap_their_nodes_in_one_decision() -> None:
    def say(snapshot: Snapshot) -> Decision:
        swapped = snapshot.time >= 10
        return Decision(
            "script",
            tuple(on(job.uid, ("n1" if (job.uid == "j0") == swapped else "n0", 4)) for job in snapshot.jobs),
        )

    run = simulate(Script(say), jobs((0, 4, 100), (0, 4, 100)), cluster(), SimRules(heartbeat=10))

    assert jcts(run) == pytest.approx([100, 100])
    assert [record.restarts for record in run.jobs] == [1, 1] or [record.restarts for record in run.jobs] == [0, 0]


@pytest.mark.parametrize(
    ("decision", "message"),
    [
        (Decision("script", (on("j0", ("n0", 3)),)), "3 GPUs are outside spec.resources.gpus"),
        (Decision("script", (on("j0", ("n0", 1), ("n0", 1)),)), "one pod per node"),
        (Decision("script", (on("j0", ("n0", 2)), on("j1", ("n0", 3)))), "which has 2 free"),
        (Decision("script", (on("j0", ("nowhere", 2)),)), "nowhere: no such GPU node"),
        (Decision("script", (on("nobody", ("n0", 2)),)), "not there"),
        (Decision("script", stops=(Stop("j0", "test"),)), "does not run"),
    ],
)
def test_a_decision_that_the_cluster_cannot_carry_out_ends_the_run(decision: Decision, message: str) -> None:
    with pytest.raises(BrokenDecision, match=message):
        simulate(Script(lambda _: decision), jobs((0, 2, 100), (0, 3, 100)), cluster())


def test_a_decision_that_breaks_a_quota_ends_the_run() -> None:
    with pytest.raises(BrokenDecision, match="quota of queue ''"):
        simulate(Script(first_fit), jobs((0, 2, 9), (0, 3, 9)), cluster(), SimRules(quotas=(Quota("", "*", 4),)))


def test_a_running_job_that_is_not_preemptible_must_be_left_alone() -> None:
    def say(snapshot: Snapshot) -> Decision:
        return first_fit(snapshot) if snapshot.time == 0 else Decision("script", stops=(Stop("j0", "test"),))

    with pytest.raises(BrokenDecision, match="must not be preempted"):
        simulate(Script(say), jobs((0, 2, 1000), rules=RigidRules(preemptible=False)), cluster())


@pytest.mark.parametrize(
    "rules", [SimRules(), SimRules(round_seconds=60), SimRules(misfortunes=FailureModel(gpu_mtbf_seconds=1e9))]
)
def test_a_policy_that_lets_jobs_wait_on_an_idle_cluster_is_stopped(rules: SimRules) -> None:
    with pytest.raises(Stuck, match="script lets none of 1 jobs compute"):
        simulate(Script(lambda _: None), jobs((0, 2, 100)), cluster(), rules)


def test_a_policy_that_restarts_jobs_for_ever_is_stopped() -> None:
    def say(snapshot: Snapshot) -> Decision:
        node = f"n{int(snapshot.time // 60) % 2}"
        return Decision("script", tuple(on(job.uid, (node, 2)) for job in snapshot.jobs))

    rules = RigidRules(restart_seconds=100.0, first_start_costs=True)
    with pytest.raises(Stuck, match="none of 1 jobs"):
        simulate(Script(say), jobs((0, 2, 100), rules=rules), cluster(), SimRules(round_seconds=60))


def test_a_run_can_be_cut_off_and_says_who_is_not_done() -> None:
    run = simulate(Script(first_fit), jobs((0, 2, 100), (5, 2, 10), (80, 1, 1)), cluster(), SimRules(until=50))

    assert [record.finished for record in run.jobs] == [None, 15, None]
    assert run.end == 50
    assert run.jobs[0].gpu_seconds == 100


def test_a_failed_node_costs_the_work_since_the_last_checkpoint() -> None:
    misfortunes = FailureModel(gpu_mtbf_seconds=2000.0, repair_seconds=10.0)
    rules = RigidRules(checkpoint_seconds=100.0)
    small = cluster(1, 1)

    run = simulate(
        Script(first_fit), jobs((0, 1, 5000), on=small, rules=rules), small, SimRules(misfortunes=misfortunes)
    )

    [record] = run.jobs
    failures = [event for event in _until(small, misfortunes, record.finished) if event.what is FailureKind.FAIL]
    assert record.restarts == len(failures) > 0
    assert 0 < run.lost_gpu_seconds < 100 * len(failures)
    assert record.productive_gpu_seconds == pytest.approx(5000)
    assert record.gpu_seconds == pytest.approx(5000 + run.lost_gpu_seconds)


def _until(where: Snapshot, misfortunes: FailureModel, end: float | None) -> list[FailureEvent]:
    found = []
    for event in events(where, misfortunes, 0):
        if event.time > (end or math.inf):
            return found
        found.append(event)
    return found


def test_no_more_is_lost_than_was_computed_however_slow_the_node_was() -> None:
    bad_luck = FailureModel(
        gpu_mtbf_seconds=1e5, straggler_mtbf_seconds=2e4, straggler_seconds=5000.0, straggler_speed=0.2
    )
    rules = RigidRules(checkpoint_seconds=1e9)

    run = simulate(
        Script(first_fit), jobs((0, 4, 20_000), (0, 4, 20_000), rules=rules), cluster(), SimRules(misfortunes=bad_luck)
    )

    assert run.lost_gpu_seconds > 0
    for record in run.jobs:
        assert 4 * 20_000 <= record.productive_gpu_seconds <= record.gpu_seconds
    held, productive = (sum(getattr(r, name) for r in run.jobs) for name in ("gpu_seconds", "productive_gpu_seconds"))
    assert held == pytest.approx(productive + run.lost_gpu_seconds)


def test_a_gang_is_as_slow_as_its_slowest_node() -> None:
    always = FailureModel(straggler_mtbf_seconds=1e-3, straggler_seconds=1e9, straggler_speed=0.5)

    run = simulate(Script(first_fit), jobs((10, 1, 100)), cluster(), SimRules(misfortunes=always))

    assert jcts(run) == pytest.approx([200], rel=1e-3)


def test_all_policies_meet_the_same_misfortunes() -> None:
    bad_luck = FailureModel(gpu_mtbf_seconds=1000.0)

    def happened(nodes: int) -> list[FailureEvent]:
        return [event for event in _until(cluster(nodes), bad_luck, 5000.0) if event.node in ("n0", "n1")]

    assert happened(2) == happened(3) != []


def test_a_live_snapshot_goes_on_where_it_is() -> None:
    [running] = jobs((0, 2, 100))
    held = replace(running.seen(), placement=on("j0", ("n0", 2)))
    nodes = (Node("n0", "T4", 4, 2, PLENTY, PLENTY, PLENTY), cluster().nodes[1])
    now = Snapshot(time=0, nodes=nodes, jobs=(held,), gpu_types={"T4": catalog.gpu("T4")})

    run = simulate(Script(first_fit), [running, *jobs((0, 2, 100), (0, 4, 100))[1:]], now)

    assert run.jobs[0].started == 0
    assert run.jobs[0].finished == 100
    assert run.jobs[1].finished == 100


def test_a_live_snapshot_tells_what_jobs_went_through_before() -> None:
    [job] = jobs((0, 2, 100))
    told = replace(job.seen(), restarts=3, served={"T4": 50.0})
    policy = Script(first_fit)

    run = simulate(policy, [job], replace(cluster(), jobs=(told,)))

    assert (policy.seen[0].jobs[0].restarts, policy.seen[0].jobs[0].served) == (3, {"T4": 50.0})
    assert run.jobs[0].gpu_seconds == 200.0


def test_in_which_order_gpus_were_given_goes_on_from_a_live_snapshot() -> None:
    made = jobs((0.0, 4, 100.0), (10.0, 2, 50.0), (10.0, 2, 50.0))
    held = replace(made[0].seen(), placement=on("j0", ("n0", 4)), grants=(Grant(4, 6, 6),))
    full = (replace(cluster().nodes[0], free_gpus=0),)
    policy = Script(first_fit)

    simulate(policy, made, replace(cluster(), nodes=full, jobs=(held,), granted=8), SimRules(heartbeat=20))

    ran = [job for seen in policy.seen for job in seen.jobs if job.placement]
    assert {job.uid: [grant.order for grant in job.grants] for job in ran} == {"j0": [6], "j1": [9], "j2": [10]}
    assert [policy.seen[0].granted, policy.seen[-1].granted] == [8, 10]


def test_nothing_to_do_is_done_at_once() -> None:
    assert simulate(Script(first_fit), [], cluster()).end == 0.0


def test_two_jobs_of_one_uid_are_refused() -> None:
    twice = [*jobs((0, 1, 1)), *jobs((5, 1, 1))]
    with pytest.raises(ValueError, match="j0 is there 2 times"):
        simulate(Script(first_fit), twice, cluster())


class Whim:
    """Starts, stops and moves jobs at random, within what the cluster has."""

    name = "whim"

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def decide(self, snapshot: Snapshot) -> Decision:
        free = {node.name: node.free_gpus for node in snapshot.nodes}
        running = [job for job in snapshot.jobs if job.placement]
        stops = [job for job in running if self._random.random() < 0.1]
        for job in stops:
            _add(free, job.placement.shares if job.placement else ())
        placements = []
        for job in snapshot.jobs:
            busy = job in running
            if job in stops or (busy and self._random.random() < 0.8):
                continue
            if busy and job.placement:
                _add(free, job.placement.shares)
            if placement := self._place(job, free):
                placements.append(placement)
            elif busy:
                stops.append(job)
        return Decision(self.name, tuple(placements), stops=tuple(Stop(job.uid, "whim") for job in stops))

    def _place(self, job: Job, free: dict[str, int]) -> Placement | None:
        wanted, shares = job.requirements.gpus.low, []
        for node in self._random.sample(sorted(free), len(free)):
            if part := min(wanted, max(0, free[node])):
                shares.append((node, part))
                wanted -= part
        if wanted:
            return None
        _add(free, [NodeShare(node, -part) for node, part in shares])
        return on(job.uid, *shares)


def _add(free: dict[str, int], shares: Sequence[NodeShare]) -> None:
    for share in shares:
        if share.node in free:
            free[share.node] += share.gpus


rows = st.lists(st.tuples(st.floats(0, 500), st.integers(1, 8), st.floats(1, 300)), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(rows, st.integers(0, 99), st.sampled_from([None, 7.0, 60.0]), st.booleans())
def test_whatever_a_policy_does_no_work_and_no_gpu_is_lost_or_invented(
    work: list[tuple[float, int, float]], seed: int, round_seconds: float | None, unlucky: bool
) -> None:
    work.sort()
    rules = RigidRules(restart_seconds=3.0, checkpoint_seconds=20.0)
    bad_luck = FailureModel(gpu_mtbf_seconds=4000.0, repair_seconds=20.0) if unlucky else FailureModel()

    run = simulate(
        Whim(seed), jobs(*work, rules=rules), cluster(), SimRules(round_seconds, heartbeat=15, misfortunes=bad_luck)
    )

    for index, (record, (submitted, gpus, seconds)) in enumerate(zip(run.jobs, work, strict=True)):
        spans = [span for span in run.spans if run.jobs[span.job].uid == record.uid]
        assert record.finished is not None
        assert record.started is not None
        assert record.started >= submitted
        assert record.finished >= record.started + seconds - 1e-5, index
        assert record.gpu_seconds == pytest.approx(sum(gpus * (span.end - span.begin) for span in spans))
        assert record.productive_gpu_seconds == pytest.approx(gpus * seconds, abs=1e-3)
        assert all(sum(share.gpus for share in span.shares) == gpus for span in spans)
    assert max(_most_held(run).values()) <= 4


def _most_held(run: Run) -> dict[str, int]:
    changes = [
        (time, delta * share.gpus, share.node)
        for span in run.spans
        for time, delta in ((span.begin, 1), (span.end, -1))
        for share in span.shares
    ]
    held: dict[str, int] = {}
    most: dict[str, int] = {}
    for _, delta, node in sorted(changes):
        held[node] = held.get(node, 0) + delta
        most[node] = max(most.get(node, 0), held[node])
    return most


def test_the_same_run_twice_is_the_same_run() -> None:
    def once() -> Run:
        return simulate(Whim(3), jobs((0, 2, 100), (5, 8, 50), (9, 1, 70)), cluster(), SimRules(heartbeat=15))

    first, second = once(), once()
    assert (first.jobs, first.spans, first.end) == (second.jobs, second.spans, second.end)


@pytest.mark.parametrize(
    "changes", [{"round_seconds": 0.0}, {"heartbeat": -1.0}, {"until": math.nan}, {"min_gap": math.nan}]
)
def test_rules_that_make_no_sense_are_refused_by_name(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        SimRules(**changes)
