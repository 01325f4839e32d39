"""Two controllers never both act, whoever is paused, killed or cut off."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from tests.live.harness import ControllerProcess, Live, eventually, training_job

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


def leads(controller: ControllerProcess) -> bool:
    return "leading" in controller.tail(1000)


async def test_of_two_controllers_started_at_once_one_acts_and_the_other_takes_over_when_it_is_killed(
    live: Live, tmp_path: Path
) -> None:
    kubeconfig = live.kubeconfig(tmp_path)
    two = [ControllerProcess(kubeconfig, tmp_path, leadership={"identity": name}).start() for name in ("a", "b")]
    try:
        await eventually(lambda: any(leads(one) for one in two), what="one to lead")
        await asyncio.sleep(2)
        leader, standby = sorted(two, key=leads, reverse=True)
        assert leads(leader)
        assert not leads(standby)
        live.apply(training_job("handed-over", seconds=600))
        await live.until("handed-over", "PodsReady")
        first = live.status("handed-over")["leaderEpoch"]
        leader.signal(signal.SIGKILL)
        await eventually(lambda: leads(standby), what="the other to lead")
        live.patch("ltj", "handed-over", {"spec": {"suspend": True}})
        await live.until("handed-over", "Suspended")
        assert live.status("handed-over")["leaderEpoch"] > first
    finally:
        for one in two:
            one.stop()
        await live.gone("handed-over")


async def test_a_leader_that_was_paused_too_long_stands_back_without_another_write(live: Live, tmp_path: Path) -> None:
    kubeconfig = live.kubeconfig(tmp_path)
    async with (
        ControllerProcess(kubeconfig, tmp_path, leadership={"identity": "paused"}) as paused,
    ):
        await eventually(lambda: leads(paused), what="it to lead")
        live.apply(training_job("paused-over", seconds=600))
        await live.until("paused-over", "PodsReady")
        paused.signal(signal.SIGSTOP)
        async with ControllerProcess(kubeconfig, tmp_path, leadership={"identity": "successor"}) as successor:
            await eventually(lambda: leads(successor), what="the successor to lead")
            live.patch("ltj", "paused-over", {"spec": {"suspend": True}})
            paused.signal(signal.SIGCONT)
            await eventually(lambda: "standing for election again" in paused.tail(1000), what=lambda: paused.tail())
            await live.until("paused-over", "Suspended")
            assert successor.alive
            assert paused.alive, "it is a candidate again"
            await live.gone("paused-over")
