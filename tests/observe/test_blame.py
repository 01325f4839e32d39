"""Days of a cluster with sick nodes, honest jobs and liars: whom the words of pods condemn, and whom they do not."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import pytest
from tests.builders import NOW, job_object, node_object, placement, plan_of

from trimtab.api.history import FailureCause, FailureRecord
from trimtab.api.status import JobStatus
from trimtab.apply import transitions
from trimtab.kube.objects import JobObject
from trimtab.observe.failures import Failures, count_events
from trimtab.observe.snapshot import Caches, ClusterObserver
from trimtab.settings import FailureSettings

RULES = FailureSettings()
NODES = 16
MADE = {"creationTimestamp": "2025-01-01T00:00:00Z"}
THERE = [node_object(f"n{number}", metadata=MADE) for number in range(NODES)]
HOUR = 3600.0
STEP = HOUR / 4


class World(NamedTuple):
    """Who is there. Every quarter of an hour each of so many jobs has a gang on some node that it is let have."""

    namespaces: int
    liars: int = 0
    """Jobs of namespace `liar`, each gang of which says that its node has kept it from starting."""
    honest: int = 12
    sick: frozenset[str] = frozenset()
    seconds: float = 8 * HOUR
    flaw: float = 0.8
    """Probability with which a sick node ends a gang at its start."""


class Found(NamedTuple):
    """What became of it."""

    condemned: set[str]
    """Nodes that were kept from honest jobs."""
    lost: int
    """Honest gangs that sick nodes have ended."""


Verdict = Callable[[Sequence[JobObject], float], tuple[set[str], dict[str, frozenset[str]]]]


def ruled(jobs: Sequence[JobObject], now: float) -> tuple[set[str], dict[str, frozenset[str]]]:
    """As the controller judges: nodes that nobody gets, and those that single namespaces do not."""
    observer = ClusterObserver((), failures=Failures(RULES, share=0.25, apart=60.0))
    held = observer.observe(Caches(THERE, (), jobs), now).held
    return set(held.bad), dict(held.suspect)


def before(jobs: Sequence[JobObject], now: float) -> tuple[set[str], dict[str, frozenset[str]]]:
    """As it did before: two jobs at two times, whoever's."""
    blows: dict[str, list[tuple[float, str]]] = {}
    for each in jobs:
        for record in JobStatus.model_validate_json(bytes(each.status)).failures:
            if record.node and record.time.timestamp() > now - RULES.bad_node_seconds:
                blows.setdefault(record.node, []).append((record.time.timestamp(), each.metadata.uid))
    worst = sorted(blows, key=lambda name: (-len(blows[name]), name))
    bad = [
        name
        for name in worst
        if count_events(sorted(time for time, _ in blows[name]), 60.0) >= 2
        and len({uid for _, uid in blows[name]}) >= 2
    ]
    return set(bad[: NODES // 4]), {}


def days(world: World, judge: Verdict, seed: int) -> Found:
    """Live through it."""
    dice = random.Random(seed)
    people = [(f"job-{number}", f"team-{number % world.namespaces}") for number in range(world.honest)]
    people += [(f"lie-{number}", "liar") for number in range(world.liars)]
    told: dict[str, list[FailureRecord]] = {name: [] for name, _ in people}
    condemned: set[str] = set()
    runs: dict[str, str] = {}
    lost, now = 0, NOW
    while now < NOW + world.seconds:
        now += STEP
        jobs = [_object(name, namespace, told[name], runs.get(name, ""), now - STEP) for name, namespace in people]
        bad, suspect = judge(jobs, now)
        runs = {}
        for name, namespace in people:
            kept = bad | suspect.get(namespace, frozenset())
            condemned |= kept if namespace != "liar" else set()
            node = dice.choice([f"n{number}" for number in range(NODES) if f"n{number}" not in kept])
            sick = node in world.sick and dice.random() < world.flaw
            if sick or namespace == "liar":
                told[name] = [*told[name], _record(node, now + dice.random() * STEP / 2)][-16:]
                lost += namespace != "liar"
            else:
                runs[name] = node
    return Found(condemned, lost)


def _record(node: str, time: float) -> FailureRecord:
    moment = datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return FailureRecord(time=moment, epoch=1, cause=FailureCause.NODE, reason="CannotStart", node=node)


def _object(name: str, namespace: str, records: Sequence[FailureRecord], node: str, since: float) -> JobObject:
    """The job, whose gang runs on the node unless that is empty."""
    status, meta = JobStatus(), job_object(name).metadata
    if node:
        status = transitions.planned(status, meta, plan_of(placement(nodes={node: 8})), since)
        status = transitions.scheduled(status, meta, since, all_running=True)
    told = status.model_copy(update={"failures": tuple(records), "last_epoch": 1})
    return job_object(name, status=told, namespace=namespace)


SEEDS = range(2)


@pytest.mark.parametrize("namespaces", [1, 2, 4])
def test_a_liar_with_a_third_of_all_jobs_condemns_no_node_of_others(namespaces: int) -> None:
    world = World(namespaces, liars=6)
    assert [days(world, ruled, seed).condemned for seed in SEEDS] == [set()] * len(SEEDS)
    assert all(days(world, before, seed).condemned for seed in SEEDS)


@pytest.mark.parametrize(("namespaces", "flaw"), [(1, 0.8), (2, 0.8), (4, 0.8), (4, 0.4), (12, 0.8)])
def test_honest_jobs_find_the_sick_nodes_that_they_found_before(namespaces: int, flaw: float) -> None:
    """As many, and at the cost of about as many gangs."""
    sick = frozenset({"n2", "n5", "n11"})
    world = World(namespaces, sick=sick, flaw=flaw)
    now, then = ([days(world, judge, seed) for seed in SEEDS] for judge in (ruled, before))
    found, earlier = (sum(len(each.condemned & sick) for each in some) for some in (now, then))
    assert found >= 0.95 * earlier
    assert all(each.condemned <= sick for each in now)
    cost, usual = (sum(each.lost for each in some) for some in (now, then))
    assert cost <= 1.6 * usual


def test_with_a_liar_about_honest_jobs_still_find_them() -> None:
    sick = frozenset({"n2", "n5", "n11"})
    alone, beside = ([days(World(4, liars, sick=sick), ruled, seed) for seed in SEEDS] for liars in (0, 6))
    assert sum(len(each.condemned & sick) for each in beside) >= 0.95 * sum(
        len(each.condemned & sick) for each in alone
    )
