"""The console in Debian's Chromium, before the real server, for tests and for pictures of it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, Page, async_playwright
from tests.web.serving import ApiServer, Site, site

CHROMIUM = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium"))), None)
AXE = Path(__file__).resolve().parents[3] / ".browser" / "axe.min.js"
SWITCHES = ["--no-sandbox", "--disable-background-networking"]
ASKED = "whatif?change={%22nodes%22:{%22remove%22:[%22n1*%22]}}"
"""A question: half of a town's nodes are drained."""
PAGES = {
    "overview": "In line",
    "cluster": "The same as a table",
    "timeline": "expected to start; hatched",
    "jobs": "next-up",
    "jobs/team-open/next-up": "Where it stands, and why",
    "jobs/team-open/run-0": "observed median",
    "queues": "GPU-hours",
    "policies": "Registered policies",
    "plan": "Nothing is submitted",
    "whatif": "two lives",
    ASKED: "Its jobs",
    "doctor": "not checked",
}
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium: as root on Debian, hack/web/browser; elsewhere, install chromium"
)
needs_axe = pytest.mark.skipif(not AXE.is_file(), reason="no axe-core: hack/web/browser")


class Opened:
    """The console in a browser."""

    def __init__(self, page: Page, made: Site) -> None:
        self.page, self.site = page, made
        self._base = made.url + made.server.place.path
        self.wrong: list[str] = []
        """Whatever it does wrong: errors, violations of its policy (they are console errors), other hosts."""
        host = urlsplit(self._base).netloc
        page.on("console", lambda said: self.wrong.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("request", lambda asked: self.wrong.append(asked.url) if urlsplit(asked.url).netloc != host else None)

    def address(self, path: str) -> str:
        """Where a page of the console is."""
        return f"{self._base}#/{path}"

    async def show(self, path: str, shows: str = "") -> None:
        """Go to a page, and wait until it shows what it is for, or this."""
        await self.page.goto(self.address(path))
        await self.page.wait_for_function(
            "text => document.querySelector('main').innerHTML.includes(text)", arg=shows or PAGES[path]
        )

    async def sees(self, text: str) -> None:
        """Wait until a text is on the screen."""
        await self.page.wait_for_function("text => document.body.innerText.includes(text)", arg=text)

    async def violations(self) -> list[str]:
        """What axe-core finds on the page that is shown."""
        await self.page.evaluate(AXE.read_text())
        found = await self.page.evaluate("axe.run()")
        return [f"{each['id']}: {node['html'][:120]}" for each in found["violations"] for node in each["nodes"]]


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[Browser]:
    """A browser. Its start costs more than most of what is done in it."""
    async with async_playwright() as tools:
        browser = await tools.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        yield browser
        await browser.close()


kept: Browser | None = None
"""The one of the module whose tests run (`conftest.py`)."""


@contextlib.asynccontextmanager
async def opened(nodes: int = 16, api: ApiServer | None = None, **options: Any) -> AsyncIterator[Opened]:
    """A town's console, in the browser that runs already or in one of its own; nothing is left in it of other pages.

    `options` are those of a page: viewport, color_scheme and so on.
    """
    async with site(api, nodes=nodes) as made, contextlib.AsyncExitStack() as stack:
        browser = kept or await stack.enter_async_context(running())
        page = await browser.new_page(**options)  # in a context of its own, which ends with it
        stack.push_async_callback(page.close)
        yield Opened(page, made)
