"""The tools tell what the console tells, which is what the commands tell; what they are given is read strictly."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import yaml
from tests.builders import H100, JOB_SPEC
from tests.web.town import OPEN, Town

from trimtab.errors import TrimtabError, UsageError
from trimtab.mcp import tools
from trimtab.mcp.tools import Tools
from trimtab.settings import Settings
from trimtab.ui import line
from trimtab.web import answers
from trimtab.web.answers import Query
from trimtab.web.audience import EVERYTHING
from trimtab.web.console import Moment
from trimtab_policy.perf.hierarchy import Learned
from trimtab_policy.scheduling.choice import Choice

Json = dict[str, Any]


@pytest.fixture
def moment(monkeypatch: pytest.MonkeyPatch) -> Moment:
    """What every look sees."""
    found = Town().moment()

    async def look(*_: Any) -> Any:
        return found.seen

    async def learned(*_: Any) -> Learned:
        return found.known

    async def deciders(*_: Any) -> tuple[str, Choice]:
        return found.deciders.policy, found.deciders.chosen

    monkeypatch.setattr(tools, "look", look)
    monkeypatch.setattr(tools.learned, "learned", learned)
    monkeypatch.setattr(tools, "deciders", deciders)
    return found


async def call(name: str, **arguments: Any) -> Json:
    found = {tool.name: tool for tool in Tools(Settings()).all()}
    told: Json = msgspec.to_builtins(await found[name].call(arguments))
    return told


async def test_explain_is_what_the_console_answers(moment: Moment) -> None:
    for name, why in (("next-up", "32xH100"), ("run-0", "")):
        query = Query((OPEN, name), (("why-not", why),) if why else ())
        expected = msgspec.json.decode(answers.encoded(answers.job, moment, EVERYTHING, query, Settings()))
        assert msgspec.json.decode(msgspec.json.encode(await call("explain", job=f"{OPEN}/{name}", why_not=why))) == (
            expected
        )


async def test_why_pending_is_of_one_job_or_of_the_line(moment: Moment) -> None:
    one = await call("why_pending", job="next-up", namespace=OPEN)
    whole = await call("explain", job="next-up", namespace=OPEN)
    assert one == {field: whole[field] for field in ("job", "state", "pending", "line", "start")}
    assert one["pending"]["alternatives"]
    assert (await call("why_pending"))["items"] == msgspec.to_builtins(line.rows(moment.seen))
    assert (await call("why_pending", queue="shared"))["items"] == msgspec.to_builtins(line.rows(moment.seen, "shared"))


@pytest.mark.usefixtures("moment")
async def test_plan_and_whatif_are_answered_as_the_console_answers_them() -> None:
    meta = {"name": "asked", "namespace": OPEN}
    manifest = {"apiVersion": "trimtab.dev/v1alpha1", "kind": "LLMTrainingJob", "metadata": meta, "spec": JOB_SPEC}
    planned = await call("plan", manifest=yaml.safe_dump(manifest))
    assert planned["job"] == f"{OPEN}/asked"
    assert planned["choices"]
    lives = await call("whatif", change={"nodes": {"add": [{"type": H100, "count": 1}]}})
    assert lives["before"]["jobs"].keys() == lives["after"]["jobs"].keys() != set()


@pytest.mark.parametrize(
    ("name", "arguments", "wrong"),
    [
        ("explain", {}, "required field `job`"),
        ("explain", {"job": 7}, r"\$\.job"),
        ("explain", {"job": "a", "jobs": "b"}, "unknown field `jobs`"),
        ("explain", {"job": "/a"}, "NAMESPACE/NAME"),
        ("explain", {"job": "a/b", "namespace": "c"}, "not in c"),
        ("explain", {"job": f"{OPEN}/next-up", "why_not": "x" * 65}, "why-not"),
        ("explain", {"job": f"{OPEN}/next-up", "why_not": "32xT1000"}, "T1000"),
        ("why_pending", {"job": "a", "queue": "b"}, "one of them"),
        ("plan", {"manifest": "kind: LLMTrainingJob\napiVersion: trimtab.dev/v1alpha1\nspec: {}"}, "model"),
        ("plan", {"manifest": "kind: nonsense"}, "manifest"),
        ("plan", {"manifest": "x", "priority": "high"}, r"\$\.priority"),
        ("whatif", {"change": {}}, "changes nothing"),
        ("whatif", {"change": {"policy": "nosuch"}}, "nosuch"),
        ("doctor", {"deep": True}, "unknown field `deep`"),
    ],
)
@pytest.mark.usefixtures("moment")
async def test_what_makes_no_sense_is_refused_by_name(name: str, arguments: Json, wrong: str) -> None:
    with pytest.raises(UsageError, match=wrong):
        await call(name, **arguments)


@pytest.mark.usefixtures("moment")
async def test_a_job_that_there_is_not_is_told_with_one_that_is_near() -> None:
    with pytest.raises(TrimtabError, match="did you mean next-up"):
        await call("explain", job=f"{OPEN}/next-upp")


def test_each_field_is_described() -> None:
    for tool in Tools(Settings()).all():
        assert tool.arguments["type"] == "object"
        assert all(field["description"] for field in tool.arguments["properties"].values())
