"""Commands of the documentation that no test runs, such as those for a cluster of one's own: they exist all the same.

Blocks that begin with ```sh are run (test_readme.py, ../kind). Of all others, and of commands within sentences, every
subcommand and option of `trimtab`, every value of the chart and every file is looked up.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from trimtab.cli import app
from trimtab_local.checkout import checkout

ROOT = checkout()
GENERATED = {ROOT / "docs" / "reference" / name for name in ("api.md", "commands.md", "metrics.md", "settings.md")}
PAGES = [
    ROOT / "README.md",
    ROOT / "hack" / "README.md",
    *sorted((ROOT / "charts").glob("**/*.md")),
    *sorted({*(ROOT / "docs").glob("**/*.md")} - GENERATED),
]
SPAN = re.compile(r"`([^`\n]+)`")
BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^ {4}(\S.*)$", re.MULTILINE)
BEGINS = ("trimtab ", "helm ", "kubectl ", "./hack/", "hack/")
END = frozenset({"|", "||", "&&", ";", ">", "--", "#"})


def commands(text: str) -> Iterator[str]:
    """Whatever looks like a command and is not run, continued lines as one."""
    prose = BLOCK.sub("", text)
    blocks = [block for kind, block in BLOCK.findall(text) if not kind.startswith("sh")]
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    lines += INDENTED.findall(prose.replace("\\\n", " "))
    spans = SPAN.findall(prose)
    for line in (*lines, *spans):
        for part in re.split(r"; | \| ", line):
            if part.strip().startswith(BEGINS):
                yield part.strip()


def words_of(command: str) -> list[str]:
    """The words up to a pipe, a remark or what is handed on."""
    try:
        words = shlex.split(command, comments=True)
    except ValueError:  # a command that a sentence shortens within quotes
        words = command.split()
    stop = next((index for index, word in enumerate(words) if word in END or word.startswith((">", "2>"))), len(words))
    return words[:stop]


@cache
def root() -> Any:
    return get_command(app)


def lookup(words: list[str]) -> str:
    """Why `trimtab` would not understand the words, by name alone; empty where it would."""
    command, index = root(), 1
    while index < len(words) and hasattr(command, "commands") and re.fullmatch(r"[a-z][a-z-]*", words[index]):
        inner = command.get_command(None, words[index])
        if inner is None:
            return f"there is no `{' '.join(words[: index + 1])}`"
        command, index = inner, index + 1
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    known |= {"--help", "-h", "--version", "--install-completion", "--show-completion"}
    asked = {word.partition("=")[0] for word in words[index:] if re.match(r"--?[A-Za-z]", word)}
    return f"no option of `{' '.join(words[:index])}`: {', '.join(sorted(asked - known))}" if asked - known else ""


def values(words: list[str]) -> list[str]:
    """Keys of --set that the chart does not have; what stands below `settings` is the settings' own."""
    known = yaml.safe_load((ROOT / "charts/trimtab/values.yaml").read_text())
    unknown = []
    for before, word in pairwise(words):
        place: Any = known
        path = word.partition("=")[0].split(".") if before == "--set" else []
        for key in path if path[:1] != ["settings"] else []:
            if not isinstance(place, dict) or key not in place:
                unknown.append(word)
                break
            place = place[key]
    return unknown


def missing(words: list[str]) -> list[str]:
    """Files of the checkout that are not there."""
    named = [word for word in words if re.match(r"(?:\./)?(?:hack|manifests|charts)/[\w./-]+$", word)]
    return [word for word in named if not (ROOT / word).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_that_are_not_run_exist(page: Path) -> None:
    wrong = []
    for command in commands(page.read_text()):
        words = words_of(command)
        wrong += [f"{command}: there is no {name}" for name in missing(words)]
        if words[0] == "trimtab" and (why := lookup(words)):
            wrong.append(f"{command}: {why}")
        if words[0] == "helm":
            wrong += [f"{command}: the chart has no {word}" for word in values(words)]
    assert wrong == []


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        ("trimtab get jobs -A --watch", False),
        ("trimtab get jbos", True),
        ("trimtab explain JOB --why-nott H100", True),
        ("helm upgrade trimtab charts/trimtab --set web.enabled=true", False),
        ("helm upgrade trimtab charts/trimtab --set web.enabld=true", True),
        ("kubectl apply -f manifests/nowhere.yaml", True),
    ],
)
def test_one_that_does_not_exist_would_be_found(command: str, wrong: bool) -> None:
    text = f"Do `{command}`, or\n\n    {command}\n\n```text\n{command}\n```\n"
    assert list(commands(text)) == [command] * 3
    words = words_of(command)
    found = [*missing(words), *values(words), *([lookup(words)] if words[0] == "trimtab" and lookup(words) else [])]
    assert bool(found) == wrong
