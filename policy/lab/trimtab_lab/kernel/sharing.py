"""Processor sharing: every job runs at once, at the same fraction of its speed. Round robin with an endless cycle rate.

With C GPUs and jobs that ask for g_j each, all run at the rate min(1, C / sum of g_j). In virtual time, which passes at
that rate, every job ends at its arrival plus its work, so that one heap finds the next end: O(log n) per event.
"""

from __future__ import annotations

import numpy as np

from trimtab_lab.kernel.heap import Floats, Ints, pop, push
from trimtab_lab.numba_cache import jit


@jit
def processor_sharing(submitted: Floats, gpus: Ints, work: Floats, capacity: float) -> Floats:
    """When each job ends. All (jobs,), by ascending submission; `work` in seconds alone on the cluster."""
    count = len(submitted)
    finished = np.empty(count)
    ends, present, busy = np.empty(count), np.empty(count, dtype=np.int64), 0
    now, virtual, asked, arrived = 0.0, 0.0, 0, 0
    while arrived < count or busy > 0:
        rate = min(1.0, capacity / asked) if busy > 0 else 1.0
        end = now + (ends[0] - virtual) / rate if busy > 0 else np.inf
        if arrived < count and submitted[arrived] <= end:
            virtual += (submitted[arrived] - now) * rate
            now = submitted[arrived]
            busy = push(ends, present, busy, virtual + work[arrived], arrived)
            asked += gpus[arrived]
            arrived += 1
        else:
            now, virtual, job = end, ends[0], present[0]
            busy = pop(ends, present, busy)
            asked -= gpus[job]
            virtual = 0.0 if busy == 0 else virtual  # small numbers stay exact
            finished[job] = now
    return finished
