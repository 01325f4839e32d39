"""XID errors as they happen: NVML's event set, emptied at each reading without waiting."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from typing import Any, Final

from trimtab.agent.nvml.calls import Calls, address

DOUBLE_BIT_ECC, XID = 0x2, 0x8
WANTED: Final = DOUBLE_BIT_ECC | XID
MOST_AT_ONCE: Final = 256
"""A card that is dying can cry faster than one can listen; what is left comes with the next reading."""

Event = tuple[int, int]
"""Its type and its data; of an XID its number."""


class Events:
    """What happens on the GPUs that are listened to. GPUs that have no events are none the worse for it."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._set = Calls(nvml).ask("nvmlEventSetCreate")
        self._uuids: dict[int, str] = {}

    def listen(self, uuid: str, handle: Any, calls: Calls) -> None:
        """Hear of what happens on a GPU from now on. Raises Lost and DriverGone."""
        supported = calls.ask("nvmlDeviceGetSupportedEventTypes")
        if self._set is None or not (supported or 0) & WANTED:
            return
        self._uuids[address(handle)] = uuid
        calls.ask("nvmlDeviceRegisterEvents", supported & WANTED, self._set)

    def new(self) -> dict[str, list[Event]]:
        """What happened since the last time, by UUID."""
        happened: dict[str, list[Event]] = defaultdict(list)
        for _ in range(MOST_AT_ONCE if self._uuids else 0):
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._set, 0)
            except self._nvml.NVMLError:
                break  # nothing more; or a GPU or the driver is gone, which the next call about it says
            # Instances of partitioned GPUs are not told apart: what happens to one is a fault of the GPU.
            if uuid := self._uuids.get(address(event.device)):
                happened[uuid].append((event.eventType, event.eventData))
        return happened

    def close(self) -> None:
        """Stop listening."""
        if self._set is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlEventSetFree(self._set)
        self._set, self._uuids = None, {}
