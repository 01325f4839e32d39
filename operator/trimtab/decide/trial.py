"""A small cluster with one small job: what a policy is tried on before anybody's jobs depend on it.

Policies that were learned read their weights when they are first offered a job; so they do it here, and not in a round.
"""

from __future__ import annotations

from functools import cache

from trimtab_policy import catalog
from trimtab_policy.specs import TrainingSpec
from trimtab_policy.types import Bounds, Job, Node, Requirements, Snapshot

MINUTE = 60.0


@cache
def trial() -> Snapshot:
    """One free node with eight GPUs, and a job that may have any number of them."""
    gpu = catalog.gpu("A100-SXM4-80GB")
    node = Node(
        name="trial",
        gpu_type=gpu.name,
        gpus=8,
        free_gpus=8,
        free_cpu_milli=128_000,
        free_memory=1 << 40,
        free_pods=100,
    )
    job = Job(
        uid="trial",
        namespace="trial",
        name="trial",
        model=catalog.model("gpt2"),
        training=TrainingSpec(sequence_length=1024, global_batch_size=64, steps=1000),
        requirements=Requirements(gpus=Bounds(1, node.gpus)),
        created=0.0,
    )
    return Snapshot(time=MINUTE, nodes=(node,), jobs=(job,), gpu_types={gpu.name: gpu})
