"""Words of a shell script, expanded as far as the script alone tells: variables, defaults, arithmetic, arrays.

What nobody can know before the script runs (the answer of a command, a variable that comes from outside) becomes an
unknown: its name between two NULs, so that it goes on through strings and can be told from text.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from trimtab.foreign.arithmetic import evaluate
from trimtab.foreign.budget import OF_ITEM, Budget, TooLong
from trimtab.foreign.syntax import DEEPEST, skip_quoted

MARK: Final = "\x00"
Value: TypeAlias = "str | list[str]"
_LONGEST_PATTERN, _LONGEST_CUT = 100, 400
_OF_ARITHMETIC, _OF_PATTERN = 8, 20
"""How many characters one of an expression, or of a pattern that is compiled, costs as much as."""
_UNKNOWN = re.compile(MARK + "([^" + MARK + "]*)" + MARK)
_PARAMETER = re.compile(r"([A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?$!-])(?:\[([^\]]{0,64})\])?")
_SIMPLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-]")


def unknown(name: str = "") -> str:
    """The text of a value that is not known, called `name` where it has one."""
    return f"{MARK}{name}{MARK}"


def known(text: str) -> bool:
    """Whether all of a text is known."""
    return MARK not in text


def names_in(text: str) -> list[str]:
    """Names of what is unknown in a text."""
    return _UNKNOWN.findall(text)


def readable(text: str) -> str:
    """A text for people and for Kubernetes: `$(NAME)` where something is unknown."""
    return _UNKNOWN.sub(lambda match: f"$({match[1] or 'UNKNOWN'})", text).replace(MARK, "")


def size(value: Value) -> int:
    """Characters that a value counts as."""
    return OF_ITEM * len(value) + sum(map(len, value)) if isinstance(value, list) else len(value)


class Expander:
    """Expands words by variables; `command` answers what a command substitution prints. All is paid from `budget`."""

    def __init__(
        self, variables: dict[str, Value], command: Callable[[str], str], positional: list[str], budget: Budget
    ) -> None:
        self.budget = budget
        self.variables = variables
        self.positional = positional
        self._command = command
        self._depth = 0

    def fields(self, raw: str) -> list[str]:
        """The words that a word becomes."""
        found: list[str] = []
        open_field: list[str] | None = None
        for text, mode in self._pieces(raw):
            parts = text if isinstance(text, list) else [text]
            if mode == "split":
                assert isinstance(text, str)
                parts = text.split()
                self.budget.charge(OF_ITEM * len(parts))
                if text[:1].isspace() and open_field is not None:
                    found.append("".join(open_field))
                    open_field = None
            for index, part in enumerate(parts):
                if index and open_field is not None:
                    found.append("".join(open_field))
                    open_field = None
                if open_field is None:
                    open_field = []
                open_field.append(part)
            if mode == "split" and isinstance(text, str) and text[-1:].isspace() and parts:
                found.append("".join(open_field or []))
                open_field = None
        if open_field is not None:
            found.append("".join(open_field))
        return found

    def single(self, raw: str) -> str:
        """The text of a word that is not split: what is assigned, or compared."""
        return "".join(" ".join(text) if isinstance(text, list) else text for text, _ in self._pieces(raw))

    def document(self, text: str) -> str:
        """A here-document."""
        return "".join(self._quoted(text))

    def _pieces(self, raw: str) -> Iterator[tuple[Value, str]]:
        """What a word is made of. It is paid for before it is joined: its letters here, and each value by `_dollar`."""
        self.budget.charge(OF_ITEM + len(raw))
        at, plain = 0, 0
        while at < len(raw):
            if raw[at] not in "\\'\"`$<>":
                at += 1
                continue
            if at > plain:
                yield raw[plain:at], "literal"
            end = skip_quoted(raw, at) if raw[at] not in "<>" else len(raw)
            match raw[at]:
                case "\\":
                    yield ("" if raw[at + 1 : end] == "\n" else raw[at + 1 : end]), "literal"
                case "'":
                    yield raw[at + 1 : end - 1 if end - 1 > at and raw[end - 1] == "'" else end], "literal"
                case '"':
                    yield from self._within_quotes(raw[at + 1 : end - 1])
                case "<" | ">":
                    yield unknown(), "literal"
                case _:
                    value, end = self._dollar(raw, at, end)
                    yield (value, "array") if isinstance(value, list) else (value, "split")
            at = plain = max(end, at + 1)
        if at > plain:
            yield raw[plain:at], "literal"

    def _within_quotes(self, text: str) -> Iterator[tuple[Value, str]]:
        if re.fullmatch(r"\$(?:@|\{[A-Za-z_@][A-Za-z0-9_]{0,80}(?:\[@\])?\})", text) and "@" in text:
            value, _ = self._dollar(text, 0, len(text))
            yield value if isinstance(value, list) else [value], "array"
            return
        yield "", "literal"
        for part in self._quoted(text):
            yield part, "literal"

    def _quoted(self, text: str) -> Iterator[str]:
        self.budget.charge(len(text))
        at, plain = 0, 0
        while at < len(text):
            if text[at] not in "\\`$":
                at += 1
                continue
            if at > plain:
                yield text[plain:at]
            end = skip_quoted(text, at)
            if text[at] == "\\":
                follows = text[at + 1 : end]
                yield follows if follows in ("$", "`", '"', "\\") else "" if follows == "\n" else "\\" + follows
            else:
                value, end = self._dollar(text, at, end, quoted=True)
                yield " ".join(value) if isinstance(value, list) else value
            at = plain = max(end, at + 1)
        if at > plain:
            yield text[plain:at]

    def _dollar(self, raw: str, at: int, end: int, quoted: bool = False) -> tuple[Value, int]:
        """The value of what begins at `at`, and where that ends."""
        self._depth += 1
        if self._depth > DEEPEST:
            raise TooLong("its words are nested too deeply")
        value, end = self._substituted(raw, at, end, quoted)
        self._depth -= 1
        self.budget.charge(size(value))
        return value, end

    def _substituted(self, raw: str, at: int, end: int, quoted: bool) -> tuple[Value, int]:
        if raw[at] == "`":
            return self._command(raw[at + 1 : end - 1].replace("\\`", "`").replace("\\$", "$")), end
        if raw.startswith("$'", at) and not quoted:
            return raw[at + 2 : end - 1], end
        if raw.startswith("$((", at) and raw.endswith("))", at, end):
            return self.arithmetic(raw[at + 3 : end - 2]), end
        if raw.startswith("$(", at):
            return self._command(raw[at + 2 : end - 1]), end
        if raw.startswith("${", at):
            return self._parameter(raw[at + 2 : end - 1]), end
        match = _SIMPLE.match(raw, at + 1)
        if match is None:
            return "$", at + 1
        return self._value(match[0]), match.end()

    def arithmetic(self, text: str) -> str:
        """The value of `$(( text ))`."""
        text = self.single(text)
        self.budget.charge(_OF_ARITHMETIC * len(text), "its arithmetic expressions")
        value = evaluate(text, self._number)
        return unknown() if value is None else str(value)

    def _number(self, name: str) -> str:
        value = self.variables.get(name, "")
        return value if isinstance(value, str) else ""

    def _value(self, name: str, index: str | None = None) -> Value:
        value = self.lookup(name, index)
        return unknown(name) if value is None else value

    def lookup(self, name: str, index: str | None = None) -> Value | None:
        """The value of a parameter; None where it is unset."""
        if name in ("@", "*"):
            self.budget.charge(OF_ITEM * len(self.positional))
            return list(self.positional[1:])
        if name == "#":
            return str(max(0, len(self.positional) - 1))
        if name.isdigit():
            return self.positional[int(name)] if len(name) < 4 and int(name) < len(self.positional) else None
        value = self.variables.get(name)
        if isinstance(value, str):
            return value if index in (None, "@", "*", "0") else unknown()
        if value is None or index in ("@", "*"):
            return value
        number = int(found) if known(found := self.arithmetic(index) if index else "0") else None
        if number is None:
            return unknown()
        return value[number] if -len(value) <= number < len(value) else None

    def _parameter(self, inner: str) -> Value:
        if inner.startswith("#") and (match := _PARAMETER.fullmatch(inner, 1)):
            value = self.lookup(match[1], match[2])
            if value is None or (isinstance(value, str) and not known(value)):
                return unknown()
            return str(len(value))
        if inner.startswith("!"):
            return unknown(inner[1:])
        match = _PARAMETER.match(inner)
        if match is None:
            return unknown()
        name, rest = match[1], inner[match.end() :]
        value = self.lookup(name, match[2])
        return self._operated(name, value, rest) if rest else unknown(name) if value is None else value

    def _operated(self, name: str, value: Value | None, rest: str) -> Value:
        operator = next((each for each in (":-", ":=", ":?", ":+", "-", "=", "?", "+") if rest.startswith(each)), "")
        if operator:
            word = rest[len(operator) :]
            missing = value is None or (operator[0] == ":" and value in ("", []))
            if operator[-1] == "+":
                return "" if missing else self.single(word)
            if not missing:
                assert value is not None
                return value
            if operator[-1] == "?":
                return unknown(name)
            default = self.single(word)
            if operator[-1] == "=":
                self.variables[name] = default
            return default
        if value is None:
            return unknown(name)
        if isinstance(value, list):
            return value if len(value) == 0 else unknown(name)
        return self._cut(name, value, rest) if known(value) else unknown(name)

    def _cut(self, name: str, value: str, rest: str) -> str:
        if rest in (",,", "^^"):
            return value.lower() if rest == ",," else value.upper()
        if len(value) > _LONGEST_CUT or len(rest) > _LONGEST_PATTERN:
            return unknown(name)
        if rest.startswith(("##", "%%", "#", "%")):
            longest = rest[:2] in ("##", "%%")
            pattern = self.single(rest[1 + longest :])
            if len(pattern) > _LONGEST_PATTERN:
                return unknown(name)
            self.budget.charge(len(value) * (len(pattern) + 1) + _OF_PATTERN * len(pattern), "its patterns")
            return _trimmed(value, pattern, at_end=rest[0] == "%", longest=longest)
        if rest.startswith("/"):
            pattern, _, replacement = rest[1 + rest.startswith("//") :].partition("/")
            pattern, replacement = self.single(pattern), self.single(replacement)
            if not pattern or any(each in pattern for each in "*?[") or not known(pattern):
                return unknown(name)
            most = -1 if rest.startswith("//") else 1
            self.budget.charge(len(replacement) * (value.count(pattern) if most < 0 else 1))
            return value.replace(pattern, replacement, most)
        return unknown(name)


def _trimmed(value: str, pattern: str, at_end: bool, longest: bool) -> str:
    matches = re.compile(fnmatch.translate(pattern)).fullmatch
    lengths = range(len(value), -1, -1) if longest else range(len(value) + 1)
    for length in lengths:
        if matches(value[len(value) - length :] if at_end else value[:length]):
            return value[: len(value) - length] if at_end else value[length:]
    return value
