"""How many jobs a decision considers: nobody's thousands are in the way of anybody's few, and no deadline is missed for
good."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.builders import NOW, job, node, snapshot

from trimtab_policy.perf import plans
from trimtab_policy.scheduling.fair_share import in_line
from trimtab_policy.scheduling.intake import FEWEST, Intake, IntakeLimits, Taken
from trimtab_policy.types import Job, PendingReason, Snapshot

NODES = [node("a"), node("b")]
LIVE = IntakeLimits(jobs=100, search_part=0.25)


def take(now: Snapshot, limits: IntakeLimits = LIVE, intake: Intake | None = None, deadline: float = 1000.0) -> Taken:
    return (intake or Intake()).take(in_line(now), limits, deadline)


def many(count: int, namespace: str, **changes: int) -> list[Job]:
    return [job(f"{namespace}-{i}", namespace=namespace, created=NOW - 1000 + i, **changes) for i in range(count)]


def considered(taken: Taken, namespace: str) -> int:
    return sum(each.namespace == namespace and each.placement is None for each in taken.snapshot.jobs)


def test_all_are_considered_unless_somebody_waits_for_the_answer() -> None:
    now = snapshot(NODES, many(200, "a"))
    assert take(now, IntakeLimits()).snapshot.jobs == in_line(now).jobs
    assert {each.reason for each in take(now).left_out.values()} == {PendingReason.NOT_CONSIDERED}
    assert len(take(now).left_out) == 100


def test_queues_take_turns_where_there_are_too_many_in_all() -> None:
    crowds = [one for name in "abcdef" for one in many(50, name)]
    taken = take(snapshot(NODES, [*crowds, *many(2, "late")]))
    assert considered(taken, "late") == 2
    counts = [considered(taken, name) for name in "abcdef"]
    assert sum(counts) == 98
    assert max(counts) - min(counts) <= 1


def ticking(seconds: float) -> Iterator[float]:
    now = 0.0
    while True:
        yield now
        now += seconds


def test_plans_of_new_jobs_are_searched_for_one_by_one_and_nobody_is_forgotten() -> None:
    plans.forget()
    distinct = [job(f"j{i}", sequence_length=256 + i, created=NOW - 100 + i) for i in range(12)]
    clock = ticking(1.0)
    intake, now = Intake(clock=lambda: next(clock)), snapshot(NODES, distinct)
    seen: list[int] = []
    for _ in range(6):
        taken = take(now, LIVE, intake, deadline=16.0)
        assert {*(each.uid for each in taken.snapshot.jobs), *taken.left_out} == {each.uid for each in distinct}
        seen.append(len(taken.snapshot.jobs))
    assert 0 < seen[0] < 12
    assert seen == sorted(seen)
    assert seen[-1] == 12


def test_who_is_searched_for_already_costs_no_time_of_it() -> None:
    plans.forget()
    now = snapshot(NODES, many(40, "alike"))
    clock = ticking(1000.0)
    assert len(take(now, LIVE, Intake(clock=lambda: next(clock)), deadline=1e9).snapshot.jobs) == 40


@given(st.lists(st.booleans(), max_size=40))
def test_after_late_decisions_fewer_are_considered_and_after_quick_ones_more_again(late: list[bool]) -> None:
    intake, now, before = Intake(), snapshot(NODES, many(50, "a") + many(50, "b")), 100
    for was_late in late:
        intake.learn(0.1, 2.0, late=was_late, jobs=before)
        found = len(take(now, LIVE, intake).snapshot.jobs)
        assert found >= min(FEWEST, before)
        assert found <= before if was_late else found >= before
        before = found
    for _ in range(40):
        intake.learn(0.1, 2.0, late=False, jobs=before)
    assert len(take(now, LIVE, intake).snapshot.jobs) == 100


def test_running_jobs_are_always_there() -> None:
    from tests.builders import running

    now = snapshot([node("a", free=0), node("b")], [running("held", {"a": 8}), *many(200, "flood")])
    taken = take(now, replace(LIVE, jobs=1))
    assert {each.uid for each in taken.snapshot.jobs} == {"uid-held", "uid-flood-0"}
