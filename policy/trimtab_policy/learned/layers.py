"""Layers of small networks in numpy: what torch computes in training, without torch.

Arrays are float32, weights as torch lays them out. Sums run in another order than in torch: results differ by rounding.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Single = NDArray[np.float32]


def dense(x: Single, weight: Single, bias: Single | None = None) -> Single:
    """(..., out) of x (..., in), weight (out, in), bias (out,)."""
    product: Single = (x.reshape(-1, x.shape[-1]) @ weight.T).reshape(*x.shape[:-1], len(weight))
    return product if bias is None else product + bias


def relu(x: Single) -> Single:
    """max(x, 0)."""
    return np.maximum(x, np.float32(0))


def convolution(x: Single, weight: Single, bias: Single) -> Single:
    """(n, out, rows, columns) of x (n, in, rows, columns): cross-correlation with a kernel of odd sides.

    `weight` is (out, in, height, width). Zeros stand around the edges, so that the sides stay as they are. The patches
    are laid side by side, so that one matrix product does it all (Chellapilla et al. 2006).
    """
    out, _, height, width = weight.shape
    margins = ((0, 0), (0, 0), (height // 2, height // 2), (width // 2, width // 2))
    patches = sliding_window_view(np.pad(x, margins), (height, width), axis=(2, 3))
    rows = patches.transpose(0, 2, 3, 1, 4, 5).reshape(-1, weight[0].size)
    found: Single = (rows @ weight.reshape(out, -1).T + bias).reshape(len(x), *x.shape[2:], out)
    return found.transpose(0, 3, 1, 2)
