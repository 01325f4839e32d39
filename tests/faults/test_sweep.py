"""The controller may be killed before or after any of its writes; its successor finishes all the same (F1, F2, F3).

Exhaustive for a start; of the longer workloads the crashes after a write, which leave most behind. `hack/faults --all`
does everything, with other gangs too, a thousand crashes and more.
"""

from __future__ import annotations

import pytest
from tests.faults.sweep import EACH, MODES, ONCE, reference, sweep
from tests.faults.testbed import Stand
from tests.faults.workloads import WORKLOADS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


IN_CI = {"start": tuple(MODES)}
"""Workload -> ways to strike; kill-after for all others."""


@pytest.mark.parametrize("name", WORKLOADS)
async def test_a_crash_at_any_write_changes_nothing_in_the_end(stand: Stand, name: str) -> None:
    workload = WORKLOADS[name]
    calm = await reference(stand, workload)
    for mode in IN_CI.get(name, ("kill-after",)):
        lives = [life async for life in sweep(stand, workload, mode, calm)]
        assert {life.write: life.problems for life in lives if life.problems} == {}
        assert len(lives) >= sum(calm.writes[kind] for kind in ONCE), "no life does with fewer writes than these"


@pytest.mark.parametrize("name", WORKLOADS)
async def test_a_crash_after_every_single_write_changes_nothing_in_the_end(stand: Stand, name: str) -> None:
    workload = WORKLOADS[name]
    calm = await reference(stand, workload)
    [life] = [life async for life in sweep(stand, workload, EACH, calm)]
    assert life.problems == []
    assert life.crashes >= 3, "writes that are made side by side die together"
