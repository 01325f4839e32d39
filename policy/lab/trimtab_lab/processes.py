"""Work in other processes, of this machine or of a Ray cluster: one thread each, so that numbers are the same anywhere.

Libraries read how many threads they may use when they are loaded: what must not depend on that is done in a process of
its own. Sums in another order are other numbers.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")

STARTS = 3
"""Times that a cluster on this machine is begun: a busy machine has read its programs by the second time."""


@contextmanager
def one_thread() -> Iterator[None]:
    """What is started meanwhile computes with one thread."""
    before = dict(os.environ)
    os.environ.update(_ONE_THREAD)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def connected(ray: ModuleType, address: str) -> Iterator[None]:
    """Connect the module `ray` to a cluster until the end; `local` starts one on this machine for as long.

    Its tasks compute with one thread. Raises ConnectionError when nobody answers.
    """
    for left in reversed(range(STARTS if address == "local" else 1)):
        try:
            ray.init(
                address=address,
                log_to_driver=False,
                include_dashboard=False,
                logging_level=logging.ERROR,
                runtime_env={"env_vars": _ONE_THREAD},
            )
            break
        except Exception:  # Ray raises a bare one when its own processes took longer than 30 s to come up
            ray.shutdown()
            if not left:
                raise
    try:
        yield
    finally:
        ray.shutdown()
