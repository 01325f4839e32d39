"""The forms in which commands answer: a table for people, JSON or YAML for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import yaml
from rich.console import Group, RenderableType
from rich.table import Table

from trimtab.printable import escaped, printable, say
from trimtab.ui.form import ListForm, Output
from trimtab.ui.jsonpath import filled
from trimtab.ui.listing import Listing
from trimtab.ui.terminal import Console

WIDE_ENOUGH = 140
"""Columns of a table that goes to a file or pipe, where no terminal sets a limit."""


def console() -> Console:
    """The console for standard output; a pipe gets room enough not to fold tables."""
    made = Console()
    return made if made.is_terminal else Console(width=WIDE_ENOUGH)


def show(form: Output, value: Any, table: RenderableType) -> None:
    """Print `value` as JSON or YAML, or `table`, which tells the same to people; no terminal obeys any of them."""
    plain = msgspec.to_builtins(value)
    match form:
        case Output.JSON:
            print(escaped(json.dumps(plain, indent=2, ensure_ascii=False)))
        case Output.YAML:
            print(as_yaml(plain), end="")
        case Output.TABLE:
            _print(table)


def _print(table: RenderableType) -> None:
    """To a terminal, or into a pipe: there no line has blanks at its end."""
    where = console()
    if where.is_terminal:
        where.print(table)
        return
    with where.capture() as captured:
        where.print(table, crop=False)
    for line in captured.get().splitlines():
        say(line.rstrip())


def show_list(form: ListForm, kind: str, names: Sequence[str], value: Sequence[Any], table: Listing, one: bool) -> None:
    """Print things as `trimtab get` is asked to; `one` that was asked for by name stands alone in JSON and YAML."""
    plain = msgspec.to_builtins(value[0] if one and value else value)
    if form.path is not None:
        found = filled(form.path, plain if one else {"items": plain})
        print(printable(found, lines=True), end="" if found.endswith("\n") else "\n")
    elif form.names:
        for name in names:
            say(f"{kind}/{name}")
    else:
        show(form.output, plain, table)


def as_yaml(plain: Any) -> str:
    """YAML with its letters as they are; where some of it is not printable, with escapes for all that is not ASCII."""
    told = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
    return told if told == printable(told, lines=True) else yaml.safe_dump(plain, sort_keys=False)


def spaced(parts: Sequence[Any]) -> Group:
    """One below the other, with an empty line between."""
    return Group(*parts[:1], *(each for part in parts[1:] for each in ("", part)))


def folding_table(*columns: str) -> Table:
    """An empty table without lines, whose cells are folded where the terminal is narrow."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold")
    return made
