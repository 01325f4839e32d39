"""What if: a form that is filled in, two lives side by side, and a link that asks the same again."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest
import yaml
from tests.builders import JOB_SPEC, job_object
from tests.web.browser.chromium import Opened, needs_chromium, opened
from tests.web.town import OPEN

from trimtab.ui import words

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="module")]
ADDED = {"nodes": {"add": [{"type": "A100", "count": 2, "gpus": 8}]}}


def link(change: Any) -> str:
    return f"whatif?change={quote(json.dumps(change))}"


def question(console: Opened) -> Any:
    """What the address of the page asks."""
    return json.loads(parse_qs(urlsplit(urlsplit(console.page.url).fragment).query)["change"][0])


async def test_a_form_asks_and_its_link_asks_the_same_again() -> None:
    async with opened() as console:
        page = console.page
        await console.show("whatif")
        await page.get_by_label("GPU type").fill("A100")
        await page.get_by_label("Nodes", exact=True).fill("2")
        async with page.expect_response("**/api/v1/whatif") as answer:
            await page.get_by_role("button", name="Work it out").click()
        lives = await (await answer.value).json()
        await console.sees("With the change")
        assert question(console) == ADDED
        shown = await page.inner_text("main")

        await page.goto("about:blank")
        await page.goto(console.address(link(ADDED)))
        await console.sees("With the change")
        assert await page.get_by_label("GPU type").input_value() == "A100"
        assert await page.inner_text("main") == shown
    assert lives["after"]["jobs"][f"{OPEN}/next-up"]["start"] == 0.0
    assert console.wrong == []


async def test_every_kind_of_change_is_filled_in_and_asked_as_the_link_says() -> None:
    meta = {"name": "asked", "namespace": OPEN}
    manifest = {"apiVersion": "trimtab.dev/v1alpha1", "kind": "LLMTrainingJob", "metadata": meta, "spec": JOB_SPEC}
    change = {
        "nodes": {"add": [{"type": "H100", "count": 1, "gpus": 4}], "remove": ["n9"], "cordon": ["n1*"]},
        "jobs": {
            f"{OPEN}/next-up": {"priority": -3, "queue": "shared", "gpus": {"min": 4, "max": 8}, "gpuTypes": ["A100"]},
            f"{OPEN}/run-0": {"gpuTypes": [], "maxNodes": 3, "precision": "BF16"},
            f"{OPEN}/free": {"parallelism": {}},
            f"{OPEN}/divided": {"parallelism": {"mode": "Auto", "tensor": {"fixed": 2}, "pipeline": {"max": 4}}},
            f"{OPEN}/run-4": {"suspend": True},
        },
        "submit": [yaml.safe_dump(manifest)],
        "queues": {"shared": {"weight": 2, "quotas": [{"gpuType": "*", "guaranteed": 8}]}},
        "policy": "sjf",
    }
    async with opened() as console:
        for name in ("free", "divided"):
            console.site.town.jobs[name] = job_object(name, {"launcher": "Megatron"}, namespace=OPEN)
        console.site.look()
        asked = list[Any]()
        console.page.on("request", lambda sent: asked.append(sent.post_data_json) if sent.method == "POST" else None)
        await console.show(link(change), "Its jobs")
        await console.page.get_by_role("button", name="Work it out").click()
        await console.page.wait_for_function("document.querySelector('main').innerText.includes('Working it out')")
        await console.page.wait_for_selector("text=Its jobs")
        assert [each["change"] for each in asked] == [change, change]
        assert question(console) == change
        assert f"{OPEN}/asked" in await console.page.inner_text(".lives")
    assert console.wrong == []


async def test_figures_are_those_of_the_command() -> None:
    async with opened() as console, console.page.expect_response("**/api/v1/whatif") as answer:
        await console.show(link({"nodes": {"remove": ["n1*"]}}), "Its jobs")
        lives = await (await answer.value).json()
        rows = [await each.inner_text() for each in await console.page.locator(".lives > li").all()]
        totals = await console.page.inner_text(".totals")
    assert len(rows) == len(lives["ends_later_seconds"])
    for life in ("before", "after"):
        assert f"{lives[life]['utilization']:.0%}".replace("%", " %") in totals
        assert words.minutes(lives[life]["average_jct"]) in totals
        for name, course in lives[life]["jobs"].items():
            row = next(each for each in rows if each.startswith(name))
            assert f"ends in {words.minutes(course['end'])}, {course['held']}" in row
    for name, later in lives["ends_later_seconds"].items():
        row = next(each for each in rows if each.startswith(name))
        told = f"{words.minutes(abs(later))} {'later' if later > 0 else 'sooner'}" if abs(later) >= 30 else "same"
        assert told in row.splitlines()[1]


async def test_what_cannot_be_asked_is_said_with_its_field_and_the_form_stays() -> None:
    async with opened() as console:
        await console.show(link({"nodes": {"add": [{"type": "H1000"}]}}), "nodes.add[0].type")
        assert await console.page.get_by_label("GPU type").input_value() == "H1000"
        await console.page.goto("about:blank")
        await console.show("whatif?change={nodes", "no question that can be read")


async def test_what_helps_a_job_opens_what_if_with_the_change_filled_in() -> None:
    async with opened() as console:
        page = console.page
        await console.show(f"jobs/{OPEN}/next-up")
        await page.get_by_role("link", name="with 1 more node of A100-SXM4-80GB").click()
        await page.wait_for_selector("text=Its jobs")
        assert await page.get_by_label("GPU type").input_value() == "A100-SXM4-80GB"
        row = await page.locator(".lives > li", has_text=f"{OPEN}/next-up").inner_text()
        assert "sooner" in row
        assert "starts now" in row.partition("Changed")[2]

        await console.show(f"jobs/{OPEN}/run-0")
        await page.get_by_role("link", name="change it").click()
        await page.get_by_role("heading", name="What if").wait_for()
        assert await page.get_by_label("Job", exact=True).input_value() == f"{OPEN}/run-0"
    assert console.wrong == []


async def test_what_runs_shows_what_was_predicted_and_what_is_observed_as_explain_says() -> None:
    async with opened() as console:
        await console.show(f"jobs/{OPEN}/run-0")
        shown = await console.page.locator(".band").get_attribute("aria-label")
        _, body = await console.site.visit().get(f"jobs/{OPEN}/run-0")
        plan, seen = (json.loads(body)[part] for part in ("plan", "observed"))
        edges = [await console.page.eval_on_selector(f".band .{part}", "each => each.offsetLeft") for part in PARTS]
    low, predicted, high = (plan["predicted"][f"stepMilliseconds{end}"] for end in ("Low", "", "High"))
    assert shown == (
        f"Predicted {predicted} ms a step, four of five such runs take {low} ms to {high} ms;"
        f" observed median {seen['stepMilliseconds']} ms"
    )
    assert edges == sorted(edges)
    assert edges[0] / edges[1] == pytest.approx(low / predicted, abs=0.02)


PARTS = ("range", "guess", "seen")
