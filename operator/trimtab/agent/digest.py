"""From raw readings to what is reported: implausible numbers out, the rest smoothed, faults remembered."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from trimtab import __version__
from trimtab.agent import wire
from trimtab.agent.backend import NA, FaultKind, Gpu, NodeReading
from trimtab.agent.faults import LOST, Faults
from trimtab.agent.plausible import sane
from trimtab.agent.smoothing import GpuSmoother


class GpuState(Struct, frozen=True):
    """One GPU, smoothed."""

    gpu: Gpu
    throttled: float
    """Share of the last period in which it was."""
    faults: tuple[wire.WireFault, ...] = ()
    counts: dict[tuple[FaultKind, int], int] = {}
    """How often each fault was seen."""


class NodeState(Struct, frozen=True):
    """The node at one moment, as the agent understands it."""

    wall: float
    """Seconds since 1970, by the node's clock."""
    reading: NodeReading
    gpus: tuple[GpuState, ...]

    @property
    def error(self) -> str:
        """Why there are no readings."""
        return self.reading.error


class Digest:
    """Takes readings one after the other. `window` is the time over which throttling is counted, in seconds."""

    def __init__(self, window: float, refused: Callable[[str], None] = lambda field: None) -> None:
        self.faults = Faults()
        self._window = window
        self._refused = refused
        self._smoothers: dict[str, GpuSmoother] = {}

    def take(self, reading: NodeReading, now: float, wall: float) -> NodeState:
        """The state after a reading; `now` is monotonic, `wall` seconds since 1970."""
        gpus = self._sane(reading)
        if not reading.error:
            self.faults.take(gpus.values(), wall)
        self._smoothers = {uuid: one for uuid, one in self._smoothers.items() if uuid in gpus}
        states = [self._smoothed(gpu, now) for gpu in gpus.values()]
        states += [
            self._state(Gpu(uuid, known.index, known.product, known.pci_bus), NA)
            for uuid, known in self.faults.gpus.items()
            if uuid not in gpus and self.faults.count(uuid)
        ]
        states.sort(key=lambda state: (state.gpu.index, state.gpu.uuid))
        return NodeState(wall, reading, tuple(states[: wire.MAX_GPUS]))

    def _smoothed(self, gpu: Gpu, now: float) -> GpuState:
        if LOST in gpu.happened:
            self._smoothers.pop(gpu.uuid, None)  # what it read before has no meaning any more
        smoother = self._smoothers.setdefault(gpu.uuid, GpuSmoother(self._window))
        return self._state(*smoother.take(gpu, now))

    def _state(self, gpu: Gpu, throttled: float) -> GpuState:
        uuid = gpu.uuid
        return GpuState(gpu, throttled, self.faults.of(uuid), self.faults.count(uuid))

    def _sane(self, reading: NodeReading) -> dict[str, Gpu]:
        gpus: dict[str, Gpu] = {}
        for raw in reading.gpus:
            gpu, refused = sane(raw)
            for field in refused:
                self._refused(field)
            if raw.uuid and raw.uuid not in gpus and 0 <= raw.index <= 1023:
                gpus[raw.uuid] = gpu
            else:
                self._refused("uuid")
        return gpus


def report(state: NodeState, *, backend: str, period: float, boot_id: str) -> wire.WireStatus:
    """The status of the GPUNode; `period` in seconds."""
    return wire.WireStatus(
        observed_time=wire.rfc3339(state.wall),
        period_seconds=max(1, round(period)),
        backend=backend,
        agent_version=__version__,
        driver_version=state.reading.driver_version[: wire.TEXT],
        boot_id=boot_id[: wire.TEXT],
        error=state.error[: wire.TEXT],
        gpus=tuple(wire.gpu(each.gpu, each.throttled, each.faults) for each in state.gpus),
        links=wire.links(state.reading),
    )
