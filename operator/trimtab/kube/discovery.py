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
from trimtab.kube.resources import POD_GROUPS, POD_GROUPS_BETA, Resource

log = structlog.get_logger(__name__)


class _DiscoveredKind(Struct, frozen=True):
    name: str


class _Kinds(Struct, frozen=True):
    """metav1.APIResourceList."""

    resources: tuple[_DiscoveredKind, ...] = ()


async def pod_group_kind(client: KubeClient) -> Resource | None:
    """The newest PodGroup that the API server serves and we know; None where there is none. Asks until it answers."""
    for kind in (POD_GROUPS_BETA, POD_GROUPS):
        if await serves(client, kind):
            return kind
    return None


async def serves(client: KubeClient, *wanted: Resource) -> bool | None:
    """Whether the API server serves all these kinds, of one API version. Asks until there is an answer; None where that
    is one of nobody who knows: it is kept from us, or makes no sense."""
    path = f"/apis/{wanted[0].api_version}"
    backoff = Backoff(initial=0.2, cap=8.0)
    while True:
        try:
            kinds = msgspec.json.decode(await client.get(path), type=_Kinds)
            return {resource.plural for resource in wanted} <= {kind.name for kind in kinds.resources}
        except NotFound:
            return False
        except (Forbidden, msgspec.DecodeError):
            return None
        except ApiError as error:
            log.info("asking again what is served", path=path, error=str(error))
            await asyncio.sleep(backoff.next(error.retry_after))
