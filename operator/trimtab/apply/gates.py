"""The gate that pods are born behind where kube-scheduler binds them: who waits at it, and who was let through."""

from __future__ import annotations

from collections.abc import Iterable

from trimtab import names
from trimtab.kube.objects import PodObject


def is_gated(pod: PodObject) -> bool:
    """Whether the pod was made for kube-scheduler to bind, whether or not its gate is still there."""
    return names.ANNOTATION_BINDING in pod.metadata.annotations


def waits(pod: PodObject) -> bool:
    """Whether its gate is still there."""
    return any(gate.name == names.SCHEDULING_GATE for gate in pod.spec.scheduling_gates)


def released(pods: Iterable[PodObject]) -> bool:
    """Whether kube-scheduler may bind some of these pods, and has not bound them yet."""
    return any(is_gated(pod) and not waits(pod) and not pod.spec.node_name for pod in pods)
