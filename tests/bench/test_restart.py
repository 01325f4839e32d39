"""What a controller takes in when it begins is measured, at toy size."""

from __future__ import annotations

import asyncio

import msgspec
from hack.bench import restart
from hack.bench.__main__ import Part, measure
from hack.bench.report import Report


def test_a_controller_begins_and_its_first_plan_is_on_its_way() -> None:
    report = asyncio.run(measure({Part.RESTART}, 1, tiny=True))
    found = report.restart
    assert found
    assert found.size == restart.TINY
    assert min(found.bare, found.peak, found.loading, found.planning) > 0
    assert found.peak >= found.copy
    assert found.seconds == found.loading + found.reading + found.planning
    figures = {what.partition(": ")[2]: value for what, value, _ in restart.goals(found)}
    assert figures["memory of the controller at its peak, MiB"] == found.bare + found.peak
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report
