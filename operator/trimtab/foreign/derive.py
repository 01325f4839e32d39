"""What follows for sure from what a job states: sums, quotients, and what its trainer's own rules say."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeAlias

from trimtab.foreign.arguments import Stated
from trimtab.foreign.job import number
from trimtab.foreign.tables import trainers
from trimtab.names import GROUP

Follows: TypeAlias = Callable[[str, int, str], None]


def derive(fields: dict[str, Stated], trainer: str) -> tuple[str, ...]:
    """Add what follows for sure; the names of what was added."""
    before = {*fields}

    def follows(field: str, value: int, source: str) -> None:
        if value > 0 and field not in fields:
            fields[field] = Stated(str(value), source)

    nodes, each, gpus = (number(fields, name) for name in ("nodes", "gpus_per_node", "gpus"))
    if gpus and nodes and each and not fields["gpus"].source.startswith(("--set", GROUP)):
        del fields["gpus"]  # what starts processes may start fewer than there are GPUs
        before.remove("gpus")
    follows("gpus", nodes * each, "nodes × GPUs of a node")
    if gpus and each and gpus % each == 0:
        follows("nodes", gpus // each, "GPUs / GPUs of a node")
    if gpus and nodes and gpus % nodes == 0:
        follows("gpus_per_node", gpus // nodes, "GPUs / nodes")
    gpus, length = number(fields, "gpus"), number(fields, "sequence_length")
    batch = number(fields, "global_batch_tokens")
    if length and batch % length == 0:
        follows("global_batch_size", batch // length, "tokens of a step / sequence length")
    _derive_data(fields, gpus, follows)
    alone = trainers().trainers[trainer].data_only if trainer else False
    if alone and not fields.keys() & {"tensor", "pipeline", "context"}:
        follows("data", gpus, f"{trainer} divides data only")
    micro, data, turns = (number(fields, name) for name in ("micro_batch_size", "data", "gradient_accumulation"))
    follows("global_batch_size", micro * data * turns, "micro-batch × data degree × accumulation")
    samples, batch = number(fields, "samples"), number(fields, "global_batch_size")
    if samples and batch:
        follows("steps", -(-samples // batch), "samples / global batch size")
    if trainer == "megatron" and "gated_ffn" not in fields:
        follows("ffn_hidden_size", 4 * number(fields, "hidden_size"), "Megatron-LM: 4 × hidden size")
    return tuple(sorted({*fields} - before))


def _derive_data(fields: dict[str, Stated], gpus: int, follows: Follows) -> None:
    tensor, pipeline, context = (number(fields, name) for name in ("tensor", "pipeline", "context"))
    shard, replicate = (fields[name].value if name in fields else "" for name in ("data_shard", "data_replicate"))
    if tensor and pipeline and gpus % (tensor * pipeline * (context or 1)) == 0:
        follows("data", gpus // (tensor * pipeline * (context or 1)), "GPUs / other degrees")
    elif re.fullmatch("[0-9]{1,6}", shard) and re.fullmatch("[0-9]{1,6}", replicate or "1"):
        follows("data", int(shard) * int(replicate or "1"), "shard × replicate degree")
    if "sharding" not in fields and (kind := fields.get("distributed_type")) and kind.value.casefold() == "fsdp":
        fields["sharding"] = kind
    if "sharding" in fields:
        first = re.split(r"[ ,]", fields["sharding"].value.casefold().replace("-", "_"))[0]
        stage = _STAGES.get(first)
        if stage is not None and fields.get("zero_stage", Stated("1", "")).value == "1":
            fields["zero_stage"] = Stated(str(stage), fields["sharding"].source)


_STAGES: Final = {
    "full_shard": 3,
    "hybrid_shard": 3,
    "fsdp": 3,
    "fsdp2": 3,
    "optim_grads_params": 3,
    "shard_grad_op": 2,
    "optim_grads": 2,
    "optim": 1,
    "no_shard": 0,
    "full": 3,
    "1": 3,  # as accelerate and PyTorch number their strategies
    "2": 2,
    "3": 0,
    "ddp": 0,
}
