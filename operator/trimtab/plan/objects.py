"""Plan -> the objects that must exist: one headless Service and one pod per node, as plain dicts.

Everything is derived from the job and the plan in its status, so that a controller that starts anew makes the very
same objects: names are deterministic (`JOB-EPOCH-RANK`), and making one that exists already changes nothing.
The user's pod template stays as it is but for what the plan decides: GPU limits, ranks, flags, environment, scheduler.

Pods that kube-scheduler is to bind are born behind a gate, pinned to the node of the plan: nothing about them has to be
changed later but that the gate is taken away.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from trimtab import names
from trimtab.api.template import trainer_of
from trimtab.kube.objects import Meta
from trimtab.plan.affinity import pinned
from trimtab.plan.launch import DEEPSPEED_CONFIG_PATH, Launch, LaunchedGang, carried, launch
from trimtab.plan.reach import reaches
from trimtab_policy.specs import ParallelPlan, TrainingSpec
from trimtab_policy.types import NodeShare

Object = dict[str, Any]
_OUR_VOLUMES = frozenset(("trimtab-launch", "trimtab-report", "trimtab-request", "trimtab-shm"))
"""What a plan adds: containers of a template may mount these."""
_REQUEST_FILE = "checkpoint-requested"
_PATIENT: tuple[Object, ...] = tuple(
    {"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "effect": "NoExecute"}
    for taint in ("not-ready", "unreachable")
)
"""Pods stay where they run though their node is not ready: when that is to end them, the controller decides, for gangs
as a whole. By default Kubernetes deletes them after five minutes, in a mass failure, too."""


class GangPlan(Struct, frozen=True):
    """A planned job: all that its objects are made of."""

    namespace: str
    job: str
    uid: str
    epoch: int
    gpu_type: str
    gpu_resource: str
    """Extended resource by which pods ask for GPUs, e.g. `nvidia.com/gpu`; or a DeviceClass in Kubernetes' notation for
    a resource, where each pod has a claim instead."""
    shares: tuple[NodeShare, ...]
    plan: ParallelPlan
    training: TrainingSpec
    layers: int
    launcher: str
    template: Object
    queue: str = ""
    """That its GPUs count against; empty for none."""
    priority_class: str = ""
    cpus_per_gpu_milli: int = 0
    memory_per_gpu: int = 0
    annotations: dict[str, dict[str, str]] = {}
    """Pod name -> further annotations (fake mode's run times)."""
    scheduler: str = ""
    """Profile of the kube-scheduler that binds the pods; empty where we do."""
    grouped: bool = False
    """The gang has a PodGroup."""
    domained: bool = False
    """The gang has a ComputeDomain."""
    report_url: str = ""
    """Where the trainer reports its steps; empty where nobody listens."""
    report_ca: str = ""
    """PEM of the authority that the certificate there is of; empty: one that the trainer's image knows."""
    resume_step: int = 0
    """Step of the last checkpoint that was known of when the plan was made; 0 for none."""

    def pod_name(self, rank: int) -> str:
        """Name of the pod of a node rank; deterministic, so that creating it twice is creating it once."""
        return pod_name(self.job, self.epoch, rank)

    @property
    def group_name(self) -> str:
        """Name of the gang's PodGroup, and of its ResourceClaimTemplate: `JOB-EPOCH`."""
        return f"{self.job}-{self.epoch}"

    @property
    def channel_name(self) -> str:
        """Name of the template of claims for a channel of the gang's ComputeDomain, which NVIDIA's driver makes."""
        return f"{self.group_name}-channel"

    @property
    def device_class(self) -> str:
        """DeviceClass that each pod claims its GPUs of; empty where pods ask for them by an extended resource."""
        return class_of(self.gpu_resource)

    @property
    def tainted_as(self) -> str:
        """Key of the taints that keep others away from nodes with such GPUs."""
        return names.VENDOR_RESOURCES.get(self.device_class, self.gpu_resource)


def class_of(gpu_resource: str) -> str:
    """DeviceClass that a resource stands for, in Kubernetes' notation; empty for a resource of another kind."""
    return gpu_resource.partition(names.DEVICE_CLASS_RESOURCE)[2]


def pod_name(job: str, epoch: int, rank: int) -> str:
    """`JOB-EPOCH-RANK`: no epoch ever meets the pods of another."""
    return f"{job}-{epoch}-{rank}"


def service(plan: GangPlan) -> Object:
    """The headless Service under which the ranks find one another before they are ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": plan.job,
            "namespace": plan.namespace,
            "labels": {names.LABEL_JOB: plan.job},
            "ownerReferences": [owner(plan)],
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {names.LABEL_JOB: plan.job},
        },
    }


def pod(plan: GangPlan, rank: int) -> Object:
    """The pod of a node rank."""
    share = plan.shares[rank]
    address = f"{plan.pod_name(0)}.{plan.job}"
    started = launch(plan.launcher, _gang(plan, address, plan.template["spec"]), rank)
    template = copy.deepcopy(plan.template)
    meta = template.get("metadata") or {}
    name = plan.pod_name(rank)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": plan.namespace,
            "labels": {**(meta.get("labels") or {}), **_labels(plan, rank), **_reach(plan)},
            "annotations": {**_own_annotations(meta), **_annotations(plan, name, share, started)},
            "ownerReferences": [owner(plan)],
        },
        "spec": _pod_spec(plan, template["spec"], name, share, started),
    }


def trial(job: Meta, template: Mapping[str, Any]) -> Object:
    """A pod that is never made: what the API server says in a dry run against this template as it was written, it would
    say against the pods of a gang. What only a plan adds is left out."""
    spec, meta = template["spec"], template.get("metadata") or {}
    containers = (*spec["containers"], *(spec.get("initContainers") or ()))
    mounted = {mount["name"] for each in containers for mount in each.get("volumeMounts") or ()}
    ours = [{"name": name, "emptyDir": {}} for name in sorted(mounted & _OUR_VOLUMES)]
    labels = {names.LABEL_JOB: job.name, names.LABEL_EPOCH: "0", names.LABEL_RANK: "0"}
    reach = {names.LABEL_REACH: "template"} if reaches(spec) else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(job.name, 0, 0),
            "namespace": job.namespace,
            "labels": {**(meta.get("labels") or {}), **labels, **reach},
            "annotations": _own_annotations(meta),
            "ownerReferences": [_reference(job.name, job.uid)],
        },
        "spec": {
            **spec,
            "schedulerName": names.SCHEDULER_NAME,
            "restartPolicy": "Never",
            "volumes": [*(spec.get("volumes") or []), *ours],
        },
    }


def adopted(plan: GangPlan, rank: int, leader: str, pod: Object) -> Object:
    """The JSON merge patch that makes a pod, which another controller has made and which waits behind our gate, the one
    of a node rank. `leader` is where rank 0 can be reached, empty where nobody knows it here; `pod` is as the API
    server has it, and the patch fails where that has changed.

    Its containers are what they are: what is told to a launcher goes into an annotation, which they may read. Nothing
    of it is taken away: its affinity gets narrower, and its taints of GPU nodes are tolerated, as of all gangs. Our
    gate goes at once where nobody but us binds; from kube-scheduler's pods it is taken once all are adopted.
    """
    share, meta, spec = plan.shares[rank], pod["metadata"], pod["spec"]
    started = launch(plan.launcher, _gang(plan, leader, spec), rank)
    annotations = _annotations(plan, plan.pod_name(rank), share, started)
    return {
        "metadata": {
            "uid": meta["uid"],
            "resourceVersion": meta["resourceVersion"],
            "labels": {**_labels(plan, rank), names.LABEL_JOB_UID: plan.uid},
            "annotations": annotations | {names.ANNOTATION_LAUNCH: carried(started)},
        },
        "spec": {
            "affinity": pinned(spec.get("affinity"), share.node),
            "tolerations": [*(spec.get("tolerations") or []), {"key": plan.tainted_as, "operator": "Exists"}],
            # Pods with another gate than ours wait outside the gang, and none can be added: this takes ours alone.
            **({} if plan.scheduler else {"schedulingGates": None}),
        },
    }


def _pod_spec(plan: GangPlan, spec: Object, name: str, share: NodeShare, started: Launch) -> Object:
    _equip(plan, trainer_of(spec["containers"]), share, started)
    spec |= {
        "schedulerName": names.SCHEDULER_NAME,
        "restartPolicy": "Never",
        "hostname": name,
        "subdomain": plan.job,
        "tolerations": [*(spec.get("tolerations") or []), {"key": plan.tainted_as, "operator": "Exists"}, *_PATIENT],
        "volumes": [*(spec.get("volumes") or []), *_volumes(spec, started)],
    }
    if plan.priority_class:
        spec["priorityClassName"] = plan.priority_class
    if plan.scheduler:
        spec |= {
            "schedulerName": plan.scheduler,
            "schedulingGates": [{"name": names.SCHEDULING_GATE}],
            "affinity": pinned(spec.get("affinity"), share.node),
        }
    if claims := _claims(plan):
        made = [{"name": name, "resourceClaimTemplateName": template} for name, template in claims.items()]
        spec["resourceClaims"] = [*(spec.get("resourceClaims") or []), *made]
    if plan.grouped:
        spec["schedulingGroup"] = {"podGroupName": plan.group_name}
    return spec


def _claims(plan: GangPlan) -> dict[str, str]:
    """Claims of each pod -> the template that they are made from."""
    gpus = {names.GPU_CLAIM: plan.group_name} if plan.device_class else {}
    return gpus | ({names.CHANNEL_CLAIM: plan.channel_name} if plan.domained else {})


def _equip(plan: GangPlan, trainer: Object, share: NodeShare, started: Launch) -> None:
    """Give the trainer container its GPUs, flags, environment and mounts. The user's own environment wins."""
    resources = trainer.setdefault("resources", {})
    asked: Object = {} if plan.device_class else {plan.gpu_resource: str(share.gpus)}
    if claims := _claims(plan):
        resources["claims"] = [*(resources.get("claims") or []), *({"name": name} for name in claims)]
    if plan.cpus_per_gpu_milli:
        asked["cpu"] = f"{plan.cpus_per_gpu_milli * share.gpus}m"
    if plan.memory_per_gpu:
        asked["memory"] = str(plan.memory_per_gpu * share.gpus)
    for kind in ("requests", "limits"):
        resources[kind] = {**(resources.get(kind) or {}), **asked}
    own = trainer.get("env") or []
    taken = {entry["name"] for entry in own}
    env = started.env | _report_env(plan) | _checkpoint_env(plan)
    trainer["env"] = [{"name": k, "value": v} for k, v in env.items() if k not in taken] + own
    if started.args:
        trainer["args"] = [*(trainer.get("args") or []), *started.args]
    mounts = trainer.setdefault("volumeMounts", [])
    if not any(mount["mountPath"] == "/dev/shm" for mount in mounts):  # noqa: S108 - the pod's own
        mounts.append({"name": "trimtab-shm", "mountPath": "/dev/shm"})  # noqa: S108 - the pod's own
    if started.deepspeed_config:
        directory = DEEPSPEED_CONFIG_PATH.rpartition("/")[0]
        mounts.append({"name": "trimtab-launch", "mountPath": directory, "readOnly": True})
    taken = {mount["mountPath"] for mount in mounts}
    if plan.report_url and names.REPORT_TOKEN_DIRECTORY not in taken:
        mounts.append({"name": "trimtab-report", "mountPath": names.REPORT_TOKEN_DIRECTORY, "readOnly": True})
    if names.REQUEST_DIRECTORY not in taken:
        mounts.append({"name": "trimtab-request", "mountPath": names.REQUEST_DIRECTORY, "readOnly": True})


def _report_env(plan: GangPlan) -> dict[str, str]:
    """What `trimtab.report` needs to know."""
    if not plan.report_url:
        return {}
    values = {"TRIMTAB_REPORT_URL": plan.report_url, "TRIMTAB_REPORT_JOB": f"{plan.namespace}/{plan.job}"}
    return values | ({"TRIMTAB_REPORT_CA": plan.report_ca} if plan.report_ca else {})


def _checkpoint_env(plan: GangPlan) -> dict[str, str]:
    """Where a request to save the state can be read, and from where the training goes on."""
    values = {"TRIMTAB_CHECKPOINT_FILE": f"{names.REQUEST_DIRECTORY}/{_REQUEST_FILE}"}
    return values | ({"TRIMTAB_RESUME_STEP": str(plan.resume_step)} if plan.resume_step else {})


def _volumes(spec: Object, started: Launch) -> list[Object]:
    """Shared memory for the data loader and NCCL, the DeepSpeed file and a request to stop from the pod's own
    annotations, and the token that a report is known by, which is good for nothing else. The kubelet renews it; a
    template without a service account's usual token gets it all the same."""
    used = {mount["name"] for container in spec["containers"] for mount in container.get("volumeMounts") or []}
    volumes: list[Object] = []
    if "trimtab-shm" in used:
        volumes.append({"name": "trimtab-shm", "emptyDir": {"medium": "Memory"}})
    if started.deepspeed_config:
        item = _mirrored(names.ANNOTATION_DEEPSPEED, DEEPSPEED_CONFIG_PATH.rpartition("/")[2])
        volumes.append({"name": "trimtab-launch", "downwardAPI": {"items": [item]}})
    if "trimtab-request" in used:
        item = _mirrored(names.ANNOTATION_CHECKPOINT, _REQUEST_FILE)
        volumes.append({"name": "trimtab-request", "downwardAPI": {"items": [item]}})
    if "trimtab-report" in used:
        token = {"audience": names.REPORT_AUDIENCE, "expirationSeconds": 3600, "path": "token"}
        volumes.append({"name": "trimtab-report", "projected": {"sources": [{"serviceAccountToken": token}]}})
    return volumes


def _mirrored(annotation: str, path: str) -> Object:
    """A file of a downward API volume; empty while the pod has no such annotation."""
    return {"path": path, "fieldRef": {"fieldPath": f"metadata.annotations['{annotation}']"}}


def _labels(plan: GangPlan, rank: int) -> dict[str, str]:
    return {names.LABEL_JOB: plan.job, names.LABEL_EPOCH: str(plan.epoch), names.LABEL_RANK: str(rank)}


def _reach(plan: GangPlan) -> dict[str, str]:
    return {names.LABEL_REACH: "template"} if reaches(plan.template["spec"]) else {}


def _own_annotations(meta: Object) -> dict[str, str]:
    """The template's, but for the one that would say that the gang had been asked to stop."""
    return {key: value for key, value in (meta.get("annotations") or {}).items() if key != names.ANNOTATION_CHECKPOINT}


def _annotations(plan: GangPlan, name: str, share: NodeShare, started: Launch) -> dict[str, str]:
    values = {
        names.ANNOTATION_NODE: share.node,
        names.ANNOTATION_PLAN: f"{plan.plan.gpus}×{plan.gpu_type} {plan.plan.describe()}",
        names.ANNOTATION_GANG: str(len(plan.shares)),
    }
    if plan.queue:
        values[names.ANNOTATION_QUEUE] = plan.queue
    if plan.scheduler:
        values[names.ANNOTATION_BINDING] = "Extender"
    if started.deepspeed_config:
        values[names.ANNOTATION_DEEPSPEED] = started.deepspeed_config
    return values | plan.annotations.get(name, {})


def owner(plan: GangPlan) -> Object:
    """The ownerReference by which everything of a gang is the job's."""
    return _reference(plan.job, plan.uid)


def _reference(job: str, uid: str) -> Object:
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.JOB_KIND,
        "name": job,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _gang(plan: GangPlan, master_address: str, pod: Object) -> LaunchedGang:
    return LaunchedGang(
        job=plan.job,
        epoch=plan.epoch,
        gpu_type=plan.gpu_type,
        nodes=len(plan.shares),
        gpus_per_node=plan.shares[0].gpus,
        master_address=master_address,
        plan=plan.plan,
        training=plan.training,
        layers=plan.layers,
        command=_said(trainer_of(pod["containers"])),
    )


def _said(trainer: Object) -> tuple[str, ...]:
    """Words of the container's own command line, and names of its environment."""
    words = [*(trainer.get("command") or []), *(trainer.get("args") or [])]
    return (*words, *(entry["name"] for entry in trainer.get("env") or []))
