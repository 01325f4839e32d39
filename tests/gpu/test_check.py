"""The command: what it says without a GPU, what it keeps, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hack.gpu import __main__ as command
from hack.gpu.__main__ import Check, Kept, Options, read_kept, run_check, write_kept
from hack.gpu.verdicts import Comparison, Missing, Outcome, Verdict, exit_code, tolerated_misses, within

from trimtab_local.checkout import checkout

GOOD = Outcome("agent", (within("x", 1.0, 1.0, 0.5, 1.5, "s"),))
BAD = Outcome("steps", (within("x", 2.0, 1.0, 0.5, 1.5, "s"),))
ABSENT = Outcome("trainer", missing="there is no GPU")


def options(folder: Path) -> Options:
    return Options(folder, None, None)


def test_without_a_gpu_it_says_what_is_missing_and_ends_with_2(tmp_path: Path) -> None:
    """As a user starts it, on a machine that hides its GPUs and their tool."""
    asked = ("--only", "agent", "--only", "steps", "--folder", str(tmp_path), "-o", "json")
    hidden = {"CUDA_VISIBLE_DEVICES": "", "PATH": "/usr/bin:/bin"}
    started = subprocess.run(
        [sys.executable, "-m", "hack.gpu", *asked],
        cwd=checkout(), capture_output=True, text=True, check=False, env={**os.environ, **hidden},
    )  # fmt: skip
    if "no CUDA device" not in started.stdout:
        pytest.skip("this machine's nvidia-smi is in /usr/bin")
    assert started.returncode == 2, started.stderr
    told = json.loads(started.stdout)
    assert [(each["check"], each["verdict"]) for each in told["checks"]] == [("agent", "not run"), ("steps", "not run")]
    assert "driver" in told["checks"][0]["missing"]
    assert json.loads((tmp_path / "report.json").read_text()) == told
    assert "Traceback" not in started.stderr


@pytest.mark.parametrize(
    ("outcomes", "code"), [([GOOD], 0), ([GOOD, ABSENT], 2), ([GOOD, BAD], 1), ([BAD, ABSENT], 1), ([], 0)]
)
def test_what_is_wrong_counts_more_than_what_could_not_be_looked_at(outcomes: list[Outcome], code: int) -> None:
    assert exit_code(outcomes) == code


@pytest.mark.parametrize(("runs", "misses"), [(0, 0), (1, 1), (4, 2), (8, 4), (100, 27)])
def test_an_honest_interval_may_miss_some(runs: int, misses: int) -> None:
    assert tolerated_misses(runs) == misses


def test_what_was_done_is_not_done_again_until_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def check(options: Options, kept: Kept) -> Outcome:
        done.append("once more")
        return GOOD

    monkeypatch.setitem(command.CHECKS, Check.AGENT, check)
    run_check(Check.AGENT, options(tmp_path), Kept("here"))
    kept = read_kept(tmp_path / command.KEPT, "here")
    assert run_check(Check.AGENT, options(tmp_path), kept).verdict is Verdict.MET
    assert len(done) == 1
    run_check(Check.AGENT, options(tmp_path), kept, again=True)
    assert len(done) == 2


def test_what_could_not_be_run_is_tried_the_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(options: Options, kept: Kept) -> Outcome:
        raise Missing("no driver")

    monkeypatch.setitem(command.CHECKS, Check.AGENT, check)
    kept = Kept("here")
    assert run_check(Check.AGENT, options(tmp_path), kept).missing == "no driver"
    assert kept.outcomes == {}


def test_nothing_is_kept_of_other_gpus_or_another_code_or_a_file_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    write_kept(path, Kept("one GPU", {"agent": GOOD}))
    assert read_kept(path, "one GPU").outcomes == {"agent": GOOD}
    assert read_kept(path, "another GPU").outcomes == {}
    path.write_bytes(path.read_bytes()[:-9])
    assert read_kept(path, "one GPU") == Kept("one GPU")


def test_people_read_first_what_is_not_as_it_should_be(capsys: pytest.CaptureFixture[str]) -> None:
    rows = (Comparison("fine", 1.0, 1.0, met=True), within("broken", 2.0 * 2**30, 2.0**30, 0.0, 2.0**30, "bytes"))
    command.show(command.Output.TABLE, {}, command.table([Outcome("steps", rows, note="a note"), ABSENT]))
    said = capsys.readouterr().out
    assert said.index("broken") < said.index("fine")
    assert "2 GiB" in said
    assert "missed" in said
    assert "there is no GPU" in said
