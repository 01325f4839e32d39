"""Learned policies in the engine: whatever is wrong with what was learned ends in the fallback, and is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.builders import NOW, job, node, snapshot

from trimtab.decide.engine import Engine
from trimtab_policy import policy
from trimtab_policy.learned import store
from trimtab_policy.learned.offers import Answers, OfferPolicy, best
from trimtab_policy.observation.encode import SCHEMA, OfferBatch
from trimtab_policy.policy import Policy
from trimtab_policy.scheduling.choice import Choice
from trimtab_policy.scheduling.results import Outcome

CLUSTER = snapshot([node("a"), node("b")], [job("one", gpus=(8, 8)), job("two", gpus=(8, 8), created=NOW)])
RELEASE = threading.Event()


class Sound(OfferPolicy):
    """Takes the first option that may be taken."""

    name = "learned"

    def choose(self, offers: OfferBatch) -> Answers:
        """As of `OfferPolicy`."""
        return best(self.name, np.zeros(offers.mask.shape, dtype=np.float32), offers)


class Diverged(Sound):
    """Its weights have become NaN."""

    def choose(self, offers: OfferBatch) -> Answers:
        """As of `OfferPolicy`."""
        return best(self.name, np.full(offers.mask.shape, np.nan, dtype=np.float32), offers)


class Forbidden(Sound):
    """Chooses what is not on offer."""

    def choose(self, offers: OfferBatch) -> Answers:
        """As of `OfferPolicy`."""
        return np.array([offers.wait + 7])


class Mismatched(Sound):
    """Was trained on observations of another shape."""

    def choose(self, offers: OfferBatch) -> Answers:
        """As of `OfferPolicy`."""
        weights = np.zeros((offers.job.shape[1] + 1, 3), dtype=np.float32)
        return np.asarray((offers.job @ weights).argmax(axis=1))


class Pondering(Sound):
    """Is too slow."""

    def choose(self, offers: OfferBatch) -> Answers:
        """As of `OfferPolicy`."""
        RELEASE.wait(60)
        return super().choose(offers)


class Untrained(Sound):
    """Has no weights, like an agent that nobody has trained."""

    def choose(self, offers: OfferBatch) -> Answers:
        """As of `OfferPolicy`."""
        store.load(Path("nowhere") / "learned.safetensors", SCHEMA)
        return super().choose(offers)


@pytest.fixture(autouse=True)
def released() -> Iterator[None]:
    RELEASE.clear()
    yield
    RELEASE.set()


def decide(kind: type[Sound], deadline: float = 10.0) -> Outcome:
    def find(name: str) -> Policy:
        return kind() if name == "learned" else policy.load(name)

    return Engine(find).decide(CLUSTER, Choice("learned", "fcfs", deadline_seconds=deadline))


def test_a_sound_one_decides_and_passes_the_shield() -> None:
    outcome = decide(Sound)
    assert len(outcome.placements) == 2
    assert (set(outcome.policies.values()), outcome.fallbacks, outcome.refused) == ({"learned"}, (), ())


@pytest.mark.parametrize(
    ("kind", "reason", "told"),
    [
        (Diverged, "error", "BadAnswer: learned"),
        (Forbidden, "error", "BadAnswer: learned"),
        (Mismatched, "error", "ValueError: "),
        (Untrained, "error", "WeightsError: "),
        (Pondering, "deadline", "took longer than"),
    ],
)
def test_the_fallback_decides_for_one_that_is_broken_and_says_why(kind: type[Sound], reason: str, told: str) -> None:
    outcome = decide(kind, 0.2 if reason == "deadline" else 10.0)
    [fallback] = outcome.fallbacks
    assert (fallback.policy, fallback.reason) == ("learned", reason)
    assert told in fallback.message
    assert set(outcome.policies.values()) == {"fcfs"}
    assert len(outcome.placements) == 2
