"""The ResourceClaimTemplate by which the pods of a gang claim their GPUs (dynamic resource allocation).

Where a DeviceClass has an extended resource (KEP-5004), pods ask for `nvidia.com/gpu: 8` as always, and kube-scheduler
makes the claim. Where it has none, each pod gets a claim of its own, made from one template per plan: pods of a gang
have equally many GPUs.
"""

from __future__ import annotations

from typing import Any

from trimtab import names
from trimtab.plan.objects import GangPlan, Object, owner

WHOLE_GPU = {
    names.NVIDIA_DRIVER: "device.attributes['gpu.nvidia.com'].type == 'gpu'",
    names.AMD_DRIVER: "device.attributes['gpu.amd.com'].type == 'amdgpu'",
}
"""DeviceClass -> what is a whole GPU among its devices, in CEL: the class of AMD's driver has partitions, too."""


def claim_template(plan: GangPlan) -> Object:
    """The template that the pods of a plan name from birth. Only for plans that have a `device_class`."""
    request: dict[str, Any] = {
        "deviceClassName": plan.device_class,
        "allocationMode": "ExactCount",
        "count": plan.shares[0].gpus,
        "selectors": [{"cel": {"expression": WHOLE_GPU[plan.device_class]}}],
    }
    return {
        "apiVersion": f"{names.DEVICE_GROUP}/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {
            "name": plan.group_name,
            "namespace": plan.namespace,
            "labels": {names.LABEL_JOB: plan.job, names.LABEL_EPOCH: str(plan.epoch)},
            "ownerReferences": [owner(plan)],
        },
        "spec": {"spec": {"devices": {"requests": [{"name": "gpus", "exactly": request}]}}},
    }
