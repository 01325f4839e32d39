"""What a job that brings its own speeds can run on."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.builders import A100, H100, T4, job, node, snapshot
from tests.trace_jobs import traced

from trimtab_policy import catalog
from trimtab_policy.placement.assign import keeps
from trimtab_policy.placement.candidates import Candidate, candidates, has_room, holding, weight, with_room
from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.placement.pending_reasons import why_pending
from trimtab_policy.specs import ParallelPlan
from trimtab_policy.types import Job, Snapshot, Speed

NODES = [node("a", gpus=4), node("t", T4)]


def known(waiting: Job, now: Snapshot | None = None) -> list[Candidate]:
    now = now or snapshot(NODES, [waiting])
    return candidates(now, Capacity(now), waiting)


def shapes(waiting: Job) -> list[tuple[str, int, int]]:
    return [(found.gpu.name, found.option.gpus, found.option.nodes) for found in known(waiting)]


def test_every_speed_of_a_type_in_the_cluster_is_a_candidate() -> None:
    speeds = traced("a", (1, 6), types=(A100, T4)).speeds or ()
    waiting = replace(traced("a", (1, 6)), speeds=(*speeds, Speed(H100, 1, 1, 5.0), Speed(T4, 2, 1, 0.0)))
    assert shapes(waiting) == [(A100, 1, 1), (A100, 6, 2), (T4, 1, 1), (T4, 6, 1)]


def test_the_requirements_of_the_job_hold_for_them_too() -> None:
    waiting = traced("a", (1, 2, 6), types=(A100, T4))
    need = waiting.requirements
    assert shapes(replace(waiting, requirements=replace(need, gpu_types=(T4,), max_nodes=1))) == [
        (T4, 1, 1),
        (T4, 2, 1),
        (T4, 6, 1),
    ]
    assert shapes(traced("a", (1, 2, 6), max_nodes=1)) == [(A100, 1, 1), (A100, 2, 1)]


def test_the_prediction_says_what_the_speed_says() -> None:
    [found] = known(replace(traced("a", 6), speeds=(Speed(A100, 6, 2, 4.0),), training=job(steps=100).training))
    said = found.option.prediction
    assert (said.step_seconds, said.run_seconds, said.uncertainty) == (0.25, 25.0, 1.0)
    assert said.tokens_per_second == found.tokens_per_second == 4.0 * 1024 * 64
    assert found.option.plan == ParallelPlan(data=6)
    assert found.option.gpus_per_node == 3
    assert found.cost == 6 * weight(catalog.gpu(A100))


def test_a_speed_holds_for_more_nodes_until_another_one_is_given_for_them() -> None:
    waiting = replace(traced("a", 4), speeds=(Speed(A100, 4, 1, 9.0), Speed(A100, 4, 2, 8.0)))
    now = snapshot([node(f"n{i}", gpus=4, free=free) for i, free in enumerate((2, 1, 1))], [waiting])
    room = Capacity(now)
    one, two = known(waiting, now)
    assert not has_room(room, waiting, one)
    [(found, shares)] = with_room(room, waiting, [one, two])
    assert found is two
    assert [share.gpus for share in shares] == [2, 1, 1]
    assert not has_room(room, waiting, replace(two, spread=2))


def test_the_same_job_is_not_worked_out_anew_until_something_about_it_changes() -> None:
    waiting = traced("a", (1, 4))
    now = snapshot(NODES, [waiting])
    first = known(waiting, now)
    later = replace(now, time=now.time + 1, nodes=now.nodes[:1])
    assert all(a is b for a, b in zip(first, known(replace(waiting, steps_done=5), later), strict=True))
    longer = replace(waiting, training=replace(waiting.training, steps=7))
    assert [found.option.prediction.run_seconds for found in known(longer, now)] != [
        found.option.prediction.run_seconds for found in first
    ]
    assert known(waiting, snapshot([node("t", T4)], [waiting])) == []


def test_what_a_running_job_holds_is_a_candidate_to_stay_with() -> None:
    for held in (traced("a", 6, {"a": 4, "b": 2}), traced("b", 2, {"a": 1, "b": 1})):
        assert held.placement
        now = snapshot(NODES, [held])
        assert keeps(held.placement, holding(now, held, held.placement))


@pytest.mark.parametrize(
    ("waiting", "reason", "message"),
    [
        (traced("a", 4), "InsufficientGpus", f"needs 4×{A100}, free: 3×{A100}"),
        (traced("a", 64), "ClusterTooSmall", f"the smallest plan is 64×{A100}"),
        (
            traced("a", 1, types=(T4,)),
            "NoFeasiblePlan",
            f"its speed is known for 1×{T4}: none of that is allowed and in",
        ),
        (traced("a", 1, gpu_types=(H100,)), "NoSuchGpu", f"spec.resources.gpuTypes allows only {H100}"),
        (traced("a", 1, eligible=()), "NoEligibleNode", "no GPU node matches"),
    ],
)
def test_why_a_job_with_its_own_speeds_waits(waiting: Job, reason: str, message: str) -> None:
    now = snapshot([node("a", gpus=4, free=3)], [waiting])
    answer = why_pending(now, Capacity(now), waiting)
    assert answer.reason == reason
    assert answer.message.startswith(message)


def test_scattered_gpus_are_called_fragmented_where_they_must_lie_together() -> None:
    waiting = traced("a", 4, max_nodes=1)
    now = snapshot([node(f"n{i}", gpus=4, free=2) for i in range(2)], [waiting])
    assert why_pending(now, Capacity(now), waiting).reason == "Fragmented"
