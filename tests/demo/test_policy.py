"""`trimtab demo --policy`: a name that nobody knows is refused before anything is started."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from trimtab.cli import app
from trimtab.commands import demo


def test_an_unknown_policy_is_refused_before_anything_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(demo, "stage")
    result = CliRunner().invoke(app, ["demo", "--policy", "q_lerning"])
    assert result.exit_code == 1
    assert "unknown policy 'q_lerning'; registered are: " in result.stderr
    assert "q_learning" in result.stderr
