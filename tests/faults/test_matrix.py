"""The table of faults is complete, and tells the truth about the tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ROWS = [line for line in (HERE / "MATRIX.md").read_text().splitlines() if re.match(r"\| F\d+ ", line)]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def test_every_row_is_there_once_and_in_order() -> None:
    assert [row.split("|")[1].strip() for row in ROWS] == [f"F{number}" for number in range(1, 38)]


def test_every_row_has_a_test_or_says_why_not() -> None:
    assert [row for row in ROWS if not NAMED.search(row) and "none:" not in row] == []


def test_every_test_that_is_named_exists() -> None:
    missing = []
    for path, name in NAMED.findall("\n".join(ROWS)):
        file = ROOT / path
        tree = ast.parse(file.read_text()) if file.exists() else ast.Module([], [])
        there = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        if name not in there:
            missing.append(f"{path}::{name}")
    assert missing == []
