"""Garbage from drivers does not get past the agent."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.agent.backend import NA, Gpu
from trimtab.agent.plausible import BOUNDS, sane

NUMBERS = [each.name for each in msgspec.structs.fields(Gpu) if each.type is float]


def test_every_number_has_bounds() -> None:
    assert set(NUMBERS) == set(BOUNDS)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sm_utilization", 1e7),
        ("sm_utilization", -0.1),
        ("temperature", 2147483647.0),
        ("temperature", -273.0),
        ("power", 4_294_967_295.0),
        ("nvlinks_active", 255.0),
        ("pcie_generation", 0.0),
        ("ecc_corrected", float(1 << 63)),
        ("sm_clock", math.inf),
        ("sm_clock", 9e9),
        ("sm_clock_max", 9e9),
        ("temperature", 200.0),
        ("power_limit", 50_000.0),
    ],
)
def test_what_cannot_be_is_not_known(field: str, value: float) -> None:
    gpu, refused = sane(Gpu("u", 0, **{field: value}))
    assert math.isnan(getattr(gpu, field)) or not math.isfinite(value)
    assert refused == ((field,) if math.isfinite(value) else ())


def test_counters_that_are_read_one_after_the_other_may_be_a_little_off() -> None:
    gpu, refused = sane(Gpu("u", 0, sm_utilization=1.01, memory_total=100.0, memory_used=101.0))
    assert (gpu.sm_utilization, gpu.memory_used, refused) == (1.0, 101.0, ())


def test_a_clock_above_the_cards_highest_cannot_be() -> None:
    assert sane(Gpu("u", 0, sm_clock=2.0e9, sm_clock_max=1.98e9))[1] == ()
    gpu, refused = sane(Gpu("u", 0, sm_clock=2.5e9, sm_clock_max=1.98e9))
    assert math.isnan(gpu.sm_clock)
    assert refused == ("sm_clock",)


def test_more_memory_in_use_than_there_is_cannot_be() -> None:
    gpu, refused = sane(Gpu("u", 0, memory_total=100.0, memory_used=150.0))
    assert math.isnan(gpu.memory_used)
    assert refused == ("memory_used",)


@given(st.dictionaries(st.sampled_from(NUMBERS), st.floats()))
def test_what_is_left_is_within_bounds_or_not_known(numbers: dict[str, float]) -> None:
    gpu, _ = sane(Gpu("u", 0, **numbers))
    for field, (low, high) in BOUNDS.items():
        value = getattr(gpu, field)
        assert not math.isfinite(value) or low <= value <= high


def test_a_missing_reading_is_no_garbage() -> None:
    assert sane(Gpu("u", 0, temperature=NA))[1] == ()
