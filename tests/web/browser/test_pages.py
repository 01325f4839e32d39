"""Every page in Debian's Chromium, before the real server: what it shows, and nothing that it must not do.

Needs `chromium-headless-shell` or `chromium` (apt) and, for accessibility, `hack/vendor --tests`; skipped without.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Page, Route, async_playwright
from tests.web.serving import ApiServer, Site, site
from tests.web.test_rights import api
from tests.web.town import OPEN, SECRET, SECRET_JOB

from trimtab.web import server
from trimtab.web.rights import SECONDS

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

    def __init__(self, page: Page, made: Site) -> None:
        self.page, self.site = page, made
        self._address = address = made.url + made.server.place.path
        self.wrong: list[str] = []
        """Whatever it does wrong: errors, violations of its policy (they are console errors), other hosts."""
        host = urlsplit(address).netloc
        page.on("console", lambda said: self.wrong.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("request", lambda asked: self.wrong.append(asked.url) if urlsplit(asked.url).netloc != host else None)

    async def show(self, path: str, shows: str = "") -> None:
        """Go to a page, and wait until it shows what it is for, or this."""
        await self.page.goto(f"{self._address}#/{path}")
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
async def opened(nodes: int = 16, api: ApiServer | None = None, **options: Any) -> AsyncIterator[Opened]:
    """A town's console. `options` are those of a page: viewport, color_scheme and so on."""
    async with site(api, nodes=nodes) as made, async_playwright() as tools:
        browser = await tools.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        yield Opened(await browser.new_page(**options), made)
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


async def test_a_visitor_signs_in_sees_what_is_theirs_and_is_asked_again_when_the_token_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "REVIEW_SECONDS", 0.0)
    control_plane = api()
    async with opened(api=control_plane) as console:
        page = console.page

        def changed() -> None:
            """Time passes, answers about rights are forgotten, and something happens in the cluster."""
            console.site.now += SECONDS + 1
            console.site.town.now += 60.0
            console.site.look()

        await page.goto(console.site.url)
        for token, told in (("expired", "not good"), ("of-ann", "Part of the cluster is left out")):
            await console.sees("Sign in")
            await page.fill("#token", token)
            await page.keyboard.press("Enter")
            await console.sees(told)
        for path in ("overview", "cluster", "timeline", "jobs", "queues"):
            await console.show(path)
            shown = await page.content()
            assert OPEN in shown
            assert not [name for name in (SECRET, SECRET_JOB) if name in shown]
        assert "of-ann" not in page.url

        control_plane.rights.remove(("ann", "llmtrainingjobs", OPEN))
        changed()
        await console.show("jobs", "There are no jobs, or you may see none.")
        assert OPEN not in await page.content()

        del control_plane.tokens["of-ann"]
        changed()
        await console.sees("Sign in")


async def test_a_server_that_goes_is_told_and_what_was_known_stays_until_it_is_back() -> None:
    async with opened() as console:
        await console.show("jobs")
        away = asyncio.Event()

        async def answer(route: Route) -> None:
            await (route.abort() if away.is_set() else route.continue_())

        await console.page.route("**/api/v1/**", answer)
        away.set()
        console.site.server.stop()
        await console.sees("The server does not answer.")
        await console.sees("next-up")
        away.clear()
        console.site.server.stopping.clear()
        await console.page.click("text=Try now")
        await console.sees("Live")
        await console.page.wait_for_selector(".banner.bad", state="detached")
