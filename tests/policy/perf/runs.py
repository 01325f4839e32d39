"""Tables of made-up runs, as people would write them down."""

from __future__ import annotations

from collections.abc import Mapping

from trimtab_policy.perf import measured
from trimtab_policy.perf.measured import Measurements

Cells = dict[str, str]


def cells(**other: object) -> Cells:
    """A row of Llama 2 7B on eight A100; keywords replace or add cells."""
    row: dict[str, object] = {
        "source_kind": "ours",
        "framework": "torchtitan",
        "gpu_type": "A100-SXM-80GB",
        "gpus_per_node": 8,
        "n_gpus": 8,
        "layers": 32,
        "hidden": 4096,
        "heads": 32,
        "ffn_hidden": 11008,
        "glu": 1,
        "vocab": 32000,
        "seq_len": 4096,
        "global_batch": 64,
        "micro_batch": 1,
        "zero_or_fsdp": "FSDP",
        "act_recompute": "none",
        "precision": "bf16",
        "step_time_s": 4.0,
    }
    return {key: str(value) for key, value in (row | other).items()}


def runs(*rows: Mapping[str, str]) -> Measurements:
    """These rows, read."""
    return measured.collect(rows)
