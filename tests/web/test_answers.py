"""One contract: what the page gets is what the commands print with `-o json`."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer.testing
import yaml
from tests.builders import H100, JOB_SPEC
from tests.web.town import OPEN, SECRET, SECRET_JOB, Town

from trimtab import cli
from trimtab.commands import comparison, explanation, live, planning
from trimtab.settings import KubeSettings, PriceSettings, Settings
from trimtab.ui.form import Output
from trimtab.web import answers, simulate
from trimtab.web.answers import Query
from trimtab.web.audience import EVERYTHING, Audience
from trimtab.web.console import Moment
from trimtab_policy.perf.hierarchy import Learned
from trimtab_policy.policy import names as policies

KUBE, JOB = KubeSettings(), ("nothing",)
MANIFEST = {
    "apiVersion": "trimtab.dev/v1alpha1", "kind": "LLMTrainingJob", "metadata": {"name": "asked", "namespace": OPEN},
    "spec": JOB_SPEC,
}  # fmt: skip
CHANGE = {"nodes": {"add": [{"type": H100, "count": 1, "gpus": 8}]}}


@pytest.fixture
def moment(monkeypatch: pytest.MonkeyPatch) -> Moment:
    """What the console knows, and every command sees."""
    found = Town(16).moment()

    async def look(*_: object) -> object:
        return found.seen

    async def deciding(*_: object) -> str:
        return found.deciders.policy

    async def learned(*_: object) -> Learned:
        return Learned()

    for module in (live, explanation, planning, comparison):
        monkeypatch.setattr(module, "look", look, raising=False)
        monkeypatch.setattr(module, "deciding", deciding, raising=False)
    monkeypatch.setattr("trimtab.commands.learned.learned", learned)
    return found


def answered(answer: answers.Answer, moment: Moment, *rest: str, **words: str) -> Any:
    query = Query(rest, tuple(words.items()))
    return json.loads(answers.encoded(answer, moment, EVERYTHING, query, Settings()))


def command(*words: str) -> Any:
    ran = typer.testing.CliRunner().invoke(cli.app, [*words, "-o", "json"])
    assert ran.exit_code == 0, ran.output
    return json.loads(ran.stdout)


@pytest.mark.parametrize("job", [(OPEN, "next-up"), (OPEN, "run-0"), (SECRET, SECRET_JOB)])
@pytest.mark.parametrize("why", ["", "8xH100"])
async def test_a_job_is_explained_alike(
    moment: Moment, capsys: pytest.CaptureFixture[str], job: tuple[str, str], why: str
) -> None:
    await explanation.run(Output.JSON, *job, "", None, why, KUBE)
    printed = json.loads(capsys.readouterr().out)
    told = answered(answers.job, moment, *job, **({"why-not": why} if why else {}))
    rows = told.pop("told")
    assert told == printed
    await explanation.run(Output.TABLE, *job, "", None, why, KUBE)
    page = " ".join(capsys.readouterr().out.split())
    assert all(" ".join(text.split())[:40] in page for _, text in rows)


def test_nodes_queues_and_the_line_are_told_alike(moment: Moment) -> None:
    assert answered(answers.nodes, moment, form="objects")["items"] == command("get", "nodes")
    told = answered(answers.queue_list, moment)
    assert told["items"] == command("get", "queues")
    assert told["line"] == command("queue")


def test_jobs_are_told_alike(moment: Moment, monkeypatch: pytest.MonkeyPatch) -> None:
    async def jobs_of(*_: object) -> list[Any]:
        seen = moment.seen.jobs.values()
        return sorted(seen, key=lambda each: (each.meta.namespace, each.created, each.meta.name))

    monkeypatch.setattr("trimtab.commands.job_list.jobs_of", jobs_of)
    assert answered(answers.jobs, moment)["items"] == command("get", "jobs", "-A")


def test_policies_are_told_alike(moment: Moment) -> None:
    told = answered(answers.policies, moment)["items"]
    assert told == command("policies")
    assert told.keys() == set(policies())


def asked(kind: Any, moment: Moment, body: Any) -> Any:
    """Over the pipe and back, as the console asks its worker."""
    question = simulate.Question(
        kind, msgspec.json.encode(body), moment.deciders.policy, Settings().model_dump(), Learned(),
        moment.seen.snapshot, moment.seen.nodes, moment.seen.queues,
    )  # fmt: skip
    told = io.BytesIO()
    simulate.main(io.BytesIO(b"".join(simulate.parts(question))), told)
    return json.loads(told.getvalue())


async def test_a_plan_is_told_alike(moment: Moment, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(MANIFEST))
    await planning.run(Output.JSON, planning.manifest(file), None, "", moment.deciders.policy, 0, None, KUBE)
    printed = json.loads(capsys.readouterr().out)
    told = asked("plan", moment, {"manifest": file.read_text()})["value"]
    assert told.pop("told")
    assert told.pop("notes") == []
    assert told == printed


async def test_a_what_if_is_told_alike(moment: Moment, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "change.yaml"
    file.write_text(yaml.safe_dump(CHANGE))
    await comparison.run(Output.JSON, file, None, "", KUBE, rigid=False)
    assert asked("whatif", moment, {"change": CHANGE})["value"] == json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        ("plan", {"manifest": "kind: LLMTrainingJob\napiVersion: trimtab.dev/v1alpha1\nspec: {}\n"}, "model"),
        ("plan", {"manifest": yaml.safe_dump(MANIFEST), "policy": "nobody"}, "nobody"),
        ("whatif", {"change": {}}, "changes nothing"),
        ("whatif", {"change": {"submit": ["/etc/passwd"]}}, "holds no training job"),
        ("whatif", {"change": {"submit": [{"path": "/etc/passwd"}]}}, "change.submit"),
        ("whatif", {"change": {"jobs": {"a/b": {"priority": 1}}}}, "a/b"),
    ],
)
def test_what_cannot_be_asked_is_told_without_a_path_of_ours(moment: Moment, kind: str, body: Any, said: str) -> None:
    wrong = asked(kind, moment, body)["wrong"]
    assert said in wrong
    assert "/tmp" not in wrong


def test_the_overview_counts_every_gpu_once() -> None:
    town = Town(16)
    for name in town.nodes:
        town.report(name, [0] * 8)
    found = answered(answers.overview, town.moment())
    for kind in found["gpus"]:
        assert kind["gpus"] == sum(kind[each] for each in ("held", "free", "kept", "foreign", "unavailable"))
    assert (found["running"], found["waiting"]) == (4, 2)
    assert [each["place"] for each in found["line"]] == [1, 2]


def test_use_adds_up_what_was_held_and_what_that_costs() -> None:
    prices = PriceSettings(currency="EUR", per_gpu_hour={"A100-SXM4-80GB": 2.0})
    moment = Town(16).moment()
    configured = Settings(prices=prices)
    told = json.loads(answers.encoded(answers.queue_list, moment, EVERYTHING, Query(), configured))
    found = {each["namespace"]: each for each in told["use"]}
    assert (found[OPEN]["gpus"], found[OPEN]["gpuSeconds"], found[OPEN]["cost"]) == (32, 32 * 3600, 64.0)
    assert told["currency"] == "EUR"
    whole = [kind for queue in told["items"] for kind in queue["quotas"] if kind["gpuType"] != "*"]
    named = [each for each in told["use"] if each["queue"] in {queue["name"] for queue in told["items"]}]
    assert sum(kind["gpuSeconds"] for kind in whole) == sum(each["gpuSeconds"] for each in named)


def test_who_may_not_see_nodes_sees_on_the_timeline_what_is_theirs_and_no_sizes() -> None:
    moment = Town(16).moment()
    mine = Audience(frozenset({OPEN}), nodes=False)
    found = json.loads(answers.encoded(answers.timeline, moment, mine, Query(), Settings()))
    assert found["spans"]
    assert {span["job"].partition("/")[0] for span in found["spans"]} == {OPEN}
    assert {lane["gpus"] for lane in found["lanes"]} == {0}


@pytest.mark.parametrize("by", ["type", "queue", "node"])
def test_the_timeline_has_what_runs_and_what_is_expected(by: str) -> None:
    moment = Town(16).moment()
    found = answered(answers.timeline, moment, by=by)
    running = [span for span in found["spans"] if span["kind"] == "running"]
    assert len(running) == (8 if by == "node" else 4)
    for span in running:
        assert span["start"] <= found["time"] <= span["endLow"] <= span["end"] <= span["endHigh"]
    waits = [each for each in found["spans"] if each["kind"] in ("expected", "reserved")]
    assert {each["job"] for each in waits} == {f"{OPEN}/next-up", f"{SECRET}/hush-hush"}
    assert all(each["startLow"] <= each["start"] <= each["startHigh"] <= each["end"] + 1e6 for each in waits)
    assert all(0 <= each["lane"] < len(found["lanes"]) for each in found["spans"])
    assert [mark["kind"] for mark in found["marks"]] == ["stop", "stop"]
