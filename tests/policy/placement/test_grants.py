"""In which order GPUs were given to gangs: numbers that only grow, whatever the clocks say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.builders import A100, H100, NOW, job, node, placement, running, snapshot

from trimtab_policy.placement.grants import MOST, granted, held, highest
from trimtab_policy.scheduling.accounts import after
from trimtab_policy.scheduling.fair_share import borrowed
from trimtab_policy.types import Decision, Grant, Job, Placement, Quota, Snapshot

NODES = [node("n0"), node("n1"), node("n2"), node("h0", H100)]


def has(name: str, *grants: Grant, gpu_type: str = A100, **known: object) -> Job:
    """A job that runs on what it was given."""
    return running(name, {"n0": sum(grant.gpus for grant in grants)}, gpu_type, grants=grants, **known)


def given_to(seen: Snapshot, name: str, gpus: int, gpu_type: str = A100) -> tuple[Grant, ...]:
    """What a job will have been given once it has so many GPUs."""
    uid = f"uid-{name}"
    return granted(seen, [placement(uid, {"n1": gpus}, gpu_type)])[uid]


def test_what_a_decision_gives_comes_after_all_that_is_held() -> None:
    seen = snapshot(NODES, [has("old", Grant(8, 4, 4)), job("new")], granted=7)
    assert given_to(seen, "new", 8) == (Grant(8, 8, 8),)


def test_of_one_decision_who_was_before_the_others_in_line_is_given_first_and_running_jobs_last() -> None:
    jobs = [
        has("grows", Grant(4, 1, 1)),
        job("late", created=NOW - 1),
        job("early", created=NOW - 9),
        job("urgent", priority=1),
    ]
    names = ["grows", "late", "early", "urgent"]
    found = granted(snapshot(NODES, jobs, granted=1), [placement(f"uid-{name}", {"n0": 8}) for name in names])
    assert {uid: grants[-1].order for uid, grants in found.items()} == {
        "uid-urgent": 2, "uid-early": 3, "uid-late": 4, "uid-grows": 5,
    }  # fmt: skip


def test_a_gang_that_grows_is_given_only_what_it_did_not_have() -> None:
    seen = snapshot(NODES, [has("job", Grant(4, 2, 2))], granted=5)
    assert given_to(seen, "job", 16) == (Grant(4, 2, 2), Grant(12, 6, 6))


def test_a_gang_that_shrinks_gives_back_what_it_was_given_last() -> None:
    seen = snapshot(NODES, [has("job", Grant(4, 2, 2), Grant(8, 6, 6))], granted=6)
    assert given_to(seen, "job", 6) == (Grant(4, 2, 2), Grant(2, 6, 6))
    assert given_to(seen, "job", 4) == (Grant(4, 2, 2),)


def test_a_gang_that_goes_on_elsewhere_keeps_its_place_and_with_another_type_not_among_those_of_that() -> None:
    seen = snapshot(NODES, [has("job", Grant(8, 2, 2))], granted=5)
    assert given_to(seen, "job", 8) == (Grant(8, 2, 2),)
    assert given_to(seen, "job", 8, H100) == (Grant(8, 2, 6),)


def test_what_nobody_has_noted_came_before_all_that_somebody_has() -> None:
    unknown, wrong = running("unknown", {"n0": 8}), running("wrong", {"n0": 8}, grants=(Grant(4, 3, 3),))
    assert held(unknown) == held(wrong) == (Grant(8, 0, 0),)
    assert given_to(snapshot(NODES, [unknown], granted=3), "unknown", 16) == (Grant(8, 0, 0), Grant(8, 4, 4))


def test_a_gang_that_has_grown_very_often_has_its_latest_gpus_in_one_piece() -> None:
    many = tuple(Grant(1, order, order) for order in range(1, MOST + 1))
    found = given_to(snapshot(NODES, [has("job", *many)], granted=40), "job", MOST + 4)
    assert (len(found), sum(grant.gpus for grant in found)) == (MOST, MOST + 4)
    assert (found[-2:], held(has("job", *found))) == ((Grant(1, 15, 15), Grant(5, 41, 41)), found)


# --- whatever comes when ---------------------------------------------------------------------------------------------
Step = tuple[Any, ...]
TIMES = st.sampled_from([NOW - 3600.0, NOW - 1.0, NOW, NOW + 3600.0])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("start"), st.integers(1, 16), st.sampled_from([A100, H100]), TIMES, TIMES),
        st.tuples(st.just("resize"), st.integers(0, 9), st.integers(1, 24), st.sampled_from([A100, H100])),
        st.tuples(st.just("end"), st.integers(0, 9)),
    ),
    max_size=20,
)
GUARANTEES = st.one_of(
    st.fixed_dictionaries({"*": st.integers(0, 24)}),
    st.dictionaries(st.sampled_from([A100, H100]), st.integers(0, 24)),
)


def lived(quotas: list[Quota], steps: list[Step]) -> Iterator[tuple[str, Snapshot]]:
    """UID of the job that something happens to, and the queue `q` after it. Clocks say what they like."""
    seen = snapshot(NODES, quotas=quotas)
    for number, (what, *how) in enumerate(steps):
        if what == "start":
            gpus, gpu_type, created, started = how
            uid, placed = f"uid-j{number}", placement(f"uid-j{number}", {"n0": gpus}, gpu_type)
            seen = replace(seen, jobs=(*seen.jobs, job(f"j{number}", queue="q", created=created)))
        elif not seen.jobs:
            continue
        else:
            uid, started, placed = seen.jobs[how[0] % len(seen.jobs)].uid, NOW, None
            if what == "resize":
                placed = placement(uid, {"n0": how[1]}, how[2])
        seen = done(seen, uid, placed, started)
        yield uid, seen


def done(seen: Snapshot, uid: str, placed: Placement | None, started: float) -> Snapshot:
    if placed is None:
        return replace(seen, jobs=tuple(job for job in seen.jobs if job.uid != uid))
    then = after(seen, Decision("x", (placed,)))
    return replace(then, jobs=tuple(replace(job, started=started) if job.uid == uid else job for job in then.jobs))


def covered(seen: Snapshot) -> dict[str, int]:
    """Job -> GPUs that its queue is guaranteed."""
    lent = borrowed(seen)
    return {job.uid: job.placement.gpus - lent.get(job.uid, 0) for job in seen.jobs if job.placement}


@given(GUARANTEES, STEPS)
@settings(max_examples=300)
def test_what_a_guarantee_covers_it_covers_for_good_whatever_others_do_and_clocks_say(
    guarantees: dict[str, int],
    steps: list[Step],
) -> None:
    """Of equal priority. What is guaranteed by type and of any type at once is another matter: the former is part of
    the latter, and takes from it."""
    quotas = [Quota("q", gpu_type, 1000, gpus) for gpu_type, gpus in guarantees.items()]
    before = covered(snapshot(NODES, quotas=quotas))
    for uid, seen in lived(quotas, steps):
        now = covered(seen)
        assert all(now[other] >= gpus for other, gpus in before.items() if other in now and other != uid)
        before = now


@given(STEPS)
def test_orders_only_grow_and_add_up_to_what_is_held(steps: list[Step]) -> None:
    top = 0
    for _, seen in lived([], steps):
        for one in seen.jobs:
            assert one.placement
            assert sum(grant.gpus for grant in one.grants) == one.placement.gpus
            assert [grant.order for grant in one.grants] == sorted(grant.order for grant in one.grants)
        assert seen.granted == highest(seen.granted, [one.grants for one in seen.jobs])
        orders = [grant.order for one in seen.jobs for grant in one.grants]
        assert len(set(orders)) == len(orders), "two were given theirs at one time"
        assert seen.granted >= top
        top = seen.granted
