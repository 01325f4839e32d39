"""What whoever has stolen the controller's token may try: each with the words by which it is refused, or done.

The table of docs/security.md is made of this: `python -m tests.live.thief`.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from tests.live.tenants import AUTHOR, EMPTY, JOBS_ONLY, A, Object, job, owned, pod, service, trainer

from trimtab import names
from trimtab.kube.client import MERGE_PATCH
from trimtab.kube.resources import (
    CLAIMS,
    CONFIG_MAPS,
    JOBS,
    LEASES,
    NODES,
    PODS,
    QUEUES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Resource,
)

ROLE_BINDINGS = Resource("rbac.authorization.k8s.io/v1", "clusterrolebindings")
CHANGE = "change the image of a gang's pod"
JSON_PATCH = "application/json-patch+json"
NOT_GANGS = "may touch nothing but what belongs to an LLMTrainingJob"
UNLIKE = "of the job's template"
OF_THE_TEMPLATE = "pods of gangs have this of the template of their job only"
SYSTEM = ("kube-system", "kube-public", "kube-node-lease", names.SYSTEM_NAMESPACE)
REACHING = {"labels": {names.LABEL_JOB: "reaching", names.LABEL_REACH: "template"}}
SECRET = {"valueFrom": {"secretKeyRef": {"name": "of-the-template", "key": "t"}}}
HOST_PATH = {"name": "data", "hostPath": {"path": "/data"}}
TEMPLATE: Object = {
    "serviceAccountName": AUTHOR,
    "hostNetwork": True,
    "volumes": [HOST_PATH],
    "containers": trainer(env=[{"name": "T", **SECRET}], securityContext={"privileged": False, "runAsUser": 0}),
}
"""Of the job that reaches further than others."""

FORGED: dict[str, Object] = {
    "a service account": {"serviceAccountName": AUTHOR},
    "hostPath": {"volumes": [{"name": "h", "hostPath": {"path": "/"}}]},
    "a hostPath that is called like the usual token": {
        "volumes": [{"name": "kube-api-access-x", "hostPath": {"path": "/"}}]
    },
    "a secret as a volume": {"volumes": [{"name": "s", "secret": {"secretName": "x"}}]},
    "a secret in the environment": {"containers": trainer(env=[{"name": "T", **SECRET}])},
    "hostPID": {"hostPID": True},
    "hostNetwork": {"hostNetwork": True},
    "hostIPC": {"hostIPC": True},
    "added capabilities": {"containers": trainer(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}})},
    "hostPort": {"containers": trainer(ports=[{"containerPort": 22, "hostPort": 22}])},
    "an API token of another audience": {
        "volumes": [{"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t", "audience": "x"}}]}}]
    },
}
OTHER: dict[str, Object] = {
    "another service account": {"serviceAccountName": JOBS_ONLY},
    "another path of the host": {"volumes": [{"name": "data", "hostPath": {"path": "/"}}]},
    "another volume": {"volumes": [HOST_PATH, {"name": "s", "secret": {"secretName": "x"}}]},
    "another secret": {
        "containers": trainer(env=[{"name": "T", "valueFrom": {"secretKeyRef": {"name": "x", "key": "t"}}}])
    },
    "another image": {"containers": [{"name": "trainer", "image": "evil.example/x:1"}]},
    "another container": {"containers": [*TEMPLATE["containers"], {"name": "x", "image": "i:1"}]},
    "a privilege": {"containers": trainer(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}})},
    "hostPID": {"hostPID": True},
}


class Attempt(Struct, frozen=True):
    """One request with the controller's token, in a dry run unless what is refused is that there is none."""

    what: str
    method: str
    path: str
    body: Any = None
    refused: str = ""
    """By these words; empty where it is done."""
    content_type: str = "application/json"
    dry: bool = True


def _makes(what: str, kind: Resource, obj: Object, refused: str = "") -> Attempt:
    return Attempt(what, "POST", kind.path(obj["metadata"].get("namespace", "")), obj, refused)


def _truly_makes(what: str, kind: Resource, obj: Object, refused: str) -> Attempt:
    """Not in a dry run."""
    return Attempt(what, "POST", kind.path(obj["metadata"]["namespace"]), obj, refused, dry=False)


def _patches(what: str, path: str, patch: Object, refused: str = "") -> Attempt:
    return Attempt(what, "PATCH", path, patch, refused, MERGE_PATCH)


def reaching(uid: str, *, meta: Object | None = None, **changes: Any) -> Object:
    """A pod as the template of the job `reaching` says, but for these changes."""
    made = pod("reaching-1-0", meta=(meta or owned(uid, "reaching")) | REACHING)
    made["spec"] = {"schedulerName": names.SCHEDULER_NAME} | TEMPLATE | changes
    return made


def _object(api: str, kind: str, name: str = "x", namespace: str = names.SYSTEM_NAMESPACE, **rest: Any) -> Object:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": namespace}, **rest}


def _binding(pod_name: str, namespace: str) -> Attempt:
    target = {"apiVersion": "v1", "kind": "Node", "name": "live-0"}
    body = _object("v1", "Binding", pod_name, namespace, target=target)
    refused = f"has no gangs in namespace {namespace}" if namespace in SYSTEM else ""
    where = namespace if refused else "a tenant's namespace"
    return Attempt(f"bind a pod of others in {where}", "POST", PODS.path(namespace, pod_name, "binding"), body, refused)


def attempts(uid: str) -> list[Attempt]:
    """`uid` is that of the job `reaching`, whose template is TEMPLATE, in namespace A; in EMPTY there are no jobs."""
    theirs = PODS.path(A, "theirs")
    image = [{"op": "replace", "path": "/spec/containers/0/image", "value": "evil.example/x:1"}]
    nowhere = pod("x", EMPTY, meta=owned() | REACHING, hostPID=True)
    addresses = service(**owned(name="tried")) | {"spec": {"externalIPs": ["1.2.3.4"], "ports": [{"port": 80}]}}
    reaches = "make a pod of a job that reaches further"
    return [
        *(_makes(f"make a pod in {at}", PODS, pod("p", at, meta=owned(uid)), "has no gangs in") for at in SYSTEM),
        *(_binding("any", at) for at in SYSTEM),
        _makes("make a pod without a job", PODS, pod(), NOT_GANGS),
        _makes("make a pod of a job of another version", PODS, pod(meta=owned(apiVersion="trimtab.dev/v9")), NOT_GANGS),
        _makes("make a pod on a node", PODS, pod(meta=owned(), nodeName="live-0"), "does not create them on a node"),
        *(
            _makes(f"make a pod with {what}", PODS, pod(meta=owned(), **spec), OF_THE_TEMPLATE)
            for what, spec in FORGED.items()
        ),
        *(_makes(f"{reaches}, with {what}", PODS, reaching(uid, **spec), UNLIKE) for what, spec in OTHER.items()),
        _makes(f"{reaches}, by another UID", PODS, reaching("1-2-3"), "those of two jobs"),
        _makes(f"{reaches}, where there are none", PODS, nowhere, "no params found"),
        Attempt(CHANGE, "PATCH", PODS.path(A, "of-a-gang"), image, "does not change what runs", JSON_PATCH),
        _patches("change a pod of others", theirs, {"metadata": {"labels": {"x": "y"}}}, NOT_GANGS),
        _patches("take a pod of others over", theirs, {"metadata": owned()}, NOT_GANGS),
        Attempt("delete a pod of others", "DELETE", theirs, None, NOT_GANGS),
        _makes("make a Service without a job", SERVICES, service(), NOT_GANGS),
        _makes("make a Service with addresses of others", SERVICES, addresses, "makes headless Services"),
        *(
            _truly_makes(f"make a {kind} in {where}", resource, _object("v1", kind, "x", at), "in dry runs")
            for kind, resource in (("ConfigMap", CONFIG_MAPS), ("Secret", SECRETS))
            for where, at in (("its namespace", names.SYSTEM_NAMESPACE), ("a tenant's namespace", A))
        ),
        _makes("make a Lease in its namespace", LEASES, _object(LEASES.api_version, "Lease"), "and no others"),
        Attempt("read secrets", "GET", SECRETS.path(A), None, "cannot list"),
        Attempt("read a secret by its name", "GET", SECRETS.path(A, "x"), None, "cannot get"),
        Attempt("read a ConfigMap of others", "GET", CONFIG_MAPS.path(A, "kube-root-ca.crt"), None, "cannot get"),
        Attempt("list claims", "GET", CLAIMS.path(), None, "cannot list"),
        Attempt("run commands in pods", "POST", PODS.path(A, "theirs", "exec"), {}, "cannot create"),
        Attempt("make tokens of accounts", "POST", SERVICE_ACCOUNTS.path(A, AUTHOR, "token"), {}, "cannot create"),
        Attempt("give itself roles", "POST", ROLE_BINDINGS.path(), {}, "cannot create"),
        _patches("change nodes", NODES.path(name="live-0"), {"spec": {"unschedulable": True}}, "cannot patch"),
        _makes("make jobs", JOBS, job("x"), "cannot create"),
        _patches("change queues", QUEUES.path(name=A), {"spec": {"weight": 9}}, "cannot patch"),
        *_possible(uid),
    ]


def _possible(uid: str) -> list[Attempt]:
    reaches, unlike = "make a pod that reaches further", reaching(uid, meta=owned(name="nobody"), hostPID=True)
    return [
        _binding("waiting", A),
        _makes("make a pod that reaches nothing, of any job by name", PODS, pod(meta=owned())),
        _makes(f"{reaches}, just as the template of its job says", PODS, reaching(uid)),
        _makes(f"{reaches}, of a job that is not there, where others are", PODS, unlike),
        Attempt("delete a pod of any gang", "DELETE", PODS.path(A, "of-a-gang")),
        _patches("write the status of any job", JOBS.path(A, "reaching", "status"), {"status": {"restarts": 9}}),
        _patches("write the status of any queue", QUEUES.path(name=A, subresource="status"), {"status": {"gpus": 0}}),
        Attempt("read all pods, with what stands in their environment", "GET", PODS.path()),
        Attempt("read all jobs", "GET", JOBS.path()),
        _makes("learn by a dry run whether there is a secret of a name", SECRETS, _object("v1", "Secret", "x", A)),
        Attempt("read a claim, or a ServiceAccount, by its name", "GET", SERVICE_ACCOUNTS.path(A, AUTHOR)),
    ]


def main() -> None:
    """Print the table."""
    print("| with the controller's token | |\n|---|---|")
    for each in attempts("UID"):
        print(f"| {each.what} | {'refused' if each.refused else '**possible**'} |")


if __name__ == "__main__":
    main()
