"""MPIJobs (v2beta1) are placed: the real MPI operator makes their workers, and a Job with the launcher; Trimtab decides
where and when the workers run as one gang."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.faults.invariants import Limits
from tests.live import their_controllers, theirs
from tests.live.harness import ControllerProcess, Live, eventually
from tests.live.test_failures import play
from tests.live.test_place import Somebody
from tests.live.theirs import MPIJOB, PLACE, fail, finished, gone, nodes, placed, pods, uids

from trimtab import names

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

Json = dict[str, Any]
stand_in = partial(theirs.stand_in, kind=MPIJOB)
gang = partial(theirs.gang, kind=MPIJOB)
SLOW: dict[str, dict[str, Any]] = {"interop": PLACE, "fake": {"speedup": 20.0}}
WITNESS_LIMITS = Limits(gang=120.0)
"""Workers of a suspended job are the operator's to take away, whose pauses double each time it comes too early."""


@pytest.fixture(scope="module")
def placing(live_cluster: Live, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    directory, operator = tmp_path_factory.mktemp("theirs"), their_controllers.MPI_OPERATOR
    with their_controllers.running(live_cluster.cluster, directory, operator), placed(live_cluster, operator.user):
        yield live_cluster


def mpijob(name: str, **given: Any) -> Json:
    """One of the MPI operator that ends when its launcher does, and not before."""
    made = theirs.mpijob(name, api="v2beta1", **given)
    made["metadata"]["annotations"] = {names.STATED["steps"]: "10000000"}
    return made


def wrong() -> dict[str, tuple[Json, str]]:
    """Name -> one that cannot be placed, and what it is told."""
    works = mpijob("works", suspend=True)
    works["spec"]["runLauncherAsWorker"] = True
    again = mpijob("again", suspend=True)
    again["spec"]["mpiReplicaSpecs"]["Worker"]["restartPolicy"] = "OnFailure"
    gates = {"schedulingGates": [{"name": names.SCHEDULING_GATE}]}
    stays = mpijob("stays", suspend=True, cleanPodPolicy="Running")
    return {
        "works": (works, "spec.runLauncherAsWorker has to be left out"),
        "again": (again, "spec.mpiReplicaSpecs[Worker].restartPolicy has to be Never"),
        "stays": (stays, "spec.runPolicy.cleanPodPolicy has to be All"),
        "held": (mpijob("held", launcher=gates, suspend=True), "the pods of Launcher ask for no GPUs"),
    }


def launchers(live: Live, name: str) -> list[Json]:
    found = live.list("pods", f"{MPIJOB.of_pods}={name},training.kubeflow.org/job-role=launcher")
    return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


async def test_workers_are_a_gang_through_all_its_life_and_the_launcher_is_let_be_and_ends_it(
    live: Live, placing: Live, tmp_path: Path
) -> None:
    live.apply(mpijob("ring", nodes=4), *(each for each, _ in wrong().values()))
    kept = {name: live.get(MPIJOB.plural, name)["spec"] for name in wrong()}
    await eventually(lambda: len(pods(live, "ring", MPIJOB)) == 4, what="the pods of its workers")
    assert not any(nodes(live, "ring", MPIJOB))
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, **SLOW):
        await theirs.until(live, "ring", "PodsReady", MPIJOB)
        stands_in = stand_in(live, "ring")
        here = pods(live, "ring", MPIJOB)
        assert nodes(live, "ring", MPIJOB) == [node["name"] for node in live.status(stands_in)["plan"]["nodes"]]
        assert [pod["metadata"]["labels"][names.LABEL_RANK] for pod in here] == ["0", "1", "2", "3"]
        assert {owner["kind"] for pod in here for owner in pod["metadata"]["ownerReferences"]} == {"MPIJob"}
        [launcher] = launchers(live, "ring")
        assert "schedulingGates" not in launcher["spec"]
        assert not [label for label in launcher["metadata"]["labels"] if label.startswith(names.GROUP)]

        await it_outlives_lost_ranks(live, launcher)
        await it_waits_while_its_user_suspends_it(live)

        for name, (_, why) in wrong().items():
            assert why in theirs.annotations(live, name, MPIJOB)[names.ANNOTATION_PLACE_PROBLEM]
        assert {name: live.get(MPIJOB.plural, name)["spec"] for name in kept} == kept, "they are left alone"
        assert [each["metadata"]["name"] for each in live.list("ltj")] == [stands_in]
        live.delete(MPIJOB.plural, *kept)

        live.apply(mpijob("late"))
        await eventually(
            lambda: bool(it := stand_in(live, "late")) and "pending" in live.status(it),
            what=lambda: f"it to be told why it waits: {live.list('ltj')}",
        )
        assert not any(nodes(live, "late", MPIJOB)), "no part of it starts"
        play(live, launchers(live, "ring")[0]["metadata"]["name"], phase="Succeeded")
        await eventually(finished(live, "ring", MPIJOB), what="its own controller to say that it has succeeded")
        await theirs.until(live, "ring", "Complete", MPIJOB)
        await theirs.until(live, "late", "PodsReady", MPIJOB)
    for name in ("ring", "late"):
        await gone(live, name, MPIJOB)


async def it_outlives_lost_ranks(live: Live, launcher: Json) -> None:
    """One that fails, which its controller would leave as it is, and one that is deleted."""
    before = uids(live, "ring", MPIJOB)
    fail(live, pods(live, "ring", MPIJOB)[2])
    second = await gang(live, "ring", 2)
    assert len(second) == 4
    assert not second & before, "all of them begin anew"
    assert launchers(live, "ring")[0]["metadata"]["uid"] != launcher["metadata"]["uid"], "suspended as a whole"
    live.delete("pod", pods(live, "ring", MPIJOB)[0]["metadata"]["name"], "--wait=false")
    assert not await gang(live, "ring", 3) & second


async def it_waits_while_its_user_suspends_it(live: Live) -> None:
    live.patch(MPIJOB.plural, "ring", {"spec": {"runPolicy": {"suspend": True}}})
    await eventually(lambda: not pods(live, "ring", MPIJOB), what="its own controller to take its workers away")
    await theirs.until(live, "ring", "Suspended", MPIJOB)
    assert names.ANNOTATION_SUSPENDED not in theirs.annotations(live, "ring", MPIJOB)
    live.patch(MPIJOB.plural, "ring", {"spec": {"runPolicy": {"suspend": False}}})
    assert len(await gang(live, "ring", 4)) == 4


def test_the_controller_changes_of_its_run_policy_whether_it_is_suspended_and_no_more(
    placing: Live, tmp_path: Path
) -> None:
    controller = Somebody(placing, tmp_path, "trimtab-system", "trimtab-controller")
    placing.apply(mpijob("asks", suspend=True))
    assert controller.patches(MPIJOB.plural, "asks", {"spec": {"runPolicy": {"suspend": False}}}) == ""
    for spec in ({"slotsPerWorker": 4}, {"runPolicy": {"cleanPodPolicy": "None"}}, {"runLauncherAsWorker": True}):
        assert "spec.runPolicy.suspend" in controller.patches(MPIJOB.plural, "asks", {"spec": spec}), spec
    placing.delete(MPIJOB.plural, "asks")
