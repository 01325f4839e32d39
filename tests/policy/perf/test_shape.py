"""What a model consists of: parameters and work in closed form, in numbers and in columns."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab_policy import catalog
from trimtab_policy.perf import model_flops
from trimtab_policy.specs import ModelSpec

GPT3 = catalog.model("gpt3-175b")
LLAMA_8B = catalog.model("llama3-8b")
MIXTRAL = catalog.model("mixtral-8x7b")
DEEPSEEK = catalog.model("deepseek-v3")


@st.composite
def architectures(draw: st.DrawFn) -> ModelSpec:
    """Any mixture of what a shape can express, whether anybody has built it or not."""
    heads, head_dim = draw(st.sampled_from([1, 8, 96])), draw(st.sampled_from([64, 80, 192]))
    layers, experts, latent = draw(st.integers(2, 100)), draw(st.sampled_from([0, 0, 8, 160])), draw(st.booleans())
    width = st.integers(16, 60_000)
    return ModelSpec(
        name="any",
        layers=layers,
        hidden_size=draw(st.integers(64, 20_000)),
        attention_heads=heads,
        kv_heads=draw(st.sampled_from([1, heads])),
        head_dim=head_dim,
        ffn_hidden_size=draw(width),
        vocab_size=draw(st.integers(100, 300_000)),
        gated_ffn=draw(st.booleans()),
        tied_embeddings=draw(st.booleans()),
        learned_positions=draw(st.sampled_from([0, 2048])),
        biases=draw(st.booleans()),
        qkv_biases=draw(st.booleans()),
        causal=draw(st.booleans()),
        cross_attention_layers=draw(st.sampled_from([0, layers // 2])),
        experts=experts,
        experts_per_token=draw(st.integers(1, 8)) if experts else 0,
        shared_experts=draw(st.integers(0, 2)) if experts else 0,
        dense_layers=draw(st.integers(0, layers)) if experts else 0,
        dense_ffn_hidden_size=draw(st.sampled_from([0, 10_944])),
        query_rank=draw(st.sampled_from([0, 1536])) if latent else 0,
        kv_rank=512 if latent else 0,
        rope_head_dim=64 if latent else 0,
        value_head_dim=draw(st.sampled_from([0, 128])) if latent else 0,
    )


def one_layer(**fields: object) -> ModelSpec:
    """h = 512 in 8 heads of 64, f = 2048, V = 1000."""
    plain = ModelSpec("one", 1, 512, 8, 8, 64, 2048, 1000, gated_ffn=False, tied_embeddings=True)
    return msgspec.structs.replace(plain, **fields)


def parameters(model: ModelSpec) -> float:
    return float(model_flops.parameters(model_flops.of(model)))


def flops(model: ModelSpec, sequence_length: int) -> float:
    return float(model_flops.training_flops_per_token(model_flops.of(model), sequence_length))


# --- parameters -----------------------------------------------------------------------------------------------------
def test_a_plain_layer_has_twelve_h_squared_and_its_norms() -> None:
    h = 512
    assert parameters(one_layer()) == 12 * h**2 + 3 * h + 1000 * h


def test_each_option_adds_what_it_adds() -> None:
    h, f, plain = 512, 2048, parameters(one_layer())

    def added(**fields: object) -> float:
        return parameters(one_layer(**fields)) - plain

    assert added(gated_ffn=True) == h * f
    assert added(tied_embeddings=False) == 1000 * h
    assert added(learned_positions=1024) == 1024 * h
    assert added(kv_heads=2) == -2 * h * 6 * 64
    assert added(qkv_biases=True) == 3 * h
    assert added(biases=True) == 3 * h + h + (f + h) + 3 * h  # query key value, output, block, norms


def test_biases_everywhere_include_those_of_the_projections() -> None:
    assert parameters(one_layer(biases=True, qkv_biases=True)) == parameters(one_layer(biases=True))


def test_a_layer_that_attends_to_an_encoder_has_a_second_attention_and_norm() -> None:
    h = 512
    # The encoder has a final norm of its own.
    assert parameters(one_layer(cross_attention_layers=1)) - parameters(one_layer()) == 4 * h**2 + 2 * h


def test_latent_attention_as_deepseek_describes_it() -> None:
    """arXiv 2405.04434, equations 9 to 19, with the sizes of DeepSeek-V3 (arXiv 2412.19437, section 4.2)."""
    h, a, r_q, r_kv, unrotated, rotated, value = 7168, 128, 1536, 512, 128, 64, 128
    query = h * r_q + r_q * a * (unrotated + rotated)
    key_value = h * (r_kv + rotated) + r_kv * a * (unrotated + value)
    output = a * value * h
    assert model_flops.attention_weights(model_flops.of(DEEPSEEK)) == query + key_value + output
    assert model_flops.attention_parameters(model_flops.of(DEEPSEEK)) == query + key_value + output + r_q + r_kv


def test_queries_may_be_projected_directly_beside_latent_keys() -> None:
    lite = model_flops.of(catalog.model("deepseek-v2-lite"))
    direct = model_flops.of(msgspec.structs.replace(catalog.model("deepseek-v2-lite"), query_rank=512))
    saved = 2048 * 16 * 192 - 512 * (2048 + 16 * 192)
    assert model_flops.attention_weights(lite) - model_flops.attention_weights(direct) == saved


def test_experts_replace_the_block_of_a_layer_and_add_a_router() -> None:
    h, f = 512, 2048
    mixture = one_layer(experts=4, experts_per_token=2)
    assert parameters(mixture) - parameters(one_layer()) == 3 * 2 * h * f + 4 * h
    assert parameters(mixture) - float(model_flops.active_parameters(model_flops.of(mixture))) == 2 * 2 * h * f


def test_shared_experts_and_dense_layers_serve_every_token() -> None:
    mixture = one_layer(layers=2, experts=4, experts_per_token=1)
    h, f = 512, 2048
    shared = msgspec.structs.replace(mixture, shared_experts=1)
    assert parameters(shared) - parameters(mixture) == 2 * 2 * h * f
    dense = msgspec.structs.replace(mixture, dense_layers=1, dense_ffn_hidden_size=4 * f)
    assert parameters(dense) - parameters(mixture) == 2 * h * 4 * f - (4 * 2 * h * f + 4 * h)


def test_most_parameters_of_deepseek_are_routed_experts() -> None:
    routed = model_flops.of(DEEPSEEK).expert_layers * model_flops.expert_parameters(model_flops.of(DEEPSEEK))
    assert routed == 58 * 256 * 3 * 7168 * 2048
    assert routed / parameters(DEEPSEEK) == pytest.approx(0.974, abs=1e-3)


@given(model=architectures())
def test_parameters_are_whole_and_no_more_are_active_than_there_are(model: ModelSpec) -> None:
    count = parameters(model)
    assert count > 0
    assert count == pytest.approx(round(count), abs=0.01)
    active = float(model_flops.active_parameters(model_flops.of(model)))
    assert active <= count or model.experts_per_token > model.experts
    assert model.experts or active == count


# --- work -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["gpt2-xl", "gpt3-175b", "llama3-8b", "llama3.1-405b", "qwen2.5-7b", "falcon-40b"])
def test_a_token_costs_six_flops_per_parameter_where_sequences_are_short(name: str) -> None:
    """Kaplan et al. 2020: C = 6 N D, where N leaves out what is looked up and not multiplied with."""
    model = catalog.model(name)
    looked_up = (not model.tied_embeddings) * model.vocab_size * model.hidden_size
    looked_up += model.learned_positions * model.hidden_size
    assert flops(model, 1) == pytest.approx(6 * (parameters(model) - looked_up), rel=1e-3)


def test_gpt3_costs_what_narayanan_et_al_count() -> None:
    """arXiv 2104.04473, equation 3 without recomputation: 72 B s L h^2 (1 + s/6h + V/12Lh), all scores counted."""
    layers, h, s, vocabulary = 96, 12288, 2048, 51200
    model = msgspec.structs.replace(GPT3, vocab_size=vocabulary, causal=False)
    expected = 72 * layers * h**2 * (1 + s / (6 * h) + vocabulary / (12 * layers * h))
    assert flops(model, s) == pytest.approx(expected, rel=1e-12)
    assert flops(GPT3, s) == pytest.approx(1.062e12, rel=1e-3)


def test_a_causal_mask_halves_the_scores_and_nothing_else() -> None:
    seeing_all = msgspec.structs.replace(LLAMA_8B, causal=False)
    scores = 12 * 32 * 8192 * 4096
    assert flops(seeing_all, 8192) - flops(LLAMA_8B, 8192) == scores / 2


def test_work_grows_linearly_with_the_sequence() -> None:
    once, twice, thrice = (flops(LLAMA_8B, n * 4096) for n in (1, 2, 3))
    assert thrice - twice == pytest.approx(twice - once)


def test_grouped_heads_save_projections_but_no_scores() -> None:
    ungrouped = msgspec.structs.replace(LLAMA_8B, kv_heads=32)
    assert flops(ungrouped, 8192) - flops(LLAMA_8B, 8192) == 6 * 32 * 2 * 4096 * (32 - 8) * 128


def test_a_token_works_with_its_experts_only() -> None:
    two, eight = MIXTRAL, msgspec.structs.replace(MIXTRAL, experts_per_token=8)
    assert flops(eight, 4096) - flops(two, 4096) == 6 * 32 * 6 * 3 * 4096 * 14336
    active = float(model_flops.active_parameters(model_flops.of(MIXTRAL)))
    assert flops(MIXTRAL, 1) == pytest.approx(6 * (active - 32000 * 4096), rel=1e-3)


def test_deepseek_v3_costs_what_its_37_billion_active_parameters_make() -> None:
    active, embedding = float(model_flops.active_parameters(model_flops.of(DEEPSEEK))), 129280 * 7168
    scores = 6 * 61 * 4096 * 128 * (192 + 128) / 2
    assert flops(DEEPSEEK, 4096) == pytest.approx(6 * (active - embedding) + scores, rel=1e-4)


def test_biases_and_norms_cost_no_matrix_products() -> None:
    assert flops(one_layer(biases=True), 128) == flops(one_layer(), 128)


@given(model=architectures(), sequence_length=st.sampled_from([1, 2048, 1 << 20]))
def test_no_token_costs_less_than_six_flops_per_active_matrix(model: ModelSpec, sequence_length: int) -> None:
    bare = msgspec.structs.replace(model, biases=False, qkv_biases=False, learned_positions=0, tied_embeddings=True)
    # What is left besides matrices: norms, a few per layer, and those inside latent attention.
    norms = (model.layers * 3 + 2) * model.hidden_size + 2 * model.layers * (model.query_rank + model.kv_rank)
    assert flops(model, sequence_length) >= 6 * (float(model_flops.active_parameters(model_flops.of(bare))) - norms)


# --- columns --------------------------------------------------------------------------------------------------------
@given(models=st.lists(architectures(), min_size=1, max_size=5), sequence_length=st.sampled_from([512, 131_072]))
def test_many_models_as_columns_give_the_numbers_of_one_by_one(models: list[ModelSpec], sequence_length: int) -> None:
    shapes = [model_flops.of(model) for model in models]
    columns = model_flops.stack(shapes)
    for function in (
        model_flops.attention_weights,
        model_flops.attention_parameters,
        model_flops.expert_parameters,
        model_flops.shared_parameters,
        model_flops.embedding_parameters,
        model_flops.parameters,
        model_flops.active_parameters,
        lambda one: model_flops.training_flops_per_token(one, sequence_length),
    ):
        assert np.broadcast_to(function(columns), len(shapes)) == pytest.approx([float(function(s)) for s in shapes])


def test_a_stack_has_a_row_per_model_in_every_column() -> None:
    columns = model_flops.stack([model_flops.of(GPT3), model_flops.of(DEEPSEEK)])
    assert {np.shape(column) for column in columns} == {(2,)}
    assert list(np.asarray(columns.layers)) == [96, 61]
    assert list(np.asarray(columns.expert_layers)) == [0, 58]


def test_a_stack_of_no_models_is_empty() -> None:
    assert {np.shape(column) for column in model_flops.stack([])} == {(0,)}
