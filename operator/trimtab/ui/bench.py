"""Reports of benchmarks for the terminal: the same table as in Markdown, without lines."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table
from rich.text import Text

from trimtab_policy.bench.report import Report, numeric, written


def report(found: Report) -> Group:
    """Title, table, and the notes below it."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name, right in zip(found.columns, numeric(found), strict=True):
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in found.rows:
        table.add_row(*(Text(written(cell)) for cell in row))
    return Group(Text(found.title, "bold"), table, *(Text(note, "dim") for note in found.notes))
