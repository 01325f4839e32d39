"""All GPUs between nvmlInit and nvmlShutdown, and which of them is asked for what when.

NVML finds GPUs when it is initialised and never again, so GPUs that come, go or change their UUID take a new session.
One that stops answering stays, as lost. The number of a GPU goes by its place on the bus: cards behind one that is
lost keep theirs, although NVML counts them anew.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any, Final

from msgspec import Struct, field

from trimtab.agent.backend import Gpu, NodeReading
from trimtab.agent.nvml import topology
from trimtab.agent.nvml.calls import Calls, Lost
from trimtab.agent.nvml.device import Device, GpuRecord
from trimtab.agent.nvml.events import Event, Events

SLOW_SECONDS: Final = 10.0
FACTS_SECONDS: Final = 600.0
LOOK_AGAIN_SECONDS: Final = 300.0
"""So often GPUs that are lost, or not there at all, are looked for; NVML must be started anew for that."""
NONE_FOUND: Final = "The NVIDIA driver finds no GPU on this node: see `lspci` and the kernel's log."


class Changed(Exception):
    """NVML has to be started anew to see the GPUs that are there now."""


class Remembered(Struct):
    """What outlives a session."""

    indices: dict[str, int] = field(default_factory=dict)
    """By PCI address; by UUID where that is not known."""
    records: dict[str, GpuRecord] = field(default_factory=dict)
    """By UUID."""
    present: list[str] = field(default_factory=list)
    """UUIDs of the last session."""
    words: topology.Words = field(default_factory=dict)
    happened: dict[str, list[Event]] = field(default_factory=dict)
    """Events that no reading has told yet, by UUID: the driver tells each once."""


class Session:
    """The GPUs that NVML found when it was initialised. Methods raise DriverGone; `read` also Changed."""

    def __init__(self, nvml: Any, remembered: Remembered, now: float) -> None:
        self._nvml = nvml
        self._calls = Calls(nvml)
        self._remembered = remembered
        self._events = Events(nvml)
        self._driver_version = self._calls.ask("nvmlSystemGetDriverVersion") or ""
        self._count = self._calls.ask("nvmlDeviceGetCount") or 0
        self._devices: list[Device] = []
        self._lost: dict[str, float] = {}
        """Since when, by UUID."""
        self._recovered = False
        self._slow_at: dict[str, float] = {}
        self._opened_at = self._facts_at = self._counted_at = self._read_at = now
        self._find(now)
        self._connect(now)

    def read(self, now: float) -> NodeReading:
        """Everything now."""
        happened = self._remembered.happened
        for uuid, events in self._events.new().items():
            happened.setdefault(uuid, []).extend(events)
        self._look(now)
        self._refresh(now)
        gpus = tuple(self._read(device, happened.get(device.uuid, []), now) for device in self._devices)
        self._read_at = now
        happened.clear()
        return NodeReading(
            driver_version=self._driver_version,
            gpus=gpus,
            links=topology.matrix([gpu.uuid for gpu in gpus], self._remembered.words),
            error="" if gpus else NONE_FOUND,
        )

    def close(self) -> None:
        """Stop listening to events."""
        self._events.close()

    def _find(self, now: float) -> None:
        """All GPUs. Those that NVML counts but says nothing of are the ones known before that are missing."""
        missing = 0
        for number in range(self._count):
            device = self._device(number, now)
            if device:
                self._devices.append(device)
            missing += device is None
        found = {device.uuid for device in self._devices}
        vanished = [uuid for uuid in self._remembered.present if uuid not in found]
        for uuid in vanished[:missing]:
            self._devices.append(Device(self._nvml, None, uuid, self._remembered.records[uuid]))
            self._lost[uuid] = now
        self._devices.sort(key=lambda device: device.record.index)
        self._remembered.present = [device.uuid for device in self._devices]

    def _device(self, number: int, now: float) -> Device | None:
        """GPU `number` of NVML, read for the first time. None where NVML does not even say its UUID."""
        try:
            handle = self._calls.ask("nvmlDeviceGetHandleByIndex", number)
            uuid = Calls(self._nvml, handle).ask("nvmlDeviceGetUUID") if handle is not None else None
        except Lost:
            return None
        if not uuid:
            return None
        device = Device(self._nvml, handle, uuid, self._remembered.records.setdefault(uuid, GpuRecord()))
        with self._noting_loss(device, now):
            device.read_facts()
            device.read_slow(now)
            self._events.listen(uuid, handle, device.calls)
        self._slow_at[uuid] = now
        self._number(device, number)
        return device

    def _number(self, device: Device, number: int) -> None:
        """Give a GPU the number that it had before, or that of its place, or NVML's, or the next that is free."""
        record, indices = device.record, self._remembered.indices
        place = record.facts.pci_bus or device.uuid
        if record.index < 0:
            taken = set(indices.values())
            record.index = indices.get(place, number if number not in taken else max(taken) + 1)
        indices[place] = record.index

    def _connect(self, now: float) -> None:
        """Work out how the GPUs reach one another; what leads to a lost one stays as it was."""
        nodes = []
        for device in self._devices:
            if device.uuid not in self._lost:
                with self._noting_loss(device, now):
                    ends = topology.peers(device.calls, device.record.slow.active or ())
                    address = device.record.facts.pci_bus
                    nodes.append(topology.TopologyNode(device.uuid, address, device.handle, device.calls, ends))
        self._remembered.words |= topology.links(nodes, self._remembered.words)

    def _look(self, now: float) -> None:
        """See whether the GPUs are still the same, and now and then what they are."""
        if self._lost and now - min(self._lost.values()) >= LOOK_AGAIN_SECONDS:
            raise Changed
        if self._recovered and now - self._opened_at >= SLOW_SECONDS:
            raise Changed  # to listen to it again, and to know it anew
        if now - self._counted_at >= SLOW_SECONDS:
            self._counted_at = now
            if self._calls.ask("nvmlDeviceGetCount") not in (self._count, None):
                raise Changed
        if not self._devices and now - self._facts_at >= LOOK_AGAIN_SECONDS:
            raise Changed
        if now - self._facts_at >= FACTS_SECONDS:
            self._facts_at = now
            for device in self._devices:
                if device.handle is not None:
                    with self._noting_loss(device, now):
                        device.read_facts()

    def _refresh(self, now: float) -> None:
        """Read what moves slowly, of a few GPUs at a time: the load is even, and no reading takes long."""
        most = math.ceil(len(self._devices) * (now - self._read_at) / SLOW_SECONDS)
        due = [device for device in self._devices if now - self._slow_at.get(device.uuid, now) >= SLOW_SECONDS]
        for device in sorted(due, key=lambda device: self._slow_at[device.uuid])[: max(1, most)]:
            self._slow_at[device.uuid] = now
            links = device.record.slow.active
            with self._noting_loss(device, now):
                if device.calls.ask("nvmlDeviceGetUUID") not in (device.uuid, None):
                    raise Changed
                device.read_slow(now)
                if device.record.slow.active != links:
                    self._connect(now)

    def _read(self, device: Device, events: list[Event], now: float) -> Gpu:
        if device.handle is not None:
            with self._noting_loss(device, now):
                gpu = device.read(events)
                self._recovered |= self._lost.pop(device.uuid, None) is not None
                return gpu
        return device.gone(events)

    @contextlib.contextmanager
    def _noting_loss(self, device: Device, now: float) -> Iterator[None]:
        try:
            yield
        except Lost:
            self._lost.setdefault(device.uuid, now)
