"""The plan space: which gangs there are, and that the table has exactly the plans that keep the rules."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.policy.perf.architectures import every_plan

from trimtab_policy import catalog
from trimtab_policy.perf import plan_space
from trimtab_policy.specs import Mode, ModelSpec, ParallelPlan, Recompute, TrainingSpec
from trimtab_policy.types import Bounds, Requirements

TINY = ModelSpec("tiny", 12, 512, 8, 8, 64, 2048, 1000)
TINY_EXPERTS = replace(TINY, name="tiny-experts", experts=4, experts_per_token=2)
TRAINING = TrainingSpec(32768, 16, 1)


def sensible(plan: ParallelPlan, gpus_per_node: tuple[int, ...]) -> bool:
    """What is left out on purpose where the user is silent."""
    copies = plan.data * plan.context
    stage = (plan.zero_stage == 0) == (copies == 1)
    sharing = plan.shard == 0 or (plan.shard * plan.tensor in gpus_per_node and plan.shard < copies)
    return stage and sharing and plan.recompute is not Recompute.SELECTIVE


@pytest.mark.parametrize("model", [TINY, TINY_EXPERTS], ids=lambda model: model.name)
@pytest.mark.parametrize("gpus", [1, 6, 8, 16])
def test_the_table_has_every_plan_that_keeps_the_rules_once(model: ModelSpec, gpus: int) -> None:
    gangs = [(gpus // 2, 2), (1, gpus)] if gpus > 1 else [(1, 1)]
    widths = tuple(width for _, width in gangs)
    table = plan_space.table(model, TRAINING, Requirements(gpus=Bounds(gpus, gpus)), gangs)
    found = [table.plan(row) for row in range(len(table.data))]
    expected = {plan for plan in every_plan(model, TRAINING, gpus) if sensible(plan, widths)}
    assert len(found) == len(set(found))
    assert set(found) == expected
    assert len(expected) > (100 if gpus > 6 else 1)


@settings(max_examples=50)
@given(
    tensor=st.sampled_from([Bounds(), Bounds(1, 2), Bounds(4, 4)]),
    pipeline=st.sampled_from([Bounds(), Bounds(1, 1), Bounds(2, 3)]),
    virtual=st.sampled_from([Bounds(), Bounds(1, 1), Bounds(1, 2)]),
    context=st.sampled_from([Bounds(), Bounds(2, 2)]),
    expert=st.sampled_from([Bounds(), Bounds(2, 4)]),
    zero_stage=st.sampled_from([None, 0, 1, 3]),
    recompute=st.sampled_from([None, *Recompute]),
    zero_stages=st.sampled_from([Bounds(0, 3), Bounds(0, 1), Bounds(2, 3)]),
    hybrid_sharding=st.booleans(),
    modes=st.sampled_from([tuple(Mode), (Mode.DATA,), (Mode.MODEL,), (Mode.HYBRID,)]),
)
def test_requirements_take_away_what_they_exclude_and_nothing_else(**asked: object) -> None:
    gangs = [(2, 8), (1, 8), (3, 4)]
    free = plan_space.table(TINY_EXPERTS, TRAINING, Requirements(gpus=Bounds(1, 16)), gangs)
    need = Requirements(gpus=Bounds(1, 16), **asked)  # type: ignore[arg-type]  # hypothesis draws what the names say
    kept = plan_space.table(TINY_EXPERTS, TRAINING, need, gangs)
    found = {kept.plan(row) for row in range(len(kept.data))}

    def allowed(plan: ParallelPlan) -> bool:
        widths = ("tensor", "pipeline", "virtual", "context", "expert")
        within = all(getattr(need, name).admits(getattr(plan, name)) for name in widths)
        within &= need.zero_stage is not None or need.zero_stages.admits(plan.zero_stage)
        return within and plan.mode in need.modes and (need.hybrid_sharding or not plan.shard)

    assert all(allowed(plan) for plan in found)
    assert all(need.zero_stage in (None, plan.zero_stage) for plan in found)
    assert all(need.recompute in (None, plan.recompute) for plan in found)
    if need.zero_stage is None and need.recompute is None:
        assert found == {plan for row in range(len(free.data)) if allowed(plan := free.plan(row))}


def test_gangs_are_powers_of_two_multiples_of_a_node_and_the_users_own_bounds() -> None:
    need = Requirements(gpus=Bounds(3, 24))
    assert plan_space.gangs(need, 8) == [
        (3, 1), (4, 1), (2, 2), (1, 4), (8, 1), (4, 2), (2, 4), (1, 8), (16, 1), (8, 2), (4, 4), (2, 8),
        (24, 1), (12, 2), (6, 4), (3, 8),
    ]  # fmt: skip
    assert plan_space.gangs(replace(need, max_nodes=1), 8) == [(1, 4), (1, 8)]
    assert (2, 6) in plan_space.gangs(need, 6)


def test_interleaving_has_whole_layers_in_every_chunk_and_full_rounds() -> None:
    model = catalog.model("llama3-70b")
    table = plan_space.table(model, TrainingSpec(8192, 96, 1), Requirements(gpus=Bounds(64, 64)), [(8, 8)])
    rounds = 96 / (table.data * table.micro_batch)
    mixed = table.virtual > 1
    assert set(table.virtual[table.pipeline == 8]) == {1, 2, 5, 10}
    assert (table.pipeline[mixed] > 1).all()
    assert (rounds % table.pipeline == 0)[mixed].all()
    assert (80 % (table.pipeline * table.virtual) == 0).all()


def test_hybrid_sharding_keeps_a_copy_per_node() -> None:
    model = catalog.model("llama3-8b")
    table = plan_space.table(model, TrainingSpec(8192, 64, 1), Requirements(gpus=Bounds(64, 64)), [(8, 8), (16, 4)])
    hybrid = table.take(table.shard > 0)
    assert set(zip(hybrid.tensor, hybrid.shard, strict=True)) == {(1, 8), (1, 4), (2, 4), (2, 2), (4, 2)}
    assert (hybrid.zero_stage == 3).all()
    assert (hybrid.shard < hybrid.data * hybrid.context).all()
