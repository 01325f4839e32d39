"""`hack/screenshots`: pictures of the console's pages, in light and dark, at four widths, as Chromium shows them.

    hack/screenshots FOLDER [PAGE...] [--nodes 16]     FOLDER/PAGE-light-1280.png and so on; all pages unless some are
                                                       named
    hack/screenshots --docs                            those of docs/console-tour.md, anew

Needs Chromium (hack/web/browser installs it). The cluster is the one of the tests (tests/web/town.py).
"""

from __future__ import annotations

import argparse
import asyncio
import io
import sys
from collections.abc import Iterable
from pathlib import Path

from PIL import Image
from tests.web.browser.chromium import CHROMIUM, PAGES, opened

WIDTHS = {390: 844, 1280: 720, 1920: 1080, 2560: 1440}
"""Of a telephone, a notebook, a desk and a large screen: pixels across -> down."""


DOCS = Path(__file__).resolve().parents[2] / "docs" / "pictures"
IN_DOCS = 1280
"""Pixels across of the pictures in the documentation."""


async def take(folder: Path, pages: list[str], nodes: int, widths: Iterable[int] = tuple(WIDTHS)) -> None:
    """Write a picture of every page to the folder."""
    for scheme in ("light", "dark"):
        for width in widths:
            height = WIDTHS[width]
            async with opened(nodes, viewport={"width": width, "height": height}, color_scheme=scheme) as console:
                for name in pages:
                    await console.show(name)
                    file = folder / f"{stem(name)}-{scheme}-{width}.png"
                    _write(file, await console.page.screenshot(full_page=True))
                    print(file)


def stem(page: str) -> str:
    """How the pictures of a page are called."""
    path, _, query = page.partition("?")
    return path.rsplit("/", maxsplit=1)[-1] + ("-asked" if query else "")


def of_docs() -> list[str]:
    """Pages in the documentation: a form is shown filled in only."""
    return [name for name in PAGES if not any(other.startswith(f"{name}?") for other in PAGES)]


def _write(file: Path, picture: bytes) -> None:
    """With 256 colours, which is what a page has: a third of the bytes."""
    with Image.open(io.BytesIO(picture)) as shown:
        small = shown.convert("RGB").quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    small.save(file, optimize=True)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="where to put them; made if need be")
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=f"of {', '.join(PAGES)}")
    parser.add_argument("--nodes", type=int, default=16, help="of the cluster that is shown")
    parser.add_argument("--docs", action="store_true", help="make the pictures of the documentation anew")
    given = parser.parse_args()
    if given.docs == (given.folder is not None):
        parser.error("name a folder, or --docs and nothing else")
    if unknown := set(given.pages) - set(PAGES):
        parser.error(f"no such page: {', '.join(sorted(unknown))}; there are {', '.join(PAGES)}")
    if CHROMIUM is None:
        sys.exit("error: no Chromium: hack/web/browser")
    folder, widths = (DOCS, [IN_DOCS]) if given.docs else (given.folder, list(WIDTHS))
    folder.mkdir(parents=True, exist_ok=True)
    usual = of_docs() if given.docs else list(PAGES)
    asyncio.run(take(folder, given.pages or usual, given.nodes, widths))


if __name__ == "__main__":
    main()
