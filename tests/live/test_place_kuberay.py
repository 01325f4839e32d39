"""RayJobs are placed: the real KubeRay makes their RayClusters and pods, Trimtab decides where and when the workers
run as one gang. No Ray runs in the pods: that a job is done, which its head would say, a test says in its place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.live import their_controllers, theirs
from tests.live.harness import ControllerProcess, Live, eventually, wait_until
from tests.live.test_place import Somebody
from tests.live.theirs import PLACE, RAYJOB, gone, nodes, placed, pods, uids

from trimtab import names

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

Json = dict[str, Any]
stand_in = partial(theirs.stand_in, kind=RAYJOB)
gang = partial(theirs.gang, kind=RAYJOB)
SLOW: dict[str, dict[str, Any]] = {"interop": PLACE, "fake": {"speedup": 20.0}}


def rayjob(name: str, **given: Any) -> Json:
    """One that trains for long."""
    made = theirs.rayjob(name, **given)
    made["metadata"]["annotations"] = {names.STATED["steps"]: "10000000"}
    return made


@pytest.fixture(scope="module")
def placing(live_cluster: Live, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    directory, operator = tmp_path_factory.mktemp("theirs"), their_controllers.KUBERAY
    with their_controllers.running(live_cluster.cluster, directory, operator), placed(live_cluster, operator.user):
        try:
            yield live_cluster
        finally:  # while the operator runs, whose finalizer they have
            live_cluster.delete(RAYJOB.plural, "--all")


def wrong() -> dict[str, tuple[Json, str]]:
    """Name -> one that cannot be placed, and what it is told."""
    gates = {"schedulingGates": [{"name": names.SCHEDULING_GATE}]}
    stays = rayjob("stays", shutdownAfterJobFinishes=False)
    return {
        "stays": (stays, "spec.shutdownAfterJobFinishes has to be True"),
        "held": (rayjob("held", head=gates, suspend=True), "the pods of head ask for no GPUs"),
        "hosts": (
            rayjob("hosts", worker={"numOfHosts": 2}, suspend=True),
            "workerGroupSpecs[0].numOfHosts has to be 1",
        ),
    }


async def test_workers_are_a_gang_through_all_its_life_and_the_head_is_let_be(
    live: Live, placing: Live, tmp_path: Path
) -> None:
    live.apply(rayjob("ring", nodes=4), *(each for each, _ in wrong().values()))
    kept = {name: made["spec"].get("suspend") for name, (made, _) in wrong().items()}
    await eventually(lambda: len(pods(live, "ring", RAYJOB)) == 4, 60, "the pods of its workers")
    assert not any(nodes(live, "ring", RAYJOB))
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, **SLOW):
        await theirs.until(live, "ring", "PodsReady", RAYJOB)
        stands_in, first = stand_in(live, "ring"), uids(live, "ring", RAYJOB)
        here = pods(live, "ring", RAYJOB)
        assert nodes(live, "ring", RAYJOB) == [node["name"] for node in live.status(stands_in)["plan"]["nodes"]]
        assert [pod["metadata"]["labels"][names.LABEL_RANK] for pod in here] == ["0", "1", "2", "3"]
        assert {owner["kind"] for pod in here for owner in pod["metadata"]["ownerReferences"]} == {"RayCluster"}
        [head] = live.list("pods", f"{RAYJOB.of_pods}=ring,ray.io/node-type=head")
        assert "schedulingGates" not in head["spec"]
        assert not [label for label in head["metadata"]["labels"] if label.startswith(names.GROUP)]

        live.delete("pod", here[1]["metadata"]["name"], "--wait=false")
        second = await gang(live, "ring", 2)
        assert len(second) == 4
        assert not second & first, "all of them begin anew"

        live.patch(RAYJOB.plural, "ring", {"spec": {"suspend": True}})
        await eventually(lambda: not pods(live, "ring", RAYJOB), 60, "its own controller to take its workers away")
        await theirs.until(live, "ring", "Suspended", RAYJOB)
        assert names.ANNOTATION_SUSPENDED not in theirs.annotations(live, "ring", RAYJOB)
        live.patch(RAYJOB.plural, "ring", {"spec": {"suspend": False}})
        assert not await gang(live, "ring", 3) & second

        for name, (_, why) in wrong().items():
            assert why in theirs.annotations(live, name, RAYJOB)[names.ANNOTATION_PLACE_PROBLEM]
        found = {name: live.get(RAYJOB.plural, name)["spec"].get("suspend") for name in kept}
        assert found == kept, "they are left alone"  # but by KubeRay, which fills their specs in
        assert [each["metadata"]["name"] for each in live.list("ltj")] == [stands_in]
        live.delete(RAYJOB.plural, *kept)

        live.apply(rayjob("late"))
        await eventually(
            lambda: bool(it := stand_in(live, "late")) and "pending" in live.status(it),
            what=lambda: f"it to be told why it waits: {live.list('ltj')}",
        )
        assert not any(nodes(live, "late", RAYJOB)), "no part of it starts"
        done = {"jobStatus": "SUCCEEDED", "jobDeploymentStatus": "Complete", "endTime": "2026-01-01T00:00:00Z"}
        live.patch(RAYJOB.plural, "ring", {"status": done}, "--subresource=status")
        await theirs.until(live, "ring", "Complete", RAYJOB)
        await eventually(lambda: not pods(live, "ring", RAYJOB), 60, "its own controller to take its RayCluster away")
        await theirs.until(live, "late", "PodsReady", RAYJOB)
    for name in ("ring", "late"):
        await gone(live, name, RAYJOB)


async def test_its_workers_are_as_many_as_are_best_within_a_range(live: Live, placing: Live, tmp_path: Path) -> None:
    made = theirs.shaped(rayjob("shaped", nodes=1, suspend=True), gpus="16-32", steps="10000000")
    made["metadata"]["annotations"][names.ANNOTATION_SUSPENDED] = "until it is planned"
    live.apply(made)
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, **SLOW):
        await theirs.until(live, "shaped", "PodsReady", RAYJOB)
        count = len(live.status(stand_in(live, "shaped"))["plan"]["nodes"])
        here = pods(live, "shaped", RAYJOB)
        assert 2 <= count == len(here)
        assert theirs.gpus_of(here) == ["8"] * count
        note = json.loads(theirs.annotations(live, "shaped", RAYJOB)[names.ANNOTATION_SHAPED])
        group = "/spec/rayClusterSpec/workerGroupSpecs/0/"
        before = {"replicas": 1, "minReplicas": 0, "maxReplicas": 1}
        assert note == {group + field: [was, count] for field, was in before.items()}
    await gone(live, "shaped", RAYJOB)


def test_the_controller_changes_whether_it_is_suspended_and_no_more(placing: Live, tmp_path: Path) -> None:
    controller = Somebody(placing, tmp_path, "trimtab-system", "trimtab-controller")
    placing.apply(rayjob("asks", suspend=True))
    assert controller.patches(RAYJOB.plural, "asks", {"spec": {"suspend": False}}) == ""
    wait_until(  # the API server needs a moment until it holds anybody to policies
        lambda: "spec.suspend" in controller.patches(RAYJOB.plural, "asks", {"spec": {"entrypoint": "true"}}),
        "the policies to be in force",
    )
    placing.delete(RAYJOB.plural, "asks")
    asks = theirs.shaped(rayjob("asks-shape", suspend=True), gpus="8-64")
    placing.apply(asks)
    wait_until(  # KubeRay writes quantities its own way first
        lambda: placing.get(RAYJOB.plural, "asks-shape").get("status", {}).get("jobDeploymentStatus") == "Suspended",
        "its own controller to suspend it",
    )
    [group] = placing.get(RAYJOB.plural, "asks-shape")["spec"]["rayClusterSpec"]["workerGroupSpecs"]

    def with_group(**fields: Any) -> Json:
        return {"spec": {"suspend": False, "rayClusterSpec": {"workerGroupSpecs": [group | fields]}}}

    for other in ({"groupName": "other"}, {"rayStartParams": {"a": "b"}}, {"numOfHosts": 2}):
        assert "spec.suspend" in controller.patches(RAYJOB.plural, "asks-shape", with_group(**other)), other
    head = {"spec": {"rayClusterSpec": {"headGroupSpec": {"rayStartParams": {"a": "b"}}}}}
    assert "spec.suspend" in controller.patches(RAYJOB.plural, "asks-shape", head)
    assert controller.patches(RAYJOB.plural, "asks-shape", with_group(replicas=4, minReplicas=4, maxReplicas=4)) == ""
    placing.delete(RAYJOB.plural, "asks-shape")
