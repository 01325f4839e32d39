"""Many plans at once: one float64 array per field, so that memory and time of thousands of plans are a few numpy calls.

Floats, because products of sizes (FLOPs of a step) pass 2^63, and degrees are exact in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab_policy.types import ParallelPlan, Recompute

Array = NDArray[np.float64]

NONE, SELECTIVE, FULL = range(3)
_RECOMPUTE = (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)


def recompute_code(recompute: Recompute) -> int:
    """NONE, SELECTIVE or FULL: how much is computed again, as an order."""
    return _RECOMPUTE.index(recompute)


class Plans(NamedTuple):
    """Columns of shape (n,) or (1,), one row a plan; the names are those of `ParallelPlan`."""

    data: Array
    tensor: Array
    pipeline: Array
    context: Array
    expert: Array
    micro_batch: Array
    zero_stage: Array
    recompute: Array
    """NONE, SELECTIVE or FULL."""
    virtual: Array
    """Model chunks per pipeline rank of the interleaved schedule; 1 for plain 1F1B, which is what plans use so far."""

    @property
    def gpus(self) -> Array:
        return self.data * self.tensor * self.pipeline * self.context

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> Plans:
        """The plans of these rows."""
        return Plans(*(column[rows] for column in self))

    def plan(self, row: int) -> ParallelPlan:
        """One row as a value."""
        return ParallelPlan(
            data=int(self.data[row]),
            tensor=int(self.tensor[row]),
            pipeline=int(self.pipeline[row]),
            context=int(self.context[row]),
            expert=int(self.expert[row]),
            micro_batch=int(self.micro_batch[row]),
            zero_stage=int(self.zero_stage[row]),
            recompute=_RECOMPUTE[int(self.recompute[row])],
        )


def columns(plans: Sequence[ParallelPlan]) -> Plans:
    """Columns of the given plans, all with the plain 1F1B schedule."""
    rows = [
        (p.data, p.tensor, p.pipeline, p.context, p.expert, p.micro_batch, p.zero_stage, recompute_code(p.recompute), 1)
        for p in plans
    ]
    table = np.array(rows, dtype=np.float64).reshape(-1, len(Plans._fields))
    return Plans(*(np.ascontiguousarray(column) for column in table.T))
