"""Every command of the documentation is run by a test, or is told here with the reason why none can.

Blocks say behind their backticks what runs them (pages.RUN_BY). Of commands within sentences, what is complete and
reads is run by README's way (mentions.py); of all others subcommands, options, values of the chart and files are looked
up.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.docs.mentions import NOT_RUN, runnable, wrong
from tests.docs.pages import DOCS, FENCED, ORDER, PAGES, ROOT, RUN_BY, blocks, mentions, typed_elsewhere

ELSEWHERE = {
    "claude mcp add trimtab -- trimtab mcp --context prod\n": "Claude Code is not ours; tests/mcp plays it",
    'curl -H "Authorization: Bearer $(kubectl create token NAME)" https://trimtab.example.com/api/v1/jobs\n': (
        "an ingress with a name of its own; tests/live/test_web.py asks the same without"
    ),
}
"""Blocks that no test runs, and why."""
READ_BY_WAY = 45
"""At least so many mentions are run; a change that loses them all would not be seen otherwise."""


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_line_that_somebody_would_type_is_in_a_block_that_is_run(page: Path) -> None:
    text = PAGES[page]
    kinds = {kind for kind, _ in FENCED.findall(text) if kind.startswith("sh")}
    assert kinds <= RUN_BY.keys()
    assert typed_elsewhere(text) == []
    assert "sh" not in kinds or page in ORDER or page == ROOT / "README.md", "it is not in the order of the index"
    assert "sh cluster" not in kinds or page == DOCS / "start" / "install.md"
    assert "sh release" not in kinds or page == ROOT / "hack" / "README.md"


@pytest.mark.parametrize("kind", RUN_BY)
def test_the_test_that_runs_a_kind_of_block_is_there(kind: str) -> None:
    assert blocks(kind)
    assert not RUN_BY[kind] or f'blocks("{kind}"' in (ROOT / RUN_BY[kind]).read_text()


def test_no_command_is_left_out_silently() -> None:
    """Whoever adds one says why, here or in mentions.NOT_RUN, and counts it."""
    assert sorted(blocks("sh elsewhere")) == sorted(ELSEWHERE)
    assert len(ELSEWHERE) == 2
    mentioned = {mention for text in PAGES.values() for mention in mentions(text)}
    assert NOT_RUN.keys() - mentioned == set(), "these are no longer mentioned"
    assert len(NOT_RUN) == 14
    assert sum(bool(runnable(mention)) for mention in mentioned) >= READ_BY_WAY


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_within_sentences_exist(page: Path) -> None:
    assert [f"{mention}: {why}" for mention in mentions(PAGES[page]) for why in wrong(mention)] == []


@pytest.mark.parametrize(
    ("command", "exists"),
    [
        ("trimtab get jobs -A --watch", True),
        ("trimtab get jbos", False),
        ("trimtab explain JOB --why-nott H100", False),
        ("trimtab explain", True),  # named without what it explains
        ("trimtab submit --gpu 8 ... -- COMMAND --flag", False),
        ("trimtab get jobs -o xml", False),
        ("trimtab policies best_fit", False),
        ("helm upgrade trimtab charts/trimtab --set web.enabled=true", True),
        ("helm upgrade trimtab charts/trimtab --set web.enabld=true", False),
        ("kubectl apply -f manifests/nowhere.yaml", False),
        ("hack/fuzz extender --runs 1000", True),
        ("hack/fuzz extender --rums 1000", False),
        ("hack/bench/run rooms", False),
    ],
)
def test_one_that_does_not_exist_would_be_found(command: str, exists: bool) -> None:
    begin, _, end = command.rpartition(" ")
    assert list(mentions(f"Do `{command}`, or `{begin}\n{end}`, or ``{command}``.\n")) == [command] * 2
    assert (not list(wrong(command))) == exists


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("```text\ntrimtab queue\n```\n", True),
        ("So:\n\n    hack/release sign\n", True),
        ("```text\n$ kubectl get nodes\n```\n", True),
        ("```sh\ntrimtab queue\n```\n", False),
        ("```text\ntrimtab-controller leads\n```\n", False),
    ],
)
def test_a_line_to_type_that_no_test_runs_would_be_found(text: str, found: bool) -> None:
    assert bool(typed_elsewhere(text)) == found
