"""A small world in which it is plain what is right, for tests of learners: each must find it in seconds.

One GPU type, two nodes of four GPUs, two families of equally long jobs: `wide` ones are as many times faster as they
have GPUs, `narrow` ones no faster on four than on one. At a load where GPUs must not be wasted the right thing is to
give narrow jobs one GPU and wide ones more.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trimtab_lab.environments.cluster_jobs import Families
from trimtab_lab.environments.offers import OffersVectorEnv
from trimtab_policy import catalog
from trimtab_policy.types import Node, Snapshot

_LOAD = 0.7


def toy(num_envs: int, **given: Any) -> OffersVectorEnv:
    """The world; arguments as of `OffersVectorEnv`."""
    gpu = catalog.gpu("T4")
    nodes = tuple(Node(f"node-{number}", gpu.name, 4, 4, 1 << 40, 1 << 60, 1 << 20) for number in range(2))
    world: dict[str, Any] = {"cluster": Snapshot(0.0, nodes, (), {gpu.name: gpu}), "families": _families()}
    return OffersVectorEnv(num_envs, **{**world, "load": _LOAD, "jobs": 40, "largest_gang": 4, **given})


def _families() -> Families:
    speed = np.array([[1.0, 2.0, 4.0], [1.0, 1.0, 1.0]])
    return Families(
        names=("wide", "narrow"),
        share=np.array([0.5, 0.5]),
        speed=speed,
        gpu_hours=np.array([[0.5, 2.0], [0.5, 2.0]]),
        start_seconds=np.zeros(2),
        restart_seconds=np.zeros(speed.shape),
    )
