"""Hypothesis strategies: any architecture, training run and plan that the launchers would accept; all plans of one."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from hypothesis import strategies as st
from msgspec.structs import replace

from trimtab_policy import catalog
from trimtab_policy.perf import plan_space
from trimtab_policy.perf.plan_arrays import columns
from trimtab_policy.specs import GpuSpec, ModelSpec, Optimizer, ParallelPlan, Precision, Recompute, TrainingSpec

POWERS = [1, 2, 4, 8]


@st.composite
def models(draw: st.DrawFn) -> ModelSpec:
    heads = draw(st.sampled_from([8, 16, 32, 64]))
    layers = draw(st.sampled_from([1, 2, 8, 24, 96]))
    kind = draw(st.sampled_from(["dense", "experts", "latent", "encoder-decoder"]))
    plain = ModelSpec(
        name="any",
        layers=layers,
        hidden_size=draw(st.sampled_from([256, 1024, 8192, 16384])),
        attention_heads=heads,
        kv_heads=draw(st.sampled_from([8, heads])),
        head_dim=draw(st.sampled_from([32, 64, 128, 256])),
        ffn_hidden_size=draw(st.sampled_from([512, 4096, 53248])),
        vocab_size=draw(st.integers(100, 300_000)),
        gated_ffn=draw(st.booleans()),
        tied_embeddings=draw(st.booleans()),
        learned_positions=draw(st.sampled_from([0, 1024])),
        biases=draw(st.booleans()),
        qkv_biases=draw(st.booleans()),
        causal=draw(st.booleans()),
        cross_attention_layers=layers // 2 if kind == "encoder-decoder" else 0,
    )
    more = _experts(draw, layers) if kind in ("experts", "latent") else {}
    return replace(plain, **more, **(_latent(draw, heads) if kind == "latent" else {}))


def _experts(draw: st.DrawFn, layers: int) -> dict[str, Any]:
    dense = draw(st.sampled_from([0, 1, layers // 2]))
    return {
        "experts": draw(st.sampled_from([8, 16, 256])),
        "experts_per_token": draw(st.sampled_from([1, 2, 8])),
        "shared_experts": draw(st.sampled_from([0, 1, 2])),
        "dense_layers": dense,
        "dense_ffn_hidden_size": draw(st.sampled_from([1024, 18432])) if dense else 0,
    }


def _latent(draw: st.DrawFn, heads: int) -> dict[str, Any]:
    return {
        "kv_heads": heads,
        "query_rank": draw(st.sampled_from([0, 1536])),
        "kv_rank": 512,
        "rope_head_dim": draw(st.sampled_from([16, 32])),
        "value_head_dim": draw(st.sampled_from([0, 128])),
    }


@st.composite
def plans(draw: st.DrawFn, model: ModelSpec, batch: int) -> ParallelPlan:
    """A plan for a global batch that its data degree and micro-batch divide: one of at least 64."""
    pipeline = draw(st.sampled_from([p for p in POWERS if model.layers % p == 0]))
    data, context = draw(st.sampled_from(POWERS)), draw(st.sampled_from([1, 2]))
    expert = draw(st.sampled_from([e for e in POWERS if data % e == 0])) if model.experts else 1
    micro_batch = draw(st.sampled_from(POWERS))
    zero_stage = draw(st.sampled_from([0, 1] if pipeline > 1 else [0, 1, 2, 3]))
    rounds = pipeline > 1 and batch % (data * micro_batch * pipeline) == 0
    chunks = [v for v in (1, 2, 3, 12) if v == 1 or (rounds and model.layers % (pipeline * v) == 0)]
    groups = [0, *(n for n in POWERS if 1 < n <= data * context and n % context == 0)]
    return ParallelPlan(
        data=data,
        tensor=draw(st.sampled_from(POWERS)),
        pipeline=pipeline,
        virtual=draw(st.sampled_from(chunks)),
        context=context,
        expert=expert,
        micro_batch=micro_batch,
        zero_stage=zero_stage,
        shard=draw(st.sampled_from(groups)) if zero_stage == 3 and expert == 1 else 0,
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
    model, training = draw(models()), draw(trainings())
    return model, training, draw(plans(model, training.global_batch_size)), draw(gpus())


def divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def every_plan(model: ModelSpec, training: TrainingSpec, gpus: int) -> list[ParallelPlan]:
    """All plans of so many GPUs that the rules allow, by plain enumeration."""
    sizes = [b for b in (1, 2, 4, 8, 16, 32) if b * training.sequence_length <= plan_space.MAX_MICRO_BATCH_TOKENS]
    degrees = [
        (gpus // (t * p * c), t, p, c, e)
        for t, p, c in itertools.product(divisors(gpus), repeat=3)
        for e in divisors(max(1, model.experts))
        if gpus % (t * p * c) == 0 and (c == 1 or training.sequence_length // c >= plan_space.MIN_CONTEXT_TOKENS)
    ]
    schedules = list(itertools.product(divisors(model.layers), sizes, range(4), (0, *divisors(gpus)), Recompute))
    found = [ParallelPlan(d, t, p, v, c, e, *rest) for d, t, p, c, e in degrees for v, *rest in schedules]
    kept = np.logical_and.reduce([holds for holds, _ in plan_space.rules(model, training, columns(found))])
    return [found[row] for row in np.flatnonzero(kept)]
