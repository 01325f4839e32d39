"""The race: who binds the same gangs of pods to the same nodes fastest, on the same API server.

Each contestant runs in two disciplines, starting from the same empty cluster, one after the other, in turns:

    whole   nothing exists: from the first pod created to the last pod bound
    bind    all pods exist and wait: from the first pod bound to the last

    trimtab         a real `trimtab controller`. whole: jobs are created, everything else is its own doing. bind: it
                    waits on standby, and takes over from one that has created all pods and bound none
    bare            the bare binder, told what to bind where. whole: it creates every gang's pods and binds them
    kube-scheduler  the stock scheduler (500 requests/s, bursts of 1,000). whole: the bare binder creates the pods for
                    it, all at once. bind: it stands still until the pods are there

The pods are the same to the byte but for scheduler and owner: what Trimtab made in a rehearsal, which also says which
pod goes to which node. KWOK stands still while the clock runs: kubelets do not share the API server's machine.
The clock is a witness (`watch_recorder`) that nobody can delay.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from hack.bench.bare_binder import Task
from hack.bench.cluster_fixture import (
    NAMESPACE,
    SCHEDULER,
    URGENT,
    Lab,
    create_jobs,
    job,
    lab,
    rss_mib,
    until,
    v100_nodes,
)
from hack.bench.percentiles import Spread, spread
from hack.bench.watch_recorder import READY, Sightings
from msgspec import Struct

from trimtab import names
from trimtab.kube.resources import CONFIG_MAPS, JOBS, PODS, SERVICES

WIDE, NARROW = 4, 2
"""A gang of Trimtab has one pod per node and takes nodes that are free as a whole if it can. For more pods than nodes
gangs must share nodes: the first ones take 4 GPUs of each node and leave 2, which is all that the others find."""
SETTLE_SECONDS = 3.0
"""Until everybody's caches have seen hundreds of the last contestant's pods go; nobody tells when they have."""

RESOLUTION_SECONDS = 1e-3
"""What arrives in one read of the witness has one time: shorter spans than this say nothing (a handful of pods)."""

Object = dict[str, Any]


class Size(Struct, frozen=True):
    """How large the race is."""

    nodes: int
    wide_gangs: int
    narrow_gangs: int
    gang: int
    """Pods per gang."""

    @property
    def pods(self) -> int:
        return (self.wide_gangs + self.narrow_gangs) * self.gang

    @property
    def patience(self) -> float:
        """Seconds after which a contestant has stalled: several times what the slowest needs."""
        return 60 + 0.1 * self.pods

    @property
    def settle(self) -> float:
        """Seconds in which nobody is asked for anything: a handful of pods is forgotten sooner."""
        return SETTLE_SECONDS * min(1.0, 0.1 + self.pods / 200)

    def jobs(self) -> tuple[list[Object], list[Object]]:
        """The jobs that take 4 GPUs a node, which go first for everybody, and those that take 2."""
        four = [
            job(f"four-{i:02}", gpus=WIDE * self.gang, tensor=WIDE, priority_class=URGENT)
            for i in range(self.wide_gangs)
        ]
        two = [job(f"two-{i:02}", gpus=NARROW * self.gang, tensor=NARROW) for i in range(self.narrow_gangs)]
        return four, two


FULL = Size(nodes=1000, wide_gangs=31, narrow_gangs=19, gang=32)
TINY = Size(nodes=9, wide_gangs=2, narrow_gangs=1, gang=4)


class Run(Struct):
    """One contestant, once."""

    rate: float
    """Pods per second."""
    seconds: float
    latency: Spread
    """Per gang, seconds from its last pod created to its last pod bound (bind: from the first pod bound of all)."""
    memory: dict[str, float] = {}
    """MiB, of Trimtab."""


def timed(seen: Sightings, *, whole: bool) -> Run:
    """What the witness saw, in seconds."""
    first = min(seen.bound.values())
    created = seen.created if whole else dict.fromkeys(seen.bound, first)
    seconds = max(max(seen.bound.values()) - min(created.values()), RESOLUTION_SECONDS)
    gangs: dict[str, list[str]] = {}
    for pod, gang in seen.gang.items():
        gangs.setdefault(gang, []).append(pod)
    waits = [max(seen.bound[p] for p in pods) - max(created[p] for p in pods) for pods in gangs.values()]
    return Run(len(seen.bound) / seconds, seconds, spread(waits))


class Stalled(TimeoutError):
    """A contestant left pods unbound."""


class Race:
    """One cluster, contestant after contestant."""

    schedulers: tuple[str, ...] = (SCHEDULER,)
    """Processes that keep books of their own."""

    def __init__(self, where: Lab, size: Size) -> None:
        self._lab = where
        self._client = where.client
        self._size = size
        self._jobs: list[Object] = []
        self._services: list[Object] = []
        self._pods: list[Object] = []

    async def rehearse(self) -> None:
        """Let Trimtab do everything once, and keep what it made for the others."""
        await self._create_and_bind()

    # --- whole ------------------------------------------------------------------------------------------------------
    async def trimtab(self) -> Run:
        """Jobs in, bound pods out."""
        return await self._create_and_bind()

    async def bare(self) -> Run:
        """Create and bind."""
        async with self._clean(), self._witness() as testimony:
            await self._work("both", await self._tasks("nobody"))
            return timed(await testimony(), whole=True)

    async def kube_scheduler(self) -> Run:
        """Create, and let the stock scheduler bind."""
        async with self._clean(), self._witness() as testimony:
            await self._work("create", await self._tasks("default-scheduler"))
            return timed(await testimony(), whole=True)

    async def _create_and_bind(self, variables: Mapping[str, str] | None = None) -> Run:
        async with self._clean(), self._lab.controller(variables=variables) as pid:
            async with self._witness() as testimony:
                for jobs in self._size.jobs():
                    await create_jobs(self._client, jobs)
                run = timed(await testimony(), whole=True)
            await until("all gangs are scheduled", self._scheduled)
            self._jobs, self._services, self._pods = [await self._lab.items(kind) for kind in (JOBS, SERVICES, PODS)]
            run.memory = rss_mib(pid)
            return run

    # --- bind only --------------------------------------------------------------------------------------------------
    async def trimtab_binds(self) -> Run:
        """On standby, carry on where a predecessor stopped."""
        async with self._clean():
            await self._leave_behind()
            await self._lab.give_lease("predecessor")
            async with self._witness() as testimony, self._lab.controller(standby=True):
                await self._lab.give_lease("")
                return timed(await testimony(), whole=False)

    async def bare_binds(self) -> Run:
        """Bind what exists."""
        async with self._clean():
            tasks = await self._created("nobody")
            async with self._witness() as testimony:
                await self._work("bind", tasks)
                return timed(await testimony(), whole=False)

    async def kube_scheduler_binds(self) -> Run:
        """Wake up among pods that wait."""
        async with self._clean(), self._witness() as testimony:  # which must stand before the first pod is bound
            with self._lab.frozen(SCHEDULER):
                await self._created("default-scheduler")
            return timed(await testimony(), whole=False)

    async def _created(self, scheduler: str) -> list[Task]:
        tasks = await self._tasks(scheduler)
        await self._work("create", tasks)
        uids = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in await self._lab.items(PODS)}
        return [msgspec.structs.replace(task, uid=uids[task.name]) for task in tasks]

    async def _leave_behind(self) -> None:
        """Everything as it is right before the first binding."""
        jobs = {j["metadata"]["name"]: j for kind in self._size.jobs() for j in kind}
        await create_jobs(self._client, list(jobs.values()))
        uids = {j["metadata"]["name"]: j["metadata"]["uid"] for j in await self._lab.items(JOBS)}
        for past in self._jobs:
            path = JOBS.path(NAMESPACE, past["metadata"]["name"])
            await self._client.merge_patch(path, {"status": _as_planned(past["status"])}, subresource="status")
        for resource, kind, objects in ((SERVICES, "Service", self._services), (PODS, "Pod", self._pods)):
            owned = [obj for obj in objects if obj["metadata"].get("ownerReferences")]
            made = [anew(obj, kind, owner_anew(obj, uids)) for obj in owned]
            await asyncio.gather(*(self._client.create(resource.path(NAMESPACE), obj) for obj in made))

    async def revive(self) -> None:
        """Give the schedulers a new life, without what they believed in the last one."""
        for scheduler in self.schedulers:
            await self._lab.restart(scheduler)

    # --- parts ------------------------------------------------------------------------------------------------------
    @asynccontextmanager
    async def _clean(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await self._lab.clear()
            await asyncio.sleep(self._size.settle)

    @asynccontextmanager
    async def _witness(self) -> AsyncIterator[Callable[[], Awaitable[Sightings]]]:
        """Start the clock; what is yielded waits until all pods are bound. No kubelet runs meanwhile."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "hack.bench.watch_recorder", str(self._lab.kubeconfig), str(self._size.pods)),
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout  # asked for above
        stdout = process.stdout

        async def testimony() -> Sightings:
            try:
                async with asyncio.timeout(self._size.patience):
                    return msgspec.json.decode(await stdout.read(), type=Sightings)
            except TimeoutError:
                raise Stalled(f"not all pods were bound after {self._size.patience:.0f} s") from None

        try:
            if await stdout.readline() != READY:
                raise RuntimeError("the witness did not start")
            with self._lab.frozen("kwok"):
                yield testimony
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def _work(self, action: str, tasks: Sequence[Task]) -> float:
        """Let the bare binder work; returns the CPU seconds that it took."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "hack.bench.bare_binder", str(self._lab.kubeconfig), action),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        said, _ = await process.communicate(msgspec.json.encode(tasks))
        if process.returncode:
            raise RuntimeError("the bare binder failed")
        return float(said)

    async def _tasks(self, scheduler: str) -> list[Task]:
        """Trimtab's pods for another scheduler, with an owner that means nothing to any controller."""
        owner = await self._stand_in()
        return [task(pod, owner, scheduler) for pod in self._pods]

    async def _stand_in(self) -> Object:
        path = CONFIG_MAPS.path(NAMESPACE)
        there = {c["metadata"]["name"]: c for c in await self._lab.items(CONFIG_MAPS)}
        if "owner" not in there:
            await self._client.create(path, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner"}})
            return await self._stand_in()
        return {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": there["owner"]["metadata"]["uid"]}

    async def _scheduled(self) -> bool:
        """Whether the controller has told every job that its gang is there: its work is done."""
        return all(
            any(c["type"] == names.GANG_SCHEDULED and c["status"] == "True" for c in j["status"].get("conditions", ()))
            for j in await self._lab.items(JOBS)
        )


def anew(obj: Object, kind: str, owner: Object) -> Object:
    """An object as it was before the API server had it, for a new owner."""
    meta = obj["metadata"]
    kept = {key: meta[key] for key in ("name", "namespace", "labels", "annotations") if key in meta}
    spec = {key: value for key, value in obj["spec"].items() if key not in ("nodeName", "clusterIPs")}
    return {"apiVersion": "v1", "kind": kind, "metadata": kept | {"ownerReferences": [owner]}, "spec": spec}


def owner_anew(obj: Object, uids: dict[str, str]) -> Object:
    """The owner of an object by the UID that it has now."""
    (owner,) = obj["metadata"]["ownerReferences"]
    return {**owner, "uid": uids[owner["name"]]}


def task(pod: Object, owner: Object, scheduler: str) -> Task:
    """A pod for another scheduler and of another owner."""
    (was,) = pod["metadata"]["ownerReferences"]
    body = anew(pod, "Pod", was | owner)
    body["spec"]["schedulerName"] = scheduler
    gang = pod["metadata"]["labels"][names.LABEL_JOB]
    return Task(pod["metadata"]["name"], NAMESPACE, pod["spec"]["nodeName"], gang, body)


def _as_planned(status: Object) -> Object:
    """The status of a gang as it was when its plan was written."""
    told = [condition for condition in status["conditions"] if condition["type"] == names.PLANNED]
    return {key: status[key] for key in ("plan", "lastEpoch", "leaderEpoch")} | {"conditions": told}


class Outcome(Struct):
    """All runs, by discipline and contestant."""

    whole: dict[str, list[Run]]
    bind: dict[str, list[Run]]
    stalled: dict[str, int] = {}
    """Runs that a contestant did not finish. Each was run again with fresh schedulers."""

    def ratio(self, discipline: str, who: str, rival: str) -> float:
        """Median rate of one contestant over another's."""
        runs: dict[str, list[Run]] = getattr(self, discipline)
        return rate(runs[who]) / rate(runs[rival])


def rate(runs: Iterable[Run]) -> float:
    """Median of pods per second."""
    return statistics.median(run.rate for run in runs)


Contestants = Mapping[str, Callable[[], Awaitable[Run]]]
"""By name, in the order in which they run."""


async def in_turns(race: Race, repeat: int, *, whole: Contestants, bind: Contestants) -> Outcome:
    """After a rehearsal, let all run one after the other, `repeat` times: those of `whole`, then those of `bind`.

    kube-scheduler 1.36 at times goes on counting GPUs of pods of a gang that are gone, and then waits for minutes. Such
    a run says nothing of its speed: it is counted as stalled, and run again. Raises Stalled for a second one.
    """
    await race.rehearse()
    outcome = Outcome({}, {})
    entries = [(outcome.whole, *each) for each in whole.items()] + [(outcome.bind, *each) for each in bind.items()]
    for _ in range(repeat):
        for runs, name, compete in entries:
            try:
                run = await compete()
            except Stalled:
                outcome.stalled[name] = outcome.stalled.get(name, 0) + 1
                await race.revive()
                run = await compete()
            runs.setdefault(name, []).append(run)
    return outcome


async def measure(size: Size, repeat: int) -> Outcome:
    """Every contestant in every discipline `repeat` times, in turns."""
    async with lab("binding") as where:
        await where.add_nodes(v100_nodes(size.nodes))
        race = Race(where, size)
        whole = {"trimtab": race.trimtab, "bare": race.bare, "kube-scheduler": race.kube_scheduler}
        bind = {"trimtab": race.trimtab_binds, "bare": race.bare_binds, "kube-scheduler": race.kube_scheduler_binds}
        return await in_turns(race, repeat, whole=whole, bind=bind)
