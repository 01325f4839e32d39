"""How many tokens one core prepares a second: text is tokenised and collated to batches, as a data loader does.

The text is made up: words of random letters, whose frequencies follow Zipf's law as those of natural language do, so
that a cache of words helps as much as it would there. It is tokenised as by GPT-2 (Radford et al. 2019, section 2.2):
split into words, and each encoded byte by byte by pairs that are merged in the order in which they were learned
(Sennrich et al. 2016, arXiv 1508.07909); encoded words are remembered. Pure Python: libraries in compiled code are some
ten times faster.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from time import process_time

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_WORD = re.compile(r" ?\w+| ?[^\s\w]+|\s+")
_LETTERS = np.array(list("etaoinshrdlcumwfgypbvk"))
_WORDS, _ZIPF = 20_000, 1.2
_LEARNED_WORDS, _TEXT_WORDS, _MERGES = 5_000, 200_000, 200


class Tokenizer:
    """Byte pairs learned from a text. Token i < 256 is a byte, token 256 + i the i-th pair that was merged."""

    def __init__(self, text: str, merges: int) -> None:
        self._ranks: dict[tuple[int, int], int] = {}
        self._known: dict[str, list[int]] = {}
        words = {tuple(word.encode()): count for word, count in Counter(_WORD.findall(text)).items()}
        for rank in range(merges):
            pairs = Counter[tuple[int, int]]()
            for word, count in words.items():
                for pair in pairwise(word):
                    pairs[pair] += count
            if not pairs:
                return
            best = max(pairs, key=lambda pair: (pairs[pair], pair))
            self._ranks[best] = 256 + rank
            words = {tuple(_merged(word, best, 256 + rank)): count for word, count in words.items()}

    def encode(self, text: str) -> Iterator[int]:
        """Tokens of a text."""
        for word in _WORD.findall(text):
            found = self._known.get(word)
            if found is None:
                found = self._known[word] = self._encode(word)
            yield from found

    def decode(self, tokens: list[int]) -> str:
        """The text again."""
        parts = {token: pair for pair, token in self._ranks.items()}

        def spelled(token: int) -> bytes:
            return bytes([token]) if token < 256 else b"".join(map(spelled, parts[token]))

        return b"".join(map(spelled, tokens)).decode()

    def _encode(self, word: str) -> list[int]:
        tokens = list(word.encode())
        while known := [pair for pair in pairwise(tokens) if pair in self._ranks]:
            first = min(known, key=self._ranks.__getitem__)
            tokens = _merged(tokens, first, self._ranks[first])
        return tokens


def collate(tokens: list[int], batch: int, sequence: int) -> Iterator[Tensor]:
    """Batches (batch, sequence + 1) of consecutive tokens; what does not fill one is left out."""
    size = batch * (sequence + 1)
    for start in range(0, len(tokens) - size + 1, size):
        yield torch.tensor(tokens[start : start + size]).view(batch, sequence + 1)


def text(words: int, seed: int = 0) -> str:
    """So many words of a made-up language with the frequencies of a natural one; the language is always the same."""
    ranks = np.random.default_rng(seed).zipf(_ZIPF, words)
    return " ".join(_lexicon()[(ranks - 1) % _WORDS])


@cache
def _lexicon() -> NDArray[np.str_]:
    random = np.random.default_rng(0)
    lengths = random.integers(2, 12, _WORDS)
    return np.array(["".join(random.choice(_LETTERS, length)) for length in lengths])


def tokens_per_core(batch: int, sequence: int, seed: int = 0) -> float:
    """Measured tokens/s of one core: CPU time is counted, so that waiting for others does not matter."""
    tokenizer = Tokenizer(text(_LEARNED_WORDS, seed), _MERGES)
    fresh = text(max(_TEXT_WORDS, batch * (sequence + 1)), seed + 1)
    began = process_time()
    ready = sum(part.numel() for part in collate(list(tokenizer.encode(fresh)), batch, sequence))
    return ready / (process_time() - began)


def _merged(tokens: tuple[int, ...] | list[int], pair: tuple[int, int], into: int) -> list[int]:
    result: list[int] = []
    for token in tokens:
        if result and (result[-1], token) == pair:
            result[-1] = into
        else:
            result.append(token)
    return result
