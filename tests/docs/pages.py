"""The documentation's pages, and the commands in them: in blocks, by what runs them, and within sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from trimtab_local.checkout import checkout

ROOT: Final = checkout()
DOCS: Final = ROOT / "docs"
GENERATED: Final = {DOCS / "reference" / name for name in ("api.md", "commands.md", "metrics.md", "settings.md")}
PAGES: Final = {
    path: path.read_text()
    for path in (
        *sorted((ROOT / "charts").glob("**/*.md")),
        ROOT / "README.md",
        ROOT / "hack" / "README.md",
        *sorted({*DOCS.glob("**/*.md")} - GENERATED),
    )
}
"""Text of each page that somebody has written. The order is the one in which Helm's commands make sense: install first,
and what docs/tasks/upgrade.md uninstalls last."""
ORDER: Final = [DOCS / name for name in re.findall(r"^1\. \[.*\]\((.*)\)$", PAGES[DOCS / "index.md"], re.MULTILINE)]
"""Pages whose commands share one shell, in the order in which the index has them."""

RUN_BY: Final = {
    "sh": "tests/docs/test_readme.py",
    "sh chart": "tests/chart/test_api_server.py",
    "sh cluster": "tests/kind/test_readme.py",
    "sh release": "tests/supply/test_release.py",
    "sh elsewhere": "",
}
"""Which test runs the blocks that begin with these words behind the three backticks."""
FENCED: Final = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED: Final = re.compile(r"^ {4}(\S.*)$", re.MULTILINE)
SPAN: Final = re.compile(r"`([^`]+)`")
OURS: Final = ("trimtab ", "helm ", "kubectl ", "./hack/", "hack/")
"""How a command begins."""
PROGRAM: Final = re.compile(
    r"(?:\$ )?(?:trimtab|helm|kubectl|(?:\./)?hack/\S+|curl|pip|claude|docker|openssl|cosign|eval|export|git|sed"
    r"|python3?)\s"
)
"""How a line begins that somebody would type."""


def blocks(kind: str, page: Path | None = None) -> list[str]:
    """Blocks of that kind: of one page, or of all."""
    texts = PAGES.values() if page is None else (PAGES[page],)
    return [block for text in texts for found, block in FENCED.findall(text) if found == kind]


def typed_elsewhere(text: str) -> list[str]:
    """Lines that somebody would type, and that stand in no block of commands."""
    others = [block for kind, block in FENCED.findall(text) if kind not in RUN_BY]
    lines = [line for block in others for line in block.splitlines()] + INDENTED.findall(FENCED.sub("", text))
    return [line for line in lines if PROGRAM.match(f"{line} ")]


def mentions(text: str) -> Iterator[str]:
    """Commands within sentences, which may go on in the next line; parts of a pipe or a sequence one by one."""
    prose = re.sub(r"(`{2,}).*?\1", "", re.sub(r"\n(?!\n)", " ", FENCED.sub("", text)))
    for span in SPAN.findall(prose):
        for part in re.split(r"; | \| ", span):
            command = re.sub(r'^eval "\$\((.*)\)"$', r"\1", " ".join(part.split()))
            if command.startswith(OURS):
                yield command
