"""Hypothesis strategies: any snapshot of a cluster, and any plan that a job could have."""

from __future__ import annotations

from typing import TypeVar

from hypothesis import strategies as st
from tests.builders import A100, H100, NOW, T4, V100, job, node, placement, snapshot

from trimtab_policy.specs import Mode, Precision, Recompute
from trimtab_policy.types import Bounds, Job, Node, Quota, Snapshot

T = TypeVar("T")
_BOUNDS = st.sampled_from([Bounds(1, 1), Bounds(1, 4), Bounds(2, 2), Bounds(3, 3)])
_SMALL, _LARGE = ["gpt2", "bert-large", "gpt2-xl"], ["llama3-8b", "mixtral-8x7b", "llama3-70b"]


def seldom(normal: T, odd: st.SearchStrategy[T]) -> st.SearchStrategy[T]:
    """Mostly the normal value: a case that is odd in every respect at once tests only the first check."""
    return st.integers(0, 7).flatmap(lambda dice: odd if dice == 7 else st.just(normal))


@st.composite
def nodes(draw: st.DrawFn, name: str) -> Node:
    """A node of any type and size; anything it has may be used up, or more than used up."""
    gpus = draw(seldom(8, st.sampled_from([1, 2, 4, 6])))
    rack = draw(st.integers(0, 3))
    return node(
        name,
        draw(st.sampled_from([A100, H100, V100, T4])),
        gpus=gpus,
        free=min(gpus, draw(seldom(gpus, st.integers(-4, 7)))),
        free_cpu_milli=draw(seldom(128_000, st.sampled_from([-1, 0, 4_000]))),
        free_memory=draw(seldom(1 << 40, st.sampled_from([0, 16 << 30]))),
        free_pods=draw(seldom(100, st.sampled_from([0, 1]))),
        topology=("z", f"b{rack % 2}", f"r{rack}")[: draw(seldom(3, st.integers(0, 2)))],
        link_domain=draw(seldom("", st.sampled_from(["c1", "c2"]))),
    )


@st.composite
def jobs(draw: st.DrawFn, name: str, node_names: list[str]) -> Job:
    """A waiting job with any requirements, sensible or not."""
    low = draw(st.sampled_from([1, 1, 2, 3, 8, 16]))
    return job(
        name,
        model=draw(seldom("gpt2", st.sampled_from([*_SMALL, *_LARGE]))),
        gpus=(low, low * draw(st.sampled_from([1, 2, 8]))),
        created=NOW - draw(st.integers(0, 3)),
        priority=draw(st.integers(0, 1)),
        precision=draw(seldom(Precision.FP16, st.sampled_from([Precision.BF16, Precision.FP8]))),
        global_batch_size=draw(seldom(96, st.sampled_from([1, 24]))),
        gpu_types=draw(seldom((), st.sampled_from([(A100, H100), (V100,), ("None-Such",)]))),
        max_nodes=draw(seldom(None, st.sampled_from([1, 3]))),
        modes=draw(seldom(tuple(Mode), st.sampled_from([(Mode.DATA,), (Mode.MODEL, Mode.HYBRID)]))),
        tensor=draw(seldom(Bounds(), _BOUNDS)),
        pipeline=draw(seldom(Bounds(), _BOUNDS)),
        zero_stage=draw(seldom(None, st.sampled_from([0, 3]))),
        recompute=draw(seldom(None, st.sampled_from(Recompute))),
        cpu_milli_per_gpu=draw(st.sampled_from([0, 1000])),
        memory_per_pod=draw(st.sampled_from([0, 8 << 30])),
        queue=draw(st.sampled_from(["", "q"])),
        eligible=draw(seldom(None, st.lists(st.sampled_from([*node_names, "gone"]), unique=True).map(tuple))),
    )


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """Any cluster: waiting jobs, one that runs (on nodes whose books may or may not show it), and quotas."""
    members = [draw(nodes(f"n{i}")) for i in range(draw(st.sampled_from([6, 5, 4, 3, 2, 1, 0])))]
    present = [each.name for each in members]
    waiting = [draw(jobs(f"j{i}", present)) for i in range(draw(st.integers(1, 4)))]
    held = placement("uid-held", {draw(st.sampled_from([*present, "gone"])): 4}, draw(st.sampled_from([A100, T4])))
    finish = draw(st.sampled_from([None, NOW - 60, NOW + 3600]))
    running = job("held", placement=held, queue="q", expected_finish=finish)
    limits = [Quota("q", draw(st.sampled_from(["*", A100])), draw(st.sampled_from([0, 8, 64])))]
    return snapshot(
        members, [*waiting, running], quotas=draw(st.sampled_from([(), limits])), unavailable={"x": "NotReady"}
    )
