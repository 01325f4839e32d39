"""Which nodes a gang takes of those that have room: near ones, so that its collectives travel the shortest way.

It goes into the nearest topology domain (NVLink domain, then rack, block, zone) that holds all of it, and over as few
of the domains inside as possible. Among several such domains the fullest one is taken, and in it the nodes with the
least left over (best fit), so that whole nodes and whole racks stay free for larger gangs.

A gang that no NVLink domain of several nodes holds lies in as few of them as possible, in shares as equal as can be:
its groups of ranks are then alike in each, and none waits for one with more of its way over the network. Slurm
(topology/block, --segment) and Kueue (podset slices) divide gangs so. Where groups of ranks are larger than a node
each domain takes whole segments: no group lies in two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab_policy.perf import lessons
from trimtab_policy.perf.lessons import Locality
from trimtab_policy.perf.plan_space import ANYHOW, Linkage
from trimtab_policy.specs import GpuSpec
from trimtab_policy.types import Node, NodeShare

IntArray = NDArray[np.int64]


def tightest(left: IntArray, levels: list[IntArray], count: int, linkage: Linkage = ANYHOW) -> IntArray:
    """Positions of `count` candidates out of n >= count, in rank order.

    `left` (n,) is what each candidate would keep free, `levels` the domain codes (n,) from widest to nearest; the
    widest holds everything, the nearest are link domains. These must hold the gang with this linkage (`holds`).
    """
    if linkage is not ANYHOW:
        whole = _in_segments(left, levels[-1], linkage)
        return whole[_tightest(left[whole], [codes[whole] for codes in levels], count, linkage)]
    return _tightest(left, levels, count, linkage)


def holds(sizes: Sequence[int], count: int, linkage: Linkage) -> bool:
    """Whether link domains with so many candidates, the largest first, hold a gang of `count` nodes with this linkage.

    It lies in as few of them as possible: these must be few enough for all its shares.
    """
    segment, share = linkage
    held = 0
    for size in sizes[: count // share]:
        whole = size - size % segment
        if whole < share:
            return False
        held += whole
        if held >= count:
            return True
    return False


def link_domains(gpu: GpuSpec, shares: Sequence[NodeShare], nodes: Mapping[str, Node]) -> list[str]:
    """The link domain of each node of a gang, by rank: its own name where its links end at the node, or if it is not
    among `nodes`."""
    if not gpu.link_domain:
        return [share.node for share in shares]
    return [nodes[share.node].link_domain or share.node if share.node in nodes else share.node for share in shares]


def linked_gpus(shares: Sequence[NodeShare], domains: Sequence[str]) -> int:
    """GPUs of a gang of equal parts that share a link: of several domains (`link_domains`), in that with the fewest."""
    return shares[0].gpus * min(Counter(domains).values())


def locality(gpu: GpuSpec, shares: Sequence[NodeShare], nodes: Mapping[str, Node]) -> Locality:
    """How a gang lies; unknown where it matters in which link domain a node is that is not among `nodes`."""
    if gpu.link_domain and len(shares) > 1 and any(share.node not in nodes for share in shares):
        return Locality.UNKNOWN
    linked = linked_gpus(shares, link_domains(gpu, shares, nodes)) if gpu.link_domain else 0
    return lessons.locality(sum(share.gpus for share in shares), len(shares), linked)


def _tightest(left: IntArray, levels: list[IntArray], count: int, linkage: Linkage) -> IntArray:
    depth, able = _nearest(levels, count, linkage.share)
    members = _fullest(left, levels[: depth + 1], able)
    inside = [codes[members] for codes in levels[depth + 1 :]]
    if inside and np.bincount(inside[-1]).max() > 1:
        chosen = members[_in_equal_shares(left[members], inside, count, linkage.segment)]
        return _in_rank_order_by_link(chosen, levels)
    chosen = members[_few_domains_first(left[members], inside)[:count]]
    return _in_rank_order(chosen, levels)


def _in_segments(left: IntArray, link: IntArray, linkage: Linkage) -> IntArray:
    """Positions of those that make up whole segments of their link domains, where these are enough for a share."""
    order = np.lexsort((left, link))
    sizes = np.bincount(link)
    before = np.cumsum(sizes) - sizes
    place = np.arange(len(link)) - before[link[order]]
    whole = sizes // linkage.segment * linkage.segment
    whole[whole < linkage.share] = 0
    return np.sort(order[place < whole[link[order]]])


def _nearest(levels: list[IntArray], count: int, share: int) -> tuple[int, IntArray]:
    """The last level with domains that hold the gang, no share of it too small, and all candidates in such domains."""
    for depth in range(len(levels) - 1, -1, -1):
        codes = levels[depth]
        able = np.bincount(codes) >= count
        if share > 1:
            able[able] = _fewest_in_each(levels[-1], codes, able, count) * share <= count
        if able.any():
            return depth, np.flatnonzero(able[codes])
    raise ValueError(f"no link domains hold shares of {share} of {count} nodes")


def _fewest(sizes: IntArray, count: int) -> int:
    """How many of these domains, which together hold so many, it takes at least."""
    return int(np.searchsorted(np.cumsum(np.sort(sizes)[::-1]), count)) + 1


def _fewest_in_each(link: IntArray, codes: IntArray, able: NDArray[np.bool_], count: int) -> IntArray:
    """The same in each of the `able` (domains,) domains of a level, of which each holds so many candidates.

    `link` and `codes` (n,) are the link domain and the domain of each candidate.
    """
    inside = able[codes]
    parts = int(link.max()) + 1
    keys, sizes = np.unique(codes[inside] * parts + link[inside], return_counts=True)
    order = np.lexsort((-sizes, keys // parts))
    domain, held = (keys // parts)[order], np.cumsum(sizes[order])
    first = np.flatnonzero(np.diff(domain, prepend=-1))
    before = held[first] - sizes[order][first]
    fewest: IntArray = np.searchsorted(held, before + count) - first + 1
    return fewest


def _fullest(left: IntArray, levels: list[IntArray], able: IntArray) -> IntArray:
    """Members of the domain at the last level that has the least to spare, of those of the `able`.

    Between equals the one whose surroundings are fuller is taken, so that empty racks stay empty.
    """
    nearest = levels[-1]
    best = able[np.unique(nearest[able], return_index=True)[1]]  # one member of each domain stands for all
    for codes in reversed(levels[1:]):  # the widest holds everything
        for weights in (None, left):
            if len(best) > 1:
                spare = np.bincount(codes, weights)[codes[best]]
                best = best[spare == spare.min()]
    members: IntArray = np.flatnonzero(nearest == nearest[best.min()])
    return members


def _few_domains_first(left: IntArray, levels: list[IntArray]) -> IntArray:
    """Order in which candidates fill up one domain inside after the other, the largest first; best fit within."""
    keys: list[NDArray[Any]] = [left]
    for codes in reversed(levels):
        keys += [codes, np.bincount(codes, weights=left)[codes], -np.bincount(codes)[codes]]
    return np.lexsort(keys)


def _in_equal_shares(left: IntArray, levels: list[IntArray], count: int, segment: int) -> IntArray:
    """Positions of `count` candidates in as few link domains as possible, the nearest of `levels`, in equal shares.

    Where no equal shares of whole segments can be had they are as equal as can be. Of domains that are large enough the
    fullest are taken, and best fit within.
    """
    _, first, domain, sizes = np.unique(levels[-1], return_index=True, return_inverse=True, return_counts=True)
    room, needed = sizes // segment, count // segment
    fewest = _fewest(room, needed)
    order = np.lexsort([*(codes[first] for codes in reversed(levels)), room])
    shares = np.zeros_like(room)
    for place, position in enumerate(chosen := _large_enough(room, order, needed, fewest)):
        shares[position] = min(room[position], needed // (len(chosen) - place))
        needed -= int(shares[position])
    by_domain = np.lexsort((left, domain))
    place_in_domain = np.arange(len(left)) - (np.cumsum(sizes) - sizes)[domain[by_domain]]
    return by_domain[place_in_domain < segment * shares[domain[by_domain]]]


def _large_enough(room: IntArray, order: IntArray, needed: int, fewest: int) -> list[int]:
    """So few domains for so many segments, the smaller first: the smallest with room for equal shares, else the largest
    of all. `order` has all domains, the smaller first."""
    part, larger = divmod(needed, fewest)
    ascending: list[int] = order.tolist()
    most = [position for position in ascending if room[position] > part][:larger]
    others = [position for position in ascending if room[position] >= part and position not in most]
    if len(most) < larger or len(most) + len(others) < fewest:
        return ascending[-fewest:]
    chosen = {*most, *others[: fewest - larger]}
    return [position for position in ascending if position in chosen]


def _in_rank_order_by_link(chosen: IntArray, levels: list[IntArray]) -> IntArray:
    """The same where link domains are wider than a node, and may even lie across racks: each stays in one piece."""
    _, first, domain = np.unique(levels[-1][chosen], return_index=True, return_inverse=True)
    lead = chosen[first[domain]]
    own, of_domain = ([codes[nodes] for codes in reversed(levels)] for nodes in (chosen, lead))
    return chosen[np.lexsort([chosen, *own, *of_domain])]


def _in_rank_order(chosen: IntArray, levels: list[IntArray]) -> IntArray:
    """Neighbours in the network become neighbours in rank: pipeline stages and rings then take short ways."""
    keys = [chosen, *(codes[chosen] for codes in reversed(levels))]
    return chosen[np.lexsort(keys)]


def domain_codes(nodes: Sequence[Node]) -> list[IntArray]:
    """Integer codes of the enclosing domains, widest first: everything, the topology levels, the NVLink domain.

    They are not to be changed: who asks about nodes that lie as others did before gets the same ones.
    """
    return _domain_codes(tuple([(node.name, node.topology, node.link_domain) for node in nodes]))


@lru_cache(maxsize=8)
def _domain_codes(places: tuple[tuple[str, tuple[str, ...], str], ...]) -> list[IntArray]:
    """Nodes are asked about in every decision, and hardly ever move."""
    depth = max((len(topology) for _, topology, _ in places), default=0)
    levels = [[_domain(name, topology, level) for name, topology, _ in places] for level in range(depth)]
    linked: list[tuple[str, ...]] = [(link_domain or name,) for name, _, link_domain in places]
    everything: list[tuple[str, ...]] = [()] * len(places)
    return [_codes(keys) for keys in (everything, *levels, linked)]


def _domain(name: str, topology: tuple[str, ...], level: int) -> tuple[str, ...]:
    """A domain is named by its whole prefix; a node that is not in any at this level stands alone there."""
    prefix = topology[: level + 1]
    return prefix if len(prefix) > level and prefix[level] else (*prefix, "alone", name)


def _codes(keys: Sequence[tuple[str, ...]]) -> IntArray:
    known: dict[tuple[str, ...], int] = {}
    codes = np.array([known.setdefault(key, len(known)) for key in keys], dtype=np.int64)
    codes.setflags(write=False)
    return codes
