"""What a gang has besides its pods: it does without what is refused, where it can, and says so."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from msgspec.structs import replace
from tests.builders import NOW, job_object, placement, plan_of

from trimtab import names
from trimtab.api.status import JobStatus
from trimtab.apply import write
from trimtab.apply.actions import CreateClaimTemplate, CreateComputeDomain, DeleteComputeDomain
from trimtab.apply.steps import JobContext
from trimtab.apply.transitions import JobEvent
from trimtab.controller.cluster import Cluster
from trimtab.controller.jobs.gang_objects import DOMAIN_SECONDS, GangObjects
from trimtab.controller.views import DriverState
from trimtab.errors import ApiError, Forbidden, Invalid, NotFound, Overloaded, Unreachable
from trimtab.kube.metrics_hooks import Silent
from trimtab.observe import jobs
from trimtab.plan.gang import gang_plan
from trimtab.plan.objects import GangPlan
from trimtab.settings import ReflectorSettings

JOB = job_object("job")


class Server:
    """Answers with what it is given, else as an API server that takes everything."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self.calls: list[str] = []

    async def create(self, path: str, obj: dict[str, Any], *, strict: bool = False) -> bytes:
        self._called(f"create {path.rpartition('/')[2]}")
        return json.dumps(obj | {"metadata": obj["metadata"] | {"uid": "u", "resourceVersion": "1"}}).encode()

    async def delete(self, path: str, *, uid: str) -> bytes:
        self._called(f"delete {uid}")
        return b"{}"

    def _called(self, call: str) -> None:
        self.calls.append(call)
        if self.failure:
            raise self.failure


class World:
    """A gang of a job, and a server that the test breaks."""

    def __init__(self) -> None:
        self.server, self.now = Server(), 0.0
        self.told: list[JobEvent] = []
        client: Any = self.server
        self.cluster = Cluster(client, ReflectorSettings(), lambda: None, Silent(), devices=True, claim_templates=True)
        recorder, self.gang = cast(Any, self), DriverState()
        self.objects = GangObjects(client, self.cluster, recorder, lambda: self.now)
        self.view = JobContext(JOB.metadata, JobStatus(), False, False, 0, NOW, (1.0, 300.0))

    def job(self, meta: Any, happening: JobEvent) -> None:
        """The recorder's part."""
        self.told.append(happening)

    def plan(self, epoch: int = 1) -> GangPlan:
        facts, resource = jobs.facts(JOB), names.DEVICE_CLASS_RESOURCE + names.NVIDIA_DRIVER
        assert facts.spec
        assert facts.training
        made = plan_of(placement(nodes={"n1": 8, "n2": 8}), epoch=epoch, resource=resource)
        return gang_plan(facts.meta, facts.spec, facts.template, facts.training, made, scheduler="trimtab")

    async def domain(self, epoch: int = 1) -> None:
        await self.objects.create(self.view, self.gang, CreateComputeDomain(), self.plan(epoch))


async def test_a_compute_domain_is_seen_once_it_is_made() -> None:
    world = World()
    await world.domain()
    assert world.cluster.compute_domains
    assert list(world.cluster.compute_domains.domains.items) == ["default/job-1"]
    assert (world.gang.unlinked, world.told) == (None, [])


@pytest.mark.parametrize("error", [Forbidden("quota"), Invalid("no such field"), NotFound("no such kind")])
async def test_a_gang_whose_compute_domain_is_refused_goes_on_without_it_and_says_so(error: ApiError) -> None:
    world = World()
    world.server.failure = error
    await world.domain()
    assert world.gang.unlinked == 1
    [told] = world.told
    assert (told.type, told.reason, told.epoch) == ("Warning", names.REASON_NO_COMPUTE_DOMAIN, 1)
    assert str(error) in told.message


@pytest.mark.parametrize("error", [Overloaded("a webhook does not answer"), Unreachable("reset")])
async def test_what_fails_is_tried_again_for_a_while_and_for_each_plan_anew(error: ApiError) -> None:
    world = World()
    world.server.failure = error
    for world.now in (0.0, DOMAIN_SECONDS / 2):
        with pytest.raises(type(error)):
            await world.domain()
    assert (world.gang.unlinked, world.told) == (None, [])
    world.now = DOMAIN_SECONDS
    await world.domain()
    assert (world.gang.unlinked, len(world.told)) == (1, 1)
    with pytest.raises(type(error)):
        await world.domain(epoch=2)


@pytest.mark.parametrize("error", [Forbidden("quota"), NotFound("no such kind")])
async def test_no_pods_are_made_whose_claim_template_is_refused(error: ApiError) -> None:
    world = World()
    world.server.failure = error
    with pytest.raises(write.WriteRefused, match="job-1"):
        await world.objects.create(world.view, world.gang, CreateClaimTemplate(), world.plan())


async def test_what_may_not_be_deleted_is_not_asked_for_again() -> None:
    world, deletion = World(), DeleteComputeDomain("job-1", "u")
    world.server.failure = Unreachable("reset")
    with pytest.raises(Unreachable):
        await world.objects.delete(world.view, world.gang, deletion)
    assert world.gang.deleted == {}
    for failure in (Forbidden("not yours"), None):
        world.gang = replace(world.gang, deleted={})
        world.server.failure = failure
        await world.objects.delete(world.view, world.gang, deletion)
        assert world.gang.deleted == {"u": False}
