"""Tests that run apart: which of them a command runs, and what is told of those that it leaves out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from tests import conftest

from trimtab_local.checkout import checkout

TESTS = checkout() / "tests"
MARKS: dict[str, set[str]] = {
    "usual": set(),
    "slow": {"long"},
    "essential": {"kind", "essential"},
    "rare": {"kind"},
}


def run(*words: str) -> Any:
    """The configuration of a run with these arguments."""
    return SimpleNamespace(
        invocation_params=SimpleNamespace(args=words),
        getoption=lambda name: name in words,
        hook=SimpleNamespace(pytest_deselected=lambda items: None),
        rootpath=TESTS.parent,
        stash=pytest.Stash(),
    )


@dataclass(frozen=True)
class Item:
    """A test."""

    name: str
    path = TESTS / "test_item.py"

    def get_closest_marker(self, name: str) -> bool | None:
        return name in MARKS[self.name] or None


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        ([], ["usual"]),
        (["--long"], ["slow"]),
        (["--kind"], ["essential"]),
        (["--kind", "--all"], ["essential", "rare"]),
        (["--all"], ["usual"]),
    ],
    ids=" ".join,
)
def test_a_command_runs_what_it_names(words: list[str], chosen: list[str]) -> None:
    config = run(*words)
    items: Any = [Item(name) for name in MARKS]
    conftest.pytest_collection_modifyitems(config, items)
    assert [each.name for each in items] == chosen


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--kind", "--all"], "hack/test --kind --all: "),
        (["--all", "--kind"], "hack/test --kind --all: "),
        (["--kind"], "left out here: hack/test --kind --all: "),
        (["--long"], "hack/test --long: "),
        (["--kind", "--all", "-k", "chart"], ""),
        ([], ""),
    ],
    ids=" ".join,
)
def test_a_run_tells_when_the_whole_was_last_run(words: list[str], told: str) -> None:
    assert "".join(conftest.pytest_report_header(run(*words))).startswith(told)
    assert bool(conftest.pytest_report_header(run(*words))) == bool(told)


def test_what_needs_kind_lies_in_its_folder() -> None:
    """A run with --kind reads no other files."""
    marked = {path for path in TESTS.rglob("test_*.py") if re.search(r"pytest\.mark\.kind\b", path.read_text())}
    assert {path.parent.name for path in marked - {TESTS / "layout" / "test_apart.py"}} == {"kind"}
    config = run("--kind")
    assert conftest.pytest_ignore_collect(TESTS / "live", config)
    assert conftest.pytest_ignore_collect(TESTS / "kind", config) is None
    assert conftest.pytest_ignore_collect(TESTS / "kind" / "test_kind.py", config) is None
    assert conftest.pytest_ignore_collect(TESTS / "live", run()) is None
