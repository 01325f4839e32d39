"""What went wrong is remembered while the machine runs, and no longer."""

from __future__ import annotations

import pytest

from trimtab.agent import wire
from trimtab.agent.backend import Gpu, Happened, NodeReading
from trimtab.agent.digest import Digest, NodeState, report
from trimtab.agent.faults import Faults, seconds

T0 = seconds("2026-11-22T02:00:00Z")


def gpu(index: int, *happened: Happened) -> Gpu:
    return Gpu(f"GPU-{index}", index, product="H100", happened=happened)


def kinds(faults: Faults, index: int = 0) -> list[tuple[str, int, int]]:
    return [(fault.kind, fault.code, fault.count) for fault in faults.of(f"GPU-{index}")]


def told(faults: Faults, *, boot: str = "boot-1", **gpus: tuple[wire.WireFault, ...]) -> wire.WireStatus:
    """What an agent with these faults reported."""
    readings = [wire.WireGpuReading(uuid, int(uuid[-1]), faults=faults.of(uuid)) for uuid in faults.gpus]
    return wire.WireStatus(boot_id=boot, gpus=tuple(readings))


def test_faults_of_a_kind_are_counted_and_the_last_one_comes_first() -> None:
    faults = Faults()
    faults.take([gpu(0, Happened("Xid", 63), Happened("Xid", 63))], T0)
    faults.take([gpu(0)], T0 + 1)
    faults.take([gpu(0, Happened("UncorrectableEcc"))], T0 + 2)
    assert kinds(faults) == [("UncorrectableEcc", 0, 1), ("Xid", 63, 2)]
    assert faults.of("GPU-0")[0].time == "2026-11-22T02:00:02Z"


def test_a_gpu_that_is_lost_for_an_hour_was_lost_once() -> None:
    faults = Faults()
    for second in range(3600):
        faults.take([gpu(0, Happened("Lost"))], T0 + second)
    assert kinds(faults) == [("Lost", 0, 1)]
    assert faults.of("GPU-0")[0].time == "2026-11-22T02:59:59Z", "it is seen all the time"
    faults.take([gpu(0)], T0 + 4000)
    faults.take([gpu(0, Happened("Lost"))], T0 + 5000)
    assert kinds(faults) == [("Lost", 0, 2)]


def test_a_gpu_that_is_missing_is_lost_even_when_the_backend_does_not_say_so() -> None:
    faults = Faults()
    faults.take([gpu(0), gpu(1)], T0)
    faults.take([gpu(0)], T0 + 1)
    assert kinds(faults, 1) == [("Lost", 0, 1)]
    assert kinds(faults, 0) == []


def test_a_new_agent_knows_what_the_last_one_reported() -> None:
    before, after = Faults(), Faults()
    before.take([gpu(0, Happened("Xid", 48)), gpu(1, Happened("Lost"))], T0)
    assert after.carry(told(before), "boot-1")
    assert kinds(after) == [("Xid", 48, 1)]
    after.take([gpu(0, Happened("Xid", 48))], T0 + 60)
    assert kinds(after) == [("Xid", 48, 2)]
    assert kinds(after, 1) == [("Lost", 0, 1)], "it is still missing: the same loss"


def test_what_happened_before_the_last_report_could_be_read_is_added_to_it() -> None:
    before, after = Faults(), Faults()
    before.take([gpu(0, Happened("Xid", 48))], T0)
    after.take([gpu(0, Happened("Xid", 48))], T0 + 60)
    after.carry(told(before), "boot-1")
    assert kinds(after) == [("Xid", 48, 2)]
    assert after.of("GPU-0")[0].time == "2026-11-22T02:01:00Z"


@pytest.mark.parametrize("boot", ["boot-2", ""])
def test_a_machine_that_was_started_anew_has_no_faults(boot: str) -> None:
    before, after = Faults(), Faults()
    before.take([gpu(0, Happened("Xid", 48))], T0)
    assert not after.carry(told(before), boot)
    assert after.gpus == {}


def test_repaired_means_that_older_faults_are_gone_and_newer_ones_stay() -> None:
    faults = Faults()
    faults.take([gpu(0, Happened("Xid", 48))], T0)
    faults.take([gpu(0, Happened("Xid", 95))], T0 + 120)
    assert faults.mend("2026-11-22T02:01:00Z")
    assert kinds(faults) == [("Xid", 95, 1)]
    assert not faults.mend("2026-11-22T02:01:00Z"), "said already"
    assert not faults.mend("yesterday"), "no time"


def test_a_gpu_that_was_taken_out_is_forgotten_once_it_is_said_to_be_mended() -> None:
    faults = Faults()
    faults.take([gpu(0), gpu(1)], T0)
    faults.take([gpu(0)], T0 + 1)
    faults.mend("2026-11-22T02:10:00Z")
    faults.take([gpu(0)], T0 + 700)
    assert set(faults.gpus) == {"GPU-0"}


def test_a_gpu_that_is_still_lost_after_the_repair_is_reported_again() -> None:
    faults = Faults()
    faults.take([gpu(0, Happened("Lost"))], T0)
    faults.mend("2026-11-22T02:10:00Z")
    faults.take([gpu(0, Happened("Lost"))], T0 + 700)
    assert kinds(faults) == [("Lost", 0, 1)]


def test_faults_are_reported_even_while_no_gpu_can_be_read() -> None:
    digest = Digest(30.0)
    digest.take(NodeReading(gpus=(gpu(0, Happened("Xid", 94)), gpu(1))), 0.0, T0)
    state: NodeState = digest.take(NodeReading(error="no driver"), 1.0, T0 + 1)
    status = report(state, backend="nvml", period=30, boot_id="b")
    assert status.error == "no driver"
    assert [(each.uuid, each.faults[0].code) for each in status.gpus] == [("GPU-0", 94)]


# --- uncorrectable ECC errors of before the start ---------------------------------------------------------------------
def counted(count: float, *happened: Happened) -> Gpu:
    return Gpu("GPU-0", 0, ecc_uncorrected=count, happened=happened)


def reported(count: int | None, *faults: wire.WireFault) -> wire.WireStatus:
    reading = wire.WireGpuReading("GPU-0", 0, memory_errors=wire.MemoryErrors(uncorrected=count), faults=faults)
    return wire.WireStatus(boot_id="boot-1", gpus=(reading,))


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [(2, 3, 1), (2, 2, 0), (2, 1, 0), (0, 1, 1), (None, 1, 1), (None, 0, 0)],
    ids=["more", "as many", "the counter began anew", "the first", "none was read before", "none"],
)
def test_errors_while_the_agent_was_down_are_told_once(before: int | None, now: int, told: int) -> None:
    faults = Faults()
    faults.take([counted(now)], T0)
    assert kinds(faults) == [], "not before it is known what the last agent said"
    faults.carry(reported(before), "boot-1")
    for second in range(3):
        faults.take([counted(now)], T0 + second)
    assert kinds(faults) == [("UncorrectableEcc", 0, 1)] * told


@pytest.mark.parametrize("status", [None, reported(5)], ids=["no report", "a report of another boot"])
def test_a_machine_that_nobody_watched_tells_the_errors_of_before(status: wire.WireStatus | None) -> None:
    faults = Faults()
    assert not faults.carry(status, "boot-2")
    faults.take([counted(1)], T0)
    assert kinds(faults) == [("UncorrectableEcc", 0, 1)]


def test_errors_that_were_told_are_not_told_again() -> None:
    faults = Faults()
    faults.take([counted(0)], T0)
    faults.take([counted(1, Happened("UncorrectableEcc"))], T0 + 1)
    faults.carry(None, "boot-1")
    faults.take([counted(1)], T0 + 2)
    assert kinds(faults) == [("UncorrectableEcc", 0, 1)], "the backend told it before the last report was there"
    after = Faults()
    after.carry(reported(None, *faults.of("GPU-0")), "boot-1")
    after.take([counted(1)], T0 + 60)
    assert kinds(after) == [("UncorrectableEcc", 0, 1)], "the last report knew the fault, but not the counter"
