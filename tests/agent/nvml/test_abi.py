"""The library of the tests speaks NVML's ABI: held against what NVIDIA's own packages say, not against ourselves.

nvidia-ml-py writes the structs down with ctypes; cuda-bindings was compiled with NVIDIA's nvml.h. Both come from
NVIDIA, and neither knows of our library.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest
from tests.agent.nvml.conftest import Boot, loaded
from tests.agent.nvml.library import SCENARIOS, environment

NO_HEADER = "cuda-bindings, which comes with torch on Linux alone, is not there: nothing was compiled with the header"
PYNVML = {
    "nvmlMemory_t": pynvml.c_nvmlMemory_t,
    "nvmlMemory_v2_t": pynvml.c_nvmlMemory_v2_t,
    "nvmlUtilization_t": pynvml.c_nvmlUtilization_t,
    "nvmlTemperature_v1_t": pynvml.c_nvmlTemperature_v1_t,
    "nvmlPciInfo_t": pynvml.nvmlPciInfo_t,
    "nvmlProcessInfo_t": pynvml.c_nvmlProcessInfo_v3_t,
    "nvmlFieldValue_t": pynvml.c_nvmlFieldValue_t,
    "nvmlEventData_t": pynvml.c_nvmlEventData_t,
    "nvmlDeviceAttributes_t": pynvml.c_nvmlDeviceAttributes,
}
CUDA_BINDINGS = {
    "nvmlMemory_t": "memory_dtype",
    "nvmlMemory_v2_t": "memory_v2_dtype",
    "nvmlUtilization_t": "utilization_dtype",
    "nvmlPciInfo_t": "pci_info_dtype",
    "nvmlProcessInfo_t": "process_info_dtype",
    "nvmlFieldValue_t": "field_value_dtype",
    "nvmlEventData_t": "event_data_dtype",
    "nvmlDeviceAttributes_t": "device_attributes_dtype",
}


class Layout(ctypes.Structure):
    """A line of the library's table: the field of a type, or the whole where it has no name."""

    _fields_ = (
        ("type", ctypes.c_char_p),
        ("field", ctypes.c_char_p),
        ("offset", ctypes.c_size_t),
        ("size", ctypes.c_size_t),
    )


@pytest.fixture(scope="module")
def ours(build: Callable[..., Path]) -> Iterator[ctypes.CDLL]:
    with loaded(build()) as handle:
        yield handle


def layouts(library: ctypes.CDLL) -> list[tuple[str, str, int, int]]:
    table = (Layout * 200).in_dll(library, "layouts")
    rows = []
    for line in table:
        if line.type is None:
            return rows
        rows.append((line.type.decode(), line.field.decode(), line.offset, line.size))
    raise AssertionError("the table does not end")


def test_structs_are_laid_out_as_nvidia_ml_py_has_them(ours: ctypes.CDLL) -> None:
    rows = layouts(ours)
    assert {row[0] for row in rows} == set(PYNVML)
    for name, field, offset, size in rows:
        struct = PYNVML[name]
        if not field:
            assert (name, size) == (name, ctypes.sizeof(struct))
            continue
        described = getattr(struct, field)
        assert (name, field, offset, size) == (name, field, described.offset, described.size)


def test_structs_are_laid_out_as_the_header_that_cuda_bindings_was_compiled_with(ours: ctypes.CDLL) -> None:
    bindings = pytest.importorskip("cuda.bindings.nvml", reason=NO_HEADER)
    for name, field, offset, size in layouts(ours):
        if name not in CUDA_BINDINGS:
            continue
        dtype = getattr(bindings, CUDA_BINDINGS[name])
        if not field:
            assert (name, size) == (name, dtype.itemsize)
            continue
        snake = re.sub(r"(?<=[a-z])([A-Z]+)", lambda match: f"_{match[1].lower()}", field)
        offsets = {key.rstrip("_"): at for key, (_, at, *_) in dtype.fields.items()}
        assert (name, field, offset) == (name, field, offsets[snake])


def test_versions_of_structs_are_those_of_nvidia_ml_py() -> None:
    def version(struct: Any, number: int) -> int:
        return ctypes.sizeof(struct) | number << 24

    assert pynvml.nvmlMemory_v2 == version(pynvml.c_nvmlMemory_v2_t, 2)
    assert pynvml.nvmlTemperature_v1 == version(pynvml.c_nvmlTemperature_v1_t, 1)


def test_every_symbol_is_one_that_nvidia_ml_py_calls(build: Callable[..., Path]) -> None:
    symbols = subprocess.run(["nm", "-D", "--defined-only", build()], capture_output=True, text=True, check=True)
    exported = {line.split()[-1] for line in symbols.stdout.splitlines()} - {"layouts"}
    called = set(re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', Path(pynvml.__file__).read_text()))
    assert len(exported) >= 45
    assert exported - called == {"nvmlInit_v2"}  # the one that other programs call


def test_a_struct_of_another_version_is_refused(boot: Boot) -> None:
    boot("h100x8").backend.open()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    with pytest.raises(pynvml.NVMLError) as refused:
        pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2 + (1 << 24))
    assert refused.value.value == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH


def test_a_buffer_that_is_too_short_is_refused(boot: Boot) -> None:
    boot("h100x8").backend.open()
    function = pynvml._nvmlGetFunctionPointer("nvmlDeviceGetUUID")
    short = ctypes.create_string_buffer(8)
    code = function(pynvml.nvmlDeviceGetHandleByIndex(0), short, ctypes.c_uint(8))
    assert code == pynvml.NVML_ERROR_INSUFFICIENT_SIZE


READ_BY_CUDA_BINDINGS = """
import cuda.bindings.nvml as nvml
nvml.init_v2()
device = nvml.device_get_handle_by_index_v2(3)
memory, pci = nvml.device_get_memory_info_v2(device), nvml.device_get_pci_info_v3(device)
(process,) = [nvml.device_get_compute_running_processes_v3(device)]
fields = nvml.FieldValue(2)
print(nvml.device_get_count_v2(), nvml.device_get_name(device), nvml.device_get_uuid(device), sep="|")
print(memory.total >> 20, memory.reserved >> 20, pci.bus_id, process[0].pid, process[0].used_gpu_memory >> 20, sep="|")
print(nvml.device_get_enforced_power_limit(device), nvml.device_get_remapped_rows(device), sep="|")
"""


def test_a_program_compiled_with_nvidias_header_reads_the_values_back(build: Callable[..., Path]) -> None:
    pytest.importorskip("cuda.bindings.nvml", reason=NO_HEADER)
    variables = {**os.environ, **environment(build(), SCENARIOS / "h100x8.txt")}
    outcome = subprocess.run(
        [sys.executable, "-c", READ_BY_CUDA_BINDINGS], env=variables, capture_output=True, text=True, check=True
    )
    assert outcome.stdout.splitlines() == [
        "8|NVIDIA H100 80GB HBM3|GPU-8f2a6c10-0b7d-4e55-9c31-5d1e00000003",
        "81559|530|00000000:61:00.0|41003|60800",
        "700000|(0, 0, 0, 0)",
    ]
