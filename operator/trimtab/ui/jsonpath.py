r"""Templates of `-o jsonpath`, as kubectl has them: the part of them that lists of names are made with.

    {.items[*].name}    {.status.plan.gpuType}    {range .items[*]}{.name}{"\n"}{end}

What stands outside of braces is printed as it is. A field that is not there prints nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trimtab.errors import UsageError

_PART = re.compile(r"\{([^{}]*)\}|([^{}]+|[{}])")
_STEP = re.compile(r"\.(?P<field>[A-Za-z_][\w-]*)|\['(?P<quoted>[^']+)'\]|\[(?P<at>-?\d+|\*)\]|\.(?P<all>\*)")
HELP = """write {.field}, {.items[*].name}, {"\\n"} or {range .items[*]}…{end}"""


def filled(template: str, value: Any) -> str:
    """The template with what it names of a value of mappings, lists and plain values. Raises UsageError."""
    parts = [(match[1], match[2]) for match in _PART.finditer(template)]
    if any(text in ("{", "}") for _, text in parts):
        raise UsageError(f"-o jsonpath: a brace has no other one in {template!r}; {HELP}")
    made, at = _filled(parts, 0, value)
    if at < len(parts):
        raise UsageError(f"-o jsonpath: {{end}} without {{range}} in {template!r}; {HELP}")
    return made


def _filled(parts: Sequence[tuple[str | None, str | None]], at: int, value: Any) -> tuple[str, int]:
    """What the parts from `at` come to, up to the end or {end}, and where that is."""
    made = ""
    while at < len(parts):
        inside, text = parts[at]
        if inside is None:
            made += text or ""
        elif inside.strip() == "end":
            return made, at
        elif inside.strip().startswith("range "):
            found = list(_found(inside.strip().removeprefix("range ").strip(), value))
            ends = _filled(parts, at + 1, None)[1]
            if ends >= len(parts):
                raise UsageError(f"-o jsonpath: {{range}} without {{end}}; {HELP}")
            made += "".join(_filled(parts, at + 1, each)[0] for each in found)
            at = ends
        elif inside.strip().startswith('"'):
            made += _text(inside.strip())
        else:
            made += " ".join(map(_plain, _found(inside.strip(), value)))
        at += 1
    return made, at


def _found(path: str, value: Any) -> Iterator[Any]:
    """Every value that a path leads to."""
    steps, end = [], 0
    path = path.removeprefix("$").removeprefix("@")
    while end < len(path):
        step = _STEP.match(path, end)
        if not step:
            if path == ".":
                break
            raise UsageError(f"-o jsonpath: {path!r} is not understood at {path[end:]!r}; {HELP}")
        steps.append(step)
        end = step.end()
    found = [value]
    for step in steps:
        found = [below for each in found for below in _below(each, step)]
    yield from found


def _below(value: Any, step: re.Match[str]) -> Iterator[Any]:
    if name := step["field"] or step["quoted"]:
        if isinstance(value, Mapping) and value.get(name) is not None:
            yield value[name]
    elif step["all"] or step["at"] == "*":
        yield from value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    elif isinstance(value, list | tuple) and -len(value) <= int(step["at"]) < len(value):
        yield value[int(step["at"])]


def _text(quoted: str) -> str:
    try:
        return str(json.loads(quoted))
    except ValueError as error:
        raise UsageError(f"-o jsonpath: {quoted} is no text in quotes; {HELP}") from error


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
