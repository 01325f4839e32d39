"""GPUs that do not exist behave as GPUs do: what runs on them shows, and what is injected goes wrong."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from trimtab.agent.backend import BackendError, Gpu, Happened, NodeReading
from trimtab.agent.fake import FakeBackend
from trimtab.agent.profile import FakeLoad, FakeNode, Injected, RunningPod, load_profile, parse_faults
from trimtab.agent.simulation import NUMBERS, THROTTLING, SimulatedNode
from trimtab_local.checkout import checkout

PROFILE = FakeNode("NVIDIA-H100-80GB-HBM3", gpus=8, seed=7, nvlinks=18, running=(RunningPod("team-a/train-0", 4),))


def node(**changes: Any) -> SimulatedNode:
    profile = replace(PROFILE, **changes)
    return SimulatedNode(profile, profile.spec, "n1")


def gpus(simulated: SimulatedNode, seconds: int, step: float = 1.0) -> list[tuple[Gpu, ...]]:
    return [simulated.read(step * tick).gpus for tick in range(seconds)]


def test_the_same_seed_node_and_moments_give_the_same_readings() -> None:
    assert node().read(0.0) == node().read(0.0)
    assert gpus(node(), 20)[-1] == gpus(node(), 20)[-1]
    assert gpus(node(), 20)[-1] != gpus(node(seed=8), 20)[-1]


def test_readings_follow_what_runs_on_the_node() -> None:
    simulated = node(running=())
    assert all(gpu.sm_utilization == 0 and gpu.pods == () for gpu in simulated.read(0.0).gpus)
    idle = simulated.read(1.0).gpus[0]
    simulated.running = (RunningPod("a/b", 2),)
    simulated.read(2.0)
    busy, warm = simulated.read(5.0).gpus[0], simulated.read(300.0).gpus[0]
    assert busy.sm_utilization > 0.8
    assert busy.pods == ("a/b",)
    assert idle.power < busy.power <= warm.power * 1.1
    assert idle.temperature < busy.temperature < warm.temperature - 5, "a heat sink takes its time"
    assert idle.memory_used < busy.memory_used < warm.memory_used
    assert busy.nvlink_tx > 0
    assert [gpu.sm_utilization > 0 for gpu in simulated.read(301.0).gpus] == [True, True] + [False] * 6


def test_pods_keep_their_gpus_when_others_come_and_go() -> None:
    simulated = node(running=(RunningPod("a/one", 2), RunningPod("a/two", 2)))
    simulated.read(0.0)
    simulated.running = (RunningPod("a/three", 1), RunningPod("a/two", 2))
    held = [gpu.pods for gpu in simulated.read(1.0).gpus]
    assert held[:5] == [("a/three",), (), ("a/two",), ("a/two",), ()]


def test_noise_is_as_large_lasting_and_correlated_as_the_profile_says() -> None:
    load = FakeLoad(utilization=0.5, noise=0.05, correlation=0.6, noise_seconds=15.0)
    read = np.array([[gpu.sm_utilization for gpu in each] for each in gpus(node(load=load, gpus=4), 4000, 5.0)])
    assert read.mean() == pytest.approx(0.5, abs=0.01)
    assert read.std() == pytest.approx(0.05, rel=0.1)
    correlation = np.corrcoef(read.T)[np.triu_indices(4, 1)]
    assert correlation.mean() == pytest.approx(0.6, abs=0.06)
    lag = np.corrcoef(read[:-1, 0], read[1:, 0])[0, 1]
    assert lag == pytest.approx(math.exp(-5 / 15), abs=0.05)


def after(*faults: Injected, seconds: float = 30.0) -> tuple[Gpu, list[Happened]]:
    """GPU 0 after some time with these faults, and all that it told."""
    simulated = node(faults=faults)
    readings = [simulated.read(float(second)).gpus[0] for second in range(int(seconds) + 1)]
    return readings[-1], [happened for gpu in readings for happened in gpu.happened]


@pytest.mark.parametrize(("code", "ecc", "remapped"), [(48, 1, 0), (63, 0, 1), (94, 1, 0), (95, 1, 0), (31, 0, 0)])
def test_an_xid_is_told_once_with_what_comes_with_it(code: int, ecc: int, remapped: int) -> None:
    gpu, told = after(Injected("xid", code=code))
    assert told == [Happened("Xid", code)]
    assert (gpu.ecc_uncorrected, gpu.rows_remapped_uncorrected) == (ecc, remapped)
    assert gpu.row_remap_pending is (code == 63)


@pytest.mark.parametrize("fault", [Injected("lost"), Injected("xid", code=79)])
def test_a_gpu_that_fell_off_the_bus_says_nothing_any_more(fault: Injected) -> None:
    gpu, told = after(fault, seconds=2)
    assert told.count(Happened("Lost")) == 3
    assert all(math.isnan(getattr(gpu, number)) for number in NUMBERS)
    assert gpu.uuid
    assert gpu.product == "NVIDIA H100 80GB HBM3"


def test_faults_of_reading() -> None:
    well, _ = after()
    nan, _ = after(Injected("nan"))
    assert all(math.isnan(getattr(nan, number)) for number in NUMBERS)
    partly, _ = after(Injected("nan", fields=("power",)))
    assert math.isnan(partly.power)
    assert partly.temperature == well.temperature
    assert after(Injected("garbage", fields=("temperature",), value=240.0))[0].temperature == 240.0
    stuck = node(faults=(Injected("stuck"),))
    assert len({each[0].sm_utilization for each in gpus(stuck, 30)}) == 1


def test_slow_and_throttled_cards_do_as_much_and_clock_lower() -> None:
    well, _ = after()
    slow, _ = after(Injected("slow", factor=0.5))
    hot, _ = after(Injected("thermalThrottle"))
    assert slow.sm_clock == pytest.approx(0.5 * well.sm_clock)
    assert slow.throttle_reasons == ()
    assert slow.sm_utilization == well.sm_utilization
    assert hot.sm_clock < well.sm_clock
    assert hot.throttle_reasons == ("HwThermalSlowdown",)
    assert hot.temperature >= THROTTLING


def test_foreign_load_is_work_without_a_pod() -> None:
    simulated = node(running=(), faults=(Injected("foreignLoad", gpu=(0, 5)),))
    read = simulated.read(0.0).gpus
    assert [gpu.index for gpu in read if gpu.sm_utilization > 0.5] == [0, 5]
    assert all(gpu.pods == () for gpu in read)
    assert read[5].processes


def test_faults_begin_and_end_when_they_should() -> None:
    simulated = node(faults=(Injected("thermalThrottle", at=10, seconds=5),))
    throttled = [second for second in range(30) if simulated.read(float(second)).gpus[0].throttle_reasons]
    assert throttled == list(range(10, 15))


def test_a_fault_that_is_injected_later_counts_from_then() -> None:
    simulated = node()
    simulated.read(100.0)
    simulated.faults = (Injected("xid", code=94, at=5.0),)
    assert [simulated.read(float(second)).gpus[0].happened for second in (101, 105)] == [(), ()]
    assert simulated.read(106.0).gpus[0].happened == (Happened("Xid", 94),)


def test_the_whole_driver_can_fail() -> None:
    reading = node(faults=(Injected("driverError"),)).read(0.0)
    assert reading.gpus == ()
    assert "mismatch" in reading.error
    assert node(faults=(Injected("hang"),)).hanging(0.0)


# --- profiles --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("gpus: 8", "missing required field `product`"),
        ("product: H101", "field product: unknown GPU product 'H101'"),
        ("product: Tesla-T4\ngpus: 0", "field gpus: Expected `int` >= 1"),
        ("product: Tesla-T4\nfaults: [{kind: nan}, {kind: melts}]", "field faults[1].kind: Invalid enum value 'melts'"),
        ("product: Tesla-T4\ngpus: 2\nfaults: [{kind: nan, gpu: 2}]", "field faults[0].gpu: there is no GPU 2"),
        ("product: Tesla-T4\nfaults: [{kind: nan, fields: [heat]}]", "field faults[0].fields: unknown reading 'heat'"),
        ("product: Tesla-T4\nload: {utilisation: 1}", "field load: Object contains unknown field `utilisation`"),
        ("product: Tesla-T4\nrunning: [{pod: x, gpus: 1}]", "field running[0].pod: "),
        ("a: [", "cannot read the profile"),
    ],
)
def test_mistakes_name_file_and_field(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(BackendError) as raised:
        load_profile(path)
    assert str(path) in str(raised.value)
    assert complaint in str(raised.value)


def test_the_profiles_that_ship_can_be_read() -> None:
    shipped = sorted((checkout() / "manifests" / "agents").glob("*.yaml"))
    assert [path.stem for path in shipped] == ["h100x8", "t4x4", "trouble"]
    for path in shipped:
        backend = FakeBackend(path, "n")
        backend.open()
        assert backend.read().gpus


@pytest.mark.parametrize("text", ["{", "kind: xid", "[{kind: xid, gpu: 9}]", "[{kind: nan, fields: [x]}]", "[3]"])
def test_an_annotation_that_is_no_list_of_faults_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"field|YAML|Expected"):
        parse_faults(text, gpus=8)
    assert parse_faults("", gpus=8) == ()


# --- the backend -----------------------------------------------------------------------------------------------------
def test_a_profile_that_changes_is_read_again_and_one_that_breaks_is_not(tmp_path: Path) -> None:
    path, now = tmp_path / "p.yaml", [0.0]
    path.write_text("product: Tesla-T4\ngpus: 2\n")
    backend = FakeBackend(path, "n", clock=lambda: now[0])
    backend.open()
    before = backend.read()
    path.write_text("product: Tesla-T4\ngpus: 2\nrunning: [{pod: a/b, gpus: 1}]\n")
    now[0] = 1.0
    changed = backend.read()
    assert changed.gpus[0].pods == ("a/b",)
    assert changed.gpus[0].uuid == before.gpus[0].uuid
    path.write_text("product: [")
    now[0] = 2.0
    assert backend.read().gpus[0].pods == ("a/b",)


def test_without_a_profile_there_is_nothing_to_read(tmp_path: Path) -> None:
    backend = FakeBackend(tmp_path / "none.yaml", "n")
    with pytest.raises(BackendError, match=r"none\.yaml"):
        backend.open()
    assert backend.read() == NodeReading(error="the fake backend is not open")
    backend.close()
