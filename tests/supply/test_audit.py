"""Known vulnerabilities are found, by pip-audit itself, from advisories that are saved here."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hack.requirements import Locked
from hack.supply import advisories, audit

ROOT = Path(__file__).resolve().parents[2]
SAVED = Path(__file__).parent / "advisories"
HASH = "sha256:" + "0" * 64


def advisory(*events: dict[str, str], name: str = "demo", **more: Any) -> dict[str, Any]:
    part = {"package": {"ecosystem": "PyPI", "name": name}, "ranges": [{"type": "ECOSYSTEM", "events": list(events)}]}
    return {"id": "X-1", "summary": "s", "affected": [part], **more}


def locked(name: str, version: str) -> Locked:
    return Locked(name, version, "", [HASH])


def test_pip_audit_finds_what_a_saved_advisory_says_and_nothing_else() -> None:
    with advisories.served(advisories.read(SAVED)) as address:
        versions = [locked("aiohttp", "3.9.1"), locked("kopf", "1.45.2"), locked("aiohttp", "3.9.2")]
        answers = audit.ask(versions, address)
        found = {(each["name"], each["version"]): len(each["vulns"]) for each in answers}
        assert found == {("aiohttp", "3.9.1"): 1, ("aiohttp", "3.9.2"): 0, ("kopf", "1.45.2"): 0}
        lines, met = audit.findings(answers, {})
        assert (len(lines), met) == (1, set())
        assert lines[0].startswith("aiohttp 3.9.1: ")
        assert "fixed in 3.9.2: aiohttp is vulnerable to directory traversal" in lines[0]
        assert audit.findings(answers, {"CVE-2024-23334": "no files are served"}) == ([], {"CVE-2024-23334"})


def test_the_lock_has_none_of_the_saved_vulnerabilities(capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.vulnerabilities(["aiohttp", "Jinja2"], SAVED) == 0
    assert capsys.readouterr().err == "2 distributions, 0 vulnerabilities\n"


def test_a_vulnerability_in_the_lock_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.json").write_text(json.dumps(advisory({"introduced": "0"}, name="aiohttp")))
    assert audit.vulnerabilities(["aiohttp"], tmp_path) == 1
    assert "X-1, fixed in no version: s" in capsys.readouterr().out


def test_no_answer_is_not_taken_for_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with advisories.served([]) as address:
        pass  # and it is gone
    with pytest.raises(audit.CannotAsk):
        audit.ask([locked("aiohttp", "3.9.1")], address)
    assert audit.vulnerabilities(["aiohttp"], tmp_path / "missing.json") == 2
    assert "could not ask" in capsys.readouterr().err
    assert audit.vulnerabilities(["aiohtp"], SAVED) == 2
    assert "not in hack/constraints.txt: aiohtp" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("events", "hit", "missed"),
    [
        ([{"introduced": "0"}], ["0.1", "9"], []),
        ([{"introduced": "1.2"}, {"fixed": "1.10"}], ["1.2", "1.9.9", "1.10rc1"], ["1.1", "1.10", "2"]),
        ([{"fixed": "1.10"}, {"introduced": "1.2"}], ["1.9"], ["1.10"]),  # in any order
        ([{"introduced": "1"}, {"last_affected": "1.5"}], ["1", "1.5"], ["0.9", "1.5.1"]),
        (
            [{"introduced": "0"}, {"fixed": "1"}, {"introduced": "2"}, {"fixed": "2.1"}],
            ["0.5", "2"],
            ["1", "1.9", "2.1"],
        ),
    ],
)
def test_ranges_are_read_as_the_format_says(events: list[dict[str, str]], hit: list[str], missed: list[str]) -> None:
    saved = [advisory(*events)]
    assert [version for version in hit if not advisories.about(saved, "demo", version)] == []
    assert [version for version in missed if advisories.about(saved, "demo", version)] == []


def test_names_are_compared_as_the_index_does_and_withdrawn_advisories_are_not() -> None:
    assert advisories.about([advisory({"introduced": "0"}, name="De_Mo")], "de-mo", "1")
    assert not advisories.about([advisory({"introduced": "0"}, withdrawn="2026-01-01T00:00:00Z")], "demo", "1")
    assert not advisories.about([advisory({"introduced": "0"}, name="other")], "demo", "1")
    listed = {"id": "X", "affected": [{"package": {"ecosystem": "PyPI", "name": "demo"}, "versions": ["1.0", "x-y"]}]}
    assert advisories.about([listed], "demo", "1")
    assert not advisories.about([listed], "demo", "1.1")


def test_advisories_are_read_from_a_zip_too(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as packed:
        packed.write(SAVED / "aiohttp.json", "GHSA.json")
    assert advisories.read(tmp_path / "all.zip") == advisories.read(SAVED / "aiohttp.json")
    (tmp_path / "wrong.json").write_text("[1]")
    with pytest.raises(ValueError, match="no advisory"):
        advisories.read(tmp_path / "wrong.json")


def test_the_analyser_runs_with_all_other_rules_and_finds_what_it_is_for(tmp_path: Path) -> None:
    """A rule that is switched off is switched off for a reason that stands beside it."""
    (tmp_path / "bad.py").write_text("import subprocess\n\nsubprocess.run('ls', shell=True)\neval('1')\n")
    command = [str(audit.BIN / "ruff"), "check", "--config", str(ROOT / "pyproject.toml"), "--output-format", "concise"]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False)
    assert {"S602", "S307"} <= {word for line in done.stdout.splitlines() for word in line.split()}
    bare = [
        f"{path.name}: {line.strip()}"
        for folder in ("operator", "policy", "hack")
        for path in (ROOT / folder).rglob("*.py")
        for line in path.read_text().splitlines()
        if "noqa: S" in line and "noqa: SIM" not in line and " - " not in line.partition("noqa: S")[2]
    ]
    assert bare == []


def test_what_pip_audit_leaves_out_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends with 0 and says that there are none, where the index has no data on vulnerabilities."""
    said = json.dumps({"dependencies": [{"name": "aiohttp", "skip_reason": "Dependency not found"}]})
    silent = subprocess.CompletedProcess([], 0, said, "No known vulnerabilities found")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: silent)
    with pytest.raises(audit.CannotAsk, match="no answer about aiohttp: Dependency not found"):
        audit.ask([locked("aiohttp", "3.9.1")])


def test_the_command_says_what_it_is_for() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hack.supply.audit", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "--advisories PATH" in done.stdout
