"""Jobs whose pods are of several roles: all of a PyTorchJob are one gang, an MPIJob's launcher is in none."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.foreign.test_read import COMMAND

from trimtab import names
from trimtab.controller.other_jobs import OtherJob
from trimtab.controller.place import stand_in
from trimtab.controller.place.their_jobs import rank_of
from trimtab.errors import UsageError
from trimtab.foreign.kinds import row_of
from trimtab.foreign.tables import kinds

Json = dict[str, Any]
GATES = [{"name": names.SCHEDULING_GATE}]
TYPE, INDEX = "training.kubeflow.org/replica-type", "training.kubeflow.org/replica-index"


def replica(count: int, *, gpus: int = 8, labels: Json | None = None, pod: Json | None = None, **changes: Any) -> Json:
    """Pods of one role."""
    container = {"name": "pytorch", "image": "trainer:1", "command": COMMAND}
    container["resources"] = {"limits": {names.NVIDIA_GPU: gpus}} if gpus else {}
    spec = {"schedulerName": names.SCHEDULER_NAME, "schedulingGates": GATES, "containers": [container], **(pod or {})}
    meta = {"labels": {names.LABEL_MANAGED: "true"} if labels is None else labels}
    return {"replicas": count, "restartPolicy": "Never", "template": {"metadata": meta, "spec": spec}, **changes}


def pytorchjob(master: Json | None = None, worker: Json | None = None, **spec: Any) -> Json:
    roles = {"Worker": worker or replica(3), "Master": master or replica(1)}
    labels = {names.LABEL_MANAGED: "true"}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "llama", "namespace": "team", "uid": "uid-a", "labels": labels},
        "spec": {"pytorchReplicaSpecs": roles, "runPolicy": {"cleanPodPolicy": "Running"}, **spec},
        "status": {},
    }


def mpijob(launcher: Json | None = None, api: str = "kubeflow.org/v1", **policy: Any) -> Json:
    quiet: Json = {"schedulerName": "default-scheduler", "schedulingGates": [], **(launcher or {})}
    roles = {"Launcher": replica(1, gpus=0, labels={}, pod=quiet), "Worker": replica(3)}
    spec = {"mpiReplicaSpecs": roles, "runPolicy": {"cleanPodPolicy": "All", **policy}}
    return pytorchjob() | {"apiVersion": api, "kind": "MPIJob", "spec": spec}


def read(document: Json) -> OtherJob:
    return msgspec.json.decode(msgspec.json.encode(document), type=OtherJob)


def standing_in(document: Json) -> Json:
    row = row_of(document)
    assert row
    return stand_in.stand_in(*row, read(document), names.SCHEDULER_NAME)


def test_pods_of_all_its_roles_are_one_gang() -> None:
    found = standing_in(pytorchjob())
    assert found["spec"]["resources"]["maxNodes"] == 4
    assert found["spec"]["resources"]["gpus"]["max"] == 32
    [owner] = found["metadata"]["ownerReferences"]
    assert (owner["apiVersion"], owner["kind"], owner["uid"]) == ("kubeflow.org/v1", "PyTorchJob", "uid-a")


def test_so_are_those_of_one_role_alone() -> None:
    alone = pytorchjob()
    del alone["spec"]["pytorchReplicaSpecs"]["Master"]
    assert standing_in(alone)["spec"]["resources"]["maxNodes"] == 3
    quiet = replica(1, gpus=0, labels={}, pod={"schedulerName": "default-scheduler", "schedulingGates": []})
    assert standing_in(pytorchjob(master=quiet))["spec"]["resources"]["maxNodes"] == 3


@pytest.mark.parametrize("asked", ["Never", "ExitCode"])
def test_its_own_controller_may_try_it_again_but_no_container_starts_again_alone(asked: str) -> None:
    policy = {"restartPolicy": asked}
    assert standing_in(pytorchjob(replica(1, **policy), replica(3, **policy)))


def test_it_is_suspended_by_a_field_further_down() -> None:
    by_user = pytorchjob(runPolicy={"suspend": True, "cleanPodPolicy": "All"})
    assert standing_in(by_user)["spec"]["suspend"] is True
    assert standing_in(pytorchjob())["spec"]["suspend"] is False


WRONG: list[tuple[Json, str]] = [
    (
        pytorchjob(worker=replica(3, restartPolicy="OnFailure")),
        "spec.pytorchReplicaSpecs[Worker].restartPolicy has to be Never or ExitCode",
    ),
    (
        pytorchjob(master={k: v for k, v in replica(1).items() if k != "restartPolicy"}),
        "spec.pytorchReplicaSpecs[Master].restartPolicy has to be Never or ExitCode",
    ),
    (pytorchjob(runPolicy={}), "spec.runPolicy.cleanPodPolicy has to be Running or All"),
    (pytorchjob(elasticPolicy={"maxReplicas": 8}), "spec.elasticPolicy has to be left out"),
    (pytorchjob(worker=replica(3, labels={})), "the template of its Worker pods lacks the label"),
    (pytorchjob(worker=replica(3, pod={"schedulingGates": []})), "schedulingGates of its Worker pods"),
    (pytorchjob(master=replica(1, pod={"schedulerName": "other"})), "schedulerName of its Master pods"),
    (pytorchjob(worker=replica(3, gpus=4)), "resources of its Worker pods have to be those of its Master pods"),
    (
        pytorchjob(worker=replica(3, pod={"nodeSelector": {"disk": "fast"}})),
        "nodeSelector of its Worker pods has to be that of its Master pods",
    ),
    (pytorchjob(master=replica(1, gpus=0)), "the pods of Master ask for no GPUs"),
    (pytorchjob(replica(1, gpus=0), replica(3, gpus=0)), "0 of its roles ask for GPUs"),
]


@pytest.mark.parametrize(("document", "words"), WRONG)
def test_what_keeps_one_from_being_placed_is_named_by_its_field(document: Json, words: str) -> None:
    with pytest.raises(UsageError, match="PyTorchJob llama") as told:
        standing_in(document)
    assert words in str(told.value)


def test_the_workers_of_an_mpijob_are_a_gang_without_its_launcher() -> None:
    assert standing_in(mpijob())["spec"]["resources"]["maxNodes"] == 3
    assert standing_in(mpijob(suspend=True))["spec"]["suspend"] is True
    wrong = {
        "the pods of Launcher ask for no GPUs": mpijob({"schedulingGates": GATES}),
        "spec.runPolicy.cleanPodPolicy has to be Running or All": mpijob(cleanPodPolicy="None"),
    }
    for words, document in wrong.items():
        with pytest.raises(UsageError) as told:
            standing_in(document)
        assert words in str(told.value)


def test_the_mpi_operator_keeps_what_has_failed_and_can_make_a_rank_of_the_launcher() -> None:
    api = "kubeflow.org/v2beta1"
    assert standing_in(mpijob(api=api))["spec"]["resources"]["maxNodes"] == 3
    as_worker = mpijob(api=api)
    as_worker["spec"]["runLauncherAsWorker"] = True
    wrong = {
        "the pods of Launcher ask for no GPUs": mpijob({"schedulerName": names.SCHEDULER_NAME}, api),
        "spec.runPolicy.cleanPodPolicy has to be All": mpijob(api=api, cleanPodPolicy="Running"),
        "spec.runLauncherAsWorker has to be left out": as_worker,
    }
    for words, document in wrong.items():
        with pytest.raises(UsageError) as told:
            standing_in(document)
        assert words in str(told.value)


def test_of_mpijobs_the_version_says_whose_they_are() -> None:
    found = {api: row_of(mpijob(api=f"kubeflow.org/{api}")) for api in ("v1", "v2beta1", "v1alpha2")}
    assert {api: row and row[0] for api, row in found.items()} == {
        "v1": "MPIJob v1",
        "v2beta1": "MPIJob",
        "v1alpha2": "MPIJob",
    }


def rayjob(worker: Json | None = None, head: Json | None = None, cluster: Json | None = None, **spec: Any) -> Json:
    quiet: Json = {"schedulerName": "default-scheduler", "schedulingGates": [], **(head or {})}
    given = replica(3, pod={"restartPolicy": "Never"})
    groups = [{"groupName": "gpu", "replicas": 3, "template": given["template"], **(worker or {})}]
    groups += [{"groupName": "data", "replicas": 5, "template": replica(5, gpus=0, labels={}, pod=quiet)["template"]}]
    heads = {"template": replica(1, gpus=0, labels={}, pod=quiet)["template"]}
    inner = {"headGroupSpec": heads, "workerGroupSpecs": groups, **(cluster or {})}
    whole = {"entrypoint": COMMAND[2], "shutdownAfterJobFinishes": True, "rayClusterSpec": inner, **spec}
    return pytorchjob() | {"apiVersion": "ray.io/v1", "kind": "RayJob", "spec": whole}


WRONG_RAY: list[tuple[Json, str]] = [
    (rayjob(shutdownAfterJobFinishes=False), "spec.shutdownAfterJobFinishes has to be True"),
    (rayjob(submissionMode="InteractiveMode"), "spec.submissionMode has to be K8sJobMode"),
    (rayjob(worker={"numOfHosts": 2}), "spec.rayClusterSpec.workerGroupSpecs[0].numOfHosts has to be 1"),
    (rayjob(cluster={"enableInTreeAutoscaling": True}), "spec.rayClusterSpec.enableInTreeAutoscaling has to be left"),
    (rayjob(preRunningDeadlineSeconds=60), "spec.preRunningDeadlineSeconds has to be left out"),
    (rayjob(head={"schedulingGates": GATES}), "the pods of head ask for no GPUs"),
]


@pytest.mark.parametrize(("document", "words"), WRONG_RAY)
def test_what_keeps_a_rayjob_from_being_placed_is_named_by_its_field(document: Json, words: str) -> None:
    with pytest.raises(UsageError, match="RayJob llama") as told:
        standing_in(document)
    assert words in str(told.value)


def test_the_workers_of_one_group_of_a_rayjob_are_a_gang_as_it_numbers_them() -> None:
    found = standing_in(rayjob())["spec"]
    assert (found["resources"]["maxNodes"], found["resources"]["gpus"]["max"]) == (3, 24)
    assert standing_in(rayjob(suspend=True))["spec"]["suspend"] is True
    row = kinds()["RayJob"]
    assert row.rank
    assert rank_of({"ray.io/worker-group-replica-index": "2"}, row.rank, 0, {}) == 2
    assert rank_of({"ray.io/group": "gpu"}, row.rank, 0, {}) is None, "an older KubeRay does not number them"


def test_ranks_go_on_from_role_to_role() -> None:
    row = kinds()["PyTorchJob"]
    assert row.rank
    job = read(pytorchjob())
    roles = job.ranks_of_roles("PyTorchJob", row)
    pods = [("master", "0"), ("worker", "0"), ("worker", "2"), ("worker", "3"), ("master", "1"), ("other", "0")]
    found = [rank_of({TYPE: role, INDEX: index}, row.rank, 0, roles) for role, index in pods]
    assert found == [0, 1, 3, None, None, None]
    assert rank_of({INDEX: "0"}, row.rank, 0, roles) is None
