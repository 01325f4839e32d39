"""Ways to bind a gang, the same gangs and nodes: by ourselves, through kube-scheduler, and by kube-scheduler alone.

The race is that of `binding`, on a control plane that has everything: a second kube-scheduler which asks a real
`trimtab extender` over TLS (trimtab.extender.config), and PodGroups. Contestants of `whole`, from the first pod created
to the last pod bound:

    direct             a controller that binds by itself
    extender           a controller that leaves it to the second kube-scheduler: pods are born gated and pinned to the
                       node of their plan, released as a whole, verified by the extender, bound by kube-scheduler
    extender+groups    the same, and each gang is a PodGroup
    kube-scheduler     the stock scheduler; the bare binder creates the pods. Nobody knows of gangs
    podgroup           the same, and each gang is a PodGroup: the native gang of Kubernetes 1.36

What the extender adds to kube-scheduler's own time per pod is told by `bind`, from the first pod bound to the last of
pods that all exist and wait. With and without take turns:

    pinned             stock kube-scheduler, pods with the affinity that the plan gives them
    pinned+extender    the second one: the extender verifies each of them
    free               stock kube-scheduler, pods that may go anywhere
    free+extender      the second one, by a profile beside ours: the names of all nodes that kube-scheduler has found
                       go to the extender and back, for pods that are not ours
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from hack.bench.bare_binder import Task
from hack.bench.binding import Object, Outcome, Race, Run, Size, anew, in_turns, owner_anew, task, timed
from hack.bench.cluster_fixture import (
    HOST,
    NAMESPACE,
    NODE_GRACE,
    SCHEDULER,
    Lab,
    create_jobs,
    free_port,
    lab,
    v100_nodes,
)

from trimtab import names
from trimtab.extender.config import FEATURE_GATES, ExtenderTls, scheduler_configuration
from trimtab.kube.resources import JOBS, POD_GROUPS
from trimtab_local.control_plane.components import SECOND_SCHEDULER
from trimtab_local.control_plane.layout import Layout
from trimtab_local.control_plane.options import ClusterOptions, SecondScheduler

STOCK, OTHERS = "default-scheduler", "others"
GATES = {"GenericWorkload": True, "GangScheduling": True}
EXTENDER = {"TRIMTAB_BINDING__MODE": "Extender", "TRIMTAB_BINDING__TIMEOUT_SECONDS": "240"}
PAIRS = (("pinned", "pinned+extender"), ("free", "free+extender"))


def added(outcome: Outcome, without: str, with_it: str) -> float:
    """What the extender adds to kube-scheduler's time per pod, in per cent."""
    return 100 * (outcome.ratio("bind", without, with_it) - 1)


class GangRace(Race):
    """A race in which gangs can be kube-scheduler's business."""

    schedulers = (SCHEDULER, SECOND_SCHEDULER)

    def __init__(self, where: Lab, size: Size) -> None:
        super().__init__(where, size)
        self._pinned: list[Object] = []
        """Pods as a controller makes them for kube-scheduler."""

    async def rehearse(self) -> None:
        """Let Trimtab do everything once, in both ways."""
        await self.extender()
        self._pinned = self._pods
        await self._create_and_bind()

    # --- whole ------------------------------------------------------------------------------------------------------
    async def extender(self) -> Run:
        """Jobs in; pods bound by the second kube-scheduler."""
        return await self._beside({**EXTENDER, "TRIMTAB_BINDING__POD_GROUPS": "Never"})

    async def extender_groups(self) -> Run:
        """The same with PodGroups."""
        return await self._beside(EXTENDER)

    async def pod_groups(self) -> Run:
        """The stock scheduler binds what it knows to be gangs."""
        tasks = [grouped(each) for each in await self._tasks(STOCK)]
        async with self._clean():
            await self._create_groups(tasks)
            async with self._witness() as testimony:
                await self._work("create", tasks)
                return timed(await testimony(), whole=True)

    async def _beside(self, variables: Mapping[str, str]) -> Run:
        """A run whose objects are nobody's model."""
        kept = self._jobs, self._services, self._pods
        run = await self._create_and_bind(variables)
        if self._pinned:
            self._jobs, self._services, self._pods = kept
        return run

    async def _create_groups(self, tasks: list[Task]) -> None:
        sizes = Counter(each.gang for each in tasks)
        path = POD_GROUPS.path(NAMESPACE)
        await asyncio.gather(*(self._client.create(path, pod_group(gang, size)) for gang, size in sizes.items()))

    # --- bind -------------------------------------------------------------------------------------------------------
    async def pinned(self) -> Run:
        """The stock scheduler, pods that have one node to go to."""
        owner = await self._stand_in()
        return await self._woken(SCHEDULER, lambda: _ready([task(pod, owner, STOCK) for pod in self._pinned]))

    async def pinned_extender(self) -> Run:
        """The second scheduler and the extender: pods of jobs."""
        return await self._woken(SECOND_SCHEDULER, self._ours)

    async def free(self) -> Run:
        """The stock scheduler, pods that may go anywhere."""
        return await self._woken(SCHEDULER, lambda: self._tasks(STOCK))

    async def free_extender(self) -> Run:
        """The second scheduler and the extender: pods of nobody."""
        return await self._woken(SECOND_SCHEDULER, lambda: self._tasks(OTHERS))

    async def _woken(self, scheduler: str, make: Callable[[], Awaitable[list[Task]]]) -> Run:
        async with self._clean(), self._witness() as testimony:
            with self._lab.frozen(scheduler):
                await self._work("create", await make())
            return timed(await testimony(), whole=False)

    async def _ours(self) -> list[Task]:
        """Pods that jobs control, as they are right after they were released."""
        await create_jobs(self._client, [job for kind in self._size.jobs() for job in kind])
        uids = {job["metadata"]["name"]: job["metadata"]["uid"] for job in await self._lab.items(JOBS)}
        made = []
        for pod in self._pinned:
            body = anew(pod, "Pod", owner_anew(pod, uids))
            gang = pod["metadata"]["labels"][names.LABEL_JOB]
            made.append(Task(pod["metadata"]["name"], NAMESPACE, pod["spec"]["nodeName"], gang, body))
        return made

    @asynccontextmanager
    async def _clean(self) -> AsyncIterator[None]:
        async with super()._clean():
            try:
                yield
            finally:
                await self._lab.clear(POD_GROUPS)


async def _ready(tasks: list[Task]) -> list[Task]:
    return tasks


def pod_group(gang: str, size: int) -> dict[str, Any]:
    """A native PodGroup that starts whole."""
    return {
        "apiVersion": POD_GROUPS.api_version,
        "kind": "PodGroup",
        "metadata": {"name": gang, "namespace": NAMESPACE},
        "spec": {"schedulingPolicy": {"gang": {"minCount": size}}},
    }


def grouped(pod: Task) -> Task:
    """A pod as a member of its gang's native PodGroup."""
    spec = {**pod.body["spec"], "schedulingGroup": {"podGroupName": pod.gang}}
    return msgspec.structs.replace(pod, body={**pod.body, "spec": spec})


def _options(name: str, port: int) -> ClusterOptions:
    """A control plane with PodGroups, and a second scheduler that asks the extender on this port."""
    files = Layout(name).extender_files
    tls = ExtenderTls(str(files.ca), str(files.client_certificate), str(files.client_key))
    configuration = scheduler_configuration(f"https://{HOST}:{port}", tls=tls, beside=[OTHERS])
    return ClusterOptions(
        feature_gates=GATES,
        apis=(POD_GROUPS.api_version,),
        controllers=("podgroup-protection-controller",),
        second_scheduler=SecondScheduler(configuration, dict(FEATURE_GATES)),
        restarted=GangRace.schedulers,
        node_grace=NODE_GRACE,
    )


async def measure(size: Size, repeat: int) -> Outcome:
    """Every contestant `repeat` times, in turns."""
    port = free_port()
    async with lab("gangs", lambda name: _options(name, port)) as where, where.extender(port):
        await where.add_nodes(v100_nodes(size.nodes))
        race = GangRace(where, size)
        whole = {
            "direct": race.trimtab,
            "extender": race.extender,
            "extender+groups": race.extender_groups,
            "kube-scheduler": race.kube_scheduler,
            "podgroup": race.pod_groups,
        }
        bind = {
            "pinned": race.pinned,
            "pinned+extender": race.pinned_extender,
            "free": race.free,
            "free+extender": race.free_extender,
        }
        return await in_turns(race, repeat, whole=whole, bind=bind)
