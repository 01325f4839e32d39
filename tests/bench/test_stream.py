"""The same jobs under each scheduler: what is drawn, what is seen of pods, and what becomes of it."""

from __future__ import annotations

import asyncio
import math
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hack.bench.__main__ import Part, measure
from hack.bench.peers import kept, stream
from hack.bench.peers.stream import (
    ELASTIC,
    MOLDABLE,
    TINY,
    Gang,
    Quality,
    Size,
    Story,
    Stream,
    Watcher,
    chosen,
    gangs,
    paced,
    pods,
    quality,
    table,
    varied,
)
from rich.console import Console

from trimtab import names
from trimtab_local.control_plane.cluster import LocalCluster


def gang(name: str, gpus: int = 16) -> Gang:
    return Gang(name, 0.0, 10.0, gpus, {})


def pod(gang: str, rank: int, gpus: int = 8, phase: str = "Running", node: str = "a") -> dict[str, Any]:
    container = {"resources": {"limits": {names.NVIDIA_GPU: str(gpus)}}}
    return {
        "metadata": {"name": f"{gang}-{rank}", "labels": {names.LABEL_JOB: gang}},
        "spec": {"nodeName": node, "containers": [container]},
        "status": {"phase": phase},
    }


def test_jobs_of_fixed_size_come_one_after_the_other_and_are_the_same_each_time() -> None:
    drawn = gangs(Size(jobs=40))
    assert drawn == gangs(Size(jobs=40))
    assert {each.gpus for each in drawn} <= {1, 2, 4, 8, 16, 32}
    assert [each.arrival for each in drawn] == sorted(each.arrival for each in drawn)
    assert all(0 < each.seconds < 600 for each in drawn), "of real time: it is waited for"
    for each in drawn:
        assert each.job["spec"]["resources"]["gpus"] == {"min": each.gpus, "max": each.gpus}
        assert each.job["spec"]["elasticity"] == {"policy": "Fixed"}
        made = [task.body for task in pods(each, "other")]
        assert (
            sum(int(one["spec"]["containers"][0]["resources"]["limits"][names.NVIDIA_GPU]) for one in made) == each.gpus
        )
        assert {one["spec"]["schedulerName"] for one in made} == {"other"}


def test_what_may_vary_starts_with_half_to_twice_of_that() -> None:
    [each] = gangs(Size(jobs=1))
    assert varied(each, "trimtab", 60.0) == each.job
    for contestant in (MOLDABLE, ELASTIC):
        gpus = varied(each, contestant, 60.0)["spec"]["resources"]["gpus"]
        assert gpus == {"min": max(1, each.gpus // 2), "max": 2 * each.gpus}
    assert varied(each, MOLDABLE, 60.0)["spec"]["elasticity"] == {"policy": "Moldable"}


def test_what_changes_while_it_runs_is_kept_for_ten_minutes_of_its_own_time() -> None:
    [each] = gangs(Size(jobs=1))
    elasticity = varied(each, ELASTIC, 60.0)["spec"]["elasticity"]
    assert elasticity == {"policy": "Elastic", "checkpoint": {"resharding": True}, "minRuntimeSeconds": 10}
    assert paced(60.0)["TRIMTAB_ELASTICITY__INTERVAL_SECONDS"] == "1.0"
    assert paced(60.0)["TRIMTAB_PREEMPTION__PER_JOB_PER_HOUR"] == "120"


def test_a_gang_begins_when_its_last_pod_is_bound_and_ends_with_its_last_one() -> None:
    story, begun = Story(), list[str]()
    watcher = Watcher(story, [gang("a")], lambda each, _: begun.append(each.name))
    watcher.see("ADDED", pod("a", 0, node=""), 1.0)
    watcher.see("MODIFIED", pod("a", 0), 2.0)
    watcher.see("MODIFIED", pod("a", 0), 2.5)
    assert (story.whole, begun) == ({}, [])
    watcher.see("MODIFIED", pod("a", 1), 3.0)
    assert (story.whole, begun, watcher.pods_of("a")) == ({"a": 3.0}, ["a"], ["a-0", "a-1"])
    watcher.see("MODIFIED", pod("a", 0, phase="Succeeded"), 13.0)
    assert story.ended == {}
    watcher.see("MODIFIED", pod("a", 1, phase="Succeeded"), 14.0)
    watcher.see("DELETED", pod("a", 1, phase="Succeeded"), 15.0)
    assert story.ended == {"a": 14.0}
    assert [(each.moment, each.gpus) for each in story.changes] == [(2.0, 8), (3.0, 8), (13.0, -8), (14.0, -8)]


def test_what_is_held_by_half_a_gang_is_held_in_vain() -> None:
    story = Story(born={"a": 0.0, "b": 0.0})
    watcher = Watcher(story, [gang("a"), gang("b", 8)], lambda *_: None)
    watcher.see("MODIFIED", pod("a", 0), 0.0)
    watcher.see("MODIFIED", pod("b", 0), 0.0)
    watcher.see("MODIFIED", pod("b", 0, phase="Succeeded"), 10.0)
    watcher.see("MODIFIED", pod("a", 1), 10.0)
    for rank in range(2):
        watcher.see("MODIFIED", pod("a", rank, phase="Succeeded"), 20.0)
    found = quality("other", [gang("a"), gang("b", 8)], story, 24, 99.0, 3600.0)
    assert (found.ended, found.avg_jct, found.p95_jct, found.makespan) == (2, 15.0, 20.0, 20.0)
    assert found.in_vain == pytest.approx(8 * 10 / (24 * 20))
    assert found.idle == pytest.approx(8 / 24), "while `a` waited, of 24 GPUs 8 were free"


def test_who_has_not_ended_when_patience_has_counts_as_ending_then() -> None:
    story = Story(born={"a": 0.0}, changes=[])
    found = quality("other", [gang("a")], story, 16, 50.0, 3600.0)
    assert (found.ended, found.avg_jct, found.idle, found.in_vain) == (0, 50.0, 1.0, 0.0)


def test_a_gang_whose_size_is_ours_to_choose_holds_nothing_in_vain_that_anybody_could_tell() -> None:
    found = quality(ELASTIC, [gang("a")], Story(born={"a": 0.0}, ended={"a": 1.0}), 16, 1.0, 3600.0)
    assert math.isnan(found.in_vain)
    out = StringIO()
    Console(file=out, width=80).print(table(Stream(TINY, [found])))
    assert "trimtab elastic" in out.getvalue()
    assert "nan" not in out.getvalue()


def test_we_take_part_in_four_ways() -> None:
    assert chosen(["bare", "volcano", "trimtab"]) == ["trimtab", "trimtab best_fit", MOLDABLE, ELASTIC, "volcano"]


def test_an_interrupted_stream_goes_on_and_one_that_is_done_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "directory", lambda: tmp_path)
    ran = list[str]()

    async def go_on(found: Stream, of: object, left: list[str], programs: object, file: kept.Kept[Stream]) -> None:
        ran.append(left[0])
        found.found.append(Quality(left[0], 1, 1, 0.1, 0.1, 0.1, 0.0, 0.0))
        file.write(found)

    monkeypatch.setattr(stream, "_go_on", go_on)
    for _ in range(3):
        found = asyncio.run(stream.measure(TINY, ["trimtab", "podgroups"], {}))
    assert (ran, [each.contestant for each in found.found]) == (["trimtab", "podgroups"], ["trimtab", "podgroups"])
    asyncio.run(stream.measure(TINY, ["trimtab", "podgroups"], {}, fresh=True))
    assert ran[2:] == ["trimtab"]


@pytest.mark.long
@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_all_jobs_end_under_everybody(
    cluster: LocalCluster, state_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "directory", lambda: tmp_path)
    report = asyncio.run(measure({Part.STREAM}, 1, tiny=True))
    assert report.stream
    assert not report.stream.left_out
    assert [each.contestant for each in report.stream.found] == [*chosen(["trimtab"]), "podgroups"]
    for each in report.stream.found:
        assert each.ended == each.jobs == TINY.jobs, each.contestant
        assert each.avg_jct > 0
