"""What goes to the API server: the same fields as the kind has, nothing unknown, never NaN."""

from __future__ import annotations

import json
import math
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.json import JSONSnapshotExtension

from trimtab.agent import wire
from trimtab.agent.backend import FaultKind, Gpu, Happened, Mig, NodeReading, Process
from trimtab.agent.digest import Digest, report
from trimtab.agent.plausible import BOUNDS
from trimtab.api import gpunode

FULL = Gpu(
    uuid="GPU-8f2a6c10-0b7d-4e55-9c31-5d1e00000000", index=0, product="NVIDIA H100 80GB HBM3",
    pci_bus="00000000:1B:00.0", numa_node=0.0, cpu_affinity="0-55,112-167",
    memory_total=85_520_809_984.0, memory_used=64_424_509_440.0,
    sm_utilization=0.96, memory_utilization=0.48, tensor_active=0.41, dram_active=0.38, temperature=61.0, power=640.5,
    power_limit=700.0, sm_clock=1.83e9, sm_clock_max=1.98e9, memory_clock=2.619e9, throttle_reasons=("SwPowerCap",),
    nvlinks_active=18.0, nvlinks=18.0, nvlink_tx=1.2e11, nvlink_rx=1.1e11, pcie_generation=5.0, pcie_generation_max=5.0,
    pcie_width=16.0, pcie_width_max=16.0, pcie_tx=2e9, pcie_rx=5e8, ecc_corrected=3.0, ecc_uncorrected=0.0,
    rows_remapped_corrected=1.0, rows_remapped_uncorrected=0.0, row_remap_pending=False, row_remap_failed=False,
    mig_enabled=False, pods=("team-a/train-0",), processes=(Process(41000, 63_753_420_800.0),),
    happened=(Happened("Xid", 63),),
)  # fmt: skip
CUT = Gpu("GPU-2", 2, product="NVIDIA A100-SXM4-40GB", mig_enabled=True, mig=(Mig("MIG-1", "3g.20gb"),), pods=())
READING = NodeReading("580.95.05", (FULL, Gpu("GPU-1", 1), CUT), (("X", "NV18", "SYS"),) * 3)


def status(reading: NodeReading) -> wire.WireStatus:
    return report(Digest(30.0).take(reading, 0.0, 1_795_000_000.0), backend="nvml", period=30.0, boot_id="b-1")


def sent(reading: NodeReading) -> Any:
    return json.loads(msgspec.json.encode(status(reading)))


def test_a_report_as_it_is_sent(snapshot: SnapshotAssertion) -> None:
    assert sent(READING) == snapshot(extension_class=JSONSnapshotExtension)


def test_the_kind_takes_it_and_loses_nothing() -> None:
    read = gpunode.GPUNodeStatus.model_validate(sent(READING))
    assert {key: value for key, value in read.to_wire().items() if value not in ("", [])}.keys() == sent(READING).keys()
    gpu = read.gpus[0]
    assert (gpu.sm_utilization_percent, gpu.power_milliwatts, gpu.sm_clock_mhz) == (96, 640_500, 1830)
    assert gpu.faults[0].code == 63


@pytest.mark.parametrize(
    ("ours", "kind"),
    [
        (wire.WireGpuReading, gpunode.GpuReading),
        (wire.WireFault, gpunode.Fault),
        (wire.Link, gpunode.GpuLink),
        (wire.MemoryErrors, gpunode.GpuMemoryErrors),
        (wire.WireMigInstance, gpunode.MigInstance),
        (wire.WireProcess, gpunode.GpuProcess),
    ],
)
def test_both_descriptions_of_the_kind_have_the_same_fields(ours: type[msgspec.Struct], kind: Any) -> None:
    assert {each.name for each in msgspec.structs.fields(ours)} == set(kind.model_fields)


def test_the_agent_leaves_the_conditions_to_the_controller() -> None:
    fields = {each.name for each in msgspec.structs.fields(wire.WireStatus)}
    assert fields == set(gpunode.GPUNodeStatus.model_fields) - {"conditions"}
    assert (wire.MAX_GPUS, wire.MAX_PROCESSES, wire.MAX_FAULTS) == (
        gpunode.MAX_GPUS, gpunode.MAX_PROCESSES, gpunode.MAX_FAULTS,
    )  # fmt: skip
    assert get_args(FaultKind) == get_args(gpunode.Fault.model_fields["kind"].annotation)


def test_what_is_not_known_is_left_out() -> None:
    unknown = sent(READING)["gpus"][1]
    assert unknown == {"uuid": "GPU-1", "index": 1}
    assert sent(READING)["gpus"][2]["pods"] == [], "no pod has it, which is something else than not knowing"


NUMBERS = st.dictionaries(st.sampled_from(sorted(BOUNDS)), st.floats(), max_size=8)
TEXTS = st.text(max_size=2000)


@given(st.lists(st.tuples(st.text(max_size=200), st.integers(-5, 2000), NUMBERS, TEXTS), max_size=80))
def test_whatever_a_driver_says_the_kind_takes_the_report(
    cards: list[tuple[str, int, dict[str, float], str]],
) -> None:
    gpus = tuple(
        Gpu(uuid, index, product=text, cpu_affinity=text, throttle_reasons=(text,) * 20, pods=(text,) * 70,
            processes=(Process(1, math.nan),) * 70, mig=(Mig(text, text),) * 20, **numbers)
        for uuid, index, numbers, text in cards
    )  # fmt: skip
    encoded = msgspec.json.encode(status(NodeReading(driver_version="5" * 3000, gpus=gpus)))
    gpunode.GPUNodeStatus.model_validate_json(encoded)
    uuids = [gpu["uuid"] for gpu in json.loads(encoded).get("gpus", [])]
    assert len(uuids) == len(set(uuids)), "the list is a map by UUID"


def test_a_long_list_of_faults_is_cut_to_the_latest() -> None:
    digest = Digest(30.0)
    for code in range(50):
        state = digest.take(NodeReading(gpus=(Gpu("u", 0, happened=(Happened("Xid", code),)),)), code, 1e9 + code)
    codes = [fault.code for fault in report(state, backend="nvml", period=30, boot_id="").gpus[0].faults]
    assert codes == list(range(49, 17, -1))
