"""Faults of GPUs, remembered: XID errors are told once, and must not be forgotten while the machine runs.

They live in the GPUNode itself: an agent that starts reads them back, as long as the machine was not started anew
(another boot ID). The annotation `trimtab.dev/repaired` on the GPUNode says that those before it are mended.

Backends tell uncorrectable ECC errors as their counter rises under them. Those from before the agent's start show in
the counter alone (it counts since the driver was loaded): more than the previous report had, or any at all where there
was none, is told once. A counter that fell began anew, and is the new baseline.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from msgspec import Struct

from trimtab.agent import wire
from trimtab.agent.backend import FaultKind, Gpu, Happened, known

LOST = Happened("Lost")
ECC = Happened("UncorrectableEcc")


class FaultRecord(Struct):
    """A kind of fault on one GPU; times in seconds since 1970."""

    last: float
    count: int = 1


class KnownGpu(Struct):
    """A GPU that the machine has, or had since it was started."""

    index: int
    product: str = ""
    pci_bus: str = ""


class Faults:
    """What went wrong on each GPU since the machine was started."""

    def __init__(self) -> None:
        self.gpus: dict[str, KnownGpu] = {}
        """By UUID, those that are missing now as well."""
        self._seen: dict[str, dict[tuple[FaultKind, int], FaultRecord]] = {}
        self._lost: set[str] = set()
        self._mended = 0.0
        self._begun = False
        """Whether it is known what an earlier agent reported."""
        self._baseline: dict[str, int] = {}
        """Uncorrectable ECC errors that an earlier agent counted."""
        self._first: dict[str, float] = {}
        """Those of the first reading that had them, while nobody has told them."""
        self._judged: set[str] = set()

    def carry(self, status: wire.WireStatus | None, boot_id: str) -> bool:
        """Take over what an earlier agent reported, if the machine is still the one of then. Says whether it is.

        None where there is no earlier report; it must be said, for the errors of before to be told.
        """
        self._begun = True
        if status is None or not boot_id or status.boot_id != boot_id:
            return False
        for gpu in status.gpus:
            if gpu.memory_errors and gpu.memory_errors.uncorrected is not None:
                self._baseline[gpu.uuid] = gpu.memory_errors.uncorrected
            self.gpus.setdefault(gpu.uuid, KnownGpu(gpu.index, gpu.product, gpu.pci_bus))
            seen = self._seen.setdefault(gpu.uuid, {})
            for fault in gpu.faults:
                one = seen.setdefault((fault.kind, fault.code), FaultRecord(seconds(fault.time), 0))
                one.count = fault.count + (0 if fault.kind == "Lost" else one.count)
                if fault.kind == "Lost":
                    self._lost.add(gpu.uuid)
        return True

    def take(self, gpus: Iterable[Gpu], wall: float) -> None:
        """Remember what happened in a reading of all GPUs of the node; `wall` in seconds since 1970.

        A GPU that was there and is missing now is lost, whether the backend says so or not.
        """
        present = set()
        for gpu in gpus:
            present.add(gpu.uuid)
            self.gpus[gpu.uuid] = KnownGpu(gpu.index, gpu.product, gpu.pci_bus)
            if LOST not in gpu.happened:
                self._lost.discard(gpu.uuid)
            for happened in (*gpu.happened, *self._untold(gpu)):
                self._remember(gpu.uuid, happened, wall)
        for uuid in self.gpus.keys() - present:
            self._remember(uuid, LOST, wall)

    def mend(self, before: str) -> bool:
        """Forget faults seen before this RFC 3339 time. Says whether the time was a new one that can be read."""
        try:
            limit = seconds(before)
        except ValueError:
            return False
        if limit <= self._mended:
            return False
        self._mended = limit
        for uuid, seen in list(self._seen.items()):
            absent = ("Lost", 0) in seen and uuid in self._lost
            self._seen[uuid] = {key: one for key, one in seen.items() if one.last > limit}
            if absent and not self._seen[uuid]:
                self.gpus.pop(uuid, None)  # taken out for good, unless the next reading has it
                self._lost.discard(uuid)
        return True

    def of(self, uuid: str) -> tuple[wire.WireFault, ...]:
        """Faults of a GPU, latest first, as they are reported."""
        seen = sorted(self._seen.get(uuid, {}).items(), key=lambda item: (-item[1].last, item[0]))
        return tuple(
            wire.WireFault(kind=kind, time=wire.rfc3339(one.last), code=code, count=one.count)
            for (kind, code), one in seen[: wire.MAX_FAULTS]
        )

    def count(self, uuid: str) -> dict[tuple[FaultKind, int], int]:
        """How often each fault of a GPU was seen."""
        return {key: one.count for key, one in self._seen.get(uuid, {}).items()}

    def _untold(self, gpu: Gpu) -> tuple[Happened, ...]:
        """Uncorrectable ECC errors from before the first reading, once."""
        uuid = gpu.uuid
        if known(gpu.ecc_uncorrected):  # a fault in the same reading is what was counted
            self._first.setdefault(uuid, 0.0 if gpu.happened else gpu.ecc_uncorrected)
        if not self._begun or uuid in self._judged or uuid not in self._first:
            return ()
        self._judged.add(uuid)
        if uuid not in self._baseline and (ECC.kind, ECC.code) in self._seen.get(uuid, {}):
            return ()  # the last report could not read the counter, and had the fault already
        return (ECC,) * (self._first[uuid] > self._baseline.get(uuid, 0))

    def _remember(self, uuid: str, happened: Happened, wall: float) -> None:
        seen = self._seen.setdefault(uuid, {})
        key = (happened.kind, max(0, min(happened.code, 100_000)))
        lasting = happened.kind == "Lost" and uuid in self._lost  # said again and again while it lasts
        if happened.kind == "Lost":
            self._lost.add(uuid)
        if (one := seen.get(key)) is None:
            seen[key] = FaultRecord(wall)
        else:
            one.last = max(one.last, wall)
            one.count += not lasting


def seconds(text: str) -> float:
    """RFC 3339 as seconds since 1970. Raises ValueError."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
