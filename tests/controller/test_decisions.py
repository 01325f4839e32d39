"""When a round decides anew, who is asked, and who hears of it."""

from __future__ import annotations

from typing import Any, cast

import pytest
from msgspec.structs import replace
from tests.builders import NOW, job_object, node_object

from trimtab.apply.transitions import Happening
from trimtab.controller.decisions import REVIEW_SECONDS, Decided, Decisions
from trimtab.decide.choice import Choice
from trimtab.decide.engine import Engine, Outcome
from trimtab.kube.objects import Meta
from trimtab.observe.jobs import JobFacts
from trimtab.observe.snapshot import Caches, Observation, Observer
from trimtab_policy import policy
from trimtab_policy.policy import Policy
from trimtab_policy.sim.engine import Rules
from trimtab_policy.types import Pending, Placement

CHOICE = Choice("best_fit", "fcfs", "srtf")


class Bench:
    """Decisions with everything around them played."""

    def __init__(self) -> None:
        self.choice = CHOICE
        self.broken: set[str] = set()
        self.promised: dict[str, str] = {}
        """UID -> policy of the jobs that were given a placement."""
        self.explained: list[str] = []
        self.told: list[str] = []
        self.shadow_policy = ""
        self.shadowed: list[str] = []
        this = cast(Any, self)
        self.decisions = Decisions(this, Engine(self._find), this, this, this)

    async def decide(self, observation: Observation) -> Decided | None:
        return await self.decisions.decide(observation, await self.decisions.choose())

    def _find(self, name: str) -> Policy:
        if name in self.broken:
            raise OSError("no such file")
        return policy.load(name)

    async def look(self) -> Choice:
        """As of `Choosing`."""
        return self.choice

    def promise(self, facts: JobFacts, placement: Placement, policy: str) -> None:
        """As of `Gangs`, like the next two."""
        self.promised[facts.meta.uid] = policy

    def explain(self, pending: Pending) -> None:
        self.explained.append(pending.job)

    def answered(self, uids: list[str]) -> bool:
        return all(uid in self.promised or uid in self.explained for uid in uids)

    def job(self, meta: Meta, happening: Happening) -> None:
        """As of `Recorder`."""
        self.told.append(f"{happening.type} {happening.reason}: {happening.message}")

    def use(self, policy: str) -> None:
        """As of `ShadowMode`, like the next one."""
        self.shadow_policy = policy

    def ask(self, observation: Observation, outcome: Outcome) -> None:
        self.shadowed.append(self.shadow_policy)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def observation(gpus: int = 8, later: float = 0.0) -> Observation:
    waiting = job_object(spec={"resources.gpus": {"min": gpus, "max": gpus}})
    return Observer(()).observe(Caches([node_object("a")], [], [waiting]), NOW + later)


async def test_the_policy_in_force_decides_and_its_shadow_is_asked_afterwards(bench: Bench) -> None:
    decided = await bench.decide(observation())
    assert decided
    assert (bench.promised, bench.shadowed) == ({"uid-job": "best_fit"}, [])
    bench.decisions.shadow(decided)
    assert bench.shadowed == ["srtf"]


async def test_a_job_that_waits_is_not_decided_about_again_without_news(bench: Bench) -> None:
    assert await bench.decide(observation(16))
    assert bench.explained == ["uid-job"]
    assert await bench.decide(observation(16)) is None
    assert await bench.decide(observation(32))


async def test_what_waits_is_looked_at_again_now_and_then_for_it_grows_older(bench: Bench) -> None:
    assert await bench.decide(observation(16))
    assert await bench.decide(observation(16, later=REVIEW_SECONDS - 1)) is None
    assert await bench.decide(observation(16, later=REVIEW_SECONDS))
    assert await bench.decide(observation(16, later=REVIEW_SECONDS + 1)) is None


def test_the_simulator_asks_policies_as_often() -> None:
    assert Rules().heartbeat == REVIEW_SECONDS


@pytest.mark.parametrize("change", [{"policy": "fcfs"}, {"fallback": "sjf"}, {"shadow": ""}, {"deadline_seconds": 1.0}])
async def test_another_choice_is_news(bench: Bench, change: dict[str, Any]) -> None:
    assert await bench.decide(observation(16))
    bench.choice = replace(CHOICE, **change)
    decided = await bench.decide(observation(16))
    assert decided
    assert decided.choice == bench.choice


async def test_nobody_is_asked_when_nobody_waits(bench: Bench) -> None:
    bench.broken = {"best_fit", "fcfs"}
    assert await bench.decide(Observer(()).observe(Caches([node_object("a")], [], []), NOW)) is None
    assert bench.told == []


async def test_jobs_are_told_when_another_policy_had_to_decide_for_them(bench: Bench) -> None:
    bench.broken = {"best_fit"}
    await bench.decide(observation())
    assert bench.promised == {"uid-job": "fcfs"}
    failed = "best_fit cannot be loaded: no such file"
    assert bench.told == [f"Warning PolicyFallback: policy best_fit failed, another one decided: {failed}"]
