"""Every page in Debian's Chromium, before the real server: what it shows, and nothing that it must not do.

Needs `chromium-headless-shell` or `chromium` (apt) and, for accessibility, `hack/vendor --tests`; skipped without.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.web.serving import site

pytest.importorskip("playwright", reason="no Playwright: hack/setup installs it")
from playwright.async_api import Page, async_playwright

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
}
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium-headless-shell"),
]


def listen(page: Page, host: str) -> list[str]:
    """Whatever the page does wrong: errors, violations of its policy (they are console errors), other hosts."""
    wrong: list[str] = []
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda asked: wrong.append(asked.url) if urlsplit(asked.url).netloc != host else None)
    return wrong


@pytest.mark.parametrize(("path", "shows"), PAGES.items())
async def test_a_page_shows_what_it_is_for_and_does_nothing_else(path: str, shows: str) -> None:
    async with site() as made, async_playwright() as tools:
        browser = await tools.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        page = await browser.new_page()
        wrong = listen(page, urlsplit(made.url).netloc)
        await page.goto(f"{made.url}{made.server.place.path}#/{path}")
        await page.wait_for_function("text => document.querySelector('main').innerHTML.includes(text)", arg=shows)
        await browser.close()
    assert wrong == []


async def test_one_goes_from_page_to_page_and_nothing_of_the_last_is_left_behind() -> None:
    async with site() as made, async_playwright() as tools:
        browser = await tools.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        page = await browser.new_page()
        wrong = listen(page, urlsplit(made.url).netloc)
        for path, shows in [*PAGES.items(), *reversed(PAGES.items())]:
            await page.goto(f"{made.url}{made.server.place.path}#/{path}")
            await page.wait_for_function("text => document.querySelector('main').innerHTML.includes(text)", arg=shows)
            await page.set_viewport_size({"width": 900, "height": 700})
            await page.set_viewport_size({"width": 1280, "height": 720})
        await browser.close()
    assert wrong == []


@pytest.mark.skipif(not AXE.is_file(), reason="no axe-core: hack/vendor --tests")
@pytest.mark.parametrize(("path", "shows"), PAGES.items())
async def test_a_page_can_be_used_by_everybody(path: str, shows: str) -> None:
    async with site() as made, async_playwright() as tools:
        browser = await tools.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        page = await browser.new_page()
        await page.goto(f"{made.url}{made.server.place.path}#/{path}")
        await page.wait_for_function("text => document.querySelector('main').innerHTML.includes(text)", arg=shows)
        violations = await accessibility(page)
        await browser.close()
    assert violations == []


async def accessibility(page: Page) -> list[str]:
    """What axe-core finds."""
    await page.evaluate(AXE.read_text())
    found = await page.evaluate("axe.run()")
    return [f"{each['id']}: {node['html'][:120]}" for each in found["violations"] for node in each["nodes"]]
