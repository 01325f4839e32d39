"""Cards and drivers that fail at any moment and say anything: the backend reads on, and raises nothing."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.agent.nvml.conftest import Boot

from trimtab.agent.backend import Happened, known

LOST = (Happened("Lost"),)


@pytest.mark.parametrize("calls", range(0, 100, 5))
def test_a_card_may_die_between_any_two_calls(boot: Boot, calls: int) -> None:
    """While it is found, or while it is read after that; the others are read all the same."""
    machine = boot("h100x8")
    machine.scenario.set("gpu 3", dies__after=calls)
    readings = [machine.read() for _ in range(20)]
    assert all(reading.error == "" for reading in readings)
    others = [gpu for reading in readings for gpu in reading.gpus if gpu.index != 3]
    assert len(others) == 7 * len(readings)
    assert all(known(gpu.power) and not gpu.happened for gpu in others)
    ends = [gpu.happened for gpu in readings[-1].gpus if gpu.index == 3]
    assert ends in ([], [LOST])  # nobody knows a card that never said its name
    machine.scenario.set("gpu 3", dies__after=None)
    machine.backend.close()
    assert [gpu.happened for gpu in machine.read(10.0).gpus] == [()] * 8


@pytest.mark.parametrize("calls", range(0, 60, 3))
def test_links_to_a_card_that_dies_while_they_are_counted_stay_as_they_were(boot: Boot, calls: int) -> None:
    machine = boot("h100x8")
    machine.read()
    machine.scenario.set("gpu 0", nvlink__down="0")
    machine.scenario.set("gpu 3", dies__after=calls)
    links = machine.read(10.0).links
    assert links[1][0] == links[0][1] == "NV17"
    assert {links[0][3], links[3][0]} <= {"NV17", "NV18"}
    assert links[1][3] == "NV18"


@pytest.mark.parametrize("calls", range(0, 700, 47))
def test_a_driver_may_go_away_between_any_two_calls(boot: Boot, calls: int) -> None:
    machine = boot("h100x8")
    machine.scenario.set("node", dies__after=calls)
    readings = [machine.read() for _ in range(9)]
    assert all(bool(reading.error) != bool(reading.gpus) for reading in readings)
    assert "different versions" in readings[-1].error
    machine.scenario.set("node", dies__after=None)
    assert [gpu.happened for gpu in machine.read(10.0).gpus] == [()] * 8


NUMBERS = ["utilization.gpu", "memory.total", "memory.used", "temperature", "power", "power.limit", "clock.sm"]
NUMBERS += ["throttle", "ecc.corrected", "ecc.uncorrected", "nvlink.tx", "pcie.tx", "pcie.generation", "pcie.width"]
TEXTS = [
    "rows",
    "nvlink.count",
    "nvlink.peers",
    "nvlink.down",
    "near",
    "mig",
    "mig.max",
    "part",
    "process",
    "processes",
]
TEXTS += ["events", "name", "uuid", "pci", "numa", "cpus", "status", "dying"]
ERRORS = ["!NOT_SUPPORTED", "!NO_PERMISSION", "!GPU_IS_LOST", "!UNKNOWN", "!NO_DATA", "!NOT_FOUND", "!TIMEOUT"]
WORDS = ["", "-1", "0", "1", "nonsense", "1 2 3 4", "0-7", "MIG-1 1g.5gb 4864 1 1", str(2**32 - 1), str(2**64 - 1)]
ANSWERS = st.dictionaries(
    st.sampled_from(NUMBERS + TEXTS),
    st.sampled_from(ERRORS) | st.sampled_from(WORDS) | st.integers(0, 2**64).map(str),
    max_size=8,
)


@given(ANSWERS, ANSWERS)
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_a_card_says_all_are_read(boot: Boot, first: dict[str, str], later: dict[str, str]) -> None:
    machine = boot("h100x8")
    for answers in (first, later):
        machine.scenario.set("gpu 3", **{key.replace(".", "__"): answer for key, answer in answers.items()})
        reading = machine.read(10.0)
        assert reading.error == ""
        assert len([gpu for gpu in reading.gpus if known(gpu.power)]) >= 7
        assert len({gpu.index for gpu in reading.gpus}) == len(reading.gpus)
        assert len(reading.links) == len(reading.gpus)
        for gpu in reading.gpus:
            numbers = [value for name in gpu.__struct_fields__ if isinstance(value := getattr(gpu, name), float)]
            assert not any(number < 0 for number in numbers if number is not gpu.temperature)
            assert not gpu.sm_utilization > 1
    machine.backend.close()
