"""`hack/bench/run peers`: our controller and every other way to start gangs, in turns, on one API server.

All place the same gangs of pods on the same fake nodes, from the first gang's creation to the last binding:

    trimtab         a real `trimtab controller` that binds by itself. Jobs in, bound pods out
    bare            the bare binder, told what to bind where: decides nothing
    kube-scheduler  the stock scheduler, which knows of no gangs; the bare binder creates its pods, and the next four's
    podgroups       the same with its native gangs (`scheduling.k8s.io`), in Kubernetes 1.36 an alpha feature
    coscheduling    kube-scheduler with the plugin of kubernetes-sigs/scheduler-plugins
    volcano         Volcano's scheduler
    kai             NVIDIA's KAI scheduler, and its binder
    kueue           Kueue admits batch Jobs whole, the controller manager creates their pods, kube-scheduler binds them

Pods are the same to the byte but for scheduler, owner and what names their gang: what Trimtab made in a rehearsal. A
gang has one pod per node, all gangs are alike and are there at once, and together they nearly fill the cluster: nobody
is helped or hurt by the order in which they are placed. Groups that pods of `podgroups`, `coscheduling`, `volcano` and
`kai` refer to exist before the clock starts, and webhooks are not called: both spare them something.

KWOK stands still while the clock runs, as in `binding`: the API server's CPU is that of creating and binding. CPU is
counted from the first creation until three seconds after the last binding: events and statuses that are written behind
belong to it. Every contestant gets a fresh process that has placed one gang before, which is gone again: what a process
does for the first time is told by `decisions` and `latency`. kube-scheduler goes on watching while others run.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic

import msgspec
from hack.bench import binding
from hack.bench.bare_binder import Task
from hack.bench.binding import WIDE, Object, Size, Stalled
from hack.bench.cluster_fixture import (
    NAMESPACE,
    NODE_GRACE,
    REMOVAL_SECONDS,
    SCHEDULER,
    Lab,
    cpu_seconds,
    job,
    lab,
    rss_mib,
    until,
)
from hack.bench.gangs import GATES
from hack.bench.peers import figures, kept
from hack.bench.peers.figures import Showing, showing
from hack.bench.peers.rivals import RIVALS, Rival
from msgspec import Struct

from trimtab import names
from trimtab.errors import LocalClusterError
from trimtab.kube.resources import JOBS, POD_GROUPS, PODS, SERVICES, Resource
from trimtab_local.control_plane.options import ClusterOptions
from trimtab_local.fake.profile import FakeCluster, NodePool

WARM_UP = "warm-up"
QUIET_SECONDS = 3.0
CONTROL_PLANE = ("kube-apiserver", "etcd", "kube-controller-manager", SCHEDULER)
CONTESTANTS = (figures.OURS, figures.BOUND, *RIVALS)


class Choice(Struct, frozen=True):
    """What the command line leaves to choose."""

    nodes: tuple[int, ...] = (500,)
    gangs: int = 0
    """0 for as many as there is room for."""
    gang: int = 32
    """Pods per gang."""
    contestants: tuple[str, ...] = CONTESTANTS
    programs: Mapping[str, Path] = {}
    """Binaries by contestant, in place of those that are built from the modules beside this file."""
    fresh: bool = False
    """Whether to forget what an interrupted race has done."""

    def mistake(self) -> str:
        """What cannot be, in words; empty where all is well."""
        for nodes in self.nodes:
            if not 0 < self.size(nodes).pods <= nodes:
                return f"{self.gangs or 1} gangs of {self.gang} pods, one on each node, do not fit on {nodes} nodes"
        if unknown := {*self.contestants, *self.programs} - {*CONTESTANTS}:
            return f"{', '.join(sorted(unknown))}: the contestants are {', '.join(CONTESTANTS)}"
        return ""

    def size(self, nodes: int) -> Size:
        """How large the race on so many nodes is."""
        return Size(nodes=nodes, wide_gangs=self.gangs or nodes // self.gang, narrow_gangs=0, gang=self.gang)


TINY = Choice(nodes=(9,), gang=4, contestants=(figures.OURS, figures.BOUND, "podgroups"), fresh=True)


class Created(Struct):
    """Gangs that were handed in."""

    cpu: float
    """Seconds, of whoever did."""
    moments: dict[str, float] = {}
    """When, by gang, where that is before its first pod."""


class PeerRace(binding.Race):
    """One cluster, contestant after contestant."""

    def showing_of(self, name: str, program: Path | None) -> Awaitable[Showing]:
        """Let a contestant run once. Raises Stalled, LocalClusterError."""
        if name == figures.OURS:
            return self._ours()
        return self._bare() if name == figures.BOUND else self._rival(RIVALS[name], program)

    @property
    def rehearsed(self) -> bool:
        """Whether there are pods that others can be given: our own showing will do, it comes first."""
        return bool(self._pods)

    async def rehearse(self) -> None:
        """Let Trimtab do everything once, and keep what it made for the others."""
        await self._ours()

    async def _ours(self) -> Showing:
        async with self._clean(), self._lab.controller() as pid:
            await self._hand_in(JOBS, [job(WARM_UP, gpus=WIDE * self._size.gang, tensor=WIDE)])
            await self._warmed_up(JOBS, PODS, SERVICES)
            shown = await self._shown([pid], lambda: self._hand_in(JOBS, self._size.jobs()[0]))
            await until("all gangs are scheduled", self._scheduled)
            self._pods = await self._lab.items(PODS)
            return shown

    async def _bare(self) -> Showing:
        async with self._clean():
            tasks = await self._tasks("nobody")
            return await self._shown([], lambda: self._made("both", tasks))

    async def _rival(self, rival: Rival, program: Path | None) -> Showing:
        tasks = await self._tasks(rival.scheduler)
        removed = (*rival.kinds, PODS) if rival.creator else (PODS, *rival.kinds)
        async with self._clean():
            if rival.stock:
                await self.revive()
            async with rival.running(self._lab, program) as own:
                try:
                    await (await self._entry(rival, warm_up(tasks)))()
                    await self._warmed_up(*removed)
                    pids = [*own, *([self._lab.pid(SCHEDULER)] if rival.stock else [])]
                    return await self._shown(pids, await self._entry(rival, tasks), rival.creator)
                finally:  # while it runs: what it holds, it must let go
                    for kind in removed:
                        await self._lab.remove(kind)

    async def _entry(self, rival: Rival, tasks: Sequence[Task]) -> Callable[[], Awaitable[Created]]:
        """What hands these pods in, once the groups are there that they refer to."""
        if rival.creator:
            jobs = rival.jobs(tasks)
            return lambda: self._hand_in(rival.kinds[0], jobs)
        for gang, size in Counter(each.gang for each in tasks).items() if rival.kinds else ():
            await self._client.create(rival.kinds[0].path(NAMESPACE), rival.group(gang, size))
        members = [rival.member(each) for each in tasks]
        return lambda: self._made("create", members)

    # --- parts ------------------------------------------------------------------------------------------------------
    async def _shown(self, pids: Sequence[int], create: Callable[[], Awaitable[Created]], creator: str = "") -> Showing:
        """Watch a contestant, who has these processes. `create` hands the gangs in; `creator` is the component that
        makes pods of them, where that is not whoever `create` calls."""
        load = os.getloadavg()[0]
        async with self._witness() as testimony:
            asked = figures.served((await self._client.get("/metrics")).decode())
            before = self._spent(pids)
            created = await create()
            seen = await testimony()
            await asyncio.sleep(self._size.settle)
            cpu = {part: spent - before[part] for part, spent in self._spent(pids).items()}
            memory = sum(rss_mib(pid)["peak"] for pid in pids)
            told = figures.served((await self._client.get("/metrics")).decode())
        cpu["creator"] = created.cpu + cpu.get(creator, 0.0)
        found = showing(seen, created.moments, cpu, memory)
        return msgspec.structs.replace(found, load=load, served=told.since(asked, len(seen.bound)))

    def _spent(self, pids: Sequence[int]) -> dict[str, float]:
        """CPU seconds so far."""
        parts = {name: cpu_seconds(self._lab.pid(name)) for name in CONTROL_PLANE}
        return parts | {"scheduler": sum(map(cpu_seconds, pids))}

    async def _warmed_up(self, *kinds: Resource) -> None:
        """Wait until the first gang is bound, and remove it."""

        async def bound() -> bool:
            pods = await self._lab.items(PODS)
            return len(pods) == self._size.gang and all(pod["spec"].get("nodeName") for pod in pods)

        await until("a first gang is bound", bound)
        for kind in kinds:
            await self._lab.remove(kind)
        await asyncio.sleep(self._size.settle)

    async def _hand_in(self, resource: Resource, jobs: Sequence[Object]) -> Created:
        """Create what pods are made of by others, all at once."""
        moments = {}

        async def create(job: Object) -> None:
            moments[job["metadata"]["name"]] = monotonic()
            await self._client.create(resource.path(NAMESPACE), job)

        await asyncio.gather(*map(create, jobs))
        return Created(0.0, moments)

    async def _made(self, action: str, tasks: Sequence[Task]) -> Created:
        return Created(await self._work(action, tasks))


def warm_up(tasks: Sequence[Task]) -> list[Task]:
    """A gang that is placed before the clock starts: the first one by another name."""
    made = []
    for number, task in enumerate(each for each in tasks if each.gang == tasks[0].gang):
        name = f"{WARM_UP}-{number}"
        meta = task.body["metadata"]
        meta = {**meta, "name": name, "labels": {**meta["labels"], names.LABEL_JOB: WARM_UP}}
        body = {**task.body, "metadata": meta}
        made.append(msgspec.structs.replace(task, name=name, gang=WARM_UP, body=body))
    return made


def nodes_of(count: int, gpus: int) -> FakeCluster:
    """Nodes that one pod of a gang fills."""
    pool = NodePool(name="v100", count=count, product="Tesla-V100-SXM2-32GB", gpus=gpus, cpu=96, memory="1Ti")
    return FakeCluster(name="peers", pools=(pool,))


def _options(name: str) -> ClusterOptions:
    return ClusterOptions(
        feature_gates=GATES,
        apis=(POD_GROUPS.api_version,),
        controllers=("podgroup-protection-controller",),
        restarted=(SCHEDULER,),
        node_grace=NODE_GRACE,
    )


async def measure(choice: Choice, repeat: int) -> list[figures.Race]:
    """Every contestant `repeat` times at every size, in turns; what an interrupted race has done is not done again."""
    programs, left_out = _programs(choice)
    present = [name for name in CONTESTANTS if name in choice.contestants and name not in left_out]
    races = []
    for nodes in choice.nodes:
        size = choice.size(nodes)
        digest = kept.digest(repr(size), repr(present), programs=programs.values())
        file: kept.Kept[figures.Race] = kept.Kept(kept.directory(), digest)
        if choice.fresh:
            file.forget()
        empty = figures.Race(nodes, size.wide_gangs, size.gang, {name: [] for name in present}, left_out=left_out)
        race = file.read(empty)
        if any(len(showings) < repeat for showings in race.showings.values()):
            async with lab("peers", _options) as where:
                await where.add_nodes(nodes_of(nodes, WIDE))
                await _left_alone(where)
                await _in_turns(PeerRace(where, size), race, repeat, programs, file)
        race.showings = {name: showings for name, showings in race.showings.items() if showings}
        races.append(race)
    return races


async def _left_alone(where: Lab) -> None:
    """Wait until nobody changes nodes any more. The controller manager notes on each of more than a hundred nodes how
    long kubelets may keep what they have read, 20 a second: of thousands, whoever comes first would pay for it."""

    async def changes() -> float:
        return figures.node_changes((await where.client.get("/metrics")).decode())

    async def quiet() -> bool:
        before = await changes()
        await asyncio.sleep(QUIET_SECONDS)
        return await changes() == before

    await until("nodes are left alone", quiet, REMOVAL_SECONDS)


def _programs(choice: Choice) -> tuple[dict[str, Path], dict[str, str]]:
    """Binary by contestant, and why others have none."""
    programs, left_out = {}, {}
    for name in choice.contestants:
        if name in RIVALS and RIVALS[name].program:
            try:
                programs[name] = choice.programs.get(name) or RIVALS[name].built()
            except (LocalClusterError, OSError) as error:
                left_out[name] = str(error) or type(error).__name__
    return programs, left_out


async def _in_turns(
    peers: PeerRace, race: figures.Race, repeat: int, programs: Mapping[str, Path], file: kept.Kept[figures.Race]
) -> None:
    """Go on with a race. Whoever stalls is tried once more, and left out after that."""
    for turn in range(repeat):
        for name, showings in race.showings.items():
            if len(showings) > turn or name in race.left_out:
                continue
            if name != figures.OURS and not peers.rehearsed:
                await peers.rehearse()
            print(f"  {race.nodes:,} nodes, turn {turn + 1} of {repeat}: {name}", file=sys.stderr)
            try:
                showings.append(await _tried(peers, race, name, programs.get(name)))
            except (Stalled, LocalClusterError, TimeoutError) as error:
                race.left_out[name] = str(error) or type(error).__name__
            file.write(race)


async def _tried(peers: PeerRace, race: figures.Race, name: str, program: Path | None) -> Showing:
    try:
        return await peers.showing_of(name, program)
    except Stalled:
        race.stalled[name] = race.stalled.get(name, 0) + 1
        await peers.revive()
        return await peers.showing_of(name, program)
