"""Who is imitated in `trimtab/RLAlloc-v0`: experts that read a state and act on the job that it offers.

The interface is that of seed 001's README: `get_demonstration(state) -> action`. Its own experts sort the events of a
profiler trace; these schedule jobs. `EXPERTS` holds them by name: add your own to it.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trimtab_lab.environments.rlalloc import AGE_RANK, DURATION_RANK, SCALARS, WISH

State = NDArray[np.float32]
Action = NDArray[np.float32]


class Expert(Protocol):
    """Anything that knows what to do in a state."""

    def get_demonstration(self, state: State) -> Action:
        """(3,) shares of GPU memory, cores and memory for the job that the state offers; zeros leave it waiting."""
        ...


class FirstComeFirstServed:
    """The oldest job, when all that it wishes is free; the others wait behind it."""

    def get_demonstration(self, state: State) -> Action:
        """All that the job wishes if it is the oldest, else nothing."""
        return _if_first(state, AGE_RANK)


class ShortestJobFirst:
    """The shortest of the waiting jobs, when all that it wishes is free."""

    def get_demonstration(self, state: State) -> Action:
        """All that the job wishes if it is the shortest, else nothing."""
        return _if_first(state, DURATION_RANK)


class RoundRobinExpert:
    """Whichever job's turn it is, with what it wishes or what is left of that."""

    def get_demonstration(self, state: State) -> Action:
        """All that the job wishes: the environment offers jobs in turn, and cuts a grant to what is free."""
        return state[-SCALARS:][WISH].astype(np.float32)


EXPERTS: dict[str, Expert] = {
    "sjf": ShortestJobFirst(),
    "fcfs": FirstComeFirstServed(),
    "round_robin": RoundRobinExpert(),
}


def free(state: State) -> NDArray[np.float32]:
    """(3,) shares of GPU memory, cores and memory that no job holds: the newest entries of the histories."""
    used: NDArray[np.float32] = state[:-SCALARS].reshape(3, -1)[:, -1]
    return 1 - used


def _if_first(state: State, rank: int) -> Action:
    scalars = state[-SCALARS:]
    wish = scalars[WISH].astype(np.float32)
    fits = bool((wish <= free(state) + 1e-5).all())
    return wish if scalars[rank] == 0 and fits else np.zeros(3, dtype=np.float32)
