"""Whose an object is: by group, kind, namespace, name and UID of its owner, never by one of them alone."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from tests.builders import job_object, owned_by

from trimtab import names
from trimtab.controller.cluster import Cluster
from trimtab.controller.kueue.caches import KueueCaches
from trimtab.controller.pods_by_job import PodsByJob
from trimtab.kube.metrics_hooks import Silent
from trimtab.kube.objects import PodObject
from trimtab.settings import ReflectorSettings

JOB = job_object("victim", namespace="theirs").metadata.identity
FORGED: dict[str, dict[str, Any]] = {
    "another namespace": {"namespace": "mine"},
    "another group": {"apiVersion": "evil.example/v1"},
    "no group": {"apiVersion": "v1"},
    "a group that begins like ours": {"apiVersion": "trimtab.development/v1"},
    "another kind": {"kind": "Queue"},
    "another name": {"name": "other"},
    "another UID": {"uid": "uid-other"},
    "no controller": {"controller": False},
}


def obj(version: int = 1, namespace: str = "theirs", called: str = "victim", **owner: Any) -> bytes:
    meta = {"name": called, "namespace": namespace, "uid": f"uid-of-{namespace}", "resourceVersion": str(version)}
    return json.dumps({"metadata": {**meta, "ownerReferences": [owned_by("victim") | owner]}}).encode()


@pytest.fixture
def cluster() -> Cluster:
    unused: Any = None
    cluster = Cluster(unused, ReflectorSettings(), lambda: None, Silent(), pod_groups=True)
    cluster.pod_groups = cluster._reflect_groups(cluster.services.resource)
    cluster.pod_groups.synced.set()
    return cluster


def owned(cluster: Cluster) -> tuple[int, bool, int]:
    """Pods, the Service and PodGroups of the job."""
    return len(cluster.pods_of(JOB.digest)), cluster.has_service(JOB), len(cluster.pod_groups_of(JOB) or ())


def write(cluster: Cluster, *written: bytes) -> None:
    for one in written:
        assert cluster.pod_groups
        for reflector in (cluster.pods, cluster.services, cluster.pod_groups):
            reflector.apply_written(one)


@pytest.mark.parametrize("owner", FORGED.values(), ids=FORGED)
async def test_what_names_a_job_in_part_is_none_of_its(cluster: Cluster, owner: dict[str, Any]) -> None:
    write(cluster, obj(**owner))
    assert owned(cluster) == (0, False, 0)
    write(cluster, obj(2))
    assert owned(cluster) == (1, True, 1), "a later version of the API is the same group"


@pytest.mark.parametrize("version", ["v1alpha1", "v1"])
async def test_what_names_all_of_it_is(cluster: Cluster, version: str) -> None:
    write(cluster, obj(apiVersion=f"{names.GROUP}/{version}"))
    assert owned(cluster) == (1, True, 1)
    write(cluster, obj(2, apiVersion="evil.example/v1"))
    assert owned(cluster) == (0, False, 0)


async def test_pods_without_their_job_name_it_until_it_is_seen_or_they_are_gone(cluster: Cluster) -> None:
    assert cluster.without_job() == []
    write(cluster, obj())
    assert cluster.without_job() == [JOB]
    cluster.jobs.apply_written(msgspec.json.encode(job_object("victim", namespace="theirs", uid="uid-of-the-next")))
    assert cluster.without_job() == [JOB], "the next one of its name is another job"
    cluster.jobs.apply_written(msgspec.json.encode(job_object("victim", namespace="theirs", resource_version="2")))
    assert cluster.without_job() == []
    cluster.jobs._cache.remove(cluster.jobs.items[JOB.key].metadata)
    assert cluster.without_job() == [JOB]
    write(cluster, obj(2, controller=False))
    assert cluster.without_job() == []


async def test_a_service_of_another_namespace_hides_none_and_takes_none_with_it(cluster: Cluster) -> None:
    cluster.services.apply_written(obj())
    cluster.services.apply_written(obj(namespace="mine"))
    cluster.services.apply_written(obj(2, namespace="mine", uid="uid-another"))
    assert cluster.has_service(JOB)


async def test_nor_does_one_by_another_name_where_hostnames_are_looked_up(cluster: Cluster) -> None:
    cluster.services.apply_written(obj(called="decoy"))
    assert not cluster.has_service(JOB)
    cluster.services.apply_written(obj())
    cluster.services.apply_written(obj(2, called="decoy", controller=False))
    assert cluster.has_service(JOB)


@pytest.mark.parametrize("owner", FORGED.values(), ids=FORGED)
async def test_nor_is_a_workload_the_jobs_that_names_it_in_part(owner: dict[str, Any]) -> None:
    unused: Any = None
    caches = KueueCaches(unused, ReflectorSettings(), lambda: None, Silent())
    caches.workloads.apply_written(obj(called="mine"))
    caches.workloads.apply_written(obj(called="forged", **owner))
    found = caches.workload_of(JOB)
    assert found
    assert found.metadata.name == "mine"


def test_what_stands_for_a_job_tells_nobody_its_uid_and_differs_with_name_namespace_and_uid() -> None:
    others = {
        job_object("victim", namespace="mine").metadata.identity.digest,
        job_object("other", namespace="theirs", uid="uid-victim").metadata.identity.digest,
        job_object("victim", namespace="theirs", uid="uid-other").metadata.identity.digest,
    }
    assert len(others - {JOB.digest}) == 3
    assert "victim" not in JOB.digest


ADOPTED = {
    "labels": {names.LABEL_MANAGED: "true", names.LABEL_JOB: "stand-in", names.LABEL_JOB_UID: "uid-stand-in"},
    "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "x", "uid": "uid-x", "controller": True}],
}


@pytest.mark.parametrize(
    ("meta", "job"),
    [
        ({"ownerReferences": [owned_by("victim")]}, "theirs/victim"),
        (ADOPTED, "theirs/stand-in"),
        (ADOPTED | {"labels": {names.LABEL_MANAGED: "true"}}, ""),
        ({"ownerReferences": [owned_by("victim") | FORGED["another group"]]}, ""),
    ],
    ids=["ours", "adopted", "not adopted yet", "forged"],
)
def test_a_pod_is_of_its_job_as_long_as_it_is_there_however_it_is_called(meta: dict[str, Any], job: str) -> None:
    named = {"name": "pod", "namespace": "theirs", "uid": "uid-pod"}
    pod = msgspec.convert({"metadata": named | meta}, PodObject)
    pods = PodsByJob()
    pods.changed(None, pod)
    assert pods.job_of("theirs/pod") == job
    pods.changed(pod, pod)
    assert pods.job_of("theirs/pod") == job
    pods.changed(pod, None)
    assert pods.job_of("theirs/pod") == ""
