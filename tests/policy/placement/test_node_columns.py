"""Columns of nodes, and what gangs give back at once: the same as one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import A100, H100, capacity, job, node

from trimtab_policy.placement.capacity import ALL_TYPES
from trimtab_policy.placement.node_columns import KEPT, GangColumns, columns
from trimtab_policy.types import Job, NodeShare, Quota

NAMES = ("n1", "n2", "n3")
SHARE = st.tuples(st.sampled_from([*NAMES, "gone"]), st.integers(1, 4))
SHARES = st.lists(SHARE, min_size=1, max_size=3, unique_by=lambda share: share[0])


def test_the_same_nodes_have_the_same_columns_and_others_have_their_own() -> None:
    nodes, others = (node("n1", free=3), node("n2", H100)), (node("n1", free=-1),)
    found = columns(nodes)
    assert columns(nodes) is found
    assert (found.names, found.index, found.free.tolist()) == (["n1", "n2"], {"n1": 0, "n2": 1}, [3, 8])
    assert found.members[H100].tolist() == [1]
    assert found.gpus_of_type[H100] == 8
    assert (columns(others).free.tolist(), columns(others).overdrawn) == ([0], {0: 1})
    for i in range(KEPT):
        columns((node(f"x{i}"),))
    assert columns(nodes).names == found.names


def test_nobody_changes_what_others_see() -> None:
    with pytest.raises(ValueError, match="read-only"):
        columns((node("n1"),)).free[0] = 7
    mine = capacity(node("n1"))
    mine.take(job(), "A100-SXM4-80GB", (NodeShare("n1", 8),))
    assert columns(mine.nodes).free.tolist() == [8]


def gang(shares: list[tuple[str, int]], queue: str, cpu: int) -> tuple[Job, str, list[NodeShare]]:
    mine = job(queue=queue, cpu_milli_per_gpu=cpu, memory_per_gpu=2 * cpu)
    return mine, A100, [NodeShare(*share) for share in shares]


GANGS = st.lists(st.builds(gang, SHARES, st.sampled_from(["", "q", "r"]), st.sampled_from([0, 500])), max_size=5)


@given(gangs=GANGS, free=st.lists(st.integers(-4, 4), min_size=3, max_size=3), some=st.integers(0, 5))
def test_what_gangs_give_back_at_once_is_what_they_give_one_by_one(
    gangs: list[tuple[Job, str, list[NodeShare]]], free: list[int], some: int
) -> None:
    nodes = [node(name, free=gpus) for name, gpus in zip(NAMES, free, strict=True)]
    limits = [Quota("q", A100, 5), Quota("r", ALL_TYPES, 7)]
    at_once, in_turn = (capacity(*nodes, quotas=limits) for _ in range(2))
    # As of those that end: in an order of their own, and some sooner than others.
    held = GangColumns.of(reversed(gangs), at_once.index).in_order(range(len(gangs))[::-1])
    between = min(some, len(gangs))
    at_once.give_all(held, 0, between)
    at_once.give_all(held, between, len(gangs))
    for each in gangs:
        in_turn.give(*each)
    for name in ("free", "cpu", "memory", "pods"):
        assert np.array_equal(getattr(at_once, name), getattr(in_turn, name)), name
    assert at_once.free_gpus(A100) == in_turn.free_gpus(A100)
    assert list(map(at_once.owed, range(3))) == list(map(in_turn.owed, range(3)))
    for queue in ("q", "r"):
        assert at_once.quota_left(queue, A100) == in_turn.quota_left(queue, A100)
