"""Hypervectors: names and quantities as long vectors of signs, and structures of them as vectors of the same length.

Section 3.2 of ADLRO (seed 002) takes a state apart into "GPU model, resource utilization, and workload priority" for
"structured pattern retrieval" by hyperdimensional networks, and leaves the encoding open. Here it is the bipolar
multiply-add-permute code of the literature (Gayler 1998; Kanerva 2009; survey: Kleyko et al. 2022, ACM CSUR 55:6):

- `symbol`: a name, as signs drawn by a hash of it. Two of them are nearly orthogonal: by Hoeffding's inequality their
  similarity exceeds e in absolute value with a chance of at most 2 exp(-dimension e^2 / 2).
- `level`: a quantity in [0, 1]. Similarity falls linearly with the difference, from 1 to 0 (Rahimi et al. 2016).
- `bind`: the elementwise product, unlike all of its parts; to bind again with one of them gives the other back.
- `bundle`: the majority of the signs, like each of its members. With members in roles (`bind` with the role's symbol,
  `permute` by its place) it is a record: to undo the role gives what fills it, and noise.

A GPU model is a record of its datasheet (`gpu_model`), not a symbol: one that was never seen lands near its relatives.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from math import log

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trimtab_policy import catalog
from trimtab_policy.specs import GpuSpec

Hypervectors = NDArray[np.int8]
"""(..., dimension) of -1 and 1."""


def symbol(name: str, dimension: int) -> Hypervectors:
    """(dimension,) of a name: the same on every machine and for ever."""
    bits = np.unpackbits(np.frombuffer(_hash(name, -(-dimension // 8)), dtype=np.uint8))[:dimension]
    return 1 - 2 * bits.astype(np.int8)


def level(name: str, quantity: ArrayLike, dimension: int) -> Hypervectors:
    """(..., dimension) of quantities (...) in [0, 1] on the scale called `name`.

    0 is the symbol of the name; a quantity q turns the first q dimension / 2 signs of an order that goes with the name,
    so that the similarity of two quantities is 1 - |p - q|, to the nearest sign. Raises ValueError outside [0, 1].
    """
    given = np.asarray(quantity, dtype=np.float64)
    if not ((given >= 0) & (given <= 1)).all():
        raise ValueError(f"{name}: quantities must lie in [0, 1], got {given.min():g} to {given.max():g}")
    turned = _order(name, dimension) < np.rint(given * dimension / 2)[..., None]
    return np.where(turned, -symbol(name, dimension), symbol(name, dimension))


def bind(*vectors: Hypervectors) -> Hypervectors:
    """The elementwise product. It is its own inverse: bind(bind(a, b), a) = b."""
    product = vectors[0]
    for vector in vectors[1:]:
        product = product * vector
    return product


def bundle(vectors: Sequence[Hypervectors]) -> Hypervectors:
    """The sign of the sum of at least one vector. Ties, of an even number, go as the symbol of their name has it.

    The expected similarity of the majority of an odd number k of random vectors with a member is
    binomial(k - 1, (k - 1) / 2) / 2^(k - 1): 1/2 of three, 3/8 of five.
    """
    total = np.sum(np.broadcast_arrays(*vectors), axis=0, dtype=np.int64)
    return np.where(total == 0, symbol("tie", total.shape[-1]), np.sign(total)).astype(np.int8)


def permute(vector: Hypervectors, places: int = 1) -> Hypervectors:
    """Rotated by so many places, which is unlike the vector itself; -places undoes it."""
    return np.roll(vector, places, axis=-1)


def gpu_model(spec: GpuSpec, dimension: int) -> Hypervectors:
    """(dimension,) of a GPU type: the bundle of its peak FLOP/s, memory bandwidth and memory, each bound to its role.

    On scales of logarithms that go from the least to the most of the catalogue; what lies beyond counts as the end.
    """
    figures = zip(_FIGURES, _datasheet(spec), _scales(), strict=True)
    return bundle(
        [bind(symbol(role, dimension), level(role, _place(value, *ends), dimension)) for role, value, ends in figures]
    )


def situation(gpu: Hypervectors, utilisation: ArrayLike, priority: ArrayLike) -> Hypervectors:
    """(..., dimension) record of the paper's three variables: GPU model (..., dimension), the others (...) in [0, 1].

    Roles are told by place: the GPU as it is, utilisation and priority rotated by one and by two.
    """
    dimension = gpu.shape[-1]
    use = permute(level("utilisation", utilisation, dimension), 1)
    rank = permute(level("priority", priority, dimension), 2)
    return bundle([gpu, use, rank])


def band(quantity: ArrayLike, bands: int) -> NDArray[np.int64]:
    """(...) which of so many equal parts of [0, 1] a quantity lies in; what lies outside counts as the end."""
    found: NDArray[np.int64] = np.clip(np.floor(np.asarray(quantity) * bands), 0, bands - 1).astype(np.int64)
    return found


_FIGURES = ("peak FLOP/s", "memory bandwidth", "memory")


def _datasheet(spec: GpuSpec) -> tuple[float, float, float]:
    return max(spec.peak_flops.values()), spec.memory_bandwidth, float(spec.memory_bytes)


@cache
def _scales() -> tuple[tuple[float, float], ...]:
    """Least and most of each figure in the catalogue."""
    return tuple((min(column), max(column)) for column in zip(*map(_datasheet, catalog.all_gpus()), strict=True))


def _place(value: float, least: float, most: float) -> float:
    return min(1.0, max(0.0, log(value / least) / log(most / least)))


def _order(name: str, dimension: int) -> NDArray[np.int64]:
    """(dimension,) rank of every position in the order in which a level turns its signs."""
    keys = np.frombuffer(_hash(f"order of {name}", 8 * dimension), dtype="<u8")
    ranks: NDArray[np.int64] = keys.argsort(kind="stable").argsort(kind="stable")
    return ranks


def _hash(name: str, size: int) -> bytes:
    return hashlib.shake_256(name.encode()).digest(size)
