"""Flags beside real parsers: torchrun's, which is always there, and what is made of the others' answers."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hack.gpu import launchers
from hack.gpu.launcher_probe import LAUNCHERS, probe
from hack.gpu.verdicts import Missing, Verdict


def cases(launcher: str) -> list[dict[str, Any]]:
    return [case for case in launchers.cases() if case["launcher"] == launcher]


def test_every_launcher_with_flags_of_its_own_is_asked_about_every_plan() -> None:
    assert set(launchers.LAUNCHERS) == set(LAUNCHERS)
    assert len({(case["launcher"], case["name"]) for case in launchers.cases()}) == len(launchers.cases())
    assert {len(cases(name)) for name in LAUNCHERS} == {len(launchers.PLANS) + 4, len(launchers.PLANS) + 3}


def test_torchrun_understands_what_pods_are_given() -> None:
    assert [probe(case)["refused"] for case in cases("Torchrun")] == [""] * len(cases("Torchrun"))


def test_torchrun_that_understands_something_else_is_told() -> None:
    [case, *_] = cases("Torchrun")
    wrong = {**case, "env": {**case["env"], "PET_NNODES": "1:4"}}
    assert probe(wrong)["refused"] == ""  # that is what it was given
    unread = {**case, "env": {**case["env"], "PET_NPROC_PER_NODE": "8", "PET_NODE_RANK": "one"}}
    assert probe(unread)["refused"]


def test_a_launcher_that_is_not_there_is_absent_and_changes_nothing() -> None:
    before, arguments = dict(os.environ), list(sys.argv)
    found = probe(cases("Torchtitan")[0])
    assert found["absent"]
    assert found["refused"] == ""
    assert (dict(os.environ), sys.argv) == (before, arguments)


def test_this_python_has_torchrun_and_says_which_others_it_was_not_asked_about(tmp_path: Path) -> None:
    outcome = launchers.check_launchers(tmp_path, Path(sys.executable))
    assert {row.what.partition(":")[0] for row in outcome.rows} == {"Torchrun"}
    assert outcome.verdict is Verdict.NOT_RUN
    assert all(name in outcome.missing for name in ("Torchtitan", "Megatron", "DeepSpeed"))
    assert "torch 2" in outcome.note


def verdict(launcher: str, refused: str = "", absent: str = "") -> dict[str, str]:
    return {"launcher": launcher, "name": "tensor, BF16", "refused": refused, "absent": absent}


def test_a_refused_flag_is_a_finding_with_the_launchers_own_words() -> None:
    answer = {
        "versions": {"deepspeed": "0.19.8"},
        "verdicts": [verdict("Torchrun"), verdict("DeepSpeed", "no such key")],
    }
    outcome = launchers.judge(answer)
    assert outcome.verdict is Verdict.MISSED
    assert [row.measured for row in outcome.rows] == ["accepted", "no such key"]


def test_launchers_that_are_all_absent_are_missing() -> None:
    with pytest.raises(Missing, match="not installed"):
        launchers.judge({"versions": {}, "verdicts": [verdict("DeepSpeed", absent="deepspeed is not installed")]})


def test_a_folder_without_launchers_says_how_to_install_them(tmp_path: Path) -> None:
    with pytest.raises(Missing, match="--install"):
        launchers.check_launchers(tmp_path / "none")
