"""PyTorchJobs and MPIJobs are placed: the real training operator makes their pods, Trimtab decides where and when they
run as one gang.

Its webhook is real, too (`tests.live.their_controllers`), and no controller has more rights than its manifests say.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.live import their_controllers, theirs
from tests.live.harness import ControllerProcess, Live, eventually, training_job
from tests.live.test_failures import play
from tests.live.test_place import Somebody
from tests.live.theirs import (
    MPIJOB,
    PLACE,
    PYTORCHJOB,
    fail,
    finished,
    gone,
    mpijob,
    nodes,
    placed,
    pods,
    pytorchjob,
    uids,
)

from trimtab import names

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

Json = dict[str, Any]
SLOW: dict[str, dict[str, Any]] = {"interop": PLACE, "fake": {"speedup": 20.0}}


@pytest.fixture(scope="module")
def placing(live_cluster: Live, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    directory, operator = tmp_path_factory.mktemp("theirs"), their_controllers.TRAINING_OPERATOR
    with their_controllers.running(live_cluster.cluster, directory, operator), placed(live_cluster, operator.user):
        yield live_cluster


def stand_in(live: Live, name: str) -> str:
    return theirs.stand_in(live, name, PYTORCHJOB)


async def until(live: Live, name: str, condition: str) -> None:
    await theirs.until(live, name, condition, PYTORCHJOB)


def wrong() -> dict[str, tuple[Json, str]]:
    """Name -> one that cannot be placed, and what it is told."""
    suspend = {"suspend": True}
    return {
        "again": (pytorchjob("again", restart="OnFailure", policy=suspend), "[Master].restartPolicy has to be"),
        "stays": (pytorchjob("stays", policy=suspend | {"cleanPodPolicy": "None"}), "spec.runPolicy.cleanPodPolicy"),
        "free": (pytorchjob("free", policy=suspend, schedulingGates=[]), "schedulingGates of its Worker pods"),
        "apart": (pytorchjob("apart", policy=suspend, nodeSelector={"a": "b"}), "nodeSelector of its Worker pods"),
    }


def steps(made: Json, number: int) -> Json:
    """The same job, which trains for so long."""
    made["metadata"]["annotations"] = {names.STATED["steps"]: str(number)}
    return made


async def test_master_and_workers_are_one_gang_through_all_its_life_and_the_next_one_waits_whole(
    live: Live, placing: Live, tmp_path: Path
) -> None:
    live.apply(steps(pytorchjob("wide", nodes=4), 10_000_000), *(each for each, _ in wrong().values()))
    kept = {name: live.get(PYTORCHJOB.plural, name)["spec"] for name in wrong()}
    await eventually(lambda: len(pods(live, "wide", PYTORCHJOB)) == 4, what="the pods of both roles")
    assert not any(nodes(live, "wide", PYTORCHJOB))
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, interop=PLACE):
        await until(live, "wide", "PodsReady")
        first = stand_in(live, "wide")
        here = pods(live, "wide", PYTORCHJOB)
        assert nodes(live, "wide", PYTORCHJOB) == [node["name"] for node in live.status(first)["plan"]["nodes"]]
        assert [pod["metadata"]["labels"][names.LABEL_RANK] for pod in here] == ["0", "1", "2", "3"]
        roles = [pod["metadata"]["labels"]["training.kubeflow.org/replica-type"] for pod in here]
        assert roles == ["master", "worker", "worker", "worker"]
        assert {owner["kind"] for pod in here for owner in pod["metadata"]["ownerReferences"]} == {"PyTorchJob"}

        await it_outlives_lost_ranks(live, first)
        await it_gives_way(live, first)

        for name, (_, why) in wrong().items():
            assert why in theirs.annotations(live, name, PYTORCHJOB)[names.ANNOTATION_PLACE_PROBLEM]
        assert {name: live.get(PYTORCHJOB.plural, name)["spec"] for name in kept} == kept, "they are left alone"
        assert [each["metadata"]["name"] for each in live.list("ltj")] == [first]
        live.delete(PYTORCHJOB.plural, *kept)

        live.apply(steps(pytorchjob("late"), 50))
        await eventually(
            lambda: bool(it := stand_in(live, "late")) and "pending" in live.status(it),
            what=lambda: f"it to be told why it waits: {live.list('ltj')}",
        )
        assert not any(nodes(live, "late", PYTORCHJOB)), "no part of it starts"
        assert live.status(stand_in(live, "late"))["pending"]["reason"] == "InsufficientGpus"
        await gone(live, "wide", PYTORCHJOB)
        await until(live, "late", "Complete")
        await eventually(finished(live, "late", PYTORCHJOB), what="its own controller to say that it has succeeded")
    await gone(live, "late", PYTORCHJOB)


async def it_outlives_lost_ranks(live: Live, stands_in: str) -> None:
    """One that fails in a way that its controller tries again, and one that is deleted."""
    before = pods(live, "wide", PYTORCHJOB)
    fail(live, before[2], 137)
    second = await theirs.gang(live, "wide", 2, PYTORCHJOB)
    assert len(second) == 4
    assert not second & {pod["metadata"]["uid"] for pod in before}, "all of them begin anew"
    live.delete("pod", pods(live, "wide", PYTORCHJOB)[0]["metadata"]["name"], "--wait=false")
    assert not await theirs.gang(live, "wide", 3, PYTORCHJOB) & second
    assert stand_in(live, "wide") == stands_in


async def it_gives_way(live: Live, stands_in: str) -> None:
    """To one of ours with a higher priority, by being suspended, and goes on after it."""
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "pytorch-high"}}
    live.apply(high | {"value": 1000})
    before = uids(live, "wide", PYTORCHJOB)
    live.patch("ltj", stands_in, {"spec": {"elasticity": {"minRuntimeSeconds": 0}}})
    live.apply(training_job("proud", gpus=32, seconds=3600, priorityClassName="pytorch-high"))
    await live.until("proud", "PodsReady", 60)
    found = live.get(PYTORCHJOB.plural, "wide")
    assert found["spec"]["runPolicy"]["suspend"] is True
    assert "proud" in found["metadata"]["annotations"][names.ANNOTATION_SUSPENDED]
    await live.gone("proud")
    assert not await theirs.gang(live, "wide", 4, PYTORCHJOB) & before
    assert names.ANNOTATION_SUSPENDED not in theirs.annotations(live, "wide", PYTORCHJOB)
    live.cluster.kubectl("delete", "priorityclass", "pytorch-high")


async def test_the_shape_of_a_pytorchjob_is_chosen_and_follows_what_is_free(
    live: Live, placing: Live, tmp_path: Path
) -> None:
    """Its user states a master and two workers with eight GPUs each, and lets pods have four."""
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "shape-high"}}
    stated = {"gpus": "8-12", "gpus_per_node": "4-4", "steps": "10000000", "elasticity": "Elastic"}
    made = theirs.shaped(pytorchjob("shaped", nodes=3, policy={"suspend": True}), **stated)
    made["spec"]["nprocPerNode"] = "8"
    made["metadata"]["annotations"][names.ANNOTATION_SUSPENDED] = "until it is planned"
    live.apply(high | {"value": 1000}, made)
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, interop=PLACE):
        await theirs.shape_is(live, "shaped", (2, 4), PYTORCHJOB)
        first, stands_in = uids(live, "shaped", PYTORCHJOB), stand_in(live, "shaped")
        spec = live.get(PYTORCHJOB.plural, "shaped")["spec"]
        assert spec["nprocPerNode"] == "4"
        note = json.loads(theirs.annotations(live, "shaped", PYTORCHJOB)[names.ANNOTATION_SHAPED])
        assert note["/spec/nprocPerNode"] == ["8", "4"]
        assert note["/spec/pytorchReplicaSpecs/Worker/replicas"] == [2, 1]

        live.patch("ltj", stands_in, {"spec": {"elasticity": {"minRuntimeSeconds": 0}}})
        all_nodes = {names.STATED["gpus"]: "32-32", names.STATED["gpus_per_node"]: "8-8"}
        live.patch(PYTORCHJOB.plural, "shaped", {"metadata": {"annotations": all_nodes}})
        await theirs.shape_is(live, "shaped", (4, 8), PYTORCHJOB)
        live.patch(PYTORCHJOB.plural, "shaped", {"metadata": {"annotations": {names.STATED["gpus"]: "16-32"}}})
        await eventually(
            lambda: live.get("ltj", stands_in)["spec"]["resources"]["gpus"]["min"] == 16, what="it to need fewer"
        )
        live.apply(training_job("proud", gpus=16, seconds=3600, priorityClassName="shape-high"))
        await live.until("proud", "PodsReady", 60)
        await theirs.shape_is(live, "shaped", (2, 8), PYTORCHJOB)
        assert not uids(live, "shaped", PYTORCHJOB) & first

        live.patch(PYTORCHJOB.plural, "shaped", {"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 0}}}})
        await theirs.shape_is(live, "shaped", (1, 8), PYTORCHJOB)
        assert live.get("ltj", stands_in)["spec"]["resources"]["gpus"] == {"min": 8, "max": 8}, "his word counts"
        await live.gone("proud")
    await gone(live, "shaped", PYTORCHJOB)
    live.cluster.kubectl("delete", "priorityclass", "shape-high")


async def test_the_workers_of_an_mpijob_are_a_gang_and_its_launcher_is_let_be_and_ends_it(
    live: Live, placing: Live, tmp_path: Path
) -> None:
    held = mpijob("held", launcher={"schedulingGates": [{"name": names.SCHEDULING_GATE}]}, suspend=True)
    live.apply(mpijob("ring"), held)
    await eventually(lambda: len(pods(live, "ring", MPIJOB)) == 2, what="the pods of its workers")
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, **SLOW):
        await theirs.until(live, "ring", "PodsReady", MPIJOB)
        stands_in, first = theirs.stand_in(live, "ring", MPIJOB), uids(live, "ring", MPIJOB)
        assert nodes(live, "ring", MPIJOB) == [node["name"] for node in live.status(stands_in)["plan"]["nodes"]]
        launcher = live.get("pod", "ring-launcher")
        assert "schedulingGates" not in launcher["spec"]
        assert not [label for label in launcher["metadata"]["labels"] if label.startswith(names.GROUP)]

        live.delete("pod", pods(live, "ring", MPIJOB)[1]["metadata"]["name"], "--wait=false")
        assert len(again := await theirs.gang(live, "ring", 2, MPIJOB)) == 2
        assert not again & first
        assert live.get("pod", "ring-launcher")["metadata"]["uid"] != launcher["metadata"]["uid"], (
            "suspended as a whole"
        )
        told = theirs.annotations(live, "held", MPIJOB)[names.ANNOTATION_PLACE_PROBLEM]
        assert "the pods of Launcher ask for no GPUs" in told

        play(live, "ring-launcher", phase="Succeeded")
        await eventually(finished(live, "ring", MPIJOB), what="its own controller to say that it has succeeded")
        await theirs.until(live, "ring", "Complete", MPIJOB)
        await eventually(lambda: not pods(live, "ring", MPIJOB), what="its workers to go")
    for name in ("ring", "held"):
        await gone(live, name, MPIJOB)


def test_the_controller_changes_of_its_run_policy_whether_it_is_suspended_and_no_more(
    placing: Live, tmp_path: Path
) -> None:
    controller = Somebody(placing, tmp_path, "trimtab-system", "trimtab-controller")
    suspended = {"suspend": True}
    free = pytorchjob("plain", policy=suspended)
    del free["metadata"]["labels"]
    bare = pytorchjob("bare", policy=suspended)
    del bare["spec"]["runPolicy"]
    bare["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = 0
    placing.apply(pytorchjob("asks", policy=suspended), free, bare)
    resume = {"spec": {"runPolicy": {"suspend": False}}}
    assert controller.patches(PYTORCHJOB.plural, "asks", resume) == ""
    assert controller.patches(PYTORCHJOB.plural, "bare", {"spec": {"runPolicy": suspended}}) == ""
    assert "with the label" in controller.patches(PYTORCHJOB.plural, "plain", resume)
    for spec in ({"runPolicy": {"cleanPodPolicy": "All"}}, {"runPolicy": None}, {"nprocPerNode": "4"}):
        refused = controller.patches(PYTORCHJOB.plural, "asks", {"spec": spec})
        assert "spec.runPolicy.suspend or spec.suspend" in refused, spec
    asks = theirs.shaped(pytorchjob("asks-shape", policy=suspended), gpus="8-64")
    placing.apply(asks)
    shape = {"runPolicy": {"suspend": False}, "pytorchReplicaSpecs": {"Worker": {"replicas": 3}}, "nprocPerNode": "4"}
    assert controller.patches(PYTORCHJOB.plural, "asks-shape", {"spec": shape}) == ""
    for spec in (
        {"pytorchReplicaSpecs": {"Worker": {"restartPolicy": "Never"}}},
        {"pytorchReplicaSpecs": {"Worker": None}},
        {"pytorchReplicaSpecs": {"Worker": {"template": {"metadata": {"labels": {"a": "b"}}}}}},
        {"runPolicy": {"cleanPodPolicy": "All"}},
        {"elasticPolicy": {"minReplicas": 1}},
    ):
        refused = controller.patches(PYTORCHJOB.plural, "asks-shape", {"spec": spec})
        assert "spec.runPolicy.suspend or spec.suspend" in refused, spec
    placing.delete(PYTORCHJOB.plural, "asks-shape")
    placing.apply(mpijob("ring", suspend=True))
    assert controller.patches(MPIJOB.plural, "ring", resume) == ""
    assert "spec.runPolicy.suspend" in controller.patches(MPIJOB.plural, "ring", {"spec": {"slotsPerWorker": 4}})
    placing.delete(MPIJOB.plural, "ring")
    placing.delete(PYTORCHJOB.plural, "asks", "plain", "bare")
