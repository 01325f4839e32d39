"""The plan search: everything it offers is valid, fits, and is the fastest there is."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.policy.perf.architectures import every_plan

from trimtab_policy import catalog
from trimtab_policy.perf import constants, hardware, plans, speed
from trimtab_policy.perf.memo import BoundedMemo
from trimtab_policy.perf.plan_arrays import columns, work
from trimtab_policy.specs import GpuSpec, Mode, ModelSpec, ParallelPlan, Precision, Recompute, TrainingSpec
from trimtab_policy.types import Bounds, Requirements

GPT2 = catalog.model("gpt2")
LLAMA_8B = catalog.model("llama3-8b")
LLAMA_70B = catalog.model("llama3-70b")
MIXTRAL = catalog.model("mixtral-8x7b")
H100 = catalog.gpu("H100-SXM5-80GB")
A100_40 = catalog.gpu("A100-SXM4-40GB")
TRAINING = TrainingSpec(4096, 256, 1000)


def up_to(gpus: int) -> Requirements:
    return Requirements(gpus=Bounds(1, gpus))


@st.composite
def searches(draw: st.DrawFn) -> tuple[ModelSpec, TrainingSpec, Requirements, GpuSpec, int]:
    name = draw(
        st.sampled_from(["gpt2", "gpt2-xl", "gemma-2b", "qwen2.5-7b", "llama3-8b", "mixtral-8x7b", "llama3-70b"])
    )
    low = draw(st.sampled_from([1, 2, 3, 8]))
    requirements = Requirements(
        gpus=Bounds(low, low + draw(st.integers(0, 60))),
        max_nodes=draw(st.sampled_from([None, 1, 4])),
        gpus_per_node=draw(st.sampled_from([Bounds(), Bounds(3, 3), Bounds(2, 6)])),
        modes=draw(st.sampled_from([tuple(Mode), (Mode.DATA,), (Mode.MODEL,), (Mode.HYBRID,)])),
        tensor=draw(st.sampled_from([Bounds(), Bounds(1, 2), Bounds(4, 4)])),
        pipeline=draw(st.sampled_from([Bounds(), Bounds(1, 1), Bounds(2, 8)])),
        virtual=draw(st.sampled_from([Bounds(), Bounds(1, 1), Bounds(1, 2)])),
        context=draw(st.sampled_from([Bounds(), Bounds(1, 1), Bounds(4, 4)])),
        expert=draw(st.sampled_from([Bounds(), Bounds(1, 1)])),
        zero_stage=draw(st.sampled_from([None, 0, 1, 3])),
        hybrid_sharding=draw(st.booleans()),
        recompute=draw(st.sampled_from([None, *Recompute])),
    )
    training = TrainingSpec(
        draw(st.sampled_from([512, 4096, 32768])), draw(st.sampled_from([1, 24, 512])), 10, Precision.FP16
    )
    gpu = draw(st.sampled_from([gpu for gpu in catalog.all_gpus() if Precision.FP16 in gpu.peak_flops]))
    return catalog.model(name), training, requirements, gpu, draw(st.sampled_from([1, 4, 6, 8]))


@settings(max_examples=150)
@given(searches())
def test_every_option_is_a_valid_plan_that_fits_and_keeps_the_requirements(
    search: tuple[ModelSpec, TrainingSpec, Requirements, GpuSpec, int],
) -> None:
    model, training, need, gpu, node_gpus = search
    found = plans.options(*search)
    assert len({(o.nodes, o.gpus_per_node, o.linked) for o in found}) == len(found)
    for option in found:
        plan = option.plan
        assert plan.gpus == option.gpus == option.nodes * option.gpus_per_node
        assert need.gpus.admits(option.gpus)
        assert need.max_nodes is None or option.nodes <= need.max_nodes
        assert need.gpus_per_node.admits(option.gpus_per_node)
        assert option.gpus_per_node <= node_gpus
        assert plan.tensor <= max(option.gpus_per_node, option.linked)
        assert option.linked <= max(gpu.link_domain, node_gpus if gpu.link_domain else 0)
        assert plan.mode in need.modes
        for degree in ("tensor", "pipeline", "virtual", "context", "expert"):
            assert getattr(need, degree).admits(getattr(plan, degree))
        assert need.zero_stage in (None, plan.zero_stage)
        assert need.recompute in (None, plan.recompute)
        assert plan.shard == 0 or (need.hybrid_sharding and plan.shard * plan.tensor == option.gpus_per_node)
        assert plans.fits(model, training, plan, gpu)
        assert option.prediction.memory_bytes <= gpu.memory_bytes
        # `predict` checks divisibility and must come to the same numbers on its own.
        said = plans.predict(model, training, plan, gpu, option.gpus_per_node, linked=option.linked)
        assert said == option.prediction


@settings(max_examples=50)
@given(searches())
def test_options_come_by_gpus_then_speed_and_nothing_found_is_explained(
    search: tuple[ModelSpec, TrainingSpec, Requirements, GpuSpec, int],
) -> None:
    found = plans.options(*search)
    assert list(found) == sorted(found, key=lambda o: (o.gpus, o.prediction.step_seconds, o.nodes))
    if not found:
        assert len(plans.why_none(*search)) > 30


@pytest.mark.parametrize(
    ("name", "gpus", "of_type"),
    [
        ("gpt2", 4, "A100-SXM4-40GB"),
        ("gpt3-6.7b", 16, "L40S"),
        ("llama3-8b", 8, "A100-SXM4-40GB"),
        ("llama3-8b", 16, "H100-SXM5-80GB"),
        ("mixtral-8x7b", 16, "H100-SXM5-80GB"),
    ],
)
def test_no_valid_plan_that_fits_is_faster_than_the_one_chosen(name: str, gpus: int, of_type: str) -> None:
    model, gpu, width = catalog.model(name), catalog.gpu(of_type), min(8, gpus)
    training = TrainingSpec(2048, 64, 1)
    rivals = [
        plan
        for plan in every_plan(model, training, gpus)
        if width % plan.tensor == 0 and plan.shard in (0, width // plan.tensor)
    ]
    times = speed.step_time(
        work(model, training), columns(rivals), hardware.machine(gpu, training.precision), width
    ).total
    valid = [seconds for plan, seconds in zip(rivals, times, strict=True) if plans.fits(model, training, plan, gpu)]
    chosen = plans.best(model, training, up_to(64), gpu, gpus // width, width)
    assert len(valid) > 20
    assert chosen is not None
    assert chosen.prediction.step_seconds <= min(valid) * (1 + 1e-9)


@settings(max_examples=50)
@given(searches())
def test_nothing_on_the_front_is_beaten_and_every_option_is_beaten_by_something_on_it(
    search: tuple[ModelSpec, TrainingSpec, Requirements, GpuSpec, int],
) -> None:
    def cost(option: plans.Option) -> tuple[float, float, float]:
        return option.prediction.step_seconds, option.gpus, option.prediction.memory_bytes

    def beats(one: plans.Option, other: plans.Option) -> bool:
        return all(x <= y for x, y in zip(cost(one), cost(other), strict=True))

    front = plans.front(*search)
    assert all(option is other or not beats(option, other) for option in front for other in front)
    assert all(any(beats(best, option) for best in front) for option in plans.options(*search))
    assert list(front) == sorted(front, key=lambda option: (option.gpus, option.prediction.step_seconds))
    for option in front:
        said = plans.predict(*search[:2], option.plan, search[3], option.gpus_per_node, linked=option.linked)
        assert said == option.prediction


def test_types_are_searched_together_as_they_are_alone() -> None:
    offers = tuple(
        plans.Offer(catalog.gpu(name), size)
        for name, size in (("A100-SXM4-40GB", 8), ("T4", 4), ("H100-SXM5-80GB", 8), ("V100-SXM2-16GB", 8))
    )
    together = plans.options_by_type(LLAMA_8B, TRAINING, up_to(64), offers)
    assert together == tuple(plans.options(LLAMA_8B, TRAINING, up_to(64), *offer) for offer in offers)
    assert [len(found) > 10 for found in together] == [True, False, True, False]
    assert together[1] == together[3] == ()  # no bfloat16


def test_tensor_parallelism_never_exceeds_heads_or_key_value_heads() -> None:
    gemma = catalog.model("gemma-2b")
    assert all(option.plan.tensor == 1 for option in plans.options(gemma, TRAINING, up_to(64), H100, 8))
    qwen = catalog.model("qwen2.5-0.5b")
    assert all(option.plan.tensor <= 2 for option in plans.options(qwen, TRAINING, up_to(64), H100, 8))


def test_a_small_model_is_only_copied_and_a_large_one_is_divided() -> None:
    small = plans.best(GPT2, TrainingSpec(1024, 512, 1), up_to(8), A100_40, 1, 8)
    large = plans.best(LLAMA_70B, TrainingSpec(8192, 512, 1), up_to(64), H100, 8, 8)
    assert small is not None
    assert small.plan.mode is Mode.DATA
    assert large is not None
    assert large.plan.mode is Mode.HYBRID
    assert large.plan.tensor > 1


def test_more_nodes_of_fewer_gpus_are_never_faster_than_whole_nodes() -> None:
    by_shape = {(o.nodes, o.gpus_per_node): o for o in plans.options(LLAMA_8B, TRAINING, up_to(16), H100, 8)}
    assert by_shape[2, 8].prediction.step_seconds <= by_shape[4, 4].prediction.step_seconds


def test_jobs_that_differ_in_steps_or_host_resources_share_one_search() -> None:
    plans.forget()
    other = msgspec.structs.replace(up_to(8), cpu_milli_per_gpu=4000, gpu_types=("H100-SXM5-80GB",))
    longer, offers = msgspec.structs.replace(TRAINING, steps=2000), (plans.Offer(H100, 8),)
    assert not plans.is_known(GPT2, longer, other, offers)
    short = plans.options(GPT2, TRAINING, up_to(8), H100, 8)
    assert plans.is_known(GPT2, longer, other, offers)
    long = plans.options(GPT2, longer, other, H100, 8)
    assert [o.plan for o in long] == [o.plan for o in short]
    assert long[0].prediction.run_seconds == pytest.approx(2 * short[0].prediction.run_seconds)


def test_searches_are_remembered_up_to_so_many_options_the_latest_ones() -> None:
    memo: BoundedMemo[str, tuple[int, ...]] = BoundedMemo(5, len)
    asked: list[str] = []

    def find(name: str, options: int) -> tuple[int, ...]:
        asked.append(name)
        return tuple(range(options))

    for name, options in (("a", 2), ("b", 3), ("a", 2), ("c", 2), ("none", 0)):
        assert memo.get(name, lambda name=name, options=options: find(name, options)) == tuple(range(options))
    assert asked == ["a", "b", "c", "none"]
    assert [name for name in ("a", "b", "c", "none") if name in memo] == ["a", "c", "none"]
    assert memo.weight == 5, "what was found to be nothing counts, too"
    memo.get("huge", lambda: find("huge", 100))
    assert "huge" in memo
    assert memo.weight == 100, "the last one is kept whatever it weighs"


def test_other_constants_lead_to_another_search() -> None:
    packaged = constants.active()
    before = plans.options(GPT2, TRAINING, up_to(1), H100, 8)
    constants.use(constants.beliefs())
    try:
        assert plans.options(GPT2, TRAINING, up_to(1), H100, 8) != before
    finally:
        constants.use(packaged)
    assert plans.options(GPT2, TRAINING, up_to(1), H100, 8) == before


def test_two_gpus_of_one_name_but_other_facts_do_not_share_a_search() -> None:
    slow = msgspec.structs.replace(H100, peak_flops={Precision.BF16: 1e13})
    fast, slowed = (plans.options(GPT2, TRAINING, up_to(1), gpu, 8)[0] for gpu in (H100, slow))
    assert slowed.prediction.step_seconds > 2 * fast.prediction.step_seconds


@pytest.mark.parametrize(
    ("need", "gpu", "node_gpus", "message"),
    [
        (up_to(2), "V100-SXM2-16GB", 8, "V100-SXM2-16GB does not support BF16, only FP16, FP32"),
        (up_to(2), "H100-SXM5-80GB", 8, r"llama3-70b needs at least \d+ GiB per GPU .* but H100-SXM5-80GB has 80 GiB"),
        (
            Requirements(gpus=Bounds(64, 64), max_nodes=2),
            "H100-SXM5-80GB",
            8,
            "no gang of 64 GPUs .* at most 2 of them",
        ),
        (
            Requirements(gpus=Bounds(7, 7), max_nodes=9),
            "H100-SXM5-80GB",
            8,
            "no plan for 7 GPUs divides llama3-70b evenly",
        ),
        (
            Requirements(gpus=Bounds(4, 16), tensor=Bounds(3, 3)),
            "H100-SXM5-80GB",
            8,
            r"divides llama3-70b evenly.*; without spec\.parallelism\.tensor \(3\) there is one$",
        ),
        (
            Requirements(gpus=Bounds(4, 16), tensor=Bounds(16, 16)),
            "H100-SXM5-80GB",
            8,
            r"; without spec\.parallelism\.tensor \(16\) there is one$",
        ),
        (
            Requirements(gpus=Bounds(4, 16), expert=Bounds(4, 4)),
            "H100-SXM5-80GB",
            8,
            r"; without spec\.parallelism\.expert \(4\) there is one$",
        ),
    ],
)
def test_why_nothing_fits_is_said_with_numbers(need: Requirements, gpu: str, node_gpus: int, message: str) -> None:
    spec = catalog.gpu(gpu)
    assert plans.options(LLAMA_70B, TRAINING, need, spec, node_gpus) == ()
    assert re.search(message, plans.why_none(LLAMA_70B, TRAINING, need, spec, node_gpus))


def test_a_job_that_is_too_large_for_what_it_allows_is_told_how_many_gpus_would_hold_it() -> None:
    alone = plans.why_none(catalog.model("llama3.1-405b"), TRAINING, up_to(1), H100, 8)
    assert (
        " on 1 GPU, but H100-SXM5-80GB has 80 GiB; 128 of them (spec.resources.gpus) would hold it, with dp=" in alone
    )
    assert "zero=" not in alone.partition(" on 1 GPU,")[0], "one rank shards nothing"
    size = int(alone.rpartition(" and ")[2].removesuffix(" GiB each"))
    assert size <= 80
    assert plans.options(catalog.model("llama3.1-405b"), TRAINING, up_to(128), H100, 8)
    huge = msgspec.structs.replace(up_to(8), modes=(Mode.DATA,), zero_stage=0)
    assert "would hold it" not in plans.why_none(catalog.model("llama3.1-405b"), TRAINING, huge, H100, 8)


@pytest.mark.parametrize(
    ("plan", "width", "rule"),
    [
        (ParallelPlan(tensor=3), 3, "tensor degree must divide the 32 attention heads"),
        (ParallelPlan(tensor=16), 16, "tensor degree must divide the 8 key/value heads"),
        (ParallelPlan(pipeline=5), 5, "pipeline degree must divide the 32 layers"),
        (ParallelPlan(data=3), 3, "must divide the global batch of 256"),
        (ParallelPlan(data=2, expert=2), 2, "expert degree must divide the 0 experts"),
        (ParallelPlan(data=2, pipeline=2, zero_stage=3), 4, "ZeRO stages 2 and 3 exclude pipeline"),
        (ParallelPlan(data=8), 3, "3 GPUs per node: must divide the plan's 8 GPUs"),
        (ParallelPlan(tensor=8), 4, "4 GPUs per node: .* multiple of its tensor degree 8"),
        (ParallelPlan(micro_batch=0), 1, "plan.micro_batch must be at least 1"),
        (ParallelPlan(virtual=0), 1, "plan.virtual must be at least 1"),
        (ParallelPlan(virtual=2), 1, "interleaving needs a pipeline"),
        (ParallelPlan(pipeline=4, virtual=3), 4, "interleaving needs .* whole layers in every chunk"),
        (ParallelPlan(data=64, pipeline=8, virtual=2), 8, "interleaving needs .* divides the micro-batches"),
        (ParallelPlan(data=8, shard=3, zero_stage=3), 8, "hybrid sharding is for .* divides data x context"),
        (ParallelPlan(data=8, shard=4, zero_stage=2), 8, "hybrid sharding is for ZeRO stage 3"),
        (ParallelPlan(data=8, context=4, shard=2, zero_stage=3), 8, "over a multiple of the context degree"),
        (ParallelPlan(data=8, shard=-8, zero_stage=3), 8, "hybrid sharding"),
        (ParallelPlan(zero_stage=4), 1, "plan.zero_stage must be 0, 1, 2 or 3"),
    ],
)
def test_a_plan_that_breaks_a_rule_is_refused_with_the_rule(plan: ParallelPlan, width: int, rule: str) -> None:
    with pytest.raises(plans.InvalidPlan, match=rule):
        plans.predict(LLAMA_8B, TRAINING, plan, H100, width)


def test_a_node_without_gpus_is_an_error() -> None:
    with pytest.raises(ValueError, match="node_gpus must be at least 1, got 0"):
        plans.options(LLAMA_8B, TRAINING, up_to(8), H100, 0)


def test_a_gang_outside_the_requirements_has_no_best_plan() -> None:
    assert plans.best(GPT2, TRAINING, Requirements(gpus=Bounds(1, 4)), H100, 1, 8) is None
    assert plans.best(GPT2, TRAINING, Requirements(gpus=Bounds(1, 8), max_nodes=1), H100, 2, 4) is None


def test_every_prediction_has_an_interval_wider_where_less_is_known() -> None:
    training = TrainingSpec(4096, 512, 1)
    sure, unsure = (
        plans.best(LLAMA_8B, training, up_to(8), catalog.gpu(name), 1, 8) for name in ("H100-SXM5-80GB", "MI300X")
    )
    assert sure is not None
    assert unsure is not None
    assert 1 < sure.prediction.uncertainty < unsure.prediction.uncertainty < 2
    low, high = sure.prediction.step_seconds_low, sure.prediction.step_seconds_high
    assert low < sure.prediction.step_seconds < high
    again = plans.predict(LLAMA_8B, training, sure.plan, catalog.gpu("H100-SXM5-80GB"), 8)
    assert again.uncertainty == pytest.approx(sure.prediction.uncertainty)
