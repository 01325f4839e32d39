"""Two tenants on one cluster: real service accounts on the real API server, with all admission policies in force.

What may not be written is tried, one line of a table each; dry runs pass the same authorisation and admission, and
leave nothing behind. Then a real controller, which every one of its own writes has to get past the same policies.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.faults.watcher import Watcher
from tests.faults.witness_state import condition, status_of
from tests.live import thief
from tests.live.harness import PATIENCE, ControllerProcess, Live
from tests.live.tenants import (
    AUTHOR,
    CHOOSER,
    FOR_ALL,
    JOBS_ONLY,
    MANIFESTS,
    OPEN,
    QUEUE_ADMIN,
    STRICT,
    URGENT,
    VIEWER,
    A,
    B,
    Object,
    Person,
    Tenants,
    annotated,
    claim_template,
    gpunode,
    held,
    job,
    owned,
    pod,
    queue,
    reaches,
    service,
    states,
    tenancy,
    trainer,
    with_pod,
)

from trimtab import names
from trimtab.doctor.checks import admission
from trimtab.doctor.collect import RULES
from trimtab.errors import LocalClusterError
from trimtab.kube.client import MERGE_PATCH
from trimtab.kube.resources import (
    CONFIG_MAPS,
    GPUNODES,
    JOBS,
    PODS,
    PRIORITY_CLASSES,
    QUEUES,
    RESOURCE_CLAIM_TEMPLATES,
    SERVICES,
    Resource,
)

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

ADMISSION = list(yaml.safe_load_all((MANIFESTS / "admission.yaml").read_text()))
LIMITS: dict[str, str] = {
    each["name"]: each["expression"]
    for policy in ADMISSION
    for each in policy["spec"].get("variables", [])
    if policy["metadata"]["name"] == admission.LIMITED and each["name"] in admission.LIMITS
}
NONE = {name: "999999999" for name in LIMITS if name.startswith("max")} | {"fakeAnnotations": "'Allow'"}
LARGER = job(gpus=2048, resources={"gpus": {"max": 2048}, "maxNodes": 256})
RESTRICTED = {
    "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
    "containers": trainer(
        securityContext={"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    ),
}
MODEST = {"policy": "Fixed", "minRuntimeSeconds": 0, "checkpoint": {"graceSeconds": 60}}
OURS = {names.LABEL_JOB: "there"}
STAYS = "would keep what has been deleted from going"
OF_A_JOB = "what belongs to an LLMTrainingJob is for the controller to say"
GATED: Object = {"schedulingGates": [{"name": names.SCHEDULING_GATE}]}
SECRET = {"valueFrom": {"secretKeyRef": {"name": "token", "key": "t"}}}
PVC = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
LARGE = [{"name": f"V{number}", "value": "x" * 16000} for number in range(5)]

FORBIDDEN: dict[str, tuple[str, Resource, Object, str]] = {
    # what says that a pod is one of a gang
    "label": (AUTHOR, PODS, pod(meta={"labels": OURS}), "trimtab.dev/job: labels and annotations that begin with"),
    "place": (AUTHOR, PODS, pod(meta=annotated(**{names.ANNOTATION_NODE: "live-0"})), "create an LLMTrainingJob"),
    "owner": (AUTHOR, PODS, pod(meta=owned()), OF_A_JOB),
    "owner-of-another-group": (AUTHOR, PODS, pod(meta=owned(apiVersion="evil.example/v1")), OF_A_JOB),
    "owner-of-no-group": (AUTHOR, PODS, pod(meta=owned(apiVersion="v1", controller=False)), OF_A_JOB),
    "owner-of-another-kind": (AUTHOR, PODS, pod(meta=owned(kind=names.QUEUE_KIND)), OF_A_JOB),
    "owner-of-a-service": (AUTHOR, SERVICES, service(**owned(apiVersion="evil.example/v1")), OF_A_JOB),
    "service": (AUTHOR, SERVICES, service(labels=OURS), "trimtab.dev/job: labels and annotations"),
    "scheduler": (AUTHOR, PODS, pod(schedulerName=names.SCHEDULER_NAME), "binds the pods of LLMTrainingJobs only"),
    "gate": (AUTHOR, PODS, pod(**GATED), "is for the controller to set and to take away"),
    **{
        gpu: (AUTHOR, PODS, pod(gpus=1, gpu=gpu, nodeName="live-0"), "spec.nodeName: takes GPUs past every scheduler")
        for gpu in (*names.GPU_RESOURCES, "nvidia.com/mig-1g.10gb")
    },
    # what is said about a job, and through it
    "policy": (AUTHOR, JOBS, job(meta=annotated(**{names.ANNOTATION_POLICY: "sia"})), "ask for the ClusterRole"),
    "checkpoint": (AUTHOR, JOBS, job(meta=annotated(**{names.ANNOTATION_CHECKPOINT: "x"})), "leave them out"),
    "job-label": (AUTHOR, JOBS, job(meta={"labels": OURS}), "trimtab.dev/job: names that begin with trimtab.dev/"),
    "fake": (AUTHOR, JOBS, job(meta=annotated(**{names.ANNOTATION_FAKE_FAIL: "0@0.5"})), "only where trainings are"),
    "finalizer": (AUTHOR, JOBS, job(meta={"finalizers": ["evil.example/keep"]}), STAYS),
    "finalizer-like-another": (AUTHOR, JOBS, job(meta={"finalizers": ["kueue.x-k8s.io.evil.example/x"]}), STAYS),
    "orphans": (AUTHOR, JOBS, job(meta={"finalizers": ["orphan"]}), "without a job: leave it out"),
    "shared-gpus": (
        AUTHOR,
        JOBS,
        with_pod(containers=trainer(resources={"limits": {"nvidia.com/gpu.shared": "8"}})),
        "GPUs may not be requested in the template",
    ),
    "template-label": (
        AUTHOR,
        JOBS,
        job(template={"metadata": {"labels": OURS}, "spec": {"containers": trainer()}}),
        "set by the plan",
    ),
    "template-node": (AUTHOR, JOBS, with_pod(nodeName="live-0"), "the plan chooses the nodes"),
    "template-scheduler": (AUTHOR, JOBS, with_pod(schedulerName="default-scheduler"), "bound by Trimtab"),
    "their-queue": (AUTHOR, JOBS, job(queue=B), f"is not for jobs of namespace {A}: leave it out"),
    "priority": (AUTHOR, JOBS, job(priorityClassName=URGENT), f"priorityclasses.scheduling.k8s.io/{URGENT}"),
    "gpus": (AUTHOR, JOBS, job(gpus=2048), "2048 GPUs are more than one job may have here (1024)"),
    "pods": (AUTHOR, JOBS, job(gpus=512), "could have 512 pods, and one may have 256 here: set maxNodes"),
    "size": (AUTHOR, JOBS, with_pod(containers=trainer(env=LARGE)), "bytes as it is sent, at most 73728 are taken"),
    "runtime": (AUTHOR, JOBS, job(elasticity={"minRuntimeSeconds": 86400}), "minRuntimeSeconds: at most 3600 here"),
    "termination": (AUTHOR, JOBS, with_pod(terminationGracePeriodSeconds=3600), "at most 600 here"),
    # who may not make pods reaches by a job no more than jobs
    "account": (JOBS_ONLY, JOBS, with_pod(serviceAccountName=AUTHOR), "serviceAccountName: who may"),
    "old-account": (JOBS_ONLY, JOBS, with_pod(serviceAccount=AUTHOR), "serviceAccount: who may"),
    "secret": (JOBS_ONLY, JOBS, with_pod(volumes=[{"name": "s", "secret": {"secretName": "x"}}]), "volume s: who may"),
    "host": (JOBS_ONLY, JOBS, with_pod(volumes=[{"name": "h", "hostPath": {"path": "/"}}]), "volume h: who may not"),
    "host-network": (JOBS_ONLY, JOBS, with_pod(hostNetwork=True), "hostNetwork: who may not create pods"),
    "privileged": (
        JOBS_ONLY,
        JOBS,
        with_pod(containers=trainer(securityContext={"privileged": True})),
        "privileges (securityContext) of container trainer: who may not",
    ),
    "env": (JOBS_ONLY, JOBS, with_pod(containers=trainer(env=[{"name": "T", **SECRET}])), "environment of container"),
    "env-from": (
        JOBS_ONLY,
        JOBS,
        with_pod(initContainers=[{"name": "i", "image": "i:1", "envFrom": [{"secretRef": {"name": "x"}}]}]),
        "secrets in the environment of container i",
    ),
    "only-jobs": (JOBS_ONLY, PODS, pod(), 'cannot create resource "pods"'),
    "only-looks": (VIEWER, JOBS, job(), 'cannot create resource "llmtrainingjobs"'),
    # what belongs to the cluster
    "queue": (AUTHOR, QUEUES, queue("mine"), 'cannot create resource "queues"'),
    "gpunode": (AUTHOR, GPUNODES, gpunode(), 'cannot create resource "gpunodes"'),
    "queue-admin-job": (QUEUE_ADMIN, JOBS, job(), 'cannot create resource "llmtrainingjobs"'),
}  # fmt: skip


def asking(resource: str, **more: Any) -> Object:
    return {"name": "asks", "image": "i:1", "resources": {"limits": {resource: "1"}}, **more}


ASKS_FOR_GPUS: dict[str, Object] = {
    "init container": {"initContainers": [asking("nvidia.com/gpu")]},
    "sidecar": {"initContainers": [asking("nvidia.com/gpu", restartPolicy="Always")]},
    "requests": {
        "containers": trainer(resources={"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}})
    },
    **{
        name: {"containers": [asking(name)]}
        for name in ("habana.ai/gaudi", "nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared")
    },
    "claim": {"resourceClaims": [{"name": "c", "resourceClaimTemplateName": "gpus"}]},
    **{
        name: {"containers": [{"name": "sees", "image": "i:1", "env": [{"name": name, "value": "all"}]}]}
        for name in ("NVIDIA_VISIBLE_DEVICES", "HABANA_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES")
    },
    "from elsewhere": {
        "containers": [{"name": "sees", "image": "i:1", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", **SECRET}]}]
    },
}
"""What a pod may say besides limits of its containers, each once."""

ALLOWED: dict[str, tuple[str, Resource, Object]] = {
    "job": (AUTHOR, JOBS, job()),
    "queue-named": (AUTHOR, JOBS, job(queue=A)),
    "queue-of-all": (AUTHOR, JOBS, job(queue=FOR_ALL)),
    "queue-that-is-not-there": (AUTHOR, JOBS, job(queue="tenancy-nowhere")),
    "open-priority": (AUTHOR, JOBS, job(priorityClassName=OPEN)),
    "granted-priority": (CHOOSER, JOBS, job(priorityClassName=URGENT)),
    "chosen-policy": (CHOOSER, JOBS, job(meta=annotated(**{names.ANNOTATION_POLICY: "sia"}))),
    "names-of-others": (AUTHOR, JOBS, job(meta={"labels": {"team": "a"}, "annotations": {"example.test/x": "y"}})),
    "many-gpus-few-nodes": (AUTHOR, JOBS, job(gpus=512, resources={"gpus": {"max": 512}, "maxNodes": 64})),
    "secret-of-who-makes-pods": (AUTHOR, JOBS, with_pod(volumes=[{"name": "s", "secret": {"secretName": "x"}}])),
    "account-of-who-makes-pods": (AUTHOR, JOBS, with_pod(serviceAccountName=AUTHOR)),
    "job-of-jobs-only": (JOBS_ONLY, JOBS, with_pod(serviceAccountName="default", volumes=[PVC])),
    "kueues-finalizer": (AUTHOR, JOBS, job(meta={"finalizers": ["kueue.x-k8s.io/managed"]})),
    "finalizer-of-a-plain-pod": (AUTHOR, PODS, pod(meta={"finalizers": ["example.test/keep"]})),
    "plain-pod": (AUTHOR, PODS, pod(meta={"labels": {"app": "x"}})),
    "pod-with-gpus": (AUTHOR, PODS, pod(gpus=1)),
    "pod-on-a-node-without-gpus": (AUTHOR, PODS, pod(nodeName="live-0")),
    "other-gate": (AUTHOR, PODS, pod(schedulingGates=[{"name": "example.test/quota"}])),
    "plain-service": (AUTHOR, SERVICES, service(labels={"app": "x"})),
    "queue": (QUEUE_ADMIN, QUEUES, queue("tenancy-new", namespaces=[A])),
}  # fmt: skip


@pytest.fixture(scope="module")
def tenants(live_cluster: Live, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tenants]:
    with tenancy(live_cluster, tmp_path_factory.mktemp("tenancy")) as tenants:
        yield tenants


@pytest.fixture(autouse=True)
async def in_force(tenants: Tenants) -> None:
    """Policies, their parameters and aggregated roles take a moment to be in force."""
    if tenants.ready:
        return
    limit = time.monotonic() + PATIENCE * 30
    for account, kind, obj, message in (
        FORBIDDEN[name] for name in ("label", "scheduler", "policy", "their-queue", "gpus")
    ):
        while message not in (said := await tenants.person(account).creates(kind, obj)):
            assert time.monotonic() < limit, f"{message}: {said or 'done'}"
            await asyncio.sleep(0.1)
    for name in ("open-priority", "granted-priority", "chosen-policy"):  # what an administrator has opened, too
        account, _, obj = ALLOWED[name]
        await tenants.told(tenants.person(account), obj, "")
    tenants.ready = True


# --- tried, one by one -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("what", FORBIDDEN)
async def test_is_refused_with_words_that_help(tenants: Tenants, what: str) -> None:
    account, kind, obj, message = FORBIDDEN[what]
    assert message in await tenants.person(account).creates(kind, obj)


@pytest.mark.parametrize("what", ALLOWED)
async def test_is_done(tenants: Tenants, what: str) -> None:
    account, kind, obj = ALLOWED[what]
    assert await tenants.person(account).creates(kind, obj) == ""


async def test_neither_tenant_sees_or_changes_the_jobs_of_the_other(tenants: Tenants) -> None:
    tenants.live.apply(*(job("there", namespace, suspend=True) for namespace in (A, B)))
    for mine, theirs in ((A, B), (B, A)):
        me, other = tenants.person(AUTHOR, mine), JOBS.path(theirs, "there")
        own = JOBS.path(mine, "there")
        patch = {"spec": {"maxRestarts": 7}}
        refused = {
            "get": await me.tries("GET", other),
            "list": await me.tries("GET", JOBS.path(theirs)),
            "list of all": await me.tries("GET", JOBS.path()),
            "watch": await me.tries("GET", f"{JOBS.path(theirs)}?watch=true&timeoutSeconds=1"),
            "create": await me.creates(JOBS, job("mine", theirs)),
            "patch": await me.patches(other, patch),
            "delete": await me.tries("DELETE", other),
            "delete of all": await me.tries("DELETE", JOBS.path(theirs)),
            "pods": await me.tries("GET", PODS.path(theirs)),
            "pods of all": await me.tries("GET", PODS.path()),
        }
        assert {what: said for what, said in refused.items() if not said.startswith("403: ")} == {}
        done = [
            await me.tries("GET", own),
            await me.tries("GET", JOBS.path(mine)),
            await me.creates(JOBS, job("mine", mine)),
            await me.patches(own, patch),
            await me.tries("DELETE", own),
            await me.tries("DELETE", JOBS.path(mine)),
            await me.tries("GET", PODS.path(mine)),
        ]
        assert done == [""] * len(done)
        viewer = tenants.person(VIEWER, mine)
        assert await viewer.tries("GET", own) == ""
        assert (await viewer.tries("GET", other)).startswith("403: ")
        assert (await viewer.patches(own, patch)).startswith("403: ")


async def test_what_the_controller_says_nobody_else_says(tenants: Tenants) -> None:
    tenants.live.apply(job("there", suspend=True))
    me, own, node = tenants.person(AUTHOR), JOBS.path(A, "there"), "live-0"
    status = {"status": {"restarts": 9}}
    assert 'cannot patch resource "llmtrainingjobs/status"' in await me.patches(f"{own}/status", status)
    assert await me.tries("PATCH", own, status, MERGE_PATCH, dry=False) == ""
    assert "restarts" not in tenants.get("ltj", "there", A).get("status", {}), "written past the subresource"
    settings = CONFIG_MAPS.path(names.SYSTEM_NAMESPACE, names.POLICY_CONFIG_MAP)
    refused = {
        "gpunodes/status": await me.patches(GPUNODES.path(name=node, subresource="status"), {"status": {}}),
        "queues": await me.patches(QUEUES.path(name=A), {"spec": {"weight": 1000}}),
        "queues/status": await me.patches(QUEUES.path(name=A, subresource="status"), {"status": {"gpus": 0}}),
        "pods/binding": await me.tries("POST", PODS.path(A, "any", "binding"), {}),
        "priorityclasses": await me.patches(PRIORITY_CLASSES.path(name=OPEN), {"description": "x"}),
        "configmaps": await me.patches(settings, {"data": {"policy": "fcfs"}}),
        "validatingadmissionpolicies": await me.patches(RULES.path(name=admission.LIMITED), {"spec": {}}),
        "nodes": await me.patches(f"/api/v1/nodes/{node}", {"metadata": annotated(**{names.ANNOTATION_REPAIRED: "x"})}),
        "namespaces": await me.patches(f"/api/v1/namespaces/{A}", {"metadata": {"labels": {"trimtab.dev/gpus": ""}}}),
    }
    assert {what: said for what, said in refused.items() if f'resource "{what}"' not in said} == {}


async def test_a_gang_cannot_be_joined_left_or_let_go_by_hand(tenants: Tenants) -> None:
    tenants.live.apply(job("there", suspend=True))
    me = tenants.person(AUTHOR)
    member = pod("member", meta={"labels": OURS, "annotations": {names.ANNOTATION_NODE: "live-0"}}, **GATED)
    member["metadata"] |= owned(tenants.get("ltj", "there", A)["metadata"]["uid"])
    member["spec"]["schedulerName"] = names.SCHEDULER_NAME
    tenants.live.apply(member, pod("outsider", schedulingGates=[{"name": "example.test/quota"}]))
    try:
        inside, outside = PODS.path(A, "member"), PODS.path(A, "outsider")
        tried = {
            "joins": await me.patches(outside, {"metadata": {"labels": OURS}}),
            "is adopted": await me.patches(outside, {"metadata": owned()}),
            "leaves": await me.patches(inside, {"metadata": {"labels": {names.LABEL_JOB: None}}}),
            "goes elsewhere": await me.patches(inside, {"metadata": annotated(**{names.ANNOTATION_NODE: "live-1"})}),
            "is asked to stop": await me.patches(inside, {"metadata": annotated(**{names.ANNOTATION_CHECKPOINT: "x"})}),
            "is disowned": await me.patches(inside, {"metadata": {"ownerReferences": None}}),
            "is let go": await me.patches(inside, {"spec": {"schedulingGates": None}}),
        }
        allowed = "is for the controller to", "are for the controller to"
        assert {what: said for what, said in tried.items() if not any(each in said for each in allowed)} == {}
        assert await me.patches(inside, {"metadata": {"labels": {"mine": "yes"}}}) == ""
        assert await me.patches(outside, {"spec": {"schedulingGates": None}}) == ""
        assert await me.tries("DELETE", inside) == ""
    finally:
        tenants.kubectl("delete", "pod", "member", "outsider", "-n", A, "--force", "--grace-period=0")


async def test_a_job_takes_its_pods_with_it(tenants: Tenants) -> None:
    tenants.live.apply(job("there", suspend=True))
    me, own, all_of_mine = tenants.person(AUTHOR), JOBS.path(A, "there"), JOBS.path(A)
    for path in (own, all_of_mine):
        for options in ({"propagationPolicy": "Orphan"}, {"orphanDependents": True}):
            assert "without a job: delete the job with its pods" in await me.tries("DELETE", path, options)
        assert await me.tries("DELETE", path, {"propagationPolicy": "Foreground"}) == ""


async def test_what_belongs_to_a_job_stays_its_own_in_every_part(tenants: Tenants) -> None:
    """It would count as nobody's, and hold its GPUs all the same."""
    tenants.live.apply(job("its-own", managedBy="example.test/nobody"))
    uid = tenants.get("ltj", "its-own", A)["metadata"]["uid"]
    tenants.live.apply(pod("of-a-gang", meta=owned(uid, "its-own") | {"labels": OURS}))
    me, own = tenants.person(AUTHOR), PODS.path(A, "of-a-gang")
    parts = ({"name": "x"}, {"kind": "X"}, {"apiVersion": "x/v1"}, {"uid": "x"}, {"controller": False})
    for references in (*(owned(**{"uid": uid, "name": "its-own"} | part) for part in parts), {"ownerReferences": []}):
        assert OF_A_JOB in await me.patches(own, {"metadata": references})
    kept = {"finalizers": ["evil.example/keep"]}
    assert STAYS in await me.patches(own, {"metadata": kept})
    assert await me.patches(own, {"metadata": {"labels": {"team": "a"}}}) == ""
    tenants.kubectl("delete", "pod", "of-a-gang", "-n", A, "--force", "--grace-period=0", "--ignore-not-found")
    tenants.kubectl("delete", "ltj", "its-own", "-n", A)


async def test_nobody_else_makes_what_the_pods_of_a_gang_claim_their_gpus_by(tenants: Tenants) -> None:
    """A gang whose name is taken does not start; one whose pods claim what a stranger says has what that says."""
    tenants.live.apply(job("claims", managedBy="example.test/nobody"))
    uid, me = tenants.get("ltj", "claims", A)["metadata"]["uid"], tenants.person(AUTHOR)
    refused = {
        "is what the controller calls such an object": claim_template("claims-12"),
        "trimtab.dev/job: labels and annotations": claim_template("mine", labels={names.LABEL_JOB: "claims"}),
        OF_A_JOB: claim_template("mine", **owned(uid, "claims")),
    }
    for said, template in refused.items():
        await tenants.told(me, template, said)
    for free in ("claims", "claims-x", "claims-1-x", "claims-x-1", "other-1", "claims-channel"):
        assert await me.creates(RESOURCE_CLAIM_TEMPLATES, claim_template(free)) == "", free
    tenants.kubectl("delete", "ltj", "claims", "-n", A)


async def test_limits_that_come_later_do_not_tie_the_hands_of_who_is_over_them(tenants: Tenants) -> None:
    over = job("over", suspend=True, gpus=2048, priorityClassName=URGENT, elasticity={"minRuntimeSeconds": 90000})
    over["metadata"] |= annotated(**{names.ANNOTATION_POLICY: "sia", names.ANNOTATION_FAKE_FAIL: "0@0.5"})
    over["spec"]["template"]["spec"] |= {"terminationGracePeriodSeconds": 4000, "serviceAccountName": AUTHOR}
    me, own = tenants.person(JOBS_ONLY), JOBS.path(A, "over")
    await tenants.limited(me, "", LIMITS | NONE)
    tenants.live.apply(over)
    await tenants.limited(me, "2048 GPUs are more", LIMITS)
    for harmless in ({"suspend": False}, {"maxRestarts": 5}, {"resources": {"gpus": {"max": 1500}}}):
        assert await me.patches(own, {"spec": harmless}) == ""
    assert await me.patches(own, {"metadata": annotated(**{"example.test/x": "y"})}) == ""
    refused = {
        "2049 GPUs are more": {"resources": {"gpus": {"max": 2049}}},
        "minRuntimeSeconds: at most 3600": {"elasticity": {"minRuntimeSeconds": 90001}},
        "GracePeriodSeconds: at most 600": {"template": {"spec": {"terminationGracePeriodSeconds": 4001}}},
    }
    for message, spec in refused.items():
        assert message in await tenants.person(AUTHOR).patches(own, {"spec": spec})
    another = {"template": {"spec": {"terminationGracePeriodSeconds": 1}}}
    assert "serviceAccountName: who" in await me.patches(own, {"spec": another})
    tenants.kubectl("delete", "ltj", "over", "-n", A)
    tenants.set_limits({"openPriorityClasses": f"'{OPEN}'"})


async def test_limits_that_make_no_sense_are_refused(tenants: Tenants) -> None:
    for limits, message in (
        ({"maxGpusPerJob": "many"}, "undeclared reference to 'many'"),
        ({"openPriorityClasses": "low,normal"}, "Syntax error"),
    ):
        with pytest.raises(LocalClusterError, match=re.escape(message)):
            tenants.set_limits(limits)


async def test_rules_that_were_deleted_hold_again_when_they_are_back(tenants: Tenants) -> None:
    """As in an uninstallation: parameters of core types would be lost to the API server (kubernetes#130887)."""
    me, manifest = tenants.person(AUTHOR), str(MANIFESTS / "admission.yaml")
    tenants.kubectl("delete", "-f", manifest)
    await tenants.told(me, LARGER, "")
    await asyncio.sleep(3)  # the API server looks at its policies once a second
    tenants.kubectl("apply", "--server-side", "-f", manifest)
    await tenants.limited(me, "2048 GPUs are more", LIMITS | {"openPriorityClasses": f"'{OPEN}'"})
    assert await me.creates(JOBS, job()) == ""


async def test_in_a_namespace_of_jobs_gpus_come_by_jobs_only(tenants: Tenants) -> None:
    me = tenants.person(AUTHOR, B)
    tenants.kubectl("label", "namespace", B, "trimtab.dev/gpus=jobs")
    refused = f"pods of namespace {B} get GPUs by LLMTrainingJobs only"
    await tenants.told(me, pod(namespace=B, gpus=1), refused)
    for what, asks in ASKS_FOR_GPUS.items():
        assert refused in await me.creates(PODS, pod(namespace=B, **asks)), what
    assert (
        await me.creates(
            PODS, pod(namespace=B, containers=trainer(env=[{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}]))
        )
        == ""
    )
    assert await me.creates(PODS, pod(namespace=B)) == ""
    assert await me.creates(JOBS, job(namespace=B)) == ""


# --- a controller among them -----------------------------------------------------------------------------------------
async def test_nor_by_what_is_added_to_a_pod_later(tenants: Tenants) -> None:
    me = tenants.person(AUTHOR, B)
    tenants.kubectl("label", "--overwrite", "namespace", B, "trimtab.dev/gpus=jobs")
    plain = pod(namespace=B, schedulingGates=[{"name": "example.test/stays"}])
    plain["metadata"]["name"] = "grows"
    tenants.kubectl("apply", "-f", "-", stdin=json.dumps(plain))
    verbs = ("--verb=patch", "--resource=pods/ephemeralcontainers,pods/resize")  # as the ClusterRole admin has them
    tenants.kubectl("create", "role", "adds", "-n", B, *verbs)
    tenants.kubectl("create", "rolebinding", "adds", "-n", B, "--role=adds", f"--serviceaccount={B}:{AUTHOR}")
    path, refused = PODS.path(B, "grows"), "get GPUs by LLMTrainingJobs only"
    try:
        sees = {"name": "sees", "image": "i:1", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
        added = {"spec": {"ephemeralContainers": [sees]}}
        assert refused in await me.patches(f"{path}/ephemeralcontainers", added)
        none = {"spec": {"ephemeralContainers": [{"name": "debug", "image": "i:1"}]}}
        assert refused not in await me.patches(f"{path}/ephemeralcontainers", none)
        assert refused in await me.patches(path, {"metadata": {"annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=all"}}})
        assert await me.patches(path, {"metadata": {"annotations": {"other": "x"}}}) == ""
        [container] = plain["spec"]["containers"]
        more = container | {"resources": {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}}
        assert await me.patches(f"{path}/resize", {"spec": {"containers": [more]}}) != "", "the API server's own word"
    finally:
        tenants.kubectl("delete", "pod/grows", "role/adds", "rolebinding/adds", "-n", B, "--wait=false")


async def test_who_makes_pods_of_other_kinds_gets_what_their_job_counts_and_nothing_besides(tenants: Tenants) -> None:
    """As the controller of batch Jobs does; what a job that is placed would hold, and what nobody would see."""
    tenants.kubectl("label", "--overwrite", "namespace", B, "trimtab.dev/gpus=jobs")
    mark = {"labels": {names.LABEL_MANAGED: "true"}}
    asks = {"": {}, **{what: each for what, each in ASKS_FOR_GPUS.items() if what != "requests"}}
    as_job = "--as=system:serviceaccount:kube-system:job-controller"
    for what, fields in asks.items():
        made = pod(namespace=B, gpus=1, meta=mark, schedulerName=names.SCHEDULER_NAME, **GATED)
        given = made["spec"]["containers"][0]
        made["spec"] |= fields
        made["spec"]["containers"] = [{**given, "name": "counted"}, *fields.get("containers", [])]
        try:
            tenants.kubectl("create", "-f", "-", "--dry-run=server", as_job, stdin=json.dumps(made))
            said = ""
        except LocalClusterError as error:
            said = str(error)
        assert ("get GPUs by LLMTrainingJobs only" in said) == (what != ""), f"{what}: {said}"
        assert what or not said, said


@pytest.fixture(scope="module")
def controller(tenants: Tenants, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControllerProcess]:
    """As its own service account. Pods are told of reports: that puts a token into them."""
    directory = tmp_path_factory.mktemp("tenancy-controller")
    reports = {"host": "127.0.0.1", "port": 0, "url": "http://reports.test:8090"}
    with_token = tenants.live.kubeconfig(directory)
    process = ControllerProcess(with_token, directory, reports=reports).start()
    yield process
    assert process.alive, process.tail()
    process.stop()


@pytest.fixture
async def seen(tenants: Tenants) -> AsyncIterator[Watcher]:
    """The witness: a test fails if an invariant was ever violated while it ran."""
    async with Watcher(tenants.live.cluster.kubeconfig) as watcher:
        yield watcher
    assert not watcher.violations, watcher.violations


async def test_what_the_controller_adds_to_a_restricted_pod_is_restricted(
    tenants: Tenants, controller: ControllerProcess, seen: Watcher
) -> None:
    """Pod Security looks at the pods of the controller as at any others."""
    strict = job("strict", STRICT, seconds=1.0, launcher="DeepSpeed", template={"spec": RESTRICTED})
    host = job("host", STRICT, template={"spec": RESTRICTED | {"hostNetwork": True}})
    tenants.live.apply(strict, job("lax", STRICT), host)
    await reaches(seen, STRICT, "strict", names.COMPLETE)
    refused = {"lax": "allowPrivilegeEscalation != false", "host": "host namespaces"}

    def told(name: str) -> bool:
        said = condition(seen.job(name, STRICT), names.GANG_SCHEDULED)
        why = f'is forbidden: violates PodSecurity "restricted:latest": {refused[name]}'
        return said.get("reason") == "CreateRefused" and why in said["message"]

    await seen.until(lambda _: all(map(told, refused)), 40, lambda: str(states(seen, STRICT)))
    tenants.kubectl("delete", "ltj", *refused, "-n", STRICT)  # they are tried again for as long as they are there


async def test_the_controllers_token_is_good_for_gangs_only(tenants: Tenants, live: Live, tmp_path: Path) -> None:
    """Each line of the table in docs/security.md is tried."""
    holder, gone = Person(live.kubeconfig(tmp_path)), ("--force", "--grace-period=0", "--ignore-not-found")
    reaching = job("reaching", managedBy="example.test/nobody", template={"spec": thief.TEMPLATE})
    there = [pod("theirs"), pod("waiting", schedulerName="nobody"), pod("of-a-gang", meta=owned())]
    tenants.live.apply(reaching)
    uid = tenants.get("ltj", "reaching", A)["metadata"]["uid"]
    there[-1]["metadata"]["ownerReferences"][0] |= {"name": "reaching", "uid": uid}
    tenants.live.apply(*there)
    try:
        wrong = {}
        for each in thief.attempts(uid):
            said = await holder.tries(each.method, each.path, each.body, each.content_type, dry=each.dry)
            if (each.refused not in said) if each.refused else said:
                wrong[each.what] = said or "done"
        assert wrong == {}
    finally:
        tenants.kubectl("delete", "pod", *(each["metadata"]["name"] for each in there), "-n", A, *gone)
        tenants.kubectl("delete", "ltj", "reaching", "-n", A)


async def test_a_gang_that_reaches_as_its_author_may_is_made(
    tenants: Tenants, controller: ControllerProcess, seen: Watcher
) -> None:
    """By who may make pods: the controller's own pods pass what a thief's do not."""
    template = {key: value for key, value in thief.TEMPLATE.items() if key != "hostNetwork"}
    secret = {"name": thief.SECRET["valueFrom"]["secretKeyRef"]["name"], "namespace": A}
    tenants.live.apply({"apiVersion": "v1", "kind": "Secret", "metadata": secret})
    tenants.live.apply(job("reaches", seconds=1.0, launcher="DeepSpeed", template={"spec": template}))
    await reaches(seen, A, "reaches", names.COMPLETE)


async def test_however_much_one_tenant_asks_for_the_other_gets_what_it_is_guaranteed(
    tenants: Tenants, controller: ControllerProcess, seen: Watcher
) -> None:
    """A asks for four times the cluster, and borrows all of it; B may have 16 GPUs, at any time and no more."""
    tenants.kubectl("label", "--overwrite", "namespace", B, "trimtab.dev/gpus=jobs")
    tenants.live.apply(*(job(f"a-{number}", elasticity=MODEST) for number in range(16)))
    await seen.until(lambda _: held(seen, A) == 32, 60, lambda: f"A to borrow all: {states(seen, A)}")
    tenants.live.apply(*(job(name, B, gpus=16, seconds=2.0, elasticity=MODEST) for name in ("b-first", "b-second")))
    await reaches(seen, B, "b-first", names.PODS_READY)
    assert held(seen, A) == 16, states(seen, A)
    await seen.until(
        lambda _: status_of(seen.job("b-second", B)).get("pending", {}).get("reason") == "QuotaExceeded",
        what=lambda: str(states(seen, B)),
    )
    await reaches(seen, B, "b-first", names.COMPLETE)
    await reaches(seen, B, "b-second", names.COMPLETE)
