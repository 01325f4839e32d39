"""Whether a pod reaches further than every pod of its namespace does: to secrets, other accounts, or its host.

Such pods carry a label, by which the API server holds them against the template of their job
(ValidatingAdmissionPolicy trimtab-controller-templates); all others it keeps from reaching anything. That rule must not
refuse what passes here without a label: where it could not be told for sure, a pod is labelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_HARMLESS = {"emptyDir", "persistentVolumeClaim", "configMap", "downwardAPI", "ephemeral", "image"}
"""Volumes of what any pod of the namespace may have as well."""
_UNPRIVILEGED = {
    "allowPrivilegeEscalation", "fsGroup", "fsGroupChangePolicy", "readOnlyRootFilesystem", "runAsGroup",
    "runAsNonRoot", "runAsUser", "seccompProfile", "supplementalGroups", "supplementalGroupsPolicy",
}  # fmt: skip


def reaches(spec: Mapping[str, Any]) -> bool:
    """Whether the pod that this template stands for does."""
    accounts = {spec.get("serviceAccountName") or "default", spec.get("serviceAccount") or "default"}
    return bool(
        accounts != {"default"}
        or any(spec.get(field) for field in ("hostNetwork", "hostPID", "hostIPC", "resourceClaims"))
        or any(set(volume) - {"name"} - _HARMLESS for volume in spec.get("volumes") or ())
        or _privileged(spec.get("securityContext"))
        or any(map(_of_container, (*spec["containers"], *(spec.get("initContainers") or ()))))
    )


def _of_container(container: Mapping[str, Any]) -> bool:
    return bool(
        any("secretKeyRef" in (entry.get("valueFrom") or {}) for entry in container.get("env") or ())
        or any("secretRef" in entry for entry in container.get("envFrom") or ())
        or any(port.get("hostPort") for port in container.get("ports") or ())
        or _privileged(container.get("securityContext"))
    )


def _privileged(context: Mapping[str, Any] | None) -> bool:
    told = {field for field, value in (context or {}).items() if value is not None} - _UNPRIVILEGED
    dropped = {field for field, value in ((context or {}).get("capabilities") or {}).items() if value} <= {"drop"}
    return bool(told - {"capabilities"}) or not dropped
