"""One result, three forms."""

from __future__ import annotations

import json

import pytest
import yaml
from rich.text import Text

from trimtab.ui.form import Output
from trimtab.ui.output import show

VALUE = {"name": "größe", "gpus": [1, 2]}


def test_json_and_yaml_carry_the_same_value(capsys: pytest.CaptureFixture[str]) -> None:
    show(Output.JSON, VALUE, Text("a table"))
    assert json.loads(capsys.readouterr().out) == VALUE
    show(Output.YAML, VALUE, Text("a table"))
    assert yaml.safe_load(capsys.readouterr().out) == VALUE


def test_people_get_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    show(Output.TABLE, VALUE, Text("a table"))
    assert capsys.readouterr().out == "a table\n"
