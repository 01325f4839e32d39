"""What a transformer consists of: parameters and work, exact, before anything is divided.

Notation (Korthikanti et al. 2022, arXiv 2205.05198): L layers, h hidden size, a attention heads of width d, g key/value
heads (grouped-query attention), f feed-forward width, E experts of which k serve a token, V vocabulary, s sequence
length. Latent attention as in DeepSeek-V2 (arXiv 2405.04434, section 2.1): queries, keys and values come from vectors
of rank r_q and r_kv, next to a part of each head that carries the position.

A `ModelShape` is a model in numbers. Its fields are plain numbers for one model, or columns (n,) with a model a row:
every function here, in `memory` and in `speed` takes either. Dividing the numbers is the business of those two.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab_policy.specs import ModelSpec

Array = NDArray[np.float64]
Number = float | Array


class ModelShape(NamedTuple):
    """Counts and widths of one model (numbers), or of many (columns of shape (n,))."""

    layers: Number
    hidden: Number
    heads: Number
    query: Number
    """Width of all query heads: a d."""
    key: Number
    """Width of all keys as attention reads them: g d."""
    value: Number
    """Width of all values: g d; of latent attention a d_v."""
    weighted: Number
    """Width of what enters the output projection: a d, of latent attention a d_v."""
    query_rank: Number
    """r_q of latent attention; 0 where queries are projected directly."""
    key_value_rank: Number
    """r_kv of latent attention; 0 where keys and values are projected directly."""
    position: Number
    """Width of the key part that carries the position in latent attention, shared by all heads."""
    visible: Number
    """Share of the s x s scores that counts: 1/2 causal, 1 bidirectional."""
    cross_layers: Number
    """Decoder layers that attend to an encoder as well."""
    gates: Number
    """Matrices into the feed-forward block: 2 gated (SwiGLU), 1 plain."""
    dense_layers: Number
    """Layers whose feed-forward block every token passes: all of a dense model."""
    ffn: Number
    """Width of the block in those layers."""
    experts: Number
    active: Number
    """Experts that serve one token: k."""
    expert_ffn: Number
    shared_ffn: Number
    """Width of the block beside the experts that every token passes."""
    vocabulary: Number
    tables: Number
    """Vocabulary matrices: 1 tied, 2 otherwise."""
    positions: Number
    """Rows of a learned position embedding."""
    biases: Number
    """1 where linear layers and norms carry biases."""
    projection_biases: Number
    """1 where at least query, key and value projections do (Qwen 2)."""

    @property
    def expert_layers(self) -> Number:
        return self.layers - self.dense_layers


@lru_cache(maxsize=1024)
def of(model: ModelSpec) -> ModelShape:
    """The model in numbers."""
    a, d, g = model.attention_heads, model.head_dim, model.kv_heads
    latent = model.kv_rank > 0
    value = a * (model.value_head_dim or d) if latent else g * d
    dense = model.layers if not model.experts else model.dense_layers
    return ModelShape(
        layers=model.layers,
        hidden=model.hidden_size,
        heads=a,
        query=a * d,
        key=(a if latent else g) * d,
        value=value,
        weighted=value if latent else a * d,
        query_rank=model.query_rank,
        key_value_rank=model.kv_rank,
        position=model.rope_head_dim if latent else 0,
        visible=0.5 if model.causal else 1.0,
        cross_layers=model.cross_attention_layers,
        gates=2 if model.gated_ffn else 1,
        dense_layers=dense,
        ffn=model.dense_ffn_hidden_size or model.ffn_hidden_size,
        experts=model.experts,
        active=model.experts_per_token,
        expert_ffn=model.ffn_hidden_size if model.experts else 0,
        shared_ffn=model.shared_experts * model.ffn_hidden_size,
        vocabulary=model.vocab_size,
        tables=1 if model.tied_embeddings else 2,
        positions=model.learned_positions,
        biases=int(model.biases),
        projection_biases=int(model.biases or model.qkv_biases),
    )


def stack(shapes: Sequence[ModelShape]) -> ModelShape:
    """Many models as columns of shape (n,)."""
    return ModelShape(*np.array(shapes, dtype=np.float64).T.reshape(len(ModelShape._fields), -1))


def attention_weights(shape: ModelShape) -> Number:
    """Matrices of query, key, value and output projections of one layer.

    h(a + 2g)d + adh directly; latent h r_q + r_q a d + h(r_kv + d_p) + r_kv(ad - a d_p + a d_v) + a d_v h with d_p the
    part of a head that carries the position and d_v the width of a value.
    """
    h = shape.hidden
    query = np.where(shape.query_rank, shape.query_rank * (h + shape.query), h * shape.query)
    unrotated = shape.key - shape.heads * shape.position
    latent = h * (shape.key_value_rank + shape.position) + shape.key_value_rank * (unrotated + shape.value)
    direct = h * (shape.key + shape.value)
    return query + np.where(shape.key_value_rank, latent, direct) + shape.weighted * h


def attention_parameters(shape: ModelShape) -> Number:
    """The projections of one layer with their biases, and the norms of the latent vectors."""
    direct = np.where(shape.query_rank, 0, shape.query) + np.where(shape.key_value_rank, 0, shape.key + shape.value)
    biases = shape.projection_biases * direct + shape.biases * shape.hidden
    return attention_weights(shape) + biases + shape.query_rank + shape.key_value_rank


def block_weights(shape: ModelShape, width: Number) -> Number:
    """Matrices of a feed-forward block of a width: 3hf when gated (SwiGLU), else 2hf."""
    return shape.hidden * width * (shape.gates + 1)


def block_parameters(shape: ModelShape, width: Number) -> Number:
    """A feed-forward block of a width with its biases."""
    return block_weights(shape, width) + shape.biases * (shape.gates * width + shape.hidden)


def expert_parameters(shape: ModelShape) -> Number:
    """All routed experts of one mixture-of-experts layer; 0 for a dense model."""
    return shape.experts * block_parameters(shape, shape.expert_ffn)


def shared_parameters(shape: ModelShape) -> Number:
    """What every token passes through in an average layer: attention, norms, dense or shared block, router."""
    norm = shape.hidden * (1 + shape.biases)
    crossing = shape.cross_layers / shape.layers * (attention_parameters(shape) + norm)
    routed = shape.hidden * shape.experts + np.where(shape.shared_ffn, block_parameters(shape, shape.shared_ffn), 0)
    feed_forward = shape.dense_layers * block_parameters(shape, shape.ffn) + shape.expert_layers * routed
    return attention_parameters(shape) + 2 * norm + crossing + feed_forward / shape.layers


def matrix_parameters(shape: ModelShape) -> Number:
    """Of `shared_parameters` those in matrices, which quantization is for: not the norms, biases and the router."""
    crossing = shape.cross_layers / shape.layers * attention_weights(shape)
    shared = np.where(shape.shared_ffn, block_weights(shape, shape.shared_ffn), 0)
    feed_forward = shape.dense_layers * block_weights(shape, shape.ffn) + shape.expert_layers * shared
    return attention_weights(shape) + crossing + feed_forward / shape.layers


def embedding_parameters(shape: ModelShape) -> Number:
    """One vocabulary matrix: Vh."""
    return shape.vocabulary * shape.hidden


def parameters(shape: ModelShape) -> Number:
    """Number of parameters of the whole model."""
    return _total(shape, expert_parameters(shape))


def active_parameters(shape: ModelShape) -> Number:
    """Parameters that one token passes through: all of a dense model, k of E experts otherwise."""
    return _total(shape, shape.active * block_parameters(shape, shape.expert_ffn))


def _total(shape: ModelShape, experts: Number) -> Number:
    outside = shape.tables * embedding_parameters(shape) + shape.positions * shape.hidden
    final_norm = shape.hidden * (1 + shape.biases)
    # An encoder-decoder model has a final norm on either side.
    norms = np.where(shape.cross_layers, 2, 1) * final_norm
    return shape.layers * shared_parameters(shape) + shape.expert_layers * experts + outside + norms


def training_flops_per_token(shape: ModelShape, sequence_length: Number, *, frozen: bool = False) -> Number:
    """FLOPs of forward and backward pass per token without recomputation, only visible scores counted.

    6 per weight that takes part in a matrix product (Kaplan et al. 2020, arXiv 2001.08361), plus 6 L s ad for causal
    scores and their product with the values (Narayanan et al. 2021, arXiv 2104.04473, appendix, halved). 4 per weight
    that is `frozen`, which has no gradient of its own; adapters, a hundredth of the weights, are not counted then.
    """
    routed = block_weights(shape, shape.active * shape.expert_ffn + shape.shared_ffn) + shape.hidden * shape.experts
    blocks = shape.dense_layers * block_weights(shape, shape.ffn) + shape.expert_layers * routed
    attending = shape.layers + shape.cross_layers
    scores = 6 * shape.visible * attending * sequence_length * (shape.query + shape.weighted)
    weights = attending * attention_weights(shape) + blocks + embedding_parameters(shape)
    return (4 if frozen else 6) * weights + scores
