"""Jobs of other kinds are placed where kube-scheduler binds: the same gangs, let through their gates all at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.live import their_controllers
from tests.live.extender.process import ExtenderProcess
from tests.live.harness import ControllerProcess, Live
from tests.live.theirs import (
    GROUP,
    JOBSET,
    MPIJOB,
    PLACE,
    PYTORCHJOB,
    RAYJOB,
    TRAINJOB,
    Maker,
    Words,
    gang,
    gone,
    group,
    job,
    jobset,
    mpijob,
    nodes,
    placed,
    pods,
    pytorchjob,
    rayjob,
    runtime,
    stand_in,
    trainjob,
    until,
)

from trimtab import names

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def placing(live_cluster: Live) -> Iterator[Live]:
    """The cluster with the controller's rights to Jobs, and all admission policies."""
    operators = their_controllers.TRAINING_OPERATOR, their_controllers.MPI_OPERATOR, their_controllers.KUBERAY
    with placed(live_cluster, Maker.USER, *(operator.user for operator in operators)):
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


KUBEFLOW = (their_controllers.JOBSET, their_controllers.TRAINER, their_controllers.TRAINING_OPERATOR)


@pytest.fixture(scope="module")
def theirs(request: pytest.FixtureRequest, placing: Live, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The controllers of these projects run, and there is a runtime where Trainer does."""
    trainer = their_controllers.TRAINER in request.param
    with their_controllers.running(placing.cluster, tmp_path_factory.mktemp("theirs"), *request.param):
        if trainer:
            placing.apply(runtime("placed"))
        yield
        if trainer:
            placing.delete("trainingruntime", "placed")  # while Trainer runs, whose finalizer it has


KINDS = {
    "jobset": (KUBEFLOW, JOBSET, jobset),
    "trainjob": (KUBEFLOW, TRAINJOB, partial(trainjob, of="placed")),
    "pytorchjob": (KUBEFLOW, PYTORCHJOB, pytorchjob),
    "mpijob": (KUBEFLOW, MPIJOB, mpijob),
    "rayjob": ((their_controllers.KUBERAY,), RAYJOB, rayjob),
    "mpijob-v2beta1": ((their_controllers.MPI_OPERATOR,), MPIJOB, partial(mpijob, api="v2beta1")),
}


@pytest.mark.parametrize(("theirs", "kind", "made"), KINDS.values(), ids=KINDS, indirect=["theirs"])
async def test_what_other_controllers_make_is_bound_rank_by_rank_by_kube_scheduler(
    live: Live,
    placing: Live,
    theirs: None,
    extender: ExtenderProcess,
    tmp_path: Path,
    kind: Words,
    made: Callable[[str], dict[str, Any]],
) -> None:
    settings = {"interop": PLACE, "binding": {"mode": "Extender"}, "fake": {"speedup": 20.0}}
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, **settings):
        live.apply(made("bound-too"))
        await until(live, "bound-too", "PodsReady", kind)
        planned = [node["name"] for node in live.status(stand_in(live, "bound-too", kind))["plan"]["nodes"]]
        assert nodes(live, "bound-too", kind) == planned
        here = pods(live, "bound-too", kind)
        assert {pod["metadata"]["annotations"][names.ANNOTATION_BINDING] for pod in here} == {"Extender"}
    await gone(live, "bound-too", kind)


async def test_a_group_of_pods_is_let_through_as_a_whole_to_kube_scheduler_which_binds_groups_itself(
    live: Live, placing: Live, extender: ExtenderProcess, tmp_path: Path
) -> None:
    """It has the gate GangScheduling: it waits for the pods of the same PodGroup, and tries it as a whole."""
    settings = {"interop": PLACE, "binding": {"mode": "Extender"}, "fake": {"speedup": 20.0}}
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, **settings), Maker(live) as maker:
        live.apply(group("grouped"))
        maker.makes("grouped", 2)
        await until(live, "grouped", "PodsReady", GROUP)
        it = stand_in(live, "grouped", GROUP)
        here = pods(live, "grouped", GROUP)
        assert nodes(live, "grouped", GROUP) == [node["name"] for node in live.status(it)["plan"]["nodes"]]
        assert {pod["metadata"]["annotations"][names.ANNOTATION_BINDING] for pod in here} == {"Extender"}
        live.delete("pod", here[0]["metadata"]["name"], "--wait=false")
        assert not await gang(live, "grouped", 2, GROUP) & {pod["metadata"]["uid"] for pod in here}
        maker.forgets("grouped")
        await gone(live, "grouped", GROUP)
