"""The console with a keyboard alone: Tab reaches every control, one sees where one is, and each page can be used."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote

import pytest
from tests.builders import JOB_SPEC
from tests.web.browser.chromium import PAGES, Opened, needs_chromium, opened
from tests.web.town import OPEN

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="module")]
MOST_STOPS = 300
CONTROLS = "a[href], button, input, select, textarea, summary, [tabindex='0']"
SETUP = """controls => {
  let many = 0;
  const number = new WeakMap();
  const id = each => { if (!number.has(each)) number.set(each, ++many); return number.get(each); };
  const said = each => each.getAttribute("aria-label") || each.innerText || each.name;
  const name = each => `${each.tagName.toLowerCase()} ${said(each)}`;
  // Whether what has the focus looks otherwise than without: an outline, or for parts of a picture a thicker line.
  const marked = each => {
    const look = getComputedStyle(each), body = each.querySelector?.("rect.body");
    return (look.outlineStyle !== "none" && parseFloat(look.outlineWidth) >= 2)
      || (body && parseFloat(getComputedStyle(body).strokeWidth) >= 2);
  };
  const uncovered = each => {
    const box = each.getBoundingClientRect();
    const [left, right] = [Math.max(0, box.left), Math.min(innerWidth, box.right)];
    const [top, bottom] = [Math.max(0, box.top), Math.min(innerHeight, box.bottom)];
    if (left >= right || top >= bottom) return false;
    return [[.5, .5], [.1, .5], [.9, .5], [.5, .1], [.5, .9]].some(([x, y]) => {
      const found = document.elementFromPoint(left + x * (right - left), top + y * (bottom - top));
      return found && (each.contains(found) || found.contains(each) || found.closest("label")?.contains(each));
    });
  };
  globalThis.keyboard = {
    stop: () => {
      const each = document.activeElement;
      if (!each || each === document.body) return null;
      return {id: id(each), name: name(each), marked: marked(each), seen: uncovered(each)};
    },
    wanted: () => [...document.querySelectorAll(controls)]
      .filter(each => !each.disabled && each.tabIndex >= 0 && each.checkVisibility({visibilityProperty: true}))
      .map(each => ({id: id(each), name: name(each)})),
  };
}"""


async def stops(console: Opened, key: str) -> list[dict[str, Any]]:
    """Where a key leads, from the top of the page until it leaves the page again."""
    found: list[dict[str, Any]] = []
    while len(found) < MOST_STOPS:
        await console.page.keyboard.press(key)
        stop = await console.page.evaluate("keyboard.stop()")
        if stop is None or (found and stop["id"] == found[0]["id"]):
            return found
        found.append(stop)
    raise AssertionError(f"{key} is caught: {found[-3:]}")


@pytest.mark.parametrize("viewport", [{"width": 1280, "height": 720}, {"width": 390, "height": 700}], ids=str)
@pytest.mark.parametrize("path", PAGES)
async def test_tab_reaches_every_control_of_a_page_in_both_directions(path: str, viewport: dict[str, int]) -> None:
    async with opened(viewport=viewport) as console:
        await console.show(path)
        await console.page.wait_for_selector(".working", state="detached")
        await console.page.evaluate(SETUP, CONTROLS)
        there, back = await stops(console, "Tab"), await stops(console, "Shift+Tab")
        wanted = await console.page.evaluate("keyboard.wanted()")
    assert {each["id"]: each["name"] for each in wanted} == {each["id"]: each["name"] for each in there}
    assert [each["id"] for each in back] == [each["id"] for each in reversed(there)]
    assert [each["name"] for each in there + back if not each["marked"]] == []
    assert [each["name"] for each in there + back if not each["seen"]] == []


class Keys:
    """Somebody who has no mouse."""

    def __init__(self, console: Opened) -> None:
        self.console, self.press = console, console.page.keyboard.press
        self.type = console.page.keyboard.type

    async def reach(self, role: Any, name: str, key: str = "Tab") -> None:
        """Press a key until a control has the focus, the first that is called so."""
        page = self.console.page  # a summary has no role of its own that browsers agree on
        wanted = (
            page.locator("summary", has_text=name) if role == "summary" else page.get_by_role(role, name=name).first
        )
        await wanted.wait_for()
        for _ in range(MOST_STOPS):
            if await wanted.evaluate("each => each === document.activeElement"):
                return
            await self.press(key)
        raise AssertionError(f"{key} does not reach {role} {name}")

    async def use(self, role: Any, name: str, key: str = "Enter") -> None:
        await self.reach(role, name)
        await self.press(key)

    async def shows(self, title: str) -> None:
        """Wait until a page is open."""
        await self.console.page.get_by_role("heading", name=title, exact=True, level=1).wait_for()

    async def sees(self, selector: str) -> None:
        await self.console.page.wait_for_selector(selector)

    @property
    def where(self) -> str:
        return unquote(self.console.page.url.partition("#/")[2])


async def test_the_frame_leads_to_content_pages_and_what_is_searched() -> None:
    async with opened() as console:
        keys = Keys(console)
        await console.show("overview")
        await keys.press("Tab")
        await keys.press("Enter")
        assert await console.page.evaluate("document.activeElement.id") == "main"
        await keys.press("Tab")
        assert await console.page.evaluate("document.activeElement.closest('main') !== null")
        await keys.use("link", "Policies")
        await keys.shows("Policies")
        for word, way, title in (("run-", ("ArrowDown",), f"{OPEN}/run-4"), ("n1", (), "Cluster")):
            await keys.press("/")
            await keys.type(word)
            await keys.sees("#found li")
            for key in (*way, "Enter"):
                await keys.press(key)
            await keys.shows(title)
        await keys.sees("h2:text-is('n1')")


async def test_the_overview_leads_to_a_job_that_waits() -> None:
    async with opened() as console:
        keys = Keys(console)
        await console.show("overview")
        await keys.use("link", f"{OPEN}/next-up")
        await keys.shows(f"{OPEN}/next-up")
        await keys.use("button", "Work it out again", "Space")
        await keys.use("link", "with any GPU type")
        await keys.shows("What if")
        await keys.sees("h2:text-is('Its jobs')")


async def test_the_map_is_walked_with_arrows() -> None:
    async with opened() as console:
        keys = Keys(console)
        await console.show("cluster")
        await keys.reach("combobox", "Colour")
        await keys.press("ArrowDown")
        assert await console.page.get_by_label("Colour").input_value() == "queue"
        await keys.reach("searchbox", "Show only what is called like")
        await keys.type("r0")
        await console.sees("8 of 16 nodes")
        await keys.use("button", "Larger", "Space")
        await keys.reach("application", "Map of 16 nodes")
        for key in ("Home", "ArrowRight", "End", "Home", "+", "-", "0"):
            await keys.press(key)
        await keys.sees("h2:text-is('n0')")
        await keys.press("Enter")
        await keys.shows(f"{OPEN}/run-0")
        await console.page.go_back()
        await keys.shows("Cluster")
        await keys.use("summary", "The same as a table")
        await keys.use("button", "n3")
        await keys.sees("h2:text-is('n3')")


async def test_the_timeline_is_laid_otherwise_and_leads_to_jobs() -> None:
    async with opened() as console:
        keys = Keys(console)
        await console.show("timeline")
        await keys.reach("combobox", "Lanes")
        await keys.press("ArrowDown")
        await keys.sees("svg text:text('shared')")
        await keys.use("button", "a week", "Space")
        await keys.sees("button[aria-pressed='true']:text-is('a week')")
        await keys.sees("svg a")
        await keys.use("link", f"{OPEN}/run-0: runs")
        await keys.shows(f"{OPEN}/run-0")


async def test_jobs_are_filtered_and_sorted() -> None:
    async with opened() as console:
        keys = Keys(console)
        await console.show("jobs")
        await keys.use("button", "Waiting", "Space")
        await keys.sees("table:not(:has-text('run-0'))")
        await keys.use("button", "Priority")
        await keys.sees("th[aria-sort='descending']:has-text('Priority')")
        await keys.reach("searchbox", "Filter by name", "Shift+Tab")
        await keys.type("next")
        await keys.use("link", f"{OPEN}/next-up")
        await keys.shows(f"{OPEN}/next-up")


@pytest.mark.parametrize(("path", "column"), [("queues", "GPUs now"), ("policies", "Kind")])
async def test_tables_are_sorted(path: str, column: str) -> None:
    async with opened() as console:
        keys = Keys(console)
        await console.show(path)
        for way in ("Enter", "Space"):
            before = await console.page.locator("th[aria-sort]").get_attribute("aria-sort")
            await keys.use("button", column, way)
            await keys.sees(f"th[aria-sort]:has-text('{column}')")
        after = await console.page.locator("th[aria-sort]").get_attribute("aria-sort")
        assert {before, after} == {"ascending", "descending"}


async def test_a_manifest_is_written_and_tab_leaves_it() -> None:
    meta = {"name": "asked", "namespace": OPEN}
    manifest = {"apiVersion": "trimtab.dev/v1alpha1", "kind": "LLMTrainingJob", "metadata": meta, "spec": JOB_SPEC}
    async with opened() as console:
        keys = Keys(console)
        await console.show("plan")
        await keys.reach("textbox", "Manifest of a job")
        await keys.type(json.dumps(manifest))
        await keys.use("button", "Work it out", "Space")
        await keys.sees("h2:text-is('What it would get')")


async def test_a_change_is_put_together_and_asked() -> None:
    async with opened() as console:
        keys = Keys(console)
        await console.show("whatif")
        await keys.use("button", "Take back: Nodes added")
        await keys.use("button", "Drain nodes", "Space")
        await keys.reach("combobox", "Nodes")
        await keys.type("n1*")
        await keys.reach("combobox", "How")
        await keys.press("ArrowDown")
        await keys.use("checkbox", "No job that runs gives way", "Space")
        await keys.reach("combobox", "Nodes", "Shift+Tab")
        await keys.press("Enter")
        await keys.sees("h2:text-is('Its jobs')")
        assert keys.where == 'whatif?change={"nodes":{"cordon":["n1*"]}}&rigid=1'


async def test_the_doctor_looks_again_and_names_objects() -> None:
    async with opened() as console:
        keys = Keys(console)
        await console.show("doctor")
        await keys.use("button", "Look again")
        await keys.sees("button:text-is('Look again')")
        await console.sees("An answer is kept for half a minute.")
