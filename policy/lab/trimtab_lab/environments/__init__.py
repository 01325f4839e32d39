"""Gymnasium environments: our own cluster, and the worlds of three published systems as their papers describe them.

Importing this package registers `trimtab/Cluster-v0` and, job by job, `trimtab/Offers-v0`; `trimtab/ADLRO-v0`,
`trimtab/RLAlloc-v0` and `trimtab/ParallelMode-v0`. The modules are loaded when an environment is made. It is the only
part of the simulator that needs gymnasium (the extra `sim`).
"""

from __future__ import annotations

import gymnasium as gym

_HERE = "trimtab_lab.environments"

gym.register(
    id="trimtab/Cluster-v0",
    entry_point=f"{_HERE}.cluster:ClusterEnv",
    vector_entry_point=f"{_HERE}.cluster:ClusterVectorEnv",
)
gym.register(id="trimtab/Offers-v0", vector_entry_point=f"{_HERE}.offers:OffersVectorEnv")
gym.register(id="trimtab/ADLRO-v0", entry_point=f"{_HERE}.adlro:AdlroEnv")
gym.register(id="trimtab/RLAlloc-v0", entry_point=f"{_HERE}.rlalloc:RLAllocEnv")
gym.register(
    id="trimtab/ParallelMode-v0",
    entry_point=f"{_HERE}.parallel_mode:ParallelModeEnv",
    vector_entry_point=f"{_HERE}.parallel_mode:ParallelModeVectorEnv",
)
