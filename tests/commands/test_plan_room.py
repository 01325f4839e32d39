"""`trimtab plan` on the dump of a full cluster: who would stop or move for the job; and dumps hold what never comes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from tests.builders import H100, NOW, node, running, snapshot
from typer.testing import CliRunner

from trimtab.cli import app
from trimtab.commands.dumps import portable, read_snapshot
from trimtab_local.checkout import checkout

JOB = str(checkout() / "manifests" / "samples" / "llama3-8b.yaml")
LONG = {"finish": NOW + 1e6, "started": NOW - 1e4, "steps": 10_000_000, "restart_seconds": 60.0}


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """Eight nodes, each with a job on all of its GPUs."""
    names = [f"n{number}" for number in range(8)]
    held = [running(f"old-{name}", {name: 8}, H100, gpus=(8, 8), **LONG) for name in names]
    file = tmp_path / "full.json"
    file.write_bytes(msgspec.json.encode(snapshot([node(name, H100, free=0) for name in names], held)))
    return file


def plan(file: Path, *arguments: str) -> str:
    result = CliRunner().invoke(app, ["plan", "-f", JOB, "--snapshot", str(file), *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_it_says_who_would_stop_for_a_job_of_higher_priority(full: Path) -> None:
    answer = json.loads(plan(full, "--priority", "5", "-o", "json"))
    assert answer["decision"]
    assert answer["asked"]
    assert all(why.startswith("stops: ") and "has priority 5" in why for why in answer["asked"].values())
    assert "default/old-n" in plan(full, "--priority", "5")


def test_it_says_why_a_job_waits_for_which_nobody_has_to_go(full: Path) -> None:
    answer = json.loads(plan(full, "-o", "json"))
    assert (answer["decision"], answer["asked"]) == (None, {})
    assert answer["pending"]["reason"] == "InsufficientGpus"


def test_a_gang_that_must_not_be_touched_survives_a_dump(tmp_path: Path) -> None:
    coming = running("coming", {"a": 8}, movable_from=math.inf)
    now = snapshot([node("a", free=0)], [coming, replace(coming, uid="later", movable_from=NOW + 60)])
    file = tmp_path / "now.json"
    file.write_bytes(msgspec.json.encode(portable(now)))
    assert read_snapshot(file) == now
