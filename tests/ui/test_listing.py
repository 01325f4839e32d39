"""What `get` prints: whole names on a narrow terminal, whole lines into a pipe."""

from __future__ import annotations

import io

import pytest
from rich.progress_bar import ProgressBar

from trimtab.ui.listing import Listing
from trimtab.ui.terminal import Console, Text

NAME, WHY = "a-job-of-a-name-that-is-long-and-stays-whole", "its GPUs are unhealthy: GPU 0 has had XID 79 a while ago"

ALL = len(f"{NAME}  h100-[0-3]  GPUS  {WHY}")


def table(**how: bool) -> Listing:
    made = Listing(("NAME", "NODES", "GPUS", "WHY"), less=("NODES", "GPUS"), right=("GPUS",), **how)
    made.add(NAME, "h100-[0-3]", "32", Text(WHY, "red"))
    made.add("b", "-", "4", "ok")
    return made


def printed(table: Listing, width: int = 80, *, terminal: bool = True) -> list[str]:
    out = io.StringIO()
    where = Console(file=out, width=width, force_terminal=terminal, color_system=None)
    where.print(table, crop=terminal)
    return out.getvalue().splitlines()


def test_a_pipe_gets_one_line_a_row_with_nothing_cut_or_padded() -> None:
    made = table()
    made.add("c", "-", "1", "two\nlines")
    lines = printed(made, width=10, terminal=False)
    assert len(lines) == 4
    assert lines[1] == f"{NAME}  h100-[0-3]    32  {WHY}"
    assert lines[3].endswith("1  two; lines")
    assert all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize(("width", "kept"), [(200, 4), (ALL, 4), (ALL - 1, 3), (ALL - 12, 3), (ALL - 13, 2)])
def test_the_least_important_columns_go_first_and_names_stay_whole(width: int, kept: int) -> None:
    head, first, *_ = printed(table(), width)
    assert len(head.split()) == kept
    assert first.startswith(f"{NAME}  ")
    assert max(map(len, printed(table(), width))) <= width


def test_sentences_go_on_below_themselves() -> None:
    head, *lines = printed(table(sentences=True), 70)
    assert head.split() == ["NAME", "GPUS", "WHY"]
    starts = head.index("WHY")
    assert " ".join(line[starts:].strip() for line in lines[:-1]) == WHY
    assert all(not line[:starts].strip() for line in lines[1:-1])
    assert max(map(len, lines)) <= 70


def test_column_names_can_be_left_out() -> None:
    assert len(printed(table(headers=False), terminal=False)) == 2


def test_a_bar_is_drawn() -> None:
    made = Listing(("NAME", "DONE", "STATE"))
    made.add("a", ProgressBar(1.0, 1.0, width=6), "Running")
    assert printed(made)[1] == "a     ━━━━━━  Running".replace("a     ", "a     ")
