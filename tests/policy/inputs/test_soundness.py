"""A dump that was edited is refused with the path of the field, before anything divides by it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.builders import A100, changed, job, node, running, snapshot

from trimtab.commands.dumps import portable, read_snapshot
from trimtab.errors import UsageError
from trimtab_lab.evaluation.replay import case
from trimtab_policy import catalog
from trimtab_policy.inputs.soundness import problem
from trimtab_policy.placement.candidates import holding

NOW = snapshot([node("n1", free=0), node("n2")], [running("held", {"n1": 8}), job("waits")])
DUMP: dict[str, Any] = json.loads(msgspec.json.encode(portable(NOW)))


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("jobs.1.training.steps", 0, "jobs[1].training.steps: 0 does not lie between 1 and"),
        ("jobs.1.model.attention_heads", 0, "jobs[1].model.attention_heads: 0 does not"),
        ("nodes.0.speed", 0.0, "nodes[0].speed: 0.0 does not"),
        ("nodes.1.name", "n1", "nodes: 'n1' is there twice"),
        ("nodes.1.gpu_type", "B0", "nodes[1].gpu_type: gpu_types does not tell what a 'B0' is"),
        ("jobs.0.placement.gpu_type", "B0", "jobs[0].placement.gpu_type: gpu_types does not tell"),
        ("jobs.0.placement.shares", [], "jobs[0].placement.shares: is empty"),
        (f"gpu_types.{A100}.memory_bandwidth", 0.0, f"gpu_types['{A100}'].memory_bandwidth: 0.0 does not"),
        (f"gpu_types.{A100}.name", "x", f"gpu_types['{A100}'].name: is 'x'"),
        ("time", 1e300, "time: 1e+300 does not"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, field: str, value: object, says: str) -> None:
    path = tmp_path / "now.json"
    path.write_text(json.dumps(changed(DUMP, {field: value})))
    with pytest.raises(UsageError) as refusal:
        read_snapshot(path)
    assert says in str(refusal.value)


@pytest.mark.parametrize("content", [b"\xff", b"[" * 100_000, b'{"time": "\\ud800"}', b"{"])
@pytest.mark.parametrize("suffix", [".json", ".yaml"])
def test_what_is_no_dump_at_all_is_refused(tmp_path: Path, content: bytes, suffix: str) -> None:
    path = tmp_path / f"now{suffix}"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="is no snapshot"):
        read_snapshot(path)


def test_what_the_controller_dumps_is_sound() -> None:
    starting = msgspec.structs.replace(NOW.jobs[0], movable_from=math.inf)
    assert problem(msgspec.structs.replace(NOW, jobs=(starting, NOW.jobs[1]))) == ""


def test_a_job_that_comes_back_in_a_moment_can_be_replayed() -> None:
    later = msgspec.structs.replace(NOW.jobs[1], not_before=NOW.time + 60)
    assert len(case(msgspec.structs.replace(NOW, jobs=(later,))).snapshot.jobs) == 1


def test_a_gang_on_nodes_that_take_no_pods_now_has_gpus_that_the_catalogue_knows() -> None:
    now = snapshot([], [running("held", {"gone": 8}), job("waits")])
    assert not problem(now)
    unheard = changed(json.loads(msgspec.json.encode(now)), {"jobs.0.placement.gpu_type": "B0"})
    assert "does not tell what a 'B0' is" in problem(msgspec.convert(unheard, type(now)))
    held = now.jobs[0].placement
    assert held
    assert holding(now, now.jobs[0], held).gpu == catalog.gpu(held.gpu_type)
