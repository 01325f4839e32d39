"""The engine: policies may be late, raise, or answer nonsense; the round gets a sound decision all the same."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from tests.builders import NOW, job, node, placement, running, snapshot

from trimtab.decide.engine import Engine, Outcome
from trimtab_policy import policy
from trimtab_policy.policy import Policy, UnknownPolicy
from trimtab_policy.types import Decision, Pending, PendingReason, Snapshot, Stop

CLUSTER = snapshot([node("a"), node("b")], [job("one", gpus=(8, 8)), job("two", gpus=(8, 8), created=NOW)])


class Scripted:
    """A policy that does as it is told, and counts how often it is asked."""

    def __init__(self, name: str, answer: Callable[[Snapshot], Any]) -> None:
        self.name = name
        self.asked = 0
        self._answer = answer

    def decide(self, snapshot: Snapshot) -> Decision:
        self.asked += 1
        decision: Decision = self._answer(snapshot)
        return decision


def engine(*policies: Policy, default: str = "", deadline: float = 5.0, fallback: str = "fcfs") -> Engine:
    """An engine that finds these policies besides the real ones; the first is asked by default."""
    known = {each.name: each for each in policies}
    find = lambda name: known[name] if name in known else policy.load(name)  # noqa: E731
    return Engine(default or policies[0].name, fallback, deadline, find)


def place(uid: str, *nodes: str) -> Any:
    return replace(placement(uid, dict.fromkeys(nodes, 8)), job=uid)


def all_placed(outcome: Outcome) -> bool:
    return {placed.job for placed in outcome.placements} == {"uid-one", "uid-two"}


def raising(_: Snapshot) -> Decision:
    raise RuntimeError("no idea")


def waiting(now: Snapshot) -> Decision:
    return Decision("x", pending=tuple(later(each.uid) for each in now.waiting()))


def later(uid: str) -> Pending:
    return Pending(uid, PendingReason.BEHIND_OTHERS, "later")


def test_a_sound_decision_is_passed_on() -> None:
    outcome = Engine("best_fit", "fcfs", 5.0).decide(CLUSTER)
    assert all_placed(outcome)
    assert outcome.policies == {"uid-one": "best_fit", "uid-two": "best_fit"}
    assert outcome.seconds.keys() == {"best_fit"}
    assert (outcome.pending, outcome.refused, outcome.fallbacks) == ((), (), ())


def test_an_unknown_default_is_an_error_at_once() -> None:
    with pytest.raises(UnknownPolicy, match="nonsense"):
        Engine("nonsense", "fcfs", 1.0)


@pytest.mark.parametrize(
    ("answer", "reason", "message"),
    [
        (raising, "error", "bad raised RuntimeError: no idea"),
        (lambda _: None, "invalid", "bad returned a NoneType that is no Decision"),
        (lambda _: Decision("bad", placements=("uid-one",)), "invalid", "is no Decision: Expected `object`"),
        (lambda _: Decision("bad", placements=(object(),)), "invalid", "is no Decision"),
        (lambda _: Decision("bad", (place("uid-one", "a"),)), "invalid", "bad gave no answer for two"),
    ],
    ids=["raises", "returns nothing", "returns wrong types", "returns what cannot be said", "omits a job"],
)
def test_the_fallback_answers_for_a_policy_that_fails(answer: Any, reason: str, message: str) -> None:
    outcome = engine(Scripted("bad", answer)).decide(CLUSTER)
    [fallback] = outcome.fallbacks
    assert (fallback.policy, fallback.reason) == ("bad", reason)
    assert message in fallback.message
    assert fallback.jobs == ("uid-one", "uid-two")
    assert set(outcome.policies.values()) == {"fcfs"}
    assert all_placed(outcome)


def test_a_policy_that_misses_its_deadline_is_not_asked_again_before_it_is_done() -> None:
    release = threading.Event()
    slow = Scripted("slow", lambda now: waiting(now) if release.wait(60) else None)
    asker = engine(slow, deadline=0.05)
    first, second = asker.decide(CLUSTER), asker.decide(CLUSTER)
    assert [fallback.reason for fallback in (*first.fallbacks, *second.fallbacks)] == ["deadline", "busy"]
    assert all_placed(first)
    assert all_placed(second)
    assert slow.asked == 1
    release.set()
    asker._running["slow"].result(timeout=60)
    assert asker.decide(CLUSTER).policies == {"uid-one": "slow", "uid-two": "slow"}


def test_a_policy_that_hangs_does_not_keep_the_process() -> None:
    release = threading.Event()
    engine(Scripted("slow", lambda _: release.wait(60)), deadline=0.05).decide(CLUSTER)
    [thread] = [each for each in threading.enumerate() if each.name == "policy slow"]
    assert thread.daemon
    release.set()
    thread.join(timeout=60)


def test_when_the_fallback_fails_too_every_job_waits_and_says_why() -> None:
    outcome = engine(Scripted("bad", raising), Scripted("worse", raising), fallback="worse").decide(CLUSTER)
    assert outcome.placements == ()
    assert [(pending.job, pending.reason) for pending in outcome.pending] == [
        ("uid-one", PendingReason.DECISION_REFUSED),
        ("uid-two", PendingReason.DECISION_REFUSED),
    ]
    assert "bad raised RuntimeError: no idea; worse raised RuntimeError: no idea" in outcome.pending[0].message
    assert [fallback.policy for fallback in outcome.fallbacks] == ["bad", "worse"]


def test_what_the_shield_refuses_waits_with_the_rule_that_was_broken() -> None:
    greedy = Scripted("greedy", lambda _: Decision("greedy", (place("uid-one", "a"), place("uid-two", "a"))))
    outcome = engine(greedy).decide(CLUSTER)
    assert [placed.job for placed in outcome.placements] == ["uid-one"]
    assert [refusal.rule for refusal in outcome.refused] == ["oversubscribed_gpus"]
    [pending] = outcome.pending
    assert (pending.job, pending.reason) == ("uid-two", PendingReason.DECISION_REFUSED)
    assert pending.message == "greedy broke rule oversubscribed_gpus: node a has 0 GPUs free, 8 are needed"


def test_a_policy_that_stops_a_running_job_is_refused_and_so_is_what_it_wanted_its_gpus_for() -> None:
    decision = Decision("x", (place("uid-one", "a"),), stops=(Stop("uid-held", "one comes first"),))
    now = snapshot([node("a", free=0)], [job("one"), running("held", {"a": 8})])
    outcome = engine(Scripted("x", lambda _: decision)).decide(now)
    assert [(refusal.job, refusal.rule) for refusal in outcome.refused] == [
        ("uid-held", "not_preemptible"),
        ("uid-one", "oversubscribed_gpus"),
    ]
    assert outcome.placements == ()
    assert [(pending.job, pending.reason) for pending in outcome.pending] == [
        ("uid-one", PendingReason.DECISION_REFUSED)
    ]


def test_a_prediction_that_is_no_number_is_refused_without_losing_the_rest() -> None:
    nan = replace(placement().prediction, step_seconds=float("nan"))
    answer = Decision("x", (replace(place("uid-one", "a"), prediction=nan), place("uid-two", "b")))
    outcome = engine(Scripted("x", lambda _: answer)).decide(CLUSTER)
    assert [placed.job for placed in outcome.placements] == ["uid-two"]
    assert [refusal.rule for refusal in outcome.refused] == ["not_a_number"]


def test_every_waiting_job_gets_exactly_one_answer_whatever_the_policy_babbles() -> None:
    placed = (place("uid-one", "a"), place("uid-one", "b"), place("uid-stranger", "b"))
    said = tuple(map(later, ("uid-two", "uid-two", "uid-one", "uid-stranger")))
    outcome = engine(Scripted("babbler", lambda _: Decision("someone else", placed, said))).decide(CLUSTER)
    assert [answer.job for answer in outcome.placements] == ["uid-one"]
    assert [answer.job for answer in outcome.pending] == ["uid-two"]
    assert outcome.policies == {"uid-one": "babbler", "uid-two": "babbler"}
    assert {refusal.rule for refusal in outcome.refused} == {"already_placed", "unknown_job"}


def test_a_job_may_ask_for_a_policy_of_its_own() -> None:
    jobs = [job("one", gpus=(8, 8)), job("two", gpus=(8, 8), policy="fixed", created=NOW)]
    outcome = Engine("best_fit", "fcfs", 5.0).decide(snapshot([node("a"), node("b")], jobs))
    assert outcome.policies == {"uid-one": "best_fit", "uid-two": "fixed"}
    assert all_placed(outcome)


def test_a_job_that_asks_for_an_unknown_policy_gets_the_fallback_and_is_told() -> None:
    outcome = Engine("best_fit", "fcfs", 5.0).decide(snapshot([node("a")], [job(policy="nonsense")]))
    assert outcome.policies == {"uid-job": "fcfs"}
    [fallback] = outcome.fallbacks
    assert (fallback.policy, fallback.jobs) == ("nonsense", ("uid-job",))
    assert "unknown policy 'nonsense'" in fallback.message


def test_two_policies_in_one_round_never_get_the_same_gpu() -> None:
    jobs = [job("one", gpus=(8, 8)), job("two", gpus=(8, 8), policy="fixed", created=NOW)]
    outcome = Engine("best_fit", "fcfs", 5.0).decide(snapshot([node("a")], jobs))
    assert [placed.job for placed in outcome.placements] == ["uid-one"]
    [pending] = outcome.pending
    assert (pending.job, pending.reason) == ("uid-two", PendingReason.INSUFFICIENT_GPUS)
    assert pending.blockers == (f"default/one holds 8×{outcome.placements[0].gpu_type}",)


def test_a_policy_sees_only_the_jobs_that_it_is_asked_about() -> None:
    seen: list[list[str]] = []
    mine = Scripted("mine", lambda now: (seen.append([each.name for each in now.waiting()]), waiting(now))[1])
    jobs = [job("one"), job("two", policy="mine"), job("three", policy="mine", priority=1)]
    engine(mine, default="best_fit").decide(snapshot([node("a")], jobs))
    assert seen == [["three", "two"]]


def test_no_policy_is_asked_when_nobody_waits() -> None:
    unasked = Scripted("unasked", raising)
    assert engine(unasked).decide(snapshot([node("a")], [])) == Outcome({}, (), (), (), (), {})
    assert unasked.asked == 0
