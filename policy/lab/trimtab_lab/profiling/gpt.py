"""GPT-2 in plain torch, from a preset of the catalogue: random weights, nothing is downloaded.

Radford et al. 2019: learned positions, blocks that normalise before attention and before a feed-forward block with
GELU, a last norm, and an output layer that shares its matrix with the token embedding. Weights start as there: normal
with deviation 0.02, those that write to the residual stream 1/sqrt(2 L) of that. No dropout: the performance model
assumes none, and recomputation would have to replay it.
"""

from __future__ import annotations

from math import sqrt
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from trimtab_policy import catalog
from trimtab_policy.specs import ModelSpec

_DEVIATION = 0.02


class NotGpt(ValueError):
    """A model that this architecture cannot express; the message says why, and which presets it can."""


def presets() -> tuple[str, ...]:
    """Names of the catalogue's presets that are GPTs."""
    return tuple(name for name in catalog.model_names() if not _differences(catalog.model(name)))


def check(spec: ModelSpec, sequence_length: int) -> None:
    """Raise NotGpt for another architecture, ValueError for longer sequences than the model has positions."""
    if differences := _differences(spec):
        raise NotGpt(f"{spec.name} is no GPT ({', '.join(differences)}): use one of {', '.join(presets())}")
    if not 1 <= sequence_length <= spec.learned_positions:
        raise ValueError(f"sequence_length must be 1 to {spec.learned_positions} for {spec.name}: {sequence_length}")


def _differences(spec: ModelSpec) -> list[str]:
    rules = {
        "no learned positions": spec.learned_positions > 0,
        "gated feed-forward block": not spec.gated_ffn,
        "separate output matrix": spec.tied_embeddings,
        "attends both ways": spec.causal,
        "cross-attention": spec.cross_attention_layers == 0,
        "experts": spec.experts == 0,
        "latent attention": spec.kv_rank == spec.query_rank == 0,
        "grouped queries": spec.kv_heads == spec.attention_heads,
        "heads that do not make up the hidden size": spec.attention_heads * spec.head_dim == spec.hidden_size,
        "biases of some projections only": not spec.qkv_biases,
    }
    return [difference for difference, holds in rules.items() if not holds]


class Attention(nn.Module):
    """Causal self-attention of all heads at once; the kernel is torch's choice (FlashAttention where it can)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.heads = spec.attention_heads
        self.qkv = nn.Linear(spec.hidden_size, 3 * spec.hidden_size, bias=spec.biases)
        self.output = nn.Linear(spec.hidden_size, spec.hidden_size, bias=spec.biases)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, hidden) to the same."""
        batch, sequence, hidden = x.shape
        split = self.qkv(x).view(batch, sequence, 3, self.heads, hidden // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return cast(Tensor, self.output(seen.transpose(1, 2).reshape(batch, sequence, hidden)))


class Block(nn.Module):
    """One layer: attention and a feed-forward block, each added to what passes by it."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(spec.hidden_size, bias=spec.biases)
        self.attention = Attention(spec)
        self.norm_2 = nn.LayerNorm(spec.hidden_size, bias=spec.biases)
        self.inner = nn.Linear(spec.hidden_size, spec.ffn_hidden_size, bias=spec.biases)
        self.output = nn.Linear(spec.ffn_hidden_size, spec.hidden_size, bias=spec.biases)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, hidden) to the same."""
        x = x + self.attention(self.norm_1(x))
        return cast(Tensor, x + self.output(functional.gelu(self.inner(self.norm_2(x)), approximate="tanh")))


class Gpt(nn.Module):
    """A GPT of this shape. `recompute`: keep only the input of each block for the backward pass, compute the rest anew.

    Raises NotGpt for what is none.
    """

    def __init__(self, spec: ModelSpec, *, recompute: bool = False) -> None:
        check(spec, 1)
        super().__init__()
        self.recompute = recompute
        self.tokens = nn.Embedding(spec.vocab_size, spec.hidden_size)
        self.positions = nn.Embedding(spec.learned_positions, spec.hidden_size)
        blocks = [Block(spec) for _ in range(spec.layers)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(spec.hidden_size, bias=spec.biases)
        self.apply(_initialise)
        for block in blocks:
            for written in (block.attention.output, block.output):
                nn.init.normal_(written.weight, std=_DEVIATION / sqrt(2 * spec.layers))

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (batch, sequence) to logits (batch, sequence, vocabulary) of the tokens that follow them."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return functional.linear(self.norm(x), self.tokens.weight)

    def loss(self, tokens: Tensor) -> Tensor:
        """Mean cross-entropy of each next token; tokens (batch, sequence + 1)."""
        logits = self(tokens[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=_DEVIATION)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
