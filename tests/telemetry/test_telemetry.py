"""Logs, metrics and health as others read them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import aiohttp
import pytest
import structlog

from trimtab.errors import SettingsError
from trimtab.settings import HttpSettings, LogSettings
from trimtab.telemetry import logs, metrics
from trimtab.telemetry.server import TelemetryServer

LOCAL = HttpSettings(host="127.0.0.1", port=0)


@pytest.fixture
def logging_restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in logs.LIBRARY_LEVELS}
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, before in levels.items():
        logging.getLogger(name).setLevel(before)


@pytest.mark.usefixtures("logging_restored")
def test_our_lines_and_those_of_libraries_are_json_of_one_form(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(LogSettings(format="json"))
    structlog.contextvars.bind_contextvars(epoch=7)
    structlog.get_logger("trimtab.x").info("bound", job="team/a", pods=4)
    logging.getLogger("kopf.y").error("kopf says %s", "hello")
    logging.getLogger("kopf.y").info("chatter is left out")
    logging.getLogger("kopf").warning(logs.EXPECTED)
    ours, theirs = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (ours["event"], ours["job"], ours["pods"], ours["epoch"]) == ("bound", "team/a", 4, 7)
    assert (theirs["event"], theirs["level"], theirs["logger"]) == ("kopf says hello", "error", "kopf.y")
    assert ours.keys() >= {"timestamp", "level", "logger"}


@pytest.mark.usefixtures("logging_restored")
def test_the_console_form_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(LogSettings(format="console", level="warning"))
    structlog.get_logger("trimtab.x").info("too low")
    structlog.get_logger("trimtab.x").warning("look here", node="n1")
    assert "look here" in (text := capsys.readouterr().err)
    assert "node=n1" in text
    assert "too low" not in text


async def test_metrics_and_health_are_served() -> None:
    trouble = "the last round is 200 s ago"
    metrics.KubeMetrics().request("create", "pods/binding", 201, 0.01)
    async with (
        TelemetryServer(LOCAL, healthy=lambda: trouble, ready=lambda: "") as server,
        aiohttp.ClientSession(server.url) as session,
    ):
        async with session.get("/metrics") as answer:
            text = await answer.text()
        assert 'trimtab_api_requests_total{code="201",resource="pods/binding",verb="create"}' in text
        async with session.get("/healthz") as answer:
            assert (answer.status, await answer.text()) == (503, trouble + "\n")
        async with session.get("/readyz") as answer:
            assert (answer.status, await answer.text()) == (200, "ok\n")


def test_every_metric_has_our_prefix_and_a_help_text() -> None:
    for family in metrics.REGISTRY.collect():
        assert family.name.startswith(("trimtab_", "process_"))
        assert family.documentation


async def test_a_port_that_is_taken_is_one_clear_error() -> None:
    async with TelemetryServer(LOCAL, healthy=lambda: "", ready=lambda: "") as first:
        taken = HttpSettings(host="127.0.0.1", port=int(first.url.rpartition(":")[2]))
        with pytest.raises(SettingsError, match=r"set metrics\.port"):
            async with TelemetryServer(taken, healthy=lambda: "", ready=lambda: ""):
                pytest.fail("it listens on a port that is taken")
