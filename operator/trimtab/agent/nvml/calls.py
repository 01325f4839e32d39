"""Every call into NVML goes through here: what cannot be read is `None` or `NA`, never an exception, never 0.

Three kinds of errors mean three things. The driver is gone: nothing can be read any more (DriverGone). The GPU is
gone: this one cannot (Lost). All else concerns the one reading; where it will not get better, such as what a card,
a driver or a user cannot do, the call is remembered and not tried again until `forget`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Final

from trimtab.agent.backend import NA
from trimtab.agent.nvml.library import (
    DRIVER_NOT_LOADED,
    LIBRARY_NOT_FOUND,
    NO_PERMISSION,
    UNINITIALIZED,
    VERSION_MISMATCH,
    DriverGone,
)

INVALID_ARGUMENT, NOT_SUPPORTED, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH, DEPRECATED = 2, 3, 13, 25, 26
GPU_IS_LOST, RESET_REQUIRED, GPU_NOT_FOUND = 15, 16, 28

DRIVER: Final = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, VERSION_MISMATCH})
LOST: Final = frozenset({GPU_IS_LOST, RESET_REQUIRED, GPU_NOT_FOUND})
FOR_GOOD: Final = frozenset(
    {INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH, DEPRECATED}
)
BLANKS: Final = frozenset({0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF})
"""NVML_VALUE_NOT_AVAILABLE is -1, in whatever type it is put."""

UNION_MEMBERS: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Of a field's value, by nvmlValueType_t."""

Field = int | tuple[int, int]
"""A field ID, with a scope where it needs one."""


class Lost(Exception):
    """The GPU does not answer any more: it fell off the bus, or needs a reset."""


class Calls:
    """Calls about one device, or about none."""

    def __init__(self, nvml: Any, *handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._refused: set[object] = set()

    def ask(self, function: str, *arguments: Any) -> Any:
        """What `function` of nvidia-ml-py returns; None where it cannot say. Raises Lost and DriverGone."""
        key = (function, *(each if isinstance(each, int) else address(each) for each in arguments))
        if key in self._refused:
            return None
        try:
            return getattr(self._nvml, function)(*self._handle, *arguments)
        except self._nvml.NVMLError as problem:
            self._judge(key, problem.value, str(problem))
        except ValueError:  # a text that is no UTF-8
            self._refused.add(key)
        return None

    def first(self, *calls: tuple[Any, ...]) -> Any:
        """The answer of the first call that has one: newer functions first, for drivers that lack them."""
        return next((answer for call in calls if (answer := self.ask(*call)) is not None), None)

    def number(self, function: str, *arguments: Any, unit: float = 1.0) -> float:
        """A number in base units: `unit` is what one of NVML's is. NA where it cannot be read."""
        return number(self.ask(function, *arguments), unit)

    def fields(self, wanted: Sequence[Field]) -> dict[Field, float]:
        """Several field values in one call, NA for those that cannot be read."""
        asked = [field for field in wanted if field not in self._refused]
        found = dict.fromkeys(wanted, NA)
        values = self.ask_fields(asked) if asked else None
        for field, value in zip(asked, values or (), strict=False):
            if value.nvmlReturn:
                self._judge(field, value.nvmlReturn, "")
            elif 0 <= value.valueType < len(UNION_MEMBERS):
                found[field] = number(getattr(value.value, UNION_MEMBERS[value.valueType]))
        return found

    def ask_fields(self, asked: list[Field]) -> Any:
        """As `ask`; apart because a list is no key, and because no refusal of the whole call is for good."""
        try:
            return self._nvml.nvmlDeviceGetFieldValues(*self._handle, asked)
        except self._nvml.NVMLError as problem:
            if problem.value in FOR_GOOD:
                self._refused.update(asked)
            else:
                self._judge(None, problem.value, str(problem))
        return None

    def forget(self) -> None:
        """Try everything again: partitioning, permissions and settings of the driver change at times."""
        self._refused.clear()

    def _judge(self, key: object, code: int, text: str) -> None:
        if code in DRIVER:
            raise DriverGone(code, text)
        if code in LOST:
            raise Lost
        if code in FOR_GOOD:
            self._refused.add(key)


def address(handle: Any) -> int:
    """What tells handles apart: they are pointers, and two Python objects of the same one do not compare equal."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def number(value: float | None, unit: float = 1.0) -> float:
    """`value` times `unit`; NA for None and NVML's blanks."""
    return NA if value is None or value < 0 or value in BLANKS else value * unit
