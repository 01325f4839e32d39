"""The engine: policies may be late, raise, or answer nonsense; the round gets a sound decision all the same."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from tests.builders import NOW, job, node, placement, running, snapshot

from trimtab.decide import engine as engines
from trimtab.decide.engine import Engine
from trimtab.decide.trial import trial
from trimtab_policy import policy
from trimtab_policy.policy import Policy
from trimtab_policy.scheduling.choice import Choice
from trimtab_policy.scheduling.results import Outcome
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


BEST_FIT = Choice("best_fit", "fcfs", deadline_seconds=5.0)


class Asker:
    """An engine that finds these policies besides the real ones; the first is asked by default."""

    def __init__(self, *policies: Policy, default: str = "", deadline: float = 5.0, fallback: str = "fcfs") -> None:
        self.known = {each.name: each for each in policies}
        self.engine = Engine(lambda name: self.known[name] if name in self.known else policy.load(name))
        self.choice = Choice(default or policies[0].name, fallback, deadline_seconds=deadline)

    def decide(self, snapshot: Snapshot) -> Outcome:
        return self.engine.decide(snapshot, self.choice)


engine = Asker


def place(uid: str, *nodes: str) -> Any:
    return replace(placement(uid, dict.fromkeys(nodes, 8)), job=uid)


def not_a_number(uid: str) -> Any:
    return replace(place(uid, "a"), prediction=replace(placement().prediction, step_seconds=float("nan")))


def all_placed(outcome: Outcome) -> bool:
    return {placed.job for placed in outcome.placements} == {"uid-one", "uid-two"}


def raising(_: Snapshot) -> Decision:
    raise RuntimeError("no idea")


def waiting(now: Snapshot) -> Decision:
    return Decision("x", pending=tuple(later(each.uid) for each in now.waiting()))


def later(uid: str) -> Pending:
    return Pending(uid, PendingReason.BEHIND_OTHERS, "later")


def test_a_sound_decision_is_passed_on() -> None:
    outcome = Engine().decide(CLUSTER, BEST_FIT)
    assert all_placed(outcome)
    assert outcome.policies == {"uid-one": "best_fit", "uid-two": "best_fit"}
    assert outcome.seconds.keys() == {"best_fit"}
    assert (outcome.pending, outcome.refused, outcome.fallbacks) == ((), (), ())


@pytest.mark.parametrize(
    ("answer", "reason", "message"),
    [
        (raising, "error", "bad raised RuntimeError: no idea"),
        (lambda _: None, "invalid", "bad returned a NoneType that is no Decision"),
        (lambda _: Decision("bad", placements=("uid-one",)), "invalid", "is no Decision: Expected `object`"),
        (lambda _: Decision("bad", placements=(object(),)), "invalid", "is no Decision"),
        (lambda _: Decision("bad", (place("uid-one", "a"),)), "invalid", "bad gave no answer for two"),
        (lambda _: Decision("bad", (not_a_number("uid-one"), place("uid-two", "b"))), "nan", "for uid-one"),
        (lambda _: sys.exit("no more"), "error", "bad raised SystemExit: no more"),
    ],
    ids=[
        "raises",
        "returns nothing",
        "returns wrong types",
        "returns what cannot be said",
        "omits a job",
        "computes NaN",
        "wants to end the process",
    ],
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
    asker.engine._running["slow"].result(timeout=60)
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


def test_a_figure_that_cannot_be_is_refused_without_losing_the_rest() -> None:
    endless = replace(placement().prediction, run_seconds=float("inf"))
    answer = Decision("x", (replace(place("uid-one", "a"), prediction=endless), place("uid-two", "b")))
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


# --- policies that cannot be loaded -----------------------------------------------------------------------------------
class Library:
    """Where policies are found, if whatever they need is there."""

    def __init__(self) -> None:
        self.missing = True
        self.asked = 0

    def find(self, name: str) -> Policy:
        self.asked += 1
        if name == "learned" and self.missing:
            raise FileNotFoundError("learned.safetensors: no such file")
        return Scripted(name, waiting)


def test_a_policy_that_cannot_be_loaded_is_replaced_until_it_can_be() -> None:
    library = Library()
    asker, choice = Engine(library.find), Choice("learned", "fcfs")
    outcome = asker.decide(CLUSTER, choice)
    [fallback] = outcome.fallbacks
    assert (fallback.policy, fallback.reason) == ("learned", "unloadable")
    assert fallback.message == "learned cannot be loaded: learned.safetensors: no such file"
    assert set(outcome.policies.values()) == {"fcfs"}
    library.missing = False
    assert asker.decide(CLUSTER, choice).policies == {"uid-one": "learned", "uid-two": "learned"}


def test_policies_are_tried_ahead_and_loaded_once_and_failures_are_told() -> None:
    library = Library()
    asker = Engine(library.find)
    assert asker.prepare(["learned", "fcfs"]) == {
        "learned": "learned cannot be loaded: learned.safetensors: no such file"
    }
    library.missing = False
    assert asker.prepare(["learned", "fcfs"]) == {}
    asker.decide(CLUSTER, Choice("learned", "fcfs"))
    assert library.asked == 3


def test_a_policy_that_fails_on_trial_is_told_ahead_and_asked_all_the_same() -> None:
    lazy = Scripted("lazy", lambda now: waiting(now) if lazy.asked > 1 else raising(now))
    asker = engine(lazy)
    assert asker.engine.prepare(["lazy"]) == {"lazy": "lazy raised RuntimeError: no idea"}
    assert asker.decide(CLUSTER).fallbacks == ()


@pytest.mark.parametrize("name", ["best_fit", "fcfs", "sia"])
def test_sound_policies_pass_their_trial_by_starting_the_job(name: str) -> None:
    assert Engine().prepare([name]) == {}
    assert [placed.job for placed in Engine().decide(trial(), Choice(name, name)).placements] == ["trial"]


def test_a_policy_that_loads_for_ever_is_waited_for_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "LOAD_SECONDS", 0.05)
    release = threading.Event()
    asker = Engine(lambda name: Scripted(name, waiting) if name == "fcfs" or release.wait(60) else None)
    reasons = [asker.decide(CLUSTER, Choice("stuck", "fcfs")).fallbacks[0].reason for _ in range(2)]
    assert reasons == ["unloadable", "busy"]
    release.set()
    asker._running["stuck"].result(timeout=60)


# --- choices of jobs, and of others -----------------------------------------------------------------------------------
def test_a_choice_counts_from_the_next_decision_on() -> None:
    one, two = Scripted("first", waiting), Scripted("second", waiting)
    asker = engine(one, two)
    assert set(asker.decide(CLUSTER).policies.values()) == {"first"}
    assert set(asker.engine.decide(CLUSTER, Choice("second", "fcfs")).policies.values()) == {"second"}
    assert (one.asked, two.asked) == (1, 1)


def test_a_job_may_ask_for_a_policy_of_its_own() -> None:
    jobs = [job("one", gpus=(8, 8)), job("two", gpus=(8, 8), policy="fixed", created=NOW)]
    outcome = Engine().decide(snapshot([node("a"), node("b")], jobs), BEST_FIT)
    assert outcome.policies == {"uid-one": "best_fit", "uid-two": "fixed"}
    assert all_placed(outcome)


def test_a_job_that_asks_for_an_unknown_policy_gets_the_fallback_and_is_told() -> None:
    outcome = Engine().decide(snapshot([node("a")], [job(policy="nonsense")]), BEST_FIT)
    assert outcome.policies == {"uid-job": "fcfs"}
    [fallback] = outcome.fallbacks
    assert (fallback.policy, fallback.jobs) == ("nonsense", ("uid-job",))
    assert "unknown policy 'nonsense'" in fallback.message


def test_two_policies_in_one_round_never_get_the_same_gpu() -> None:
    jobs = [job("one", gpus=(8, 8)), job("two", gpus=(8, 8), policy="fixed", created=NOW)]
    outcome = Engine().decide(snapshot([node("a")], jobs), BEST_FIT)
    assert [placed.job for placed in outcome.placements] == ["uid-one"]
    [pending] = outcome.pending
    assert (pending.job, pending.reason) == ("uid-two", PendingReason.INSUFFICIENT_GPUS)
    [blocker] = pending.blockers
    assert blocker.startswith(f"default/one holds 8×{outcome.placements[0].gpu_type}")


def test_a_policy_sees_only_the_jobs_that_it_is_asked_about() -> None:
    seen: list[list[str]] = []
    mine = Scripted("mine", lambda now: (seen.append([each.name for each in now.waiting()]), waiting(now))[1])
    jobs = [job("one"), job("two", policy="mine"), job("three", policy="mine", priority=1)]
    engine(mine, default="best_fit").decide(snapshot([node("a")], jobs))
    assert seen == [["three", "two"]]


def test_no_policy_is_asked_when_nobody_waits() -> None:
    unasked = Scripted("unasked", raising)
    outcome = engine(unasked).decide(snapshot([node("a")], []))
    assert replace(outcome, stages={}) == Outcome({}, (), (), (), (), {})
    assert unasked.asked == 0
