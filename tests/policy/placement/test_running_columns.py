"""Running jobs as columns: what `runtime` says of each of them; and whatever was known before, as from scratch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.builders import A100, NOW, T4, node, running, snapshot
from tests.policy.scheduling.crowds import crowds

from trimtab_policy.placement.node_columns import columns
from trimtab_policy.placement.releases import expected_end
from trimtab_policy.placement.running_columns import RunningColumns, running_columns
from trimtab_policy.placement.runtime import due
from trimtab_policy.types import Job, Snapshot

MOMENTS = st.sampled_from([None, NOW - 7200.0, NOW, NOW + 30.0, NOW + 1e12, math.nan, math.inf])


@st.composite
def said(draw: st.DrawFn, job: Job) -> Job:
    """The job with whatever may be said of its times."""
    if job.placement is None:
        return job
    return replace(
        job,
        expected_finish=draw(MOMENTS),
        started=draw(st.sampled_from([None, NOW - 3600.0, NOW])),
        stoppable_from=draw(st.sampled_from([None, NOW - 1, NOW + 1])),
        resuming=draw(st.sampled_from([0.0, 20.0])),
        steps_done=draw(st.sampled_from([0, 500, 1 << 40])),
    )


@st.composite
def told(draw: st.DrawFn) -> Snapshot:
    now = draw(crowds())
    jobs = tuple(draw(said(job)) for job in now.jobs)
    kinds = dict(now.gpu_types) if draw(st.booleans()) else {A100: now.gpu_types[A100]} if A100 in now.gpu_types else {}
    return replace(now, jobs=jobs, gpu_types=kinds, speedup=draw(st.sampled_from([1.0, 60.0])))


def may_be_touched(now: Snapshot, job: Job) -> bool:
    """It computes, nothing forbids it yet, and it does not end sooner than it would have restarted."""
    runs = job.started is not None and job.resuming == 0 and job.movable_from <= now.time
    return runs and worth_it(now, job)


def may_be_stopped(now: Snapshot, job: Job) -> bool:
    """That, or it should compute by now, and does not."""
    overdue = job.stoppable_from is not None and job.stoppable_from <= now.time
    return may_be_touched(now, job) or (overdue and worth_it(now, job))


def worth_it(now: Snapshot, job: Job) -> bool:
    end, held = due(job, now.time), job.placement
    lasts = end is None or end > now.time + job.restart_seconds / now.speedup
    return lasts and held is not None and held.gpu_type in now.gpu_types


@given(told())
def test_columns_say_of_each_job_what_is_said_of_it_alone(now: Snapshot) -> None:
    found = running_columns(now)
    assert list(found.jobs) == [job for job in now.jobs if job.placement]
    alone = [due(job, now.time) for job in found.jobs]
    assert [None if math.isnan(end) else end for end in found.due(now.time).tolist()] == alone
    ends = [expected_end(now, job, job.placement) for job in found.jobs if job.placement]
    assert found.expected_end(now).tolist() == ends
    unproven = [job.started is not None and not job.steps_done for job in found.jobs]
    assert (~np.isnan(found.unproven)).tolist() == unproven
    assert found.may_be_touched(now).tolist() == [may_be_touched(now, job) for job in found.jobs]
    assert found.may_be_stopped(now).tolist() == [may_be_stopped(now, job) for job in found.jobs]
    assert [found.jobs[i].uid for i in np.argsort(found.rank).tolist()] == sorted(job.uid for job in found.jobs)


def what_is_said(found: RunningColumns, now: Snapshot) -> list[tuple[object, ...]]:
    """Everything of each job, without numbers that stand for names."""
    held, kinds = found.held(columns(now.nodes).index), {number: name for name, number in found.kinds.items()}
    begin, nothing = held.begin.tolist(), np.zeros_like(held.gpus)
    parts = [
        tuple(part[first:last].tolist() for part in (held.rows, held.gpus, *(held.host or (nothing, nothing))))
        for first, last in pairwise(begin)
    ]
    lines = [held.lines[line] for line in held.line.tolist()]
    assert held.line_of_share.tolist() == np.repeat(held.line, np.diff(held.begin)).tolist()
    assert {*held.lines} == {*lines}
    return list(
        zip(
            *(
                np.nan_to_num(each, nan=-1.0).tolist()
                for each in (found.finish, found.started, found.computing, found.unproven)
            ),
            [kinds[kind] for kind in found.kind.tolist()],
            *(each.tolist() for each in (found.gpus, found.priority, found.told, found.begun)),
            *(found.due(now.time).astype(str).tolist(), found.rank.tolist(), held.whole.tolist()),
            lines,
            parts,
            strict=True,
        )
    )


@given(told(), told(), st.data())
def test_what_was_known_of_jobs_that_go_on_makes_no_difference(
    before: Snapshot, now: Snapshot, data: st.DataObject
) -> None:
    some = [job for job in before.jobs if job.placement]
    others = [job for job in now.jobs if job.placement]
    jobs: Sequence[Job] = data.draw(st.permutations([*some, *others]))
    jobs = jobs[: data.draw(st.integers(0, len(jobs)))]
    known = RunningColumns(some)
    if data.draw(st.booleans()):
        known.held(columns(now.nodes).index)
    assert what_is_said(RunningColumns(jobs, known), now) == what_is_said(RunningColumns(jobs), now)


def test_the_columns_of_the_very_same_jobs_are_the_very_same() -> None:
    gangs = [running("a", {"n1": 4}), running("b", {"n2": 4})]
    first = running_columns(snapshot([node("n1"), node("n2")], gangs))
    again = running_columns(snapshot([node("n1", free=0), node("n2")], [*gangs]))
    assert again is first
    assert running_columns(snapshot([node("n1"), node("n2")], [replace(gangs[0]), gangs[1]])) is not first


def test_places_of_nodes_are_told_anew_where_nodes_are_others() -> None:
    gang = running("a", {"n1": 4, "n2": 4})
    rows = [
        running_columns(snapshot(nodes, [gang])).held(columns(snapshot(nodes).nodes).index).rows.tolist()
        for nodes in ([node("n1"), node("n2")], [node("n0", T4), node("n1"), node("n2")], [node("n2")])
    ]
    assert rows == [[0, 1], [1, 2], [0]]
