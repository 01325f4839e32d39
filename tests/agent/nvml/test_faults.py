"""What goes wrong with GPUs and drivers while the agent runs, and before: readings say it, nothing raises."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.agent.nvml import library
from tests.agent.nvml.conftest import Boot
from tests.agent.nvml.library import OLD_DRIVER, SCENARIOS, SONAME, environment

from trimtab.agent.backend import BackendError, Happened, known

NEXT_DRIVER = "590.10.01"


def test_a_card_that_dies_stays_in_the_list_as_lost(boot: Boot) -> None:
    machine = boot("h100x8")
    before = machine.read()
    machine.scenario.append("gpu 3", "event = xid 79")
    machine.scenario.set("gpu 3", status="!GPU_IS_LOST")
    reading = machine.read()
    dead = reading.gpus[3]
    assert dead.happened == (Happened("Xid", 79), Happened("Lost"))
    assert (dead.uuid, dead.index, dead.pci_bus) == (before.gpus[3].uuid, 3, "00000000:61:00.0")
    assert dead.memory_total == before.gpus[3].memory_total
    assert not known(dead.power)
    assert [gpu.index for gpu in reading.gpus] == list(range(8))
    assert all(gpu.happened == () and known(gpu.power) for gpu in reading.gpus if gpu.index != 3)
    assert reading.links == before.links
    assert machine.gpu(3).happened == (Happened("Lost"),)  # for as long as it is gone


@pytest.mark.parametrize("error", ["!GPU_IS_LOST", "!RESET_REQUIRED", "!GPU_NOT_FOUND"])
def test_a_card_is_still_lost_after_nvml_was_started_anew_and_comes_back_when_it_is_mended(
    boot: Boot, error: str
) -> None:
    machine = boot("h100x8")
    machine.read()
    machine.scenario.set("gpu 3", status=error)
    for _ in range(15):
        assert machine.gpu(3, after=100.0).happened == (Happened("Lost"),)
    machine.scenario.set("gpu 3", status=None)
    machine.read(300.0)
    gpu = machine.gpu(3)
    assert gpu.happened == ()
    assert known(gpu.power)


def test_a_card_that_is_lost_before_the_agent_starts_hides_nobody_else(boot: Boot) -> None:
    machine = boot("h100x8")
    machine.scenario.set("gpu 3", status="!GPU_IS_LOST")
    assert [gpu.index for gpu in machine.read().gpus] == [0, 1, 2, 4, 5, 6, 7]


def test_a_card_that_only_tells_its_uuid_when_the_agent_starts_is_lost(boot: Boot) -> None:
    machine = boot("h100x8")
    machine.scenario.set("gpu 3", dying="!GPU_IS_LOST")
    gpu = machine.gpu(3)
    assert (gpu.uuid, gpu.happened) == ("GPU-8f2a6c10-0b7d-4e55-9c31-5d1e00000003", (Happened("Lost"),))
    machine.scenario.set("gpu 3", dying=None)
    assert machine.gpu(3).happened == ()  # this handle still serves
    gpu = machine.gpu(3, after=10.0)
    assert (gpu.product, gpu.pci_bus) == ("NVIDIA H100 80GB HBM3", "00000000:61:00.0")
    machine.scenario.append("gpu 3", "event = xid 43")
    assert machine.gpu(3).happened == (Happened("Xid", 43),)


def test_cards_behind_one_that_was_taken_out_keep_their_numbers(boot: Boot) -> None:
    machine = boot("h100x8")
    before = {gpu.uuid: gpu.index for gpu in machine.read().gpus}
    machine.scenario.remove("gpu 3")
    assert machine.gpu(3).happened == (Happened("Lost"),)
    reading = machine.read(300.0)
    assert len(reading.gpus) == 7
    assert {gpu.uuid: gpu.index for gpu in reading.gpus}.items() <= before.items()


def test_a_card_in_a_slot_of_its_own_gets_a_number_of_its_own(boot: Boot) -> None:
    machine = boot("h100x8")
    machine.read()
    machine.scenario.remove("gpu 3")
    machine.read(10.0)
    machine.read(300.0)
    machine.scenario.append("gpu 3", "uuid = GPU-new\npci = 00000000:FF:00.0")
    machine.backend.close()
    assert {gpu.uuid: gpu.index for gpu in machine.read(10.0).gpus}["GPU-new"] == 8


def test_a_card_with_a_new_uuid_takes_the_place_of_the_old(boot: Boot) -> None:
    machine = boot("h100x8")
    machine.read()
    machine.scenario.set("gpu 3", uuid="GPU-new")
    gpu = machine.gpu(3, after=10.0)
    for _ in range(8):
        gpu = machine.gpu(3, after=1.0)
    assert gpu.uuid == "GPU-new"
    assert gpu.happened == ()


def test_cards_that_are_added_are_found_when_nvml_is_started_anew(boot: Boot) -> None:
    machine = boot("t4x4", OLD_DRIVER)
    machine.scenario.remove("gpu 2")
    machine.scenario.remove("gpu 3")
    assert len(machine.read().gpus) == 2
    machine.backend.close()
    machine.scenario.append("gpu 2", "uuid = GPU-third")
    machine.backend.open()
    assert [gpu.uuid for gpu in machine.read().gpus][2] == "GPU-third"


def test_xids_are_told_once_each_and_of_the_card_they_are_of(boot: Boot) -> None:
    machine = boot("h100x8")
    machine.scenario.append("gpu 2", "event = xid 31")
    machine.backend.open()
    assert machine.gpu(2).happened == ()  # before anybody listened
    for code in (63, 48, 63):
        machine.scenario.append("gpu 2", f"event = xid {code}")
    machine.scenario.append("gpu 6", "event = xid 94")
    reading = machine.read()
    assert reading.gpus[2].happened == (Happened("Xid", 63), Happened("Xid", 48), Happened("Xid", 63))
    assert reading.gpus[6].happened == (Happened("Xid", 94),)
    assert all(gpu.happened == () for gpu in machine.read().gpus)


def test_an_event_is_not_forgotten_when_nvml_is_started_anew_before_it_was_told(boot: Boot) -> None:
    machine = boot("h100x8")
    machine.read()
    machine.scenario.append("gpu 2", "event = xid 48")
    machine.scenario.set("gpu 0", uuid="GPU-new")
    assert machine.gpu(2, after=10.0).happened == (Happened("Xid", 48),)
    machine.scenario.append("gpu 2", "event = xid 63")
    machine.scenario.set("node", dies__after=30)
    seen = [machine.read(), machine.read()]
    assert all("different versions" in reading.error for reading in seen)
    machine.scenario.set("node", dies__after=None)
    assert machine.gpu(2, after=10.0).happened == (Happened("Xid", 63),)


def test_a_storm_of_events_is_spread_over_readings(boot: Boot) -> None:
    machine = boot("h100x8")
    machine.read()
    for _ in range(300):
        machine.scenario.append("gpu 2", "event = xid 13")
    assert [len(machine.gpu(2).happened) for _ in range(3)] == [256, 44, 0]


def test_a_card_without_events_is_read_all_the_same(boot: Boot) -> None:
    machine = boot("h100x8")
    machine.scenario.set("gpu *", events="!NOT_SUPPORTED")
    assert all(known(gpu.power) and gpu.happened == () for gpu in machine.read().gpus)


def test_an_error_that_could_not_be_corrected_happens_when_the_counter_grows(boot: Boot) -> None:
    machine = boot("h100x8")
    machine.scenario.set("gpu 0", ecc__uncorrected=5)
    assert machine.gpu(0).happened == ()  # of the past: nobody knows of when
    machine.scenario.append("gpu 0", "event = dbe 0")
    machine.scenario.set("gpu 0", ecc__uncorrected=6)
    seen = [machine.gpu(0) for _ in range(12)]
    assert [gpu.happened for gpu in seen].count((Happened("UncorrectableEcc"),)) == 1
    assert seen[-1].ecc_uncorrected == 6
    machine.scenario.set("gpu 0", ecc__uncorrected=0)
    seen = [machine.gpu(0) for _ in range(12)]
    assert all(gpu.happened == () for gpu in seen)
    assert seen[-1].ecc_uncorrected == 0


def test_without_the_counter_the_event_is_believed(boot: Boot) -> None:
    machine = boot("h100x8")
    machine.scenario.set("gpu *", ecc__uncorrected="!NOT_SUPPORTED")
    machine.read()
    machine.scenario.append("gpu 0", "event = dbe 0")
    assert machine.gpu(0).happened == (Happened("UncorrectableEcc"),)


def test_a_row_that_could_not_be_remapped_is_told_at_once_and_once(boot: Boot) -> None:
    machine = boot("h100x8")
    machine.scenario.set("gpu 0", rows="3 2 1 1")
    gpu = machine.gpu(0)
    assert gpu.happened == (Happened("RowRemapFailure"),)
    assert (gpu.rows_remapped_corrected, gpu.rows_remapped_uncorrected) == (3, 2)
    assert (gpu.row_remap_pending, gpu.row_remap_failed) == (True, True)
    assert machine.gpu(0).happened == ()
    machine.scenario.set("gpu 1", rows="0 1 1 1")
    seen = [machine.gpu(1, after=1.0).happened for _ in range(12)]
    assert seen.count((Happened("RowRemapFailure"),)) == 1


def test_a_driver_of_another_version_than_the_library_is_refused_with_what_to_do(boot: Boot) -> None:
    machine = boot("h100x8")
    machine.scenario.set("node", driver=NEXT_DRIVER)
    with pytest.raises(BackendError, match=r"different versions.*Restart the agent"):
        machine.backend.open()
    assert "different versions" in machine.read().error


def test_a_driver_that_is_upgraded_under_the_agent_is_said_and_tried_again(boot: Boot) -> None:
    machine = boot("h100x8")
    assert machine.read().error == ""
    machine.scenario.set("node", driver=NEXT_DRIVER)
    reading = machine.read()
    assert "different versions" in reading.error
    assert (reading.gpus, reading.links) == ((), ())
    assert not machine.backend.needs_restart
    machine.read(60.0)
    assert machine.backend.needs_restart  # in a container, only a new one has the new library
    machine.scenario.set("node", driver="580.95.05")
    assert machine.read(9.0).error != ""
    reading = machine.read(1.0)
    assert (reading.error, len(reading.gpus)) == ("", 8)
    assert not machine.backend.needs_restart


@pytest.mark.parametrize(
    ("status", "words"),
    [("!DRIVER_NOT_LOADED", "modprobe nvidia"), ("!NO_PERMISSION", "refuses this user"), ("!UNKNOWN", "nvidia-smi")],
)
def test_no_driver_is_an_error_that_says_what_to_do(boot: Boot, status: str, words: str) -> None:
    machine = boot("h100x8")
    machine.scenario.set("node", status=status)
    with pytest.raises(BackendError, match=words):
        machine.backend.open()
    assert words in machine.read().error
    machine.scenario.set("node", status=None)
    assert len(machine.read(10.0).gpus) == 8


def test_a_driver_that_is_unloaded_under_the_agent(boot: Boot) -> None:
    machine = boot("h100x8")
    machine.read()
    machine.scenario.path.unlink()
    assert "not loaded" in machine.read().error
    assert "not loaded" in machine.read(10.0).error


def test_a_machine_without_gpus_says_so(boot: Boot) -> None:
    machine = boot("t4x4")
    machine.scenario.write("[node]\ndriver = 580.95.05\n")
    assert "finds no GPU" in machine.read().error
    machine.scenario.write((SCENARIOS / "t4x4.txt").read_text().replace("470.256.02", "580.95.05"))
    assert len(machine.read(300.0).gpus) == 4


def test_closing_is_always_allowed(boot: Boot) -> None:
    machine = boot("h100x8")
    machine.backend.close()
    machine.read()
    machine.backend.close()
    machine.backend.close()
    assert len(machine.read(10.0).gpus) == 8


OPEN = """
from trimtab.agent.backend import BackendError
from trimtab.agent.nvml import NvmlBackend
backend = NvmlBackend()
try:
    backend.open()
except BackendError as problem:
    print(problem)
"""

UPGRADE = """
import sys, pathlib
from trimtab.agent.nvml import NvmlBackend
from tests.agent.nvml import library
now = 0.0
backend = NvmlBackend(clock=lambda: now)
backend.open()
print(len(backend.read().gpus), backend.read().driver_version)
scenario = pathlib.Path(sys.argv[1])
scenario.write_text(scenario.read_text().replace(library.NEW_DRIVER, sys.argv[3]))
print(backend.read().error[:20])
library.build(pathlib.Path(sys.argv[2]), sys.argv[3])
now = 10.0
print(len(backend.read().gpus), backend.read().driver_version)
"""


def run(program: str, variables: dict[str, str], *arguments: object) -> list[str]:
    """What a program of its own prints."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    outcome = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout.splitlines()


def test_without_a_library_the_agent_is_told_what_to_do(tmp_path: Path) -> None:
    (tmp_path / SONAME).write_text("no library: it hides one that this machine may have")
    (printed,) = run(OPEN, environment(tmp_path / SONAME, tmp_path / "none"))
    assert "cannot be loaded" in printed
    assert "runtimeClassName: nvidia" in printed


def test_the_library_of_an_upgraded_driver_is_loaded_in_place_of_the_old(tmp_path: Path) -> None:
    built = library.build(tmp_path / "lib")
    scenario = tmp_path / "scenario.txt"
    scenario.write_text((SCENARIOS / "h100x8.txt").read_text())
    root = Path(__file__).resolve().parents[3]
    variables = {**environment(built, scenario), "PYTHONPATH": str(root)}
    printed = run(UPGRADE, variables, scenario, built.parent, NEXT_DRIVER)
    assert printed == ["8 580.95.05", "The NVIDIA driver in", f"8 {NEXT_DRIVER}"]


def test_importing_the_backend_needs_no_driver_and_no_nvidia_ml_py(build: Callable[..., Path]) -> None:
    program = "import sys, trimtab.agent.nvml; print('pynvml' in sys.modules)"
    assert run(program, {}) == ["False"]
