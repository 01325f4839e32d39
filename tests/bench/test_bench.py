"""The benchmark runs, at toy size: every part measures something, and the report can be read and printed."""

from __future__ import annotations

import asyncio
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from hack.bench import artifact
from hack.bench.__main__ import SIA_DATA, Part, measure
from hack.bench.binding import TINY
from hack.bench.extender import KINDS
from hack.bench.online import Distance
from hack.bench.percentiles import spread
from hack.bench.report import Report, goals, show
from rich.console import Console

from trimtab_local.control_plane.cluster import LocalCluster


def test_percentiles_are_values_that_were_measured() -> None:
    found = spread(range(1, 101))
    assert (found.p50, found.p99, found.max) == (50, 99, 100)
    assert spread([7.0]).p99 == 7.0


def _shown(report: Report) -> str:
    out = StringIO()
    show(report, Console(file=out, width=200))
    return out.getvalue()


def test_decisions_and_rounds_are_measured_without_a_cluster() -> None:
    report = asyncio.run(measure({Part.DECISIONS, Part.ROUNDS}, 1, tiny=True))
    assert {line.load for line in report.decisions or ()} == {"empty", "half full", "full"}
    assert report.rounds
    assert report.rounds.unchanged.p50 > 0
    assert "best_fit" in _shown(report)


def test_what_is_learned_online_is_measured() -> None:
    report = asyncio.run(measure({Part.ONLINE}, 1, tiny=True))
    assert report.online
    found = {each.distance: each for each in report.online.learning}
    assert found.keys() == set(Distance)
    for distance in (Distance.SAME, Distance.LOCALITY, Distance.MODEL):
        assert found[distance].after < found[distance].before, distance
    assert found[Distance.SAME].after < found[Distance.TYPE].after
    assert found[Distance.SAME].covered > found[Distance.SAME].covered_before
    assert [loop.spread for loop in report.online.loops] == [0.4]
    assert all(loop.learned.low <= loop.learned.value <= loop.learned.high for loop in report.online.loops)
    assert "REPORTS" in _shown(report)
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report).online == report.online


@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_reasons_and_expected_starts_are_measured(cluster: LocalCluster, state_home: Path) -> None:
    report = asyncio.run(measure({Part.VERDICTS}, 1, tiny=True))
    found = report.verdicts
    assert found
    assert found.live
    assert sum(found.live.reasons.values()) == 7
    assert set(found.punctual) == {"best_fit", "fcfs", "easy_backfill"}
    assert all(0 < each.covered <= 1 for each in found.punctual.values())
    assert "EXPECTED / ACTUAL" in _shown(report)
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report


def test_giving_way_is_measured_in_the_simulator() -> None:
    report = asyncio.run(measure({Part.ROOM}, 1, tiny=True))
    assert report.room
    assert len(report.room.of("best_fit+controller")) == 3
    assert all(0 < result.utilisation <= 1 for result in report.room.results)
    assert "who gives way" in _shown(report)
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report).room == report.room


def test_what_tenants_teach_is_measured() -> None:
    report = asyncio.run(measure({Part.TENANTS}, 1, tiny=True))
    assert report.tenants
    assert [gain.namespaces for gain in report.tenants.gains] == [1, 3]
    assert report.tenants.gains[0].kept == 1, "one namespace learns as if there were one book"
    assert [lie.namespaces for lie in report.tenants.lies] == [3, 3, 3, 3]
    assert "GAIN KEPT" in _shown(report)
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report).tenants == report.tenants


@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_the_burden_of_a_crowd_is_measured(cluster: LocalCluster, state_home: Path) -> None:
    report = asyncio.run(measure({Part.BURDEN}, 1, tiny=True))
    found = report.burden
    assert found
    assert 0 < found.memory["alone"] <= found.most
    assert all(0 < each.p50 <= each.max for each in (found.alone, found.coming, found.crowded, found.anew))
    assert {when: 0 < each.p50 <= each.max for when, each in found.shown.items()} == dict.fromkeys(
        ("alone", "coming", "crowded", "anew"), True
    )
    assert "30 anew" in _shown(report)
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report


def test_plans_are_measured_for_every_batch() -> None:
    report = asyncio.run(measure({Part.PLANS}, 1, tiny=True))
    assert [found.batch for found in report.plans or ()] == [1024, 960]
    assert all(found.plans > 0 and found.all_types.p50 > 0 for found in report.plans or ())
    assert "one prediction" in _shown(report)


@pytest.mark.long
@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_every_contestant_binds_every_pod(cluster: LocalCluster, state_home: Path) -> None:
    report = asyncio.run(measure({Part.BINDING, Part.LATENCY, Part.OTHERS}, 1, tiny=True))
    assert report.binding
    for runs in (report.binding.whole, report.binding.bind):
        assert list(runs) == ["trimtab", "bare", "kube-scheduler"]
        assert all(run.rate > 0 for tries in runs.values() for run in tries)
    assert {"whole: Trimtab / bare binder", "bind: Trimtab / kube-scheduler"} <= {goal.what for goal in goals(report)}
    assert TINY.pods == 12
    assert report.others
    for waits in (report.others.ours, report.others.theirs):
        assert 0 < waits.planned.p50 < waits.whole.p50
    assert "BATCH JOB p50" in _shown(report)
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report


def test_every_kind_of_filter_request_is_measured_beside_an_empty_handler() -> None:
    report = asyncio.run(measure({Part.EXTENDER}, 1, tiny=True))
    assert report.extender
    assert all(getattr(report.extender, kind).p50 > 0 for kind in KINDS)
    assert {goal.goal for goal in goals(report)} == {1, 5}
    assert "÷ EMPTY HANDLER" in _shown(report)


@pytest.mark.long
@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_gangs_are_bound_in_every_way_that_there_is(cluster: LocalCluster, state_home: Path) -> None:
    report = asyncio.run(measure({Part.GANGS}, 1, tiny=True))
    assert report.gangs
    assert list(report.gangs.whole) == ["direct", "extender", "extender+groups", "kube-scheduler", "podgroup"]
    assert list(report.gangs.bind) == ["pinned", "pinned+extender", "free", "free+extender"]
    assert len(list(goals(report))) == 2
    assert "extender+groups" in _shown(report)
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report


@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_a_trace_goes_through_the_live_system_and_through_the_simulator(
    cluster: LocalCluster, state_home: Path
) -> None:
    report = asyncio.run(measure({Part.AGREEMENT}, 1, tiny=True))
    assert [found.policy for found in report.agreement or ()] == ["best_fit", "fcfs"]
    for found in report.agreement or ():
        assert 0 < found.without_launch.avg_jct <= found.simulated.avg_jct
        assert 0 < found.live.avg_jct <= found.live.makespan
    assert "best_fit: simulated / live avg JCT, % off" in _shown(report)


def test_the_artifact_is_compared_where_its_data_is(tmp_path: Path) -> None:
    report = asyncio.run(measure({Part.ARTIFACT}, 1, tmp_path, tiny=True))
    assert report.artifact is None
    if not artifact.available(SIA_DATA):
        pytest.skip(f"there is no {SIA_DATA}")
    found = asyncio.run(measure({Part.ARTIFACT}, 1, tiny=True))
    assert [line.reference.policy for line in found.artifact or ()] == ["gavel_fifo"]
    assert all(off <= goal for _, off, goal in artifact.goals(found.artifact or []))
    assert "gavel_fifo" in _shown(found)
