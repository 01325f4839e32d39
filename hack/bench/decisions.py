"""How long a policy takes to decide for 100 waiting jobs on 1,000 (and 5,000) nodes, shield included.

Cold is the first decision of a process: every plan search is made. Warm is every later one. The cluster is as empty,
half full or full as `FILLS` says; in the full one every job needs an explanation instead of nodes.
"""

from __future__ import annotations

import itertools
import random
import time

import msgspec
from hack.bench.spread import Spread, spread
from msgspec import Struct

from trimtab.decide.engine import Engine
from trimtab_policy import catalog
from trimtab_policy.perf import plans
from trimtab_policy.policy import names
from trimtab_policy.types import Bounds, Job, Node, Requirements, Snapshot, TrainingSpec

TYPES = ("A100-SXM4-40GB", "A100-SXM4-80GB", "H100-SXM5-80GB", "MI300X", "T4", "V100-SXM2-32GB")
MODELS = ("gpt2", "bert-large", "llama3-8b", "llama2-13b", "gpt3-13b", "mistral-7b", "mixtral-8x7b", "llama3-70b")
FILLS = {"empty": 0.0, "half full": 0.5, "full": 1.0}
DEADLINE_SECONDS = 600.0


class Decided(Struct, frozen=True):
    """One line of the table; milliseconds."""

    policy: str
    nodes: int
    jobs: int
    fill: str
    cold: float
    warm: Spread
    placed: int


def measure(nodes: int, jobs: int, repeat: int) -> list[Decided]:
    """Every policy on clusters of every fill."""
    return [
        _time(name, fill, snapshot(nodes, jobs, FILLS[fill]), repeat)
        for name, fill in itertools.product(names(), FILLS)
    ]


def snapshot(nodes: int, jobs: int, fill: float, seed: int = 1) -> Snapshot:
    """A cluster of six GPU types in racks of four, and a mix of waiting jobs; the same for the same seed."""
    chance = random.Random(seed)
    machines = tuple(_node(i, 0 if chance.random() < fill else 8) for i in range(nodes))
    types = {name: catalog.gpu(name) for name in TYPES}
    return Snapshot(time.time(), machines, tuple(_job(i, chance) for i in range(jobs)), types)


def _time(policy: str, fill: str, view: Snapshot, repeat: int) -> Decided:
    plans.options.cache_clear()
    plans._search.cache_clear()
    engine = Engine(policy, "fcfs", DEADLINE_SECONDS)
    times: list[float] = []
    for _ in range(repeat + 1):
        began = time.perf_counter()
        outcome = engine.decide(msgspec.structs.replace(view))
        times.append((time.perf_counter() - began) * 1000)
    assert not outcome.refused, outcome.refused
    return Decided(policy, len(view.nodes), len(view.jobs), fill, times[0], spread(times[1:]), len(outcome.placements))


def _node(index: int, free: int) -> Node:
    place = (f"zone-{index // 500}", f"block-{index // 40}", f"rack-{index // 4}")
    return Node(f"node-{index:05}", TYPES[index // 4 % len(TYPES)], 8, free, 128_000, 1 << 40, 110, place)


def _job(index: int, chance: random.Random) -> Job:
    low = chance.choice((1, 2, 4, 8))
    return Job(
        uid=f"job-{index}",
        namespace="bench",
        name=f"job-{index}",
        model=catalog.model(chance.choice(MODELS)),
        training=TrainingSpec(chance.choice((1024, 2048, 4096)), chance.choice((64, 128, 256)), steps=1000),
        requirements=Requirements(gpus=Bounds(low, low * chance.choice((1, 2, 4, 8)))),
        created=float(index),
    )
