"""AMD GPUs from a tree like sysfs, and from a module like amdsmi. Files: kernel documentation, gpu/amdgpu."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trimtab.agent.amd import AmdBackend
from trimtab.agent.backend import BackendError, Gpu, Happened

MI300X = {
    "vendor": "0x1002", "device": "0x74a1", "unique_id": "aa11bb22cc33dd44", "product_name": "AMD Instinct MI300X OAM",
    "gpu_busy_percent": "87", "mem_busy_percent": "40", "mem_info_vram_total": "205822885888",
    "mem_info_vram_used": "102911442944", "pp_dpm_sclk": "0: 132Mhz\n1: 1620Mhz *\n2: 2100Mhz",
    "pp_dpm_mclk": "0: 900Mhz\n1: 1300Mhz *", "numa_node": "1", "local_cpulist": "48-95",
    "current_link_speed": "32.0 GT/s PCIe", "max_link_speed": "32.0 GT/s PCIe", "current_link_width": "16",
    "max_link_width": "16", "ras/umc_err_count": "ue: 0\nce: 7", "ras/gfx_err_count": "ue: 0\nce: 1",
    "hwmon/hwmon4/temp1_label": "edge", "hwmon/hwmon4/temp1_input": "51000", "hwmon/hwmon4/temp2_label": "junction",
    "hwmon/hwmon4/temp2_input": "58000", "hwmon/hwmon4/power1_average": "412000000",
    "hwmon/hwmon4/power1_cap": "750000000", "hwmon/hwmon4/freq1_input": "1617000000",
}  # fmt: skip
INTEL = {"vendor": "0x8086"}
NONE: Any = None


def card(sys: Path, number: int, address: str, files: dict[str, str]) -> Path:
    """/sys/class/drm/cardN/device -> the PCI device."""
    device = sys / "devices" / "pci0000:00" / address
    for name, content in files.items():
        (device / name).parent.mkdir(parents=True, exist_ok=True)
        (device / name).write_text(content + "\n")
    link = sys / "class" / "drm" / f"card{number}" / "device"
    link.parent.mkdir(parents=True)
    link.symlink_to(device)
    (sys / "class" / "drm" / f"card{number}-DP-1").mkdir()
    return device


def read(backend: AmdBackend) -> tuple[Gpu, ...]:
    return backend.read().gpus


def test_a_card_as_sysfs_shows_it(tmp_path: Path) -> None:
    card(tmp_path, 0, "0000:05:00.0", INTEL)
    card(tmp_path, 1, "0000:c6:00.0", MI300X)
    backend = AmdBackend(tmp_path, smi=NONE)
    backend.open()
    (gpu,) = read(backend)
    assert (gpu.uuid, gpu.product, gpu.pci_bus) == ("GPU-aa11bb22cc33dd44", "AMD Instinct MI300X OAM", "0000:c6:00.0")
    assert (gpu.sm_utilization, gpu.memory_utilization) == (0.87, 0.4)
    assert (gpu.memory_total, gpu.memory_used) == (205822885888.0, 102911442944.0)
    assert (gpu.temperature, gpu.power, gpu.power_limit) == (51.0, 412.0, 750.0)
    assert (gpu.sm_clock, gpu.sm_clock_max, gpu.memory_clock) == (1.617e9, 2.1e9, 1.3e9)
    assert (gpu.pcie_generation, gpu.pcie_width, gpu.numa_node, gpu.cpu_affinity) == (5.0, 16.0, 1.0, "48-95")
    assert (gpu.ecc_corrected, gpu.ecc_uncorrected) == (8.0, 0.0)
    assert gpu.throttle_reasons is None
    assert gpu.pods is None


def test_cards_are_numbered_in_pci_order(tmp_path: Path) -> None:
    card(tmp_path, 1, "0000:c6:00.0", {**MI300X, "unique_id": "2"})
    card(tmp_path, 9, "0000:05:00.0", {**MI300X, "unique_id": "1"})
    backend = AmdBackend(tmp_path, smi=NONE)
    backend.open()
    assert [(gpu.index, gpu.uuid) for gpu in read(backend)] == [(0, "GPU-1"), (1, "GPU-2")]


def test_files_that_a_card_lacks_are_readings_that_are_not_known(tmp_path: Path) -> None:
    card(tmp_path, 0, "0000:03:00.0", {"vendor": "0x1002", "device": "0x73bf", "numa_node": "-1"})
    backend = AmdBackend(tmp_path, smi=NONE)
    backend.open()
    (gpu,) = read(backend)
    numbers = [getattr(gpu, name) for name in ("sm_utilization", "temperature", "power", "memory_total", "numa_node")]
    assert all(math.isnan(number) for number in numbers)
    assert gpu.product == "AMD device 0x73bf"


def test_cards_without_a_number_of_their_own_differ_between_machines_built_alike(tmp_path: Path) -> None:
    device = card(tmp_path, 0, "0000:03:00.0", {"vendor": "0x1002", "device": "0x73bf"}).name
    by_library = smi(amdsmi_get_gpu_device_bdf=device)
    for module in (NONE, by_library, smi(amdsmi_get_gpu_device_bdf="0000:99:00.0")):
        found = []
        for node in ("node-a", "node-b", "node-a"):
            backend = AmdBackend(tmp_path, smi=module, node=node)
            backend.open()
            found.append(read(backend)[0].uuid)
        assert found[0] == found[2] != found[1]
        assert found[0].startswith("AMD-")


def test_a_card_that_is_gone_keeps_its_name_and_is_lost(tmp_path: Path) -> None:
    first = card(tmp_path, 0, "0000:05:00.0", MI300X)
    card(tmp_path, 1, "0000:c6:00.0", {**MI300X, "unique_id": "2"})
    backend = AmdBackend(tmp_path, smi=NONE)
    backend.open()
    read(backend)
    shutil.rmtree(first)
    lost, there = read(backend)
    assert (lost.uuid, lost.happened) == ("GPU-aa11bb22cc33dd44", (Happened("Lost"),))
    assert there.happened == ()


def test_an_uncorrectable_error_is_told_once(tmp_path: Path) -> None:
    device = card(tmp_path, 0, "0000:05:00.0", MI300X)
    backend = AmdBackend(tmp_path, smi=NONE)
    backend.open()
    assert read(backend)[0].happened == ()
    (device / "ras/umc_err_count").write_text("ue: 2\nce: 7\n")
    assert read(backend)[0].happened == (Happened("UncorrectableEcc"),)
    assert read(backend)[0].happened == ()


def test_a_machine_without_amd_gpus_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="amdgpu driver"):
        AmdBackend(tmp_path, smi=NONE).open()


class SmiError(Exception):
    """As amdsmi's."""


def smi(**answers: Any) -> Any:
    """A module like amdsmi with one GPU; what is not given is not supported."""

    def refuse(handle: object) -> Any:
        raise SmiError("AMDSMI_STATUS_NOT_SUPPORTED")

    names = ("device_bdf", "asic_info", "device_uuid", "activity", "vram_usage", "total_ecc_count")
    functions: dict[str, Any] = {f"amdsmi_get_gpu_{name}": refuse for name in names}
    functions |= {"amdsmi_get_power_info": refuse}
    functions |= {name: (lambda handle, value=value: value) for name, value in answers.items()}
    return SimpleNamespace(
        AmdSmiException=SmiError, amdsmi_init=lambda: None, amdsmi_shut_down=lambda: None,
        amdsmi_get_processor_handles=lambda: ["handle"], **functions,
    )  # fmt: skip


def test_amdsmi_is_asked_first_and_sysfs_for_the_rest(tmp_path: Path) -> None:
    card(tmp_path, 0, "0000:c6:00.0", MI300X)
    module = smi(
        amdsmi_get_gpu_device_bdf="0000:c6:00.0",
        amdsmi_get_gpu_device_uuid="e6ff74a1-0000-1000-80aa-11bb22cc33dd",
        amdsmi_get_gpu_asic_info={"market_name": "AMD Instinct MI300X"},
        amdsmi_get_gpu_activity={"gfx_activity": 99, "umc_activity": "N/A", "mm_activity": 0},
        amdsmi_get_power_info={"current_socket_power": "N/A", "average_socket_power": 640},
        amdsmi_get_gpu_vram_usage={"vram_total": 196288, "vram_used": 150000},
    )
    backend = AmdBackend(tmp_path, smi=module)
    backend.open()
    (gpu,) = read(backend)
    assert (gpu.uuid, gpu.product) == ("e6ff74a1-0000-1000-80aa-11bb22cc33dd", "AMD Instinct MI300X")
    assert (gpu.sm_utilization, gpu.memory_utilization) == (0.99, 0.4)
    assert (gpu.power, gpu.temperature, gpu.memory_total) == (640.0, 51.0, 196288.0 * (1 << 20))
    backend.close()
    backend.close()


def test_an_amdsmi_that_answers_nothing_is_no_exception(tmp_path: Path) -> None:
    (tmp_path / "class/drm").mkdir(parents=True)
    backend = AmdBackend(tmp_path, smi=smi())
    backend.open()
    (gpu,) = read(backend)
    assert math.isnan(gpu.sm_utilization)
    assert math.isnan(gpu.memory_total)


def test_an_amdsmi_that_cannot_start_says_what_to_do(tmp_path: Path) -> None:
    module = smi()

    def fail() -> None:
        raise SmiError("AMDSMI_STATUS_DRIVER_NOT_LOADED")

    module.amdsmi_init = fail
    with pytest.raises(BackendError, match="DRIVER_NOT_LOADED"):
        AmdBackend(tmp_path, smi=module).open()
