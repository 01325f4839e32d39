"""`hack/screenshots`: pictures of the console's pages, in light and dark, at three widths, as Chromium shows them.

    hack/screenshots FOLDER [PAGE...] [--nodes 16]     FOLDER/PAGE-light-1280.png and so on; all pages unless some are
                                                       named

Needs Chromium (hack/web/browser installs it). The cluster is the one of the tests (tests/web/town.py).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from tests.web.browser.chromium import CHROMIUM, PAGES, opened

WIDTHS = {390: 844, 1280: 720, 2560: 1440}
"""Of a telephone, a notebook and a large screen: pixels across -> down."""


async def take(folder: Path, pages: list[str], nodes: int) -> None:
    """Write a picture of every page to the folder."""
    for scheme in ("light", "dark"):
        for width, height in WIDTHS.items():
            async with opened(nodes, viewport={"width": width, "height": height}, color_scheme=scheme) as console:
                for name in pages:
                    await console.show(name)
                    path, _, query = name.partition("?")
                    stem = path.rsplit("/", maxsplit=1)[-1] + ("-asked" if query else "")
                    file = folder / f"{stem}-{scheme}-{width}.png"
                    await console.page.screenshot(path=file, full_page=True)
                    print(file)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to put them; made if need be")
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=f"of {', '.join(PAGES)}")
    parser.add_argument("--nodes", type=int, default=16, help="of the cluster that is shown")
    given = parser.parse_args()
    if unknown := set(given.pages) - set(PAGES):
        parser.error(f"no such page: {', '.join(sorted(unknown))}; there are {', '.join(PAGES)}")
    if CHROMIUM is None:
        sys.exit("error: no Chromium: hack/web/browser")
    given.folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(take(given.folder, given.pages or list(PAGES), given.nodes))


if __name__ == "__main__":
    main()
