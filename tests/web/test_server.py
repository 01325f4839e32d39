"""The console's port: what it sends and refuses, and a stream that goes on where it was cut."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from tests.web.serving import Site, site
from tests.web.town import OPEN, waiting_job

from trimtab.kube.reviews import TooMany
from trimtab.web import console as console_module
from trimtab.web import server
from trimtab.web.channels import KEPT
from trimtab.web.deltas import apply
from trimtab.web.server import LARGEST_BODY, Place


@pytest.fixture
async def console() -> AsyncIterator[Site]:
    async with site() as made:
        yield made


async def lines(answer: Any, count: int) -> list[Any]:
    return [msgspec.json.decode(await answer.content.readline()) for _ in range(count)]


def happen(made: Site, name: str) -> None:
    made.town.jobs[name] = waiting_job(name, OPEN, "waits")
    made.look()


async def test_a_stream_begins_with_a_snapshot_and_goes_on_with_deltas(console: Site) -> None:
    async with console.visit().stream() as answer:
        (first,) = await lines(answer, 1)
        happen(console, "one")
        happen(console, "two")
        page = first["columns"]
        for told in await lines(answer, 2):
            assert (told["event"], "jobs" in told["changed"]) == ("delta", True)
            page = apply(page, told["columns"])
    assert console.console.moment
    assert page == console.console.moment.columns


async def test_who_comes_back_goes_on_from_what_they_have(console: Site) -> None:
    async with console.visit().stream() as answer:
        (first,) = await lines(answer, 1)
    happen(console, "one")
    happen(console, "two")
    async with console.visit().stream(first["id"]) as answer:
        told = await lines(answer, 2)
    assert [each["event"] for each in told] == ["delta", "delta"]
    assert told[0]["from"] == first["id"]
    assert told[1]["from"] == told[0]["id"]


@pytest.mark.parametrize("since", ["", "nonsense", "0badcafe.1", "9" * 400])
async def test_who_has_what_nobody_knows_any_more_gets_a_snapshot(console: Site, since: str) -> None:
    async with console.visit().stream(since) as answer:
        assert (await lines(answer, 1))[0]["event"] == "snapshot"


async def test_who_was_away_for_too_long_gets_a_snapshot(console: Site) -> None:
    async with console.visit().stream() as answer:
        (first,) = await lines(answer, 1)
    for number in range(KEPT + 1):
        happen(console, f"job-{number}")
    async with console.visit().stream(first["id"]) as answer:
        assert (await lines(answer, 1))[0]["event"] == "snapshot"


async def test_a_quiet_stream_gives_signs_of_life(console: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimtab.web.channels.PING_SECONDS", 0.01)
    async with console.visit().stream() as answer:
        first, second = await lines(answer, 2)
    assert (second["event"], second["id"]) == ("ping", first["id"])


async def test_frames_are_encoded_once_however_many_read_them(console: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[bytes] = []
    encoder = msgspec.json.Encoder()

    class Counting:
        def encode(self, value: Any) -> bytes:
            made.append(encoder.encode(value))
            return made[-1]

    monkeypatch.setattr("trimtab.web.channels._ENCODER", Counting())
    visit = console.visit()
    async with visit.stream() as one, visit.stream() as two, visit.stream() as three:
        for answer in (one, two, three):
            await lines(answer, 1)
        happen(console, "one")
        for answer in (one, two, three):
            await lines(answer, 1)
    assert len(made) == 3  # the first frame, which nobody needs, a snapshot and a delta


async def test_streams_are_bounded(console: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console.server, "_most_streams", 1)
    async with console.visit().stream() as first:
        await lines(first, 1)
        async with console.visit().stream() as second:
            assert (second.status, second.headers["Retry-After"]) == (429, "5")


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("nothing", 404, "nothing here"),
        ("jobs/a/b/c", 404, "nothing here"),
        (f"jobs/{OPEN}/not-there", 404, "no such job"),
        (f"jobs/{OPEN}/next-up?why-not={'9' * 65}", 400, "why-not"),
        (f"jobs/{OPEN}/next-up?why-not=8xZ9", 400, "why-not"),
        ("timeline?by=colour", 400, "by:"),
        ("timeline?from=yesterday", 400, "from:"),
        ("timeline?from=5&to=4", 400, "to:"),
        ("timeline?from=0&to=99999999", 400, "to:"),
        ("timeline?from=nan", 400, "from:"),
        ("plan", 405, "POST"),
    ],
)
async def test_what_makes_no_sense_is_said_so(console: Site, path: str, status: int, said: str) -> None:
    found, body = await console.visit().get(path)
    assert found == status
    assert said in msgspec.json.decode(body)["error"]["message"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b'{"manifest": 5}', 400),
        (b'{"manifest": "x", "set": [1]}', 400),
        (b'{"manifest": "x", "more": 1}', 400),
        (b"[" * 100_000, 400),
        (b" " * (LARGEST_BODY + 1), 413),
    ],
)
async def test_bodies_are_read_strictly_and_bounded(console: Site, body: bytes, status: int) -> None:
    assert (await console.visit().post("plan", body))[0] == status


async def test_another_page_may_not_ask(console: Site) -> None:
    assert (await console.visit().get("whoami", **{"Sec-Fetch-Site": "cross-site"}))[0] == 403


async def test_on_ones_own_machine_the_path_is_the_key_and_no_other_host_name_is_answered() -> None:
    async with site(place=Place("/secret/")) as made:
        visit = made.visit()
        assert (await visit.get("whoami"))[0] == 200
        visit.url = visit.url.replace("secret/", "")
        assert (await visit.get("whoami"))[0] == 404
    async with site(place=Place(hosts=("127.0.0.1:1",))) as made:
        assert (await made.visit().get("whoami"))[0] == 421


async def test_one_plan_or_what_if_at_a_time_and_each_has_a_deadline(
    console: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulations = console.server._simulations
    async with simulations._busy:
        assert (await console.visit().post("plan", {"manifest": "x"}))[0] == 429
    monkeypatch.setattr(simulations, "_seconds", 0.01)
    status, body = await console.visit().post("plan", {"manifest": "x"})
    assert (status, msgspec.json.decode(body)["error"]["reason"]) == (504, "Timeout")


async def test_answers_are_never_stored_and_the_page_may_load_nothing_from_elsewhere(console: Site) -> None:
    visit = console.visit()
    async with visit.session.get(f"{visit.url}api/v1/overview") as answer:
        assert answer.headers["Cache-Control"] == "no-store"
        policy = answer.headers["Content-Security-Policy"]
    assert policy == server.HEADERS["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "http" not in policy


@pytest.mark.parametrize("path", ["../server.py", "..%2fserver.py", ".hidden.js", "vendor", "/etc/hosts.txt", "x.py"])
async def test_only_files_of_the_page_are_sent(console: Site, path: str) -> None:
    visit = console.visit()
    async with visit.session.get(f"{visit.url}{path}") as answer:
        assert answer.status == 404


async def test_an_answer_is_made_once_for_all_who_ask_at_a_moment(
    console: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    encoded = server.answers.encoded
    monkeypatch.setattr(server.answers, "encoded", lambda *asked: (made.append(1), encoded(*asked))[1])
    for _ in range(3):
        await console.visit().get("jobs")
    assert len(made) == 1
    console.look()
    await console.visit().get("jobs")
    assert len(made) == 2


async def test_a_look_that_fails_leaves_what_was_seen_and_says_so(
    console: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = console.console.moment

    def broken() -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(console.console._watch, "prepared", lambda: broken)
    await console.console._look()
    assert console.console.moment is seen
    assert console.console._failed == "the last look failed: ZeroDivisionError"
    assert (await console.visit().get("jobs"))[0] == 200


async def test_viewers_hear_of_trouble_and_of_its_end_as_soon_as_it_is_known(
    console: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = type(console.console._watch)
    monkeypatch.setattr(watched, "trouble", "nodes: no answer")
    async with console.visit().stream() as answer:
        snapshot, told = await lines(answer, 2)
        assert (snapshot["event"], told["event"], told["trouble"]) == ("snapshot", "ping", "nodes: no answer")
        monkeypatch.setattr(watched, "trouble", "")
        console.console.wake()
        (after,) = await lines(answer, 1)
        assert (after["event"], after["trouble"]) == ("ping", "")


async def test_what_is_kept_of_answers_is_bounded_in_bytes(console: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_module, "ANSWER_BYTES", 20_000)
    for start in range(40):
        assert (await console.visit().get(f"timeline?from={start}&to={start + 1}"))[0] == 200
        assert (await console.visit().get(f"jobs?nothing={start}"))[0] == 200
    kept = [each.result() for each in console.console._answers.values()]
    assert 0 < sum(map(len, kept)) <= 20_000 + max(map(len, kept))


async def test_a_look_waits_for_one_answer_at_most_and_nobody_has_more_than_eight_in_work(console: Site) -> None:
    going, begun = threading.Event(), list[int]()

    def work(number: int) -> bytes:
        begun.append(number)
        assert going.wait(30)
        return b"made"

    def ask(number: int, visitor: str) -> asyncio.Task[bytes]:
        return asyncio.create_task(console.console.answer((number,), lambda moment: work(number), visitor))

    asked = [ask(number, "busy") for number in range(8)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    same, other = ask(3, "busy"), ask(8, "calm")
    with pytest.raises(TooMany):
        await ask(9, "busy")
    look = asyncio.create_task(console.console.thread(lambda: len(begun)))
    await asyncio.sleep(0)
    going.set()
    assert await look == 1
    assert set(await asyncio.gather(*asked, same, other)) == {b"made"}
    assert sorted(begun) == [*range(9)], "what was asked twice was made once"
