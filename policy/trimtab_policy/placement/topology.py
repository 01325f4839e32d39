"""Which nodes a gang takes of those that have room: near ones, so that its collectives travel the shortest way.

It goes into the nearest topology domain (NVLink domain, then rack, block, zone) that holds all of it, and over as few
of the domains inside as possible. Among several such domains the fullest one is taken, and in it the nodes with the
least left over (best fit), so that whole nodes and whole racks stay free for larger gangs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab_policy.types import Node

IntArray = NDArray[np.int64]


def tightest(left: IntArray, levels: list[IntArray], count: int) -> IntArray:
    """Positions of `count` candidates out of n >= count, in rank order.

    `left` (n,) is what each candidate would keep free, `levels` the domain codes (n,) from widest to nearest; the
    widest holds everything.
    """
    depth = max(depth for depth, codes in enumerate(levels) if np.bincount(codes).max() >= count)
    members = _fullest(left, levels[: depth + 1], count)
    inside = [codes[members] for codes in levels[depth + 1 :]]
    chosen = members[_few_domains_first(left[members], inside)[:count]]
    return _in_rank_order(chosen, levels)


def _fullest(left: IntArray, levels: list[IntArray], count: int) -> IntArray:
    """Members of the domain at the last level that holds `count` of them with the least to spare.

    Between equals the one whose surroundings are fuller is taken, so that empty racks stay empty.
    """
    nearest = levels[-1]
    best = np.flatnonzero(np.bincount(nearest)[nearest] >= count)
    for codes in reversed(levels):
        for spare in (np.bincount(codes)[codes], np.bincount(codes, weights=left)[codes]):
            best = best[spare[best] == spare[best].min()]
    return np.flatnonzero(nearest == nearest[best[0]])


def _few_domains_first(left: IntArray, levels: list[IntArray]) -> IntArray:
    """Order in which candidates fill up one domain inside after the other, the largest first; best fit within."""
    keys: list[NDArray[Any]] = [left]
    for codes in reversed(levels):
        keys += [codes, np.bincount(codes, weights=left)[codes], -np.bincount(codes)[codes]]
    return np.lexsort(keys)


def _in_rank_order(chosen: IntArray, levels: list[IntArray]) -> IntArray:
    """Neighbours in the network become neighbours in rank: pipeline stages and rings then take short ways."""
    keys = [chosen, *(codes[chosen] for codes in reversed(levels))]
    return chosen[np.lexsort(keys)]


def domain_codes(nodes: Sequence[Node]) -> list[IntArray]:
    """Integer codes of the enclosing domains, widest first: everything, the topology levels, the NVLink domain."""
    depth = max((len(node.topology) for node in nodes), default=0)
    levels = [[_domain(node, level) for node in nodes] for level in range(depth)]
    linked: list[tuple[str, ...]] = [(node.link_domain or node.name,) for node in nodes]
    everything: list[tuple[str, ...]] = [()] * len(nodes)
    return [_codes(keys) for keys in (everything, *levels, linked)]


def _domain(node: Node, level: int) -> tuple[str, ...]:
    """A domain is named by its whole prefix; a node that is not in any at this level stands alone there."""
    prefix = node.topology[: level + 1]
    return prefix if len(prefix) > level and prefix[level] else (*prefix, "alone", node.name)


def _codes(keys: Sequence[tuple[str, ...]]) -> IntArray:
    known: dict[tuple[str, ...], int] = {}
    return np.array([known.setdefault(key, len(known)) for key in keys], dtype=np.int64)
