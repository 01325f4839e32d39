"""Who held which GPUs when: nothing is drawn twice, and all of it is drawn."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.result_builders import CLUSTER, NODES, drawn, span

from trimtab_lab.evaluation import timeline
from trimtab_lab.evaluation.timeline import JobSpanBar, Timeline
from trimtab_lab.workloads import clusters
from trimtab_policy.sim.result import Span

EMPTY = clusters.cluster(CLUSTER)
T4_0, T4_1, A100_0 = NODES


def run(*spans: Span) -> Timeline:
    return timeline.timelines(EMPTY, {"fcfs": spans}, [f"job-{n}" for n in range(4)])["fcfs"]


def test_bars_lie_on_the_lowest_free_gpus_and_neighbours_are_one() -> None:
    assert set(timeline.bars(run(*drawn()[1]))) == {
        JobSpanBar(first=0, lanes=2, begin=0, end=3600, job=0),
        JobSpanBar(first=2, lanes=2, begin=0, end=3600, job=2),
        JobSpanBar(first=0, lanes=4, begin=3600, end=7200, job=1),
        JobSpanBar(first=4, lanes=4, begin=3600, end=7200, job=1),
        JobSpanBar(first=8, lanes=8, begin=3600, end=10800, job=2),
    }


def test_a_job_that_is_resized_keeps_the_gpus_that_it_had() -> None:
    grown = run(span(0, 0, 10, {T4_0: 1}), span(1, 0, 10, {T4_0: 1}), span(1, 10, 20, {T4_0: 2}))
    assert [bar for bar in timeline.bars(grown) if bar.begin == 10] == [JobSpanBar(0, 2, 10, 20, 1)]


def test_gpus_that_lie_apart_are_bars_apart() -> None:
    apart = run(span(0, 0, 10, {T4_0: 1}), span(1, 0, 20, {T4_0: 1}), span(2, 10, 20, {T4_0: 3}))
    assert [(bar.first, bar.lanes) for bar in timeline.bars(apart) if bar.job == 2] == [(0, 1), (2, 2)]


def test_more_than_there_is_cannot_be_drawn() -> None:
    with pytest.raises(ValueError, match="t4-0 has 4 GPUs, and more were held at 5 s"):
        list(timeline.bars(run(span(0, 0, 10, {T4_0: 3}), span(1, 5, 10, {T4_0: 2}))))


def test_shares_in_use_are_averages_over_each_interval() -> None:
    shares = timeline.in_use(run(span(0, 0, 10, {T4_0: 2}), span(1, 5, 20, {T4_0: 2})), [0, 10, 20])
    assert shares[0] == pytest.approx([0.75, 0.5])
    assert not shares[1:].any()


def test_who_held_most_of_a_node_holds_it_and_nobody_holds_what_was_idle() -> None:
    held = timeline.holders(run(span(0, 0, 20, {T4_0: 1}), span(1, 5, 10, {T4_0: 3})), [0, 10, 20, 30])
    assert held.tolist() == [[1, 0, -1], [-1, -1, -1], [-1, -1, -1]]


def test_runs_side_by_side_are_drawn_up_to_the_same_moment() -> None:
    short, long = [span(0, 0, 5, {T4_0: 1})], [span(0, 0, 9, {T4_0: 1})]
    both = timeline.timelines(EMPTY, {"fcfs": short, "las": long}, ["job-0"])
    assert [each.end for each in both.values()] == [9, 9]


def test_nodes_of_one_type_stand_together_and_a_run_of_nothing_has_a_length() -> None:
    mixed = replace(EMPTY, nodes=(EMPTY.nodes[0], EMPTY.nodes[2], EMPTY.nodes[1]))
    idle = timeline.timelines(mixed, {"fcfs": []}, [])["fcfs"]
    assert [node.name for node in idle.nodes] == [T4_0, T4_1, A100_0]
    assert idle.end > 0


@st.composite
def schedules(draw: st.DrawFn) -> list[Span]:
    """Jobs one after the other on slots of one or two GPUs, which never overlap."""
    spans: list[Span] = []
    for node, slot, gpus in ((T4_0, 0, 1), (T4_0, 1, 2), (T4_1, 2, 2), (A100_0, 3, 2)):
        ends = draw(st.lists(st.floats(0.01, 1e5), min_size=1, max_size=5, unique=True).map(sorted))
        for begin, end in zip([0.0, *ends], ends, strict=False):
            spans.append(span(slot, begin, end, {node: gpus}))
    return draw(st.permutations(spans))


@given(schedules())
def test_bars_never_overlap_and_add_up_to_what_was_held(spans: list[Span]) -> None:
    drawn_bars = list(timeline.bars(run(*spans)))
    on_lanes = sorted(
        (lane, bar.begin, bar.end) for bar in drawn_bars for lane in range(bar.first, bar.first + bar.lanes)
    )
    for (lane, _, end), (other, begin, _) in pairwise(on_lanes):
        assert lane != other or begin >= end - timeline.SAME_MOMENT
    held = sum((each.end - each.begin) * sum(share.gpus for share in each.shares) for each in spans)
    assert sum((bar.end - bar.begin) * bar.lanes for bar in drawn_bars) == pytest.approx(held)


@given(schedules())
def test_all_gpu_time_is_in_the_shares(spans: list[Span]) -> None:
    whole = run(*spans)
    edges = np.linspace(0, whole.end, 7)
    gpus = np.array([node.gpus for node in whole.nodes])
    in_use = (timeline.in_use(whole, edges) * gpus[:, None] * np.diff(edges)).sum()
    held = sum((each.end - each.begin) * sum(share.gpus for share in each.shares) for each in spans)
    assert in_use == pytest.approx(held)
