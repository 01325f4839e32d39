"""How the GPUs of a node reach one another, in the words of `nvidia-smi topo -m`.

NVLinks win: as many as are up between the two, directly or through NVSwitches, if the driver lets them be used.
Otherwise it is the nearest thing on PCI Express that both hang on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from trimtab.agent.nvml.calls import Calls, Lost

P2P_NVLINK, P2P_OK = 2, 0
LINK_TO_SWITCH: Final = 2
SWITCH: Final = "switch"
ANCESTORS: Final = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""nvmlGpuTopologyLevel_t. Two GPUs on one board (0) are behind one bridge too."""
SELF: Final = "X"
UNKNOWN: Final = "NA"

Words = dict[tuple[str, str], str]
"""How one GPU reaches another, by their UUIDs."""


class TopologyNode(Struct, frozen=True):
    """A GPU as a node of the graph."""

    uuid: str
    pci_bus: str
    handle: object
    calls: Calls
    peers: Counter[str]
    """NVLinks that are up, by the PCI address at the other end, or `SWITCH`."""


def peers(calls: Calls, active: Sequence[int]) -> Counter[str]:
    """Where the NVLinks with the numbers `active` end."""
    ends: Counter[str] = Counter()
    for link in active:
        if calls.ask("nvmlDeviceGetNvLinkRemoteDeviceType", link) == LINK_TO_SWITCH:
            ends[SWITCH] += 1
        elif (info := calls.ask("nvmlDeviceGetNvLinkRemotePciInfo", link)) is not None:
            ends[info.busId.upper()] += 1
    return ends


def links(gpus: Sequence[TopologyNode], before: Words) -> Words:
    """Every pair of `gpus`. Pairs of a GPU that is lost are taken from `before`."""
    return {(one.uuid, other.uuid): _word(one, other, before) for one in gpus for other in gpus}


def matrix(uuids: Sequence[str], words: Words) -> tuple[tuple[str, ...], ...]:
    """[i][j] of the GPUs in the order of `uuids`."""
    return tuple(tuple(words.get((one, other), UNKNOWN) for other in uuids) for one in uuids)


def _word(one: TopologyNode, other: TopologyNode, before: Words) -> str:
    if one.uuid == other.uuid:
        return SELF
    try:
        number = one.peers[other.pci_bus.upper()] + min(one.peers[SWITCH], other.peers[SWITCH])
        if number and one.calls.ask("nvmlDeviceGetP2PStatus", other.handle, P2P_NVLINK) in (P2P_OK, None):
            return f"NV{number}"
        return ANCESTORS.get(one.calls.ask("nvmlDeviceGetTopologyCommonAncestor", other.handle), UNKNOWN)
    except Lost:
        return before.get((one.uuid, other.uuid), UNKNOWN)
