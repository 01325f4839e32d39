"""Commands that are too long for CI say when they were last run as a whole, and on which commit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hack import last_runs

COMMAND = "hack/faults --all"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("CI", raising=False)
    return tmp_path / "last-runs.json"


def test_what_was_never_run_says_so(file: Path) -> None:
    assert last_runs.told(COMMAND, file) == "hack/faults --all: no whole run has been noted yet"


def test_the_next_run_tells_of_the_last_one(file: Path) -> None:
    said = last_runs.note(COMMAND, "1004 crashes, 0 lives with violations", last_runs.commit_now(), file)
    assert "commit it" in said
    last_runs.note("hack/test --kind --all", "41 passed", "3f9ac2d41b07", file)
    told = last_runs.told(COMMAND, file)
    pattern = r"hack/faults --all: last run \d{4}-\d\d-\d\d on [0-9a-f]{12}( with changes)?: 1004 crashes, 0 lives.*"
    assert re.fullmatch(pattern, told)
    last_runs.note(COMMAND, "7 crashes, 1 lives with violations", "3f9ac2d41b07", file)
    assert last_runs.told(COMMAND, file).endswith(" on 3f9ac2d41b07: 7 crashes, 1 lives with violations")


def test_ci_notes_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    assert "41 passed" in last_runs.note("hack/test --kind --all", "41 passed", "3f9ac2d41b07", file)
    assert not file.exists()


def test_what_is_committed_can_be_told() -> None:
    for command in (COMMAND, "hack/test --kind --all", "hack/test --long"):
        assert last_runs.told(command).startswith(f"{command}: ")
