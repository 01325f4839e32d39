"""Jobs that have others between them and their pods: JobSets, and TrainJobs, whose pods a JobSet describes."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.builders import pod_object
from tests.controller.test_place import placed_jobs
from tests.foreign.test_read import COMMAND

from trimtab import names
from trimtab.apply.transitions import JobEvent
from trimtab.controller.cluster import Cluster
from trimtab.controller.other_jobs import OtherJob
from trimtab.controller.place import stand_in
from trimtab.controller.place.placer import Placer
from trimtab.controller.place.their_jobs import TheirJobs, rank_of
from trimtab.errors import UsageError
from trimtab.foreign.kinds import row_of
from trimtab.foreign.tables import Rank
from trimtab.kube.metrics_hooks import Silent
from trimtab.kube.objects import AnyObject, Meta, OwnerReference
from trimtab.observe.jobs import facts
from trimtab.settings import BindingSettings, ReflectorSettings

Json = dict[str, Any]
GATES = [{"name": names.SCHEDULING_GATE}]
JOBSET, TRAINER, BATCH = "jobset.x-k8s.io/v1alpha2", "trainer.kubeflow.org/v1alpha1", "batch/v1"
INDEX, JOB_INDEX = "batch.kubernetes.io/job-completion-index", "jobset.sigs.k8s.io/job-index"


def controlled_by(api: str, kind: str, name: str, uid: str) -> list[Json]:
    return [{"apiVersion": api, "kind": kind, "name": name, "uid": uid, "controller": True}]


def workers(jobs: int = 2, **changes: Any) -> Json:
    """A replicated job of two pods with eight GPUs each to a Job."""
    container = {"name": "main", "image": "trainer:1", "command": COMMAND}
    container["resources"] = {"limits": {names.NVIDIA_GPU: 8}}
    pod = {"schedulerName": names.SCHEDULER_NAME, "schedulingGates": GATES, "restartPolicy": "Never"}
    labelled = {"labels": {names.LABEL_MANAGED: "true"}}
    template = {"metadata": labelled, "spec": {**pod, "containers": [container], **changes.pop("pod", {})}}
    spec = {"parallelism": 2, "completions": 2, "template": template, **changes.pop("job", {})}
    return {"name": "worker", "replicas": jobs, "template": {"spec": spec}, **changes}


def driver(**pod: Any) -> Json:
    """One that asks for no GPUs."""
    template = {"spec": {"containers": [{"name": "main", "image": "helper:1"}], **pod}}
    return {"name": "driver", "template": {"spec": {"template": template}}}


def jobset(*replicated: Json, **meta: Any) -> Json:
    labels = {names.LABEL_MANAGED: "true"}
    known = {"name": "llama", "namespace": "team", "uid": "uid-set", "labels": labels, **meta}
    spec = {"replicatedJobs": [*replicated] or [driver(), workers()]}
    return {"apiVersion": JOBSET, "kind": "JobSet", "metadata": known, "spec": spec, "status": {}}


def trainjob(**spec: Any) -> Json:
    labels = {names.LABEL_MANAGED: "true"}
    meta = {"name": "llama", "namespace": "team", "uid": "uid-train", "labels": labels}
    return {
        "apiVersion": TRAINER,
        "kind": "TrainJob",
        "metadata": meta,
        "spec": {"runtimeRef": {"name": "torch"}, **spec},
        "status": {},
    }


OF_TRAINJOB = controlled_by(TRAINER, "TrainJob", "llama", "uid-train")


def standing_in(document: Json, made: Json | None = None) -> Json:
    row = row_of(document)
    assert row
    job = msgspec.json.decode(msgspec.json.encode(document), type=OtherJob)
    return stand_in.stand_in(*row, job, names.SCHEDULER_NAME, made)


# --- what stands in -----------------------------------------------------------------------------------------------
def test_all_jobs_of_the_role_with_gpus_are_one_gang() -> None:
    found = standing_in(jobset())
    assert found["metadata"]["ownerReferences"] == controlled_by(JOBSET, "JobSet", "llama", "uid-set")
    assert found["spec"]["resources"]["maxNodes"] == 4
    assert found["spec"]["resources"]["gpus"]["max"] == 32


WRONG: list[tuple[list[Json], str]] = [
    ([driver()], "0 of its roles ask for GPUs"),
    ([workers(), {**workers(), "name": "other"}], "2 of its roles ask for GPUs (worker, other)"),
    ([driver(), workers(job={"completions": 4})], "spec.replicatedJobs[1].template.spec.completions has to be spec."),
    ([workers(job={"completionMode": "NonIndexed"})], "spec.replicatedJobs[0].template.spec.completionMode has to be"),
    ([driver(), workers(dependsOn=[{"name": "driver"}])], "spec.replicatedJobs[1].dependsOn has to be left out"),
    ([workers(pod={"schedulingGates": []})], "schedulingGates of its pods"),
    ([driver(schedulingGates=GATES), workers()], "the pods of driver ask for no GPUs"),
    ([driver(schedulerName=names.SCHEDULER_NAME), workers()], "the pods of driver ask for no GPUs"),
]


@pytest.mark.parametrize(("replicated", "words"), WRONG)
def test_what_keeps_a_jobset_from_being_placed_is_named_by_its_field(replicated: list[Json], words: str) -> None:
    with pytest.raises(UsageError, match="JobSet llama") as told:
        standing_in(jobset(*replicated))
    assert words in str(told.value)


def test_a_jobset_of_a_trainjob_is_told_to_ask_that() -> None:
    with pytest.raises(UsageError, match="TrainJob llama controls it: label that one"):
        standing_in(jobset(ownerReferences=OF_TRAINJOB))


def test_the_pods_of_a_trainjob_are_as_its_jobset_says() -> None:
    found = standing_in(trainjob(trainer={"numNodes": 7}), jobset(workers(jobs=1), ownerReferences=OF_TRAINJOB))
    assert found["metadata"]["ownerReferences"] == OF_TRAINJOB
    assert found["spec"]["resources"]["maxNodes"] == 2
    assert found["spec"]["resources"]["gpus"]["max"] == 16


def test_what_that_lacks_is_told_with_who_can_say_it() -> None:
    lacking = jobset(workers(jobs=1, pod={"schedulerName": "default-scheduler"}), ownerReferences=OF_TRAINJOB)
    with pytest.raises(UsageError, match="TrainJob llama: schedulerName of its pods") as told:
        standing_in(trainjob(), lacking)
    assert "in its JobSet: the runtime that spec.runtimeRef names or spec.runtimePatches can say so" in str(told.value)


# --- whose pods they are, and which ranks ---------------------------------------------------------------------------
def test_ranks_go_on_from_job_to_job() -> None:
    rank = Rank(INDEX, JOB_INDEX, "size")
    both = [(job, index) for job in "01" for index in "01"]
    assert [rank_of({JOB_INDEX: job, INDEX: index}, rank, 2, {}) for job, index in both] == [0, 1, 2, 3]
    assert rank_of({JOB_INDEX: "1", INDEX: "2"}, rank, 2, {}) is None, "no Job has so many"
    assert rank_of({INDEX: "0"}, rank, 2, {}) is None
    assert rank_of({JOB_INDEX: "x", INDEX: "0"}, rank, 2, {}) is None
    assert rank_of({INDEX: "3"}, Rank(INDEX), 0, {}) == 3


class Stage:
    """A cluster with a JobSet, or a TrainJob, and what is written to it."""

    def __init__(self, document: Json) -> None:
        client: Any = self
        self.jobs = placed_jobs(client)
        for _, reflector in self.jobs._controlled.values():
            reflector.synced.set()
        self.cluster = Cluster(client, ReflectorSettings(), lambda: None, Silent(), other_jobs=self.jobs)
        self.theirs = TheirJobs(client, self.cluster)
        self.document, self.described = document, jobset(workers(jobs=1), ownerReferences=OF_TRAINJOB)
        self.created: list[Json] = []
        self.got: list[str] = []
        self.said: list[str] = []
        self._version = 0
        self._between: dict[str, AnyObject] = {}
        self.jobs.apply_written(document["kind"], self._versioned(document))
        owner = OwnerReference(
            document["apiVersion"], document["kind"], "llama", document["metadata"]["uid"], controller=True
        )
        self.stand_in = Meta(name="llama-x", namespace="team", uid="uid-s", owner_references=(owner,))
        placer: Any = self
        self.placer = Placer(placer, self.cluster, self.jobs, placer, BindingSettings(), facts, asyncio.Event())

    def _versioned(self, document: Json) -> bytes:
        self._version += 1
        meta = {"resourceVersion": str(self._version), **document["metadata"]}
        return msgspec.json.encode({**document, "metadata": meta})

    def between(self, of: str, name: str, uid: str, owners: list[Json], **meta: Any) -> None:
        """An object that a job of this kind controls is there, or has changed."""
        known = {"name": name, "namespace": "team", "uid": uid, "ownerReferences": owners, **meta}
        new = msgspec.convert({"metadata": known}, AnyObject)
        self.jobs._controlled[of][0].changed(self._between.get(uid), new)
        self._between[uid] = new

    def pod(self, job: str, number: int, index: int, uid: str = "", **changes: Any) -> None:
        """One that a Job has made is there."""
        owners = controlled_by(BATCH, changes.pop("kind", "Job"), job, uid or f"uid-{job}")
        labels = {names.LABEL_MANAGED: "true", INDEX: str(index), JOB_INDEX: str(number)}
        meta = {"namespace": "team", "ownerReferences": owners, "resourceVersion": "1", **changes}
        found = pod_object(
            f"{job}-{index}-{self._version}", labels=labels, metadata=meta, spec={"schedulingGates": GATES}
        )
        raw = msgspec.to_builtins(found)
        self._version += 1
        raw["metadata"]["resourceVersion"] = str(self._version)
        self.cluster.pods.apply_written(msgspec.json.encode(raw))

    @property
    def ranks(self) -> list[int]:
        found = self.theirs.of(self.stand_in)
        assert found
        return sorted(found.waiting)

    async def create(self, path: str, obj: Json, *, strict: bool) -> bytes:
        self.created.append(obj)
        meta = {"uid": "uid-s", "resourceVersion": "1", **obj["metadata"]}
        return msgspec.json.encode({**obj, "metadata": meta, "status": {}})

    async def get(self, path: str) -> bytes:
        self.got.append(path)
        return msgspec.json.encode(self.described)

    async def merge_patch(self, path: str, patch: Json) -> bytes:
        return self._versioned(self.document)

    def other(self, regarding: dict[str, str], happening: JobEvent, action: str) -> None:
        self.said.append(happening.reason)


OF_JOBSET = controlled_by(JOBSET, "JobSet", "llama", "uid-set")


def test_pods_of_a_jobset_are_those_of_its_jobs() -> None:
    stage = Stage(jobset())
    for number in range(2):
        stage.between("JobSet", f"llama-worker-{number}", f"uid-llama-worker-{number}", OF_JOBSET)
        for index in range(2):
            stage.pod(f"llama-worker-{number}", number, index)
    assert stage.ranks == [0, 1, 2, 3]


STRAY: dict[str, list[Json]] = {
    "of another JobSet": controlled_by(JOBSET, "JobSet", "llama", "uid-other"),
    "of one of another name": controlled_by(JOBSET, "JobSet", "other", "uid-set"),
    "of another kind": controlled_by("example.com/v1", "JobSet", "llama", "uid-set"),
    "of nobody": [],
    "that is owned and not controlled": [{**OF_JOBSET[0], "controller": False}],
}


@pytest.mark.parametrize("owners", STRAY.values(), ids=STRAY)
def test_a_job_that_is_not_all_its_owner_reference_has_to_be_brings_no_pods(owners: list[Json]) -> None:
    stage = Stage(jobset())
    stage.between("JobSet", "stray", "uid-stray", owners)
    stage.pod("stray", 0, 0)
    assert stage.ranks == []


def test_pods_that_only_say_that_they_are_of_such_a_job_are_not() -> None:
    stage = Stage(jobset())
    stage.between("JobSet", "first", "uid-first", OF_JOBSET)
    stage.pod("first", 0, 0, uid="uid-other")
    stage.pod("second", 0, 1, uid="uid-first")
    stage.pod("first", 1, 0, namespace="others")
    stage.pod("first", 1, 1, kind="CronJob")
    assert stage.ranks == []
    stage.pod("first", 1, 1)
    assert stage.ranks == [3]


def test_pods_of_a_job_that_is_being_deleted_are_not_taken_in() -> None:
    stage = Stage(jobset())
    stage.between("JobSet", "old", "uid-old", OF_JOBSET, deletionTimestamp="2026-01-02T03:04:05Z")
    stage.pod("old", 0, 0)
    assert stage.ranks == []


def test_nothing_is_said_of_a_gang_before_all_between_has_been_listed() -> None:
    stage = Stage(trainjob())
    assert stage.theirs.of(stage.stand_in)
    stage.jobs._controlled["JobSet"][1].synced.clear()
    assert stage.theirs.of(stage.stand_in) is None, "its pods would seem never to have been made"


def test_the_pods_of_a_trainjob_are_two_owners_further() -> None:
    stage = Stage(trainjob())
    stage.between("TrainJob", "llama", "uid-set", OF_TRAINJOB)
    stage.between("JobSet", "llama-node-0", "uid-llama-node-0", OF_JOBSET)
    for index in range(2):
        stage.pod("llama-node-0", 0, index)
    assert stage.ranks == [0, 1]


# --- keeping stand-ins of jobs that others describe -------------------------------------------------------------------
async def test_a_trainjob_waits_for_its_jobset_which_is_read_again_when_it_has_changed() -> None:
    stage = Stage(trainjob())
    await stage.placer.look()
    assert not stage.created, "nothing says yet how its pods will be"
    assert not stage.said
    stage.between("TrainJob", "llama", "uid-set", OF_TRAINJOB, generation=1)
    await stage.placer.look()
    await stage.placer.look()
    assert stage.got == ["/apis/jobset.x-k8s.io/v1alpha2/namespaces/team/jobsets/llama"], "once"
    [made] = stage.created
    assert made["metadata"]["ownerReferences"] == OF_TRAINJOB
    stage.between("TrainJob", "llama", "uid-set", OF_TRAINJOB, generation=2)
    await stage.placer.look()
    assert len(stage.got) == 2
