"""What a transformer consists of: parameters and work, exact, before anything is divided.

Notation (Korthikanti et al. 2022, arXiv 2205.05198): L layers, h hidden size, a attention heads of width d, g key/value
heads (grouped-query attention), f feed-forward width, E experts of which k serve a token, V vocabulary, s sequence
length. All functions return plain numbers of one whole model; dividing it is the business of `memory` and `speed`.
"""

from __future__ import annotations

from trimtab_policy.types import ModelSpec


def attention_parameters(model: ModelSpec) -> int:
    """Query, key, value and output projections of one layer: h(a + 2g)d + adh, and their biases."""
    query = model.attention_heads * model.head_dim
    key_value = model.kv_heads * model.head_dim
    biases = query + 2 * key_value + model.hidden_size if model.biases else 0
    return model.hidden_size * (2 * query + 2 * key_value) + biases


def ffn_parameters(model: ModelSpec) -> int:
    """One feed-forward block (one expert): 3hf when gated (SwiGLU), else 2hf, and its biases."""
    inner = (2 if model.gated_ffn else 1) * model.ffn_hidden_size
    biases = inner + model.hidden_size if model.biases else 0
    return model.hidden_size * (inner + model.ffn_hidden_size) + biases


def expert_parameters(model: ModelSpec) -> int:
    """All experts of one layer; 0 for a dense model."""
    return model.experts * ffn_parameters(model)


def shared_parameters(model: ModelSpec) -> int:
    """What every token of one layer passes through: attention, two norms, and the dense block or the router."""
    norms = 2 * model.hidden_size * (2 if model.biases else 1)
    ffn = model.hidden_size * model.experts if model.experts else ffn_parameters(model)
    return attention_parameters(model) + norms + ffn


def embedding_parameters(model: ModelSpec) -> int:
    """One vocabulary matrix: Vh."""
    return model.vocab_size * model.hidden_size


def parameters(model: ModelSpec) -> int:
    """Number of parameters of the whole model."""
    return _total(model, expert_parameters(model))


def active_parameters(model: ModelSpec) -> int:
    """Parameters that one token passes through: all of a dense model, k of E experts otherwise."""
    return _total(model, model.experts_per_token * ffn_parameters(model))


def _total(model: ModelSpec, experts: int) -> int:
    vocabularies = (1 if model.tied_embeddings else 2) * embedding_parameters(model)
    final_norm = model.hidden_size * (2 if model.biases else 1)
    positions = model.learned_positions * model.hidden_size
    return model.layers * (shared_parameters(model) + experts) + vocabularies + positions + final_norm


def training_flops_per_token(model: ModelSpec, sequence_length: int) -> float:
    """FLOPs of forward and backward pass per token without recomputation, causal attention counted by half.

    6 per weight that takes part in a matrix product (Kaplan et al. 2020, arXiv 2001.08361), plus 6 L s ad for the
    attention scores and their product with the values (Narayanan et al. 2021, arXiv 2104.04473, appendix, halved).
    """
    query = model.attention_heads * model.head_dim
    key_value = model.kv_heads * model.head_dim
    blocks = max(1, model.experts_per_token) if model.experts else 1
    ffn = blocks * (3 if model.gated_ffn else 2) * model.hidden_size * model.ffn_hidden_size
    weights = 2 * model.hidden_size * (query + key_value) + ffn + model.hidden_size * model.experts
    linear = 6.0 * (model.layers * weights + embedding_parameters(model))
    return linear + 6.0 * model.layers * sequence_length * query
