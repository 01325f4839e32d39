"""`$((A * B))`: whole numbers as a shell reckons, in bounded time; None where the text alone does not tell."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

_LARGEST: Final = 1 << 62
_LONGEST, _DEEPEST = 2000, 30
_TOKEN = re.compile(r"\s*(\d+|[A-Za-z_]\w*|\*\*|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%()<>!])")
_LEVELS: Final = (("||",), ("&&",), ("==", "!="), ("<", ">", "<=", ">="), ("<<", ">>"), ("+", "-"), ("*", "/", "%"))


class _Unknown(Exception):
    """The value is not to be had."""


def evaluate(text: str, variable: Callable[[str], str]) -> int | None:
    """The value of an expression; `variable` gives the text of a name, which must be a number."""
    if len(text) > _LONGEST:
        return None
    found: list[str] = []
    at = 0
    text = text.strip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            return None
        found.append(match[1])
        at = match.end()
    try:
        reader = _Reader(found, variable)
        value = reader.level(0)
        return value if reader.done() else None
    except _Unknown:
        return None


class _Reader:
    def __init__(self, found: list[str], variable: Callable[[str], str]) -> None:
        self._tokens, self._variable, self._at, self._depth = found, variable, 0, 0

    def done(self) -> bool:
        """Whether nothing is left."""
        return self._at == len(self._tokens)

    def _next(self) -> str:
        return "" if self.done() else self._tokens[self._at]

    def level(self, level: int) -> int:
        """The value of what binds at least as tightly."""
        if level == len(_LEVELS):
            return self._power()
        value = self.level(level + 1)
        while (operator := self._next()) in _LEVELS[level]:
            self._at += 1
            value = _apply(operator, value, self.level(level + 1))
        return value

    def _power(self) -> int:
        base = self._unary()
        if self._next() != "**":
            return base
        self._at += 1
        self._enter()
        exponent = self._power()
        if not 0 <= exponent < 64 or abs(base) > 1 << 20:
            raise _Unknown
        return _bounded(base**exponent)

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise _Unknown

    def _unary(self) -> int:
        part = self._next()
        self._at += 1
        self._enter()
        if part == "(":
            value = self.level(0)
            if self._next() != ")":
                raise _Unknown
            self._at += 1
        elif part in ("-", "+", "!"):
            value = self._unary()
            value = {"-": -value, "+": value, "!": int(not value)}[part]
        else:
            value = self._number(part)
        self._depth -= 1
        return value

    def _number(self, token: str) -> int:
        text = token if token[:1].isdigit() else self._variable(token) if token.isidentifier() else ""
        if len(text) > _LONGEST or not re.fullmatch(r"-?[0-9]{1,18}", text.strip()):
            raise _Unknown
        return int(text)


def _bounded(value: int) -> int:
    if abs(value) > _LARGEST:
        raise _Unknown
    return value


def _apply(operator: str, left: int, right: int) -> int:
    if operator in ("/", "%"):
        if not right:
            raise _Unknown
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        return quotient if operator == "/" else left - quotient * right
    if operator in ("<<", ">>") and not 0 <= right < 62:
        raise _Unknown
    if operator == "<<":
        return _bounded(left << right)
    return _bounded(_SIMPLE[operator](left, right))


_SIMPLE: Final[dict[str, Callable[[int, int], int]]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    ">>": lambda a, b: a >> b,
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
    "<": lambda a, b: int(a < b),
    ">": lambda a, b: int(a > b),
    "<=": lambda a, b: int(a <= b),
    ">=": lambda a, b: int(a >= b),
    "&&": lambda a, b: int(bool(a and b)),
    "||": lambda a, b: int(bool(a or b)),
}
