"""What a decision may do to running jobs, rule by rule, and who then waits for whom."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.builders import H100, NOW, job, node, placement, running, snapshot

from trimtab_policy.scheduling import shield
from trimtab_policy.scheduling.permissions import Permissions
from trimtab_policy.scheduling.shield import ShieldResult, check
from trimtab_policy.types import Decision, Job, Placement, Stop, StopCause

ROOM = Permissions(for_others=True)
URGENT = job("new", gpus=(8, 8), priority=10)
FULL, FULL_TOO = node("a", free=0), node("b", free=0)


def place(name: str, *nodes: str, gpus: int = 8, gpu_type: str = "A100-SXM4-80GB") -> Placement:
    return placement(f"uid-{name}", dict.fromkeys(nodes, gpus), gpu_type)


def stop(name: str = "old", beneficiary: str = "uid-new", cause: StopCause = StopCause.PREEMPTED) -> Stop:
    return Stop(f"uid-{name}", "others come first", cause, beneficiary)


def old(name: str = "old", *nodes: str, gpus: int = 8, **changes: Any) -> Job:
    return running(name, dict.fromkeys(nodes or ("a",), gpus), **changes)


def judge(
    decision: Decision, *jobs: Job, permissions: Permissions = ROOM, nodes: Any = (FULL, FULL_TOO)
) -> ShieldResult:
    return check(snapshot(nodes, jobs), decision, permissions)


def rules(verdict: ShieldResult) -> list[tuple[str, str]]:
    return [(refusal.job, refusal.rule) for refusal in verdict.refused]


def preempts(victim: Job, heir: Job = URGENT, permissions: Permissions = ROOM, **named: Any) -> ShieldResult:
    return judge(Decision("x", (place("new", "a"),), stops=(stop(**named),)), victim, heir, permissions=permissions)


def test_a_more_urgent_job_gets_the_gpus_of_another_and_waits_for_its_end() -> None:
    verdict = preempts(old())
    assert verdict == ShieldResult((place("new", "a"),), (), (stop(),), {"uid-new": ("uid-old",)})


@pytest.mark.parametrize(
    ("victim", "rule"),
    [
        (old(movable_from=NOW + 1), "too_soon"),
        (old(priority=10), "not_more_urgent"),
        (old(priority=11, preemptible=True), "not_more_urgent"),
    ],
)
def test_who_must_not_be_stopped_keeps_what_it_has_and_nobody_else_gets_it(victim: Job, rule: str) -> None:
    verdict = preempts(victim)
    assert rules(verdict) == [("uid-old", rule), ("uid-new", "oversubscribed_gpus")]
    assert (verdict.accepted, verdict.stops, verdict.waits) == ((), (), {})


def test_only_what_is_borrowed_is_reclaimed_and_only_for_who_is_entitled() -> None:
    entitled, lent = job("new", gpus=(8, 8), entitled=True), replace(ROOM, borrowed={"uid-old": 8})
    assert preempts(old(), entitled, lent, cause=StopCause.RECLAIMED).stops
    for victim, heir, permissions in (
        (old(), entitled, ROOM),
        (old(), job("new", gpus=(8, 8)), lent),
        (old(priority=1), entitled, lent),
    ):
        assert rules(preempts(victim, heir, permissions, cause=StopCause.RECLAIMED))[0] == ("uid-old", "not_borrowed")


def test_a_policy_stops_elastic_jobs_only_and_none_for_one_that_is_less_urgent() -> None:
    plain, by_policy = job("new", gpus=(8, 8)), Permissions()
    assert preempts(old(preemptible=True), plain, by_policy, beneficiary="").stops
    assert rules(preempts(old(), plain, by_policy, beneficiary=""))[0] == ("uid-old", "not_preemptible")
    assert rules(preempts(old(preemptible=True, priority=1), plain, by_policy, beneficiary=""))[0] == (
        "uid-old",
        "not_more_urgent",
    )
    asked_for_its_own = replace(by_policy, elastic=False)
    assert rules(preempts(old(preemptible=True), plain, asked_for_its_own))[0] == ("uid-old", "not_preemptible")


def test_nobody_is_stopped_for_a_gang_that_cannot_start() -> None:
    decision = Decision("x", (place("new", "a", "b"),), stops=(stop(),))
    verdict = judge(decision, old(), job("new", gpus=(16, 16), priority=10))
    assert rules(verdict) == [("uid-old", "beneficiary_refused"), ("uid-new", "oversubscribed_gpus")]


def test_nobody_is_stopped_for_nothing() -> None:
    decision = Decision("x", (place("new", "b"),), stops=(stop(beneficiary=""),))
    verdict = judge(decision, old(preemptible=True), URGENT, nodes=(FULL, node("b")), permissions=Permissions())
    assert rules(verdict) == [("uid-old", "nobody_gains")]
    assert [placed.job for placed in verdict.accepted] == ["uid-new"]


def test_of_several_victims_all_go_or_none() -> None:
    decision = Decision("x", (place("new", "a", "b"),), stops=(stop("one"), stop("two")))
    wide = job("new", gpus=(16, 16), priority=10)
    both = judge(decision, old("one", "a"), old("two", "b"), wide)
    assert both.waits == {"uid-new": ("uid-one", "uid-two")}
    one = judge(decision, old("one", "a"), old("two", "b", movable_from=NOW + 1), wide)
    assert rules(one) == [
        ("uid-one", "beneficiary_refused"),
        ("uid-two", "too_soon"),
        ("uid-new", "oversubscribed_gpus"),
    ]


def test_only_so_many_are_stopped_at_a_time() -> None:
    decision = Decision(
        "x", (place("new", "a"), place("next", "b")), stops=(stop("one"), stop("two", beneficiary="uid-next"))
    )
    jobs = old("one", "a"), old("two", "b"), URGENT, job("next", gpus=(8, 8), priority=10)
    verdict = judge(decision, *jobs, permissions=replace(ROOM, at_once=1))
    assert [placed.job for placed in verdict.accepted] == ["uid-new"]
    assert rules(verdict) == [("uid-two", "too_many_at_once"), ("uid-next", "oversubscribed_gpus")]
    assert judge(decision, *jobs, permissions=replace(ROOM, at_once=0)).stops == ()


def test_for_one_gang_all_go_that_it_takes_and_nobody_else_is_helped_then() -> None:
    names = [f"old-{i}" for i in range(8)]
    victims = [stop(name) for name in names]
    jobs = [running(name, {"a": 1}, gpus=(1, 1), finish=NOW + 3600) for name in names]
    decision = Decision("x", (place("new", "a"), place("next", "b")), stops=(*victims, stop("two", "uid-next")))
    late = job("next", gpus=(8, 8), priority=10)
    for permissions in (replace(ROOM, at_once=1), replace(ROOM, at_once=2)):
        verdict = judge(decision, *jobs, old("two", "b"), URGENT, late, permissions=permissions)
        helped = ["uid-next"] if permissions.at_once == 1 else ["uid-new", "uid-next"]
        assert [placed.job for placed in verdict.accepted] == helped
    alone = judge(
        Decision("x", (place("new", "a"),), stops=tuple(victims)), *jobs, URGENT, permissions=replace(ROOM, at_once=1)
    )
    assert len(alone.stops) == 8
    assert len(alone.waits["uid-new"]) == 8


def test_no_more_go_than_a_plan_can_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shield, "MOST_LEAVING", 7)
    names = [f"old-{i}" for i in range(8)]
    jobs = [running(name, {"a": 1}, gpus=(1, 1), finish=NOW + 3600) for name in names]
    verdict = judge(Decision("x", (place("new", "a"),), stops=tuple(stop(name) for name in names)), *jobs, URGENT)
    assert (verdict.accepted, verdict.stops) == ((), ())


# --- moves and resizes ----------------------------------------------------------------------------------------------
def test_a_gang_moves_so_that_another_one_fits() -> None:
    decision = Decision("room", (place("new", "a"), place("old", "b", gpus=4)))
    verdict = judge(decision, old(gpus=4), job("new", gpus=(8, 8)), nodes=(node("a", free=4), node("b")))
    assert not verdict.refused
    assert verdict.waits == {"uid-new": ("uid-old",)}


def test_a_gang_does_not_move_for_a_job_that_is_not_started() -> None:
    decision = Decision("room", (place("old", "b", gpus=4),))
    assert rules(judge(decision, old(gpus=4), nodes=(node("a", free=4), node("b")))) == [("uid-old", "nobody_gains")]


def test_gangs_may_change_places() -> None:
    a, b = old("one", "a", preemptible=True), old("two", "b", preemptible=True)
    verdict = judge(Decision("x", (place("one", "b"), place("two", "a"))), a, b, permissions=Permissions())
    assert verdict.waits == {"uid-one": ("uid-two",), "uid-two": ("uid-one",)}


def test_a_gang_that_shrinks_needs_nobody_elses_gpus() -> None:
    verdict = judge(Decision("x", (place("old", "a", gpus=4),)), old(preemptible=True), permissions=Permissions())
    assert (rules(verdict), verdict.waits) == ([], {})


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"preemptible": True, "movable_from": NOW + 1}, "too_soon"),
        ({"preemptible": True, "gpus_allowed": (8, 8)}, "gpu_count"),
        ({}, "not_preemptible"),
    ],
)
def test_what_a_running_job_must_not_be_given(changes: dict[str, Any], rule: str) -> None:
    allowed = changes.pop("gpus_allowed", (1, 8))
    held = replace(job("old", gpus=allowed, **changes), placement=place("old", "a"))
    smaller = Decision("x", (place("old", "b", gpus=4),))
    verdict = judge(smaller, held, permissions=Permissions(), nodes=(FULL, node("b")))
    assert rules(verdict)[0] == ("uid-old", rule)


def test_only_elastic_jobs_change_their_size_for_others() -> None:
    decision = Decision("room", (place("new", "a", gpus=4), place("old", "b", gpus=4)))
    verdict = judge(decision, old(), job("new", gpus=(4, 4)), nodes=(FULL, node("b", free=4)))
    assert rules(verdict) == [("uid-new", "oversubscribed_gpus"), ("uid-old", "not_elastic")]


def test_what_a_refused_move_would_have_freed_is_not_given_away() -> None:
    decision = Decision("x", (place("new", "a"), place("old", "h", gpu_type=H100)))
    nodes = FULL, node("h", H100, free=7)
    verdict = judge(decision, old(preemptible=True), URGENT, permissions=Permissions(), nodes=nodes)
    assert rules(verdict) == [("uid-new", "oversubscribed_gpus"), ("uid-old", "oversubscribed_gpus")]
