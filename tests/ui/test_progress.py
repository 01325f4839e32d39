"""Progress where nobody looks at a terminal: few lines, on stderr."""

from __future__ import annotations

import pytest

from trimtab.ui.progress import progress, step


def test_a_log_gets_a_line_every_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("baking", 40) as bar:
        for _ in range(40):
            bar.advance()
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [f"baking: {done}/40" for done in range(0, 41, 4)]


def test_a_step_is_told_when_it_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    with step("baking [in the oven]"):
        assert capsys.readouterr().err == ""
    assert capsys.readouterr().err.startswith("baking [in the oven] (")


def test_a_step_that_fails_is_not_told_as_done(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="burnt"), step("baking"):
        raise ValueError("burnt")
    assert capsys.readouterr().err == ""
