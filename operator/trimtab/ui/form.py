"""The forms in which commands answer, by name: apart from what prints them, which loads much."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Output(StrEnum):
    """Values of `-o`."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


class ListForm(NamedTuple):
    """What `-o` of `trimtab get` asks for."""

    output: Output = Output.TABLE
    """`table` also for `wide` and `name`, which people and pipes read line by line."""
    wide: bool = False
    names: bool = False
    path: str | None = None
    """Template of `jsonpath=TEMPLATE`."""


LIST_FORMS = ("table", "wide", "name", "json", "yaml", "jsonpath=TEMPLATE")


def list_form(text: str) -> ListForm:
    """Read `-o` of `trimtab get`. Raises ValueError."""
    kind, given, path = text.partition("=")
    match kind:
        case "jsonpath" if given:
            return ListForm(path=path)
        case "wide" | "name" | "table" | "json" | "yaml" if not given:
            output = Output(kind) if kind in ("json", "yaml") else Output.TABLE
            return ListForm(output, wide=kind == "wide", names=kind == "name")
    raise ValueError(f"{text!r} is none of {', '.join(LIST_FORMS)}")
