"""Print a result as a table for people or as JSON or YAML for programs."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import yaml
from rich.console import Console, RenderableType

WIDE_ENOUGH = 140
"""Columns of a table that goes to a file or pipe, where no terminal sets a limit."""


def console() -> Console:
    """The console for standard output; a pipe gets room enough not to fold tables."""
    made = Console()
    return made if made.is_terminal else Console(width=WIDE_ENOUGH)


def show(form: str, value: Any, table: RenderableType) -> None:
    """Print `value` in the form `json` or `yaml`, `table` otherwise."""
    plain = msgspec.to_builtins(value)
    if form == "json":
        print(json.dumps(plain, indent=2, ensure_ascii=False))
    elif form == "yaml":
        print(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True), end="")
    else:
        console().print(table)
