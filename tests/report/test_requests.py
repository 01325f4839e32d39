"""Being asked to save its state: a training hears of it soon, answers at once, and is never in trouble for it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.report.test_reporter import Desk, desk, environment, token

from trimtab import report

__all__ = ["desk", "environment", "token"]

ASKED = b'{"result": "accepted", "checkpoint": {"deadline": "2026-01-02T03:06:05Z", "cause": "Preempted"}}'


@pytest.fixture
def file(tmp_path: Path, environment: pytest.MonkeyPatch) -> Path:
    """What the kubelet writes from the pod's annotation: at first nothing."""
    path = tmp_path / "checkpoint-requested"
    path.write_text("")
    environment.setenv("TRIMTAB_CHECKPOINT_FILE", str(path))
    environment.setattr(report, "LOOK_SECONDS", 0.0)
    environment.setattr(report, "RETRY_SECONDS", 0.01)
    return path


def eventually_asked(reporter: report.Reporter, wanted: bool = True) -> bool:
    limit = time.monotonic() + 20
    while reporter.should_checkpoint() != wanted and time.monotonic() < limit:
        time.sleep(0.01)
    return reporter.should_checkpoint() == wanted


def test_nobody_asks_where_nothing_says_so(token: Path, environment: pytest.MonkeyPatch) -> None:
    environment.delenv("TRIMTAB_CHECKPOINT_FILE", raising=False)
    reporter = report.Reporter(str(token))
    assert reporter.should_checkpoint() is False
    reporter.close()


@pytest.mark.parametrize("rank", ["0", "1", "17"])
def test_every_rank_reads_it_in_the_file_and_when_it_is_taken_back(
    rank: str, file: Path, token: Path, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("RANK", rank)
    reporter = report.Reporter(str(token))
    assert reporter.should_checkpoint() is False
    file.write_text("2026-01-02T03:06:05Z")
    assert reporter.should_checkpoint() is True
    file.write_text("")
    assert reporter.should_checkpoint() is False
    reporter.close()


def test_a_file_that_cannot_be_read_is_no_request(file: Path, token: Path) -> None:
    reporter = report.Reporter(str(token))
    file.unlink()
    assert reporter.should_checkpoint() is False
    file.write_bytes(b"\xff\xfe\x00")
    reporter.should_checkpoint()
    file.unlink()
    file.mkdir()
    reporter.should_checkpoint()
    reporter.close()


def test_the_file_is_looked_at_once_a_second_however_often_it_is_asked_about(
    file: Path, token: Path, environment: pytest.MonkeyPatch
) -> None:
    environment.setattr(report, "LOOK_SECONDS", 1.0)
    reporter = report.Reporter(str(token))
    clock = [100.0]
    environment.setattr(report.time, "monotonic", lambda: clock[0])
    assert reporter.should_checkpoint() is False
    file.write_text("now")
    assert [reporter.should_checkpoint() for _ in range(1000)] == [False] * 1000
    clock[0] += 1.0
    assert reporter.should_checkpoint() is True
    environment.undo()
    reporter.close()


def test_the_answer_to_a_report_says_so_and_that_it_was_taken_back(desk: Desk, file: Path, token: Path) -> None:
    desk.answer = ASKED
    reporter = report.Reporter(str(token))
    reporter.step(1)
    assert eventually_asked(reporter)
    desk.answer = b'{"result": "accepted"}'
    reporter.step(2)
    assert eventually_asked(reporter, wanted=False)
    reporter.close()


@pytest.mark.parametrize("answer", [b"", b"{", b"null", b"[]", b"7", b'{"checkpoint": null}', b"\xff", b"[" * 10_000])
def test_an_answer_that_says_nothing_is_no_request(desk: Desk, file: Path, token: Path, answer: bytes) -> None:
    desk.answer = answer
    reporter = report.Reporter(str(token))
    reporter.step(1)
    desk.until(lambda reports: bool(reports))
    reporter.step(2)
    desk.until(lambda reports: reports[-1]["step"] == 2)
    assert reporter.should_checkpoint() is False
    reporter.close()


def test_what_is_saved_is_told_at_once_and_once(
    desk: Desk, file: Path, token: Path, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("TRIMTAB_REPORT_SECONDS", "3600")
    reporter = report.Reporter(str(token))
    reporter.step(41, loss=1.0)
    reporter.step(42, loss=0.5)
    reporter.checkpointed(42, seconds=20)  # returns when it was heard
    [told] = desk.reports
    assert (told["step"], told["checkpointStep"], told["acknowledged"]) == (42, 42, True)
    reporter.step(43)  # it was taken back, and the training goes on
    reporter.close(20)
    assert "acknowledged" not in desk.reports[-1]


def test_it_is_told_also_before_any_step(desk: Desk, file: Path, token: Path) -> None:
    reporter = report.Reporter(str(token))
    reporter.checkpointed(7, seconds=20)
    assert (desk.reports[0]["step"], desk.reports[0]["checkpointStep"]) == (7, 7)
    reporter.close()


@pytest.mark.parametrize("status", [503, 500, 429])
def test_it_is_told_again_until_it_is_heard(
    status: int, desk: Desk, file: Path, token: Path, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("TRIMTAB_REPORT_SECONDS", "3600")
    desk.first = [status] * (2 * report.TRIES)
    reporter = report.Reporter(str(token))
    reporter.checkpointed(7, seconds=20)
    assert all(told["acknowledged"] for told in desk.reports)
    assert desk.first == []
    reporter.close()


def test_a_refusal_is_the_end_of_it(desk: Desk, file: Path, token: Path) -> None:
    desk.status = 409
    reporter = report.Reporter(str(token))
    began = time.monotonic()
    reporter.checkpointed(7, seconds=600)
    assert time.monotonic() - began < 300
    reporter.close(20)


def test_other_ranks_and_odd_steps_do_not_wait(
    file: Path, token: Path, desk: Desk, environment: pytest.MonkeyPatch
) -> None:
    reporter = report.Reporter(str(token))
    reporter.checkpointed("soon", seconds=600)  # type: ignore[arg-type]  # on purpose
    reporter.close(20)
    assert desk.reports == []
    environment.setenv("RANK", "1")
    report.Reporter(str(token)).checkpointed(7, seconds=600)
    assert desk.reports == []


def test_nobody_listening_holds_the_training_up_for_a_moment_only(
    desk: Desk, file: Path, tmp_path: Path, environment: pytest.MonkeyPatch
) -> None:
    reporter = report.Reporter(str(tmp_path / "missing"))
    reporter.checkpointed(7, seconds=0.05)
    reporter.close(0.05)
    assert desk.reports == []
