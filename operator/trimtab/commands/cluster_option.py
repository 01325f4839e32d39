"""A cluster as somebody types it: `H100-SXM5-80GB=64,GB200-186GB=72x4`. All GPUs are free, and nothing else runs."""

from __future__ import annotations

import time

import msgspec

from trimtab.errors import UsageError
from trimtab_policy.sim.typed_cluster import ClusterError, typed
from trimtab_policy.types import Snapshot


def snapshot(text: str) -> Snapshot:
    """The cluster of `TYPE=COUNT` or `TYPE=COUNTxPER_NODE`, separated by commas, as it is now.

    Raises UsageError for what cannot be read, and for a type that nobody knows.
    """
    try:
        return msgspec.structs.replace(typed(text), time=time.time())
    except ClusterError as error:
        raise UsageError(f"--gpus {error}") from error
