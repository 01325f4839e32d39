"""The PodGroup of a gang: Kubernetes' own word for "all or none" (KEP-4671), where the cluster has it.

`scheduling.k8s.io/v1alpha2` of Kubernetes 1.36, `v1beta1` of 1.37, both behind the feature gates GenericWorkload and
GangScheduling; what is new in 1.37 (a reference to a Workload, the mode of disruption) we leave to its defaults. With
it kube-scheduler decides about the whole gang in one cycle and binds none of it unless all of it fits. Without it our
gate alone keeps the gang together.
"""

from __future__ import annotations

from trimtab import names
from trimtab.kube.resources import Resource
from trimtab.plan.objects import GangPlan, Object, owner


def pod_group(plan: GangPlan, kind: Resource) -> Object:
    """The PodGroup that the pods of a plan name from birth, in the version that is served."""
    return {
        "apiVersion": kind.api_version,
        "kind": "PodGroup",
        "metadata": {
            "name": plan.group_name,
            "namespace": plan.namespace,
            "labels": {names.LABEL_JOB: plan.job, names.LABEL_EPOCH: str(plan.epoch)},
            "ownerReferences": [owner(plan)],
        },
        "spec": {"schedulingPolicy": {"gang": {"minCount": len(plan.shares)}}},
    }
