"""When a report is written: thresholds as a table, and what holds whatever the GPUs do."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.agent.backend import NA, Gpu, Happened, Mig, NodeReading, Process
from trimtab.agent.digest import Digest, GpuState, NodeState
from trimtab.agent.schedule import BURST, Bucket, Schedule, moved, urgent

GIB = float(1 << 30)
BASE = Gpu(
    uuid="GPU-0", index=0, product="H100", memory_total=80 * GIB, memory_used=40 * GIB, sm_utilization=0.5,
    memory_utilization=0.5, temperature=60.0, power=400.0, power_limit=700.0, sm_clock=1.8e9, sm_clock_max=2e9,
    memory_clock=2.6e9, throttle_reasons=(), nvlinks_active=18.0, nvlink_tx=50e9, pcie_width=16.0, ecc_corrected=10.0,
    ecc_uncorrected=0.0, row_remap_failed=False, pods=("a/b",), processes=(Process(1, GIB),),
)  # fmt: skip


def state(gpu: Gpu, throttled: float = 0.0, error: str = "", **faults: int) -> NodeState:
    counts = {("Xid", int(code[1:])): count for code, count in faults.items()}
    return NodeState(0.0, NodeReading(error=error), (GpuState(gpu, throttled, counts=counts),))


@pytest.mark.parametrize(
    ("field", "little", "much"),
    [
        ("sm_utilization", 0.59, 0.61),
        ("memory_utilization", 0.41, 0.39),
        ("temperature", 64.9, 65.1),
        ("power", 469.0, 471.0),
        ("memory_used", 43.9 * GIB, 44.1 * GIB),
        ("sm_clock", 1.61e9, 1.59e9),
        ("nvlink_tx", 74e9, 76e9),
        ("ecc_corrected", 109.0, 110.0),
        ("temperature", 60.0, NA),
        ("power_limit", 700.0, 500.0),
        ("throttle_reasons", (), ("HwThermalSlowdown",)),
        ("nvlinks_active", 18.0, 17.0),
        ("pcie_width", 16.0, 8.0),
        ("ecc_uncorrected", 0.0, 1.0),
        ("row_remap_failed", False, True),
        ("mig", (), (Mig("MIG-1", "3g.40gb"),)),
        ("pods", ("a/b",), ()),
        ("processes", (Process(1, 2 * GIB),), (Process(2, GIB),)),
        ("pcie_generation", 1.0, NA),
    ],
)
def test_a_reading_has_moved_beyond_its_threshold(field: str, little: object, much: object) -> None:
    here, there = (state(msgspec.structs.replace(BASE, **{field: value})) for value in (little, much))
    assert moved(state(BASE), here) == ""
    assert moved(state(BASE), there) == ("" if field == "pcie_generation" else field)


def test_what_is_not_known_twice_has_not_moved() -> None:
    unknown = state(Gpu("GPU-0", 0))
    assert moved(unknown, unknown) == ""
    assert moved(state(BASE), state(BASE, throttled=0.3)) == "throttled"


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (state(BASE), False),
        (state(BASE, x79=1), True),
        (state(BASE, error="no driver"), True),
        (state(msgspec.structs.replace(BASE, uuid="GPU-1")), True),
        (NodeState(0.0, NodeReading(), ()), True),
    ],
)
def test_faults_their_end_and_other_gpus_are_urgent(after: NodeState, expected: bool) -> None:
    assert urgent(state(BASE), after) is expected
    assert urgent(after, state(BASE)) is expected


def test_a_quiet_node_is_reported_every_period() -> None:
    schedule, written = Schedule(30.0, 10.0, tick=1.0), []
    for second in range(100):
        if schedule.due(state(BASE), float(second)):
            schedule.wrote(state(BASE), float(second))
            written.append(second)
    assert written == [0, 30, 60, 90]


def test_a_movement_waits_for_its_turn_and_a_fault_does_not() -> None:
    hot = msgspec.structs.replace(BASE, temperature=80.0)
    schedule = Schedule(30.0, 10.0)
    assert schedule.due(state(BASE), 0.0) == "first"
    schedule.wrote(state(BASE), 0.0)
    assert schedule.due(state(hot), 3.0) == ""
    assert schedule.due(state(hot, x48=1), 3.0) == "fault"
    schedule.wrote(state(hot, x48=1), 3.0)
    assert schedule.due(state(BASE, x48=1), 12.9) == ""
    assert schedule.due(state(BASE, x48=1), 13.0) == "moved"


def test_a_write_that_failed_is_tried_again_after_the_pause() -> None:
    schedule = Schedule(30.0, 10.0)
    assert schedule.due(state(BASE), 0.0) == "first"
    schedule.failed(until=4.0)
    assert schedule.due(state(BASE), 3.9) == ""
    assert schedule.due(state(BASE), 4.0) == "first"


@given(st.lists(st.floats(0, 30), max_size=200))
def test_a_bucket_gives_no_more_than_its_burst_and_one_each_period(gaps: list[float]) -> None:
    bucket, now, taken = Bucket(10.0), 0.0, []
    for gap in gaps:
        now += gap
        taken += [now] if bucket.take(now) else []
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            assert last - first + 1 <= BURST + (taken[last] - taken[first]) / 10.0 + 1e-6


EVENTS = st.tuples(
    st.floats(0.01, 20),
    st.sampled_from(["nothing", "xid", "ecc", "hot", "cold", "lost", "unread", "api down", "api up"]),
)


@given(st.lists(EVENTS, max_size=80))
def test_whatever_happens_writes_are_few_and_no_fault_is_lost(events: list[tuple[float, str]]) -> None:
    node = _Node()
    for elapsed, event in events:
        node.step(elapsed, event)
    node.api = True
    for _ in range(4):
        node.step(10.0, "nothing")
    assert node.reported == node.happened
    for first, began in enumerate(node.attempts):
        for count, ended in enumerate(node.attempts[first:], start=1):
            assert count <= BURST + (ended - began) / 10.0 + 1e-6


class _Node:
    """A node with one GPU, and what the API server has of it."""

    def __init__(self) -> None:
        self.api = True
        self.happened: dict[tuple[str, int], int] = {}
        self.reported: dict[tuple[str, int], int] = {}
        self.attempts: list[float] = []
        self._digest = Digest(30.0)
        self._schedule = Schedule(30.0, 10.0)
        self._now = 0.0
        self._lost = False

    def step(self, elapsed: float, event: str) -> None:
        self._now += elapsed
        self.api = {"api down": False, "api up": True}.get(event, self.api)
        happened = {"xid": Happened("Xid", 63), "ecc": Happened("UncorrectableEcc"), "lost": Happened("Lost")}.get(
            event
        )
        if happened and not (event == "lost" and self._lost):
            key = (happened.kind, happened.code)
            self.happened[key] = self.happened.get(key, 0) + 1
        if event != "unread":
            self._lost = event == "lost"
        gpu = msgspec.structs.replace(
            BASE, temperature={"hot": 95.0, "cold": 20.0}.get(event, 60.0), happened=(happened,) if happened else ()
        )
        reading = NodeReading(error="unread") if event == "unread" else NodeReading(gpus=(gpu,))
        state = self._digest.take(reading, self._now, self._now)
        if self._schedule.due(state, self._now):
            self.attempts.append(self._now)
            if self.api:
                self._schedule.wrote(state, self._now)
                self.reported = {key: count for each in state.gpus for key, count in each.counts.items()}
            else:
                self._schedule.failed(self._now + 1.0)
