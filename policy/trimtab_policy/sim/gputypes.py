"""What traces and testbeds call their GPUs: their names resolved to facts.

Four kinds of names are understood: those of the catalogue, product names as node labels carry them, aliases that
published traces use (`V100M32`), and stand-ins for GPUs that the catalogue lacks (`P100`, the undisclosed `G2`), whose
facts are estimated. Aliases and stand-ins are data (`data/clusters.yaml`), with the reason for each.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import msgspec
import yaml
from msgspec import Struct

from trimtab_policy import catalog
from trimtab_policy.catalog import Clocks, UnknownGpu
from trimtab_policy.specs import GpuSpec


class StandIn(Struct, frozen=True, forbid_unknown_fields=True):
    """What is known or assumed of a GPU that the catalogue lacks; 0 where it is not known."""

    memory_mib: int
    capability: tuple[int, int]
    units: int = 0
    core_mhz: float = 0.0
    memory_mhz: float = 0.0
    bus_bits: int = 0

    def spec(self, name: str) -> GpuSpec:
        """Estimated facts under the GPU's own name."""
        clocks = Clocks(self.units, self.core_mhz * 1e6, self.memory_mhz * 1e6, self.bus_bits)
        return catalog.estimate(name, self.memory_mib << 20, self.capability, clocks=clocks)


class NodeGroup(Struct, frozen=True, forbid_unknown_fields=True):
    """Equal nodes of a preset cluster."""

    gpu: str
    nodes: int
    gpus: int
    """On each node."""
    rack: int = 0
    """Nodes in a rack; 0 where racks do not matter."""
    block: int = 0
    """Racks in a block; 0: all racks in one."""


class _GpuTypesFile(Struct, frozen=True, forbid_unknown_fields=True):
    aliases: dict[str, str]
    stand_ins: dict[str, StandIn]
    clusters: dict[str, tuple[NodeGroup, ...]]


@cache
def resolve(name: str) -> GpuSpec:
    """The GPU of this name. Raises `catalog.UnknownGpu`, a KeyError, with the nearest names when there is none."""
    key = name.strip().casefold()
    for known, stand_in in presets().stand_ins.items():
        if known.casefold() == key:
            return stand_in.spec(known)
    full = next((full for alias, full in presets().aliases.items() if alias.casefold() == key), name)
    return catalog.by_product(full) or catalog.gpu(full)


@cache
def presets() -> _GpuTypesFile:
    """The file of clusters, aliases and stand-ins, read once."""
    text = (files("trimtab_policy") / "data" / "clusters.yaml").read_text(encoding="utf-8")
    return msgspec.convert(yaml.safe_load(text), _GpuTypesFile)


__all__ = ["NodeGroup", "StandIn", "UnknownGpu", "presets", "resolve"]
