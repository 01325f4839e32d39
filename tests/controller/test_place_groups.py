"""PodGroups that are to be placed: pods that name them, whoever makes these, describe themselves."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.apply.test_steps import PLANNED, view
from tests.builders import pod_object
from tests.controller.test_place import Desk, document, of_gang
from tests.foreign.test_read import read_yaml

from trimtab import names
from trimtab.api.status import JobStatus
from trimtab.apply.actions import AdoptPod, DeletePod
from trimtab.apply.steps import next_step
from trimtab.apply.theirs import TheirJob, never_made
from trimtab.controller.place import stand_in
from trimtab.controller.place.their_jobs import in_order
from trimtab.errors import UsageError
from trimtab.foreign.kinds import row_of
from trimtab.kube.objects import OwnerReference, PodObject

Json = dict[str, Any]
MAKER = {"apiVersion": "example.com/v1", "kind": "Swarm", "name": "s", "uid": "uid-m", "controller": True}


def group(version: str = "v1alpha2", count: int = 4, **spec: Any) -> Json:
    given = spec or {"schedulingPolicy": {"gang": {"minCount": count}}}
    meta = {"name": "llama", "namespace": "team", "uid": "uid-a", "labels": {names.LABEL_MANAGED: "true"}}
    api = f"scheduling.k8s.io/{version}"
    return {"apiVersion": api, "kind": "PodGroup", "metadata": meta, "spec": given, "status": {}}


def whole_pod(name: str = "llama-0", **changes: Any) -> Json:
    """A pod of it as the API server has it."""
    spec = document()["spec"]["template"]["spec"] | {"schedulingGroup": {"podGroupName": "llama"}}
    spec["containers"][0]["resources"]["limits"][names.NVIDIA_GPU] = "8"
    meta = {"name": name, "namespace": "team", "uid": f"uid-{name}", "labels": {names.LABEL_MANAGED: "true"}}
    meta |= {"ownerReferences": [MAKER], "resourceVersion": "1", **changes.pop("metadata", {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec | changes}


def pod(name: str, **meta: Any) -> PodObject:
    found: PodObject = msgspec.json.decode(msgspec.json.encode(whole_pod(name, metadata=meta)), type=PodObject)
    return found


class Groups(Desk):
    """A placer before a group, and the pods that name it."""

    def __init__(self, *pods: PodObject, version: str = "v1alpha2", **spec: Any) -> None:
        super().__init__()
        self.jobs._kinds["Job"][1].forget()
        self.document = group(version, **spec)
        self.document["metadata"]["resourceVersion"] = "7"
        row = row_of(self.document)
        assert row
        self.kind = row[0]
        self.jobs.apply_written(self.kind, msgspec.json.encode(self.document))
        owner = OwnerReference(f"scheduling.k8s.io/{version}", "PodGroup", "llama", "uid-a", controller=True)
        self.stand_in = msgspec.structs.replace(self.stand_in, owner_references=(owner,))
        self.there = whole_pod()
        self.adds(*pods)


def all_four() -> list[PodObject]:
    return [pod(f"llama-{number}") for number in (10, 2, 9, 1)]


@pytest.mark.parametrize("version", ["v1alpha2", "v1beta1"])
def test_its_pods_wait_in_the_order_of_their_names(version: str) -> None:
    stage = Groups(*all_four(), pod_object("stray", metadata={"namespace": "team"}), version=version)
    assert [each.metadata.name for each in stage.seen.waiting.values()] == ["llama-1", "llama-2", "llama-9", "llama-10"]
    assert stage.seen.stays
    stage.adds(msgspec.structs.replace(pod("llama-2"), metadata=of_gang(pod("llama-2").metadata)))
    assert len(stage.seen.waiting) == 3, "one that is taken in waits no more"
    assert sorted(["a-1-x", "a-01", "a-0", "a"], key=in_order) == ["a", "a-0", "a-01", "a-1-x"]


def test_a_stand_in_follows_its_group_to_another_version() -> None:
    stage = Groups(version="v1beta1")
    old = OwnerReference("scheduling.k8s.io/v1alpha2", "PodGroup", "llama", "uid-a", controller=True)
    assert stage.theirs.of(msgspec.structs.replace(stage.stand_in, owner_references=(old,)))


async def test_what_stands_in_has_the_shape_of_its_pods_and_is_suspended_until_all_are_there() -> None:
    first, *others = all_four()
    stage = Groups(first)
    await stage.placer.look()
    [made] = stage.created
    assert made["spec"]["suspend"] is True
    assert made["spec"]["resources"]["gpus"] == {"min": 32, "max": 32}
    assert made["spec"]["resources"]["maxNodes"] == 4
    told = stage.patches[-1][1]["metadata"]["annotations"]
    assert told[names.ANNOTATION_SUSPENDED] == "1 of its 4 pods wait: it is planned once all do"
    stage.adds(*others)
    stage.patches.clear()
    await stage.placer.look()
    assert stage.patches[0][1]["spec"] == {"suspend": False}
    assert len(stage.created) == 1


async def test_a_group_without_pods_has_nothing_that_stands_in() -> None:
    stage = Groups()
    await stage.placer.look()
    assert not stage.created
    assert not stage.patches


def problem(found: Json, described: Json) -> str:
    row = row_of(found)
    assert row
    stage = Groups()
    job = msgspec.json.decode(msgspec.json.encode(found), type=type(stage.job))
    with pytest.raises(UsageError) as told:
        stand_in.stand_in(*row, job, names.SCHEDULER_NAME, described)
    return str(told.value)


@pytest.mark.parametrize(
    ("found", "described", "words"),
    [
        (group(schedulingPolicy={"basic": {}}), whole_pod(), "spec.schedulingPolicy.basic has to be left out"),
        (group(), whole_pod(metadata={"ownerReferences": []}), "metadata.ownerReferences of its pods"),
        (group(), whole_pod(metadata={"labels": {}}), "lacks the label"),
        (group(), whole_pod(schedulingGates=[]), "schedulingGates of its pods"),
    ],
)
def test_what_keeps_it_from_being_placed_is_named(found: Json, described: Json, words: str) -> None:
    assert words in problem(found, described)


async def test_more_pods_than_the_gang_has_are_told() -> None:
    stage = Groups(*all_four(), pod("llama-0"))
    await stage.placer.look()
    assert not stage.created
    [(_, patch)] = stage.patches
    assert "minCount is 4, and 5 pods wait" in patch["metadata"]["annotations"][names.ANNOTATION_PLACE_PROBLEM]


def test_ranks_that_are_left_go_to_those_that_wait_and_what_is_to_go_is_deleted() -> None:
    plan = PLANNED.plan
    assert plan
    waiting = dict(enumerate([pod("llama-8"), pod("llama-9")]))
    job = TheirJob(stays=True, numbered=False, waiting=waiting)
    step = next_step(view(PLANNED, theirs=job))
    assert step == (AdoptPod("llama-8", "uid-llama-8", 0), AdoptPod("llama-9", "uid-llama-9", 1))
    labels = {names.LABEL_MANAGED: "true", names.LABEL_EPOCH: str(plan.epoch), names.LABEL_RANK: "0"}
    taken = pod("llama-8", labels=labels)
    half = TheirJob(stays=True, numbered=False, waiting={0: pod("llama-9")})
    assert next_step(view(PLANNED, taken, theirs=half)) == (AdoptPod("llama-9", "uid-llama-9", 1),)
    late = plan.created_time.timestamp() + 1000
    assert never_made(half, plan, [taken], late) is None
    assert never_made(TheirJob(stays=True, numbered=False), plan, [taken], late)
    [gone] = next_step(view(JobStatus(), taken, theirs=half))
    assert isinstance(gone, DeletePod)
    assert gone.name == "llama-8", "one that waits at the gate stays"


def test_in_a_file_it_is_a_job_where_pods_name_it() -> None:
    job = read_yaml(msgspec.json.encode(group()).decode() + "\n---\n" + msgspec.json.encode(whole_pod()).decode())
    assert (job.kind, job.name, job.fields["gpus"].value) == ("PodGroup", "llama", "32")
    with pytest.raises(UsageError, match="holds no training job"):
        read_yaml(msgspec.json.encode(group()).decode())


def test_pods_of_our_own_gangs_that_name_a_group_are_no_news_of_others() -> None:
    owner = {"apiVersion": names.API_VERSION, "kind": names.JOB_KIND, "name": "j", "uid": "u", "controller": True}
    ours = pod("llama-0", ownerReferences=[owner], labels={})
    assert ours.group is None
    assert pod("llama-0").group == ("scheduling.k8s.io", "PodGroup", "team/llama", "")
