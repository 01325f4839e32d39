"""What a job calls its model -> a preset of the catalogue, or the shape that its arguments spell out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Final

from trimtab.foreign.arguments import Stated
from trimtab_policy import catalog

_DECORATION: Final = re.compile(
    r"(?:instruct|chat|base|hf|it|sft|pretrain|pretraining|finetune|finetuning|peft|lora|dpo|config|thinking|packed|full|multinode|uncased|cased)",
    re.ASCII,
)
_PIECES = re.compile(r"[^a-z0-9.]+", re.ASCII)
_CUT = re.compile(
    r"[-_](?:sft|pretrain|finetune|peft|lora|dpo|config|thinking|smoke|packed)(?:[-_]|$)", re.ASCII | re.IGNORECASE
)
SHAPE: Final = {
    "layers": "layers",
    "hidden_size": "hiddenSize",
    "attention_heads": "attentionHeads",
    "kv_heads": "kvHeads",
    "head_dim": "headDim",
    "ffn_hidden_size": "ffnHiddenSize",
    "vocab_size": "vocabSize",
    "experts": "experts",
    "experts_per_token": "expertsPerToken",
}
"""Field -> field of `spec.model.architecture`."""
NEEDED: Final = ("layers", "hidden_size", "attention_heads", "ffn_hidden_size", "vocab_size")
_VENDORS = ("meta", "hf", "google", "facebook")


def named(text: str) -> str:
    """The name of a model without its path."""
    text = text.rstrip("/")
    local = text.startswith(("/", ".", "~", "\x00")) or text.count("/") > 1
    return text.rpartition("/")[2] if local else text


def of_recipe(text: str) -> str:
    """`gpt_oss_20b_sft_config` -> `gpt_oss_20b`."""
    match = _CUT.search(text)
    return text[: match.start()] if match and match.start() else text


def preset(text: str) -> str:
    """The catalogue's preset that is meant for sure; empty where none is."""
    return _presets().get(_normal(text.rpartition("/")[2][:200]), "")


@cache
def _presets() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in catalog.model_names():
        found[_normal(name)] = name
    return found


def _normal(text: str) -> str:
    pieces = [piece for piece in _PIECES.split(text.casefold()) if piece and not _DECORATION.fullmatch(piece)]
    while pieces and pieces[0] in _VENDORS:
        del pieces[0]
    return "".join(pieces)


def shape(fields: Mapping[str, Stated]) -> dict[str, int]:
    """`spec.model.architecture` as far as the fields state it."""
    found = {}
    for field, called in SHAPE.items():
        if field in fields and re.fullmatch("[0-9]{1,9}", fields[field].value):
            found[called] = int(fields[field].value)
    return found
