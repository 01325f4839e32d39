"""Jobs of other kinds that are to be placed: what stands in for them, what keeps them from it, what is seen of them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
import yaml
from msgspec.structs import replace
from tests.builders import pod_object
from tests.foreign.test_read import COMMAND

from trimtab import names
from trimtab.api.v1alpha1 import JobSpec
from trimtab.apply.theirs import TheirJob
from trimtab.apply.transitions import JobEvent
from trimtab.apply.write import WriteRefused
from trimtab.controller.cluster import Cluster
from trimtab.controller.other_jobs import MOST_BYTES, OtherJob, OtherJobs
from trimtab.controller.place import stand_in
from trimtab.controller.place.placer import Placer
from trimtab.controller.place.their_jobs import TheirJobs
from trimtab.doctor import rbac
from trimtab.errors import AlreadyExists, Forbidden, Invalid, NotFound, UsageError
from trimtab.foreign.kinds import end_of, row_of
from trimtab.foreign.tables import Kind, kinds
from trimtab.kube.metrics_hooks import Silent
from trimtab.kube.objects import JobObject, Meta, OwnerReference, PodObject
from trimtab.observe.jobs import facts
from trimtab.settings import BindingSettings, ReflectorSettings
from trimtab_local.checkout import checkout
from trimtab_policy.types import Bounds

Json = dict[str, Any]
GATES = [{"name": names.SCHEDULING_GATE}]
INDEX = "batch.kubernetes.io/job-completion-index"


def document(**changes: Any) -> Json:
    """A Job of four pods with eight GPUs each that is to be placed."""
    container = {"name": "main", "image": "trainer:1", "command": COMMAND, "env": [{"name": "SECRET", "value": "x"}]}
    container["resources"] = {"limits": {names.NVIDIA_GPU: 8, "cpu": "4"}}
    pod: Json = {
        "schedulerName": names.SCHEDULER_NAME,
        "schedulingGates": GATES,
        "restartPolicy": "Never",
        "containers": [container],
        "nodeSelector": {"disk": "fast"},
        "volumes": [{"name": "key", "secret": {"secretName": "key"}}],
        **changes.pop("pod", {}),
    }
    labels = {names.LABEL_MANAGED: "true", **changes.pop("pod_labels", {})}
    spec = {
        "parallelism": 4,
        "completions": 4,
        "completionMode": "Indexed",
        "template": {"metadata": {"labels": labels, **changes.pop("pod_metadata", {})}, "spec": pod},
        **changes.pop("spec", {}),
    }
    meta = {"name": "llama", "namespace": "team", "uid": "uid-a", "labels": {names.LABEL_MANAGED: "true"}}
    meta |= changes.pop("metadata", {})
    found = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": meta,
        "spec": spec,
        "status": changes.pop("status", {}),
    }
    assert not changes, changes
    return found


def job(**changes: Any) -> tuple[str, Kind, OtherJob]:
    found = document(**changes)
    row = row_of(found)
    assert row
    return *row, msgspec.json.decode(msgspec.json.encode(found), type=OtherJob)


def standing_in(**changes: Any) -> Json:
    return stand_in.stand_in(*job(**changes), names.SCHEDULER_NAME)


# --- what stands in -----------------------------------------------------------------------------------------------
def test_it_says_what_the_job_says_and_its_gang_has_the_shape_that_the_pods_have() -> None:
    found = standing_in()
    assert found["metadata"]["ownerReferences"] == [
        {"apiVersion": "batch/v1", "kind": "Job", "name": "llama", "uid": "uid-a", "controller": True}
    ]
    spec = JobSpec.model_validate(found["spec"])
    assert spec.managed_by == names.MANAGED_BY_STAND_IN
    known = facts(JobObject(Meta(name="a", namespace="team", uid="u"), msgspec.Raw(msgspec.json.encode(found["spec"]))))
    assert known.ours
    assert known.stands_in
    need = known.requirements
    assert need
    assert (need.gpus, need.gpus_per_node, need.max_nodes) == (Bounds(32, 32), Bounds(8, 8), 4)
    assert need.cpu_milli_per_pod == 4000


def test_its_template_has_what_planning_looks_at_and_nothing_that_is_nobodys_business() -> None:
    template = standing_in()["spec"]["template"]
    assert template["spec"]["nodeSelector"] == {"disk": "fast"}
    assert template["spec"]["containers"] == [
        {"name": "main", "image": "trainer:1", "resources": {"limits": {"cpu": "4"}}}
    ]
    assert "SECRET" not in json.dumps(template)
    assert "volumes" not in template["spec"]


def test_no_other_job_has_one_of_the_same_name() -> None:
    found = [Meta(name="llama", uid="a"), Meta(name="llama", uid="b"), Meta(name="0." + "x" * 80, uid="c")]
    called = [stand_in.name_of(each) for each in found]
    assert len(set(called)) == 3
    assert called[0].startswith("llama-")
    for each in called:
        assert len(each) <= names.MAX_NAME_LENGTH
        assert each[0].isalpha()
        assert each.replace("-", "").isalnum()


def test_it_is_suspended_as_its_user_has_suspended_the_job_and_not_as_we_have() -> None:
    assert standing_in(spec={"suspend": True})["spec"]["suspend"] is True
    ours = {"annotations": {names.ANNOTATION_SUSPENDED: "Preempted"}}
    assert standing_in(spec={"suspend": True}, metadata=ours)["spec"]["suspend"] is False
    assert standing_in()["spec"]["suspend"] is False


def test_it_is_changed_only_where_it_says_something_else() -> None:
    wanted = standing_in(metadata={"annotations": {names.ANNOTATION_QUEUE: "research"}})["spec"]
    filled = json.loads(json.dumps(wanted)) | {"priorityClassName": "gone"}
    filled["elasticity"]["minRuntimeSeconds"] = 600
    assert stand_in.changes(wanted, filled) == {"priorityClassName": None}
    del filled["priorityClassName"]
    assert stand_in.changes(wanted, filled) == {}
    assert stand_in.changes(standing_in()["spec"], filled) == {"queue": None}
    assert stand_in.changes(wanted | {"suspend": True}, filled) == {"suspend": True}


WRONG: list[tuple[Json, str]] = [
    ({"spec": {"completionMode": "NonIndexed"}}, "spec.completionMode has to be Indexed"),
    ({"spec": {"completions": 8}}, "spec.completions has to be spec.parallelism"),
    ({"pod": {"schedulerName": "default-scheduler"}}, "schedulerName of its pods has to be trimtab"),
    ({"pod": {"schedulingGates": []}}, "schedulingGates of its pods"),
    ({"pod": {"schedulingGates": [*GATES, {"name": "other"}]}}, "schedulingGates of its pods"),
    ({"pod": {"restartPolicy": "OnFailure"}}, "restartPolicy of its pods has to be Never"),
    ({"pod_metadata": {"finalizers": ["example.com/mine"]}}, "metadata.finalizers of its pods have to be left out"),
    ({"pod_labels": {names.LABEL_MANAGED: "false"}}, "lacks the label trimtab.dev/managed"),
    ({"metadata": {"labels": {names.LABEL_KUEUE_QUEUE: "q"}}}, "Kueue starts it already"),
    ({"metadata": {"annotations": {names.STATED["gpus"]: "16"}}}, "16 GPUs, and its pods ask for 32"),
]


@pytest.mark.parametrize(("changes", "words"), WRONG)
def test_what_keeps_a_job_from_being_placed_is_named(changes: Json, words: str) -> None:
    with pytest.raises(UsageError, match="Job llama") as told:
        standing_in(**changes)
    assert words in str(told.value)


def test_a_job_that_another_one_controls_is_told_to_ask_that() -> None:
    owner = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "set", "uid": "u", "controller": True}
    with pytest.raises(UsageError, match="JobSet set controls it"):
        standing_in(metadata={"ownerReferences": [owner]})


FREE = [*COMMAND[:2], COMMAND[2].replace("--nproc_per_node=8 --nnodes=4 ", "")]


def ranged(said: str = "8-64", note: str = "", **changes: Any) -> Json:
    """One whose user lets its shape be chosen."""
    told = {names.STATED["gpus"]: said} | ({names.ANNOTATION_SHAPED: note} if note else {})
    container = {"name": "main", "image": "i", "command": FREE, "resources": {"limits": {names.NVIDIA_GPU: 8}}}
    return {"metadata": {"annotations": told}, "pod": {"containers": [container]}, **changes}


def test_where_a_range_is_given_it_has_that_and_its_pods_keep_their_gpus() -> None:
    spec = standing_in(**ranged())["spec"]
    assert spec["resources"]["gpus"] == {"min": 8, "max": 64}
    assert spec["resources"]["gpusPerNode"] == {"min": 8, "max": 8}
    assert spec["resources"]["maxNodes"] == 8
    assert spec["elasticity"] == {"policy": "Moldable", "checkpoint": {"graceSeconds": 0, "resharding": False}}
    note = json.dumps({"/spec/parallelism": [4, 2], "/spec/completions": [4, 2]})
    two = {"parallelism": 2, "completions": 2}
    assert standing_in(**ranged(note=note, spec=two))["spec"] == spec, "whatever has been written into it meanwhile"
    by_hand = standing_in(**ranged(note=note, spec={"parallelism": 3, "completions": 3}))["spec"]
    assert by_hand["resources"]["gpus"] == {"min": 24, "max": 24}
    assert by_hand["elasticity"]["policy"] == "Fixed"
    with pytest.raises(UsageError, match="ends at 4, and each of its pods asks for 8"):
        standing_in(**ranged("2-4"))


async def test_it_is_resumed_with_its_shape_and_a_note_in_one_write() -> None:
    stage = Stage(**ranged(spec={"suspend": True}))
    assert stage.seen.shape == (4, 8)
    await stage.theirs.resume(stage.stand_in, (2, 8))
    [(_, patch)] = stage.patches
    assert patch["spec"] == {"parallelism": 2, "completions": 2, "suspend": False}
    note = {"/spec/parallelism": [4, 2], "/spec/completions": [4, 2]}
    assert json.loads(patch["metadata"]["annotations"].pop(names.ANNOTATION_SHAPED)) == note
    assert patch["metadata"]["annotations"] == {names.ANNOTATION_SUSPENDED: None}
    back = Stage(**ranged(note=json.dumps(note), spec={"suspend": True, "parallelism": 2, "completions": 2}))
    assert back.seen.shape == (2, 8)
    await back.theirs.resume(back.stand_in, (4, 8))
    [(_, patch)] = back.patches
    assert patch["spec"] == {"parallelism": 4, "completions": 4, "suspend": False}
    assert patch["metadata"]["annotations"][names.ANNOTATION_SHAPED] is None
    assert Stage(**ranged(note=json.dumps(note))).seen.shape is None, "its user has written over it"
    assert Stage().seen.shape is None


async def test_a_shape_that_the_api_server_does_not_take_is_told() -> None:
    stage = Stage(**ranged(spec={"suspend": True}))
    stage.refuses = Invalid("field is immutable")
    with pytest.raises(WriteRefused, match="2 pods of 4 GPUs: field is immutable"):
        await stage.theirs.resume(stage.stand_in, (2, 4))


# --- what is seen of the job ----------------------------------------------------------------------------------------
def pod(rank: str = "0", gates: list[Json] = GATES, *, uid: str = "uid-a", **meta: Any) -> PodObject:
    owners = [{"apiVersion": "batch/v1", "kind": "Job", "name": "llama", "uid": uid, "controller": True}]
    labels = {names.LABEL_MANAGED: "true", INDEX: rank}
    meta = {"namespace": "team", "ownerReferences": owners, **meta}
    return pod_object(f"llama-{rank}", gpus=8, labels=labels, metadata=meta, spec={"schedulingGates": gates})


def placed_jobs(client: Any) -> OtherJobs:
    """Jobs of all kinds that are placed, and what is between them and their pods."""
    settings, wanted = ReflectorSettings(), names.LABEL_MANAGED
    return OtherJobs(client, settings, lambda: None, Silent(), wanted, lambda row: row.place is not None, pods=True)


class Stage:
    """A cluster with one such job, and what is written to it."""

    def __init__(self, **changes: Any) -> None:
        client: Any = self
        self.jobs = placed_jobs(client)
        self.cluster = Cluster(client, ReflectorSettings(), lambda: None, Silent(), other_jobs=self.jobs)
        self.theirs = TheirJobs(client, self.cluster)
        kind, _, self.job = job(**changes)
        self.patches: list[tuple[str, Json]] = []
        self.refuses: Exception | None = None
        self._version = 0
        self.document = document(**changes)
        self.document["metadata"]["resourceVersion"] = "7"
        self.jobs.apply_written(kind, msgspec.json.encode(self.document))
        owner = OwnerReference("batch/v1", "Job", "llama", "uid-a", controller=True)
        self.stand_in = Meta(name="llama-x", namespace="team", uid="uid-s", owner_references=(owner,))

    async def merge_patch(self, path: str, patch: Json) -> bytes:
        if self.refuses:
            raise self.refuses
        self.patches.append((path, patch))
        return msgspec.json.encode(self.document)

    def adds(self, *pods: PodObject) -> None:
        for each in pods:
            self._version += 1
            raw = msgspec.to_builtins(each)
            raw["metadata"]["resourceVersion"] = str(self._version)
            self.cluster.pods.apply_written(msgspec.json.encode(raw))

    @property
    def seen(self) -> TheirJob:
        found = self.theirs.of(self.stand_in)
        assert found
        return found


def test_pods_wait_that_its_controller_has_made_behind_our_gate_and_no_other() -> None:
    stage = Stage()
    other = [{"name": "other"}]
    stage.adds(
        pod("0"), pod("1", [*GATES, *other]), pod("2", []), pod("x"), pod("3", uid="uid-b"),
        pod("4", deletionTimestamp="2026-01-02T03:04:05Z"), pod("5", namespace="others"),
    )  # fmt: skip
    assert list(stage.seen.waiting) == [0]


def test_a_pod_that_is_taken_in_is_of_the_gang_and_waits_no_more() -> None:
    stage = Stage()
    taken = pod("0")
    stage.adds(taken)
    meta = of_gang(taken.metadata)
    stage.adds(replace(taken, metadata=meta))
    assert stage.seen.waiting == {}
    assert meta.job == ("team/llama-x", "uid-s")
    assert [each.metadata.name for each in stage.cluster.pods_of(meta.job.digest)] == ["llama-0"]


def of_gang(meta: Meta) -> Meta:
    return replace(meta, labels={**meta.labels, names.LABEL_JOB: "llama-x", names.LABEL_JOB_UID: "uid-s"})


def test_whoever_has_another_controller_than_the_job_is_known() -> None:
    stage = Stage()
    own, other, none = pod("0"), pod("1", uid="uid-b"), pod("2", ownerReferences=[])
    for each in (own, other, none):
        stage.adds(replace(each, metadata=of_gang(each.metadata)))
    assert stage.seen.orphans == {other.metadata.uid, none.metadata.uid}


def test_labels_count_only_on_pods_that_another_controller_has_made() -> None:
    assert of_gang(Meta(name="p", namespace="team")).job is None
    managed = Meta(name="p", namespace="team", labels={names.LABEL_MANAGED: "true"})
    assert managed.job is None
    assert of_gang(managed).job == ("team/llama-x", "uid-s")


def test_a_job_that_is_not_known_is_not_made_up() -> None:
    stage = Stage()
    owner = OwnerReference("batch/v1", "Job", "llama", "uid-other", controller=True)
    assert stage.theirs.of(replace(stage.stand_in, owner_references=(owner,))) is None
    assert stage.theirs.of(replace(stage.stand_in, owner_references=())) is None


def test_who_has_suspended_it_and_how_it_has_ended_is_seen() -> None:
    assert not Stage().seen.suspended
    assert Stage(spec={"suspend": True}).seen.suspended_by_user
    ours = Stage(spec={"suspend": True}, metadata={"annotations": {names.ANNOTATION_SUSPENDED: "why"}}).seen
    assert ours.suspended
    assert not ours.suspended_by_user
    told = [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "too often"}]
    seen = Stage(status={"conditions": told}).seen
    assert (seen.end, seen.message) == ("failed", "BackoffLimitExceeded: too often")


async def test_it_is_suspended_with_a_note_and_resumed_without_one() -> None:
    stage = Stage()
    await stage.theirs.suspend(stage.stand_in, "Preempted: for others")
    await stage.theirs.resume(stage.stand_in)
    meta = {"uid": "uid-a", "resourceVersion": "7"}
    assert stage.patches == [
        (
            "/apis/batch/v1/namespaces/team/jobs/llama",
            {"metadata": meta | {"annotations": {names.ANNOTATION_SUSPENDED: why}}, "spec": {"suspend": suspend}},
        )
        for why, suspend in (("Preempted: for others", True), (None, False))
    ]
    with pytest.raises(NotFound):
        await stage.theirs.resume(replace(stage.stand_in, owner_references=()))


# --- its row, and its rights ------------------------------------------------------------------------------------------
def test_what_is_placed_says_its_rank_is_suspended_by_a_field_and_tells_its_end() -> None:
    placed = {name: row for name, row in kinds().items() if row.place and not row.place.stays}
    assert set(placed) == {"Job", "JobSet", "MPIJob", "MPIJob v1", "PyTorchJob", "RayJob", "TrainJob"}
    for row in placed.values():
        assert row.served
        assert row.rank
        assert row.suspend
        assert row.conditions.keys() >= {"succeeded", "failed"}


def test_the_end_of_a_job_is_told_with_its_reason() -> None:
    row = kinds()["Job"]
    assert end_of({"status": {"conditions": [{"type": "Complete", "status": "True"}]}}, row) == ("succeeded", "")
    assert end_of({"status": {"conditions": [{"type": "Complete", "status": "False"}]}}, row) == ("", "")
    volcano = kinds()["Volcano Job"]
    assert end_of({"status": {"state": {"phase": "Failed"}}}, volcano) == ("failed", "")


def test_the_role_is_what_the_doctor_asks_for_and_policies_bound_it() -> None:
    manifests = checkout() / "manifests"
    role, *_ = yaml.safe_load_all((manifests / "other-kinds-place.yaml").read_text())
    assert role["rules"] == [need.rule() for need in rbac.OF_PLACER]
    documents = yaml.safe_load_all((manifests / "admission.yaml").read_text())
    policies = {each["metadata"]["name"]: each for each in documents if each["kind"].endswith("Policy")}
    assert {"trimtab-stand-ins", "trimtab-controller-stand-ins"} <= policies.keys()
    makers = {
        variable["expression"]
        for each in policies.values()
        for variable in each["spec"].get("variables", [])
        if variable["name"] == "podMakers"
    }
    assert len(makers) == 1, "three policies have the same list"


# --- keeping stand-ins -----------------------------------------------------------------------------------------------
class Desk(Stage):
    """A placer, and an API server that answers as told."""

    def __init__(self, *, creating: Exception | None = None, **changes: Any) -> None:
        super().__init__(**changes)
        self.said: list[tuple[str, str]] = []
        self.created: list[Json] = []
        self.deleted: list[str] = []
        self.there: Json | Exception = NotFound("no such job")
        self._creating = creating
        placer: Any = self
        self.placer = Placer(placer, self.cluster, self.jobs, placer, BindingSettings(), facts, asyncio.Event())

    async def create(self, path: str, obj: Json, *, strict: bool) -> bytes:
        if self._creating:
            raise self._creating
        assert strict
        self.created.append(obj)
        meta = {"uid": "uid-s", "resourceVersion": "1", **obj["metadata"]}
        return msgspec.json.encode(obj | {"metadata": meta, "status": {}})

    async def get(self, path: str) -> bytes:
        if isinstance(self.there, Exception):
            raise self.there
        return msgspec.json.encode(self.there)

    async def merge_patch(self, path: str, patch: Json) -> bytes:
        if "jobs/llama" in path and "llmtrainingjobs" not in path:
            self._version += 1
            annotations = self.document["metadata"].setdefault("annotations", {})
            for name, value in patch["metadata"]["annotations"].items():
                annotations.pop(name, None)
                annotations |= {name: value} if value is not None else {}
            self.document["metadata"]["resourceVersion"] = str(100 + self._version)
        return await super().merge_patch(path, patch)

    async def delete(self, path: str, *, uid: str) -> bytes:
        self.deleted.append(f"{path.rpartition('/')[2]} {uid}")
        return b"{}"

    def other(self, regarding: dict[str, str], happening: JobEvent, action: str) -> None:
        self.said.append((happening.reason, regarding["kind"]))

    @property
    def annotations(self) -> dict[str, str]:
        found: dict[str, str] = self.document["metadata"].get("annotations", {})
        return found


async def test_a_job_gets_its_stand_in_once_and_hears_of_it() -> None:
    desk = Desk()
    await desk.placer.look()
    await desk.placer.look()
    [made] = desk.created
    assert desk.annotations == {names.ANNOTATION_STAND_IN: made["metadata"]["name"]}
    assert desk.said == [(names.REASON_STAND_IN, "Job")]
    assert not desk.deleted


async def test_who_may_not_stand_in_is_told_on_the_job_and_the_note_goes_when_that_is_mended() -> None:
    desk = Desk(creating=Forbidden("spec.queue: not for jobs of namespace team"))
    await desk.placer.look()
    assert desk.annotations == {names.ANNOTATION_PLACE_PROBLEM: "spec.queue: not for jobs of namespace team"}
    assert desk.said == [(names.REASON_NOT_PLACED, "Job")]
    desk._creating = None
    await desk.placer.look()
    assert list(desk.annotations) == [names.ANNOTATION_STAND_IN]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"pod": {"nodeSelector": {"a": "x" * MOST_BYTES}}}, "spec"),
        ({"metadata": {"annotations": {names.STATED["model"]: "x" * (MOST_BYTES + 1)}}}, "metadata.annotations"),
    ],
)
async def test_who_is_too_large_is_told_by_which_field_and_left_as_he_was(changes: Json, field: str) -> None:
    desk = Desk(**changes)
    await desk.placer.look()
    problem = f"Job llama: {field}: it has "
    assert desk.annotations[names.ANNOTATION_PLACE_PROBLEM].startswith(problem)
    assert not desk.created
    assert [patch.get("spec") for _, patch in desk.patches] == [None]


async def test_whose_jobs_take_long_to_read_waits_and_keeps_nobody_else_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = Desk()
    for number, namespace in enumerate(("team", "team", "others")):
        more = {"name": f"more-{number}", "uid": f"uid-m{number}", "namespace": namespace, "resourceVersion": "1"}
        desk.jobs.apply_written("Job", msgspec.json.encode(document(metadata=more)))
    monkeypatch.setattr("trimtab.controller.place.placer.READ_SECONDS", 0.0001)  # a job takes longer
    await desk.placer.look()
    assert sorted(made["metadata"]["namespace"] for made in desk.created) == ["others", "team"], "one of each"
    for _ in range(8):
        await desk.placer.look()
    assert sorted(made["metadata"]["namespace"] for made in desk.created) == ["others", "team", "team", "team"]


async def test_one_that_another_controller_has_made_is_taken_over() -> None:
    desk = Desk(creating=AlreadyExists("exists"))
    made = standing_in()
    desk.there = made | {"metadata": {"uid": "uid-s", "resourceVersion": "1", **made["metadata"]}, "status": {}}
    await desk.placer.look()
    assert desk.annotations == {names.ANNOTATION_STAND_IN: made["metadata"]["name"]}


async def test_a_note_of_ours_goes_once_its_user_has_resumed_the_job() -> None:
    desk = Desk(metadata={"annotations": {names.ANNOTATION_SUSPENDED: "Preempted"}})
    await desk.placer.look()
    assert names.ANNOTATION_SUSPENDED not in desk.annotations
    kept = Desk(metadata={"annotations": {names.ANNOTATION_SUSPENDED: "Preempted"}}, spec={"suspend": True})
    await kept.placer.look()
    assert kept.annotations[names.ANNOTATION_SUSPENDED] == "Preempted"


HERE = {"metadata": {"name": "gone", "namespace": "team", "uid": "uid-b", "labels": {names.LABEL_MANAGED: "true"}}}
UNLABELLED = {"metadata": HERE["metadata"] | {"labels": {}}}
ANEW = {"metadata": HERE["metadata"] | {"uid": "uid-c"}}


async def test_a_stand_in_goes_when_its_job_is_being_deleted_whatever_holds_that() -> None:
    desk = Desk()
    await desk.placer.look()
    [made] = desk.created
    ends = {"deletionTimestamp": "2026-01-02T03:04:05Z", "finalizers": ["example.com/keep"], "resourceVersion": "200"}
    desk.document["metadata"] |= ends
    desk.there = desk.document
    desk.jobs.apply_written("Job", msgspec.json.encode(desk.document))
    await desk.placer.look()
    assert desk.deleted == [f"{made['metadata']['name']} uid-s"]


@pytest.mark.parametrize(
    ("there", "stays"), [(HERE, True), (UNLABELLED, False), (ANEW, False), (NotFound("gone"), False)]
)
async def test_a_stand_in_goes_with_its_job_and_not_with_our_copy_of_it(there: Json | Exception, stays: bool) -> None:
    desk = Desk()
    await desk.placer.look()
    desk.there = there
    left = standing_in(metadata={"name": "gone", "uid": "uid-b"})
    meta = {"uid": "uid-l", "resourceVersion": "1", **left["metadata"]}
    desk.cluster.jobs.apply_written(msgspec.json.encode(left | {"metadata": meta, "status": {}}))
    await desk.placer.look()
    assert desk.deleted == ([] if stays else [f"{meta['name']} uid-l"])


async def test_a_stand_in_that_nobody_owns_goes_and_a_job_of_ours_does_not() -> None:
    desk = Desk()
    left = standing_in(metadata={"name": "gone", "uid": "uid-b"})
    orphan = {"name": "orphan", "namespace": "team", "uid": "uid-o", "resourceVersion": "1"}
    own = {"name": "own", "namespace": "team", "uid": "uid-n", "resourceVersion": "2"}
    for meta, spec in ((orphan, left["spec"]), (own, left["spec"] | {"managedBy": names.MANAGED_BY})):
        found = left | {"metadata": meta, "spec": spec, "status": {}}
        desk.cluster.jobs.apply_written(msgspec.json.encode(found))
    await desk.placer.look()
    assert desk.deleted == ["orphan uid-o"]
