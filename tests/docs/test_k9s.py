"""The plugin for k9s: what k9s takes, in keys and variables that it has, and commands that exist."""

from __future__ import annotations

import re
import shlex

import pytest
import yaml
from typer.testing import CliRunner

from trimtab import names
from trimtab.cli import app
from trimtab_local.checkout import checkout

FILE = checkout() / "manifests" / "k9s-plugins.yaml"
PLUGINS = yaml.safe_load(FILE.read_text())["plugins"]
FIELDS = {"shortCut", "description", "scopes", "background", "command", "args"}
VARIABLES = {"NAMESPACE", "NAME", "CONTEXT"}
"""Of those that k9s fills in; it refuses a command with any that it has not, such as the shell's own $1."""


def test_it_is_small_and_each_key_does_one_thing() -> None:
    lines = [line for line in FILE.read_text().splitlines() if not line.startswith("#")]
    assert len(lines) == 10
    assert PLUGINS.keys() == {"trimtab-explain", "trimtab-why", "trimtab-logs"}
    keys = [plugin["shortCut"] for plugin in PLUGINS.values()]
    assert len(set(keys)) == len(keys)
    assert all(re.fullmatch(r"Shift-[A-Z]", key) for key in keys)


@pytest.mark.parametrize("name", PLUGINS)
def test_it_runs_a_command_that_there_is_about_the_job_that_is_chosen(name: str) -> None:
    plugin = PLUGINS[name]
    assert plugin.keys() == FIELDS
    assert plugin["scopes"] == [names.JOB_PLURAL]
    assert (plugin["command"], plugin["args"][0], len(plugin["args"])) == ("sh", "-c", 2)
    assert set(re.findall(r"\$(\w+)", plugin["args"][1])) <= VARIABLES
    words = shlex.split(plugin["args"][1].partition(" 2>&1 | less")[0])
    assert words[0] == "trimtab"
    told = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, [words[1], "--help"])
    assert told.exit_code == 0
    assert all(word in told.output for word in words if word.startswith("--"))
