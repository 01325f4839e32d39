"""How long a decision takes, every stage and the shield included: 100 pending jobs on 1,000 nodes of nine GPU products
(the shipped profile `large`), 200 on 5,000, 1,000 on 10,000, and 2,000 on 80,000 GPUs. Milliseconds of CPU: a
neighbour's work is not ours.

The jobs are the sample manifests, over and over, each time with other batch sizes and counts; the cluster is empty,
half full or full of running jobs. `cold` is the first decision of a process, which searches the plans of every job
anew; `warm` remembers them, as a controller does from the second round on.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from itertools import count, cycle, islice
from typing import Any

import msgspec
import yaml
from hack.bench import simulated_cluster as worlds
from hack.bench.cluster_fixture import NAMESPACE, job
from hack.bench.percentiles import Spread, spread
from msgspec import Struct

from trimtab import names
from trimtab.decide.engine import Engine
from trimtab.kube.resources import JOBS
from trimtab.observe.snapshot import ClusterObserver
from trimtab.settings import Settings
from trimtab_local.checkout import checkout
from trimtab_local.fake.profile import FakeCluster, load_profile
from trimtab_policy import policy
from trimtab_policy.perf import plans
from trimtab_policy.scheduling.choice import Choice
from trimtab_policy.types import Snapshot

FILLER_GPUS = 8
DEADLINE_SECONDS = 600.0


SIZES = (1000, 100), (5000, 200), (10000, 1000), (11400, 2000)
"""Nodes, and jobs that wait; the last is 80,000 GPUs."""
POLICIES = ("best_fit", "rudder", "sia")
OTHERS = ("fcfs", "fixed", "easy_backfill", "sjf", "fgd")
"""Those that decide well, too, on a cluster where nothing may be preempted: on the smallest size only."""
GOALS = {1000: {"best_fit": 40.0, "rudder": 150.0}, 5000: {"best_fit": 150.0, "rudder": 400.0},
         10000: {"best_fit": 600.0, "rudder": 1000.0}}  # fmt: skip
"""Nodes -> policy -> milliseconds."""
GAP_GOAL = 0.01


class Line(Struct):
    """One policy on one cluster."""

    policy: str
    size: int
    """Nodes that were asked for."""
    nodes: int
    load: str
    pending: int
    placed: int
    cold: float
    """Milliseconds, once."""
    warm: Spread
    """Milliseconds."""
    gap: float | None
    """How far the assignment may be from the best, as a part of its worth; None where nobody certifies that."""


async def measure(sizes: Sequence[tuple[int, int]], repeat: int) -> list[Line]:
    """The policies on clusters of these many nodes with so many waiting jobs, empty, half full and full."""
    lines: list[Line] = []
    for number, (nodes, pending) in enumerate(sizes):
        policies = POLICIES if number else POLICIES + OTHERS
        for load, share in (("empty", 0.0), ("half full", 0.5), ("full", 1.0)):
            snapshot = await snapshot_of(profile_of(nodes), share, pending)
            lines += [_line(name, nodes, snapshot, load, repeat) for name in policies]
    return lines


def goals(lines: Sequence[Line]) -> list[tuple[str, float, float]]:
    """What, its figure, and what it should be at most."""
    told = [(f"{line.policy}, {line.size} nodes, {line.pending} wait, {line.load}", line) for line in lines]
    times = [
        (f"{what}: p99 ms of CPU", line.warm.p99, goal)
        for what, line in told
        if (goal := GOALS.get(line.size, {}).get(line.policy)) is not None
    ]
    return times + [(f"{what}: certified gap", line.gap, GAP_GOAL) for what, line in told if line.gap is not None]


def _line(name: str, size: int, snapshot: Snapshot, load: str, repeat: int) -> Line:
    found = policy.load(name)
    engine, choice = Engine(lambda _: found), Choice(name, name, deadline_seconds=DEADLINE_SECONDS)
    engine.prepare([name])
    plans.forget()
    cold, outcome = _timed(engine, choice, snapshot)
    gc.freeze()  # as the controller does when it begins to lead
    warm = spread([_timed(engine, choice, snapshot)[0] for _ in range(repeat)])
    gap = found.largest_gap if isinstance(found, policy.Solves) else None
    return Line(name, size, len(snapshot.nodes), load, len(snapshot.waiting()), outcome, cold, warm, gap)


def _timed(engine: Engine, choice: Choice, snapshot: Snapshot) -> tuple[float, int]:
    """Milliseconds of CPU, of all threads, that one decision takes, and how many jobs it placed."""
    began = time.process_time()
    outcome = engine.decide(snapshot, choice)
    return 1000 * (time.process_time() - began), len(outcome.placements)


def profile_of(nodes: int) -> FakeCluster:
    """The large profile, every pool scaled to make up about so many nodes."""
    large = load_profile(checkout() / "manifests" / "fake" / "large.yaml")
    pools = tuple(
        msgspec.structs.replace(pool, count=max(1, round(pool.count * nodes / large.nodes))) for pool in large.pools
    )
    return msgspec.structs.replace(large, pools=pools)


async def snapshot_of(profile: FakeCluster, share: float, pending: int) -> Snapshot:
    """What policies see when running jobs hold this share of the GPUs, and so many jobs wait."""
    settings = Settings()
    fillers = [
        job(f"running-{i:05}", gpus=FILLER_GPUS, tensor=1) for i in range(round(profile.gpus * share / FILLER_GPUS))
    ]
    world = await worlds.with_running_jobs(profile, fillers, settings)
    for waiting in islice(_mix(), pending):
        world.put(JOBS, waiting)
    copy, following = await worlds.cluster(world, settings)
    following.cancel()
    return ClusterObserver(settings.topology.levels).observe(copy.caches(), time.time()).snapshot


def _mix() -> Iterator[dict[str, Any]]:
    """Samples without end, no two of them alike."""
    paths = sorted((checkout() / "manifests" / "samples").glob("*.yaml"))
    samples = [loaded for path in paths if (loaded := yaml.safe_load(path.read_text()))["kind"] == names.JOB_KIND]
    for number, sample in zip(count(), cycle(samples)):
        spec = {key: value for key, value in sample["spec"].items() if key not in ("queue", "priorityClassName")}
        training = spec["training"] | {
            "globalBatchSize": spec["training"]["globalBatchSize"] * (1 + number // len(samples) % 4)
        }
        meta = {"name": f"waiting-{number:03}", "namespace": NAMESPACE}
        yield sample | {"metadata": meta, "spec": spec | {"training": training}}
