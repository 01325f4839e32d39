"""Every page in Debian's Chromium, before the real server: what it shows, and nothing that it must not do.

Needs Chromium and axe-core, which hack/setup brings where it can; skipped without.
"""

from __future__ import annotations

import asyncio

import pytest
from playwright.async_api import Route
from tests.builders import H100
from tests.web.browser.chromium import PAGES, needs_axe, needs_chromium, opened
from tests.web.test_rights import api
from tests.web.town import OPEN, SECRET, SECRET_JOB, running_job

from trimtab.api.status import Shadow
from trimtab.web import server
from trimtab.web.rights import SECONDS

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="module")]


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


@needs_axe
@pytest.mark.parametrize("path", PAGES)
async def test_a_page_can_be_used_by_everybody(path: str) -> None:
    async with opened() as console:
        await console.show(path)
        assert await console.violations() == []


TABLES = ("jobs", "jobs/team-open/run-0", "policies", "queues")
CUT_OFF = """[...document.querySelectorAll('.scroll')].filter((each) => each.scrollWidth > each.clientWidth)
    .map((each) => each.ariaLabel)"""


@needs_axe
async def test_on_a_telephone_no_cell_of_a_table_is_out_of_sight() -> None:
    async with opened(viewport={"width": 390, "height": 844}) as console:
        for path in TABLES:
            await console.show(path)
            assert await console.page.evaluate(CUT_OFF) == [], path
        assert await console.violations() == []


async def test_the_map_grows_and_shrinks_from_the_size_that_it_has() -> None:
    async with opened(nodes=128) as console:
        page = console.page
        await console.show("cluster")
        height = "parseInt(document.querySelector('.map .space').style.height)"
        await page.wait_for_function(f"() => {height} > 0")
        sizes = [await page.evaluate(height)]
        for button, grows in (("Larger", True), ("Smaller", False)):
            await page.get_by_role("button", name=button).click()
            await page.wait_for_function(f"() => {height} {'>' if grows else '<'} {sizes[-1]}")
            sizes.append(await page.evaluate(height))
        assert sizes[0] < sizes[1] > sizes[2]


async def test_what_a_shadow_would_have_saved_is_told_in_one_sentence_on_two_pages() -> None:
    async with opened() as console:
        for name, late in (("quick", -1800), ("slow", 600), ("same", 0)):
            other = Shadow(policy="vdn", summary="8 others", gpu_type=H100, gpus=8, difference_seconds=late)
            console.site.town.jobs[name] = running_job(name, OPEN, {"n15": 2}, H100, shadow=other)
        console.site.now += SECONDS + 1
        console.site.look()
        said = "the same for 1 of 3 jobs; they would end 20m00s sooner in all"
        for path in ("overview", "policies"):
            await console.show(path)
            await console.sees(said)
        await console.sees("10m00s later")


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
