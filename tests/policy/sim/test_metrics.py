"""Figures of runs that are small enough to be reckoned by hand."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab_lab.evaluation import metrics
from trimtab_lab.evaluation.metrics import InconsistentRun, Summary, summary
from trimtab_policy import catalog
from trimtab_policy.sim.result import JobRecord, Run, Span
from trimtab_policy.types import Node, NodeShare, Snapshot

HOUR = 3600.0
T4, A100 = "T4", "A100-SXM4-80GB"


def cluster(*types: str, gpus: int = 4) -> Snapshot:
    """Nodes n0, n1, ... of these types."""
    nodes = tuple(Node(f"n{i}", name, gpus, gpus, 1, 1, 1) for i, name in enumerate(types))
    return Snapshot(0.0, nodes, (), {name: catalog.gpu(name) for name in sorted(set(types))})


def span(job: int, begin: float, end: float, gpu_type: str = T4, **shares: int) -> Span:
    """Hours."""
    return Span(job, begin * HOUR, end * HOUR, gpu_type, tuple(NodeShare(*share) for share in shares.items()))


def record(index: int, submitted: float, finished: float | None, gpu_hours: float, **changes: Any) -> JobRecord:
    """Times in hours; all that is held is productive unless said otherwise."""
    defaults: dict[str, Any] = {
        "started": submitted * HOUR,
        "productive_gpu_seconds": gpu_hours * HOUR,
        "restarts": 0,
        "isolated_seconds": 0.0,
    }
    done = None if finished is None else finished * HOUR
    return JobRecord(
        uid=f"j{index}",
        application="x",
        submitted=submitted * HOUR,
        finished=done,
        gpu_seconds=gpu_hours * HOUR,
        **(defaults | changes),
    )


def run(on: Snapshot, jobs: list[JobRecord], spans: list[Span], end: float, **changes: Any) -> Run:
    defaults: dict[str, Any] = {"decision_seconds": (0.001, 0.003), "cpu_seconds": 1.5}
    return Run("test", on, tuple(jobs), tuple(spans), end * HOUR, **(defaults | changes))


TWO = run(
    cluster(T4),
    [
        record(0, 0, 2, 8.0, productive_gpu_seconds=6 * HOUR, isolated_seconds=HOUR, deadline=2 * HOUR, restarts=1),
        record(1, 0, 4, 2.0, isolated_seconds=8 * HOUR, deadline=3 * HOUR),
    ],
    [span(0, 0, 2, n0=4), span(1, 2, 4, n0=1)],
    end=4,
)
"""Job 0 holds all four GPUs for two hours, a fourth of it in vain; job 1 waits, then runs for two hours on one."""


def test_figures_of_jobs() -> None:
    s = summary(TWO)
    assert (s.jobs, s.unfinished) == (2, 0)
    assert (s.avg_jct_h, s.p50_jct_h, s.makespan_h) == (3, 3, 4)
    assert (s.p90_jct_h, s.p99_jct_h) == (pytest.approx(3.8), pytest.approx(3.98))
    assert (s.avg_queue_h, s.p99_queue_h) == (1, pytest.approx(1.98))
    assert s.bounded_slowdown == pytest.approx((1 + 2) / 2)
    assert (s.gpu_hours_per_job, s.restarts_per_job) == (5, 0.5)
    assert s.deadline_hits == 0.5
    assert (s.worst_rho, s.unfair_fraction) == (2.0, 0.5)
    assert s.p99_rho == pytest.approx(2 - 0.01 * 1.5)


def test_jobs_that_had_not_arrived_when_the_run_was_cut_off_are_counted_and_nothing_else() -> None:
    late = [record(number, hour, None, 0.0, started=None, isolated_seconds=HOUR) for number, hour in ((2, 5), (3, 9))]
    cut = run(TWO.cluster, [*TWO.jobs, *late], list(TWO.spans), end=4)
    assert summary(cut) == msgspec.structs.replace(summary(TWO), not_arrived=2)
    with pytest.raises(InconsistentRun, match="none of them arrived"):
        summary(cut, np.array([False, False, True, True]))


def test_figures_of_the_cluster_and_of_decisions() -> None:
    s = summary(TWO)
    assert s.utilisation == pytest.approx(10 / 16)
    assert s.goodput_utilisation == pytest.approx(8 / 16)
    watts = catalog.gpu(T4).power_watts
    assert s.energy_kwh == pytest.approx((8 + 2 * metrics.IDLE_POWER) * watts / 1000)
    assert (s.decision_ms_p50, s.decision_ms_p99) == (pytest.approx(2), pytest.approx(2.98))
    assert s.cpu_seconds == 1.5


def test_lost_work_was_computed_and_drew_power() -> None:
    lost = msgspec.structs.replace(TWO, lost_gpu_seconds=HOUR)
    s = summary(lost)
    watts = catalog.gpu(T4).power_watts
    assert s.lost_gpu_hours == 1
    assert s.energy_kwh == pytest.approx((9 + metrics.IDLE_POWER) * watts / 1000)
    assert s.goodput_utilisation == summary(TWO).goodput_utilisation


def test_queueing_counts_waiting_after_a_preemption_too() -> None:
    twice = run(cluster(T4), [record(0, 0, 5, 2.0)], [span(0, 0, 1, n0=1), span(0, 4, 5, n0=1)], end=5)
    assert summary(twice).avg_queue_h == 3


def test_gpus_that_are_held_to_the_end_of_a_round_are_no_negative_waiting() -> None:
    rounds = run(cluster(T4), [record(0, 0, 1.5, 2.0)], [span(0, 0, 2, n0=1)], end=2)
    assert summary(rounds).avg_queue_h == 0
    assert summary(rounds).gpu_hours_per_job == 2


def test_unfinished_jobs_count_with_the_time_that_they_have_been_there() -> None:
    cut = run(
        cluster(T4),
        [record(0, 0, 1, 1.0), record(1, 0, None, 3.0, deadline=9 * HOUR), record(2, 1, None, 0.0, started=None)],
        [span(0, 0, 1, n0=1), span(1, 1, 4, n0=1)],
        end=4,
    )
    s = summary(cut)
    assert (s.jobs, s.unfinished) == (3, 2)
    assert s.avg_jct_h == pytest.approx((1 + 4 + 3) / 3)
    assert s.avg_queue_h == pytest.approx((0 + 1 + 3) / 3)
    assert s.makespan_h == 4
    assert s.bounded_slowdown == 1.0  # of the finished one
    assert s.deadline_hits == 0.0


def test_fragments_are_free_gpus_on_nodes_too_full_for_a_pod() -> None:
    # n0 has 2 of 4 GPUs free, n1 has 4; half the pods want 3 GPUs, half 2
    part = run(
        cluster(T4, T4),
        [record(0, 0, 1, 2.0), record(1, 1, 2, 3.0)],
        [span(0, 0, 1, n0=2), span(1, 1, 2, n1=3)],
        end=2,
    )
    # first hour: 6 GPUs free, of which the 2 on n0 are too few for one of the two pods;
    # second hour: 5 GPUs free, of which the 1 on n1 is too few for either
    assert summary(part).fragmentation == pytest.approx((2 * 0.5 + 1 * 1.0) / (6 + 5))


def test_a_pod_competes_for_nodes_of_the_type_that_it_ran_on() -> None:
    mixed = run(
        cluster(T4, A100),
        [record(0, 0, 1, 4.0), record(1, 0, 1, 3.0)],
        [span(0, 0, 1, T4, n0=4), span(1, 0, 1, A100, n1=3)],
        end=1,
    )
    assert summary(mixed).fragmentation == 1.0  # one GPU is free, for pods of three


def test_restarts_make_no_pod_size_more_popular() -> None:
    def fragmentation(*moves: float) -> float | None:
        moments = (0.0, *moves, 1.0)
        spans = [span(0, a, b, n0=3) for a, b in itertools.pairwise(moments)]
        both = run(cluster(T4, T4), [record(0, 0, 1, 3.0), record(1, 0, 1, 1.0)], [*spans, span(1, 0, 1, n1=1)], end=1)
        return summary(both).fragmentation

    assert fragmentation(0.25, 0.5) == pytest.approx(fragmentation())


def test_no_free_gpus_no_fragmentation() -> None:
    full = run(cluster(T4), [record(0, 0, 1, 4.0)], [span(0, 0, 1, n0=4)], end=1)
    assert summary(full).fragmentation is None
    assert summary(full).utilisation == 1.0


def test_measured_jobs_are_those_of_the_mask_and_the_cluster_is_watched_while_they_arrive() -> None:
    jobs = [record(i, i, i + 2, 2.0) for i in range(5)]
    spans = [span(i, i, i + 2, n0=1) for i in range(5)]
    whole = run(cluster(T4), jobs, spans, end=6)
    s = summary(whole, np.array([False, True, True, True, False]))
    assert s.jobs == 3
    assert s.makespan_h == 4
    assert s.utilisation == pytest.approx(2 * 2 / (2 * 4))  # two jobs at any time from 1 to 3 h
    assert s.energy_kwh == pytest.approx(summary(whole).energy_kwh * 3 / 5)


def test_json_has_the_keys_that_tools_rely_on() -> None:
    keys = (
        "avg_jct_h p50_jct_h p90_jct_h p99_jct_h makespan_h gpu_hours_per_job restarts_per_job cpu_seconds avg_queue_h"
        " p99_queue_h utilisation goodput_utilisation fragmentation energy_kwh worst_rho p99_rho unfair_fraction"
        " deadline_hits decision_ms_p50 decision_ms_p99 jobs unfinished not_arrived lost_gpu_hours bounded_slowdown"
    )
    quiet = msgspec.structs.replace(TWO, decision_seconds=())
    text = msgspec.json.encode(summary(quiet))
    assert set(msgspec.json.decode(text)) == set(keys.split())
    assert msgspec.json.decode(text)["decision_ms_p50"] is None
    assert msgspec.json.decode(text, type=Summary) == summary(quiet)


@pytest.mark.parametrize(
    ("jobs", "spans", "message"),
    [
        ([], [], "no job is measured"),
        ([record(0, 0, 1, 2.0)], [span(0, 0, 1, n0=1)], "job j0 held GPUs for 3600 GPU-seconds by its spans, 7200 by"),
        ([record(0, 0, 1, 5.0)], [span(0, 0, 1, n0=5)], "n0 lent 5 of its 4 GPUs"),
    ],
)
def test_a_run_that_contradicts_itself_is_refused(jobs: list[JobRecord], spans: list[Span], message: str) -> None:
    with pytest.raises(InconsistentRun, match=message):
        summary(run(cluster(T4), jobs, spans, end=1))


def test_a_mask_without_jobs_is_refused() -> None:
    with pytest.raises(InconsistentRun, match="the mask selects none"):
        summary(TWO, np.zeros(2, dtype=bool))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(1, 5)), min_size=1, max_size=12))
@settings(max_examples=40)
def test_gpu_time_is_held_or_free(rows: list[tuple[int, int, int]]) -> None:
    """Jobs one after the other on their node: what is not utilised is what fragmentation is measured on."""
    clock, jobs, spans = dict.fromkeys(range(4), 0), [], []
    for index, (node, gpus, hours) in enumerate(rows):
        begin, clock[node] = clock[node], clock[node] + hours
        jobs.append(record(index, 0, clock[node], float(gpus * hours)))
        spans.append(span(index, begin, clock[node], **{f"n{node}": gpus}))
    s = summary(run(cluster(*[T4] * 4), jobs, spans, end=max(clock.values())))
    held = sum(gpus * hours for _, gpus, hours in rows)
    assert s.utilisation == pytest.approx(held / (16 * s.makespan_h))
    assert s.gpu_hours_per_job * s.jobs == pytest.approx(held)
    assert s.fragmentation is None or 0 <= s.fragmentation <= 1
