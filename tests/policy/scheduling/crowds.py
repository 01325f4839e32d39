"""Hypothesis strategy: clusters in use, with jobs that run and jobs that wait, whose books are right."""

from __future__ import annotations

from hypothesis import strategies as st
from tests.builders import A100, H100, NOW, T4, job, node, placement, snapshot

from trimtab_policy.scheduling.fair_share import in_line
from trimtab_policy.types import Job, Node, Placement, Quota, Snapshot

QUEUES = ("a", "b", "c")
GUARANTEES = st.sampled_from(
    [
        (),
        (Quota("a", "*", 1 << 20, 8), Quota("b", "*", 1 << 20, 8)),
        (Quota("a", A100, 16, 8), Quota("b", A100, 16, 0), Quota("c", "*", 12, 4)),
    ]
)
SIZES = [1, 2, 4, 8, 16]


@st.composite
def crowds(draw: st.DrawFn) -> Snapshot:
    """Up to five nodes of 8 GPUs, as full as comes; up to seven jobs run, up to four wait, in line."""
    types = [draw(st.sampled_from([A100, A100, A100, H100, T4])) for _ in range(draw(st.integers(1, 5)))]
    free = {f"n{i}": 8 for i in range(len(types))}
    kinds = dict(zip(free, types, strict=True))
    held = [job for number in range(draw(st.integers(0, 7))) if (job := _held(draw, number, free, kinds))]
    waiting = [_waiting(draw, number) for number in range(draw(st.integers(1, 4)))]
    nodes = [_node(draw, name, kinds[name], left) for name, left in free.items()]
    return in_line(snapshot(nodes, [*held, *waiting], quotas=draw(GUARANTEES)))


def _node(draw: st.DrawFn, name: str, kind: str, free: int) -> Node:
    owed = draw(st.sampled_from([0] * 9 + [2])) if free == 0 else 0
    return node(name, kind, free=free - owed, free_cpu_milli=draw(st.sampled_from([128_000, 128_000, 4_000])))


def _held(draw: st.DrawFn, number: int, free: dict[str, int], kinds: dict[str, str]) -> Job | None:
    width = draw(st.sampled_from([1, 2, 4, 8]))
    able = [name for name, left in free.items() if left >= width]
    if not able:
        return None
    first = draw(st.sampled_from(able))
    alike = [name for name in able if kinds[name] == kinds[first] and name != first]
    on = [first, *draw(st.lists(st.sampled_from(alike), unique=True, max_size=1))] if alike else [first]
    for name in on:
        free[name] -= width
    gpus = width * len(on)
    elastic = draw(st.booleans())
    return job(
        f"r{number}",
        gpus=(1, 16) if elastic else (gpus, gpus),
        placement=_placement(f"uid-r{number}", dict.fromkeys(on, width), kinds[first]),
        preemptible=elastic,
        priority=draw(st.integers(0, 2)),
        queue=draw(st.sampled_from(QUEUES)),
        started=NOW - draw(st.sampled_from([60, 3600])),
        movable_from=draw(st.sampled_from([0.0, 0.0, 0.0, NOW + 60, float("inf")])),
        expected_finish=draw(st.sampled_from([None, NOW + 10, NOW + 600, NOW + 36_000])),
        restart_seconds=draw(st.sampled_from([30.0, 60.0])),
        lost_seconds=draw(st.sampled_from([0.0, 600.0])),
        restarts=draw(st.integers(0, 3)),
        steps=draw(st.sampled_from([1000, 1_000_000])),
        cpu_milli_per_gpu=draw(st.sampled_from([0, 500])),
        eligible=draw(st.sampled_from([None, None, None, tuple(free)[:1]])),
    )


def _placement(uid: str, nodes: dict[str, int], kind: str) -> Placement:
    return placement(uid, nodes, kind)


def _waiting(draw: st.DrawFn, number: int) -> Job:
    least = draw(st.sampled_from(SIZES))
    return job(
        f"w{number}",
        gpus=(least, least * draw(st.sampled_from([1, 1, 2]))),
        created=NOW - draw(st.integers(60, 7200)),
        priority=draw(st.integers(0, 2)),
        queue=draw(st.sampled_from(QUEUES)),
        steps=draw(st.sampled_from([1000, 1_000_000])),
        restart_seconds=60.0,
        cpu_milli_per_gpu=draw(st.sampled_from([0, 500])),
        gpu_types=draw(st.sampled_from([(), (), (A100,)])),
    )
