"""Where runs are carried out: in processes of this machine, or on the machines of a Ray cluster; one thread each.

A run is a pure function of its scenario, so that the numbers are the same bit for bit wherever it is made. Outcomes
come as they are ready; who takes them can stop at any time.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

from trimtab_lab.evaluation.run_scenario import run_scenario
from trimtab_lab.evaluation.scenario import Scenario, ScenarioResult
from trimtab_lab.processes import connected, one_thread

Work = Callable[[Sequence[Scenario]], Iterator[ScenarioResult]]
"""Carries out scenarios; yields outcomes in any order."""


def processes(count: int) -> Work:
    """In `count` processes of this machine; in another one than this even if it is one.

    Libraries read how many threads they may use when they are loaded, and here they are.
    """

    def work(scenarios: Sequence[Scenario]) -> Iterator[ScenarioResult]:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(min(count, len(scenarios)), mp_context=context) as pool:
            with one_thread():  # the pool starts its processes when it is given work
                waiting = [pool.submit(run_scenario, scenario) for scenario in scenarios]
            try:
                for done in as_completed(waiting):
                    yield done.result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    return work


def ray_cluster(address: str) -> Work:
    """On a Ray cluster: `local` starts one on this machine, for as long as the work takes.

    Files that scenarios name must be there on every machine, under the same path. Raises ImportError without Ray.
    """

    import ray  # a quarter of a gigabyte: only for those who ask for it

    def work(scenarios: Sequence[Scenario]) -> Iterator[ScenarioResult]:
        with connected(ray, address):
            remote = ray.remote(run_scenario)
            waiting = [remote.remote(scenario) for scenario in scenarios]
            while waiting:
                [ready], waiting = ray.wait(waiting)
                yield ray.get(ready)

    return work
