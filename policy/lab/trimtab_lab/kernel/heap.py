"""Priority queues on arrays: a binary heap, many meldable heaps over one set of jobs, and a tree of minima.

All order by (key, index): indices follow the order of submission, so equal keys are served first come, first served.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab_lab.numba_cache import jit

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NONE = -1


@jit
def push(keys: Floats, items: Ints, size: int, key: float, item: int) -> int:
    """Put an item on the binary heap of the first `size` entries; returns the new size."""
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if keys[parent] < key or (keys[parent] == key and items[parent] < item):
            break
        keys[at], items[at] = keys[parent], items[parent]
        at = parent
    keys[at], items[at] = key, item
    return size + 1


@jit
def pop(keys: Floats, items: Ints, size: int) -> int:
    """Take the smallest entry, `items[0]` before the call, off the binary heap; returns the new size."""
    size -= 1
    key, item, at = keys[size], items[size], 0
    while 2 * at + 1 < size:
        child = 2 * at + 1
        other = child + 1
        if other < size and (keys[other] < keys[child] or (keys[other] == keys[child] and items[other] < items[child])):
            child = other
        if key < keys[child] or (key == keys[child] and item < items[child]):
            break
        keys[at], items[at] = keys[child], items[child]
        at = child
    keys[at], items[at] = key, item
    return size


class Heaps(NamedTuple):
    """Skew heaps (Sleator and Tarjan 1986) that share one set of items: each item is in at most one heap."""

    key: Floats
    left: Ints
    right: Ints
    root: Ints
    """One per heap; NONE when it is empty."""


def heaps(items: int, count: int) -> Heaps:
    """So many empty heaps for so many items."""
    return Heaps(np.zeros(items), np.full(items, NONE), np.full(items, NONE), np.full(count, NONE))


@jit
def before(key: Any, a: int, b: int) -> bool:
    """Whether item a comes before item b. `key` (items,)."""
    return bool(key[a] < key[b] or (key[a] == key[b] and a < b))


@jit
def meld(all_heaps: Heaps, a: int, b: int) -> int:
    """The root of two heaps made one, given their roots; amortised O(log n)."""
    if a == NONE:
        return b
    if b == NONE:
        return a
    if before(all_heaps.key, b, a):
        a, b = b, a
    root = a
    while True:
        below = all_heaps.right[a]
        all_heaps.right[a] = all_heaps.left[a]
        if below == NONE:
            all_heaps.left[a] = b
            return root
        if before(all_heaps.key, b, below):
            below, b = b, below
        all_heaps.left[a] = below
        a = below


@jit
def insert(all_heaps: Heaps, heap: int, item: int, key: float) -> None:
    """Put an item that is in no heap into this one."""
    all_heaps.key[item] = key
    all_heaps.left[item] = NONE
    all_heaps.right[item] = NONE
    all_heaps.root[heap] = meld(all_heaps, all_heaps.root[heap], item)


@jit
def remove_first(all_heaps: Heaps, heap: int) -> None:
    """Take the first item, `root[heap]`, out."""
    root = all_heaps.root[heap]
    all_heaps.root[heap] = meld(all_heaps, all_heaps.left[root], all_heaps.right[root])


@jit
def tree_set(tree: Floats, leaves: int, at: int, value: float) -> None:
    """Set a leaf of a tree of minima: `tree` (2 x leaves,), `leaves` a power of two, the root at 1."""
    at += leaves
    tree[at] = value
    at >>= 1
    while at:
        smallest = min(tree[2 * at], tree[2 * at + 1])
        if tree[at] == smallest:
            return
        tree[at] = smallest
        at >>= 1


@jit
def tree_first(tree: Floats, leaves: int, most: float) -> int:
    """The first leaf whose value is at most `most`, or NONE; O(log n)."""
    if tree[1] > most:
        return NONE
    at = 1
    while at < leaves:
        at *= 2
        if tree[at] > most:
            at += 1
    return at - leaves
