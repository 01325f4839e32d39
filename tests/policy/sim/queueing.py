"""What queueing theory speaks of, for the kernel: servers that are alike, and jobs that take one each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trimtab_lab import kernel
from trimtab_lab.kernel import KernelNodes, KernelOption, KernelWorkload


def node_of(gpus: int) -> KernelNodes:
    """One node with so many GPUs."""
    return KernelNodes(np.zeros(1, dtype=np.int64), np.array([gpus]), np.array([gpus]))


def of_one_gpu(submitted: NDArray[np.float64], work: NDArray[np.float64]) -> KernelWorkload:
    """Jobs that ask for one GPU each; both (jobs,), in seconds."""
    return kernel.workload(submitted, work, np.zeros(len(work), dtype=np.int64), [[KernelOption(0, 1, 1.0)]])
