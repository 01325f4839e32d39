"""The controller in the simulator: histories in which everybody ends, priority counts, and nobody takes turns."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.builders import A100, job, node, snapshot

from trimtab_policy.policy import load
from trimtab_policy.scheduling.rules import Rules
from trimtab_policy.sim import llm
from trimtab_policy.sim.controller import ControllerRules, SimulatedController
from trimtab_policy.sim.engine import SimRules, simulate
from trimtab_policy.sim.result import Run
from trimtab_policy.types import Decision, Job, Quota, Snapshot

CLUSTER = replace(snapshot([node("n0"), node("n1")]), time=0.0)
QUEUES = (Quota("a", A100, 16, 8), Quota("b", A100, 16, 8))


ALONE = ControllerRules(Rules(times=False))
"""The policy, and nothing besides."""


class Watched(SimulatedController):
    """Remembers who stopped for whom, and who gave way how often."""

    def __init__(self, how: ControllerRules | None = None) -> None:
        super().__init__(load("best_fit"), how)
        self.stops: list[tuple[float, str, str]] = []
        """When who stopped for whom."""
        self.touched: Counter[str] = Counter()

    def decide(self, snapshot: Snapshot) -> Decision:
        decision = super().decide(snapshot)
        running = {each.uid for each in snapshot.jobs if each.placement}
        self.stops += [(snapshot.time, stop.job, stop.beneficiary) for stop in decision.stops]
        self.touched.update(stop.job for stop in decision.stops)
        self.touched.update(each.job for each in decision.placements if each.job in running)
        return decision


def history(policy: SimulatedController, jobs: list[Job], quotas: tuple[Quota, ...] = ()) -> Run:
    return simulate(policy, llm.jobs(jobs, CLUSTER), CLUSTER, SimRules(quotas=quotas, heartbeat=120.0))


def trains(name: str, gpus: tuple[int, int], at: float, steps: int = 20_000, **changes: object) -> Job:
    return job(name, model="gpt3-1.3b", gpus=gpus, created=at, steps=steps, **changes)  # type: ignore[arg-type]  # any field


def seconds(run: Run, uid: str) -> float:
    [record] = [each for each in run.jobs if each.uid == uid]
    assert record.finished is not None
    return record.finished - record.submitted


def test_an_urgent_job_does_not_wait_for_long_ones() -> None:
    jobs = [trains("long", (16, 16), 0.0), trains("urgent", (8, 8), 3600.0, steps=100, priority=1)]
    alone = history(Watched(ALONE), jobs)
    arranged = Watched()
    run = history(arranged, jobs)
    assert seconds(run, "uid-urgent") < seconds(alone, "uid-urgent") / 5
    assert [(loser, winner) for _, loser, winner in arranged.stops] == [("uid-long", "uid-urgent")]
    assert all(record.finished is not None for record in run.jobs)


def test_a_job_grows_when_others_are_gone() -> None:
    jobs = [trains("first", (8, 8), 0.0, steps=500), trains("grows", (4, 16), 1.0)]
    plain = seconds(history(Watched(ALONE), jobs), "uid-grows")
    assert seconds(history(Watched(), jobs), "uid-grows") < 0.8 * plain


def test_nobody_is_touched_before_it_has_run_for_its_least_time_nor_more_often_than_allowed() -> None:
    jobs = [trains("low", (16, 16), 0.0), *(trains(f"u{i}", (8, 8), 60.0 * i, 50, priority=1) for i in range(1, 20))]
    arranged = Watched(ControllerRules(per_job_per_hour=1))
    run = history(arranged, jobs)
    hours = run.end / 3600
    assert arranged.touched["uid-low"] <= 1 + hours
    assert min(span.end - span.begin for span in run.spans if run.jobs[span.job].uid == "uid-low") >= 600.0


@st.composite
def workloads(draw: st.DrawFn) -> list[Job]:
    """Up to eight jobs of three priorities and two queues, which come within two hours."""
    jobs = []
    for number in range(draw(st.integers(2, 8))):
        least = draw(st.sampled_from([1, 4, 8, 16]))
        jobs.append(
            trains(
                f"j{number}",
                (least, draw(st.sampled_from([least, 16]))),
                float(draw(st.integers(0, 7200))),
                draw(st.sampled_from([50, 500, 5000])),
                priority=draw(st.integers(0, 2)),
                queue=draw(st.sampled_from(["a", "b"])),
            )
        )
    return jobs


OVERTURNED = [
    trains("borrows", (1, 1), 0.0, 5000, queue="b"),
    trains("back", (4, 4), 1587.0, 500, queue="a"),
    trains("long", (4, 4), 0.0, 5000, queue="a"),
    trains("urgent", (8, 8), 1631.0, 50, priority=1, queue="a"),
    trains("ends", (1, 16), 1.0, 5000, priority=1, queue="b"),
]
"""Queue a takes back what it is guaranteed. Then the job ends that queue b had borrowed for, and an urgent one of queue
a gets all of its GPUs: now it is a that borrows, and b that takes back."""


@given(workloads(), st.sampled_from([(), QUEUES]))
@example(OVERTURNED, QUEUES)
@settings(max_examples=30, deadline=None)
def test_in_no_history_do_two_jobs_take_turns(jobs: list[Job], quotas: tuple[Quota, ...]) -> None:
    """Even where a job may be touched at once, and as often as one likes: who has stopped for another gets his own
    back from that one only when a job has come or ended since."""
    arranged = Watched(ControllerRules(min_runtime_seconds=0.0, per_job_per_hour=1 << 20))
    run = history(arranged, jobs, quotas)
    assert all(record.finished is not None for record in run.jobs)
    events = [moment for record in run.jobs for moment in (record.submitted, record.finished) if moment is not None]
    for (then, loser, winner), (now, *others) in combinations(arranged.stops, 2):
        assert others != [winner, loser] or any(then < moment <= now for moment in events)
    assert max(arranged.touched.values(), default=0) <= len(events)
