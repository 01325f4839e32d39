"""Writes are safe to repeat: what each answer of the API server means."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.apply.server import merged
from tests.builders import NOW, owned_by

from trimtab import names
from trimtab.api.status import JobStatus
from trimtab.apply import transitions, write
from trimtab.apply.actions import DeletePod
from trimtab.apply.events import NOTE_LIMIT, event, post
from trimtab.apply.transitions import JobEvent
from trimtab.errors import AlreadyExists, Conflict, Forbidden, Invalid, LeadershipLost, NotFound, Overloaded
from trimtab.kube.objects import Identity, Meta
from trimtab.kube.resources import POD_GROUPS, PODS, SERVICES

META = Meta(name="job", namespace="default", uid="uid-job", resource_version="7", generation=1)
JOB = Identity("default/job", "uid-job")
POD = {"metadata": {"name": "job-1-0", "namespace": "default"}}


class Answers:
    """A client whose requests end as told; it notes what was sent."""

    def __init__(self, *, raising: Exception | None = None, there: dict[str, Any] | None = None) -> None:
        self.sent: list[tuple[Any, ...]] = []
        self._raising = raising
        self._there = there

    def _end(self, *request: Any) -> bytes:
        self.sent.append(request)
        if self._raising:
            raise self._raising
        return b"{}"

    async def get(self, path: str) -> bytes:
        self.sent.append(("get", path))
        return json.dumps(self._there).encode()

    async def create(self, path: str, obj: Any, *, strict: bool = False) -> bytes:
        return self._end("create", path)

    async def bind(self, namespace: str, pod: str, uid: str, node: str) -> None:
        self._end("bind", namespace, pod, uid, node)

    async def delete(self, path: str, *, uid: str, grace_seconds: int | None = None) -> bytes:
        return self._end("delete", path, uid, grace_seconds)

    async def strategic_patch(self, path: str, patch: Any) -> bytes:
        return self._end("strategic", path, patch)

    async def merge_patch(self, path: str, patch: Any, *, subresource: str = "") -> bytes:
        return self._end("patch", path, patch, subresource)


def pod(uid: str = "u", node: str = "", owner: str = "job") -> dict[str, Any]:
    meta = {"name": "job-1-0", "namespace": "default", "uid": uid}
    return {"metadata": {**meta, "ownerReferences": [owned_by(owner)]}, "spec": {"nodeName": node}}


# --- taking in ---
def theirs(uid: str = "u", **meta: Any) -> dict[str, Any]:
    known = {"name": "theirs-0", "namespace": "default", "uid": uid, "labels": {names.LABEL_MANAGED: "true"}}
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "theirs", "uid": "j", "controller": True}
    return {"metadata": {**known, "ownerReferences": [owner], **meta}}


async def adopt(client: Any) -> bytes:
    return await write.adopt(client, "default", "theirs-0", "u", lambda pod: {"made of": pod["metadata"]["uid"]})


async def test_a_pod_is_taken_in_as_it_is_now() -> None:
    client = Answers(there=theirs())
    await adopt(client)
    path = "/api/v1/namespaces/default/pods/theirs-0"
    assert client.sent == [("get", path), ("patch", path, {"made of": "u"}, "")]


async def test_what_is_taken_in_already_is_left_alone() -> None:
    ours = {names.LABEL_MANAGED: "true", names.LABEL_JOB: "job", names.LABEL_JOB_UID: "uid-job"}
    client = Answers(there=theirs(labels=ours))
    await adopt(client)
    assert [request for request, *_ in client.sent] == ["get"]


@pytest.mark.parametrize("there", [theirs("another"), theirs(deletionTimestamp="2026-01-02T03:04:05Z")])
async def test_a_pod_that_is_gone_or_goes_is_not_taken_in(there: dict[str, Any]) -> None:
    client = Answers(there=there)
    with pytest.raises(NotFound):
        await adopt(client)
    assert [request for request, *_ in client.sent] == ["get"]


async def test_who_may_not_take_a_pod_in_gives_the_gang_up() -> None:
    with pytest.raises(write.WriteRefused, match="taking pod theirs-0 into the gang: no") as refused:
        await adopt(Answers(there=theirs(), raising=Forbidden("no")))
    assert refused.value.reason == "AdoptRefused"


# --- creating ------------------------------------------------------------------------------------------------------
async def test_what_exists_already_and_is_ours_counts_as_created() -> None:
    client: Any = Answers(raising=AlreadyExists("exists"), there=pod())
    assert json.loads(await write.create(client, PODS, POD, JOB)) == pod()


async def test_what_exists_already_and_belongs_to_somebody_else_stops_the_gang() -> None:
    client: Any = Answers(raising=AlreadyExists("exists"), there=pod(owner="other"))
    with pytest.raises(
        write.WriteRefused, match="a service named job-1-0 exists and belongs to somebody else"
    ) as refused:
        await write.create(client, SERVICES, POD, JOB)
    assert refused.value.reason == "NameTaken"


@pytest.mark.parametrize("error", [Forbidden("exceeded quota"), Invalid("spec.containers[0].image: Required value")])
async def test_what_the_api_server_will_never_take_stops_the_gang(error: Exception) -> None:
    client: Any = Answers(raising=error)
    with pytest.raises(write.WriteRefused, match=r"creating pod job-1-0: (exceeded quota|spec\.containers)") as refused:
        await write.create(client, PODS, POD, JOB)
    assert refused.value.reason == "CreateRefused"


async def test_an_overloaded_server_is_asked_again_later() -> None:
    client: Any = Answers(raising=Overloaded("503"))
    with pytest.raises(Overloaded):
        await write.create(client, PODS, POD, JOB)


# --- binding -------------------------------------------------------------------------------------------------------
async def test_a_pod_that_is_on_its_node_already_counts_as_bound() -> None:
    client: Any = Answers(raising=Conflict("already assigned"), there=pod("u", "n1"))
    await write.bind(client, "default", "job-1-0", "u", "n1")
    assert client.sent == [("bind", "default", "job-1-0", "u", "n1"), ("get", PODS.path("default", "job-1-0"))]


@pytest.mark.parametrize("there", [pod("u", "n2"), pod("u", ""), pod("other", "n1")])
async def test_a_pod_elsewhere_or_another_one_of_its_name_stops_the_gang(there: dict[str, Any]) -> None:
    client: Any = Answers(raising=Conflict("already assigned"), there=there)
    with pytest.raises(write.WriteRefused, match="binding pod job-1-0 to n1: already assigned"):
        await write.bind(client, "default", "job-1-0", "u", "n1")


@pytest.mark.parametrize("error", [NotFound("no pod"), Forbidden("no right"), Invalid("bad")])
async def test_a_binding_that_cannot_be_mended_stops_the_gang(error: Exception) -> None:
    client: Any = Answers(raising=error)
    with pytest.raises(write.WriteRefused) as refused:
        await write.bind(client, "default", "job-1-0", "u", "n1")
    assert refused.value.reason == "BindRefused"


# --- releasing -----------------------------------------------------------------------------------------------------
async def test_a_release_takes_our_gate_from_this_very_pod_and_no_other_gate() -> None:
    client: Any = Answers()
    await write.release(client, "default", "job-1-0", "u")
    gates = [{"$patch": "delete", "name": names.SCHEDULING_GATE}]
    patch = {"metadata": {"uid": "u"}, "spec": {"schedulingGates": gates}}
    assert client.sent == [("strategic", PODS.path("default", "job-1-0"), patch)]


@pytest.mark.parametrize("error", [NotFound("no pod"), Forbidden("no right"), Invalid("uid"), Conflict("uid")])
async def test_a_release_that_cannot_be_mended_stops_the_gang(error: Exception) -> None:
    client: Any = Answers(raising=error)
    with pytest.raises(write.WriteRefused, match="releasing pod job-1-0 to kube-scheduler") as refused:
        await write.release(client, "default", "job-1-0", "u")
    assert refused.value.reason == "ReleaseRefused"


@pytest.mark.parametrize("error", [None, NotFound("gone"), Conflict("another one has its name")])
async def test_a_pod_group_that_is_gone_counts_as_deleted(error: Exception | None) -> None:
    client: Any = Answers(raising=error)
    await write.delete_owned(client, POD_GROUPS, "default", "job-1", "u")
    assert client.sent == [("delete", POD_GROUPS.path("default", "job-1"), "u", None)]


# --- asking --------------------------------------------------------------------------------------------------------
async def test_this_very_pod_is_told_by_when_it_must_have_saved_its_state() -> None:
    client: Any = Answers()
    await write.annotate(client, "default", "job-1-0", "u", "2026-01-02T03:06:05Z")
    patch = {"metadata": {"uid": "u", "annotations": {names.ANNOTATION_CHECKPOINT: "2026-01-02T03:06:05Z"}}}
    assert client.sent == [("strategic", PODS.path("default", "job-1-0"), patch)]


@pytest.mark.parametrize("error", [NotFound("gone"), Conflict("another one has its name"), Invalid("uid")])
async def test_a_pod_that_is_gone_cannot_be_told(error: Exception) -> None:
    client: Any = Answers(raising=error)
    with pytest.raises(NotFound):
        await write.annotate(client, "default", "job-1-0", "u", "")


# --- deleting ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("error", [None, NotFound("gone"), Conflict("another one has its name")])
async def test_a_pod_that_is_gone_counts_as_deleted(error: Exception | None) -> None:
    client: Any = Answers(raising=error)
    await write.delete_pod(client, "default", DeletePod("job-1-0", "u", grace=45))
    assert client.sent == [("delete", PODS.path("default", "job-1-0"), "u", 45)]


async def test_force_means_without_waiting_for_the_kubelet() -> None:
    client: Any = Answers()
    await write.delete_pod(client, "default", DeletePod("job-1-0", "u", force=True, grace=45))
    assert client.sent == [("delete", PODS.path("default", "job-1-0"), "u", 0)]


# --- the status ----------------------------------------------------------------------------------------------------
async def test_a_status_carries_the_version_it_was_derived_from_and_the_leaders_epoch() -> None:
    client: Any = Answers()
    after = transitions.suspended(JobStatus(), META, NOW)
    await write.write_status(client, META, JobStatus(), after, 5)
    [(_, path, patch, subresource)] = client.sent
    assert path.endswith("/namespaces/default/llmtrainingjobs/job")
    assert subresource == "status"
    assert patch["metadata"] == {"resourceVersion": "7"}
    assert JobStatus.model_validate(merged({}, patch["status"])) == after.model_copy(update={"leader_epoch": 5})


async def test_a_controller_that_a_later_leader_has_overtaken_does_not_even_try() -> None:
    client: Any = Answers()
    with pytest.raises(LeadershipLost, match="leader epoch 6, ours is 5"):
        await write.write_status(client, META, JobStatus(leader_epoch=6), JobStatus(), 5)
    assert client.sent == []


JSON = st.recursive(
    st.booleans() | st.integers(0, 2) | st.sampled_from(["", "x"]) | st.just([1]),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from("abcd"), JSON, max_size=4)


@given(OBJECTS, OBJECTS)
def test_the_patch_between_two_objects_turns_one_into_the_other(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert merged(before, write.merge_patch(before, after)) == after


@given(OBJECTS)
def test_the_patch_between_equals_is_empty(value: dict[str, Any]) -> None:
    assert write.merge_patch(value, value) == {}


# --- events --------------------------------------------------------------------------------------------------------
REGARDING = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "node-n1"}
NEWS = JobEvent("Warning", "NodeLost", "node n1: deleted", 3)


def told(
    regarding: dict[str, str] = REGARDING, happening: JobEvent = NEWS, now: float = NOW, instance: str = "me"
) -> dict[str, Any]:
    return event(regarding, happening, action="Deciding", instance=instance, now=now)


def test_an_event_says_what_happened_to_what() -> None:
    said = told()
    assert (said["type"], said["reason"], said["note"]) == ("Warning", "NodeLost", "node n1: deleted")
    assert said["regarding"] == REGARDING
    assert said["eventTime"] == "2026-01-02T03:04:05.000000Z"
    assert said["metadata"]["namespace"] == "default"
    assert told(REGARDING | {"namespace": "team"})["metadata"]["namespace"] == "team"


def test_the_same_news_has_the_same_name_whoever_tells_it_and_when() -> None:
    assert told()["metadata"] == told(now=NOW + 60, instance="another")["metadata"]


@pytest.mark.parametrize(
    "other",
    [
        JobEvent("Warning", "NodeLost", "node n1: deleted", 4),
        JobEvent("Warning", "NodeGone", "node n1: deleted", 3),
        JobEvent("Warning", "NodeLost", "node n2: deleted", 3),
    ],
)
def test_other_news_has_another_name(other: JobEvent) -> None:
    assert told()["metadata"]["name"] != told(happening=other)["metadata"]["name"]


LONG = ["n1", "n" * 253, f"{'n' * 229}-{'n' * 20}", f"{'n' * 228}.-n", f"{'n' * 229}.example"]


@pytest.mark.parametrize("name", LONG)
def test_names_of_events_stay_dns_names_however_long_that_of_the_object_is(name: str) -> None:
    made = told(REGARDING | {"name": name})["metadata"]["name"]
    assert len(made) <= 253
    cut, _, hashed = made.rpartition(".")
    assert name.startswith(cut)
    assert cut[-1] not in "-."
    assert len(hashed) == 16


@pytest.mark.parametrize("note", ["x" * 5000, "×" * 5000, "x" + "×" * 600])
def test_long_notes_are_cut_to_the_bytes_that_the_api_server_takes(note: str) -> None:
    cut = told(happening=JobEvent("Normal", "R", note, 1))["note"]
    assert len(cut.encode()) <= NOTE_LIMIT
    assert cut.endswith("...")
    assert note.startswith(cut.removesuffix("..."))


@pytest.mark.parametrize("error", [None, AlreadyExists("told before")])
async def test_news_that_was_told_before_is_no_error(error: Exception | None) -> None:
    client: Any = Answers(raising=error)
    await post(client, told())
    assert client.sent == [("create", "/apis/events.k8s.io/v1/namespaces/default/events")]


def test_the_helper_of_these_tests_is_rfc_7386() -> None:
    """The examples of its appendix A."""
    cases: list[tuple[Any, Any, Any]] = [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ]
    apply: Callable[[Any, Any], Any] = merged
    assert [apply(target, patch) for target, patch, _ in cases] == [result for _, _, result in cases]
