"""YAML of fake clusters and fake GPUs: read, or refused with a line that names what is wrong."""

from __future__ import annotations

import copy

from tests.fuzz.draw import Draw, Json
from tests.fuzz.target import Target
from tests.fuzz.targets.files import written

from trimtab.agent import profile as of_agents
from trimtab.agent.backend import BackendError
from trimtab.errors import UsageError
from trimtab_local.fake import profile as of_clusters

_CLUSTER: Json = {
    "name": "x",
    "racksPerBlock": 2,
    "pools": [
        {"name": "h100", "count": 2, "product": "NVIDIA-H100-80GB-HBM3", "gpus": 8, "cpu": 192, "memory": "2Ti",
         "zone": "zone-a", "nodesPerRack": 2, "cliqueNodes": 18, "tainted": True, "rack": 3},
        {"name": "t4", "count": 1, "product": "Tesla-T4", "gpus": 4, "cpu": 64, "memory": "256Gi"},
    ],
}  # fmt: skip
_NODE: Json = {
    "product": "NVIDIA-H100-80GB-HBM3",
    "gpus": 8,
    "seed": 1,
    "load": {"utilization": 0.95, "memory": 0.8, "noise": 0.03, "correlation": 0.6},
    "running": [{"pod": "team-a/train-0", "gpus": 4}],
    "faults": [
        {"kind": "xid", "gpu": 3, "code": 79, "at": 20},
        {"kind": "thermalThrottle", "gpu": [4, 5], "seconds": 60},
    ],
}
_YAML = (b"a: &a [*a]", b"? {}\n", b"!!python/object:os.system x", b"- " * 300, b"{" * 900, b"\xff", b"--- a\n--- b",
         b"pools: 7", b"pools: []", b"pools: [7]", b"x: 2001-99-99", b"1: 2", b"a: !!binary x", b"<<: 1", b"=: =",
         b"a: &a [x, x]\nb: &b [*a, *a, *a]", b"!!timestamp x", b"!!bool x")  # fmt: skip


def run(data: bytes) -> None:
    """One file, read as either."""
    draw = Draw(data)
    agent = bool(draw.byte() & 1)
    match draw.below(8):
        case 6:
            raw = draw.rest()
        case 7:
            raw = draw.pick(_YAML) + draw.rest()
        case _:
            raw = draw.encoded(draw.spoiled(draw.tweaked(copy.deepcopy(_NODE if agent else _CLUSTER))))
    path = written("profile.yaml", raw)
    try:
        if agent:
            found = of_agents.load_profile(path)
            assert found.spec.memory_bytes > 0
        else:
            cluster = of_clusters.load_profile(path)
            assert cluster.nodes > 0
            assert cluster.gpus > 0
    except (UsageError, BackendError) as error:
        assert str(path) in str(error)


TARGET = Target("YAML of fake clusters and of fake GPUs", run)
