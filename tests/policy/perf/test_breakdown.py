"""What a plan's time and memory consist of, and what it takes to train with it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab_policy import catalog
from trimtab_policy.perf import breakdown, plans
from trimtab_policy.perf.breakdown import Breakdown, utilisation
from trimtab_policy.specs import ParallelPlan, Precision, Recompute, TrainingSpec

H100 = catalog.gpu("H100-SXM5-80GB")
LLAMA = catalog.model("llama3-8b")
TRAINING = TrainingSpec(sequence_length=8192, global_batch_size=128, steps=1)
PLAN = ParallelPlan(data=8, tensor=2, pipeline=1, zero_stage=1)


def apart(plan: ParallelPlan = PLAN, price: float | None = None, width: int = 8) -> Breakdown:
    return breakdown.breakdown(LLAMA, TRAINING, plan, H100, width, price=price)


def test_utilisation_is_that_of_the_model_without_recomputation() -> None:
    """A model of 8.03e9 parameters, 7.5e9 of them in products, and causal scores of 8192 tokens: 51.4 GFLOP a token."""
    rate = 16 * H100.peak_flops[Precision.BF16] / 51.4e9
    assert utilisation(LLAMA, TRAINING, H100, 16, rate) == pytest.approx(1.0, rel=0.01)
    assert utilisation(LLAMA, TRAINING, H100, 32, rate) == pytest.approx(0.5, rel=0.01)


def test_recomputation_lowers_the_utilisation() -> None:
    again = ParallelPlan(data=8, tensor=2, zero_stage=1, recompute=Recompute.FULL)
    assert apart(again).mfu < apart().mfu


@given(
    data=st.sampled_from([1, 2, 4, 8]),
    tensor=st.sampled_from([1, 2, 4, 8]),
    pipeline=st.sampled_from([1, 2, 4]),
    stage=st.sampled_from([0, 1]),
    recompute=st.sampled_from(list(Recompute)),
)
def test_parts_add_up_and_the_interval_holds_the_middle(
    data: int, tensor: int, pipeline: int, stage: int, recompute: Recompute
) -> None:
    plan = ParallelPlan(data=data, tensor=tensor, pipeline=pipeline, zero_stage=stage, recompute=recompute)
    width = min(8, plan.gpus)
    found, said = apart(plan, width=width), plans.predict(LLAMA, TRAINING, plan, H100, width)
    assert sum(found.step.values()) == pytest.approx(said.step_seconds)
    assert sum(found.memory.values()) == pytest.approx(said.memory_bytes, abs=1)
    assert min(*found.step.values(), *found.memory.values()) >= 0
    assert 0 < found.low < said.step_seconds < found.high
    assert 0 < found.mfu < 1


def test_a_billion_tokens_cost_gpus_times_hours() -> None:
    found = apart(price=3.0)
    hours = 1e9 / (TRAINING.tokens_per_step / sum(found.step.values())) / 3600
    assert found.cost_per_billion == pytest.approx(16 * 3.0 * hours)
    assert found.kwh_per_billion == pytest.approx(16 * 0.7 * hours)


def test_without_a_price_there_is_no_cost() -> None:
    assert apart().cost_per_billion is None


def test_a_generation_that_was_never_measured_has_a_wider_interval() -> None:
    known = apart()
    unknown = breakdown.breakdown(LLAMA, TRAINING, PLAN, catalog.gpu("MI300X"), 8)
    assert unknown.high / unknown.low > known.high / known.low


def test_what_runs_have_taught_is_in_every_part_and_in_the_interval() -> None:
    said = plans.predict(LLAMA, TRAINING, PLAN, H100, 8)
    learned = msgspec.structs.replace(said.at(0.5), uncertainty=1.1, correction=2.0)
    found = breakdown.breakdown(LLAMA, TRAINING, PLAN, H100, 8, price=3.0, expected=learned)
    before = apart(price=3.0)
    assert sum(found.step.values()) == pytest.approx(2 * said.step_seconds)
    assert (found.low, found.high) == (
        pytest.approx(learned.step_seconds / 1.1),
        pytest.approx(learned.step_seconds * 1.1),
    )
    assert found.mfu == pytest.approx(before.mfu / 2)
    assert found.kwh_per_billion == pytest.approx(2 * before.kwh_per_billion)
    assert (before.cost_per_billion, found.cost_per_billion) == (
        pytest.approx(sum(before.step.values()) * 16 * 3.0 / 3600 * 1e9 / TRAINING.tokens_per_step),
        pytest.approx(2 * (before.cost_per_billion or 0)),
    )
    assert found.memory == before.memory


def test_a_precision_that_the_gpu_lacks_is_an_error() -> None:
    with pytest.raises(ValueError, match="does not support BF16"):
        breakdown.breakdown(LLAMA, TRAINING, PLAN, catalog.gpu("T4"), 8)
