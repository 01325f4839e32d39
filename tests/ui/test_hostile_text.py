"""What strangers wrote is printed, and obeyed by no terminal: every command, every field, every form."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.console import Group
from rich.table import Table
from tests.builders import (
    NOW,
    gpunode_object,
    job,
    job_object,
    node,
    node_object,
    placement,
    plan_of,
    pod_object,
    queue_object,
    snapshot,
)
from typer.testing import CliRunner, Result

from trimtab.api.status import JobStatus
from trimtab.apply import change, events, transitions
from trimtab.cli import app, main
from trimtab.commands import dumps, explanation, job_list, live
from trimtab.doctor import show as doctor
from trimtab.doctor.findings import CheckGroup as Part
from trimtab.doctor.findings import CheckResult, Finding, Severity
from trimtab.observe.gpunodes import GpuNodes
from trimtab.observe.jobs import JobFacts
from trimtab.observe.snapshot import Caches, ClusterObserver, Observation
from trimtab.observe.stragglers import StragglerRules, Stragglers
from trimtab.printable import escaped, printable, say
from trimtab.settings import LogSettings, TelemetrySettings
from trimtab.telemetry import logs
from trimtab.ui.form import Output
from trimtab.ui.output import show
from trimtab.ui.progress import step
from trimtab.ui.terminal import Console, Text
from trimtab_policy.perf.hierarchy import Learned

HOSTILE = (
    "x[/b][link=http://evil]:smile:\x1b]0;title\x07\x1b[2J\x9b31m\r\b\x00\x7f\u202e\u2066\u200b\ufeff\u2028\U000e0041"
)
"""Markup that closes what nobody opened, a link, an emoji; OSC, CSI (C0 and C1), overrides, zero width, tags."""
LONE = HOSTILE + "\udcff"
"""With a lone surrogate, which no encoder takes; JSON of the API server cannot hold one, file names can."""


def harmless(said: str) -> bool:
    return all(each.isprintable() or each == "\n" for each in said)


def fed(value: Any) -> Any:
    """Each string of a dump with hostile words behind it; times, enumerations and keys stay."""
    if isinstance(value, dict):
        return {key: each if key in KEPT else fed(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [fed(each) for each in value]
    return value + HOSTILE if isinstance(value, str) else value


KEPT = (
    "gpu_type", "gpu_types", "model", "modes", "mode", "kind", "precision", "optimizer", "software", "recompute", "uid",
    "policy", "method",
)  # fmt: skip
"""What must be a name of the catalogue, of an enumeration, or of the dump itself."""


# --- the function ----------------------------------------------------------------------------------------------------
@given(st.text(st.characters(codec=None, categories=["Cc", "Cf", "Cs", "Co", "Zl", "Zp", "Zs", "L", "So", "Mn"])))
def test_nothing_that_has_no_width_or_moves_a_cursor_is_left(text: str) -> None:
    told = printable(text)
    assert told.isprintable()
    assert printable(told) == told
    assert all(unicodedata.category(each) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") for each in told)
    assert harmless(printable(text, lines=True))
    told.encode()


@pytest.mark.parametrize("unseen", "\u034f\u115f\u17b4\u180b\u2800\u3164\ufe0f\uffa0\U000e0100\u200b\u00ad", ids=ascii)
def test_nothing_that_is_not_seen_is_left(unseen: str) -> None:
    """By Unicode's category some of them are letters, and two names of jobs would look alike."""
    assert printable(f"team{unseen}-a") == "team�-a"
    assert escaped(f'"{unseen}"') != f'"{unseen}"'
    assert json.loads(escaped(f'"{unseen}"')) == unseen


def test_what_is_printable_stays_as_it_is() -> None:
    for text in ("", "größe 8×H100 → 3 → ✓", "日本語 [b] :smile:", "⣿ │ 😀"):
        assert printable(text) == text
    assert printable("two\nlines", lines=True) == "two\nlines"
    assert printable("two\nlines") == "two�lines"


ANY = st.text(st.characters(codec=None))


@given(st.recursive(ANY, lambda inner: st.lists(inner) | st.dictionaries(ANY, inner)))
def test_json_says_the_same_with_escapes(value: Any) -> None:
    told = escaped(json.dumps(value, ensure_ascii=False, indent=2))
    assert harmless(told)
    assert json.loads(told) == json.loads(json.dumps(value))


# --- what prints -----------------------------------------------------------------------------------------------------
def printed(what: Any, width: int = 60) -> str:
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=True, color_system="truecolor").print(what)
    return out.getvalue()


SEQUENCES = re.compile(r"\x1b\[[0-9;]*m")
"""rich's own colours, which a terminal gets."""


def test_a_table_says_strings_texts_titles_and_headings_of_strangers_as_they_are() -> None:
    table = Table(LONE, title=LONE, caption=LONE)
    table.add_row(LONE)
    table.add_row(Text(LONE, "bold"))
    table.add_row(Text.assemble((LONE, "red"), LONE).append(LONE))
    said = printed(Group(table, LONE, Text(LONE)), 400)
    assert harmless(SEQUENCES.sub("", said))
    assert said.count("x[/b][link=http://evil]:smile:") >= 8


def test_texts_that_are_not_ours_lose_their_controls_when_they_are_printed() -> None:
    import rich.text

    assert harmless(SEQUENCES.sub("", printed(rich.text.Text(HOSTILE, "bold"))))


@pytest.mark.parametrize("form", Output)
def test_every_form_of_an_answer_is_harmless(form: Output, capsys: pytest.CaptureFixture[str]) -> None:
    value = {LONE: [LONE, {"größe": LONE}]}
    show(form, value, Text(LONE))
    told = capsys.readouterr().out
    assert harmless(told)
    if form is not Output.TABLE:
        read = json.loads(told) if form is Output.JSON else yaml.safe_load(told.replace("\\uDCFF", "?"))
        assert next(iter(read)).startswith("x[/b]")


def test_lines_progress_events_and_conditions_are_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    say(LONE)
    say(LONE, error=True)
    with step(LONE):
        pass
    captured = capsys.readouterr()
    assert harmless(captured.out)
    assert harmless(captured.err)
    happening = transitions.JobEvent("Warning", "Failed", LONE, 1)
    told = events.event({"uid": "u", "name": "n"}, happening, action="a", instance="i", now=NOW)
    assert harmless(told["note"])
    meta = job_object().metadata
    said = change.say(JobStatus(), meta, NOW, "Failed", True, "Failed", LONE)
    assert harmless(" ".join(each.message for each in said.conditions))
    assert change.say(said, meta, NOW + 9, "Failed", True, "Failed", LONE) is said


@pytest.fixture
def logging_again() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


@pytest.mark.parametrize("form", ["console", "json"])
def test_logs_are_harmless_and_strangers_make_no_lines(
    form: Any, logging_again: None, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure(LogSettings(format=form))
    structlog.get_logger("test").warning(f"{LONE}\nforged", about=f"{LONE}\nforged", several=[LONE])
    logging.getLogger("kopf").warning("%s\nforged", LONE)
    said = capsys.readouterr().err
    assert harmless(said)
    assert len(said.splitlines()) == 2
    try:
        raise ValueError(LONE)
    except ValueError:
        structlog.get_logger("test").exception("failed")
    assert harmless(capsys.readouterr().err)


# --- commands on a dump ----------------------------------------------------------------------------------------------
@pytest.fixture
def dump(tmp_path: Path) -> Path:
    held = replace(job("held", gpus=(8, 8), steps=20_000, created=NOW - 3600), queue="q")
    held = replace(held, placement=placement(held.uid, {"a100-0": 8}), started=NOW - 60, expected_finish=NOW + 900)
    waits = [job("waits", gpus=(8, 8), steps=1_000, queue="q"), job("giant", gpus=(8, 8), model="llama3.1-405b")]
    now = snapshot([node("a100-0", free=0)], [held, *waits])
    file = tmp_path / "now.json"
    file.write_text(json.dumps(fed(msgspec.to_builtins(now))))
    dumps.read_snapshot(file)
    return file


def ran(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    assert harmless(result.stdout), result.stdout
    assert harmless(result.stderr), result.stderr
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.mark.parametrize("form", Output)
def test_commands_on_a_hostile_dump(dump: Path, form: Output, tmp_path: Path) -> None:
    edit = tmp_path / "change.yaml"
    edit.write_text(yaml.safe_dump({"remove": {"jobs": ["default" + HOSTILE + "/waits" + HOSTILE]}}))
    for name in ("held", "waits", "giant"):
        found = ran("explain", name + HOSTILE, "-n", "default" + HOSTILE, "--snapshot", dump, "-o", form.value)
        assert found.exit_code == 0, found.output
        assert "x[/b][link=http://evil]:smile:" in found.stdout
    assert ran("replay", dump, "--policies", "fcfs,sjf", "-o", form.value).exit_code == 0
    ran("whatif", "-f", edit, "--snapshot", dump, "-o", form.value)
    ran("explain", LONE, "--snapshot", dump, "-o", form.value)


@pytest.mark.parametrize("arguments", [(), ("get",), ("get", "jobs", "--as"), ("policies",), ("plan", "-f")])
def test_mistakes_in_arguments_are_quoted_harmlessly(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the library of the command line says itself; the stream is put back by `monkeypatch`."""
    monkeypatch.setattr("sys.argv", ["trimtab", *arguments, HOSTILE])
    monkeypatch.setattr("sys.stderr", sys.stderr)
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert harmless(said.out + said.err), said.err
    assert said.err


def test_errors_quote_files_and_fields_harmlessly(tmp_path: Path) -> None:
    hostile = tmp_path / ("dump" + HOSTILE.replace("/", "").replace("\x00", ""))
    hostile.write_text("{}")
    assert ran("explain", "job", "--snapshot", hostile).exit_code == 2
    manifest = tmp_path / "job.yaml"
    written = {"apiVersion": HOSTILE, "kind": HOSTILE, "metadata": {"name": HOSTILE}, "spec": {HOSTILE: 1}}
    manifest.write_text(json.dumps(written))
    assert ran("plan", "-f", manifest, "--snapshot", hostile).exit_code == 2
    assert ran("explain", "job", "--policy", HOSTILE, "--snapshot", hostile).exit_code == 2


# --- commands on a cluster -------------------------------------------------------------------------------------------
CONDITION = {"status": "True", "reason": "Told", "message": HOSTILE, "lastTransitionTime": "2026-01-02T03:00:00Z"}
ENDED = {"time": "2026-01-02T03:00:00Z", "epoch": 1}
STATUS = {
    "conditions": [
        CONDITION | {"type": kind}
        for kind in ("Planned", "GangScheduled", "Preempted", "Degraded", "Drifted", "Failed")
    ],
    "pending": {
        "reason": "InsufficientGpus", "message": HOSTILE, "blockers": [HOSTILE], "alternatives": [HOSTILE],
    },
    "shadow": {"policy": HOSTILE, "summary": HOSTILE, "pendingReason": "InsufficientGpus"},
    "failures": [ENDED | {"cause": "Node", "reason": HOSTILE, "node": HOSTILE}],
    "stops": [ENDED | {"cause": "Preempted", "beneficiary": HOSTILE}],
}  # fmt: skip
"""A status with hostile words wherever a stranger's may stand."""


def watched() -> Observation:
    """Two nodes, a job that waits and one that runs: hostile wherever the API server's rules leave room for it."""
    plan = plan_of(placement("uid-runs", {"n1": 8})).model_copy(update={"reason": HOSTILE, "policy": HOSTILE})
    waits = JobStatus.model_validate(STATUS)
    statuses = {"waits": waits, "runs": waits.model_copy(update={"plan": plan, "pending": None, "shadow": None})}
    spec = {"queue": "q" + HOSTILE, "template.spec.containers.0.image": HOSTILE}
    jobs = [job_object(name + HOSTILE, spec, status, uid=f"uid-{name}") for name, status in statuses.items()]
    broken = job_object("broken", {"model": {"preset": HOSTILE}, "template.spec.nodeSelector": {HOSTILE: HOSTILE}})
    nodes = [
        node_object("n1" + HOSTILE),
        node_object("n2", labels={"nvidia.com/gpu.product": HOSTILE, "topology.kubernetes.io/rack": HOSTILE}),
    ]
    heard = GpuNodes(TelemetrySettings())
    heard.take(gpunode_object("n1", driverVersion=HOSTILE, backend=HOSTILE, observedTime=HOSTILE))
    pods = [pod_object("p" + HOSTILE, "n2", gpus=1)]
    caches = Caches(nodes, pods, [*jobs, broken], [queue_object("q" + HOSTILE, {"gpuType": HOSTILE, "gpus": 8})], [])
    return ClusterObserver(
        [["topology.kubernetes.io/rack"]], heard, Stragglers(StragglerRules(0.5, seconds=0.0))
    ).observe(caches, NOW)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Observation:
    found = watched()

    async def look(*_: Any) -> Observation:
        return found

    async def learned(*_: Any) -> Learned:
        return Learned()

    async def deciding(*_: Any) -> str:
        return "best_fit"

    async def jobs_of(*_: Any) -> list[JobFacts]:
        return list(found.jobs.values())

    monkeypatch.setattr(job_list, "jobs_of", jobs_of)
    for module in (live, explanation):
        monkeypatch.setattr(module, "look", look)
    monkeypatch.setattr(explanation.learned, "learned", learned)
    monkeypatch.setattr(explanation, "deciding", deciding)
    return found


@pytest.mark.parametrize("form", Output)
def test_commands_on_a_hostile_cluster(cluster: Observation, form: Output) -> None:
    told = [ran("get", kind, "-o", form.value) for kind in ("jobs", "nodes", "queues")]
    jobs = [facts.meta for facts in cluster.jobs.values()]
    told += [ran("explain", meta.name, "-n", meta.namespace, "-o", form.value) for meta in jobs]
    told.append(ran("snapshot", "-o", form.value))
    assert len(told) == 7
    assert all(each.exit_code == 0 for each in told), [each.output for each in told if each.exit_code]
    assert sum("x[/b]" in each.stdout for each in told) >= 6


def test_what_the_doctor_finds_is_harmless() -> None:
    finding = Finding(Severity.ERROR, LONE, reason=None, fix=LONE, objects=(LONE,))
    assert harmless(SEQUENCES.sub("", printed(doctor.table([CheckResult(Part.JOBS, LONE, (finding,))]), 200)))
