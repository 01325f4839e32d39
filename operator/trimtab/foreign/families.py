"""Families of language models, by the names that people use."""

from __future__ import annotations

import re
from typing import Final

FAMILIES: Final = (
    *("llama", "mistral", "mixtral", "qwen", "gemma", "gpt", "bert", "roberta", "t5", "opt", "bloom", "falcon", "phi"),
    *("deepseek", "olmo", "mamba", "nemotron", "granite", "pythia", "starcoder", "glm", "chatglm", "baichuan", "yi"),
    *("internlm", "smollm", "dbrx", "grok", "jamba", "minicpm", "kimi", "minimax", "ernie", "hunyuan", "codellama"),
    *("vicuna", "stablelm", "redpajama", "mpt", "gptneox", "neox", "esm", "evo2", "tulu", "zephyr", "step", "dolci"),
    *("dolly", "alpaca", "codegen", "santacoder", "moonlight", "ling", "poro", "viking", "apertus", "eurollm", "llm"),
)
VAGUE: Final = frozenset({"llm", "step", "opt", "phi", "ling", "esm"})
"""Names that mean other things as well."""
_WORD = re.compile(r"[a-z]+", re.ASCII)


def family(text: str) -> str:
    """The family of language models that a text names; empty for none."""
    return next((word for word in _WORD.findall(text.casefold()[:2000]) if word in FAMILIES), "")


def model_in(program: str) -> str:
    """What the name of a program says about its model: `ray_train_llama2_7b.py` -> `llama2_7b`; empty for nothing."""
    pieces = re.split(r"[_.-]", program.casefold()[:100])
    for index, piece in enumerate(pieces):
        if len(found := family(piece)) > 2 and found not in VAGUE:
            sizes = [
                each for each in pieces[index + 1 : index + 3] if re.fullmatch(r"v?[0-9]{1,4}[bm]?", each, re.ASCII)
            ]
            return "_".join((piece, *sizes))
    return ""
