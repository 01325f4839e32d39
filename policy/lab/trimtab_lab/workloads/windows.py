"""Windows of a trace for paired comparisons: the unit of every statistic.

Each window goes to every policy, with the same seed for whatever is drawn on the way (common random numbers): what the
arrivals do to the result is an order of magnitude more than what a policy does. Windows are equally long in jobs, are
brought to a stated load, and judge only the jobs in their middle: those at the beginning find an empty cluster, those
at the end one in which nothing arrives any more.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from trimtab_lab.workloads.trace import BoolArray, Trace

LARGEST_SHARE = 0.3
"""Of a window's work, what one job may have at most: else it alone sets the load, and the others find GPUs free."""


class Window(Struct, frozen=True, eq=False):
    """Jobs from time 0 on, and which of them count."""

    number: int
    trace: Trace
    measured: BoolArray
    seed: int
    """For everything random in its simulation, the same for all policies."""


def windows(
    trace: Trace,
    gpus: int,
    load: float,
    *,
    jobs: int = 500,
    count: int = 30,
    seed: int = 0,
) -> list[Window]:
    """`count` windows of `jobs` jobs at a stated load of a cluster of `gpus`, cut from a trace.

    The same arguments give the same windows. Raises ValueError where the trace is too short or its run times unknown.
    """
    seeds = np.random.SeedSequence(seed).generate_state(count)
    scaled = (rescale(each, gpus, load) for each in cut(trace, jobs, count, seed))
    return [Window(number, each, middle(len(each)), int(seeds[number])) for number, each in enumerate(scaled)]


def offered_load(trace: Trace, gpus: int) -> float:
    """Work of all jobs over what the GPUs could do while they arrive: sum of GPU-seconds / (GPUs x span)."""
    work = _work(trace)
    return work / (gpus * trace.span) if trace.span else float("inf")


def rescale(trace: Trace, gpus: int, load: float) -> Trace:
    """The same jobs from time 0 on, arrivals stretched or squeezed evenly until `offered_load` is `load`.

    Raises ValueError where there are no jobs, or all arrive at once: nothing can be stretched.
    """
    if not (gpus > 0 and 0 < load < np.inf):
        raise ValueError(f"load and gpus must be above 0, got {load} on {gpus} GPUs")
    if not len(trace):
        raise ValueError(f"{trace.source or 'trace'}: there are no jobs whose arrivals could be stretched")
    if not trace.span:
        raise ValueError(f"{trace.source or 'trace'}: all jobs arrive at once: there is no span to stretch")
    span = _work(trace) / (gpus * load)
    return trace.resubmitted((trace.submitted - trace.submitted[0]) * (span / trace.span))


def cut(trace: Trace, jobs: int, count: int, seed: int = 0) -> list[Trace]:
    """Different windows of consecutive jobs that have none in common, in the order of the trace.

    Windows in which one job has more than `LARGEST_SHARE` of the work are passed over. Raises ValueError if too few
    remain.
    """
    _check(jobs, count)
    pieces = [trace.take(slice(begin, begin + jobs)) for begin in range(0, len(trace) - jobs + 1, jobs)]
    even = [piece for piece in pieces if piece.gpu_seconds.max() <= LARGEST_SHARE * _work(piece)]
    if len(even) < count:
        there = (
            f"{len(even)} windows of {jobs} jobs ({len(pieces) - len(even)} more have one job with most of the work)"
        )
        raise ValueError(f"{trace.source or 'trace'}: has {there}, {count} asked for: take fewer or shorter ones")
    chosen = np.sort(np.random.default_rng(seed).choice(len(even), count, replace=False))
    return [even[number].from_zero() for number in chosen.tolist()]


def middle(jobs: int, part: float = 0.6) -> BoolArray:
    """Which jobs of a window, in the order of arrival, are in its middle part."""
    edge = round(jobs * (1 - part) / 2)
    place = np.arange(jobs)
    return (place >= edge) & (place < jobs - edge)


def _work(trace: Trace) -> float:
    work = float(trace.gpu_seconds.sum())
    if not work > 0:
        raise ValueError(
            f"{trace.source or 'trace'}: run times are unknown or there are no jobs, so there is no load to speak of"
        )
    return work


def _check(jobs: int, count: int) -> None:
    if jobs < 1 or count < 1:
        raise ValueError(f"windows and their jobs must be at least 1, got {count} windows of {jobs} jobs")
