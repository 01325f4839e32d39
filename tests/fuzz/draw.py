"""Values out of bytes: what a fuzzer mutates becomes JSON that is deep, mostly valid, and at the edges of its fields.

The same bytes make the same value, whoever feeds them: libFuzzer, hypothesis, or the kept corpus. Where they end, each
choice is the first, so that the usual stands there and inputs shrink towards it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
Json = dict[str, Any]
INT32, INT64 = (1 << 31) - 1, (1 << 63) - 1
WORDS = ("", "a", "x" * 300, "[link=http://x]y[/b]", "\x1b]0;t\x07\x1b[2J", "‮​", "😀" * 40, "0", "-1", "1e999", "NaN",
         "null", "9" * 400, "é", "\x00", "a/b", "../x", "'\"`$(x)", "\r\n\t", "\ud800")  # fmt: skip
QUANTITIES = ("1", "0", "8", "500m", "64Gi", "1n", "9223372036854775807", "9E", "1e99", "9" * 32, ".5", "1.5Gi", "0x1",
              "1E400000", "-1", "٣")  # fmt: skip
TIMES = ("2026-01-02T03:04:05Z", "0001-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "9999-12-31T23:59:59Z",
         "2026-01-02T03:04:06Z", "2026-01-02T09:00:00+05:45", "9999-12-31T23:59:59-12:00")  # fmt: skip
NUMBERS = (0, 1, -1, 0.5, 2, 8, 1e-300, 1e308, -1e308, INT32, INT64, -INT64 - 1, 1 << 53, (1 << 64) - 1, 10**30, 1e15)


def served(value: Any) -> Any:
    """The value as an API server would send it: it is Go, and makes Unicode of every text."""
    return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


class Draw:
    """Reads choices off bytes, from the first to the last."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        """Bytes that are not used yet."""
        return len(self._data) - self._at

    def byte(self) -> int:
        """0 where nothing is left."""
        at = self._at
        if at >= len(self._data):
            return 0
        self._at = at + 1
        return self._data[at]

    def some(self, count: int) -> bytes:
        """The next so many bytes, or fewer."""
        found = self._data[self._at : self._at + count]
        self._at += len(found)
        return found

    def rest(self) -> bytes:
        """All that is left."""
        return self.some(self.left)

    def below(self, count: int) -> int:
        """A number in [0, count)."""
        if count <= 256:
            return self.byte() % count
        return int.from_bytes(self.some((count.bit_length() + 7) // 8), "little") % count

    def chance(self, one_in: int) -> bool:
        """True once in so many times; False where nothing is left."""
        return self.byte() % one_in == one_in - 1

    def pick(self, options: Sequence[T]) -> T:
        """One of these."""
        return options[self.below(len(options))]

    def integer(self, low: int = -INT64 - 1, high: int = INT64) -> int:
        """Both ends and their neighbours, usual sizes, and anything between."""
        edges = [edge for edge in (1, low, high, low + 1, high - 1, 2, 3, 7, 8, 64, 1000, 4096) if low <= edge <= high]
        at = self.byte() % 16
        return edges[at] if at < len(edges) else low + self.below(high - low + 1)

    def number(self, low: float = -1e308, high: float = 1e308) -> float:
        """A finite float, the edges above all."""
        edges = [edge for edge in (1.0, low, high, 0.5, 0.0, 1e-6, 1e-300, 1e15) if low <= edge <= high]
        at = self.byte() % 12
        if at < len(edges):
            return edges[at]
        found: float = struct.unpack("<d", self.some(8).ljust(8, b"\0"))[0]
        return min(max(found, low), high) if found == found else low

    def text(self, most: int = 2048, least: int = 0, usual: Sequence[str] = ()) -> str:
        """A word that is usual or hostile, or any text."""
        at = self.byte()
        options = (*usual, *WORDS)
        drawn = options[at] if at < len(options) else self.some(at % 32).decode("utf-8", "replace")
        return drawn[:most].ljust(least, "a")

    def listed(self, of: Callable[[], T], most: int = 4, least: int = 0) -> list[T]:
        """So many values of one kind."""
        return [of() for _ in range(least + self.below(max(1, most - least + 1)))]

    def json(self, depth: int = 3) -> Any:
        """Any JSON, that may be nested too deep for whoever reads it."""
        match self.below(8):
            case 0:
                return self.text()
            case 1:
                return self.pick(NUMBERS)
            case 2:
                return self.pick((None, True, False, float("nan"), float("inf")))
            case 3:
                return self.integer()
            case 4 if depth:
                return self.listed(lambda: self.json(depth - 1))
            case 5 if depth:
                return {self.text(): self.json(depth - 1) for _ in range(self.below(4))}
            case 6:
                return self.pick(([], {}, [[]] * 70, [None], "\ud800x"))
        return self.number()

    # --- what a schema admits ----------------------------------------------------------------------------------------
    def of(self, schema: Mapping[str, Any]) -> Any:
        """Any value that a structural schema admits."""
        if "enum" in schema:
            return self.pick(schema["enum"])
        if schema.get("x-kubernetes-int-or-string"):
            return self.pick(QUANTITIES) if self.byte() & 1 else self.integer(0, 1 << 31)
        match schema.get("type"):
            case "integer":
                limit = INT32 if schema.get("format") == "int32" else INT64
                return self.integer(schema.get("minimum", -limit - 1), schema.get("maximum", limit))
            case "number":
                return self.number(schema.get("minimum", -1e308), schema.get("maximum", 1e308))
            case "boolean":
                return bool(self.byte() & 1)
            case "string":
                return self._string(schema)
            case "array":
                return self.listed(
                    lambda: self.of(schema["items"]), min(4, schema.get("maxItems", 4)), schema.get("minItems", 0)
                )
            case "object" if "properties" in schema:
                return self.fields(schema)
            case "object" if isinstance(schema.get("additionalProperties"), Mapping):
                return {self.text(63): self.of(schema["additionalProperties"]) for _ in range(self.below(3))}
        return self.json()

    def fields(self, schema: Mapping[str, Any], *, one_in: int = 3) -> Json:
        """All that is required, and some of the rest."""
        required = schema.get("required", ())
        return {
            name: self.of(field)
            for name, field in schema["properties"].items()
            if name in required or self.chance(one_in)
        }

    def _string(self, schema: Mapping[str, Any]) -> str:
        most, least = schema.get("maxLength", 2048), schema.get("minLength", 0)
        if schema.get("format") == "date-time":
            return self.pick(TIMES)
        if "pattern" in schema:
            fitting = (
                "a",
                "a" * most,
                "q",
                "default",
                "H100",
                "A100-SXM4-80GB",
                "x.y-z",
                "trimtab.dev/controller",
                "8",
            )
            return self.pick(fitting)[:most].ljust(least, "a")
        return self.text(most, least)

    # --- what is wrong with it ---------------------------------------------------------------------------------------
    def spoiled(self, value: Any) -> Any:
        """The same with, seldom, a part of it replaced by anything or gone."""
        for _ in range((0, 0, 0, 1, 1, 2)[self.below(6)]):
            place, key = self._place(value)
            if place is None:
                return self.json()
            if self.byte() & 3:
                place[key] = self.json()
            else:
                del place[key]
        return value

    def tweaked(self, value: Any, most: int = 3) -> Any:
        """The same with a few of its leaves at edges of their kind, of its lists doubled, empty or shuffled."""
        for _ in range(self.below(most + 1)):
            place, key = self._place(value)
            if place is None:
                return value
            place[key] = self._alike(place[key])
        return value

    def _alike(self, value: Any) -> Any:
        match value:
            case bool():
                return not value
            case int():
                return self.integer()
            case float():
                return self.number()
            case str():
                return self.text(usual=(value,))
            case list() if value:
                return self.pick(([], value * 2, value[:1], value[::-1], [self.pick(value)] * 3))
            case dict() if value:
                left = self.pick(list(value))
                return {key: each for key, each in value.items() if key != left}
        return self.json()

    def _place(self, value: Any) -> tuple[Any, Any]:
        place: Any = None
        key: Any = None
        while isinstance(value, dict | list) and value and (place is None or self.byte() & 3):
            place, key = value, self.pick(list(value) if isinstance(value, dict) else range(len(value)))
            value = place[key]
        return place, key

    def encoded(self, value: Any) -> bytes:
        """As JSON, seldom with some bytes of it overwritten, doubled or cut off."""
        raw = json.dumps(value, ensure_ascii=bool(self.byte() & 1)).encode("utf-8", "surrogatepass")
        for _ in range((0, 0, 0, 0, 1, 2)[self.below(6)]):
            at = self.below(max(1, len(raw)))
            raw = raw[:at] + self.some(self.below(5)) + raw[at + self.below(5) :]
        return raw
