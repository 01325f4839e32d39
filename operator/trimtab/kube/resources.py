"""URL paths of the kinds that Trimtab reads and writes."""

from __future__ import annotations

from typing import NamedTuple

from trimtab.names import API_VERSION, JOB_PLURAL, QUEUE_PLURAL


class Resource(NamedTuple):
    """A kind as the API server serves it."""

    api_version: str
    """`v1` or `group/version`."""
    plural: str

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """URL path of all objects, of one namespace's, of one object, or of one object's subresource.

        >>> PODS.path("team-a", "train-0", "binding")
        '/api/v1/namespaces/team-a/pods/train-0/binding'
        """
        root = "apis" if "/" in self.api_version else "api"
        scope = ("namespaces", namespace) if namespace else ()
        parts = ("", root, self.api_version, *scope, self.plural, name, subresource)
        return "/" + "/".join(part for part in parts if part)


NODES = Resource("v1", "nodes")
PODS = Resource("v1", "pods")
SERVICES = Resource("v1", "services")
CONFIG_MAPS = Resource("v1", "configmaps")
EVENTS = Resource("events.k8s.io/v1", "events")
LEASES = Resource("coordination.k8s.io/v1", "leases")
PRIORITY_CLASSES = Resource("scheduling.k8s.io/v1", "priorityclasses")
JOBS = Resource(API_VERSION, JOB_PLURAL)
QUEUES = Resource(API_VERSION, QUEUE_PLURAL)
