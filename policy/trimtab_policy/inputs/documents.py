"""YAML that somebody wrote: what it holds, or one error that says why not.

PyYAML's safe loader runs no code, but it lets all kinds of exceptions out (ValueError for a 32nd of May, KeyError and
AttributeError for tags that do not fit, RecursionError), and it makes values that nobody after it expects: lists that
hold themselves, a handful of lines that unfold to billions of values, texts that are not Unicode.
"""

from __future__ import annotations

from typing import Any, Final

import yaml

DEEPEST: Final = 64
LARGEST: Final = 20_000_000
"""Values, with each alias counted as often as it is used: a snapshot of the largest cluster has fewer."""
LARGEST_OBJECT: Final = 200_000
"""Values of an object that an API server could have taken, which has at most 3 MiB of JSON."""


class NotYaml(ValueError):
    """A text is no YAML that can be used: why, in one line."""


def parse(text: str | bytes, largest: int = LARGEST) -> Any:
    """What a YAML document holds, of at most so many values; bytes are UTF-8. Raises NotYaml."""
    try:
        found = yaml.safe_load(text)
    except RecursionError:
        raise NotYaml("it is nested too deeply") from None
    except (yaml.YAMLError, ValueError, ArithmeticError, LookupError, AttributeError, TypeError) as error:
        raise NotYaml(" ".join(str(error).split()) or type(error).__name__) from error
    if _size(found, {}, 0) > largest:
        raise NotYaml("its aliases unfold to more than anybody wrote")
    return found


def _size(value: Any, known: dict[int, int], depth: int) -> int:
    """Values in it. Raises NotYaml for what is no tree of texts that can be encoded."""
    if isinstance(value, str):
        if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            raise NotYaml("a text in it is not Unicode: it has half of a surrogate pair")
        return 1
    if not isinstance(value, dict | list | set | tuple):
        return 1
    if depth > DEEPEST:
        raise NotYaml("it is nested too deeply, or holds itself")
    if id(value) not in known:
        parts = (*value, *value.values()) if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_size(part, known, depth + 1) for part in parts)
    return known[id(value)]
