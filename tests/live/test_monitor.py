"""A policy that starves all jobs, on a running controller: it is found out and replaced by itself, and stays so when
another controller takes over."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.live.accounts import clear
from tests.live.harness import ControllerProcess, Live, eventually, training_job

from trimtab import names

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

ROGUES = Path(__file__).resolve().parents[1] / "rogues"
MONITOR = {"period_seconds": 5.0, "least_jobs": 5, "cpu_share": 1.0, "returns_after": 1000}


@pytest.fixture
async def controllers(live: Live, tmp_path: Path) -> AsyncIterator[list[ControllerProcess]]:
    """Two controllers with a policy that starts nothing, neither of which runs."""
    here = os.environ.get("PYTHONPATH")
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROGUES), here)))}
    found = [
        ControllerProcess(
            live.kubeconfig(tmp_path),
            tmp_path,
            environment=environment,
            policy={"name": "rogue_idle", "fallback": "best_fit"},
            monitor=MONITOR,
        )
        for _ in range(2)
    ]
    yield found
    for each in found:
        each.stop()
    clear(live)
    where = ("-n", names.SYSTEM_NAMESPACE, "--ignore-not-found")
    live.cluster.kubectl("delete", "configmap", names.MONITOR_CONFIG_MAP, *where)


async def test_a_policy_that_starves_all_jobs_is_replaced_by_itself_and_a_successor_knows(
    live: Live, controllers: list[ControllerProcess]
) -> None:
    first, second = controllers
    await asyncio.to_thread(first.start)
    jobs = [f"starved-{number}" for number in range(6)]
    live.apply(*(training_job(name, gpus=8, seconds=0.5) for name in jobs))
    for name in jobs:
        await live.until(name, names.COMPLETE, 240)
        assert live.status(name)["plan"]["policy"] == "best_fit"
    assert first.metric("trimtab_policy_replaced", policy="rogue_idle", fallback="best_fit") == 1
    assert first.metric("trimtab_policy_fallbacks_total") == 0, "it never failed, it only did badly"
    await asyncio.to_thread(first.stop)

    await asyncio.to_thread(second.start)
    live.apply(training_job("starved-later", gpus=8, seconds=0.5))
    await live.until("starved-later", names.COMPLETE, 120)
    assert live.status("starved-later")["plan"]["policy"] == "best_fit"
    await eventually(
        lambda: second.metric("trimtab_policy_replaced", policy="rogue_idle") == 1, 30, f"it to say so\n{second.tail()}"
    )
