"""Nobody gets a byte of a namespace that is denied to them, whatever they ask."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest
from tests.web.serving import ApiServer, Site, site
from tests.web.town import OPEN, SECRET, SECRET_JOB, waiting_job

from trimtab.web import server
from trimtab.web.console import OUT_OF_DATE
from trimtab.web.rights import SECONDS, ReviewedRights

READS = [
    "whoami", "overview", "nodes", "nodes?form=objects", "jobs", f"jobs/{OPEN}/next-up", f"jobs/{SECRET}/{SECRET_JOB}",
    f"jobs/{SECRET}/not-there", f"jobs/{OPEN}/next-up?why-not=8xH100", "queues", "timeline", "timeline?by=node",
    "timeline?by=queue", "policies", "doctor",
]  # fmt: skip
PLAN = {"manifest": "apiVersion: trimtab.dev/v1alpha1\nkind: LLMTrainingJob\nmetadata: {name: x}\nspec: {}\n"}
WHATIF = {"change": {"jobs": {f"{SECRET}/{SECRET_JOB}": {"priority": 1}}}}
HIDDEN = [each.encode() for each in (SECRET, SECRET_JOB, "hush-hush", "run-6")]
"""Names of the namespace that is denied, and of its jobs."""
WITHOUT_MAP = {"nodes": 403, "nodes?form=objects": 403, "timeline?by=node": 403}


def api() -> ApiServer:
    tokens = {"of-root": "root", "of-ann": "ann", "of-bob": "bob", "of-eve": "eve"}
    rights = {("root", kind, "") for kind in ("llmtrainingjobs", "nodes", "gpunodes", "queues")}
    rights |= {("ann", kind, "") for kind in ("nodes", "gpunodes", "queues")} | {("ann", "llmtrainingjobs", OPEN)}
    rights |= {("bob", "llmtrainingjobs", OPEN)}
    return ApiServer(tokens, rights)


@pytest.fixture
async def console() -> AsyncIterator[Site]:
    async with site(api()) as made:
        yield made


async def everything(made: Site, token: str) -> dict[str, tuple[int, bytes]]:
    """What each address answers to a token."""
    visit = made.visit(token)
    found = {path: await visit.get(path) for path in READS if not (path == "doctor" and token == "of-root")}
    found["plan"], found["whatif"] = await visit.post("plan", PLAN), await visit.post("whatif", WHATIF)
    async with visit.stream() as answer:
        lines = await answer.content.readline() if answer.status == 200 else await answer.read()
        found["stream"] = answer.status, lines
    return found


@pytest.mark.parametrize("token", ["", "expired"])
async def test_without_a_good_token_nobody_gets_anything(console: Site, token: str) -> None:
    for path, (status, body) in (await everything(console, token)).items():
        assert status == 401, path
        assert msgspec.json.decode(body).keys() == {"error"}
        assert OPEN.encode() not in body


@pytest.mark.parametrize("token", ["of-ann", "of-bob", "of-eve"])
async def test_no_byte_of_a_denied_namespace_is_in_any_answer(console: Site, token: str) -> None:
    for path, (_, body) in (await everything(console, token)).items():
        assert [name for name in HIDDEN if name in body] == [], path


async def test_a_user_of_one_namespace_sees_its_jobs_and_the_map(console: Site) -> None:
    found = {path: (status, body) for path, (status, body) in (await everything(console, "of-ann")).items()}
    refused = {path for path, (status, _) in found.items() if status != 200}
    assert refused == {f"jobs/{SECRET}/{SECRET_JOB}", f"jobs/{SECRET}/not-there", "doctor", "plan", "whatif"}
    assert found["plan"][0] == 400  # the spec is empty: she may ask
    assert b"next-up" in found["jobs"][1]
    who = msgspec.json.decode(found["whoami"][1])
    assert (who["user"], who["namespaces"]) == ("ann", [OPEN])
    assert who["leftOut"] == {"namespaces": 1, "jobs": 3}
    assert who["can"] == {
        "nodes": True, "queues": True, "allJobs": False, "plan": True, "whatif": False, "doctor": False
    }  # fmt: skip


async def test_without_the_right_to_nodes_there_is_no_map_and_no_plan(console: Site) -> None:
    found = {path: status for path, (status, _) in (await everything(console, "of-bob")).items()}
    assert {path: found[path] for path in WITHOUT_MAP} == WITHOUT_MAP
    assert (found["queues"], found["plan"], found["jobs"], found["stream"]) == (403, 403, 200, 200)


async def test_a_job_that_is_denied_and_one_that_there_is_not_look_the_same(console: Site) -> None:
    visit = console.visit("of-ann")
    assert await visit.get(f"jobs/{SECRET}/{SECRET_JOB}") == await visit.get(f"jobs/{SECRET}/not-there")


async def test_an_administrator_sees_all(console: Site) -> None:
    found = await everything(console, "of-root")
    assert all(name in found["jobs"][1] for name in HIDDEN)
    assert msgspec.json.decode(found["whoami"][1])["namespaces"] is None


async def test_where_nobody_can_be_asked_nobody_is_let_in() -> None:
    asked = api()
    asked.away = True
    async with site(asked) as made:
        assert {status for status, _ in (await everything(made, "of-root")).values()} == {503}


async def test_the_whole_user_info_is_asked_about_and_remembered_for_a_while() -> None:
    asked, now = api(), [0.0]
    rights = ReviewedRights(asked, lambda: now[0])
    spaces = frozenset({OPEN, SECRET})
    for _ in range(3):
        seen = await rights.visitor({"Authorization": "Bearer of-ann"}, "a", spaces)
    assert seen.audience.namespaces == {OPEN}
    specs = [body["spec"] for body in asked.asked if body["kind"] == "SubjectAccessReview"]
    assert all(
        (spec["uid"], spec["groups"], spec["extra"]) == ("uid-ann", ("g",), {"scopes": ("s",)}) for spec in specs
    )
    assert len(specs) == len({msgspec.json.encode(spec) for spec in specs})
    asked.rights.discard(("ann", "llmtrainingjobs", OPEN))
    now[0] += SECONDS + 1
    assert (await rights.visitor({"Authorization": "Bearer of-ann"}, "a", spaces)).audience.namespaces == frozenset()


@pytest.mark.parametrize(("revoked", "status"), [("token", 401), ("right", 403)])
async def test_a_stream_ends_when_its_reader_may_not_see_it_any_more(
    monkeypatch: pytest.MonkeyPatch, revoked: str, status: int
) -> None:
    monkeypatch.setattr(server, "REVIEW_SECONDS", -1.0)
    asked = api()
    async with site(asked) as made, made.visit("of-ann").stream() as answer:
        assert msgspec.json.decode(await answer.content.readline())["event"] == "snapshot"
        if revoked == "token":
            asked.tokens.clear()
        else:
            asked.rights.discard(("ann", "llmtrainingjobs", OPEN))
        made.now += SECONDS + 1
        made.town.jobs["another"] = waiting_job("another", OPEN, "waits")
        made.look()
        last = msgspec.json.decode(await answer.content.readline())
        assert (last["event"], last["status"]) == ("denied", status)
        assert await answer.content.readline() == b""


async def test_what_is_wrong_is_told_in_full_only_to_who_sees_all(
    console: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(console.console._watch), "trouble", f"cannot list {SECRET}")
    told = {who: msgspec.json.decode((await console.visit(who).get("whoami"))[1]) for who in ("of-root", "of-ann")}
    assert told["of-root"]["trouble"] == f"cannot list {SECRET}"
    assert told["of-ann"]["trouble"] == OUT_OF_DATE
