"""What agents cost is measured, at toy size."""

from __future__ import annotations

import asyncio
from io import StringIO

from hack.bench import telemetry
from rich.console import Console


def test_reports_and_rounds_are_measured() -> None:
    costs = asyncio.run(telemetry.measure(telemetry.TINY, 2))
    assert costs.nodes == 9
    assert costs.event_bytes > 10_000
    assert min(costs.update.p50, costs.idle.p50, costs.busy_after_reports.p50) > 0
    out = StringIO()
    Console(file=out, width=200).print(telemetry.table(costs))
    assert "≤ 0.1" in out.getvalue()
    assert costs.core == (9 / telemetry.PERIOD * costs.update.p50 + costs.busy_after_reports.p50) / 1000
