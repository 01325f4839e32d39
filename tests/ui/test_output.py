"""One result, three forms."""

from __future__ import annotations

import io
import json

import pytest
import yaml
from rich.table import Table
from rich.text import Text

from trimtab.ui.form import Output
from trimtab.ui.output import show
from trimtab.ui.terminal import Console

VALUE = {"name": "größe", "gpus": [1, 2]}


def test_json_and_yaml_carry_the_same_value(capsys: pytest.CaptureFixture[str]) -> None:
    show(Output.JSON, VALUE, Text("a table"))
    assert json.loads(capsys.readouterr().out) == VALUE
    show(Output.YAML, VALUE, Text("a table"))
    assert yaml.safe_load(capsys.readouterr().out) == VALUE


def test_people_get_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    show(Output.TABLE, VALUE, Text("a table"))
    assert capsys.readouterr().out == "a table\n"


def test_a_pipe_gets_no_blanks_at_the_end_of_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("NAME", "STATE", box=None)
    table.add_row("a-long-name", "ok")
    table.add_row("b", "waits")
    show(Output.TABLE, VALUE, table)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [["NAME", "STATE"], ["a-long-name", "ok"], ["b", "waits"]]
    assert all(line == line.rstrip() for line in lines)


def test_no_color_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    def printed() -> str:
        where = Console(file=io.StringIO(), force_terminal=True, color_system="standard")
        with where.capture() as captured:
            where.print(Text("Running", "green"))
        return captured.get()

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[32m" in printed()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[32m" not in printed()
