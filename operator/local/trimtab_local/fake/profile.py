"""Profiles: a fake cluster in a few lines of YAML.

    name: heterogeneous
    racksPerBlock: 2          # racks are numbered through the profile, this many form a block
    pools:
      - name: h100            # nodes are called h100-0, h100-1, ...
        count: 4              # nodes
        product: NVIDIA-H100-80GB-HBM3    # as the vendor's label names it
        gpus: 8               # per node
        cpu: 192              # cores per node
        memory: 2Ti           # per node, a Kubernetes quantity
        zone: zone-a
        nodesPerRack: 2       # each pool starts in a new rack, unless `rack` says in which
        cliqueNodes: 18       # this many consecutive nodes share one NVLink domain (NVL72); left out: none do
        tainted: true         # nvidia.com/gpu:NoSchedule, as the GPU operator's users often set
        devices: true         # GPUs come by ResourceSlices (dynamic resource allocation), not by a device plugin

Mistakes are UsageErrors that name file, pool and field.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from trimtab.errors import UsageError
from trimtab_local.checkout import checkout
from trimtab_local.fake.products import driver, known
from trimtab_policy.inputs import documents
from trimtab_policy.inputs.documents import NotYaml

Count = Annotated[int, Meta(ge=1)]
Name = Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$")]
Label = Annotated[str, Meta(pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")]
Quantity = Annotated[str, Meta(pattern=r"^[1-9][0-9]*(Mi|Gi|Ti)$")]


class NodePool(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Nodes that are equal but for their place."""

    name: Name
    count: Count
    product: Label
    gpus: Count
    cpu: Count
    memory: Quantity
    zone: Label = "zone-a"
    nodes_per_rack: Count = 4
    rack: Count | None = None
    """Number of the pool's first rack; None for the one after the last pool's."""
    machine: Label = "Fake-GPU-Server"
    """`nvidia.com/gpu.machine`: the model of the server."""
    instance_type: Label | None = None
    clique_nodes: Annotated[int, Meta(ge=0)] = 0
    tainted: bool = False
    devices: bool = False
    """No device plugin or labeller speaks of the GPUs: ResourceSlices do, as NVIDIA's or AMD's driver writes them."""

    @property
    def racks(self) -> int:
        """Racks that the pool takes up, the last one perhaps in part."""
        return -(-self.count // self.nodes_per_rack)


class FakeCluster(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A fake cluster."""

    name: Name
    pools: Annotated[tuple[NodePool, ...], Meta(min_length=1)]
    description: str = ""
    racks_per_block: Count = 4
    region: Label = "fake-region"
    driver: Label = "580.95.05"
    cuda: Label = "13.0"

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return sum(pool.count for pool in self.pools)

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return sum(pool.count * pool.gpus for pool in self.pools)


def load_profile(path: Path) -> FakeCluster:
    """Read and check a profile. Raises UsageError that names file, pool and field."""
    content: object = None
    try:
        content = documents.parse(path.read_bytes())
        profile = msgspec.convert(content, FakeCluster)
    except (OSError, NotYaml) as error:
        raise UsageError(f"cannot read the profile {path}: {error}") from error
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {_explain(str(error), content)}") from error
    for problem in _problems(profile):
        raise UsageError(f"{path}: {problem}")
    return profile


def shipped_profiles() -> list[Path]:
    """The profiles of the checkout; stages.yaml beside them is KWOK's."""
    return sorted(path for path in (checkout() / "manifests" / "fake").glob("*.yaml") if path.stem != "stages")


def _problems(profile: FakeCluster) -> list[str]:
    names = [pool.name for pool in profile.pools]
    twice = [
        f"pool {name!r}, field name: there is another pool of this name" for name in names if names.count(name) > 1
    ]
    unknown = [
        f"pool {pool.name!r}, field product: unknown GPU product {pool.product!r}: take the value of a product label "
        "from policy/trimtab_policy/data/gpus.yaml"
        for pool in profile.pools
        if not known(pool.product)
    ]
    driverless = [
        f"pool {pool.name!r}, field devices: there is no driver of dynamic resource allocation for {pool.product!r}"
        for pool in profile.pools
        if pool.devices and known(pool.product) and not driver(pool.product)
    ]
    return twice + unknown + driverless


def _explain(message: str, content: object) -> str:
    """msgspec says `Expected ... - at `$.pools[1].count``; people count pools by name."""
    what, _, where = message.partition(" - at `$")
    path = where.rstrip("`").lstrip(".")
    if not (match := re.fullmatch(r"pools\[(\d+)\]\.?(.*)", path)):
        return f"field {path}: {what}" if path else what
    pools = content["pools"] if isinstance(content, dict) else []
    pool = pools[int(match[1])]
    name = pool.get("name", f"number {int(match[1]) + 1}") if isinstance(pool, dict) else f"number {int(match[1]) + 1}"
    return f"pool {name!r}, field {match[2]}: {what}" if match[2] else f"pool {name!r}: {what}"
