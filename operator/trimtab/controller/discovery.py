"""What the cluster can do, asked of the API server: does it know PodGroups (Kubernetes 1.36 and 1.37, behind feature
gates) and dynamic resource allocation (1.34), is Kueue installed?

Only versions of those kinds that Trimtab knows count. Whatever the answer is, jobs without Kueue's label work the same.
"""

from __future__ import annotations

import asyncio

import msgspec
import structlog
from msgspec import Struct

from trimtab.errors import ApiError, Forbidden, NotFound
from trimtab.kube.backoff import Backoff
from trimtab.kube.client import KubeClient
from trimtab.kube.resources import (
    COMPUTE_DOMAINS,
    DEVICE_CLASSES,
    POD_GROUPS,
    POD_GROUPS_BETA,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_FLAVORS,
    RESOURCE_SLICES,
    WORKLOADS,
    Resource,
)

log = structlog.get_logger(__name__)


class _DiscoveredKind(Struct, frozen=True):
    name: str


class _Kinds(Struct, frozen=True):
    """metav1.APIResourceList."""

    resources: tuple[_DiscoveredKind, ...] = ()


async def pod_group_kind(client: KubeClient) -> Resource | None:
    """The newest PodGroup that the API server serves and we know; None where there is none. Asks until it answers."""
    for kind in (POD_GROUPS_BETA, POD_GROUPS):
        if await _serves(client, kind):
            return kind
    return None


async def serves_kueue(client: KubeClient) -> bool:
    """Whether the API server serves the Workloads and ResourceFlavors that we read. Asks until there is an answer."""
    return await _serves(client, WORKLOADS, RESOURCE_FLAVORS)


async def serves_devices(client: KubeClient) -> bool:
    """Whether the API server serves dynamic resource allocation as we read it. Asks until there is an answer."""
    return await _serves(client, RESOURCE_SLICES, RESOURCE_CLAIMS, RESOURCE_CLAIM_TEMPLATES, DEVICE_CLASSES)


async def serves_compute_domains(client: KubeClient) -> bool:
    """Whether the API server serves ComputeDomains as we write them. Asks until there is an answer."""
    return await _serves(client, COMPUTE_DOMAINS)


async def _serves(client: KubeClient, *wanted: Resource) -> bool:
    """Whether these kinds, of one API version, are served."""
    path = f"/apis/{wanted[0].api_version}"
    backoff = Backoff(initial=0.2, cap=8.0)
    while True:
        try:
            kinds = msgspec.json.decode(await client.get(path), type=_Kinds)
            return {resource.plural for resource in wanted} <= {kind.name for kind in kinds.resources}
        except (NotFound, Forbidden, msgspec.DecodeError):
            return False
        except ApiError as error:
            log.info("asking again what is served", path=path, error=str(error))
            await asyncio.sleep(backoff.next(error.retry_after))
