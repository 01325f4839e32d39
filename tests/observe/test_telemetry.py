"""What is believed of a report: numbers that can be so, one by one. Whatever an agent sends, reading never raises."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.builders import fault, gpu_reading, gpunode_object

from trimtab import names
from trimtab.kube.objects import GpuNodeObject, Meta
from trimtab.observe import telemetry
from trimtab.observe.telemetry import GpuFacts
from trimtab_policy.types import Readings


def read(**changes: Any) -> GpuFacts:
    """One GPU with these fields, as it is believed."""
    [gpu] = telemetry.read_telemetry(gpunode_object(gpus=[gpu_reading(**changes)])).gpus
    return gpu


def said(**changes: Any) -> tuple[str, ...]:
    return telemetry.read_telemetry(gpunode_object(gpus=[gpu_reading(**changes)])).implausible


def raw(status: bytes) -> GpuNodeObject:
    return GpuNodeObject(Meta(name="n1", uid="u"), msgspec.Raw(status))


# --- numbers -------------------------------------------------------------------------------------------------------
def test_numbers_are_read_in_base_units() -> None:
    gpu = read(smUtilizationPercent=97, memoryUsedBytes=40 << 30, powerMilliwatts=300_500, smClockMhz=1410)
    assert (gpu.utilization, gpu.memory_used, gpu.power, gpu.sm_clock) == (0.97, 40 << 30, 300.5, 1.41e9)
    assert (gpu.temperature, gpu.power_limit, gpu.throttled) == (35, 400, 0)


IMPOSSIBLE = [
    ("smUtilizationPercent", "utilization", [-1, 101, 1e9, "97", True, [], "NaN"]),
    ("memoryUtilizationPercent", "memory_utilization", [-1, 101]),
    ("tensorActivePercent", "tensor_active", [-1, 101]),
    ("dramActivePercent", "dram_active", [-1, 101]),
    ("temperatureCelsius", "temperature", [-51, 151, 10**40]),
    ("memoryTotalBytes", "memory_total", [0, -5, 10**15]),
    ("memoryUsedBytes", "memory_used", [-1, 82 << 30, 10**30]),
    ("powerMilliwatts", "power", [-1, 1_200_001, 1e300]),
    ("powerLimitMilliwatts", "power_limit", [0, 10**9]),
    ("smClockMhz", "sm_clock", [-1, 1_453, 9_000]),
    ("smClockMaxMhz", "sm_clock_max", [0, 3_501]),
    ("throttledPercent", "throttled", [-1, 101]),
]


@pytest.mark.parametrize(("field", "fact", "value"), [(f, fact, value) for f, fact, bad in IMPOSSIBLE for value in bad])
def test_a_number_that_cannot_be_is_left_out_by_itself_and_said(field: str, fact: str, value: object) -> None:
    gpu = read(**{field: value})
    assert getattr(gpu, fact) is math.nan
    assert [problem.split()[2] for problem in said(**{field: value})] == [field]
    others = {"utilization": 0.0, "temperature": 35.0, "throttled": 0.0}
    assert all(getattr(gpu, name) == known for name, known in others.items() if name != fact)


def test_a_number_that_is_absent_is_not_known_and_that_is_no_fault() -> None:
    gpu = read(smUtilizationPercent=None, memoryTotalBytes=None, temperatureCelsius=None)
    assert math.isnan(gpu.utilization)
    assert math.isnan(gpu.memory_total)
    assert said(smUtilizationPercent=None) == ()


def test_a_clock_is_believed_up_to_the_highest_that_the_card_has() -> None:
    assert read(smClockMhz=1_450, smClockMaxMhz=1_410).sm_clock == 1.45e9
    assert math.isnan(read(smClockMhz=9_000, smClockMaxMhz=9_000).sm_clock)
    assert read(smClockMhz=3_105, smClockMaxMhz=None).sm_clock == 3.105e9
    assert math.isnan(read(smClockMhz=3_501, smClockMaxMhz=None).sm_clock)


def test_power_peaks_above_its_limit_are_believed_up_to_three_times() -> None:
    assert read(powerMilliwatts=1_199_000).power == 1199
    assert read(powerLimitMilliwatts=None, powerMilliwatts=1_999_000).power == 1999
    assert math.isnan(read(powerLimitMilliwatts=None, powerMilliwatts=2_001_000).power)


# --- GPUs ----------------------------------------------------------------------------------------------------------
def test_gpus_without_identity_and_twins_are_left_out() -> None:
    twins = [gpu_reading(0), gpu_reading(1), gpu_reading(2, uuid="GPU-n1-0"), gpu_reading(1, uuid="other")]
    nameless = [gpu_reading(7, uuid=""), gpu_reading(-1), gpu_reading(2000), {"uuid": 5, "index": 3}, {}]
    told = telemetry.read_telemetry(gpunode_object(gpus=[*twins, *nameless]))
    assert [gpu.index for gpu in told.gpus] == [0, 1]
    assert len(told.implausible) == 7


def test_a_node_with_more_gpus_than_can_be_has_none() -> None:
    told = telemetry.read_telemetry(gpunode_object(gpus=65))
    assert told.gpus == ()
    assert told.implausible == ("65 GPUs, more than a node can have: all are ignored",)


def test_of_a_thousand_wrong_things_a_few_are_named() -> None:
    told = telemetry.read_telemetry(gpunode_object(gpus=[gpu_reading(index, smClockMhz=-1) for index in range(64)]))
    assert len(told.implausible) == telemetry.MAX_SAID + 1
    assert told.implausible[-1] == "and 56 more"


def test_pods_of_a_gpu_may_be_none_or_not_known() -> None:
    assert read().pods is None
    assert read(pods=[]).pods == ()
    assert read(pods=["a/b"]).pods == ("a/b",)
    assert read(pods="a/b").pods is None
    assert said(pods=[1]) == ("GPU 0: pods is no list of words",)


# --- faults --------------------------------------------------------------------------------------------------------
def test_faults_are_read_with_their_times() -> None:
    [xid, lost] = read(faults=[fault(code=79), fault("Lost", time="2026-01-02T04:00:00+01:00")]).faults
    assert (xid.kind, xid.code, xid.time) == ("Xid", 79, lost.time)


@pytest.mark.parametrize(
    "entry",
    [
        fault("Melted"),
        fault("Xid", 0),
        fault("Xid", -79),
        fault("Xid", 10**9),
        fault("Lost", 79),
        fault("Lost", time="yesterday"),
        fault("Lost", time="NaN"),
        {"kind": ["Lost"]},
        {},
        "Lost",
        79,
        None,
    ],
)
def test_a_fault_that_makes_no_sense_is_none(entry: object) -> None:
    assert read(faults=[entry]).faults == ()
    assert said(faults=[entry]) == ("GPU 0: a fault of no known kind, code and time: it is ignored",)


def test_more_faults_than_an_agent_keeps_are_none() -> None:
    assert read(faults=[fault(code=79)] * 33).faults == ()
    assert read(faults="Lost").faults == ()


# --- the rest of the object ----------------------------------------------------------------------------------------
def test_a_report_says_how_often_it_comes() -> None:
    assert telemetry.read_telemetry(gpunode_object(periodSeconds=10)).period == 10
    assert telemetry.read_telemetry(gpunode_object(periodSeconds=0)).period == telemetry.DEFAULT_PERIOD
    assert telemetry.read_telemetry(gpunode_object(periodSeconds="often")).period == telemetry.DEFAULT_PERIOD


def test_what_we_said_ourselves_is_read_back_even_from_a_report_that_makes_no_sense() -> None:
    told = {"type": "Healthy", "status": "False", "reason": "XidFatal", "lastTransitionTime": "1970-01-01T00:01:00Z"}
    other = {"type": "Polished", "status": "True", "reason": "Shiny"}
    for changes in ({}, {"gpus": "eight"}):
        judged = telemetry.read_telemetry(gpunode_object(conditions=[other, told], **changes)).judged
        assert judged
        assert (judged.status, judged.reason, judged.since) == ("False", "XidFatal", 60)


def test_the_annotation_says_until_when_faults_are_mended() -> None:
    def repaired(value: str) -> float:
        return telemetry.read_telemetry(
            gpunode_object(metadata={"annotations": {names.ANNOTATION_REPAIRED: value}})
        ).repaired

    assert repaired("1970-01-01T00:01:00Z") == 60
    assert repaired("soon") == -math.inf


def test_an_object_without_status_has_no_readings() -> None:
    told = telemetry.read_telemetry(raw(b"{}"))
    assert (told.gpus, told.implausible, told.judged) == ((), (), None)


# --- in short ------------------------------------------------------------------------------------------------------
def test_policies_see_means_of_what_is_known() -> None:
    half = gpu_reading(0, smUtilizationPercent=100, memoryUsedBytes=40 << 30, dramActivePercent=60)
    dark = gpu_reading(1, smUtilizationPercent=None, memoryTotalBytes=None, temperatureCelsius=80, powerMilliwatts=None)
    means = telemetry.read_telemetry(gpunode_object(gpus=[half, dark])).means(arrived=5.0)
    assert means == Readings(1.0, 0.5, 0.3, 80, 0.15, 5.0)


def test_what_no_gpu_says_is_not_known_and_survives_a_dump() -> None:
    means = telemetry.read_telemetry(gpunode_object(gpus=[{"uuid": "a", "index": 0}])).means(arrived=5.0)
    assert means == Readings(arrived=5.0)
    assert msgspec.json.decode(msgspec.json.encode(means), type=Readings) == means


# --- anything at all -----------------------------------------------------------------------------------------------
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
FIELDS = sorted(set(gpu_reading()) | {"pods", "faults", "memoryErrors", "throttleReasons"})
GPU = st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=8)
STATUS = JSON | st.fixed_dictionaries({"gpus": st.lists(GPU | JSON, max_size=4)}, optional={"conditions": JSON})


@given(status=STATUS)
@example(status={"gpus": [{"uuid": "a", "index": 0, "faults": [[]], "memoryErrors": 5, "pods": {"a": 1}}]})
@example(status=[])
@example(status={"conditions": [{"type": "Healthy", "lastTransitionTime": "9999999-99"}]})
def test_any_json_is_read_without_a_word_of_complaint_from_python(status: object) -> None:
    told = telemetry.read_telemetry(raw(json.dumps(status).encode()))
    for gpu in told.gpus:
        shares = (gpu.utilization, gpu.memory_utilization, gpu.tensor_active, gpu.dram_active, gpu.throttled)
        assert all(math.isnan(share) or 0 <= share <= 1 for share in shares)
    told.means(arrived=0.0)


@given(status=st.binary(max_size=64))
@example(status=b"\xff")
@example(status=b"[" * 100_000)
@example(status=b'{"gpus":[{"uuid":"a","index":0,"smClockMhz":1e999}]}')
@example(status=b'{"gpus":[{"uuid":"a","index":0,"smClockMhz":NaN}]}')
@example(status=b'{"gpus":[{"uuid":"\xff","index":0}]}')
def test_nor_do_bytes_that_are_no_json_hurt(status: bytes) -> None:
    telemetry.read_telemetry(raw(status)).means(arrived=0.0)
