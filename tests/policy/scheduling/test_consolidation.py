"""Scattered GPUs are brought together: the cheapest jobs move, or change their shape, where a gang starts by that."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace
from tests.builders import A100, H100, NOW, job, node, running, snapshot
from tests.policy.scheduling.test_preemption import held, places, room, stops, waits

from trimtab_policy.placement.candidates import candidates
from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.scheduling.consolidation import consolidate, elsewhere
from trimtab_policy.scheduling.preemption import PreemptionRules
from trimtab_policy.scheduling.victims import Victim
from trimtab_policy.specs import ParallelPlan
from trimtab_policy.types import Bounds, Decision, Job, Snapshot

ONE_NODE: dict[str, Any] = {"max_nodes": 1}


def halves(**changes: Any) -> Snapshot:
    """Two nodes, half of each held by a job of its own; a gang that needs a whole one waits, for days as it seems."""
    jobs = [held("a", {"n0": 4}, **changes), held("b", {"n1": 4}, lost_seconds=600.0, **changes)]
    return snapshot([node("n0", free=4), node("n1", free=4)], [*jobs, waits("gang", 8, **ONE_NODE)])


def test_the_job_that_loses_least_moves_together_with_the_other() -> None:
    decision = room(halves())
    assert places(decision) == {"gang": {"n0": 8}, "a": {"n1": 4}}
    assert stops(decision) == {}


def test_where_the_cheapest_job_fits_nowhere_else_another_moves() -> None:
    now = halves()
    pinned = replace(now.jobs[0], eligible=("n0",))
    decision = room(replace(now, jobs=(pinned, *now.jobs[1:])))
    assert places(decision) == {"gang": {"n1": 8}, "b": {"n0": 4}}


def test_a_move_says_for_whom_it_is() -> None:
    [reason] = [each.reason for each in room(halves()).placements if each.job == "uid-a"]
    assert reason.endswith("makes room for default/gang")


def test_who_moves_keeps_its_plan_unless_it_is_elastic() -> None:
    now = halves()
    [move] = [each for each in room(now).placements if each.job == "uid-a"]
    before = now.jobs[0].placement
    assert before
    assert (move.plan, move.gpu_type) == (before.plan, before.gpu_type)


def test_nobody_moves_for_a_job_of_lower_priority() -> None:
    assert room(halves(priority=1)) == Decision("room")


def test_nobody_moves_before_its_time() -> None:
    assert room(halves(movable_from=NOW + 1)) == Decision("room")
    assert room(halves(movable_from=math.inf)) == Decision("room")


def test_nobody_moves_when_nobody_waits() -> None:
    now = halves()
    assert room(replace(now, jobs=now.jobs[:2])) == Decision("room")


def test_nobody_moves_to_where_its_selectors_do_not_admit_it() -> None:
    now = halves()
    pinned = tuple(replace(each, eligible=(each.placement.shares[0].node,)) for each in now.jobs[:2] if each.placement)
    assert room(replace(now, jobs=(*pinned, now.jobs[2]))) == Decision("room")


def test_moves_that_cost_more_than_the_wait_are_not_made() -> None:
    soon = halves(finish=NOW + 900)
    assert room(soon, PreemptionRules(max_cost=0.01)) == Decision("room")
    assert places(room(soon, PreemptionRules(max_cost=0.5))) == {"gang": {"n0": 8}, "a": {"n1": 4}}


def test_consolidation_can_be_switched_off() -> None:
    assert room(halves(), PreemptionRules(consolidate=False)) == Decision("room")


def test_whoever_finds_no_other_place_stays_and_others_are_asked() -> None:
    large = held("large", {"n0": 6}, global_batch_size=96)
    small = held("small", {"n1": 3}, global_batch_size=96, lost_seconds=3000.0)
    now = snapshot([node("n0", free=2), node("n1", free=5), node("n2", free=3)], [large, small])
    now = replace(now, jobs=(*now.jobs, waits("gang", 8, **ONE_NODE)))
    decision = room(now)
    assert places(decision) == {"gang": {"n1": 8}, "small": {"n2": 3}}


# --- another shape -----------------------------------------------------------------------------------------------
def test_a_job_changes_its_shape_where_there_is_no_whole_node_for_it() -> None:
    """tp8 on one node becomes a gang on two half nodes, because another one can only run on a whole one."""
    plan = ParallelPlan(tensor=8)
    shaped = held("shaped", {"n0": 8}, preemptible=True, model="gpt2-xl", tensor=Bounds(1, 8))
    assert shaped.placement
    shaped = replace(shaped, placement=replace(shaped.placement, plan=plan))
    nodes = [node("n0", free=0), node("n1", free=4), node("n2", free=4)]
    decision = room(snapshot(nodes, [shaped, waits("gang", 8, **ONE_NODE)]))
    assert places(decision) == {"gang": {"n0": 8}, "shaped": {"n1": 4, "n2": 4}}
    [after] = [each.plan for each in decision.placements if each.job == "uid-shaped"]
    assert after.tensor <= 4
    assert after.gpus == 8


def test_a_job_that_must_not_change_keeps_its_shape_and_its_node() -> None:
    nodes = [node("n0", free=0), node("n1", free=4), node("n2", free=4)]
    now = snapshot(nodes, [held("rigid", {"n0": 8}), waits("gang", 8, **ONE_NODE)])
    assert room(now) == Decision("room")


def test_a_job_goes_on_with_gpus_of_another_type_that_are_worth_no_more() -> None:
    better = held("better", {"h0": 8}, preemptible=True)
    assert better.placement
    better = replace(better, placement=replace(better.placement, gpu_type=H100))
    nodes = [node("h0", H100, free=0), node("n0")]
    decision = room(snapshot(nodes, [better, waits("gang", 8, gpu_types=(H100,))]), PreemptionRules(max_cost=5.0))
    assert places(decision) == {"gang": {"h0": 8}, "better": {"n0": 8}}


# --- fewer GPUs --------------------------------------------------------------------------------------------------
def shrinkable(waiting: Job, **changes: Any) -> Snapshot:
    """A job that has the fastest plan for the 8 GPUs of the only node, and one that waits."""
    elastic = held("elastic", {"n0": 8}, gpus=(2, 8), preemptible=True, **changes)
    now = snapshot([node("n0", free=0)], [elastic, waiting])
    best = next(c for c in candidates(now, Capacity(now), elastic) if (c.option.gpus, c.option.nodes) == (8, 1))
    assert elastic.placement
    placed = replace(elastic.placement, plan=best.option.plan, prediction=best.option.prediction)
    return replace(now, jobs=(replace(elastic, placement=placed), waiting))


def test_an_elastic_job_gives_gpus_to_a_brief_one_of_the_same_priority() -> None:
    decision = room(shrinkable(waits("brief", 4)))
    assert places(decision) == {"brief": {"n0": 4}, "elastic": {"n0": 4}}
    [reason] = [each.reason for each in decision.placements if each.job == "uid-elastic"]
    assert reason.endswith("gives GPUs to default/brief")


def test_an_elastic_job_does_not_give_gpus_to_one_that_would_keep_them_for_days() -> None:
    assert room(shrinkable(waits("long", 4, steps=10_000_000))) == Decision("room")


def test_an_elastic_job_never_has_fewer_gpus_than_it_allows() -> None:
    assert room(shrinkable(waits("brief", 8))) == Decision("room")


def test_an_elastic_job_gives_nothing_to_a_job_of_lower_priority() -> None:
    assert room(shrinkable(waits("brief", 4), priority=1)) == Decision("room")


# --- by itself ---------------------------------------------------------------------------------------------------
def test_where_a_job_goes_on_is_worth_no_more_than_what_it_had() -> None:
    now = snapshot(
        [node("n0", free=8), node("h0", H100, free=8)], [held("e", {"gone": 4}, gpus=(1, 8), preemptible=True)]
    )
    found = elsewhere(now, Capacity(now), now.jobs[0])
    assert found
    wish, shares = found
    assert wish.gpu.name == A100
    assert sum(share.gpus for share in shares) == 4


@pytest.mark.parametrize("budget", [0.0, math.inf])
def test_a_budget_bounds_what_all_moves_cost_together(budget: float) -> None:
    now = halves()
    [gang] = now.waiting()
    wish = next(c for c in candidates(now, Capacity(now), gang) if c.option.nodes == 1)
    movable = [Victim(each, 1.0) for each in now.jobs[:2]]
    found = consolidate(now, Capacity(now), gang, wish, movable, most=4, budget=budget)
    assert (found is not None) == (budget > 0)


def test_nothing_is_moved_where_the_free_gpus_would_not_be_enough_together() -> None:
    jobs = [running("a", {"n0": 6}, started=NOW - 60), running("b", {"n1": 6}, started=NOW - 60)]
    nodes = [node("n0", free=2), node("n1", free=2)]
    assert room(snapshot(nodes, [*jobs, job("gang", gpus=(8, 8))])) == Decision("room")
