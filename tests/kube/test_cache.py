"""The rules by which lists, events and own writes are merged into one copy."""

from __future__ import annotations

import msgspec

from trimtab.kube.cache import Cache
from trimtab.kube.objects import AnyObject, JobObject, Meta, NodeObject, PodObject


def obj(name: str, version: int, uid: str = "u1") -> AnyObject:
    return AnyObject(Meta(name=name, uid=uid, resource_version=str(version)))


def cache_of(*objects: AnyObject, version: int) -> Cache[AnyObject]:
    cache: Cache[AnyObject] = Cache(lambda old, new: None)
    cache.replace({o.metadata.key: o for o in objects}, {}, version)
    return cache


def test_what_a_list_lacks_is_deleted() -> None:
    cache = cache_of(obj("a", 1), obj("b", 2), version=5)
    cache.replace({"a": obj("a", 1)}, {}, 6)
    assert list(cache.items) == ["a"]


def test_an_own_write_that_is_younger_than_a_list_survives_it() -> None:
    cache = cache_of(version=5)
    cache.written(obj("mine", 8))
    cache.replace({}, {}, 7)
    assert list(cache.items) == ["mine"]


def test_an_own_write_that_a_younger_list_lacks_is_deleted() -> None:
    cache = cache_of(version=5)
    cache.written(obj("mine", 8))
    cache.replace({}, {}, 9)
    assert not cache.items


def test_an_event_older_than_what_we_hold_changes_nothing() -> None:
    cache = cache_of(version=5)
    cache.written(obj("mine", 8, uid="second"))
    cache.remove(obj("mine", 7, uid="first").metadata)
    cache.put(obj("mine", 6, uid="first"))
    assert cache.items["mine"].metadata.uid == "second"


def test_an_unreadable_object_of_the_same_identity_keeps_what_we_hold() -> None:
    cache = cache_of(obj("a", 1), version=5)
    cache.displace(obj("a", 9).metadata)
    assert list(cache.items) == ["a"]


def test_a_pod_is_decoded_to_what_scheduling_needs() -> None:
    raw = b"""{"metadata": {"name": "p", "namespace": "t", "uid": "u", "resourceVersion": "7", "managedFields": [{}],
        "ownerReferences": [{"apiVersion": "v1", "kind": "J", "name": "j", "uid": "owner", "controller": false}]},
      "spec": {"nodeName": "n", "schedulerName": "trimtab", "priority": 5, "overhead": {"cpu": "250m"},
        "containers": [{"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "8"}}}],
        "initContainers": [{"name": "side", "restartPolicy": "Always"}],
        "schedulingGates": [{"name": "wait"}], "tolerations": [{"operator": "Exists"}]},
      "status": {"phase": "Failed", "startTime": "2026-01-01T00:00:00Z", "containerStatuses": [{"name": "c",
        "restartCount": 2, "ready": false, "image": "i", "state": {"terminated": {"exitCode": 137}}}]}}"""
    pod = msgspec.json.decode(raw, type=PodObject)
    assert pod.metadata.key == "t/p"
    assert pod.metadata.version == 7
    assert pod.metadata.owner_references[0].uid == "owner"
    assert pod.metadata.job is None
    assert pod.spec.containers[0].resources.limits == {"nvidia.com/gpu": "8"}
    assert pod.spec.init_containers[0].restart_policy == "Always"
    assert pod.spec.scheduling_gates[0].name == "wait"
    terminated = pod.status.container_statuses[0].state.terminated
    assert terminated is not None
    assert terminated.exit_code == 137


def test_two_readings_are_equal_unless_something_differs_that_we_look_at() -> None:
    def node(version: str, unschedulable: bool) -> NodeObject:
        raw = {"metadata": {"name": "n", "resourceVersion": version}, "spec": {"unschedulable": unschedulable}}
        return msgspec.convert(raw, NodeObject)

    assert node("1", False) == node("2", False)
    assert node("1", False) != node("1", True)


def test_a_job_keeps_spec_and_status_as_json_of_its_own() -> None:
    page = b'[{"metadata": {"name": "j"}, "spec": {"a": 1}}, {"metadata": {"name": "k"}, "status": {"b": 2}}]'
    first, second = msgspec.json.decode(page, type=list[JobObject])
    assert (bytes(first.spec), bytes(first.status)) == (b'{"a": 1}', b"{}")
    assert bytes(second.status) == b'{"b": 2}'
