"""The benchmark of the simulator runs, at toy size."""

from __future__ import annotations

import asyncio
from io import StringIO
from pathlib import Path

import msgspec
from hack.bench import simulator
from hack.bench.__main__ import Part, measure
from hack.bench.report import Report, goals, show
from rich.console import Console

from trimtab_lab.kernel import Discipline


def test_jobs_and_steps_are_measured_and_drawn(tmp_path: Path) -> None:
    report = asyncio.run(measure({Part.SIMULATOR}, 1, tiny=True))
    speeds = report.simulator
    assert speeds
    for discipline in Discipline:
        assert [cost.jobs for cost in speeds.of(discipline)] == [100, 10_000]
        assert all(cost.cpu_seconds > 0 for cost in speeds.of(discipline))
    assert [each.copies for each in speeds.cluster] == [4]
    assert speeds.cluster[0].steps_per_second > 0
    assert "steps of Cluster-v0 per CPU second" in {goal.what for goal in goals(report)}
    out = StringIO()
    show(report, Console(file=out, width=200))
    assert "easy_backfill" in out.getvalue()
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report
    simulator.picture(speeds, tmp_path / "costs.png")
    assert (tmp_path / "costs.png").read_bytes().startswith(b"\x89PNG")


def test_growth_is_the_exponent_of_cost() -> None:
    costs = [simulator.Cost(Discipline.FCFS, jobs, 1e-9 * jobs**1.5) for jobs in (100, 1000, 10_000)]
    assert abs(simulator.Speeds(costs, []).growth(Discipline.FCFS) - 1.5) < 1e-9
