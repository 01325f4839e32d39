"""A snapshot lived on: who runs goes on, who waits is decided, and who cannot be helped is set aside."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace
from tests.builders import A100, H100, NOW, job, node, placement, running, snapshot

from trimtab_lab.evaluation import replay
from trimtab_policy.sim.replay import NothingToReplay, sorted_out
from trimtab_policy.sim.result import Run
from trimtab_policy.types import Job, Node, Quota, Snapshot

HOUR = 3600.0


def busy(name: str, on: Node, gpus: int = 8, **changes: object) -> tuple[Job, Node]:
    """A job that runs there, and what the node has left."""
    held = job(name, gpus=(gpus, gpus), **changes)
    return replace(held, placement=placement(held.uid, {on.name: gpus}, on.gpu_type), started=NOW - 60), replace(
        on, free_gpus=8 - gpus
    )


def finished(run: Run) -> dict[str, float]:
    return {record.uid: record.finished for record in run.jobs if record.finished is not None}


@pytest.fixture
def now() -> Snapshot:
    """One job holds the only node; a short and a long one wait, the long one first."""
    running, full = busy("running", node("a100-0"), steps=20_000)
    long = job("long", gpus=(8, 8), steps=40_000, created=NOW - 50)
    short = job("short", gpus=(8, 8), steps=1_000, created=NOW - 40)
    return snapshot([full], [running, long, short])


def test_a_running_job_goes_on_where_it_is(now: Snapshot) -> None:
    start = replay.case(now)
    for policy in ("fcfs", "best_fit"):
        [first] = [span for span in replay.live_on(start, policy).spans if span.job == 0]
        assert (first.begin, [share.node for share in first.shares]) == (0.0, ["a100-0"])


def test_what_was_done_already_is_not_done_again(now: Snapshot) -> None:
    half = replace(now, jobs=(replace(now.jobs[0], steps_done=10_000), *now.jobs[1:]))
    whole, rest = (finished(replay.live_on(replay.case(each), "fcfs"))["uid-running"] for each in (now, half))
    assert rest == pytest.approx(whole / 2, rel=0.01)


def test_policies_differ_in_who_of_the_waiting_comes_first(now: Snapshot) -> None:
    start = replay.case(now)
    fair, short_first = (finished(replay.live_on(start, policy)) for policy in ("fcfs", "sjf+paper"))
    assert fair["uid-long"] < fair["uid-short"]
    assert short_first["uid-short"] < short_first["uid-long"]
    assert fair["uid-running"] == short_first["uid-running"]


def test_what_a_running_job_holds_that_is_set_aside_is_not_free_for_others(now: Snapshot) -> None:
    """Nobody can say when it ends: who needs its place is set aside as well, and does not wait for ever."""
    unknown = replace(now.jobs[0], placement=replace(now.jobs[0].placement, gpu_type="H100-SXM5-80GB"))
    found = sorted_out(replace(now, jobs=(unknown, *now.jobs[1:])))
    assert found.snapshot.jobs == ()
    assert found.set_aside["default/running"] == "runs on H100-SXM5-80GB, of which the snapshot has no node"
    assert list(found.set_aside) == ["default/running", "default/long", "default/short"]


def _one_aside(now: Snapshot, limit: int) -> Snapshot:
    """A job of queue `team` holds eight GPUs of a node that takes no pods; two of its queue wait, and two free nodes
    would take both."""
    aside, _ = busy("aside", node("h100-0", H100), queue="team")
    waits = (job(name, gpus=(size, size), steps=1_000, queue="team") for name, size in (("four", 4), ("eight", 8)))
    nodes = (node("a100-0"), node("a100-1"))
    return replace(now, nodes=nodes, jobs=(aside, *waits), quotas=(Quota("team", "*", limit),))


@pytest.mark.parametrize("policy", ["best_fit", "fcfs", "fcfs+paper"])
def test_what_a_job_holds_that_is_set_aside_counts_against_the_quota_of_its_queue(now: Snapshot, policy: str) -> None:
    """Twelve GPUs are what the queue may have, and eight are held: four are left, for as long as anybody can say."""
    start = replay.case(_one_aside(now, limit=12))
    assert [each.name for each in start.snapshot.jobs] == ["four"]
    assert list(start.set_aside) == ["default/aside", "default/eight"]
    assert "at least 8×A100-SXM4-80GB and 4 are left" in start.set_aside["default/eight"]
    assert list(finished(replay.live_on(start, policy))) == ["uid-four"]


def test_jobs_that_fit_into_what_the_quota_leaves_one_by_one_run_one_by_one(now: Snapshot) -> None:
    """Sixteen GPUs are free, and the two ask for twelve; the queue may have only eight more than are held elsewhere."""
    start = replay.case(_one_aside(now, limit=16))
    run = replay.live_on(start, "best_fit")
    first, second = sorted(run.spans, key=lambda span: span.begin)
    assert second.begin >= first.end


@pytest.mark.parametrize("policy", ["best_fit", "srtf", "sia"])
def test_nobody_touches_a_job_that_is_set_aside(now: Snapshot, policy: str) -> None:
    """Not even where all count as elastic and another queue wants what it is guaranteed: a touch would end the run."""
    held = replace(_one_aside(now, limit=16), quotas=(Quota("team", "*", 16), Quota("other", "*", 16, 16)))
    entitled = job("entitled", gpus=(16, 16), steps=1_000, queue="other", priority=2)
    start = replay.case(replace(held, jobs=(*held.jobs, entitled)))
    assert set(finished(replay.live_on(start, policy, preempt=True))) == {"uid-four", "uid-eight", "uid-entitled"}


def test_under_the_controller_gpus_are_kept_for_who_came_first_whatever_the_policy(now: Snapshot) -> None:
    start = replay.case(now)
    fair, short_first = (finished(replay.live_on(start, policy)) for policy in ("fcfs", "sjf"))
    assert fair == pytest.approx(short_first)


def test_only_with_preemption_a_running_job_is_stopped(now: Snapshot) -> None:
    start = replay.case(now)
    kept, stopped = (replay.live_on(start, "srtf", preempt=allowed) for allowed in (False, True))
    assert [record.restarts for record in kept.jobs] == [0, 0, 0]
    assert [record.restarts for record in stopped.jobs] == [1, 0, 0]


def test_a_gang_that_comes_up_runs_from_then_on_and_gives_way_once_it_has_run_long_enough(now: Snapshot) -> None:
    """Nobody may touch it yet, as its snapshot says; which is no word about the hours that follow."""
    coming = replace(now.jobs[0], started=None, movable_from=math.inf)
    urgent = replace(now.jobs[2], priority=1)
    run = replay.live_on(replay.case(replace(now, jobs=(coming, urgent))), "best_fit")
    first = next(span for span in run.spans if span.job == 0)
    assert 600 <= first.end - first.begin < HOUR
    assert finished(run)["uid-short"] < finished(run)["uid-running"]


def test_jobs_that_fit_nowhere_are_set_aside_with_the_reason(now: Snapshot) -> None:
    giant = job("giant", gpus=(8, 8), model="llama3.1-405b")
    start = replay.case(replace(now, jobs=(*now.jobs, giant)))
    assert list(start.set_aside) == ["default/giant"]
    assert "needs at least" in start.set_aside["default/giant"]
    assert len(finished(replay.live_on(start, "fcfs"))) == 3


def test_jobs_beyond_the_quota_of_their_queue_are_set_aside(now: Snapshot) -> None:
    greedy = job("greedy", gpus=(8, 8), queue="team")
    start = replay.case(replace(now, jobs=(*now.jobs, greedy), quotas=(Quota("team", "*", 4),)))
    assert list(start.set_aside) == ["default/greedy"]


def test_a_job_on_a_node_that_takes_no_pods_is_set_aside_and_the_others_live_on(now: Snapshot) -> None:
    cordoned, _ = busy("cordoned", node("h100-0", H100))
    start = replay.case(replace(now, jobs=(*now.jobs, cordoned)))
    assert "h100-0, which takes no new pods" in start.set_aside["default/cordoned"]
    assert len(finished(replay.live_on(start, "fcfs"))) == 3


def test_gpus_that_others_hold_stay_held() -> None:
    """Four of the eight GPUs are held by pods that are not ours: a job of eight never fits, one of four does."""
    shared = node("a100-0", A100, free=4)
    start = replay.case(snapshot([shared], [job("large", gpus=(8, 8)), job("small", gpus=(4, 4))]))
    assert list(start.set_aside) == ["default/large"]


def test_what_runs_faster_than_predicted_ends_in_the_time_of_the_cluster_like_all_others() -> None:
    """Two seconds on the wall are 2,000 in a cluster whose fake pods run 1,000 times as fast."""
    nodes, held = [node("a100-0", free=0)], running("held", {"a100-0": 8}, finish=NOW + 2, started=NOW - 1, steps=9_000)
    start = replay.case(snapshot(nodes, [held, job("next", gpus=(8, 8), created=NOW - 1)], speedup=1000.0))
    first, second = replay.live_on(start, "fcfs").jobs
    assert first.finished == pytest.approx(2000)
    assert second.started == first.finished


@pytest.mark.parametrize("jobs", [(), (job("giant", gpus=(8, 8), model="llama3.1-405b"),)])
def test_a_snapshot_without_anybody_to_help_is_refused(jobs: tuple[Job, ...]) -> None:
    with pytest.raises(NothingToReplay, match="no job that a policy could run"):
        replay.case(snapshot([node("a100-0")], jobs))
