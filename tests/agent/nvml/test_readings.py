"""What the backend reads of machines as they are: training, hot, old, partitioned, half blind."""

from __future__ import annotations

import math

import pynvml
import pytest
from tests.agent.nvml.conftest import Boot
from tests.agent.nvml.library import OLD_DRIVER

from trimtab.agent.backend import Mig, Process, known
from trimtab.agent.nvml.device import profile, ranges

MIB = 1 << 20


def test_eight_h100s_in_training(boot: Boot) -> None:
    machine = boot("h100x8")
    machine.backend.open()
    reading = machine.read()
    assert (reading.error, reading.driver_version, len(reading.gpus)) == ("", "580.95.05", 8)
    gpu = reading.gpus[5]
    assert (gpu.uuid, gpu.index, gpu.product) == (
        "GPU-8f2a6c10-0b7d-4e55-9c31-5d1e00000005",
        5,
        "NVIDIA H100 80GB HBM3",
    )
    assert (gpu.pci_bus, gpu.numa_node, gpu.cpu_affinity) == ("00000000:C3:00.0", 1.0, "56-111,168-223")
    assert gpu.memory_total == 81559 * MIB
    assert 0.9 <= gpu.sm_utilization <= 1
    assert 0.4 <= gpu.memory_utilization <= 0.56
    assert 600 <= gpu.power <= 680
    assert gpu.power_limit == 700
    assert 1.77e9 <= gpu.sm_clock <= 1.89e9
    assert (gpu.sm_clock_max, gpu.memory_clock) == (1.98e9, 2.619e9)
    assert gpu.throttle_reasons == ("SwPowerCap",)
    assert (gpu.nvlinks, gpu.nvlinks_active) == (18, 18)
    assert (gpu.pcie_generation, gpu.pcie_generation_max, gpu.pcie_width, gpu.pcie_width_max) == (5, 5, 16, 16)
    assert (gpu.ecc_corrected, gpu.ecc_uncorrected, gpu.rows_remapped_corrected) == (0, 0, 0)
    assert (gpu.row_remap_pending, gpu.row_remap_failed, gpu.mig_enabled, gpu.mig) == (False, False, False, ())
    assert gpu.processes == (Process(41005, 60800.0 * MIB),)
    assert gpu.pods is None
    assert gpu.happened == ()


def test_nvswitches_join_all_with_all(boot: Boot) -> None:
    links = boot("h100x8").read().links
    assert links == tuple(tuple("X" if i == j else "NV18" for j in range(8)) for i in range(8))


def test_memory_in_use_leaves_out_what_the_driver_reserves(boot: Boot) -> None:
    machine = boot("h100x8")
    machine.scenario.set("gpu *", memory__used="1000M")
    assert machine.gpu().memory_used == 1000 * MIB


def test_rates_of_links_are_counters_over_time(boot: Boot) -> None:
    machine = boot("h100x8")
    machine.scenario.set("gpu *", nvlink__tx=1000, nvlink__rx=0, pcie__tx=5_000_000, pcie__rx=0)
    first = machine.gpu(0)
    assert not any(known(rate) for rate in (first.nvlink_tx, first.nvlink_rx, first.pcie_tx, first.pcie_rx))
    machine.scenario.set("gpu *", nvlink__tx=3000, nvlink__rx=4000, pcie__tx=9_000_000, pcie__rx=1_000_000)
    machine.read(9.0)
    gpu = machine.gpu(0, after=1.0)
    assert (gpu.nvlink_tx, gpu.nvlink_rx) == (200 * 1024, 400 * 1024)
    assert (gpu.pcie_tx, gpu.pcie_rx) == (400_000, 100_000)


def test_a_counter_that_began_anew_is_no_rate(boot: Boot) -> None:
    machine = boot("h100x8")
    machine.scenario.set("gpu *", nvlink__tx=1000, nvlink__rx=1000)
    machine.gpu()
    machine.scenario.set("gpu *", nvlink__tx=10, nvlink__rx=2000)
    gpu = machine.gpu(after=10.0)
    assert math.isnan(gpu.nvlink_tx)
    assert gpu.nvlink_rx > 0


def test_four_t4s_at_a_driver_of_old(boot: Boot) -> None:
    machine = boot("t4x4", OLD_DRIVER)
    reading = machine.read()
    gpu, hot = reading.gpus[0], reading.gpus[3]
    assert (reading.driver_version, len(reading.gpus), gpu.product) == (OLD_DRIVER, 4, "Tesla T4")
    assert gpu.temperature == 64
    assert gpu.memory_used == (12000 + 250) * MIB  # the driver cannot tell them apart
    assert gpu.processes == (Process(5200, 11700.0 * MIB),)
    assert (gpu.ecc_corrected, gpu.row_remap_failed, gpu.mig_enabled) == (12, None, None)
    assert not any(
        known(value) for value in (gpu.nvlinks, gpu.nvlinks_active, gpu.nvlink_tx, gpu.rows_remapped_corrected)
    )
    assert (gpu.pcie_tx, gpu.pcie_rx) == (350_000 * 1024, 1_200_000 * 1024)  # measured, for want of counters
    assert (hot.temperature, hot.sm_clock) == (93, 585e6)
    assert hot.throttle_reasons == ("HwSlowdown", "SwThermalSlowdown", "HwThermalSlowdown")
    assert reading.links == (
        ("X", "PIX", "SYS", "SYS"),
        ("PIX", "X", "SYS", "SYS"),
        ("SYS", "SYS", "X", "PHB"),
        ("SYS", "SYS", "PHB", "X"),
    )


def test_an_a100_cut_in_parts(boot: Boot) -> None:
    reading = boot("a100_mig").read()
    cut, whole = reading.gpus
    assert (cut.mig_enabled, whole.mig_enabled) == (True, False)
    uuid = "MIG-6d1b5a0e-2f0c-5a79-8f01-00000000000"
    assert cut.mig == (Mig(f"{uuid}a", "3g.40gb"), Mig(f"{uuid}b", "2g.20gb"), Mig(f"{uuid}c", "1c.2g.20gb"))
    assert whole.mig == ()
    assert not known(cut.sm_utilization)
    assert whole.sm_utilization == 0
    assert whole.memory_used == 0
    assert whole.throttle_reasons == ()  # idleness is none
    assert whole.nvlinks_active == 0
    assert not known(whole.nvlink_tx)
    assert reading.links == (("X", "NODE"), ("NODE", "X"))


def test_names_of_parts_are_taken_from_the_driver_where_it_has_them(boot: Boot) -> None:
    machine = boot("a100_mig")
    machine.scenario.set("gpu 0", part__names=1)
    assert [part.profile for part in machine.gpu(0).mig] == ["3g.40gb", "2g.20gb", "1c.2g.20gb"]
    assert profile("NVIDIA H100 80GB HBM3 MIG 1g.10gb+me", None) == "1g.10gb+me"


def test_a_gpu_that_is_partitioned_while_the_agent_runs(boot: Boot) -> None:
    machine = boot("a100_mig")
    machine.scenario.set("gpu 0", mig=0, utilization__gpu=50, utilization__memory=10)
    assert machine.gpu(0).mig == ()
    machine.scenario.set("gpu 0", mig=1, utilization__gpu=None, utilization__memory=None)
    cut = machine.gpu(0, after=10.0)
    assert (cut.mig_enabled, len(cut.mig), known(cut.sm_utilization)) == (True, 3, False)
    machine.scenario.set("gpu 0", mig=0, utilization__gpu=50, utilization__memory=10)
    assert machine.gpu(0, after=10.0).sm_utilization == 0.5  # asked again, though it was refused before


def test_nvlinks_that_the_driver_does_not_let_use_do_not_count(boot: Boot) -> None:
    machine = boot("h100x8")
    machine.scenario.set("node", p2p=5)
    assert machine.read().links[0] == ("X", "NODE", "NODE", "NODE", "SYS", "SYS", "SYS", "SYS")


def test_more_nvlinks_than_any_card_has_are_not_believed(boot: Boot) -> None:
    machine = boot("h100x8")
    machine.scenario.set("gpu 0", nvlink__count=4_000_000_000)
    gpu = machine.gpu(0)
    assert not known(gpu.nvlinks)
    assert not known(gpu.nvlinks_active)


def test_nvlinks_between_pairs_are_counted(boot: Boot) -> None:
    machine = boot("a100_mig")
    machine.scenario.set("node", p2p=0)
    machine.scenario.set("gpu 0", nvlink__count=4, nvlink__down=None, nvlink__peers="1 1 1 1")
    machine.scenario.set("gpu 1", nvlink__count=4, nvlink__peers="0 0 0 0")
    machine.scenario.set("gpu *", nvlink__down=None)
    assert machine.read().links == (("X", "NV4"), ("NV4", "X"))
    machine.scenario.set("gpu *", nvlink__down="2")
    machine.read(10.0)
    assert machine.read(10.0).links == (("X", "NV3"), ("NV3", "X"))


@pytest.mark.parametrize(
    "error", ["!NOT_SUPPORTED", "!NO_PERMISSION", "!UNKNOWN", "!DEPRECATED", "!NO_DATA", "!TIMEOUT"]
)
def test_what_cannot_be_read_is_na_and_no_exception(boot: Boot, error: str) -> None:
    machine = boot("h100x8")
    keys = ["utilization__gpu", "memory__used", "temperature", "power", "power__limit", "clock__sm", "clock__memory"]
    keys += ["clock__sm__max", "throttle", "ecc__corrected", "ecc__uncorrected", "rows", "nvlink__count", "nvlink__tx"]
    keys += ["pcie__generation", "pcie__generation__max", "pcie__width", "pcie__width__max", "mig", "events", "name"]
    machine.scenario.set("gpu *", **dict.fromkeys([*keys, "processes", "pcie__tx", "pcie__rx"], error))
    for index in range(8):
        machine.scenario.set(f"gpu {index}", numa=error, cpus=error, pci=error)
    reading = machine.read()
    assert [gpu.index for gpu in reading.gpus] == list(range(8))
    for gpu in reading.gpus:
        numbers = [value for name in gpu.__struct_fields__ if isinstance(value := getattr(gpu, name), float)]
        assert not any(known(number) for number in numbers)
        assert (gpu.throttle_reasons, gpu.row_remap_failed, gpu.mig_enabled) == (None, None, None)
        assert (gpu.product, gpu.pci_bus, gpu.cpu_affinity, gpu.processes, gpu.happened) == ("", "", "", (), ())


@pytest.mark.parametrize("blank", [-1, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF])
def test_blanks_are_na(boot: Boot, blank: int) -> None:
    machine = boot("h100x8")
    keys = ["utilization__gpu", "utilization__memory", "temperature", "power", "power__limit", "clock__sm", "throttle"]
    machine.scenario.set("gpu *", **dict.fromkeys([*keys, "ecc__corrected", "ecc__uncorrected"], blank))
    gpu = machine.gpu()
    assert not any(known(value) for value in (gpu.sm_utilization, gpu.memory_utilization, gpu.temperature, gpu.power))
    assert not any(known(value) for value in (gpu.power_limit, gpu.sm_clock, gpu.ecc_corrected, gpu.ecc_uncorrected))
    assert gpu.throttle_reasons is None
    assert gpu.happened == ()


def test_a_utilisation_above_the_whole_is_na(boot: Boot) -> None:
    machine = boot("h100x8")
    machine.scenario.set("gpu *", utilization__gpu=101, utilization__memory=100)
    gpu = machine.gpu()
    assert not known(gpu.sm_utilization)
    assert gpu.memory_utilization == 1


def test_memory_of_a_process_that_the_driver_hides_is_na(boot: Boot) -> None:
    machine = boot("h100x8")
    machine.scenario.append("gpu 0", "process = 77 -1")
    assert [(each.pid, known(each.memory_used)) for each in machine.gpu(0).processes] == [(41000, True), (77, False)]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The functions of NVML that are called, in order."""
    names: list[str] = []
    find = pynvml._nvmlGetFunctionPointer

    def spy(name: str) -> object:
        names.append(name)
        return find(name)

    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer", spy)
    return names


def test_what_a_card_cannot_do_is_not_asked_each_second(boot: Boot, asked: list[str]) -> None:
    machine = boot("t4x4", OLD_DRIVER)
    machine.read()
    asked.clear()
    machine.read()
    refused = {"nvmlDeviceGetTemperatureV", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetCurrentClocksEventReasons"}
    assert not refused & set(asked)
    assert len(asked) < 4 * 12


def test_calls_that_block_are_rare(boot: Boot, asked: list[str]) -> None:
    machine = boot("t4x4", OLD_DRIVER)
    for _ in range(110):
        machine.read()
    assert asked.count("nvmlDeviceGetPcieThroughput") == 2 * 2 * 4  # two ways, at first and after a minute


def test_what_moves_slowly_is_read_of_one_card_at_a_time(boot: Boot, asked: list[str]) -> None:
    machine = boot("h100x8")
    machine.read()
    counts = []
    for _ in range(30):
        asked.clear()
        machine.read()
        counts.append(asked.count("nvmlDeviceGetRemappedRows"))
    assert max(counts) == 1
    assert sum(counts) >= 2 * 8


def test_readings_that_are_far_apart_are_whole(boot: Boot, asked: list[str]) -> None:
    machine = boot("h100x8")
    machine.read()
    asked.clear()
    machine.read(30.0)
    assert asked.count("nvmlDeviceGetRemappedRows") == 8


def test_idleness_and_what_users_set_is_no_throttling(boot: Boot) -> None:
    machine = boot("h100x8")
    machine.scenario.set("gpu 0", throttle=0x103)
    machine.scenario.set("gpu 1", throttle=0x1EC)
    reading = machine.read()
    assert reading.gpus[0].throttle_reasons == ()
    assert reading.gpus[1].throttle_reasons == (
        "SwPowerCap",
        "HwSlowdown",
        "SwThermalSlowdown",
        "HwThermalSlowdown",
        "HwPowerBrakeSlowdown",
    )


@pytest.mark.parametrize(("numbers", "text"), [([], ""), ([5], "5"), ([0, 1, 2, 8, 10, 11], "0-2,8,10-11")])
def test_cpus_are_written_as_ranges(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text
