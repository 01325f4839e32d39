"""Hypothesis strategies: any architecture, training run and plan that the launchers would accept."""

from __future__ import annotations

from hypothesis import strategies as st

from trimtab_policy import catalog
from trimtab_policy.types import GpuSpec, ModelSpec, Optimizer, ParallelPlan, Precision, Recompute, TrainingSpec

POWERS = [1, 2, 4, 8]


@st.composite
def models(draw: st.DrawFn) -> ModelSpec:
    heads = draw(st.sampled_from([8, 16, 32, 64]))
    head_dim = draw(st.sampled_from([32, 64, 128, 256]))
    experts = draw(st.sampled_from([0, 0, 8, 16]))
    return ModelSpec(
        name="any",
        layers=draw(st.sampled_from([1, 2, 8, 24, 96])),
        hidden_size=draw(st.sampled_from([256, 1024, 8192, 16384])),
        attention_heads=heads,
        kv_heads=draw(st.sampled_from([8, heads])),
        head_dim=head_dim,
        ffn_hidden_size=draw(st.sampled_from([512, 4096, 53248])),
        vocab_size=draw(st.integers(100, 300_000)),
        gated_ffn=draw(st.booleans()),
        tied_embeddings=draw(st.booleans()),
        learned_positions=draw(st.sampled_from([0, 1024])),
        biases=draw(st.booleans()),
        experts=experts,
        experts_per_token=draw(st.sampled_from([1, 2])) if experts else 0,
    )


@st.composite
def plans(draw: st.DrawFn, model: ModelSpec) -> ParallelPlan:
    pipeline = draw(st.sampled_from([p for p in POWERS if model.layers % p == 0]))
    data = draw(st.sampled_from(POWERS))
    expert = draw(st.sampled_from([e for e in POWERS if data % e == 0])) if model.experts else 1
    return ParallelPlan(
        data=data,
        tensor=draw(st.sampled_from(POWERS)),
        pipeline=pipeline,
        context=draw(st.sampled_from([1, 2])),
        expert=expert,
        micro_batch=draw(st.sampled_from(POWERS)),
        zero_stage=draw(st.sampled_from([0, 1] if pipeline > 1 else [0, 1, 2, 3])),
        recompute=draw(st.sampled_from(Recompute)),
    )


def trainings() -> st.SearchStrategy[TrainingSpec]:
    """Global batches that every plan above divides."""
    return st.builds(
        TrainingSpec,
        sequence_length=st.sampled_from([512, 2048, 131072]),
        global_batch_size=st.sampled_from([64, 512, 4096]),
        steps=st.integers(1, 10**6),
        precision=st.sampled_from([Precision.FP16, Precision.FP32]),
        optimizer=st.sampled_from(Optimizer),
    )


def gpus() -> st.SearchStrategy[GpuSpec]:
    """Every GPU that has the precisions above."""
    return st.sampled_from([gpu for gpu in catalog.all_gpus() if Precision.FP32 in gpu.peak_flops])


@st.composite
def cases(draw: st.DrawFn) -> tuple[ModelSpec, TrainingSpec, ParallelPlan, GpuSpec]:
    model = draw(models())
    return model, draw(trainings()), draw(plans(model)), draw(gpus())
