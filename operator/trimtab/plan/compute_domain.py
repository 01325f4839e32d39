"""The ComputeDomain of a gang: NVIDIA's word for nodes whose GPUs may use each other's memory over NVLink (NVL72).

Each pod claims a channel of it. The driver starts a daemon on each node that such a pod comes to, and makes the
template of that claim, under the name that is given here. A node has one domain at a time, so only gangs that have
their nodes for themselves get one. `numNodes` is 0, as the driver advises: ranks find one another by their rendezvous.
"""

from __future__ import annotations

from trimtab import names
from trimtab.kube.resources import COMPUTE_DOMAINS
from trimtab.plan.objects import GangPlan, Object, owner


def compute_domain(plan: GangPlan) -> Object:
    """The ComputeDomain that the pods of a plan have a channel of."""
    return {
        "apiVersion": COMPUTE_DOMAINS.api_version,
        "kind": "ComputeDomain",
        "metadata": {
            "name": plan.group_name,
            "namespace": plan.namespace,
            "labels": {names.LABEL_JOB: plan.job, names.LABEL_EPOCH: str(plan.epoch)},
            "ownerReferences": [owner(plan)],
        },
        "spec": {"numNodes": 0, "channel": {"resourceClaimTemplate": {"name": plan.channel_name}}},
    }
