"""Batch Jobs and JobSets are placed where kube-scheduler binds: the same gang, let through its gates all at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.live import their_controllers
from tests.live.extender.process import ExtenderProcess
from tests.live.harness import ControllerProcess, Live
from tests.live.theirs import JOBSET, PLACE, gone, job, jobset, nodes, placed, pods, stand_in, until

from trimtab import names

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def placing(live_cluster: Live) -> Iterator[Live]:
    """The cluster with the controller's rights to Jobs, and all admission policies."""
    with placed(live_cluster):
        yield live_cluster


async def test_a_job_is_bound_rank_by_rank_by_kube_scheduler(
    live: Live, placing: Live, extender: ExtenderProcess, tmp_path: Path
) -> None:
    settings = {"interop": PLACE, "binding": {"mode": "Extender"}, "fake": {"speedup": 20.0}}
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, **settings):
        live.apply(job("bound"))
        await until(live, "bound", "PodsReady")
        planned = [node["name"] for node in live.status(stand_in(live, "bound"))["plan"]["nodes"]]
        assert nodes(live, "bound") == planned
        here = pods(live, "bound")
        assert {pod["metadata"]["annotations"][names.ANNOTATION_BINDING] for pod in here} == {"Extender"}
        assert all("schedulingGates" not in pod["spec"] for pod in here)
    await gone(live, "bound")


@pytest.fixture(scope="module")
def theirs(placing: Live, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The controller of JobSets runs."""
    try:
        with their_controllers.running(placing.cluster, tmp_path_factory.mktemp("theirs"), their_controllers.JOBSET):
            yield
    except their_controllers.NotBuilt as error:
        pytest.skip(f"the controller of JobSets cannot be had here: {error}")


async def test_the_jobs_of_a_jobset_are_bound_rank_by_rank_by_kube_scheduler(
    live: Live, placing: Live, theirs: None, extender: ExtenderProcess, tmp_path: Path
) -> None:
    settings = {"interop": PLACE, "binding": {"mode": "Extender"}, "fake": {"speedup": 20.0}}
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, **settings):
        live.apply(jobset("bound-set"))
        await until(live, "bound-set", "PodsReady", JOBSET)
        planned = [node["name"] for node in live.status(stand_in(live, "bound-set", JOBSET))["plan"]["nodes"]]
        assert nodes(live, "bound-set", JOBSET) == planned
        here = pods(live, "bound-set", JOBSET)
        assert {pod["metadata"]["annotations"][names.ANNOTATION_BINDING] for pod in here} == {"Extender"}
    await gone(live, "bound-set", JOBSET)
