"""URL paths of the kinds that Trimtab reads and writes."""

from __future__ import annotations

import re
from typing import NamedTuple

from trimtab.errors import NotFound
from trimtab.names import (
    API_VERSION,
    COMPUTE_DOMAIN_GROUP,
    DEVICE_GROUP,
    GPUNODE_PLURAL,
    JOB_PLURAL,
    KUEUE_GROUP,
    QUEUE_PLURAL,
)

_NAME = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._:-]{1,253}")
"""What can be the name of an object: a segment of a path by itself, and no step to another place in it."""


class Resource(NamedTuple):
    """A kind as the API server serves it."""

    api_version: str
    """`v1` or `group/version`."""
    plural: str

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """URL path of all objects, of one namespace's, of one object, or of one object's subresource.

        >>> PODS.path("team-a", "train-0", "binding")
        '/api/v1/namespaces/team-a/pods/train-0/binding'

        Names are what strangers have written, often: of one that no object can have, NotFound is raised, and nobody is
        asked. It would be the path of something else.
        """
        for given in (namespace, name):
            if given and not _NAME.fullmatch(given):
                raise NotFound(f"there is no object of the name {given[:253]!r} among {self.plural}", status=404)
        root = "apis" if "/" in self.api_version else "api"
        scope = ("namespaces", namespace) if namespace else ()
        parts = ("", root, self.api_version, *scope, self.plural, name, subresource)
        return "/" + "/".join(part for part in parts if part)


NODES = Resource("v1", "nodes")
PODS = Resource("v1", "pods")
NAMESPACES = Resource("v1", "namespaces")
SERVICES = Resource("v1", "services")
CONFIG_MAPS = Resource("v1", "configmaps")
SECRETS = Resource("v1", "secrets")
CLAIMS = Resource("v1", "persistentvolumeclaims")
SERVICE_ACCOUNTS = Resource("v1", "serviceaccounts")
TOKEN_REVIEWS = Resource("authentication.k8s.io/v1", "tokenreviews")
SUBJECT_ACCESS_REVIEWS = Resource("authorization.k8s.io/v1", "subjectaccessreviews")
SELF_SUBJECT_ACCESS_REVIEWS = Resource("authorization.k8s.io/v1", "selfsubjectaccessreviews")
EVENTS = Resource("events.k8s.io/v1", "events")
LEASES = Resource("coordination.k8s.io/v1", "leases")
PRIORITY_CLASSES = Resource("scheduling.k8s.io/v1", "priorityclasses")
POD_GROUPS = Resource("scheduling.k8s.io/v1alpha2", "podgroups")
"""Kubernetes 1.36."""
POD_GROUPS_BETA = Resource("scheduling.k8s.io/v1beta1", "podgroups")
"""Kubernetes 1.37: what we say of a gang is said in the same words."""
RESOURCE_SLICES = Resource(f"{DEVICE_GROUP}/v1", "resourceslices")
RESOURCE_CLAIMS = Resource(f"{DEVICE_GROUP}/v1", "resourceclaims")
RESOURCE_CLAIM_TEMPLATES = Resource(f"{DEVICE_GROUP}/v1", "resourceclaimtemplates")
DEVICE_CLASSES = Resource(f"{DEVICE_GROUP}/v1", "deviceclasses")
"""Dynamic resource allocation: Kubernetes 1.34."""
DEVICE_TAINT_RULES = Resource(f"{DEVICE_GROUP}/v1beta2", "devicetaintrules")
"""Kubernetes 1.36, where its feature gate is on."""
COMPUTE_DOMAINS = Resource(f"{COMPUTE_DOMAIN_GROUP}/v1beta1", "computedomains")
"""NVIDIA's driver for dynamic resource allocation."""
JOBS = Resource(API_VERSION, JOB_PLURAL)
QUEUES = Resource(API_VERSION, QUEUE_PLURAL)
GPUNODES = Resource(API_VERSION, GPUNODE_PLURAL)
WORKLOADS = Resource(f"{KUEUE_GROUP}/v1beta2", "workloads")
RESOURCE_FLAVORS = Resource(f"{KUEUE_GROUP}/v1beta2", "resourceflavors")
