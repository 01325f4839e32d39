"""`trimtab get --watch`: what is printed when rows change, go, or the connection is cut."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.builders import A100, H100, node_object, queue_object
from tests.fakeserver import FakeApiServer
from tests.faultproxy import FaultProxy
from tests.live.harness import training_job

from trimtab.commands.following import GONE, Printer
from trimtab.commands.get import JOB, _node_rows, _queue_rows
from trimtab.observe.snapshot import Caches, ClusterObserver, Observation
from trimtab.settings import PriceSettings, TopologySettings
from trimtab.ui.form import list_form
from trimtab.ui.listing import Listing, Rows

HEADS = ("NAME", "GPUS", "AGE", "STATE")
Cells = tuple[str, str, str, str]


def rows(*cells: Cells) -> Rows:
    table = Listing(HEADS, right=("GPUS",))
    for each in cells:
        table.add(*each)
    names = [each[0] for each in cells]
    values = [{"name": each[0], "state": each[3]} for each in cells]
    return Rows([f"ns/{name}" for name in names], names, values, table)


def look(nodes: Sequence[Any], queues: Sequence[Any] = ()) -> Observation:
    return ClusterObserver(TopologySettings().levels).observe(Caches(nodes, [], [], queues), 0.0)


def test_rows_are_printed_below_when_they_change_and_ages_alone_change_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    printer = Printer(list_form("table"), JOB)
    printer.update(rows(("a-long-name", "8", "1 s", "Running"), ("b", "-", "1 s", "Queued")))
    printer.update(rows(("a-long-name", "8", "9 s", "Running"), ("b", "128", "9 s", "Starting")))
    printer.gone(["ns/b", "ns/never-seen"])
    assert capsys.readouterr().out.splitlines() == [
        "NAME         GPUS  AGE  STATE",
        "a-long-name     8  1 s  Running",
        "b               -  1 s  Queued",
        "b             128  9 s  Starting",
        f"b             128  9 s  {GONE}",
    ]
    assert list(printer.keys) == ["ns/a-long-name"]


def test_what_comes_back_after_it_has_gone_is_printed_again(capsys: pytest.CaptureFixture[str]) -> None:
    printer, first = Printer(list_form("name"), JOB), rows(("a", "8", "1 s", "Running"))
    printer.update(first)
    printer.gone(["ns/a"])
    printer.update(first)
    assert capsys.readouterr().out.splitlines() == [f"{JOB}/a"] * 3


def test_nothing_at_first_needs_no_column_names_until_there_is_something(capsys: pytest.CaptureFixture[str]) -> None:
    printer = Printer(list_form("table"), JOB)
    printer.update(rows())
    assert capsys.readouterr().out == ""
    printer.update(rows(("a", "8", "1 s", "Running")))
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["NAME", "a"]


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_programs_get_a_document_for_each(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    printer = Printer(list_form(form), JOB)
    printer.update(rows(("a", "8", "1 s", "Running"), ("b", "-", "1 s", "Queued")))
    printer.gone(["ns/a"])
    told = capsys.readouterr().out
    found = list(yaml.safe_load_all(told)) if form == "yaml" else documents(told)
    assert [(each["name"], each["state"]) for each in found] == [("a", "Running"), ("b", "Queued"), ("a", GONE)]


def documents(text: str) -> list[Any]:
    found, decoder = [], json.JSONDecoder()
    while text := text.strip():
        value, end = decoder.raw_decode(text)
        found.append(value)
        text = text[end:]
    return found


def test_nodes_and_queues_of_several_lines_are_followed(capsys: pytest.CaptureFixture[str]) -> None:
    quotas = {"gpuType": A100, "gpus": 16}, {"gpuType": H100, "gpus": 8}
    seen = look([node_object("n0", A100), node_object("n1", H100)], [queue_object("q", *quotas), queue_object("r")])
    printer = Printer(list_form("table"), "queue")
    printer.update(_queue_rows(seen, seen.queues, PriceSettings(), headers=True))
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["NAME", "q", H100, "r"]
    after = look([], [queue_object("q", quotas[0]), queue_object("r")])
    printer.update(_queue_rows(after, after.queues, PriceSettings(), headers=True))
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["q"]
    printer = Printer(list_form("table"), "node")
    printer.update(_node_rows(seen, list(seen.nodes), headers=False))
    cordoned = node_object("n1", H100, spec={"unschedulable": True})
    after = look([node_object("n0", A100), cordoned])
    printer.update(_node_rows(after, list(after.nodes), headers=False))
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["n0", "n1", "n1"]


class Watcher:
    """The command as a process that writes into a pipe."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def line(self) -> list[str]:
        """The words of the next line."""
        assert self.process.stdout is not None
        async with asyncio.timeout(60):
            return (await self.process.stdout.readline()).decode().split()


@asynccontextmanager
async def watching(kubeconfig: Path, *words: str) -> AsyncIterator[Watcher]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "trimtab", "get", *words, "--watch", "--kubeconfig", str(kubeconfig),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield Watcher(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def job(name: str) -> dict[str, Any]:
    made = training_job(name)
    made["metadata"]["namespace"] = "team"
    return made


def told(server: FakeApiServer, name: str, reason: str) -> None:
    """The controller says where a job stands."""
    condition = {"type": "Planned", "status": "True", "reason": reason, "message": "",
                 "lastTransitionTime": "2026-01-01T00:00:00Z"}  # fmt: skip
    known = server.store.get("llmtrainingjobs", f"team/{name}")
    server.store.update("llmtrainingjobs", f"team/{name}", {**known, "status": {"conditions": [condition]}})


async def test_a_watch_that_is_cut_loses_nothing_and_ends_as_kubectl_does(tmp_path: Path) -> None:
    async with (
        FakeApiServer(bookmark_seconds=0.2) as server,
        FaultProxy(server.kubeconfig(tmp_path), tmp_path) as proxy,
    ):
        server.store.create("llmtrainingjobs", job("a"))
        server.store.create("llmtrainingjobs", job("b"))
        async with watching(proxy.kubeconfig, "jobs", "-n", "team") as watcher:
            assert (await watcher.line())[0] == "NAME"
            assert [(await watcher.line())[0] for _ in range(2)] == ["a", "b"]
            told(server, "a", "Queued")
            line = await watcher.line()
            assert (line[0], line[-1]) == ("a", "Queued")
            await proxy.inject("status:500", method="GET", path="llmtrainingjobs", count=2)
            await proxy.sever()
            server.store.delete("llmtrainingjobs", "team/b")
            told(server, "a", "Running")
            server.store.compact()  # what happened meanwhile can only be found by listing anew
            after = [await watcher.line() for _ in range(2)]
            assert {(line[0], line[-1]) for line in after} == {("a", "Running"), ("b", GONE)}
            watcher.process.send_signal(signal.SIGINT)
            async with asyncio.timeout(30):
                assert await watcher.process.wait() == 1
        out, err = await watcher.process.communicate()
        assert (out, b"Traceback" in err) == (b"", False)


async def test_only_the_job_that_is_named_is_followed(tmp_path: Path) -> None:
    async with FakeApiServer(bookmark_seconds=0.2) as server:
        for name in ("a", "b"):
            server.store.create("llmtrainingjobs", job(name))
        async with watching(server.kubeconfig(tmp_path), "job", "team/b", "-o", "name") as watcher:
            assert await watcher.line() == [f"{JOB}/b"]
            told(server, "a", "Queued")
            told(server, "b", "Queued")
            assert await watcher.line() == [f"{JOB}/b"]
            server.store.delete("llmtrainingjobs", "team/a")
            server.store.delete("llmtrainingjobs", "team/b")
            assert await watcher.line() == [f"{JOB}/b"]
            watcher.process.send_signal(signal.SIGTERM)
            assert await watcher.process.wait() == 1
