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
MAX_NAME_LENGTH: Final = 40
"""Of a job: pods are called `JOB-EPOCH-RANK`, which must stay a DNS label of 63 characters."""
MANAGED_BY: Final = f"{GROUP}/controller"
"""`spec.managedBy` of jobs that are ours; the same as leaving it out."""
TRAINER_CONTAINER: Final = "trainer"
"""Container of the template that gets GPUs, ranks and flags; the first one where none has this name."""
FIELD_MANAGER: Final = "trimtab-controller"
SCHEDULER_NAME: Final = "trimtab"
LEASE_NAME: Final = "trimtab-controller"
SYSTEM_NAMESPACE: Final = "trimtab-system"

# --- the ConfigMap that changes policies while the controller runs -------------------------------------------------
POLICY_CONFIG_MAP: Final = "trimtab-policy"
KEY_POLICY: Final = "policy"
KEY_FALLBACK: Final = "fallback"
KEY_SHADOW: Final = "shadow"
KEY_DEADLINE: Final = "deadlineSeconds"

# --- labels and annotations on what we create ----------------------------------------------------------------------
LABEL_JOB: Final = f"{GROUP}/job"
"""Name of the job a pod or Service belongs to. Ownership is proven by the ownerReference's UID, never by this."""
LABEL_EPOCH: Final = f"{GROUP}/epoch"
"""Plan epoch the pod was made for."""
LABEL_RANK: Final = f"{GROUP}/node-rank"
ANNOTATION_NODE: Final = f"{GROUP}/node"
"""Node that the plan gives this pod."""
ANNOTATION_PLAN: Final = f"{GROUP}/plan"
"""The degrees in words, for `kubectl describe`."""
ANNOTATION_DEEPSPEED: Final = f"{GROUP}/deepspeed-config"
ANNOTATION_POLICY: Final = f"{GROUP}/policy"
"""On a job: use this policy instead of the configured one (tests, comparisons)."""
ANNOTATION_FAKE_FAIL: Final = f"fake.{GROUP}/fail"
"""On a job: `RANK@FRACTION[xTIMES]`, let that fake pod fail after that part of its run time."""

# --- condition types and reasons -----------------------------------------------------------------------------------
PLANNED: Final = "Planned"
GANG_SCHEDULED: Final = "GangScheduled"
PODS_READY: Final = "PodsReady"
SUSPENDED: Final = "Suspended"
COMPLETE: Final = "Complete"
FAILED: Final = "Failed"
CONDITIONS: Final = (PLANNED, GANG_SCHEDULED, PODS_READY, SUSPENDED, FAILED, COMPLETE)
"""In the order in which they overrule each other when a job's state is told in one word."""
# Reasons of conditions that are True: the words of the STATE column. A waiting job shows its PendingReason there.
REASON_UNSEEN: Final = "Unseen"
REASON_BINDING: Final = "Binding"
"""Planned: the gang's pods are being created and bound."""
REASON_STARTING: Final = "Starting"
"""GangScheduled: every pod has its node; images are pulled, containers start."""
REASON_RUNNING: Final = "Running"
"""PodsReady."""
REASON_SUSPENDED: Final = "Suspended"
REASON_COMPLETED: Final = "Completed"
REASON_FAILED: Final = "Failed"
"""Failed: for good. A gang that is to be started again shows what stopped it instead."""

# --- node labels that others set -------------------------------------------------------------------------------------
NVIDIA_GPU: Final = "nvidia.com/gpu"
AMD_GPU: Final = "amd.com/gpu"
INTEL_GPUS: Final = ("gpu.intel.com/xe", "gpu.intel.com/i915")
GPU_RESOURCES: Final = (NVIDIA_GPU, AMD_GPU, *INTEL_GPUS)
HOSTNAME: Final = "kubernetes.io/hostname"
