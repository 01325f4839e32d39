"""Two tenants in words: people with tokens of their own, what an administrator has made for them, things to try."""

from __future__ import annotations

import asyncio
import copy
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.faults import witness_state
from tests.faults.watcher import Watcher
from tests.live.harness import PATIENCE, Live, training_job

from trimtab import names
from trimtab.errors import ApiError
from trimtab.kube.client import JSON, MERGE_PATCH, KubeClient
from trimtab.kube.resources import JOBS, PODS, RESOURCE_CLAIM_TEMPLATES, Resource
from trimtab.settings import KubeSettings
from trimtab_local.checkout import checkout
from trimtab_local.control_plane.cluster import LocalCluster
from trimtab_local.control_plane.kubeconfig import service_account_kubeconfig

Object = dict[str, Any]
RBAC = "rbac.authorization.k8s.io/v1"
MANIFESTS = checkout() / "manifests"
A, B, STRICT, EMPTY = "tenancy-a", "tenancy-b", "tenancy-strict", "tenancy-empty"
A100 = "A100-SXM4-80GB"
OPEN, URGENT = "tenancy-open", "tenancy-urgent"
FOR_ALL = "tenancy-all"
"""A queue that every namespace may use."""
AUTHOR, JOBS_ONLY, VIEWER, CHOOSER, QUEUE_ADMIN = "author", "jobs-only", "viewer", "chooser", "queue-admin"
CLUSTER = "ClusterRole"
ROLES = {
    AUTHOR: [(CLUSTER, "edit")],
    JOBS_ONLY: [(CLUSTER, "trimtab-editor")],
    VIEWER: [(CLUSTER, "view")],
    CHOOSER: [(CLUSTER, "trimtab-editor"), (CLUSTER, "trimtab-policy-chooser"), ("Role", "use")],
    QUEUE_ADMIN: [(CLUSTER, "trimtab-queue-admin")],
}
"""Account -> roles that it has: of its namespace, and the last one of the cluster."""


class Person:
    """Somebody with a token: what the API server says to what they try."""

    def __init__(self, kubeconfig: Path) -> None:
        self._settings = KubeSettings(kubeconfig=kubeconfig)

    async def tries(
        self, method: str, path: str, body: Any = None, content_type: str = JSON, *, dry: bool = True
    ) -> str:
        """What is said against it; empty where it is done, in a dry run unless that is not wanted."""
        params = {"dryRun": "All"} if dry and method != "GET" else {}
        if method == "DELETE" and body and dry:
            body = {**body, "dryRun": ["All"]}  # options in a body go before those of the query
        async with await KubeClient.connect(self._settings) as client:
            try:
                await client.request(method, path, body=body, params=params, content_type=content_type)
            except ApiError as error:
                return f"{error.status}: {error}"
        return ""

    async def creates(self, kind: Resource, obj: Object) -> str:
        """In a dry run."""
        return await self.tries("POST", kind.path(obj["metadata"].get("namespace", "")), obj)

    async def patches(self, path: str, patch: Object) -> str:
        """A merge patch, in a dry run."""
        return await self.tries("PATCH", path, patch, MERGE_PATCH)


class Tenants:
    """The cluster with two tenants, and the people of it."""

    def __init__(self, live: Live, directory: Path) -> None:
        self.live = live
        self.kubectl = live.cluster.kubectl
        self._directory = directory
        self._people: dict[tuple[str, str], Person] = {}
        self.ready = False
        """Whether the policies were seen to be in force."""

    def person(self, account: str, namespace: str = A) -> Person:
        if (found := self._people.get((account, namespace))) is None:
            path = self._directory / f"{namespace}-{account}"
            service_account_kubeconfig(self.live.cluster.kubeconfig, namespace, account, path)
            found = self._people[account, namespace] = Person(path)
        return found

    def get(self, kind: str, name: str, namespace: str) -> Object:
        found: Object = json.loads(self.kubectl("get", kind, name, "-n", namespace, "-o", "json"))
        return found

    def set_limits(self, limits: Mapping[str, str]) -> None:
        """As an administrator: CEL by the name of the limit."""
        policy = self.get("validatingadmissionpolicy", "trimtab-job-limits", "")
        for variable in policy["spec"]["variables"]:
            variable["expression"] = limits.get(variable["name"], variable["expression"])
        self.kubectl("replace", "-f", "-", stdin=json.dumps(policy))

    async def limited(self, person: Person, said: str, limits: Mapping[str, str]) -> None:
        """Set limits and wait until this is said to a job of 2048 GPUs; or nothing, where that is what is expected."""
        self.set_limits(limits)
        await self.told(person, job(gpus=2048, resources={"gpus": {"max": 2048}, "maxNodes": 256}), said)

    async def told(self, person: Person, obj: Object, said: str) -> None:
        """Wait until this is said to who creates the object: parameters arrive by a watch."""
        kinds = {"Pod": PODS, "ResourceClaimTemplate": RESOURCE_CLAIM_TEMPLATES}
        kind, limit = kinds.get(obj["kind"], JOBS), time.monotonic() + PATIENCE * 20
        while True:
            answer = await person.creates(kind, obj)
            if (said in answer) if said else not answer:
                return
            assert time.monotonic() < limit, f"{said}: {answer}"
            await asyncio.sleep(0.1)


@contextmanager
def tenancy(live: Live, directory: Path) -> Iterator[Tenants]:
    """Two namespaces with people, queues and priorities; the policies are there for so long only: other tests do as
    administrators do."""
    files = [argument for file in ("roles.yaml", "admission.yaml") for argument in ("-f", str(MANIFESTS / file))]
    spaces = [f"namespace/{name}" for name in (A, B, STRICT, EMPTY)]
    live.cluster.kubectl("wait", "--for=delete", *spaces, "--timeout=60s", timeout=70)  # of those who were here before
    live.cluster.kubectl("apply", "--server-side", *files)
    live.apply(*set_up())
    tenants = Tenants(live, directory)
    tenants.set_limits({"openPriorityClasses": f"'some, {OPEN}'"})
    yield tenants
    taken_down(live.cluster)
    live.cluster.kubectl("delete", *files)


def held(seen: Watcher, namespace: str) -> int:
    """GPUs that pods of the namespace hold on nodes."""
    pods = seen.judge.ledger.objects[witness_state.PODS].values()
    on_nodes = (each for each in pods if witness_state.live(each) and witness_state.node_of(each))
    return sum(witness_state.gpus(each).total() for each in on_nodes if each["metadata"]["namespace"] == namespace)


def states(seen: Watcher, namespace: str) -> dict[str, str]:
    """Job -> what its conditions say, in words."""
    jobs = (each for each in seen.jobs() if each["metadata"]["namespace"] == namespace)
    told = {each["metadata"]["name"]: witness_state.status_of(each).get("conditions", []) for each in jobs}
    return {name: "; ".join(f"{c['type']}={c['status']}: {c['message']}" for c in cs) for name, cs in told.items()}


async def reaches(seen: Watcher, namespace: str, name: str, condition: str, seconds: float = 40) -> None:
    """Wait until a condition of the job holds."""
    await seen.until(
        lambda _: witness_state.holds(seen.job(name, namespace), condition),
        seconds,
        lambda: str(states(seen, namespace)),
    )


def job(name: str = "tried", namespace: str = A, *, meta: Object | None = None, **spec: Any) -> Object:
    made = training_job(name, gpus=spec.pop("gpus", 8), seconds=spec.pop("seconds", 600.0), **spec)
    made["metadata"] |= {"namespace": namespace, **(meta or {})}
    return made


def with_pod(**pod: Any) -> Object:
    """A job whose template has this in its pod."""
    made = copy.deepcopy(job())
    made["spec"]["template"]["spec"] |= pod
    return made


def trainer(**container: Any) -> list[Object]:
    return [{"name": "trainer", "image": "example.test/trainer:1", **container}]


def pod(
    name: str = "tried",
    namespace: str = A,
    *,
    meta: Object | None = None,
    gpus: int = 0,
    gpu: str = names.NVIDIA_GPU,
    **spec: Any,
) -> Object:
    limits = {"limits": {gpu: str(gpus)}} if gpus else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, **(meta or {})},
        "spec": {"containers": [{"name": "main", "image": "example.test/any:1", "resources": limits}], **spec},
    }


def owned(uid: str = "11111111-2222-3333-4444-555555555555", name: str = "there", **changes: Any) -> Object:
    """Metadata of what belongs to a job."""
    reference = {"apiVersion": names.API_VERSION, "kind": names.JOB_KIND, "name": name, "uid": uid, "controller": True}
    return {"ownerReferences": [reference | changes]}


def queue(name: str, **spec: Any) -> Object:
    return {"apiVersion": names.API_VERSION, "kind": names.QUEUE_KIND, "metadata": {"name": name}, "spec": spec}


def service(**meta: Any) -> Object:
    spec = {"clusterIP": "None", "selector": {"app": "any"}}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "tried", "namespace": A, **meta}, "spec": spec}


def claim_template(name: str, **meta: Any) -> Object:
    request = {"name": "gpus", "exactly": {"deviceClassName": names.NVIDIA_DRIVER, "count": 8}}
    return {
        "apiVersion": RESOURCE_CLAIM_TEMPLATES.api_version,
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": A, **meta},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }


def gpunode() -> Object:
    return {"apiVersion": names.API_VERSION, "kind": names.GPUNODE_KIND, "metadata": {"name": "live-0"}}


def annotated(**annotations: str) -> Object:
    """Metadata with these annotations."""
    return {"annotations": annotations}


def set_up() -> list[Object]:
    """What an administrator has made: A may borrow, B has what it is guaranteed and no more."""
    strict = {"pod-security.kubernetes.io/enforce": "restricted"}
    spaces: dict[str, dict[str, str]] = {A: {}, B: {}, STRICT: strict, EMPTY: {}}
    return [
        *(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
            for name, labels in spaces.items()
        ),
        *(
            {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value}
            for name, value in {OPEN: 1, URGENT: 1000}.items()
        ),
        queue(A, namespaces=[A], quotas=[{"gpuType": A100, "guaranteed": 16}]),
        queue(B, namespaces=[B], quotas=[{"gpuType": A100, "guaranteed": 16, "gpus": 16}]),
        queue(FOR_ALL),
        *(each for namespace in (A, B) for each in _people(namespace)),
    ]


def taken_down(cluster: LocalCluster) -> None:
    """Take all of that away again."""
    for namespace in (A, B, STRICT):
        cluster.kubectl("delete", "ltj", "--all", "-n", namespace, "--wait=false")
        cluster.kubectl("delete", "pods", "--all", "-n", namespace, "--force", "--grace-period=0", "--wait=false")
    cluster.kubectl("delete", "clusterrolebinding", *(f"{space}-{QUEUE_ADMIN}-trimtab-queue-admin" for space in (A, B)))
    cluster.kubectl("delete", "ltq", A, B, FOR_ALL)
    cluster.kubectl("delete", "priorityclass", OPEN, URGENT)
    cluster.kubectl("delete", "namespace", A, B, STRICT, EMPTY, "--wait=false")


def _people(namespace: str) -> Iterator[Object]:
    """Service accounts with the roles that ship; one may use a priority that is not open to all, in its namespace."""
    use = {"apiGroups": ["scheduling.k8s.io"], "resources": ["priorityclasses"], "verbs": ["use"]}
    role = {"name": "use", "namespace": namespace}
    yield {"apiVersion": RBAC, "kind": "Role", "metadata": role, "rules": [{**use, "resourceNames": [URGENT]}]}
    for account, roles in ROLES.items():
        yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account, "namespace": namespace}}
        for kind, name in roles:
            yield {
                "apiVersion": RBAC,
                "kind": "ClusterRoleBinding" if account == QUEUE_ADMIN else "RoleBinding",
                "metadata": {"name": f"{namespace}-{account}-{name}", "namespace": namespace},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
                "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
            }
