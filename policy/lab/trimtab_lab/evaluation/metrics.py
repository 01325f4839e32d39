"""What a run was worth: one row of figures, for all its jobs or for those that are measured.

How they are defined, where the field knows several ways:

- JCT is completion less submission. A job that was not finished when the run was cut off counts with the time that it
  has been there, a lower bound; `unfinished` says how many did. Jobs that had not even arrived by then are in no figure
  but `not_arrived`.
- Queueing is all time without GPUs, also after a preemption. Slowdown is JCT over time with GPUs, each job's at least 1
  and that time at least 10 s (bounded slowdown, Feitelson 2001), of finished jobs.
- Utilisation is GPU-time held over GPU-time there; goodput-weighted only that part in which a job computed and whose
  work was not lost. A job's part is taken to be the same all the time that it holds GPUs.
- Fragmentation is that of FGD (Weng et al., ATC 2023): all free GPUs of a node are fragments for a pod that does not
  fit on it, none for one that does; averaged over the pods of the workload. Here it is GPU-time of fragments over
  GPU-time free; those of a failed node are free. A pod competes for the nodes of the GPU type that it ran on.
- Energy is that of GPUs while held: a computing GPU draws its rated power, one that waits (restart, rest of a round)
  `IDLE_POWER` of it. Neither servers nor free GPUs are counted, nor that some work draws less than the rated power.
- Finish-time fairness rho is JCT over what it would have been alone on a fair share (Themis, NSDI 2020), where known:
  on 1/N of the cluster, N being the mean number of jobs that were there while it was (Sia, SOSP 2023, equation 3). That
  N is of the policy's own run: one that lets queues grow makes fair shares smaller and its own rho lower, so rho is to
  be read together with JCT.
- The cluster is watched from the first submission to the end of the run; where only some jobs are measured, from the
  first to the last submission of those, so that neither an empty nor a draining cluster counts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from trimtab_policy.sim.result import Run

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

IDLE_POWER = 0.15
"""Of the rated power, drawn by a GPU that is held and does not compute: an assumption, datasheets do not give it."""
BRIEF = 10.0
"""Seconds below which a job's time with GPUs does not count in its slowdown."""
HOUR = 3600.0
_JOULES_PER_KWH = 3.6e6
_SAME = 1e-6
"""Relative difference up to which two sums of the same GPU-time are equal, and seconds up to which moments are."""

_Figures = dict[str, Any]
"""Fields of `Summary`."""


class InconsistentRun(ValueError):
    """A run whose records and spans contradict each other, or a selection that leaves no job."""


class Summary(Struct, frozen=True):
    """Figures of one run; hours unless the name says otherwise, None where nothing is known. One row of a table."""

    jobs: int
    unfinished: int
    not_arrived: int
    """Further jobs, which would have come after the run was cut off."""
    avg_jct_h: float
    p50_jct_h: float
    p90_jct_h: float
    p99_jct_h: float
    avg_queue_h: float
    p99_queue_h: float
    bounded_slowdown: float | None
    """Mean over finished jobs."""
    makespan_h: float
    """From the first submission to the last end; to the end of the run if jobs are unfinished."""
    gpu_hours_per_job: float
    restarts_per_job: float
    lost_gpu_hours: float
    """GPU time of work that failures took away, from all jobs of the run."""
    utilisation: float | None
    goodput_utilisation: float | None
    fragmentation: float | None
    """Part of the free GPU-time on nodes that are too full for the pod that wants it."""
    energy_kwh: float
    worst_rho: float | None
    p99_rho: float | None
    unfair_fraction: float | None
    """Share of jobs with rho above 1."""
    deadline_hits: float | None
    """Share of the jobs with a deadline that met it; unfinished ones did not."""
    decision_ms_p50: float | None
    decision_ms_p99: float | None
    cpu_seconds: float


def summary(run: Run, measured: BoolArray | None = None) -> Summary:
    """The figures of the jobs in `measured` (n,), of all if None.

    Raises InconsistentRun if no job is measured, spans and records disagree about the GPU-time of a job, or a node
    lent more GPUs than it has.
    """
    jobs, spans = _jobs(run), _spans(run)
    _check_gpu_time(run, jobs, spans)
    chosen = np.ones(jobs.submitted.size, dtype=bool) if measured is None else np.asarray(measured, dtype=bool)
    here = _arrived(run)
    not_arrived, chosen = int((chosen & ~here).sum()), chosen & here
    if not chosen.any():
        raise InconsistentRun("no job is measured: the run has none, the mask selects none, or none of them arrived")
    held = np.zeros(len(run.jobs))
    np.add.at(held, spans.job, spans.end - spans.begin)
    mine = _Jobs(*(column[chosen] for column in jobs))
    window = _window(run, mine, measured is not None)
    return Summary(
        jobs=mine.submitted.size,
        unfinished=int(np.isnan(mine.finished).sum()),
        not_arrived=not_arrived,
        **_times(run, mine, held[chosen]),
        gpu_hours_per_job=float(mine.gpu_seconds.mean() / HOUR),
        restarts_per_job=float(mine.restarts.mean()),
        lost_gpu_hours=run.lost_gpu_seconds / HOUR,
        **_cluster(run, jobs, spans, window),
        energy_kwh=_energy(run, jobs, spans, chosen),
        **_fairness(run, mine),
        deadline_hits=_deadline_hits(mine),
        decision_ms_p50=_percentile(np.array(run.decision_seconds) * 1e3, 50),
        decision_ms_p99=_percentile(np.array(run.decision_seconds) * 1e3, 99),
        cpu_seconds=run.cpu_seconds,
    )


# --- columns -------------------------------------------------------------------------------------------
class _Jobs(NamedTuple):
    """`Run.jobs` as columns (n,), NaN for None."""

    submitted: FloatArray
    finished: FloatArray
    gpu_seconds: FloatArray
    productive: FloatArray
    restarts: FloatArray
    isolated: FloatArray
    deadline: FloatArray


class _Spans(NamedTuple):
    """`Run.spans` as columns (s,), and their shares one by one (p,)."""

    job: IntArray
    begin: FloatArray
    end: FloatArray
    kind: IntArray
    """GPU type, as an index into the sorted names of the cluster's types."""
    gpus: FloatArray
    share_span: IntArray
    share_node: IntArray
    """Index into the cluster's nodes."""
    share_gpus: IntArray


def _jobs(run: Run) -> _Jobs:
    rows = [
        (
            job.submitted,
            np.nan if job.finished is None else job.finished,
            job.gpu_seconds,
            job.productive_gpu_seconds,
            job.restarts,
            job.isolated_seconds,
            np.nan if job.deadline is None else job.deadline,
        )
        for job in run.jobs
    ]
    return _Jobs(*np.array(rows, dtype=np.float64).reshape(-1, len(_Jobs._fields)).T)


def _arrived(run: Run) -> BoolArray:
    """(n,) false for those that were still to come when the run was cut off."""
    return np.array([job.started is not None or job.submitted < run.end for job in run.jobs], dtype=bool)


def _spans(run: Run) -> _Spans:
    types = {name: index for index, name in enumerate(sorted(run.cluster.gpu_types))}
    nodes = {node.name: index for index, node in enumerate(run.cluster.nodes)}
    rows = [(span.job, span.begin, span.end, types[span.gpu_type], len(span.shares)) for span in run.spans]
    table = np.array(rows, dtype=np.float64).reshape(-1, 5)
    parts = [(nodes[share.node], share.gpus) for span in run.spans for share in span.shares]
    shares = np.array(parts, dtype=np.int64).reshape(-1, 2)
    of_share = np.repeat(np.arange(len(rows)), table[:, 4].astype(np.int64))
    gpus = np.bincount(of_share, shares[:, 1], minlength=len(rows)).astype(np.float64)
    job, kind = table[:, 0].astype(np.int64), table[:, 3].astype(np.int64)
    return _Spans(job, table[:, 1], table[:, 2], kind, gpus, of_share, shares[:, 0], shares[:, 1])


def _check_gpu_time(run: Run, jobs: _Jobs, spans: _Spans) -> None:
    held = np.bincount(spans.job, spans.gpus * (spans.end - spans.begin), minlength=jobs.submitted.size)
    wrong = np.flatnonzero(np.abs(held - jobs.gpu_seconds) > _SAME * np.maximum(1.0, jobs.gpu_seconds))
    if wrong.size:
        job = wrong[0]
        raise InconsistentRun(
            f"{run.policy}: job {run.jobs[job].uid} held GPUs for {held[job]:g} GPU-seconds by its spans,"
            f" {jobs.gpu_seconds[job]:g} by its record ({wrong.size} such jobs)"
        )


# --- figures of jobs -----------------------------------------------------------------------------------
def _until(run: Run, jobs: _Jobs) -> FloatArray:
    """(n,) when each job ended, or the run was cut off."""
    return np.where(np.isnan(jobs.finished), run.end, jobs.finished)


def _times(run: Run, jobs: _Jobs, held: FloatArray) -> _Figures:
    """`held` (n,): seconds with GPUs, which may last longer than the job where rounds are kept."""
    until, done = _until(run, jobs), ~np.isnan(jobs.finished)
    jct = until - jobs.submitted
    queue = np.maximum(0.0, jct - held)
    slowdown = np.maximum(1.0, jct[done] / np.maximum(held[done], BRIEF))
    median, high, highest = np.percentile(jct, (50, 90, 99)) / HOUR
    return {
        "avg_jct_h": float(jct.mean() / HOUR),
        "p50_jct_h": float(median),
        "p90_jct_h": float(high),
        "p99_jct_h": float(highest),
        "avg_queue_h": float(queue.mean() / HOUR),
        "p99_queue_h": float(np.percentile(queue, 99) / HOUR),
        "bounded_slowdown": float(slowdown.mean()) if slowdown.size else None,
        "makespan_h": float((until.max() - jobs.submitted.min()) / HOUR),
    }


def _fairness(run: Run, jobs: _Jobs) -> _Figures:
    known = jobs.isolated > 0
    rho = (_until(run, jobs) - jobs.submitted)[known] / jobs.isolated[known]
    return {
        "worst_rho": _percentile(rho, 100),
        "p99_rho": _percentile(rho, 99),
        "unfair_fraction": float((rho > 1 + _SAME).mean()) if rho.size else None,
    }


def _deadline_hits(jobs: _Jobs) -> float | None:
    due = ~np.isnan(jobs.deadline)
    return float((jobs.finished[due] <= jobs.deadline[due]).mean()) if due.any() else None


def _percentile(values: FloatArray, percent: float) -> float | None:
    return float(np.percentile(values, percent)) if values.size else None


# --- figures of the cluster ----------------------------------------------------------------------------
def _window(run: Run, measured: _Jobs, only_some: bool) -> tuple[float, float]:
    """Time in which the cluster is watched."""
    end = measured.submitted.max() if only_some else run.end
    return float(measured.submitted.min()), float(end)


def _cluster(run: Run, jobs: _Jobs, spans: _Spans, window: tuple[float, float]) -> _Figures:
    there = sum(node.gpus for node in run.cluster.nodes) * (window[1] - window[0])
    if there <= 0:
        return dict.fromkeys(("utilisation", "goodput_utilisation", "fragmentation"))
    inside = spans.gpus * np.maximum(0.0, np.minimum(spans.end, window[1]) - np.maximum(spans.begin, window[0]))
    return {
        "utilisation": float(inside.sum() / there),
        "goodput_utilisation": float((inside * _part(jobs.productive, jobs)[spans.job]).sum() / there),
        "fragmentation": _fragmentation(run, spans, window),
    }


def _part(seconds: FloatArray, jobs: _Jobs) -> FloatArray:
    """(n,) GPU-seconds of each job as a part of those that it held; 0 if it held none."""
    return np.divide(seconds, jobs.gpu_seconds, out=np.zeros_like(seconds), where=jobs.gpu_seconds > 0)


def _energy(run: Run, jobs: _Jobs, spans: _Spans, chosen: BoolArray) -> float:
    """kWh. Lost work was computed, too: it is spread over the jobs by what they held and did not use."""
    rated = np.array([run.cluster.gpu_types[name].power_watts for name in sorted(run.cluster.gpu_types)])
    unused = jobs.gpu_seconds - jobs.productive
    lost = min(1.0, run.lost_gpu_seconds / unused.sum()) if unused.sum() > 0 else 0.0
    computing = _part(jobs.productive + lost * unused, jobs)[spans.job]
    watts = rated[spans.kind] * (IDLE_POWER + (1 - IDLE_POWER) * computing)
    joules = watts * spans.gpus * (spans.end - spans.begin)
    return float(joules[chosen[spans.job]].sum() / _JOULES_PER_KWH)


def _fragmentation(run: Run, spans: _Spans, window: tuple[float, float]) -> float | None:
    """GPU-time of fragments over GPU-time free; None if none was ever free, or no pod ran."""
    node, free, seconds = _free(run, spans, window)
    types = sorted(run.cluster.gpu_types)
    kind = np.array([types.index(each.gpu_type) for each in run.cluster.nodes], dtype=np.int64)[node]
    too_large = _too_large(run, spans, len(types), int(max(free.max(initial=0), spans.share_gpus.max(initial=0))))
    total = float((free * seconds).sum())
    if total <= 0 or not spans.job.size:
        return None
    return float((free * seconds * too_large[kind, free]).sum() / total)


def _free(run: Run, spans: _Spans, window: tuple[float, float]) -> tuple[IntArray, IntArray, FloatArray]:
    """Stretches of time in which a node's free GPUs did not change: (node, free GPUs, seconds), each (e,)."""
    nodes = len(run.cluster.nodes)
    begin, end = (np.clip(times, *window)[spans.share_span] for times in (spans.begin, spans.end))
    node = np.concatenate((np.arange(nodes), spans.share_node, spans.share_node))
    when = np.concatenate((np.full(nodes, window[0]), begin, end))
    total = np.array([each.gpus for each in run.cluster.nodes], dtype=np.int64)
    change = np.concatenate((total, -spans.share_gpus, spans.share_gpus))
    # at one moment GPUs are given back before they are taken
    order = np.lexsort((-change, when, node))
    node, when, change = node[order], when[order], change[order]
    # every node gives back all that it lends, so what the nodes before it add up to is their GPUs
    before = np.concatenate(([0], np.cumsum(total)))[node]
    free = np.cumsum(change) - before
    last = np.append(node[1:] != node[:-1], True)
    until = np.where(last, window[1], np.append(when[1:], 0.0))
    _check_lent(run, node, free, until - when)
    return node, np.maximum(0, free), until - when


def _check_lent(run: Run, node: IntArray, free: IntArray, seconds: FloatArray) -> None:
    wrong = np.flatnonzero((free < 0) & (seconds > _SAME * max(1.0, run.end)))
    if wrong.size:
        there = run.cluster.nodes[node[wrong[0]]]
        raise InconsistentRun(f"{run.policy}: {there.name} lent {there.gpus - free[wrong[0]]} of its {there.gpus} GPUs")


def _too_large(run: Run, spans: _Spans, types: int, most: int) -> FloatArray:
    """(types, most + 1): share of the pods that ran on a type which are larger than so many GPUs.

    Each job counts with the pods of its first start, so that restarts do not make it more popular.
    """
    order = np.lexsort((spans.begin, spans.job))
    first = order[np.unique(spans.job[order], return_index=True)[1]]
    pods = np.isin(spans.share_span, first)
    counts = np.zeros((types, most + 1))
    np.add.at(counts, (spans.kind[spans.share_span[pods]], spans.share_gpus[pods]), 1)
    number = counts.sum(axis=1, keepdims=True)
    larger = number - counts.cumsum(axis=1)
    return np.asarray(np.divide(larger, number, out=np.zeros_like(counts), where=number > 0))
