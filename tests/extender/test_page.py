"""/inspect: what is planned where, for people and programs, whatever names are made of."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from tests.extender.desk import Desk, Object, desk, node, owner, planned, pod

from trimtab import names
from trimtab.extender import page
from trimtab.extender.page import MOST, PageView, encode, render, view
from trimtab.extender.pod_index import PodIndex
from trimtab.kube.objects import NodeObject, PodObject

EVIL = "<script>alert('gang')</script>\"><img src=x onerror=alert(1)>"


@pytest_asyncio.fixture
async def there(tmp_path: Path) -> AsyncIterator[Desk]:
    """A gang of two, one of them bound; a gated one of another gang; a pod of somebody else's; a cordoned node."""
    pods: list[Object] = [
        planned("job7-1-0", "gpu-1", bound="gpu-1"),
        planned("job7-1-1", "gpu-2"),
        planned("job8-1-0", "gpu-2", 4, gated=True, job="job8"),
        pod("other", 2, bound="gpu-3"),
    ]
    nodes = [node("gpu-1"), node("gpu-2"), node("gpu-3"), node("gpu-4", unschedulable=True), node("cpu-1", 0)]
    async with desk(tmp_path, *(("nodes", n) for n in nodes), *(("pods", p) for p in pods)) as made:
        yield made


class Text(HTMLParser):
    """The rows of all tables, cell by cell, and every tag."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: set[str] = set()
        self._in_cell = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self._in_cell = True

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self.rows[-1][-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._in_cell = self._in_cell and tag not in ("td", "th")


async def test_people_see_gangs_and_nodes(there: Desk) -> None:
    status, shown = await there.get("/inspect")
    assert status == 200
    rows = Text(shown).rows
    assert ["team-a/job7", "1", "2 of 2", "1 Bound, 1 Waiting", "gpu-1, gpu-2"] in rows
    assert ["team-a/job8", "1", "1 of 2", "1 Gated", "gpu-2"] in rows
    assert ["gpu-1", "H100-SXM5-80GB", "8", "8", "0", "", "team-a/job7-1-0 Bound"] in rows
    assert ["gpu-2", "H100-SXM5-80GB", "8", "0", "12", "", "team-a/job7-1-1 Waitingteam-a/job8-1-0 Gated"] in rows
    assert ["gpu-3", "H100-SXM5-80GB", "8", "2", "0", "", ""] in rows
    assert ["gpu-4", "H100-SXM5-80GB", "8", "0", "0", "cordoned", ""] in [row[:7] for row in rows]


async def test_programs_get_the_same_as_json(there: Desk) -> None:
    status, text = await there.get("/inspect?format=json")
    assert status == 200
    seen = json.loads(text)
    assert (seen["trouble"], seen["gangsLeftOut"]) == ("", 0)
    assert [gang["name"] for gang in seen["gangs"]] == ["team-a/job7", "team-a/job8"]
    assert [member["node"] for member in seen["gangs"][0]["members"]] == ["gpu-1", "gpu-2"]
    assert {n["name"]: (n["held"], n["promised"]) for n in seen["nodes"]} == {
        "gpu-1": (8, 0),
        "gpu-2": (0, 12),
        "gpu-3": (2, 0),
        "gpu-4": (0, 0),
    }


async def test_one_gang_can_be_asked_for_and_long_lists_are_cut(there: Desk) -> None:
    seen = json.loads((await there.get("/inspect?format=json&gang=team-a/job8"))[1])
    assert [gang["name"] for gang in seen["gangs"]] == ["team-a/job8"]
    assert [n["name"] for n in seen["nodes"]] == ["gpu-2"]
    seen = json.loads((await there.get("/inspect?format=json&limit=1"))[1])
    assert (len(seen["nodes"]), seen["nodesLeftOut"], len(seen["gangs"]), seen["gangsLeftOut"]) == (1, 3, 1, 1)
    assert "3 more" in (await there.get("/inspect?limit=1"))[1]
    assert (await there.get("/inspect?limit=-1&gang=%00%ff"))[0] == 200


def hostile_books() -> PodIndex:
    books = PodIndex()
    meta = {"name": EVIL, "namespace": EVIL, "uid": "u", "ownerReferences": [owner(EVIL)]}
    marks = {"annotations": {names.ANNOTATION_NODE: EVIL, names.ANNOTATION_GANG: "9" * 5000}}
    labels = {"labels": {names.LABEL_EPOCH: EVIL, names.LABEL_RANK: EVIL}}
    books.pod_changed(None, msgspec.convert({"metadata": meta | marks | labels}, PodObject))
    return books


async def test_names_that_are_programs_stay_names() -> None:
    made = await render(await view(hostile_books(), EVIL, 100))
    assert "<script" not in made
    assert "<img" not in made
    found = Text(made)
    assert {"script", "img"} & found.tags == set()
    assert any(EVIL in cell for row in found.rows for cell in row)


async def test_the_page_may_load_and_run_nothing(there: Desk) -> None:
    async with there.session.get(there.url("/inspect")) as answer:
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_trouble_is_said_and_an_empty_cluster_is_a_page_too() -> None:
    made = await render(PageView("no answer from the API server", [], 0, [], 0))
    assert "Only plans are checked now: no answer from the API server" in made
    assert "There is none." in made


# --- large clusters --------------------------------------------------------------------------------------------------
def large_books(gangs: int) -> PodIndex:
    """As many gangs of two, each on a node of its own."""
    books = PodIndex()
    for index in range(gangs):
        books.node_changed(None, msgspec.convert(node(f"gpu-{index:05}"), NodeObject))
        for rank in range(2):
            raw = planned(f"job{index:05}-1-{rank}", f"gpu-{index:05}", 4, job=f"job{index:05}")
            books.pod_changed(None, msgspec.convert(raw, PodObject))
    return books


async def test_others_have_their_turns_while_a_long_page_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "SLICE_SECONDS", 0.0)  # a turn after each row, however fast the machine
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    shown = await view(large_books(50), "", MOST)
    for make in (encode, render):
        before = turns
        await make(shown)
        assert turns - before >= len(shown.nodes) + len(shown.gangs)
    counting.cancel()


async def test_a_page_shows_no_more_than_it_may_and_the_first_by_name() -> None:
    books = large_books(MOST + 500)
    shown = await view(books, "", MOST)
    assert (len(shown.nodes), shown.nodes_left_out, len(shown.gangs), shown.gangs_left_out) == (MOST, 500, MOST, 500)
    assert [n.name for n in shown.nodes] == [f"gpu-{index:05}" for index in range(MOST)]
    assert [g.name for g in shown.gangs] == [f"team-a/job{index:05}" for index in range(MOST)]


async def test_what_goes_while_a_page_is_made_is_not_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "SLICE_SECONDS", 0.0)
    books = large_books(3)
    making = asyncio.create_task(view(books, "", MOST))
    await asyncio.sleep(0)
    books.node_changed(msgspec.convert(node("gpu-00002"), NodeObject), None)
    for rank in range(2):
        ended = planned(f"job00001-1-{rank}", "gpu-00001", 4, job="job00001")
        books.pod_changed(msgspec.convert(ended, PodObject), None)
    shown = await making
    assert [n.name for n in shown.nodes] == ["gpu-00000", "gpu-00001"]
    assert [g.name for g in shown.gangs] == ["team-a/job00000", "team-a/job00002"]


async def test_the_most_that_can_be_asked_for_is_bounded(there: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MOST", 2)
    seen = json.loads((await there.get("/inspect?format=json&limit=99999"))[1])
    assert (len(seen["nodes"]), seen["nodesLeftOut"]) == (2, 2)
