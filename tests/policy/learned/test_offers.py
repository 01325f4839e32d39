"""What all learned policies promise, whatever they have learned."""

from __future__ import annotations

import numpy as np
import pytest
from tests.builders import NOW, job, node, running, snapshot

from trimtab_policy.learned.offers import PATIENCE_SECONDS, Answers, BadAnswer, OfferPolicy, best
from trimtab_policy.observation.encode import OfferBatch
from trimtab_policy.types import PendingReason


class Scripted(OfferPolicy):
    """Gives these answers one after the other, and remembers what it was asked."""

    name = "scripted"

    def __init__(self, *answers: int | None) -> None:
        """None: to wait, if that is allowed, else the first option that is."""
        self.answers, self.asked = list(answers), []

    def choose(self, offers: OfferBatch) -> Answers:
        self.asked.append(offers)
        answer = self.answers.pop(0)
        wanted = (offers.wait if offers.mask[0, -1] else int(offers.mask[0].argmax())) if answer is None else answer
        return np.array([wanted])


def test_jobs_are_offered_in_the_order_of_the_queue_and_get_what_was_answered() -> None:
    jobs = [job("late", created=NOW - 5), job("urgent", priority=1, created=NOW - 1), job("early", created=NOW - 9)]
    policy = Scripted(0, 0, 0)
    decision = policy.decide(snapshot([node("a"), node("b"), node("c")], jobs))
    assert [placed.job for placed in decision.placements] == ["uid-urgent", "uid-early", "uid-late"]
    assert all(placed.gpus == 1 for placed in decision.placements)
    assert "chosen by scripted" in decision.placements[0].reason


def test_a_job_that_is_let_wait_says_so() -> None:
    busy = snapshot([node("a", free=2)], [job("new"), running("old", {"a": 6})])
    decision = Scripted(None).decide(busy)
    (pending,) = decision.pending
    assert pending.reason is PendingReason.BEHIND_OTHERS
    assert pending.message == "scripted keeps the free GPUs for other jobs, or waits for better ones"


def test_nobody_waits_for_ever_while_gpus_are_free() -> None:
    def after(seconds: float) -> bool:
        waiting = job("new", created=NOW - seconds)
        decision = Scripted(None).decide(snapshot([node("a", free=2)], [waiting, running("old", {"a": 6})]))
        return bool(decision.placements)

    assert not after(PATIENCE_SECONDS - 1)
    assert after(PATIENCE_SECONDS)


def test_what_one_job_takes_the_next_is_not_offered() -> None:
    policy = Scripted(0, 0)
    decision = policy.decide(snapshot([node("a", free=1)], [job("first", gpus=(1, 1)), job("second", gpus=(1, 1))]))
    assert len(policy.asked) == 1
    assert [pending.reason for pending in decision.pending] == [PendingReason.INSUFFICIENT_GPUS]


@pytest.mark.parametrize("answer", [-1, 3, 99])
def test_answers_that_were_not_on_offer_are_errors(answer: int) -> None:
    with pytest.raises(BadAnswer, match=f"scripted answered {answer}, which was not on offer"):
        Scripted(answer).decide(snapshot([node("a", free=2)], [job("new", gpus=(1, 8))]))


def test_values_that_are_no_numbers_are_errors_where_they_count() -> None:
    policy = Scripted(0)
    policy.decide(snapshot([node("a", free=2)], [job("new", gpus=(1, 8))]))
    (offers,) = policy.asked
    values = np.zeros(offers.mask.shape, dtype=np.float32)
    values[~offers.mask] = np.nan
    assert best("scripted", values, offers).tolist() == [0]
    values[offers.mask] = np.nan
    with pytest.raises(BadAnswer, match="no number"):
        best("scripted", values, offers)
