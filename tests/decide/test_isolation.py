"""A job that makes a policy or a stage fail costs itself: it is found by trying, and all others are decided about."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.builders import NOW, job, node, running, snapshot

from trimtab.decide.engine import Engine
from trimtab.decide.rules import rules_of
from trimtab.settings import Settings
from trimtab_policy import policy
from trimtab_policy.policy import Policy
from trimtab_policy.scheduling import isolation, pipeline
from trimtab_policy.scheduling.choice import Choice
from trimtab_policy.scheduling.isolation import ASIDE_SECONDS, Isolation
from trimtab_policy.scheduling.results import Outcome
from trimtab_policy.scheduling.rules import Rules
from trimtab_policy.types import Decision, Job, PendingReason, Quota, Snapshot

LIVE = rules_of(Settings(), live=True)


class Stumbles:
    """Decides as best_fit does, and raises where it sees all of these jobs as they are."""

    name = "stumbles"

    def __init__(self, *over: str, error: Callable[[], BaseException] = lambda: ValueError("year 2739933")) -> None:
        self.over, self.error, self.asked = set(over), error, 0

    def decide(self, now: Snapshot) -> Decision:
        self.asked += 1
        if self.over and self.over <= {each.uid for each in now.jobs if each.movable_from < 1e300}:
            raise self.error()
        return policy.load("best_fit").decide(now)


def engine_of(*policies: Policy) -> Engine:
    known = {each.name: each for each in policies}
    return Engine(lambda name: known[name] if name in known else policy.load(name))


def decide(stumbles: Stumbles, now: Snapshot, rules: Rules = LIVE, engine: Engine | None = None) -> Outcome:
    return (engine or engine_of(stumbles)).decide(now, Choice("stumbles", "fcfs", deadline_seconds=20.0), rules)


def crowd(count: int = 12, nodes: int = 16) -> Snapshot:
    """Jobs of three namespaces, all of which fit."""
    jobs = [job(f"j{i}", gpus=(8, 8), namespace=f"team-{i % 3}", created=NOW - 100 + i) for i in range(count)]
    return snapshot([node(f"n{i}") for i in range(nodes)], jobs)


def placed(outcome: Outcome) -> set[str]:
    return {each.job for each in outcome.placements}


def failed(outcome: Outcome) -> set[str]:
    return {each.job for each in outcome.pending if each.reason is PendingReason.DECISION_FAILED}


def test_all_others_are_decided_about_by_the_policy_in_force() -> None:
    outcome = decide(Stumbles("uid-j5"), crowd())
    assert failed(outcome) == {"uid-j5"}
    assert placed(outcome) == {f"uid-j{i}" for i in range(12) if i != 5}
    assert {outcome.policies[uid] for uid in placed(outcome)} == {"stumbles"}, "not by its fallback"


def test_only_the_job_itself_hears_of_it_and_the_words_of_the_error_are_for_the_log() -> None:
    outcome = decide(Stumbles("uid-j5"), crowd())
    [told] = outcome.fallbacks
    assert (told.jobs, told.reason) == (("uid-j5",), "error")
    [pending] = outcome.pending
    assert "stumbles (ValueError)" in pending.message
    assert "2739933" not in pending.message
    assert [(each.job, each.part) for each in outcome.isolated] == [("uid-j5", "stumbles")]


def test_jobs_that_fail_only_together_cost_one_of_them() -> None:
    outcome = decide(Stumbles("uid-j2", "uid-j9"), crowd())
    assert len(failed(outcome)) == 1
    assert failed(outcome) < {"uid-j2", "uid-j9"}


def test_a_running_job_goes_on_and_what_it_holds_counts() -> None:
    held = running("held", {"n0": 8}, queue="q", namespace="team-0")
    jobs = [job("fits", gpus=(8, 8), queue="q"), job("beyond", gpus=(8, 8), queue="q", created=NOW)]
    now = snapshot([node("n0", free=0), node("n1"), node("n2")], [held, *jobs], quotas=[Quota("q", "*", 16)])
    outcome = decide(Stumbles("uid-held"), now)
    assert placed(outcome) == {"uid-fits"}
    assert [(each.job, each.reason) for each in outcome.pending] == [("uid-beyond", PendingReason.QUOTA_EXCEEDED)]
    assert [each.job for each in outcome.isolated] == ["uid-held"]
    assert (outcome.stops, outcome.moves) == ((), ())


def test_who_was_set_aside_is_not_tried_in_every_round_but_again_after_a_while() -> None:
    stumbles, now = Stumbles("uid-j5"), crowd()
    engine = engine_of(stumbles)
    decide(stumbles, now, engine=engine)
    asked = stumbles.asked
    later = decide(stumbles, replace(now, time=NOW + 10), engine=engine)
    assert stumbles.asked == asked + 1
    assert failed(later) == {"uid-j5"}
    assert later.fallbacks == ()
    stumbles.over = set()
    assert failed(decide(stumbles, replace(now, time=NOW + ASIDE_SECONDS + 1), engine=engine)) == set()


def test_a_policy_that_fails_for_everybody_is_replaced_by_its_fallback_and_nobody_is_set_aside() -> None:
    class Broken(Stumbles):
        def decide(self, now: Snapshot) -> Decision:
            raise RuntimeError("always")

    outcome = decide(Broken(), crowd())
    assert failed(outcome) == set()
    assert set(outcome.policies.values()) == {"fcfs"}
    assert len(placed(outcome)) == 12


def test_a_cluster_that_makes_it_fail_whatever_jobs_there_are_is_no_job_s_fault() -> None:
    class AnyJob(Stumbles):
        def decide(self, now: Snapshot) -> Decision:
            if len(now.nodes) > 1 and now.waiting():
                raise RuntimeError("of the nodes")
            return policy.load("best_fit").decide(now)

    outcome = decide(AnyJob(), crowd(40))
    assert failed(outcome) == set()
    assert set(outcome.policies.values()) == {"fcfs"}


@pytest.mark.parametrize("stage", ["in_line", "reserve", "preempt_others", "resizes", "expected_starts"])
def test_so_it_goes_with_every_stage(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = getattr(pipeline, stage)

    def stumbling(now: Snapshot, *given: Any, **named: Any) -> Any:
        if any(each.uid == "uid-bad" and each.movable_from < 1e300 for each in now.jobs):
            raise KeyError("bad")
        return real(now, *given, **named)

    monkeypatch.setattr(pipeline, stage, stumbling)
    bad = job("bad", gpus=(64, 64), namespace="evil", created=NOW - 1000)
    low = running("low", {"a": 8}, steps=10**7, finish=NOW + 1e6, started=NOW - 3600, restart_seconds=60.0)
    long = {"steps": 10**7, "finish": NOW + 1e6, "started": NOW - 3600, "priority": 20}
    grows = running("grows", {"b": 4}, gpus=(1, 8), preemptible=True, **long)
    urgent = job("urgent", gpus=(8, 8), priority=10, namespace="good")
    late = job("late", gpus=(64, 64), namespace="good")
    now = snapshot([node("a", free=0), node("b", free=4)], [bad, low, grows, urgent, late])
    rules = rules_of(Settings(), resize=True, live=True)
    outcome = decide(Stumbles(), now, rules)
    assert failed(outcome) == {"uid-bad"}
    without = decide(Stumbles(), replace(now, jobs=now.jobs[1:]), rules)
    assert placed(outcome) == placed(without) == {"uid-urgent"}
    assert [stop.job for stop in outcome.stops] == [stop.job for stop in without.stops] == ["uid-low"]
    assert {each.job for each in outcome.pending} == {"uid-bad", "uid-late"}


def test_what_a_search_for_plans_fails_for_costs_the_job_alone_and_no_trying(monkeypatch: pytest.MonkeyPatch) -> None:
    from trimtab_policy.scheduling import intake

    real = intake.search

    def stumbling(now: Snapshot, capacity: Any, one: Job) -> Any:
        if one.uid == "uid-j3":
            raise OverflowError("too large")
        return real(now, capacity, one)

    monkeypatch.setattr(intake, "search", stumbling)
    stumbles = Stumbles()
    outcome = decide(stumbles, crowd())
    assert failed(outcome) == {"uid-j3"}
    assert stumbles.asked == 1


@given(st.sets(st.integers(0, 39), max_size=3), st.integers(1, 6))
def test_exactly_those_are_found_that_fail(culprits: set[int], namespaces: int) -> None:
    jobs = [job(f"j{i}", namespace=f"n{i % namespaces}") for i in range(40)]
    bad = {f"uid-j{i}" for i in culprits}
    found = Isolation().search(snapshot([node("a")], jobs), fails_with(bad))
    assert {each.job for each in found} == bad


def fails_with(bad: Collection[str]) -> Callable[[Snapshot], dict[str, str]]:
    return lambda now: {"part": "ValueError"} if any(each.uid in bad for each in now.jobs) else {}


def test_where_time_runs_out_neighbours_are_set_aside_and_nobody_far_away(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(isolation, "SEARCH_SECONDS", 5)
    jobs = [job(f"j{i:03}", namespace=f"team-{i // 16:02}") for i in range(256)]
    found = Isolation(clock=lambda: next(clock)).search(snapshot([node("a")], jobs), fails_with({"uid-j005"}))
    assert "uid-j005" in {each.job for each in found}
    assert spaces_of(jobs, (each.job for each in found)) == {"team-00"}


def spaces_of(jobs: Iterable[Job], uids: Iterable[str]) -> set[str]:
    out = set(uids)
    return {each.namespace for each in jobs if each.uid in out}
