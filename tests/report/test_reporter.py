"""The client that training scripts import: it tells the latest figures, and is never in the way of the training."""

from __future__ import annotations

import ast
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from trimtab import names, report

SOURCE = Path(report.__file__)


class Desk:
    """A listener in a thread: what arrived, and how it is to answer."""

    def __init__(self) -> None:
        self.reports: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200
        self.first: list[int] = []
        """Statuses of the first answers."""
        self.answer = b""
        self.arrived = threading.Condition()
        desk = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with desk.arrived:  # before the answer: who has it may look here at once
                    desk.reports.append({"path": self.path} | body)
                    desk.headers.append(dict(self.headers) | {"X-Port": str(self.client_address[1])})
                    desk.arrived.notify_all()
                self.send_response(desk.first.pop(0) if desk.first else desk.status)
                self.send_header("Location", "http://127.0.0.1:1/elsewhere")
                self.send_header("Content-Length", str(len(desk.answer)))
                self.end_headers()
                self.wfile.write(desk.answer)

            def log_message(self, *_: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.thread.start()

    def until(self, happened: Callable[[list[dict[str, Any]]], bool]) -> dict[str, Any]:
        """Wait for reports; the last one."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: happened(self.reports), 20), self.reports
            return self.reports[-1]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def tells(step: int) -> Callable[[list[dict[str, Any]]], bool]:
    """Whether the last report is that of a step."""
    return lambda reports: bool(reports) and reports[-1]["step"] == step


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.close()


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("first\n")
    return path


@pytest.fixture
def environment(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """What a pod of a gang has, with little patience."""
    for name in ("RANK", "PET_NODE_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TRIMTAB_REPORT_URL", desk.url)
    monkeypatch.setenv("TRIMTAB_REPORT_JOB", "team-a/llama")
    monkeypatch.setenv("TRIMTAB_EPOCH", "3")
    monkeypatch.setenv("TRIMTAB_REPORT_SECONDS", "0.1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    return monkeypatch


def test_a_step_is_told_with_its_figures_and_whose_it_is(
    desk: Desk, token: Path, environment: pytest.MonkeyPatch
) -> None:
    reporter = report.Reporter(str(token))
    reporter.step(7, tokens=4096, loss=2.5)
    told = desk.until(lambda reports: bool(reports))
    assert told == {
        "path": "/v1/report",
        "job": "team-a/llama",
        "epoch": 3,
        "step": 7,
        "metrics": [{"name": "loss", "value": "2.5"}],
    }
    assert desk.headers[0]["Authorization"] == "Bearer first"
    reporter.close()


def test_steps_are_measured_between_calls_warm_up_left_out(
    desk: Desk, token: Path, environment: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 10_000, 2))
    environment.setattr(report.time, "monotonic", lambda: next(clock))
    environment.setenv("TRIMTAB_REPORT_SECONDS", "3600")
    reporter = report.Reporter(str(token))
    for step in range(0, 10 * (report.WARM_UP + 3), 10):
        reporter.step(step, tokens=1000)
    environment.undo()
    reporter.close(20)
    told = desk.until(lambda reports: bool(reports))
    assert told["stepSeconds"] == 0.2
    assert told["tokensPerSecond"] == 5000


def test_before_anything_was_measured_no_time_is_told(desk: Desk, token: Path, environment: pytest.MonkeyPatch) -> None:
    reporter = report.Reporter(str(token))
    for step in range(report.WARM_UP + 1):
        reporter.step(step)
    reporter.close(20)
    assert "stepSeconds" not in desk.until(lambda reports: bool(reports))


def test_only_the_latest_is_told_and_a_checkpoint_is_news_by_itself(
    desk: Desk, token: Path, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("TRIMTAB_REPORT_SECONDS", "3600")
    reporter = report.Reporter(str(token))
    for step in range(1000):
        reporter.step(step)
    reporter.checkpoint(900)
    reporter.close(20)
    told = desk.until(lambda reports: bool(reports))
    assert (told["step"], told["checkpointStep"], len(desk.reports)) == (999, 900, 1)


def test_a_checkpoint_of_a_step_that_is_not_told_yet_waits_for_it(
    desk: Desk, token: Path, environment: pytest.MonkeyPatch
) -> None:
    reporter = report.Reporter(str(token))
    reporter.step(9)
    reporter.checkpoint(10)
    assert "checkpointStep" not in desk.until(lambda reports: bool(reports))
    reporter.step(10)
    assert desk.until(lambda reports: reports[-1]["step"] == 10)["checkpointStep"] == 10
    reporter.close()


def test_what_could_not_be_told_is_told_the_next_time_with_the_token_of_then(
    desk: Desk, token: Path, environment: pytest.MonkeyPatch
) -> None:
    desk.status = 429
    reporter = report.Reporter(str(token))
    reporter.step(5)
    desk.until(lambda reports: len(reports) >= 2)
    token.write_text("second")
    desk.status = 200
    seen = len(desk.reports)
    desk.until(lambda reports: len(reports) > seen)
    reporter.close()
    assert {told["step"] for told in desk.reports} == {5}
    assert desk.headers[-1]["Authorization"] == "Bearer second"


def test_the_last_report_is_tried_twice(desk: Desk, token: Path, environment: pytest.MonkeyPatch) -> None:
    environment.setattr(report, "RETRY_SECONDS", 0.01)
    environment.setenv("TRIMTAB_REPORT_SECONDS", "3600")
    desk.status = 429
    reporter = report.Reporter(str(token))
    reporter.step(5)
    reporter.checkpoint(5)
    reporter.close(20)
    assert [told["checkpointStep"] for told in desk.reports] == [5, 5]


def test_a_redirection_does_not_get_the_token(desk: Desk, token: Path, environment: pytest.MonkeyPatch) -> None:
    desk.status = 302
    other = Desk()
    reporter = report.Reporter(str(token))
    reporter.step(5)
    desk.until(lambda reports: len(reports) >= 2)
    reporter.close()
    other.close()
    assert other.reports == []
    assert all(told["path"] == "/v1/report" for told in desk.reports)


class Tensor:
    """Something like a loss on a GPU: a number only on demand, in whatever thread asks."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def detach(self) -> Tensor:
        return self

    def __float__(self) -> float:
        self.asked.append(threading.current_thread().name)
        return 1.25


def test_a_tensor_is_turned_into_a_number_outside_of_the_training(
    desk: Desk, token: Path, environment: pytest.MonkeyPatch
) -> None:
    loss = Tensor()
    reporter = report.Reporter(str(token))
    reporter.step(1, loss=loss)
    told = desk.until(lambda reports: bool(reports))
    reporter.close()
    assert told["metrics"] == [{"name": "loss", "value": "1.25"}]
    assert set(loss.asked) == {"trimtab-report"}


def test_one_figure_that_is_none_is_left_out_and_told_once(
    desk: Desk, token: Path, environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reporter = report.Reporter(str(token))
    for step in range(1, 4):
        reporter.step(step, tokens="many", phase="warm-up", loss=2.5, lost=float("nan"))  # type: ignore[arg-type]  # on purpose
        told = desk.until(tells(step))
    reporter.close()
    assert told["metrics"] == [{"name": "loss", "value": "2.5"}, {"name": "lost", "value": "nan"}]
    assert capsys.readouterr().err.count("phase is no number") == 1


def test_too_many_figures_are_cut_and_a_long_name_too(
    desk: Desk, token: Path, environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reporter = report.Reporter(str(token))
    reporter.step(1, **{"n" * 90: 0}, **{f"m{number}": number for number in range(50)})
    told = desk.until(lambda reports: bool(reports))
    reporter.close()
    assert len(told["metrics"]) == report.LARGEST_METRICS
    assert told["metrics"][0]["name"] == "n" * 63
    assert "51 metrics" in capsys.readouterr().err


@pytest.mark.parametrize(("status", "heard"), [(401, 1), (403, 1), (422, 1), (409, 0), (429, 0), (503, 0)])
def test_who_is_refused_hears_it_once(
    status: int,
    heard: int,
    desk: Desk,
    token: Path,
    environment: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    desk.status = status
    reporter = report.Reporter(str(token))
    reporter.step(5)
    desk.until(lambda reports: len(reports) >= 2 * report.TRIES)
    environment.setattr(report, "RETRY_SECONDS", 0.01)
    reporter.close(20)
    assert capsys.readouterr().err.count(f"refused with HTTP {status}") == heard


def test_a_replica_that_does_not_lead_costs_a_report_nothing(
    desk: Desk, token: Path, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("TRIMTAB_REPORT_SECONDS", "3600")
    desk.first = [503] * (report.TRIES - 1)
    reporter = report.Reporter(str(token))
    reporter.step(5)
    reporter._ending.set()  # no second last report
    reporter.close(20)
    assert [told["step"] for told in desk.reports] == [5] * report.TRIES
    assert len({headers["X-Port"] for headers in desk.headers}) == report.TRIES


@pytest.mark.parametrize("wrong", [{"loss": "high"}, {"loss": object()}, {"tokens": "many"}])
def test_figures_that_are_none_do_not_stop_the_training(
    wrong: dict[str, Any], desk: Desk, token: Path, environment: pytest.MonkeyPatch
) -> None:
    reporter = report.Reporter(str(token))
    reporter.step(1, **wrong)
    reporter.step(None, loss=1)  # type: ignore[arg-type]  # on purpose
    reporter.checkpoint(None)  # type: ignore[arg-type]  # on purpose
    reporter.step(2, loss=1)
    assert desk.until(tells(2))
    reporter.close()


@pytest.mark.parametrize("seconds", ["", "soon"])
def test_a_period_that_is_none_is_the_usual_one(
    seconds: str, token: Path, desk: Desk, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("TRIMTAB_REPORT_SECONDS", seconds)
    reporter = report.Reporter(str(token))
    reporter.step(1)
    reporter.close(20)
    assert desk.until(lambda reports: bool(reports))["step"] == 1


def test_nobody_listening_and_no_token_are_no_trouble(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment.setattr(report, "RETRY_SECONDS", 0.01)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        environment.setenv("TRIMTAB_REPORT_URL", f"http://127.0.0.1:{closed.getsockname()[1]}")
        reporter = report.Reporter(str(tmp_path / "missing"))
        reporter.step(1, loss=1.0)
        reporter.checkpoint(1)
        reporter.close(20)
        reporter.step(2)


@pytest.mark.parametrize(
    ("name", "value"), [("TRIMTAB_REPORT_URL", ""), ("RANK", "1"), ("RANK", "17"), ("PET_NODE_RANK", "1")]
)
def test_outside_of_trimtab_and_on_other_ranks_nothing_happens(
    name: str, value: str, desk: Desk, token: Path, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv(name, value)
    before = threading.active_count()
    reporter = report.Reporter(str(token))
    reporter.step(1, tokens=1, loss=Tensor())
    reporter.checkpoint(1)
    assert threading.active_count() == before
    reporter.close()
    assert desk.reports == []


def test_the_end_of_the_process_sends_what_is_left_and_is_not_held_up(
    desk: Desk, token: Path, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("TRIMTAB_REPORT_SECONDS", "3600")
    script = (
        f"import importlib.util as u; s = u.spec_from_file_location('report', {str(SOURCE)!r});"
        f"m = u.module_from_spec(s); s.loader.exec_module(m);"
        f"r = m.Reporter({str(token)!r}); r.step(41); r.step(42, loss=0.5); r.checkpoint(40)"
    )
    subprocess.run([sys.executable, "-I", "-S", "-c", script], env=dict(os.environ), check=True, timeout=60)
    told = desk.until(lambda reports: bool(reports))
    assert (told["step"], told["checkpointStep"]) == (42, 40)


def test_a_listener_that_hangs_holds_up_no_step(token: Path, environment: pytest.MonkeyPatch) -> None:
    environment.setattr(report, "TIMEOUT_SECONDS", 0.2)
    environment.setattr(report, "RETRY_SECONDS", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        environment.setenv("TRIMTAB_REPORT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        reporter = report.Reporter(str(token))
        reporter.step(1)
        peer, _ = silent.accept()  # the request is there, and nobody will answer it
        for step in range(2, 100_000):
            reporter.step(step, loss=1.0)
        reporter.close(0)
        peer.close()
        reporter.close(20)


# --- the file itself --------------------------------------------------------------------------------------------------
def test_it_is_one_file_that_an_old_python_can_read() -> None:
    tree = ast.parse(SOURCE.read_text(), feature_version=(3, 8))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} <= set(sys.stdlib_module_names)


def test_it_looks_for_the_token_where_pods_have_it() -> None:
    assert f"{names.REPORT_TOKEN_DIRECTORY}/token" == report.TOKEN_FILE
