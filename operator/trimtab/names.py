"""Every name that a user can see: API group, labels, annotations, conditions, reasons, metrics. Constants only."""

from typing import Final

# --- the API -----------------------------------------------------------------------------------------------------
GROUP: Final = "trimtab.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
JOB_KIND: Final = "LLMTrainingJob"
JOB_PLURAL: Final = "llmtrainingjobs"
QUEUE_KIND: Final = "Queue"
QUEUE_PLURAL: Final = "queues"
GPUNODE_KIND: Final = "GPUNode"
GPUNODE_PLURAL: Final = "gpunodes"
MAX_NAME_LENGTH: Final = 40
"""Of a job: pods are called `JOB-EPOCH-RANK`, which must stay a DNS label of 63 characters."""
MANAGED_BY: Final = f"{GROUP}/controller"
"""`spec.managedBy` of jobs that are ours; the same as leaving it out."""
MANAGED_BY_STAND_IN: Final = f"{GROUP}/stand-in"
"""`spec.managedBy` of a job that stands in for one of another kind: whose own controller makes the pods."""
TRAINER_CONTAINER: Final = "trainer"
"""Container of the template that gets GPUs, ranks and flags; the first one where none has this name."""
FIELD_MANAGER: Final = "trimtab-controller"
AGENT_FIELD_MANAGER: Final = "trimtab-agent"
AGENT_ACCOUNT: Final = "trimtab-agent"
CONTROLLER_ACCOUNT: Final = "trimtab-controller"
EXTENDER_ACCOUNT: Final = "trimtab-extender"
SCHEDULER_ACCOUNT: Final = "trimtab-scheduler"
"""Of the second kube-scheduler; its Lease and its ConfigMap are called the same."""
EXTENDER_SECRETS: Final = ("trimtab-extender-tls", "trimtab-scheduler-tls")
"""Secrets with the certificates of the extender, and of the kube-scheduler that asks it."""
LABEL_PART: Final = "app.kubernetes.io/name"
"""On pods of Trimtab itself: which part of it they are, `trimtab-controller`; or `trimtab`, and the next one says."""
LABEL_COMPONENT: Final = "app.kubernetes.io/component"
LABEL_VERSION: Final = "app.kubernetes.io/version"
SCHEDULER_NAME: Final = "trimtab"
LEASE_NAME: Final = "trimtab-controller"
SYSTEM_NAMESPACE: Final = "trimtab-system"

# --- the ConfigMap that changes policies while the controller runs -------------------------------------------------
POLICY_CONFIG_MAP: Final = "trimtab-policy"
KEY_POLICY: Final = "policy"
KEY_FALLBACK: Final = "fallback"
KEY_SHADOW: Final = "shadow"
KEY_DEADLINE: Final = "deadlineSeconds"

MONITOR_CONFIG_MAP: Final = "trimtab-monitor"
"""Keeps whether the policy has been found to be worse than its fallback on this cluster."""

# --- what was learned from running jobs ------------------------------------------------------------------------------
CALIBRATION_CONFIG_MAP: Final = "trimtab-calibration"
REPORT_AUDIENCE: Final = "reports.trimtab.dev"
"""Audience of the token that a trainer shows when it reports its steps."""
REPORT_TOKEN_DIRECTORY: Final = "/var/run/secrets/trimtab.dev/report"  # noqa: S105 - a path
"""Where a trainer finds that token, in a file called `token`."""

# --- labels and annotations on what we create ----------------------------------------------------------------------
LABEL_JOB: Final = f"{GROUP}/job"
"""Name of the job a pod or Service belongs to. Ownership is proven by the ownerReference's UID, never by this."""
LABEL_JOB_UID: Final = f"{GROUP}/job-uid"
"""UID of that job, on pods that another controller has made (LABEL_MANAGED). An owner of ours beside theirs would not
do: the garbage collector takes it away as soon as our job is gone, and the pods would run on as nobody's."""
LABEL_EPOCH: Final = f"{GROUP}/epoch"
"""Plan epoch the pod was made for."""
LABEL_RANK: Final = f"{GROUP}/node-rank"
LABEL_REACH: Final = f"{GROUP}/reach"
"""`template` on a pod that reaches secrets, an account or its host because the template of its job says so."""
ANNOTATION_NODE: Final = f"{GROUP}/node"
"""Node that the plan gives this pod."""
ANNOTATION_QUEUE: Final = f"{GROUP}/queue"
"""Queue that this pod's GPUs count against for as long as it holds them, whatever becomes of its job."""
ANNOTATION_PLAN: Final = f"{GROUP}/plan"
"""The degrees in words, for `kubectl describe`."""
ANNOTATION_DEEPSPEED: Final = f"{GROUP}/deepspeed-config"
ANNOTATION_LAUNCH: Final = f"{GROUP}/launch"
"""On a pod that another controller has made: what its plan says to its launcher, read there by `trimtab.launch`."""
ANNOTATION_POLICY: Final = f"{GROUP}/policy"
"""On a job: use this policy instead of the configured one (tests, comparisons)."""
ANNOTATION_FAKE_FAIL: Final = f"fake.{GROUP}/fail"
"""On a job: `RANK@FRACTION[xTIMES]`, let that fake pod fail after that part of its run time."""
ANNOTATION_FAKE_GPU_FAULTS: Final = f"fake.{GROUP}/gpu-faults"
"""On a fake node: faults for its agent to report, as the YAML list of a profile of the fake backend."""

SCHEDULING_GATE: Final = f"{GROUP}/gang"
"""Holds every pod of a gang back from kube-scheduler until all of them exist (Extender binding)."""
ANNOTATION_GANG: Final = f"{GROUP}/gang-size"
"""Pods of the gang, on each of them: whoever sees one knows whether others are missing, without asking anybody."""
ANNOTATION_BINDING: Final = f"{GROUP}/binding"
"""`Extender` on a pod that was made for kube-scheduler to bind."""
ANNOTATION_REPAIRED: Final = f"{GROUP}/repaired"
"""On a GPUNode, or a Node: RFC 3339 time; faults before it are mended, and what it did to gangs is forgotten."""

# --- on training jobs of other kinds: what they do not say themselves -----------------------------------------------
STATED: Final = {
    "model": f"{GROUP}/model",
    "sequence_length": f"{GROUP}/sequence-length",
    "global_batch_size": f"{GROUP}/global-batch-size",
    "steps": f"{GROUP}/steps",
    "tokens": f"{GROUP}/tokens",
    "gpus": f"{GROUP}/gpus",
    "gpu_type": f"{GROUP}/gpu-types",
    "precision": f"{GROUP}/precision",
    "optimizer": f"{GROUP}/optimizer",
    "tensor": f"{GROUP}/tensor",
    "pipeline": f"{GROUP}/pipeline",
    "context": f"{GROUP}/context",
    "expert": f"{GROUP}/expert",
    "zero_stage": f"{GROUP}/zero-stage",
    "recompute": f"{GROUP}/recompute",
    "mode": f"{GROUP}/mode",
    "launcher": f"{GROUP}/launcher",
    "elasticity": f"{GROUP}/elasticity",
    "resharding": f"{GROUP}/resharding",
    "gpus_per_node": f"{GROUP}/gpus-per-node",
    "nodes": f"{GROUP}/nodes",
    "image": f"{GROUP}/image",
    "gated_ffn": f"{GROUP}/gated-ffn",
    "tied_embeddings": f"{GROUP}/tied-embeddings",
    "biases": f"{GROUP}/biases",
    "layers": f"{GROUP}/layers",
    "hidden_size": f"{GROUP}/hidden-size",
    "attention_heads": f"{GROUP}/attention-heads",
    "kv_heads": f"{GROUP}/kv-heads",
    "head_dim": f"{GROUP}/head-dim",
    "ffn_hidden_size": f"{GROUP}/ffn-hidden-size",
    "vocab_size": f"{GROUP}/vocab-size",
    "experts": f"{GROUP}/experts",
    "experts_per_token": f"{GROUP}/experts-per-token",
}
"""Field of a job of another kind -> the annotation that states it; `--set FIELD=VALUE` of `trimtab plan` and `convert`
does the same. An annotation counts before anything that is read off commands."""

LABEL_ADVISE: Final = f"{GROUP}/advise"
"""`true` on a job of another kind: annotations and an event say what Trimtab would decide, and nothing is changed."""
ADVICE: Final = {
    "at": f"{GROUP}/advice-at",
    "about": f"{GROUP}/advice-about",
    "gpu_type": f"{GROUP}/advice-gpu-type",
    "gpus": f"{GROUP}/advice-gpus",
    "nodes": f"{GROUP}/advice-nodes",
    "plan": f"{GROUP}/advice-plan",
    "start": f"{GROUP}/advice-start",
    "end": f"{GROUP}/advice-end",
    "because": f"{GROUP}/advice-because",
    "problem": f"{GROUP}/advice-problem",
}
"""What an advice says -> the annotation on that job; `about` is a digest of what the job said then."""
LABEL_MANAGED: Final = f"{GROUP}/managed"
"""`true` on a job of another kind, and on its pods: Trimtab decides when and where they run."""
ANNOTATION_STAND_IN: Final = f"{GROUP}/stand-in"
"""On such a job: the LLMTrainingJob that stands in for it, whose status has the plan."""
ANNOTATION_SUSPENDED: Final = f"{GROUP}/suspended"
"""On such a job: why Trimtab has suspended it. Without it, its user has."""
ANNOTATION_PLACE_PROBLEM: Final = f"{GROUP}/place-problem"
"""On such a job: why it cannot be placed as it is."""
ANNOTATION_SHAPED: Final = f"{GROUP}/shaped"
"""On such a job: fields that Trimtab has changed while it was suspended, what stood there, and what does now."""
PLACE: Final = (ANNOTATION_STAND_IN, ANNOTATION_SUSPENDED, ANNOTATION_PLACE_PROBLEM, ANNOTATION_SHAPED)
REASON_NOT_PLACED: Final = "NotPlaced"
"""Of an event about a job of another kind: it cannot be placed as it is, and is left alone; the message says why."""
REASON_STAND_IN: Final = "StandIn"
"""Of events about these jobs: there is a stand-in now, or there cannot be one."""
REASON_ADVICE: Final = "Advice"
"""Of an event about a training job of another kind: what Trimtab would decide about it."""
REASON_NO_ADVICE: Final = "NoAdvice"
"""Of an event about such a job: it cannot be advised, and the message says why."""

# --- asking a running gang to save a checkpoint and stop -----------------------------------------------------------
ANNOTATION_CHECKPOINT: Final = f"{GROUP}/checkpoint-requested"
"""On the pods of a gang: RFC 3339 time by which it must have saved a checkpoint, for it will be stopped then."""
REQUEST_DIRECTORY: Final = "/var/run/trimtab.dev"
"""Where the trainer finds that annotation as a file (downward API), called `checkpoint-requested`; empty while nobody
asks."""
EXIT_CHECKPOINTED: Final = 143
"""How a trainer ends that has saved its state because it was asked to: as SIGTERM would end it."""
ANNOTATION_FAKE_CHECKPOINT: Final = f"fake.{GROUP}/checkpoint"
"""On a job: how its fake trainer answers a request for a checkpoint: `Ignores`, or seconds until it has saved (0)."""

ANNOTATION_KWOK: Final = "kwok.x-k8s.io/node"
"""On a fake node: KWOK plays its kubelet."""

# --- Kueue -----------------------------------------------------------------------------------------------------------
KUEUE_GROUP: Final = "kueue.x-k8s.io"
LABEL_KUEUE_QUEUE: Final = f"{KUEUE_GROUP}/queue-name"
"""On a job: the LocalQueue of Kueue that admits it."""
LABEL_KUEUE_JOB_UID: Final = f"{KUEUE_GROUP}/job-uid"
"""On a Workload: UID of the job that asks with it; Kueue's own integrations set it, too."""
ANNOTATION_ASKED: Final = f"{GROUP}/asked"
"""On a Workload: digest of what its job asks for, to notice edits by."""
REASON_KUEUE_ADMITTED: Final = "AdmittedByKueue"
"""Of an event: Kueue has admitted the job, which is planned from now on."""
REASON_KUEUE_MISSING: Final = "KueueNotInstalled"
"""Of an event about a job that names one of Kueue's queues where there is no Kueue: it is started all the same."""
REASON_KUEUE_REFUSED: Final = "WorkloadRefused"
"""Of an event: the API server does not take the Workload by which the job asks Kueue; the message has its words."""

ANNOTATIONS_READ: Final = frozenset(
    {
        ANNOTATION_NODE,
        ANNOTATION_QUEUE,
        ANNOTATION_POLICY,
        ANNOTATION_FAKE_FAIL,
        ANNOTATION_FAKE_GPU_FAULTS,
        ANNOTATION_FAKE_CHECKPOINT,
        ANNOTATION_GANG,
        ANNOTATION_BINDING,
        ANNOTATION_REPAIRED,
        ANNOTATION_CHECKPOINT,
        ANNOTATION_KWOK,
        ANNOTATION_ASKED,
    }
)
"""Of all annotations those that anything depends on: no others are kept, whatever users write there."""

# --- condition types and reasons -----------------------------------------------------------------------------------
PLANNED: Final = "Planned"
GANG_SCHEDULED: Final = "GangScheduled"
PODS_READY: Final = "PodsReady"
SUSPENDED: Final = "Suspended"
COMPLETE: Final = "Complete"
FAILED: Final = "Failed"
CHECKPOINT_REQUESTED: Final = "CheckpointRequested"
"""Of a running job: it is to save its state, and will be stopped."""
CONDITIONS: Final = (PLANNED, GANG_SCHEDULED, PODS_READY, CHECKPOINT_REQUESTED, SUSPENDED, FAILED, COMPLETE)
"""In the order in which they overrule each other when a job's state is told in one word."""
DRIFTED: Final = "Drifted"
"""Of a running job: its steps take much longer or shorter than predicted. Says nothing about the job's state."""
PREEMPTED: Final = "Preempted"
"""Of a waiting job: its GPUs were given to another one. Says nothing about why it waits."""
DEGRADED: Final = "Degraded"
"""Of a job: nodes of its gang are lost, and nothing is done about it, because too many are lost at once."""
IDLE: Final = "Idle"
"""Of a running job: it holds GPUs and does nothing. Says nothing about the job's state."""
HEALTHY: Final = "Healthy"
"""Of a GPUNode; the controller's judgement."""
FAULT_CONTAINED: Final = "FaultContained"
"""Of a GPUNode that is not Healthy: its device plugin has taken the faulty GPUs away, and the others go on. There only
while that is so."""
REASON_DEVICE_PLUGIN: Final = "TakenByDevicePlugin"
"""FaultContained: the node's device plugin offers the faulty GPUs no more."""
# Reasons of Healthy: why a node's GPUs may take jobs, may not (False), or may not yet (Unknown).
REASON_HEALTHY: Final = "NoFaults"
"""Healthy: the agent reports no fault."""
REASON_XID_FATAL: Final = "XidFatal"
"""Healthy (False): the driver has told of an error (Xid) after which the GPU has to be reset."""
REASON_GPU_LOST: Final = "GpuLost"
"""Healthy (False): the driver does not reach a GPU any more."""
REASON_ROW_REMAP_FAILED: Final = "RowRemapFailed"
"""Healthy (False): a GPU has no spare memory rows left for broken ones: it is to be replaced."""
REASON_UNCORRECTABLE_ECC: Final = "UncorrectableEcc"
"""Healthy (False): memory of a GPU has had an error that could not be corrected."""
REASON_RECOVERING: Final = "Recovering"
"""No fault any more, but not for long."""
REASON_TOO_MANY_UNHEALTHY: Final = "TooManyUnhealthy"
"""A fault that nothing is done about, because too many nodes are held back already."""
REASON_STALE_READINGS: Final = "StaleReadings"
"""Healthy (Unknown): the node's agent has not reported for too long."""
REASON_NO_READINGS: Final = "NoReadings"
"""The agent reports, and cannot read the GPUs."""
REASON_GPU_UNHEALTHY: Final = "GpuUnhealthy"
"""Of a gang that had to leave a broken GPU."""
REASON_IDLE: Final = "NothingDone"
"""Idle: all GPUs of the gang have done nothing for as long as `idle.after_seconds` says, and no step was reported."""
REASON_ACTIVE: Final = "Active"
"""Idle (False): a GPU of the gang computes again, or the training has reported a step."""
REASON_SLOW_GPU: Final = "SlowGpu"
"""Of an event about a node with a GPU that does less than its peers."""
REASON_STRAGGLER: Final = "Straggler"
"""Of a gang that leaves a slow GPU for faster ones."""
# Reasons of conditions that are True: the words of the STATE column. A waiting job shows its PendingReason there.
REASON_BINDING: Final = "Binding"
"""Planned: the gang's pods are being created and bound."""
REASON_BOUND: Final = "Bound"
"""Planned: every pod of the plan has its node."""
REASON_MAKING_ROOM: Final = "MakingRoom"
"""Planned: GPUs of the plan are still held by gangs that were asked to stop."""
REASON_STOPPING: Final = "Stopping"
"""CheckpointRequested: it saves its state, and is stopped then; `status.stop` says why."""
REASON_MASS_FAILURE: Final = "MassFailure"
"""Degraded: so many nodes are lost at once that the network, or the API server, is more likely at fault: gangs stay."""
REASON_STARTING: Final = "Starting"
"""GangScheduled: every pod has its node; images are pulled, containers start."""
REASON_RUNNING: Final = "Running"
"""PodsReady: all pods of the gang run."""
REASON_HELD_UP: Final = "PodsStillThere"
"""Planned (False): pods of an earlier gang should have ended, and nobody says that they have."""
REASON_FORCED: Final = "PodForced"
"""Of an event: a pod on a node that does not answer was deleted by force, for its gang is no gang any more."""
REASON_NO_COMPUTE_DOMAIN: Final = "ComputeDomainRefused"
"""Of an event: a gang whose nodes share an NVLink domain goes on without one."""
REASON_SUSPENDED: Final = "Suspended"
"""Suspended: `spec.suspend` is set, so the job holds no GPUs."""
REASON_COMPLETED: Final = "Completed"
"""Complete: all pods of its gang have succeeded."""
REASON_FAILED: Final = "Failed"
"""Failed: for good. A gang that is to be started again shows what stopped it instead."""

# --- node labels that others set -------------------------------------------------------------------------------------
NVIDIA_GPU: Final = "nvidia.com/gpu"
AMD_GPU: Final = "amd.com/gpu"
INTEL_GPUS: Final = ("gpu.intel.com/xe", "gpu.intel.com/i915")
GPU_RESOURCES: Final = (NVIDIA_GPU, AMD_GPU, *INTEL_GPUS)
"""What the plan sets, and queues count."""
ACCELERATORS: Final = (
    *("nvidia.com/gpu", "nvidia.com/mig-", "nvidia.com/pgpu", "nvidia.com/vgpu"),
    *("nvidia.com/G", "nvidia.com/TU", "nvidia.com/AD", "nvidia.com/NVIDIA"),
    *("amd.com/gpu", "amd.com/spx", "amd.com/dpx", "amd.com/tpx", "amd.com/qpx", "amd.com/cpx"),
    *("gpu.intel.com/", "habana.ai/", "google.com/tpu", "cloud-tpus.google.com/", "aws.amazon.com/neuron"),
    *("huawei.com/Ascend", "cambricon.com/", "hygon.com/", "metax-tech.com/", "mthreads.com/", "iluvatar.ai/"),
    *("enflame.com/", "kunlunxin.com/", "furiosa.ai/", "rebellions.ai/", "tenstorrent.com/", "qualcomm.com/qaic"),
    *("volcano.sh/vgpu", "aliyun.com/gpu", "tencent.com/vcuda", "k8s.amazonaws.com/vgpu"),
    "deviceclass.resource.kubernetes.io/",
)
"""Beginnings of resource names that are accelerators, those of GPU_RESOURCES among them: no template may ask for any,
since no queue would count it. NVIDIA's device plugin calls what it passes through after the chip (`GH100_...`); the
last one is any DeviceClass. What an administrator has named otherwise nobody can know."""
COMPUTE_DOMAIN_GROUP: Final = "resource.nvidia.com"
"""NVIDIA's ComputeDomains."""
COMPUTE_DOMAIN_DRIVER: Final = "compute-domain.nvidia.com"
"""Their driver of dynamic resource allocation: its devices are daemons and channels."""
DEVICE_GROUP: Final = "resource.k8s.io"
"""Dynamic resource allocation."""
NVIDIA_DRIVER: Final = "gpu.nvidia.com"
AMD_DRIVER: Final = "gpu.amd.com"
"""Drivers of dynamic resource allocation that offer GPUs; the DeviceClass of their chart is called the same."""
DEVICE_CLASS_RESOURCE: Final = "deviceclass.resource.kubernetes.io/"
"""Kubernetes' own notation for devices of a DeviceClass as a resource; the name of the class follows."""
VENDOR_RESOURCES: Final = {NVIDIA_DRIVER: NVIDIA_GPU, AMD_DRIVER: AMD_GPU}
"""DeviceClass -> the extended resource of the vendor's GPUs, after which taints of GPU nodes are called."""
CLASS_RESOURCES: Final = tuple(DEVICE_CLASS_RESOURCE + driver for driver in VENDOR_RESOURCES)
"""What stands for GPUs of a DeviceClass that has no extended resource: in plans, and in what Kueue is asked for."""
GPU_CLAIM: Final = "trimtab-gpus"
"""In a pod of a gang: its claim for GPUs, where no extended resource stands for them."""
CHANNEL_CLAIM: Final = "trimtab-channel"
"""In a pod of a gang that has a ComputeDomain: its claim for a channel of that."""
DEVICE_TAINT_FREE: Final = "None"
"""Effect of a device's taint that keeps nobody away."""
HOSTNAME: Final = "kubernetes.io/hostname"
TAINT_OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
"""Kubernetes' own word for a machine that is off for sure: its pods are deleted by force."""
