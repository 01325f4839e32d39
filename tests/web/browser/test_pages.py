"""Every page in Debian's Chromium, before the real server: what it shows, and nothing that it must not do.

Needs `chromium-headless-shell` or `chromium` (apt) and, for accessibility, `hack/vendor --tests`; skipped without.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Page, async_playwright
from tests.web.serving import site

CHROMIUM = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium"))), None)
AXE = Path(__file__).resolve().parents[3] / ".browser" / "axe.min.js"
SWITCHES = ["--no-sandbox", "--disable-background-networking"]
PAGES = {
    "overview": "In line",
    "cluster": "The same as a table",
    "timeline": "expected to start; hatched",
    "jobs": "next-up",
    "jobs/team-open/next-up": "Where it stands, and why",
    "queues": "GPU-hours",
    "policies": "Registered policies",
    "plan": "Nothing is submitted",
    "doctor": "not checked",
}
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium-headless-shell")


class Opened:
    """The console in a browser."""

    def __init__(self, page: Page, address: str) -> None:
        self.page, self._address = page, address
        self.wrong: list[str] = []
        """Whatever it does wrong: errors, violations of its policy (they are console errors), other hosts."""
        host = urlsplit(address).netloc
        page.on("console", lambda said: self.wrong.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("request", lambda asked: self.wrong.append(asked.url) if urlsplit(asked.url).netloc != host else None)

    async def show(self, path: str) -> None:
        """Go to a page, and wait until it shows what it is for."""
        await self.page.goto(f"{self._address}#/{path}")
        await self.page.wait_for_function(
            "text => document.querySelector('main').innerHTML.includes(text)", arg=PAGES[path]
        )

    async def violations(self) -> list[str]:
        """What axe-core finds on the page that is shown."""
        await self.page.evaluate(AXE.read_text())
        found = await self.page.evaluate("axe.run()")
        return [f"{each['id']}: {node['html'][:120]}" for each in found["violations"] for node in each["nodes"]]


@contextlib.asynccontextmanager
async def opened(nodes: int = 16, **options: Any) -> AsyncIterator[Opened]:
    """A town's console. `options` are those of a page: viewport, color_scheme and so on."""
    async with site(nodes=nodes) as made, async_playwright() as tools:
        browser = await tools.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        yield Opened(await browser.new_page(**options), made.url + made.server.place.path)
        await browser.close()


@pytest.mark.parametrize("path", PAGES)
async def test_a_page_shows_what_it_is_for_and_does_nothing_else(path: str) -> None:
    async with opened() as console:
        await console.show(path)
    assert console.wrong == []


async def test_one_goes_from_page_to_page_and_nothing_of_the_last_is_left_behind() -> None:
    async with opened() as console:
        for path in [*PAGES, *reversed(PAGES)]:
            await console.show(path)
            await console.page.set_viewport_size({"width": 900, "height": 700})
            await console.page.set_viewport_size({"width": 1280, "height": 720})
    assert console.wrong == []


@pytest.mark.skipif(not AXE.is_file(), reason="no axe-core: hack/vendor --tests")
@pytest.mark.parametrize("path", PAGES)
async def test_a_page_can_be_used_by_everybody(path: str) -> None:
    async with opened() as console:
        await console.show(path)
        assert await console.violations() == []
