"""Gangs that kube-scheduler binds: whole, on the nodes of their plans, whether or not it knows what a gang is."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.live.extender.gangs import bound, epoch, gang, gone, runs_whole
from tests.live.extender.process import ExtenderProcess
from tests.live.harness import ControllerProcess, Live, eventually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


@pytest.mark.parametrize("pod_groups", ["Auto", "Never"])
async def test_gangs_of_one_and_eight_and_sixty_four_pods_are_bound_as_planned(
    live: Live, fresh_scheduler: None, extender: ExtenderProcess, tmp_path: Path, pod_groups: str
) -> None:
    settings = {"binding": {"mode": "Extender", "pod_groups": pod_groups}}
    sizes = {f"{pod_groups.lower()}-{pods}": pods for pods in (1, 8, 64)}
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, **settings) as controller:
        live.apply(*(gang(job, pods) for job, pods in sizes.items()))
        for job, pods in sizes.items():
            await runs_whole(live, job)
            assert (len(bound(live, job)), epoch(live, job)) == (pods, 1)
        groups = {group["metadata"]["name"] for group in live.list("podgroups")}
        assert groups == ({f"{job}-1" for job in sizes} if pod_groups == "Auto" else set())
        assert controller.metric("trimtab_gang_binds_total") == 0, "none of it was bound by us"
        assert controller.metric("trimtab_gang_schedule_duration_seconds_count") == 3
        await gone(live, *sizes)
        await eventually(lambda: not live.list("podgroups"), 60, "the PodGroups to be gone")
