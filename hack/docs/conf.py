"""How Sphinx makes the site of docs/ (hack/docs/build). The pages are plain Markdown, which forges show as well."""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

from trimtab import __version__

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"\[([^\]]+)\]\(([^)#:\s]+)(?:#[^)]*)?\)")
SECTION = re.compile(r"^## (.+)\n\n((?:(?:1\.|-) .*\n(?:  .*\n)*)+)", re.MULTILINE)

project = "Trimtab"
version = release = __version__
extensions = ["myst_parser"]
root_doc = "index"
source_suffix = {".md": "markdown"}
nitpicky = True
myst_heading_anchors = 4  # headings can be linked to, as on a forge
html_theme = "furo"
html_title = f"Trimtab {__version__}"
html_show_sphinx = False
html_show_copyright = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}


def adapt(_: Sphinx, page: str, source: list[str]) -> None:
    """Links to what is no page, such as a manifest, name the file; the lists of index.md lead through the site."""
    folder = (DOCS / page).parent
    text = LINK.sub(lambda link: _named(folder, link), source[0])
    source[0] = text + "".join(map(_contents, SECTION.finditer(source[0]))) if page == "index" else text


def _named(folder: Path, link: re.Match[str]) -> str:
    path = (folder / link[2]).resolve()
    if path.is_relative_to(DOCS) or not path.exists():  # Sphinx follows the one, and complains of the other
        return link[0]
    return f"{link[1]} (`{path.relative_to(ROOT)}`)"


def _contents(section: re.Match[str]) -> str:
    pages = [found[2].removesuffix(".md") for found in LINK.finditer(section[2]) if found[2].endswith(".md")]
    return "\n".join(["", "```{toctree}", ":hidden:", f":caption: {section[1]}", "", *pages, "```", ""])


def copy(app: Sphinx, failed: Exception | None) -> None:
    """Beside each page its Markdown, and the index as llms.txt: for programs, which read that more easily than HTML."""
    if failed:
        return
    for page in DOCS.glob("**/*.md"):
        target = Path(app.outdir) / page.relative_to(DOCS)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page.read_text(encoding="utf-8"), encoding="utf-8")
    (Path(app.outdir) / "llms.txt").write_text((DOCS / "index.md").read_text(encoding="utf-8"), encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", adapt)
    app.connect("build-finished", copy)
