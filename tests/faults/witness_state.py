"""What an independent witness keeps of the cluster: pods by job and by node, jobs, nodes, quotas, all as plain JSON.

It shares no code with the product on purpose: whoever judges the books must not keep them the same way.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import datetime
from typing import Any

Object = dict[str, Any]
GPUS = ("nvidia.com/gpu", "amd.com/gpu")
ENDED = ("Succeeded", "Failed")
PODS, NODES, JOBS, QUEUES = "pods", "nodes", "llmtrainingjobs", "queues"
PRIORITIES, QUOTAS = "priorityclasses", "resourcequotas"
SLICES, CLAIMS = "resourceslices", "resourceclaims"
KINDS = {
    PODS: "/api/v1/pods",
    NODES: "/api/v1/nodes",
    JOBS: "/apis/trimtab.dev/v1alpha1/llmtrainingjobs",
    QUEUES: "/apis/trimtab.dev/v1alpha1/queues",
    PRIORITIES: "/apis/scheduling.k8s.io/v1/priorityclasses",
    QUOTAS: "/api/v1/resourcequotas",
    SLICES: "/apis/resource.k8s.io/v1/resourceslices",
    CLAIMS: "/apis/resource.k8s.io/v1/resourceclaims",
}
"""What is followed, and where the API server lists it."""
MAY_BE_ABSENT = (SLICES, CLAIMS)
"""Kinds of younger versions of Kubernetes."""
WHOLE = {"gpu.nvidia.com": ("nvidia.com/gpu", "gpu"), "gpu.amd.com": ("amd.com/gpu", "amdgpu")}
"""Driver of devices -> the resource that they stand for, and the type of a device that is a whole GPU."""
Device = tuple[str, str, str]
"""Driver, pool and name."""


class Ledger:
    """The cluster as the events told it."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Object]] = {kind: {} for kind in KINDS}
        """Kind -> UID -> object."""
        self.pods_of: defaultdict[str, dict[str, Object]] = defaultdict(dict)
        """UID of the owner -> UID -> pod."""
        self.pods_on: defaultdict[str, dict[str, Object]] = defaultdict(dict)
        """Node -> UID -> pod."""

    def put(self, kind: str, obj: Object) -> Object | None:
        """Keep an object; returns what it was before."""
        before = self.take(kind, obj)
        self.objects[kind][uid_of(obj)] = obj
        if kind == PODS:
            self.pods_of[owner(obj)][uid_of(obj)] = obj
            self.pods_on[node_of(obj)][uid_of(obj)] = obj
        return before

    def take(self, kind: str, obj: Object) -> Object | None:
        """Forget an object; returns what it was."""
        uid = uid_of(obj)
        before = self.objects[kind].pop(uid, None)
        if kind == PODS and before:
            self.pods_of[owner(before)].pop(uid, None)
            self.pods_on[node_of(before)].pop(uid, None)
        return before

    def named(self, kind: str, name: str) -> Object:
        """The object of this name (namespaces apart), or an empty one."""
        return next((each for each in self.objects[kind].values() if each["metadata"]["name"] == name), {})

    def requested(self, node: str, *, ours: bool | None = None) -> Counter[str]:
        """GPUs by resource that live pods have of a node: by request, or by claim, which may be for the same ones."""
        claimed = self.claimed(node)
        return sum(
            (
                gpus(pod) | claimed[uid]
                for uid, pod in self.pods_on[node].items()
                if live(pod) and ours in (None, is_ours(pod))
            ),
            Counter(),
        )

    def devices(self, node: str) -> dict[Device, str]:
        """Whole GPUs that drivers offer on a node -> the resource that they stand for; newest generations only."""
        slices = [each["spec"] for each in self.objects[SLICES].values() if each["spec"].get("nodeName") == node]
        newest: defaultdict[tuple[str, str], int] = defaultdict(int)
        for each in slices:
            pool = each["driver"], each["pool"]["name"]
            newest[pool] = max(newest[pool], each["pool"].get("generation", 0))
        found: dict[Device, str] = {}
        for each in slices:
            driver, pool = each["driver"], each["pool"]["name"]
            if driver in WHOLE and each["pool"].get("generation", 0) == newest[driver, pool]:
                resource, kind = WHOLE[driver]
                for device in each.get("devices", []):
                    if device.get("attributes", {}).get("type", {}).get("string") == kind:
                        found[driver, pool, device["name"]] = resource
        return found

    def claimed(self, node: str) -> defaultdict[str, Counter[str]]:
        """UID of a pod -> GPUs of a node by resource that claims reserve for it."""
        offered = self.devices(node)
        held: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for claim in self.objects[CLAIMS].values() if offered else ():
            taken = Counter(offered[device] for device in allocated(claim) if device in offered)
            for user in claim.get("status", {}).get("reservedFor", []):
                held[user["uid"]] += taken
        return held

    def holders(self, device: Device) -> list[str]:
        """Claims that a device is allocated to."""
        return sorted(name_of(each) for each in self.objects[CLAIMS].values() if device in allocated(each))

    def priority(self, job: Object) -> int:
        """Value of the job's PriorityClass."""
        name = job.get("spec", {}).get("priorityClassName")
        return int(self.named(PRIORITIES, name).get("value", 0)) if name else 0


def allocated(claim: Object) -> list[Device]:
    """Devices that a claim has for itself: whoever has admin access takes them from nobody."""
    allocation = claim.get("status", {}).get("allocation") or {}
    results = allocation.get("devices", {}).get("results", [])
    return [(each["driver"], each["pool"], each["device"]) for each in results if not each.get("adminAccess")]


def uid_of(obj: Object) -> str:
    return str(obj["metadata"]["uid"])


def name_of(obj: Object) -> str:
    meta = obj["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])


def owner(pod: Object) -> str:
    """UID of the controlling owner; empty without one. The pods of a job of another kind say by a label which job of
    ours stands in for that."""
    owners, labels = pod["metadata"].get("ownerReferences", []), pod["metadata"].get("labels", {})
    if labels.get("trimtab.dev/managed") == "true":
        return str(labels.get("trimtab.dev/job-uid", ""))
    return next((str(each["uid"]) for each in owners if each.get("controller")), "")


def is_ours(pod: Object) -> bool:
    return "trimtab.dev/job" in pod["metadata"].get("labels", {})


def epoch_of(pod: Object) -> int:
    return int(pod["metadata"].get("labels", {}).get("trimtab.dev/epoch", 0))


def node_of(pod: Object) -> str:
    return str(pod.get("spec", {}).get("nodeName") or "")


def live(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") not in ENDED


def leaving(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def silent(node: Object) -> bool:
    """Whether Kubernetes hears nothing of the node."""
    told = node.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "Unknown" for each in told)


def gpus(pod: Object) -> Counter[str]:
    """GPUs by resource that a pod requests."""
    asked: Counter[str] = Counter()
    for container in pod["spec"].get("containers", []):
        resources = container.get("resources", {})
        wanted = resources.get("limits", {}) | resources.get("requests", {})
        asked.update({each: int(wanted[each]) for each in GPUS if each in wanted})
    return asked


def status_of(job: Object) -> Object:
    status: Object = job.get("status") or {}
    return status


def plan_of(job: Object) -> Object:
    plan: Object = status_of(job).get("plan") or {}
    return plan


def condition(job: Object, kind: str) -> Object:
    """One condition of a job, or an empty one."""
    return next((each for each in status_of(job).get("conditions", []) if each["type"] == kind), {})


def holds(job: Object, kind: str) -> bool:
    return condition(job, kind).get("status") == "True"


def finished(job: Object) -> bool:
    return holds(job, "Complete") or holds(job, "Failed")


def no_restarts(job: Object) -> bool:
    """Whether its next failure is the last one, if it is the program's."""
    most = job.get("spec", {}).get("maxRestarts", 3)
    return bool(status_of(job).get("restarts", 0) >= most)


def seconds(time: str) -> float:
    """POSIX seconds of an RFC 3339 time."""
    return datetime.fromisoformat(time).timestamp()
