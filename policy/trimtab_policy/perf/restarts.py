"""What it costs to stop a training and start it again: pods, processes, and the checkpoint both ways.

The simulator and the controller go by the same figures; `sim.llm` may be told others.
"""

from __future__ import annotations

from trimtab_policy.perf import model_flops
from trimtab_policy.specs import ModelSpec, Optimizer

SCHEDULE_SECONDS = 15.0
"""From the decision to running pods: gang creation, image that is there already."""
STARTUP_SECONDS = 30.0
"""Python, process groups, warm-up of the first steps."""
STORAGE_BANDWIDTH = 2e9
"""Bytes/s that one node reads or writes of a checkpoint."""
STORAGE_LIMIT = 50e9
"""Bytes/s of the storage as a whole."""
STATE_BYTES = {
    Optimizer.ADAMW: 14,
    Optimizer.ADAMW_8BIT: 8,
    Optimizer.SGD: 10,
    Optimizer.ADAFACTOR: 6,
    Optimizer.MUON: 10,
}
"""Bytes of a checkpoint per parameter: 16-bit weights, FP32 master copy, and the optimizer's states."""


def checkpoint_bytes(model: ModelSpec, optimizer: Optimizer) -> float:
    """Size of a full checkpoint, weights and optimizer."""
    return float(model_flops.parameters(model_flops.of(model))) * STATE_BYTES[optimizer]


def restart_seconds(model: ModelSpec, optimizer: Optimizer, nodes: int) -> float:
    """From the moment that a gang on so many nodes is asked to stop until it computes again: save, schedule, load."""
    one_way = checkpoint_bytes(model, optimizer) / min(nodes * STORAGE_BANDWIDTH, STORAGE_LIMIT)
    return SCHEDULE_SECONDS + STARTUP_SECONDS + 2 * one_way
