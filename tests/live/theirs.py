"""Jobs of other kinds that are placed, in words: batch Jobs, and what has batch Jobs of its own."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from msgspec import Struct
from tests.live.harness import Live, eventually
from tests.live.test_advice import SMALL
from tests.live.test_failures import exited, play

from trimtab import launch, names
from trimtab.errors import LocalClusterError
from trimtab_local.checkout import checkout

Json = dict[str, Any]
PLACE = {"place": "Labelled"}
MAKERS = "system:serviceaccount:kube-system:job-controller, system:kube-controller-manager"
"""Who makes pods by the policies as they are shipped."""
INDEX = "batch.kubernetes.io/job-completion-index"


class Words(Struct, frozen=True):
    """What a kind is called, and how its pods are."""

    plural: str
    of_pods: str
    """Label of its pods that has its name."""
    order: tuple[str, ...] = (INDEX,)
    """Labels of its pods by which they are counted."""
    complete: str = "Complete"


JOB = Words("job.batch", "batch.kubernetes.io/job-name")
JOBSET = Words(
    "jobset.jobset.x-k8s.io",
    "jobset.sigs.k8s.io/jobset-name",
    ("jobset.sigs.k8s.io/job-index", INDEX),
    "Completed",
)


REPLICA = "training.kubeflow.org/replica-"
PYTORCHJOB = Words(
    "pytorchjob.kubeflow.org",
    "training.kubeflow.org/job-name",
    (f"{REPLICA}type", f"{REPLICA}index"),
    "Succeeded",
)
"""Of its roles, `master` comes before `worker` in the alphabet, too."""
MPIJOB = Words("mpijob.kubeflow.org", "training.kubeflow.org/job-name", (f"{REPLICA}index",), "Succeeded")
RAYJOB = Words("rayjob.ray.io", "of", ("ray.io/worker-group-replica-index",))
"""KubeRay's own labels have the name of a RayCluster, which ends with what is drawn: `of` is in the templates here."""
GROUP = Words("podgroup.scheduling.k8s.io", "of", ("number",))
"""What `Maker` gives its pods."""
TRAINJOB = Words("trainjob.trainer.kubeflow.org", "jobset.sigs.k8s.io/jobset-name")


@contextmanager
def placed(live: Live, *makers: str) -> Iterator[None]:
    """With the controller's rights to Jobs, and all admission policies; these accounts make pods, too."""
    kubectl = live.cluster.kubectl
    files = [checkout() / "manifests" / name for name in ("other-kinds-place.yaml", "admission.yaml")]
    texts = [file.read_text().replace(MAKERS, ", ".join((MAKERS, *makers))) for file in files]
    for text in texts:
        kubectl("apply", "--server-side", "-f", "-", stdin=text)
    yield
    for text in texts:
        kubectl("delete", "-f", "-", "--ignore-not-found", "--wait=false", stdin=text)  # nothing of it has finalizers


def template(gpus: int = 8) -> Json:
    """Of pods that say themselves that they are to be placed."""
    container = {
        "name": "main",
        "image": "trainer:1",
        "command": SMALL,
        "resources": {"limits": {names.NVIDIA_GPU: gpus}},
    }
    pod = {
        "schedulerName": names.SCHEDULER_NAME,
        "schedulingGates": [{"name": names.SCHEDULING_GATE}],
        "restartPolicy": "Never",
        "containers": [container],
    }
    return {"metadata": {"labels": {names.LABEL_MANAGED: "true"}}, "spec": pod}


def handed_over(pod: Json) -> None:
    """Let the container of a pod's template be started by `trimtab.launch`, with the plan of its pod."""
    directory, _, file = launch.FILE.rpartition("/")
    item = {"path": file, "fieldRef": {"fieldPath": f"metadata.annotations['{launch.ANNOTATION}']"}}
    [container] = pod["spec"]["containers"]
    shell, option, words = container["command"]
    container["command"] = ["python", "-m", "trimtab.launch", "--", shell, option, f"{words} ${launch.FLAGS}"]
    container["volumeMounts"] = [{"name": "trimtab", "mountPath": directory}]
    pod["spec"]["volumes"] = [{"name": "trimtab", "downwardAPI": {"items": [item]}}]


def started(pod: Json, directory: Path) -> tuple[dict[str, str], list[str]]:
    """Environment and arguments that its training has, from the file that its kubelet would make of it."""
    [volume] = [each["downwardAPI"] for each in pod["spec"]["volumes"] if "downwardAPI" in each]
    for item in volume["items"]:
        annotation = item["fieldRef"]["fieldPath"].removeprefix("metadata.annotations['").removesuffix("']")
        (directory / item["path"]).write_text(pod["metadata"].get("annotations", {}).get(annotation, ""))
    file = str(directory / launch.FILE.rpartition("/")[2])
    show = [sys.executable, "-c", "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv[1:]]))"]
    command = [sys.executable, "-m", "trimtab.launch", "--file", file, "--wait", "0", "--", *show]
    made = subprocess.run(
        command, env={"PYTHONPATH": os.environ.get("PYTHONPATH", "")}, capture_output=True, check=True
    )
    env, words = json.loads(made.stdout)
    return env, words


def job(name: str, nodes: int = 2, gpus: int = 8, **spec: Any) -> Json:
    """A Job to be placed."""
    given = {"parallelism": nodes, "completions": nodes, "completionMode": "Indexed", "template": template(gpus)}
    given |= spec
    meta = {"name": name, "namespace": "default", "labels": {names.LABEL_MANAGED: "true"}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": given}


def replicated(name: str, jobs: int = 1, pods: int = 1, **job: Any) -> Json:
    """Jobs of a JobSet: its pods are not to be placed, nor do they ask for GPUs, unless `template` says so."""
    plain = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "helper:1"}]}}
    spec = {"parallelism": pods, "completions": pods, "completionMode": "Indexed", "template": plain, **job}
    return {"name": name, "replicas": jobs, "template": {"spec": spec}}


def jobset(name: str, *beside: Json, jobs: int = 2, pods: int = 1, **spec: Any) -> Json:
    """A JobSet to be placed, whose gang is that many Jobs of so many pods; `beside` are other Jobs."""
    workers = replicated("worker", jobs, pods, backoffLimit=0, template=template())
    given = {"replicatedJobs": [*beside, workers], "failurePolicy": {"maxRestarts": 5}, **spec}
    meta = {"name": name, "namespace": "default", "labels": {names.LABEL_MANAGED: "true"}}
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": meta, "spec": given}


def runtime(name: str, **pod: Any) -> Json:
    """A runtime of TrainJobs whose pods are to be placed; `pod` are other fields of their spec, or None for none."""
    given = template()
    given["spec"]["containers"][0]["name"] = "node"
    given["spec"] = {key: value for key, value in (given["spec"] | pod).items() if value is not None}
    node = {"name": "node", "template": {"spec": {"backoffLimit": 0, "template": given}}}
    node["template"]["metadata"] = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}
    jobs = {"replicatedJobs": [node], "failurePolicy": {"maxRestarts": 5}}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"mlPolicy": {"numNodes": 1, "torch": {}}, "template": {"spec": jobs}},
    }


def trainjob(name: str, of: str, nodes: int = 2, **spec: Any) -> Json:
    """A TrainJob to be placed, with the runtime `of`."""
    given = {"runtimeRef": {"kind": "TrainingRuntime", "name": of}, "trainer": {"numNodes": nodes, "command": SMALL}}
    meta = {"name": name, "namespace": "default", "labels": {names.LABEL_MANAGED: "true"}}
    api = "trainer.kubeflow.org/v1alpha1"
    return {"apiVersion": api, "kind": "TrainJob", "metadata": meta, "spec": given | spec}


def pytorchjob(
    name: str, nodes: int = 2, *, policy: Json | None = None, restart: str = "ExitCode", **worker: Any
) -> Json:
    """A PyTorchJob to be placed: a master, and workers as alike as they have to be but for what `worker` says."""
    one = template()
    one["spec"]["containers"][0]["name"] = "pytorch"
    del one["spec"]["restartPolicy"]
    other = {**one, "spec": one["spec"] | worker}
    replicas = {
        "Master": {"replicas": 1, "restartPolicy": restart, "template": one},
        "Worker": {"replicas": nodes - 1, "restartPolicy": restart, "template": other},
    }
    spec = {"pytorchReplicaSpecs": replicas, "runPolicy": {"cleanPodPolicy": "Running", **(policy or {})}}
    meta = {"name": name, "namespace": "default", "labels": {names.LABEL_MANAGED: "true"}}
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": meta, "spec": spec}


def mpijob(name: str, nodes: int = 2, *, api: str = "v1", launcher: Json | None = None, **policy: Any) -> Json:
    """An MPIJob to be placed: what its launcher starts on the workers, its command says. `api` v1 is the training
    operator's, v2beta1 the MPI operator's."""
    worker = template()
    worker["spec"]["containers"][0].pop("command")
    start = {"name": "mpi", "image": "trainer:1", "command": ["mpirun", "-n", str(8 * nodes), *SMALL]}
    quiet = {"spec": {"containers": [start], **(launcher or {})}}
    replicas = {
        "Launcher": {"replicas": 1, "restartPolicy": "Never", "template": quiet},
        "Worker": {"replicas": nodes, "restartPolicy": "Never", "template": worker},
    }
    clean = "Running" if api == "v1" else "All"
    spec = {"mpiReplicaSpecs": replicas, "runPolicy": {"cleanPodPolicy": clean, **policy}}
    meta = {"name": name, "namespace": "default", "labels": {names.LABEL_MANAGED: "true"}}
    return {"apiVersion": f"kubeflow.org/{api}", "kind": "MPIJob", "metadata": meta, "spec": spec}


def rayjob(name: str, nodes: int = 2, *, head: Json | None = None, worker: Json | None = None, **spec: Any) -> Json:
    """A RayJob to be placed: a head, and the workers of one group; `head` and `worker` are other fields of these."""
    one = template()
    one["metadata"]["labels"] |= {RAYJOB.of_pods: name}
    one["spec"]["containers"][0].pop("command")
    quiet = {"containers": [{"name": "head", "image": "ray:1"}], **(head or {})}
    group = {"groupName": "gpu", "replicas": nodes, "minReplicas": 0, "maxReplicas": nodes, "rayStartParams": {}}
    cluster = {
        "headGroupSpec": {
            "rayStartParams": {},
            "template": {"metadata": {"labels": {RAYJOB.of_pods: name}}, "spec": quiet},
        },
        "workerGroupSpecs": [{**group, "template": one, **(worker or {})}],
    }
    given = {"entrypoint": shlex.join(SMALL), "shutdownAfterJobFinishes": True, "rayClusterSpec": cluster, **spec}
    meta = {"name": name, "namespace": "default", "labels": {names.LABEL_MANAGED: "true"}}
    return {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": meta, "spec": given}


def group(name: str, pods: int = 2, **spec: Any) -> Json:
    """A PodGroup to be placed. Its pods somebody else makes."""
    given = spec or {"schedulingPolicy": {"gang": {"minCount": pods}}}
    meta = {"name": name, "namespace": "default", "labels": {names.LABEL_MANAGED: "true"}}
    return {"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "metadata": meta, "spec": given}


def member(name: str, number: int, owner: str, labels: dict[str, str] | None = None, **pod: Any) -> Json:
    """A pod that names the PodGroup, controlled by a ConfigMap of the same name with this UID."""
    given = {names.LABEL_MANAGED: "true"} if labels is None else labels
    meta = {"name": f"{name}-{number}", "namespace": "default"}
    meta |= {"labels": given | {GROUP.of_pods: name, "number": str(number)}}
    meta |= {
        "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": owner, "controller": True}]
    }
    spec = template()["spec"] | {"schedulingGroup": {"podGroupName": name}} | pod
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def may(live: Live, account: str, groups: list[str], *resources: str) -> None:
    """Let an account of the namespace make and change objects of these kinds, and nothing else."""
    meta, rbac = {"name": f"{account}-makes", "namespace": "default"}, "rbac.authorization.k8s.io"
    rule = {"apiGroups": groups, "resources": [*resources], "verbs": ["create", "get", "patch", "update"]}
    subject = {"kind": "ServiceAccount", "name": account, "namespace": "default"}
    reference = {"apiGroup": rbac, "kind": "Role", "name": meta["name"]}
    live.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account, "namespace": "default"}},
        {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": meta, "rules": [rule]},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "subjects": [subject],
            "roleRef": reference,
        },
    )


class Maker:
    """A controller of a kind that nobody has described: its objects are ConfigMaps, and it keeps a number of pods for
    each, which name a PodGroup of the same name. What is gone it makes anew."""

    USER = "system:serviceaccount:default:maker"

    def __init__(self, live: Live) -> None:
        self._live = live
        self._wanted: dict[str, list[Json]] = {}
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Maker:
        may(self._live, "maker", [""], "pods")
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        for name in [*self._wanted]:
            self.forgets(name)
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def makes(self, name: str, pods: int, *, labels: dict[str, str] | None = None, **pod: Any) -> None:
        """Keep so many pods for this ConfigMap; `pod` are other fields of their spec."""
        self._live.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}})
        uid = self._live.get("configmap", name)["metadata"]["uid"]
        self._wanted[name] = [member(name, number, uid, labels, **pod) for number in range(pods)]

    def forgets(self, name: str) -> None:
        """Delete the ConfigMap: the garbage collector takes its pods away."""
        self._wanted.pop(name, None)
        self._live.delete("configmap", name, "--wait=false")

    async def _run(self) -> None:
        while True:
            await asyncio.to_thread(self._keep)
            await asyncio.sleep(0.2)

    def _keep(self) -> None:
        there = {pod["metadata"]["name"] for pod in self._live.list("pods", GROUP.of_pods)}
        lacking = [pod for pods in [*self._wanted.values()] for pod in pods if pod["metadata"]["name"] not in there]
        if lacking:
            document = json.dumps({"apiVersion": "v1", "kind": "List", "items": lacking})
            with suppress(LocalClusterError):  # one is there by now, or still: it is looked at again
                self._live.cluster.kubectl("create", "-f", "-", "--as", self.USER, stdin=document)


def shaped(made: Json, **stated: str) -> Json:
    """The same job, whose user lets its shape be chosen: nothing in it says how many nodes and processes there are."""
    found: Json = json.loads(json.dumps(made).replace("--nproc_per_node=8 --nnodes=4 ", ""))
    found["metadata"]["annotations"] = {names.STATED[field]: value for field, value in stated.items()}
    return found


def gpus_of(pods: Iterable[Json]) -> list[str]:
    """What each of the pods asks for."""
    return [pod["spec"]["containers"][0]["resources"]["limits"][names.NVIDIA_GPU] for pod in pods]


def annotations(live: Live, name: str, kind: Words = JOB) -> dict[str, str]:
    found: dict[str, str] = live.get(kind.plural, name).get("metadata", {}).get("annotations", {})
    return found


def stand_in(live: Live, name: str, kind: Words = JOB) -> str:
    """Name of the LLMTrainingJob that stands in for the job; empty while there is none."""
    return annotations(live, name, kind).get(names.ANNOTATION_STAND_IN, "")


def pods(live: Live, name: str, kind: Words = JOB) -> list[Json]:
    """Pods of the job that are to be placed, as it counts them, without those that are ending."""
    found = live.list("pods", f"{kind.of_pods}={name},{names.LABEL_MANAGED}=true")
    return sorted(
        (pod for pod in found if "deletionTimestamp" not in pod["metadata"]),
        key=lambda pod: [(len(said), said) for label in kind.order if (said := pod["metadata"]["labels"][label])],
    )


def uids(live: Live, name: str, kind: Words = JOB) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods(live, name, kind)}


def nodes(live: Live, name: str, kind: Words = JOB) -> list[str]:
    return [pod["spec"].get("nodeName", "") for pod in pods(live, name, kind)]


async def until(live: Live, name: str, condition: str, kind: Words = JOB) -> None:
    """Wait for a condition of the stand-in."""
    await eventually(
        lambda: bool(it := stand_in(live, name, kind)) and live.holds(it, condition),
        40,
        lambda: f"{name} to be {condition}: {live.get(kind.plural, name)} {live.list('ltj')} {pods(live, name, kind)}",
    )


async def gang(live: Live, name: str, epoch: int, kind: Words = JOB) -> set[str]:
    """Wait for that gang of the same stand-in, or a later one; UIDs of its pods."""
    it = stand_in(live, name, kind)
    await eventually(
        lambda: live.status(it).get("plan", {}).get("epoch", 0) >= epoch and live.holds(it, "PodsReady"),
        90,
        lambda: f"another gang: {live.list('ltj')} {live.list(kind.plural)} {live.list('pods')}",
    )
    return uids(live, name, kind)


async def shape_is(live: Live, name: str, shape: tuple[int, int], kind: Words = JOB) -> None:
    """Wait for a gang of so many pods, with so many GPUs each, that runs as a whole."""

    def runs() -> bool:
        here, it = pods(live, name, kind), stand_in(live, name, kind)
        asked = (len(here), *{int(gpus) for gpus in gpus_of(here)})
        planned = live.status(it).get("plan", {}).get("nodes", []) if it else []
        as_planned = [node["name"] for node in planned] == [pod["spec"].get("nodeName") for pod in here]
        return asked == shape and bool(planned) and as_planned and live.holds(it, "PodsReady")

    def told() -> str:
        return f"{name} to have {shape}: {live.get(kind.plural, name)} {live.list('ltj')} {pods(live, name, kind)}"

    await eventually(runs, 60, told)


async def gone(live: Live, name: str, kind: Words = JOB) -> None:
    """Delete the job, and wait until nothing of it is left."""
    left = stand_in(live, name, kind)
    live.delete(kind.plural, name, "--wait=false")
    await eventually(
        lambda: (
            not live.get(kind.plural, name)
            and not live.list("pods", f"{kind.of_pods}={name}")
            and not (left and live.get("ltj", left))
        ),
        90,
        lambda: f"{name} to be gone: {live.list('ltj')} {live.list('pods')}",
    )


def finished(live: Live, name: str, kind: Words = JOB) -> Callable[[], bool]:
    def has() -> bool:
        told = live.get(kind.plural, name).get("status", {}).get("conditions", [])
        return any(each["type"] == kind.complete and each["status"] == "True" for each in told)

    return has


def fail(live: Live, pod: dict[str, Any], code: int = 1) -> None:
    """The container of a pod ends with this code, as its kubelet would say."""
    status = exited(code, "Error")
    container = pod["spec"]["containers"][0]
    status["containerStatuses"][0] |= {"name": container["name"], "image": container["image"]}
    play(live, pod["metadata"]["name"], **status)
