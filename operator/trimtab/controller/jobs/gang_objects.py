"""What a gang has besides its Service and its pods, written to the API server: a PodGroup, the template of its claims,
a ComputeDomain.

A gang can do without the first and the last: its gates hold it together as well, and without memory that is shared over
NVLink its nodes talk over the network. So where one of these is refused, users are told and the gang goes on without
it; and what cannot be deleted is left to the garbage collector, which deletes it with its job.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from trimtab import names
from trimtab.apply import write
from trimtab.apply.actions import (
    CreateClaimTemplate,
    CreateComputeDomain,
    CreatePodGroup,
    DeleteClaimTemplate,
    DeleteComputeDomain,
    DeletePodGroup,
)
from trimtab.apply.steps import JobContext
from trimtab.apply.transitions import JobEvent
from trimtab.controller.cluster import Cluster
from trimtab.controller.event_recorder import EventRecorder
from trimtab.controller.views import DriverState
from trimtab.errors import ApiError, Forbidden, Invalid, NotFound
from trimtab.kube.client import KubeClient
from trimtab.kube.objects import AnyObject
from trimtab.kube.reflector import Reflector
from trimtab.plan.claim_template import claim_template
from trimtab.plan.compute_domain import compute_domain
from trimtab.plan.objects import GangPlan, Object
from trimtab.plan.pod_group import pod_group
from trimtab.telemetry import metrics

Creation = CreatePodGroup | CreateClaimTemplate | CreateComputeDomain
Deletion = DeletePodGroup | DeleteClaimTemplate | DeleteComputeDomain
DOMAIN_SECONDS = 30.0
"""How long a gang waits for its ComputeDomain while the API server, or a webhook behind it, fails."""

log = structlog.get_logger(__name__)


class GangObjects:
    """Writes them, and takes the answers into the caches."""

    def __init__(
        self,
        client: KubeClient,
        cluster: Cluster,
        recorder: EventRecorder,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._recorder = recorder
        self._monotonic = monotonic

    async def create(self, view: JobContext, gang: DriverState, action: Creation, plan: GangPlan) -> None:
        """Create one, or find that it is there. Raises WriteRefused where the gang cannot do without, and ApiError
        where it is to be tried again."""
        match action:
            case CreateClaimTemplate():
                await self._create_claim_template(view, plan)
            case CreatePodGroup():
                await self._create_pod_group(view, gang, plan)
            case CreateComputeDomain():
                await self._create_compute_domain(view, gang, plan)

    async def delete(self, view: JobContext, gang: DriverState, action: Deletion) -> None:
        """Delete one. Raises ApiError where that is to be tried again."""
        kind = self._of(action).resource
        try:
            await write.delete_owned(self._client, kind, view.meta.namespace, action.name, action.uid)
        except (Forbidden, Invalid) as error:
            log.warning("left to the garbage collector", kind=kind.plural, name=action.name, error=str(error))
        gang.deleted[action.uid] = False

    async def _create_claim_template(self, view: JobContext, plan: GangPlan) -> None:
        try:
            await self._create(view, self._claim_templates, claim_template(plan))
        except NotFound as error:  # the kind is no longer served, so nothing would come of its pods
            message = f"creating the ResourceClaimTemplate {plan.group_name}: {error}"
            raise write.WriteRefused("CreateRefused", message) from error

    async def _create_pod_group(self, view: JobContext, gang: DriverState, plan: GangPlan) -> None:
        try:
            await self._create(view, self._pod_groups, pod_group(plan, self._pod_groups.resource))
        except (write.WriteRefused, NotFound) as error:
            log.warning("gates alone hold this gang together", job=view.meta.key, epoch=plan.epoch, error=str(error))
            metrics.POD_GROUPS_REFUSED.inc()
            gang.ungrouped = plan.epoch

    async def _create_compute_domain(self, view: JobContext, gang: DriverState, plan: GangPlan) -> None:
        try:
            await self._create(view, self._compute_domains, compute_domain(plan))
            return
        except (write.WriteRefused, NotFound) as error:
            why = str(error)
        except ApiError as error:
            if self._waits(gang, plan.epoch):
                raise
            why = str(error)
        metrics.COMPUTE_DOMAINS_REFUSED.inc()
        gang.unlinked = plan.epoch
        message = f"the gang goes on without a ComputeDomain, its nodes talk over the network: {why}"
        self._recorder.job(view.meta, JobEvent("Warning", names.REASON_NO_COMPUTE_DOMAIN, message, plan.epoch))

    def _waits(self, gang: DriverState, epoch: int) -> bool:
        """Whether a failure is to be tried again; measured from the first one of this plan."""
        now = self._monotonic()
        if gang.domain_failed is None or gang.domain_failed[0] != epoch:
            gang.domain_failed = epoch, now
        return now - gang.domain_failed[1] < DOMAIN_SECONDS

    async def _create(self, view: JobContext, kept: Reflector[AnyObject], made: Object) -> None:
        kept.apply_written(await write.create(self._client, kept.resource, made, view.meta.identity))

    # --- copies of what there is: a step speaks of a kind only where it is served ------------------------------------
    def _of(self, action: Deletion) -> Reflector[AnyObject]:
        match action:
            case DeletePodGroup():
                return self._pod_groups
            case DeleteClaimTemplate():
                return self._claim_templates
            case DeleteComputeDomain():
                return self._compute_domains

    @property
    def _pod_groups(self) -> Reflector[AnyObject]:
        assert self._cluster.pod_groups
        return self._cluster.pod_groups

    @property
    def _compute_domains(self) -> Reflector[AnyObject]:
        assert self._cluster.compute_domains
        return self._cluster.compute_domains.domains

    @property
    def _claim_templates(self) -> Reflector[AnyObject]:
        assert self._cluster.devices
        return self._cluster.devices.templates
