"""A machine with GPUs of a scenario, and the backend that reads it through the unmodified nvidia-ml-py."""

from __future__ import annotations

import _ctypes
import contextlib
import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.agent.nvml import library
from tests.agent.nvml.library import NEW_DRIVER, Scenario

from trimtab.agent.backend import Gpu, NodeReading
from trimtab.agent.nvml import NvmlBackend

Builder = Callable[[str], Path]
Boot = Callable[..., "Machine"]


class Machine:
    """A node with GPUs, its driver, and an agent's backend on it. Time passes only in `read`."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.now = 1000.0
        self.backend = NvmlBackend(clock=lambda: self.now)

    def read(self, after: float = 1.0) -> NodeReading:
        """A reading `after` so many seconds."""
        self.now += after
        return self.backend.read()

    def gpu(self, index: int = 0, after: float = 1.0) -> Gpu:
        """The GPU with a number, in a reading after so many seconds."""
        return next(gpu for gpu in self.read(after).gpus if gpu.index == index)


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    """The library of a driver version, built once."""
    built: dict[str, Path] = {}

    def get(version: str = NEW_DRIVER) -> Path:
        if version not in built:
            built[version] = library.build(tmp_path_factory.mktemp(f"nvml-{version}"), version)
        return built[version]

    return get


@contextlib.contextmanager
def loaded(path: Path) -> Iterator[ctypes.CDLL]:
    """The library in this process under the name that nvidia-ml-py asks for, as long as it is needed."""
    handle = library.load(path)
    try:
        yield handle
    finally:
        _ctypes.dlclose(handle._handle)


@pytest.fixture
def boot(build: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Boot]:
    """boot(scenario, driver) -> the machine."""
    with contextlib.ExitStack() as stack:

        def start(source: str, driver: str = NEW_DRIVER) -> Machine:
            machine = Machine(Scenario(tmp_path / "scenario.txt", source))
            monkeypatch.setenv("NVML_SCENARIO", str(machine.scenario.path))
            stack.enter_context(loaded(build(driver)))
            stack.callback(machine.backend.close)
            return machine

        yield start
