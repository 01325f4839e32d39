"""`[ ... ]` and `[[ ... ]]`: true, false, or None where the script alone does not tell."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Sequence
from typing import Final

from trimtab.foreign.expansion import Expander, known, names_in

_INTEGER = re.compile(r"\s*-?[0-9]{1,18}\s*")
_COMPARED: Final[dict[str, Callable[[int, int], bool]]] = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}
_LONGEST = 1000
_MOST_WORDS = 200
_SET_BY_SLURM = "SLURM_"


def holds(words: Sequence[str], expander: Expander) -> bool | None:
    """Whether a condition holds; `words` are raw, with `[`, `[[` or `test` and what ends it."""
    if len(words) > _MOST_WORDS:
        return None
    expander.budget.charge(len(words) ** 2)  # each of its operators takes the list apart once more
    double = words[0] == "[["
    inner = list(words[1:-1] if words[-1] in ("]", "]]") else words[1:])
    return _either(inner, expander, double)


def _either(words: list[str], expander: Expander, double: bool) -> bool | None:
    for operator, decides in (("||", True), ("-o", True), ("&&", False), ("-a", False)):
        if operator not in words:
            continue
        at = words.index(operator)
        found = [_either(part, expander, double) for part in (words[:at], words[at + 1 :])]
        if decides in found:
            return decides
        return None if None in found else not decides
    if words[:1] == ["!"]:
        value = _either(words[1:], expander, double)
        return None if value is None else not value
    if words[:1] == ["("] and words[-1:] == [")"]:
        return _either(words[1:-1], expander, double)
    return _simple(words, expander, double)


def _simple(words: list[str], expander: Expander, double: bool) -> bool | None:
    if len(words) == 1:
        return _filled(expander.single(words[0]))
    if len(words) == 2 and words[0] in ("-n", "-z"):
        filled = _filled(expander.single(words[1]))
        return None if filled is None else filled == (words[0] == "-n")
    if len(words) != 3:
        return None
    left, right = expander.single(words[0]), expander.single(words[2])
    if not (known(left) and known(right)):
        return None
    if words[1] in _COMPARED:
        if not (_INTEGER.fullmatch(left) and _INTEGER.fullmatch(right)):
            return None
        return _COMPARED[words[1]](int(left), int(right))
    if words[1] not in ("=", "==", "!="):
        return None
    as_pattern = double and not words[2].startswith(("'", '"'))
    same = matches(left, right) if as_pattern else left == right
    return None if same is None else same == (words[1] != "!=")


def matches(text: str, pattern: str) -> bool | None:
    """Whether a text matches a pattern of the shell; None where either is too long to try."""
    if len(text) > _LONGEST or len(pattern) > _LONGEST:
        return None
    return fnmatch.fnmatchcase(text, pattern) if any(each in pattern for each in "*?[") else text == pattern


def _filled(text: str) -> bool | None:
    if known(text):
        return bool(text)
    set_before = any(name.startswith(_SET_BY_SLURM) for name in names_in(text))
    return True if set_before or len(text) > sum(len(name) + 2 for name in names_in(text)) else None
