"""Reports over https: to whom the client shows its token, and what becomes of certificates that are none."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from tests.report.test_reporter import Desk, desk, environment, tells, token

from trimtab import report
from trimtab_local.control_plane.pki import Authority

__all__ = ["desk", "environment", "token"]


@pytest.fixture
def ca(desk: Desk, environment: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Lets the desk speak TLS. The file of its authority."""
    authority, path, stem = Authority("reports"), tmp_path / "ca.crt", tmp_path / "server"
    authority.save(path)
    authority.issue(stem, "reports", hosts=["127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(stem.with_suffix(".crt"), stem.with_suffix(".key"))
    desk.server.socket = context.wrap_socket(desk.server.socket, server_side=True)
    environment.setenv("TRIMTAB_REPORT_URL", desk.url.replace("http:", "https:"))
    return path


@pytest.mark.parametrize("form", ["the text", "a file"])
def test_a_server_of_the_given_authority_is_told(
    form: str, ca: Path, desk: Desk, token: Path, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("TRIMTAB_REPORT_CA", ca.read_text() if form == "the text" else str(ca))
    reporter = report.Reporter(str(token))
    reporter.step(7, loss=2.5)
    assert desk.until(tells(7))["metrics"] == [{"name": "loss", "value": "2.5"}]
    reporter.close()


def test_a_server_of_another_authority_does_not_see_the_token(
    ca: Path, desk: Desk, token: Path, environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = ca.with_name("other.crt")
    Authority("somebody").save(other)
    environment.setenv("TRIMTAB_REPORT_CA", other.read_text())
    reporter = report.Reporter(str(token))
    reporter.step(7)
    reporter.close(20)
    assert desk.headers == []
    assert "certificate verify failed" in capsys.readouterr().err


@pytest.mark.parametrize("given", ["/nowhere/ca.crt", "-----BEGIN CERTIFICATE-----\nrubbish"])
def test_an_authority_that_is_none_ends_no_training(
    given: str, ca: Path, token: Path, environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environment.setenv("TRIMTAB_REPORT_CA", given)
    reporter = report.Reporter(str(token))
    reporter.step(7, loss=1.0)
    reporter.checkpointed(7)
    reporter.close()
    assert capsys.readouterr().err.startswith("trimtab.report: steps are not reported: TRIMTAB_REPORT_CA")
