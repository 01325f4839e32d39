"""`trimtab cluster up --extender`: what is said before anything is started. The rest is what the live tests run on."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from trimtab.cli import app
from trimtab_local.commands.cluster import _extender_command, _with_extender
from trimtab_local.control_plane import build, cluster
from trimtab_local.control_plane.layout import Layout
from trimtab_local.control_plane.options import ClusterOptions, gates_flag


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def extender_of(options: ClusterOptions) -> dict[str, object]:
    assert options.second_scheduler
    written = yaml.safe_load(yaml.safe_dump(options.second_scheduler.configuration))
    [found] = written["extenders"]
    return dict(found)


def test_over_tls_the_scheduler_shows_a_certificate_of_the_cluster_and_trusts_its_authority() -> None:
    files = Layout("ext").extender_files
    found = extender_of(_with_extender("ext", "https://127.0.0.1:8888"))
    assert found["tlsConfig"] == {
        "insecure": False,
        "caFile": str(files.ca),
        "certFile": str(files.client_certificate),
        "keyFile": str(files.client_key),
    }


def test_plain_http_is_for_this_machine_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "tlsConfig" not in extender_of(_with_extender("ext", "http://127.0.0.1:8888"))
    monkeypatch.setattr(build, "build", lambda: tmp_path)
    monkeypatch.setattr(cluster.LocalCluster, "start", lambda self: pytest.fail("it must not be started"))
    result = CliRunner().invoke(app, ["cluster", "up", "--extender", "http://10.0.0.1:8888"])
    assert result.exit_code == 1
    assert "use https:// beyond this machine" in result.output


def test_the_command_that_starts_the_extender_is_told() -> None:
    files = Layout("ext").extender_files
    assert _extender_command("http://localhost:9000", files) == "trimtab extender --host localhost --port 9000"
    tls = f"--certificate {files.certificate} --key {files.key} --client-ca {files.ca}"
    assert _extender_command("https://localhost", files) == f"trimtab extender --host localhost --port 443 {tls}"


def test_gates_of_one_scheduler_go_before_those_of_all() -> None:
    assert gates_flag({}) == {}
    assert gates_flag({"A": True, "B": True}, {"B": False}) == {"feature-gates": "A=true,B=false"}
