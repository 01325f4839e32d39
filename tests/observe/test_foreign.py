"""Foreign load: what is busy without a pod counts as taken after a while, and no sooner does it count as free again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import gpu_reading, gpunode_object

from trimtab.observe import telemetry, unmanaged_load
from trimtab.observe.unmanaged_load import Foreign, ForeignLoad, HysteresisLevel
from trimtab.settings import TelemetrySettings

BUSY: dict[str, Any] = {"smUtilizationPercent": 90}
HOLDS: dict[str, Any] = {"memoryUsedBytes": 8 << 30}


def load(*gpus: dict[str, Any], before: ForeignLoad = unmanaged_load.NO_LOAD) -> ForeignLoad:
    readings = [gpu_reading(index, **changes) for index, changes in enumerate(gpus)]
    return unmanaged_load.load(
        telemetry.read_telemetry(gpunode_object(gpus=readings)).gpus, before, utilization=0.1, memory=0.05
    )


# --- busy ----------------------------------------------------------------------------------------------------------
def test_a_gpu_is_busy_that_computes_or_holds_memory() -> None:
    assert load({}, BUSY, HOLDS, BUSY | HOLDS).unclaimed == (1, 2, 3)


def test_a_gpu_that_nothing_is_known_of_is_not_busy() -> None:
    assert (
        load({"smUtilizationPercent": None, "memoryUsedBytes": None}, HOLDS | {"memoryTotalBytes": None})
        == ForeignLoad()
    )


def test_parts_of_a_gpu_are_no_concern_of_ours() -> None:
    assert load(BUSY | {"migEnabled": True}, BUSY | {"migEnabled": False}).unclaimed == (1,)


def test_a_busy_gpu_is_free_only_well_below_the_edge() -> None:
    near = {"smUtilizationPercent": 7}
    assert load(near).unclaimed == ()
    assert load(near, before=ForeignLoad(unclaimed=(0,))).unclaimed == (0,)
    assert load({"smUtilizationPercent": 5}, before=ForeignLoad(unclaimed=(0,))).unclaimed == ()


@pytest.mark.parametrize(
    ("gpus", "requested", "count"),
    [
        ([BUSY, BUSY, {}, {}], 0, 2),
        ([BUSY, BUSY, {}, {}], 1, 1),
        ([BUSY, BUSY, {}, {}], 4, 0),
        ([BUSY | {"pods": ["a/b"]}, BUSY | {"pods": []}], 1, 1),
        ([BUSY | {"pods": ["a/b"]}, BUSY | {"pods": []}], 2, 0),
        ([{"pods": ["a/b"]}, BUSY | {"pods": []}], 1, 1),
        ([BUSY | {"pods": []}, BUSY | {"pods": []}], 2, 0),
    ],
    ids=["nobody", "somebody", "all of it", "exactly", "agent behind the kubelet", "idle pod", "gang being bound"],
)
def test_busy_gpus_that_no_pod_accounts_for_are_foreign(gpus: list[dict[str, Any]], requested: int, count: int) -> None:
    assert load(*gpus).foreign(requested) == count


# --- levels --------------------------------------------------------------------------------------------------------
def follow(*looks: tuple[float, int], level: HysteresisLevel = unmanaged_load.NO_LEVEL) -> list[int]:
    values = []
    for now, raw in looks:
        level = level.follow(raw, now, seconds=60)
        values.append(level.value)
    return values


def test_a_level_rises_to_what_it_was_all_the_time() -> None:
    assert follow((0, 4), (30, 2), (60, 3)) == [0, 0, 2]


def test_a_level_falls_as_slowly() -> None:
    assert follow((0, 0), (30, 1), (60, 0), level=HysteresisLevel(4)) == [4, 4, 1]


def test_a_peak_and_a_gap_are_nothing() -> None:
    assert follow((0, 4), (30, 0), (60, 4), (119, 4)) == [0, 0, 0, 0]
    assert follow((0, 0), (30, 4), (60, 0), (119, 0), level=HysteresisLevel(4)) == [4, 4, 4, 4]


@given(raws=st.lists(st.integers(0, 8), min_size=1, max_size=40), start=st.integers(0, 8))
def test_a_level_is_never_above_or_below_all_that_was_seen(raws: list[int], start: int) -> None:
    values = follow(*((15.0 * index, raw) for index, raw in enumerate(raws)), level=HysteresisLevel(start))
    assert min((*raws, start)) <= min(values)
    assert max(values) <= max((*raws, start))


# --- nodes ---------------------------------------------------------------------------------------------------------
class Nodes:
    """Two nodes, of which `a` gets foreign load."""

    def __init__(self) -> None:
        self.foreign = Foreign(TelemetrySettings(foreign_seconds=60))
        self.fresh, self.room, self.requested = {"a", "b"}, 8, 0

    def take(self, name: str, *gpus: dict[str, Any]) -> None:
        readings = [gpu_reading(index, **changes) for index, changes in enumerate(gpus)]
        self.foreign.take(name, telemetry.read_telemetry(gpunode_object(gpus=readings)).gpus)

    def look(self, now: float) -> dict[str, int]:
        return dict(self.foreign.look(self.fresh.__contains__, lambda name: self.requested, self.room, now))


def test_load_counts_after_a_while_and_is_let_go_after_a_while() -> None:
    nodes = Nodes()
    assert nodes.look(0) == {}
    nodes.take("a", BUSY, BUSY)
    nodes.take("a", BUSY, BUSY)
    assert [nodes.look(now) for now in (0, 59, 60)] == [{}, {}, {"a": 2}]
    assert list(nodes.foreign.due()) == []
    nodes.take("a", {}, {})
    assert [nodes.look(now) for now in (70, 129, 130)] == [{"a": 2}, {"a": 2}, {}]


def test_after_a_start_what_is_busy_counts_at_once() -> None:
    nodes = Nodes()
    nodes.take("a", BUSY)
    assert nodes.look(0) == {"a": 1}


def test_a_pod_that_comes_or_goes_is_not_foreign() -> None:
    nodes = Nodes()
    nodes.look(0)
    nodes.take("a", BUSY, BUSY)
    assert nodes.look(10) == {}
    assert list(nodes.foreign.due()) == [70]
    nodes.requested = 2
    assert nodes.look(20) == {}
    assert list(nodes.foreign.due()) == []


def test_stale_readings_are_evidence_of_nothing_and_what_they_told_of_ends_after_a_while() -> None:
    nodes = Nodes()
    nodes.take("a", BUSY)
    assert nodes.look(0) == {"a": 1}
    nodes.fresh = {"b"}
    assert [nodes.look(now) for now in (90, 149)] == [{"a": 1}] * 2
    nodes.fresh = {"a", "b"}
    assert nodes.look(150) == {"a": 1}  # a gap is nothing
    nodes.fresh = {"b"}
    assert [nodes.look(now) for now in (200, 259, 260)] == [{"a": 1}, {"a": 1}, {}]


def test_the_last_report_of_a_dead_agent_makes_no_foreign_load_of_a_job_that_has_ended() -> None:
    nodes = Nodes()
    nodes.requested = 2
    for _ in range(3):
        nodes.take("a", BUSY, BUSY)
    assert nodes.look(0) == {}
    nodes.requested = 0
    assert [nodes.look(now) for now in (10, 70, 99)] == [{}] * 3
    nodes.take("a", BUSY, BUSY)  # it lives; this one may still have been read before the end
    assert nodes.look(100) == {}
    nodes.take("a", BUSY, BUSY)
    assert nodes.foreign.proven("a")
    assert nodes.look(110) == {"a": 2}


def test_no_more_nodes_count_than_there_is_room_for() -> None:
    nodes = Nodes()
    nodes.room = 1
    nodes.take("a", BUSY)
    nodes.take("b", BUSY)
    assert nodes.look(0) == {"a": 1}
    assert nodes.foreign.beyond == {"b": 1}
    nodes.room = 0
    assert nodes.look(600) == {"a": 1}
    nodes.room = 1
    nodes.take("b", BUSY)
    assert nodes.look(700) == {"a": 1, "b": 1}


def test_a_node_that_is_forgotten_is_free() -> None:
    nodes = Nodes()
    nodes.take("a", BUSY)
    assert nodes.look(0) == {"a": 1}
    nodes.foreign.forget("a")
    assert nodes.look(1) == {}
