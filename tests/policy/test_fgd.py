"""Fragmentation gradient descent: the formula on nodes worked out by hand, and what follows from it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.builders import A100, H100, T4, job, node, snapshot
from tests.trace_jobs import traced

from trimtab_policy.heuristics.fgd import Fgd, FreeColumns, Tasks, fragmentation, typical
from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.types import Node, Snapshot


def popular(*tasks: tuple[float, int]) -> Tasks:
    """Tasks of (popularity, GPUs) that any of nine nodes would take."""
    share, gpus = zip(*tasks, strict=True)
    none = np.zeros(len(tasks), dtype=np.int64)
    return Tasks(np.array(share), np.array(gpus), none, none, np.ones((len(tasks), 9), dtype=np.bool_))


def free(*gpus: int) -> FreeColumns:
    plenty = np.full(len(gpus), 1 << 40)
    return FreeColumns(np.array(gpus), plenty, plenty)


def nodes_taken(now: Snapshot) -> dict[str, dict[str, int]]:
    return {
        placed.job.removeprefix("uid-"): {share.node: share.gpus for share in placed.shares}
        for placed in Fgd().decide(now).placements
    }


def quads(*free: int) -> list[Node]:
    return [node(f"n{i}", gpus=4, free=left) for i, left in enumerate(free)]


def test_free_gpus_are_fragments_for_the_tasks_that_they_are_too_few_for() -> None:
    found = fragmentation(popular((0.5, 1), (0.3, 2), (0.2, 4)), free(0, 1, 2, 3, 4), np.arange(5))
    assert found == pytest.approx([0, 0.5 * 1, 0.2 * 2, 0.2 * 3, 0])


def test_all_is_a_fragment_for_a_task_that_lacks_cpu_or_demands_another_type() -> None:
    tasks = popular((0.6, 1), (0.4, 1))._replace(cpu_milli=np.array([0, 8000]))
    short = FreeColumns(np.array([3, 3]), np.array([7999, 8000]), np.full(2, 1 << 40))
    assert fragmentation(tasks, short, np.arange(2)) == pytest.approx([0.4 * 3, 0])
    demanding = tasks._replace(fits_type=np.array([[True, True], [False, True]]))
    assert fragmentation(demanding, free(3, 3), np.arange(2)) == pytest.approx([0.4 * 3, 0])


def test_typical_tasks_are_the_pods_of_all_jobs() -> None:
    both = {"types": (A100, T4)}
    jobs = [
        traced("held", 6, {"n0": 4, "n1": 2}),
        traced("same", 6),
        traced("any", 1, **both),
        job("live", gpus=(1, 1)),
    ]
    now = snapshot([*quads(0, 2, 4), node("t", T4)], [*jobs, traced("type", 1, gpu_types=(A100,), **both)])
    tasks = typical(now, Capacity(now))
    assert tasks.gpus.tolist() == [4, 2, 1, 1]
    assert tasks.popularity == pytest.approx([2 / 7, 2 / 7, 2 / 7, 1 / 7])
    assert tasks.fits_type[:, 0].tolist() == [True] * 4
    assert tasks.fits_type[:, 3].tolist() == [False, False, True, False]


def test_a_pod_leaves_the_pair_that_others_want_and_breaks_what_is_broken() -> None:
    """Best fit would take the node with two free GPUs."""
    pairs = [traced(f"pair{i}", 2, {f"x{i}": 2}) for i in range(3)]
    now = snapshot([*quads(2, 3), *(node(f"x{i}", gpus=2, free=0) for i in range(3))], [*pairs, traced("one", 1)])
    assert nodes_taken(now) == {"one": {"n1": 1}}
    [placed] = Fgd().decide(now).placements
    assert placed.reason == f"1×{A100}, dp=1 tp=1 pp=1: expected fragmentation +0.00 GPUs"


def test_the_gradient_decides_between_types_that_are_equally_fast() -> None:
    """All others demand H100s, so that the last free A100 is already a fragment for them."""
    others = [traced(f"h{i}", 1, {"h": 1}, gpu_types=(H100,)) for i in range(4)]
    one = traced("one", 1, types=(A100, T4))
    one = replace(one, speeds=tuple(replace(row, steps_per_second=7.0) for row in one.speeds or ()))
    wanted = traced("t", 8, {"t2": 8}, T4, types=(T4,), gpu_types=(T4,))
    nodes = [node("a", gpus=4, free=1), node("t", T4), node("t2", T4, free=0), node("h", H100, free=4)]
    assert nodes_taken(snapshot(nodes, [*others, wanted, one])) == {"one": {"a": 1}}


def test_gangs_take_whole_nodes_and_are_spread_where_they_must() -> None:
    whole = snapshot(quads(4, 2, 4), [traced("six", 6)])
    assert nodes_taken(whole) == {"six": {"n0": 4, "n1": 2}}
    assert nodes_taken(snapshot(quads(2, 2, 2), [traced("six", 6)])) == {"six": {"n0": 2, "n1": 2, "n2": 2}}


def test_a_job_that_does_not_fit_lets_others_pass() -> None:
    now = snapshot(quads(2), [traced("wide", 4, created=0.0), traced("one", 1)])
    assert nodes_taken(now) == {"one": {"n0": 1}}


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=5),
    st.lists(st.integers(0, 8), min_size=1, max_size=9),
)
def test_expected_fragments_are_never_negative_nor_more_than_what_is_free(
    tasks: list[tuple[int, int]], gpus: list[int]
) -> None:
    total = sum(weight for weight, _ in tasks)
    found = fragmentation(
        popular(*((weight / total, count) for weight, count in tasks)), free(*gpus), np.arange(len(gpus))
    )
    assert (found >= 0).all()
    assert (found <= np.array(gpus) + 1e-9).all()
