"""Which devices a DeviceClass chooses, as far as that can be told without an interpreter of CEL.

The classes of vendors' charts, and most of those that administrators write, are comparisons that all have to hold:

    device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'
    device.attributes['gpu.nvidia.com'].productName in ['NVIDIA H100 80GB HBM3'] && ...
    device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('40Gi')) >= 0

These are understood. Of whatever else there may be in an expression, nothing is guessed: it is undecided.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from msgspec import Struct

from trimtab.errors import QuantityError
from trimtab.kube.objects import DeviceClassObject, SliceDevice
from trimtab.kube.quantity import to_int

Value = str | int | bool
LONGEST = 10 * 1024
"""Characters of an expression; the API server takes no more."""
_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_TEXT = r"""(?:'[^'\\]*'|"[^"\\]*")"""
_LITERAL = rf"(?:{_TEXT}|true|false|-?[0-9]+)"
_IN = rf"\[\s*{_LITERAL}(?:\s*,\s*{_LITERAL})*\s*\]"
_TERM = re.compile(
    rf"\s*device\.(?:"
    rf"(?P<driver>driver)"
    rf"|attributes\[(?P<domain>{_TEXT})\]\.(?P<attribute>\w+)"
    rf"|capacity\[(?P<of>{_TEXT})\]\.(?P<capacity>\w+)\.compareTo\(\s*quantity\(\s*(?P<quantity>{_TEXT})\s*\)\s*\)"
    rf")\s*(?P<how>==|!=|>=|<=|>|<|in\b)\s*(?P<what>{_LITERAL}|{_IN})\s*"
)


class Undecided(Exception):
    """Whether a device is chosen cannot be told here; the message says why."""


class Term(Struct, frozen=True):
    """One comparison."""

    how: str
    values: tuple[Value, ...]
    domain: str = ""
    attribute: str = ""
    """Empty, as the next: the driver is compared."""
    capacity: str = ""
    least: int = 0
    """What the capacity is compared with."""

    def holds(self, driver: str, device: SliceDevice) -> bool:
        """Of a device. Raises Undecided where that is an error in CEL, or of another kind than what it is held
        against."""
        if self.capacity:
            return _COMPARE[self.how](_capacity(self, driver, device), self.least)
        found = _attribute(self, driver, device) if self.attribute else driver
        if any(type(found) is not type(each) for each in self.values):
            raise Undecided(f"{self.attribute} is {found!r}, and compared with another kind of value")
        return found in self.values if self.how == "in" else _COMPARE[self.how](found, self.values[0])


def chooses(found: DeviceClassObject, driver: str, device: SliceDevice) -> bool:
    """Whether a class chooses a device: all of its selectors have to. Raises Undecided."""
    undecided = ""
    for selector in found.spec.selectors:
        try:
            if selector.cel and not all(term.holds(driver, device) for term in terms(selector.cel.expression)):
                return False
        except Undecided as error:
            undecided = undecided or str(error)
    if undecided:
        raise Undecided(undecided)
    return True


def class_asked_by(resource: str, driver: str, classes: Iterable[DeviceClassObject]) -> DeviceClassObject | None:
    """The class that stands behind an extended resource (the youngest, as for kube-scheduler, then the first by name);
    else the one of the driver's name."""
    known = sorted(classes, key=lambda each: each.metadata.name)
    extended = [each for each in known if each.spec.extended_resource_name == resource]
    if extended:
        return max(extended, key=lambda each: each.metadata.creation_timestamp or "")
    return next((each for each in known if each.metadata.name == driver), None)


@lru_cache(maxsize=256)
def terms(expression: str) -> tuple[Term, ...]:
    """The comparisons that all have to hold. Raises Undecided where there is anything else."""
    found: list[Term] = []
    at = 0
    while len(expression) <= LONGEST and (read := _TERM.match(expression, at)):
        found.append(_term(read))
        at = read.end()
        if at == len(expression):
            return tuple(found)
        if not expression.startswith("&&", at):
            break
        at += 2
    raise Undecided("its expression has more than comparisons that all have to hold")


def _term(read: re.Match[str]) -> Term:
    how, what = read["how"], read["what"]
    values = tuple(_value(each) for each in re.findall(_LITERAL, what))
    if (how == "in") != what.startswith("["):
        raise Undecided(f"{how} {what} is no comparison")
    if read["capacity"]:
        if values != (0,) or how == "in":
            raise Undecided("what compareTo says is compared with something else than 0")
        try:
            least = to_int(read["quantity"][1:-1])
        except QuantityError as error:
            raise Undecided(str(error)) from error
        return Term(how, values, read["of"][1:-1], capacity=read["capacity"], least=least)
    if read["driver"]:
        return Term(how, values)
    return Term(how, values, read["domain"][1:-1], read["attribute"])


def _value(literal: str) -> Value:
    if literal in ("true", "false"):
        return literal == "true"
    return literal[1:-1] if literal[0] in "'\"" else int(literal)


def _attribute(term: Term, driver: str, device: SliceDevice) -> Value:
    found = _named(device.attributes, term.domain, term.attribute, driver)
    values: list[Value | None] = [] if found is None else [found.string, found.number, found.flag]
    value = next((each for each in values if each is not None), None)
    if value is None:
        raise Undecided(f"there is no attribute {term.domain}/{term.attribute} that could be compared")
    return value


def _capacity(term: Term, driver: str, device: SliceDevice) -> int:
    found = _named(device.capacity, term.domain, term.capacity, driver)
    if found is None:
        raise Undecided(f"there is no capacity {term.domain}/{term.capacity}")
    try:
        return to_int(found.value)
    except QuantityError as error:
        raise Undecided(str(error)) from error


def _named(table: Mapping[str, Any], domain: str, name: str, driver: str) -> Any:
    """By its whole name, or, of the driver's own domain, by its short one."""
    return table.get(f"{domain}/{name}", table.get(name) if domain == driver else None)
