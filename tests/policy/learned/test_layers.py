"""Layers in numpy: by hand, and as torch computes them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from trimtab_policy.learned.layers import convolution, dense, relu

small = st.integers(1, 5)


def normal(seed: int, *shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def test_a_dense_layer_by_hand() -> None:
    x, weight, bias = np.float32([[1, 2]]), np.float32([[3, 4], [5, 6], [0, -1]]), np.float32([0, 1, 2])
    assert dense(x, weight, bias).tolist() == [[11, 18, 0]]
    assert dense(x, weight).tolist() == [[11, 17, -2]]


def test_what_is_below_zero_is_cut() -> None:
    assert relu(np.float32([-1, 0, 2])).tolist() == [0, 0, 2]


def test_a_convolution_by_hand_looks_at_neighbours_and_zeros_around_the_edge() -> None:
    row = np.float32([[[[1, 2, 3]]]])
    assert convolution(row, np.float32([[[[10, 1, 100]]]]), np.float32([0.5])).tolist() == [[[[201.5, 312.5, 23.5]]]]


@given(small, small, small, small, small, st.sampled_from([(1, 1), (1, 3), (3, 3), (5, 1)]), st.integers(0, 99))
def test_a_convolution_is_what_torch_computes(
    states: int, into: int, out: int, rows: int, columns: int, kernel: tuple[int, int], seed: int
) -> None:
    x, weight, bias = normal(seed, states, into, rows, columns), normal(seed + 1, out, into, *kernel), normal(2, out)
    theirs = functional.conv2d(*map(torch.from_numpy, (x, weight, bias)), padding="same").numpy()
    ours = convolution(x, weight, bias)
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (2, 1, 3, 4)])
def test_a_dense_layer_is_what_torch_computes(shape: tuple[int, ...]) -> None:
    x, weight, bias = normal(0, *shape), normal(1, 6, 4), normal(2, 6)
    theirs = functional.linear(*map(torch.from_numpy, (x, weight, bias))).numpy()
    np.testing.assert_allclose(dense(x, weight, bias), theirs, atol=1e-5)
