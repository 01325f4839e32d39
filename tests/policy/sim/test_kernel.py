"""The kernel answers as the engine does with the policy of the same name, and keeps the books of the cluster."""

from __future__ import annotations

import heapq
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.policy.sim.queueing import node_of, of_one_gpu

from trimtab_lab import kernel, rigid
from trimtab_lab.kernel import Discipline, KernelOption, NotCovered
from trimtab_lab.kernel import heap as kernel_heaps
from trimtab_lab.kernel.run import run_kernel
from trimtab_lab.rigid import RigidRules
from trimtab_lab.workloads.trace import Trace, trace
from trimtab_policy import catalog, policy
from trimtab_policy.heuristics.las import Las
from trimtab_policy.sim import engine
from trimtab_policy.sim.result import Run
from trimtab_policy.types import Node, Snapshot

PLENTY = 1 << 40
A100 = "A100-SXM4-40GB"
EQUAL = [each for each in Discipline if each is not Discipline.LAS]


def cluster(*groups: tuple[str, int, int]) -> Snapshot:
    """Groups of (GPU type, nodes, GPUs per node)."""
    nodes = [
        Node(f"{name}-{i}", name, gpus, gpus, PLENTY, PLENTY, PLENTY)
        for name, count, gpus in groups
        for i in range(count)
    ]
    return Snapshot(0, tuple(nodes), (), {name: catalog.gpu(name) for name, _, _ in groups})


ALIKE = cluster(("T4", 2, 4))
MIXED = cluster(("T4", 2, 4), (A100, 1, 8))
FASTER = {A100: 4.0}


def workload(seed: int, on: Snapshot, *, jobs: int = 80, estimates: bool = False, together: float = 1.0) -> Trace:
    """Gangs of up to 8 GPUs at load 1, in whole seconds, so that sums of times are exact and ties are ties."""
    random = np.random.default_rng(seed)
    gpus = random.choice([1, 2, 3, 4, 8], jobs, p=[0.6, 0.15, 0.05, 0.1, 0.1])
    seconds = np.ceil(np.exp(random.normal(5, 1.2, jobs)))
    capacity = sum(node.gpus * FASTER.get(node.gpu_type, 1.0) for node in on.nodes)
    submitted = np.cumsum(random.exponential(np.mean(gpus * seconds) / capacity, jobs))
    told = np.ceil(seconds * np.exp(random.normal(0, 0.7, jobs))) if estimates else None
    names = [f"j{i:03d}" for i in random.permutation(jobs)]
    return trace(names, np.floor(submitted / together) * together, gpus, seconds, estimate=told)


def same(found: Run, expected: Run) -> None:
    """Equal record by record, but for rounding."""
    for one, other in zip(found.jobs, expected.jobs, strict=True):
        assert (one.uid, one.application, one.restarts, one.queue) == (
            other.uid,
            other.application,
            other.restarts,
            other.queue,
        )
        for field in ("submitted", "started", "finished", "gpu_seconds", "productive_gpu_seconds", "isolated_seconds"):
            assert getattr(one, field) == pytest.approx(getattr(other, field), rel=1e-6, abs=1e-3), (one.uid, field)
    assert found.end == pytest.approx(expected.end, abs=1e-3)


@pytest.mark.parametrize("discipline", EQUAL)
@pytest.mark.parametrize("on", [ALIKE, MIXED], ids=["one type", "two types"])
@pytest.mark.parametrize("restart", [0.0, 30.0], ids=["free restarts", "restarts cost"])
@pytest.mark.parametrize("estimates", [False, True], ids=["true times", "estimates"])
def test_kernel_and_engine_agree_about_every_job(
    discipline: Discipline, on: Snapshot, restart: float, estimates: bool
) -> None:
    rules = RigidRules(restart_seconds=restart, first_start_costs=restart > 0, type_speeds=FASTER)
    for seed, together in ((1, 1.0), (2, 500.0)):  # the second one: many jobs are submitted at the same time
        jobs = workload(seed, on, estimates=estimates, together=together)
        expected = engine.simulate(policy.load(discipline), rigid.jobs(jobs, on, rules), on)
        same(run_kernel(discipline, jobs, on, rules), expected)


def test_least_attained_service_agrees_where_the_engine_looks_every_second() -> None:
    """Without promotion, and with thresholds that gangs of 1, 2, 4 and 8 GPUs meet at whole seconds.

    Names are in the order of submission: the policy orders by them what started together.
    """
    thresholds = (320.0, 1600.0)
    jobs = workload(3, ALIKE, jobs=100)
    jobs = jobs.take(np.isin(jobs.gpus, [1, 2, 4, 8]))
    jobs = trace(np.sort(jobs.name), jobs.submitted, jobs.gpus, jobs.seconds)
    expected = engine.simulate(
        Las(thresholds, promote=np.inf), rigid.jobs(jobs, ALIKE), ALIKE, engine.SimRules(heartbeat=1.0)
    )
    given_jobs = kernel.rigid(Discipline.LAS, jobs, ALIKE)
    found = kernel.simulate(Discipline.LAS, given_jobs, kernel.pools(ALIKE), kernel.KernelRules(thresholds=thresholds))
    assert found.finished == pytest.approx([job.finished for job in expected.jobs], abs=1e-3)
    assert found.restarts.tolist() == [job.restarts for job in expected.jobs]
    assert found.restarts.sum() > 10


def test_allocations_are_those_of_the_engine_node_by_node() -> None:
    jobs = workload(4, MIXED)
    found = run_kernel(Discipline.FCFS, jobs, MIXED)
    expected = engine.simulate(policy.load("fcfs"), rigid.jobs(jobs, MIXED), MIXED)
    key = [(span.job, span.begin, span.gpu_type, span.shares) for span in expected.spans]
    assert sorted((span.job, span.begin, span.gpu_type, span.shares) for span in found.spans) == sorted(key)
    assert run_kernel(Discipline.FCFS, jobs, MIXED, spans=False).spans == ()


@settings(max_examples=60, deadline=None)
@given(
    discipline=st.sampled_from(list(Discipline)),
    rows=st.lists(st.tuples(st.integers(0, 300), st.integers(1, 8), st.integers(1, 200)), min_size=1, max_size=25),
    restart=st.sampled_from([0.0, 7.0]),
)
def test_no_node_is_oversubscribed_and_all_work_is_done(
    discipline: Discipline, rows: list[tuple[int, int, int]], restart: float
) -> None:
    submitted, gpus, seconds = zip(*rows, strict=True)
    jobs = trace([f"j{i}" for i in range(len(rows))], submitted, gpus, seconds)
    found = run_kernel(discipline, jobs, MIXED, RigidRules(restart_seconds=restart))
    held: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for span in found.spans:
        assert sum(share.gpus for share in span.shares) == jobs.gpus[span.job]
        assert len({share.node for share in span.shares}) == len(span.shares)
        for share in span.shares:
            held[share.node] += [(span.begin, share.gpus), (span.end, -share.gpus)]
    sizes = {node.name: node.gpus for node in MIXED.nodes}
    for node, changes in held.items():
        # what is given back at a moment is free before anything is taken at it
        assert np.cumsum([gpus for _, gpus in sorted(changes)]).max() <= sizes[node]
    productive = [record.productive_gpu_seconds for record in found.jobs]
    assert productive == pytest.approx(jobs.gpu_seconds, abs=1e-3)
    assert all(record.started is not None and record.started >= record.submitted for record in found.jobs)


def test_a_moldable_job_takes_the_fastest_count_that_has_room() -> None:
    shape = [KernelOption(0, 4, 3.0), KernelOption(0, 2, 1.8), KernelOption(0, 1, 1.0)]
    jobs = kernel.workload(np.array([0.0, 1.0, 2.0]), np.full(3, 90.0), np.zeros(3, dtype=np.int64), [shape])
    found = kernel.simulate(Discipline.FCFS, jobs, node_of(7))
    assert found.finished - found.started == pytest.approx([30, 50, 90])


def test_what_the_kernel_cannot_run_is_named() -> None:
    jobs = trace(["a", "b"], [0, 1], [1, 16], [5, 5])
    with pytest.raises(ValueError, match="job 1: asks for 16 GPUs"):
        run_kernel(Discipline.FCFS, jobs, MIXED)
    with pytest.raises(NotCovered, match="estimate_sigma"):
        run_kernel(Discipline.SJF, jobs, MIXED, RigidRules(estimate_sigma=1.0))
    with pytest.raises(NotCovered, match="run time"):
        run_kernel(Discipline.FCFS, trace(["a"], [0], [1]), MIXED)
    with pytest.raises(ValueError, match=r"job 0: submitted at 0\.0 with -5\.0 s of work"):
        kernel.simulate(Discipline.FCFS, of_one_gpu(np.zeros(1), np.array([-5.0])), node_of(1))


def test_an_empty_trace_is_an_empty_run() -> None:
    assert run_kernel(Discipline.EASY_BACKFILL, trace([], [], [], []), ALIKE).jobs == ()
    assert run_kernel(Discipline.SRTF, trace([], [], [], []), ALIKE).jobs == ()


@settings(deadline=None)  # the first call compiles
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=60))
def test_heaps_give_items_in_order_of_key_and_index(steps: list[tuple[int, int]]) -> None:
    """(0 or 1: put into that heap with this key; 2 or 3: take from the first or second)."""
    heaps = kernel_heaps.heaps(60, 2)
    expected: list[list[tuple[float, int]]] = [[], []]
    for item, (action, key) in enumerate(steps):
        heap = action % 2
        if action < 2:
            kernel_heaps.insert(heaps, heap, item, float(key))
            heapq.heappush(expected[heap], (float(key), item))
        elif expected[heap]:
            assert heaps.root[heap] == heapq.heappop(expected[heap])[1]
            kernel_heaps.remove_first(heaps, heap)
    assert [int(root) for root in heaps.root] == [each[0][1] if each else kernel_heaps.NONE for each in expected]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 9)), max_size=40), st.integers(0, 9))
def test_a_tree_finds_the_first_leaf_that_is_small_enough(changes: list[tuple[int, int]], most: int) -> None:
    tree, leaves = np.full(16, np.inf), np.full(8, np.inf)
    for at, value in changes:
        kernel_heaps.tree_set(tree, 8, at, float(value))
        leaves[at] = value
    small = np.flatnonzero(leaves <= most)
    assert kernel_heaps.tree_first(tree, 8, float(most)) == (small[0] if len(small) else kernel_heaps.NONE)
