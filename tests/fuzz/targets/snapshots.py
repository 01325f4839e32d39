"""Dumped snapshots: read or refused, and what is read can be replayed and decided on, or is refused in a line."""

from __future__ import annotations

import json
import math

import msgspec
from tests.builders import H100, job, node, running, snapshot
from tests.fuzz.draw import Draw, Json
from tests.fuzz.target import Target
from tests.fuzz.targets.files import written

from trimtab.commands.dumps import portable, read_snapshot
from trimtab.errors import UsageError
from trimtab_policy import policy
from trimtab_policy.sim.replay import sorted_out
from trimtab_policy.types import Quota

_NOW = snapshot(
    [node("n1", free=0), node("n2"), node("h1", H100)],
    [running("held", {"n1": 8}, finish=1_767_324_000.0, preemptible=True), job("waits", queue="q"),
     job("big", gpus=(8, 16))],
    quotas=[Quota("q", "*", 8, 2)],
)  # fmt: skip
_WORDS = msgspec.json.encode(portable(_NOW)).decode()
_POLICIES = [policy.load("fcfs"), policy.load("best_fit")]


def run(data: bytes) -> None:
    """One file is read, sorted out and decided on."""
    draw = Draw(data)
    value: Json = json.loads(_WORDS)
    raw = draw.rest() if draw.chance(16) else draw.encoded(draw.spoiled(draw.tweaked(value)))
    path = written(draw.pick(("s.json", "s.json", "s.json", "s.yaml")), raw)
    try:
        found = read_snapshot(path)
    except UsageError as error:
        assert str(path) in str(error)
        return
    try:
        case = sorted_out(found)
        decision = draw.pick(_POLICIES).decide(case.snapshot)
    except ValueError as error:  # commands say it in a line
        assert str(error)
        return
    for placed in decision.placements:
        assert all(math.isfinite(figure) for figure in msgspec.structs.astuple(placed.prediction)), placed
    assert all(pending.message for pending in decision.pending)


TARGET = Target("dumped snapshots: read, sorted out, decided on", run)
