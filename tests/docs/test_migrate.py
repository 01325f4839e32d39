"""Pages for those who come from other systems: what they show as converted is what `trimtab convert` writes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from trimtab.cli import app
from trimtab_local.checkout import checkout

PAGES = sorted((checkout() / "docs" / "migrate").glob("from-*.md"))
FILE = re.compile(r"^cat >(/tmp/\S+) <<'END'\n(.*?)^END$", re.MULTILINE | re.DOTALL)
SHOWN = re.compile(r"^(trimtab convert [^\n]*?)>\S+\n```\n\n```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""The command that ends a block, and the YAML that stands below it."""
PARTS = ("The same job here", "Side by side, and back")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_the_job_that_is_shown_is_the_one_that_is_written(page: Path, tmp_path: Path) -> None:
    text = page.read_text()
    for name, content in FILE.findall(text):
        (tmp_path / Path(name).name).write_text(content)
    [(command, shown)] = SHOWN.findall(text)
    words = shlex.split(command.replace("/tmp/", f"{tmp_path}/"))
    made = CliRunner().invoke(app, words[1:])
    assert made.exit_code == 0, made.output
    assert yaml.safe_load(made.stdout) == yaml.safe_load(shown)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_a_page_has_all_that_whoever_moves_asks_for(page: Path) -> None:
    titles = re.findall(r"^## (.*)$", page.read_text(), re.MULTILINE)
    assert [part for part in PARTS if part not in titles] == []
    assert re.search(r"^\| .* \| here \|$", page.read_text(), re.MULTILINE), "a table of names there and here"
    assert re.search(r"^Not here: ", page.read_text(), re.MULTILINE)
