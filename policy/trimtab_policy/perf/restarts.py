"""What it costs to stop a training and start it again: pods, processes, and the checkpoint both ways.

The simulator and the controller go by the same figures; `sim.llm` may be told others.
"""

from __future__ import annotations

from msgspec import UNSET

from trimtab_policy.perf import memory, model_flops, plan_arrays
from trimtab_policy.specs import ModelSpec, Optimizer, ParallelPlan, TrainingSpec

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


def checkpoint_bytes(model: ModelSpec, training: TrainingSpec) -> float:
    """Size of a full checkpoint, weights and optimizer: of all parameters, or of the adapters beside frozen ones."""
    trained = float(model_flops.parameters(model_flops.of(model)))
    if training.adapters is not UNSET:
        trained = sum(float(part[0]) for part in memory.trained_per_gpu(plan_arrays.work(model, training), _ALONE))
    return trained * STATE_BYTES[training.optimizer]


def restart_seconds(model: ModelSpec, training: TrainingSpec, nodes: int) -> float:
    """From the moment that a gang on so many nodes is asked to stop until it computes again: save, schedule, load.

    Frozen weights are loaded, 2 bytes each, and never saved.
    """
    bandwidth = min(nodes * STORAGE_BANDWIDTH, STORAGE_LIMIT)
    seconds = SCHEDULE_SECONDS + STARTUP_SECONDS + 2 * (checkpoint_bytes(model, training) / bandwidth)
    if training.adapters is UNSET:
        return seconds
    return seconds + 2 * float(model_flops.parameters(model_flops.of(model))) / bandwidth


_ALONE = plan_arrays.columns([ParallelPlan()])
