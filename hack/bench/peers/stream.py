"""`hack/bench/run stream`: what becomes of the same jobs under each scheduler, not how fast pods are bound.

Gangs of 1 to 32 GPUs come one after the other to a cluster that they nearly fill, as jobs of fixed size: nobody chooses
but when and where they start. Each runs for the time that the performance model predicts for it, divided by a speed-up,
from the moment at which all of its pods are bound: a gang that is partly bound holds GPUs and does nothing. Trimtab's
controller knows these times, from the same model; nobody else asks. Three times more Trimtab has the same jobs: under
`best_fit`, which goes by their turn; as moldable ones, which may start with half to twice the GPUs; and as elastic
ones, which besides may have others while they run. How often and how soon the controller may do something is told in
the jobs' time, not in the clock's.

Told are completion times from a gang's creation to the end of its last pod; GPU time that was held in vain, by gangs
that were not whole, as a part of what the cluster had; and how much of the cluster was idle while somebody waited.
A gang that has not ended when patience does counts as one that ends then.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

from hack.bench.agreement import as_manifest, complete, untainted
from hack.bench.bare_binder import Task
from hack.bench.binding import Object
from hack.bench.cluster_fixture import NAMESPACE, NODE_GRACE, SCHEDULER, Lab, following, lab, until
from hack.bench.gangs import GATES
from hack.bench.peers import kept
from hack.bench.peers.rivals import RIVALS, Kueue, Rival
from msgspec import Struct
from rich.table import Table

from trimtab import names
from trimtab.api.v1alpha1 import Elasticity
from trimtab.errors import LocalClusterError
from trimtab.kube.resources import JOBS, POD_GROUPS, PODS
from trimtab.plan.fake import COMPLETE_DELAY
from trimtab.settings import ElasticitySettings, PreemptionSettings
from trimtab_lab.workloads import generator
from trimtab_lab.workloads.generator import LlmClass, LlmMix
from trimtab_local.control_plane.options import ClusterOptions
from trimtab_local.fake.profile import FakeCluster, NodePool
from trimtab_policy.sim import typed_cluster
from trimtab_policy.types import Job

GPUS_PER_NODE = 8
SMALL, LARGE = ("gpt3-1.3b", "llama3.2-1b"), ("llama3.2-3b", "qwen2.5-7b")


def _class(gpus: int, weight: float, models: tuple[str, ...], tokens: tuple[float, float]) -> LlmClass:
    return LlmClass(f"of-{gpus}", weight, models, (2048,), (64,), tokens, (gpus, gpus))


MIX = LlmMix(
    classes=(
        _class(1, 0.30, SMALL, (5e6, 5e7)),
        _class(2, 0.15, SMALL, (1e7, 1e8)),
        _class(4, 0.20, SMALL, (2e7, 2e8)),
        _class(8, 0.20, LARGE, (4e7, 4e8)),
        _class(16, 0.10, LARGE, (8e7, 8e8)),
        _class(32, 0.05, LARGE, (1.6e8, 1.6e9)),
    )
)
"""Most jobs are small, most GPU time is that of large ones, as in published traces."""
RUDDER = {"TRIMTAB_POLICY__NAME": "rudder", "TRIMTAB_POLICY__FALLBACK": "best_fit"}
BEST_FIT = {"TRIMTAB_POLICY__NAME": "best_fit", "TRIMTAB_POLICY__FALLBACK": "fcfs"}
MOLDABLE, ELASTIC = "trimtab moldable", "trimtab elastic"
OURS = {"trimtab": RUDDER, "trimtab best_fit": BEST_FIT, MOLDABLE: RUDDER, ELASTIC: RUDDER}
"""Contestants that are our controller -> its settings."""
CONTESTANTS = (*OURS, *RIVALS)
OPTIONS = ClusterOptions(
    feature_gates=GATES,
    apis=(POD_GROUPS.api_version,),
    controllers=("podgroup-protection-controller",),
    restarted=(SCHEDULER,),
    node_grace=NODE_GRACE,
)
PATIENCE = 3.0
"""Times the span of arrivals after which a contestant is stopped."""


class Size(Struct, frozen=True):
    """How large it is."""

    nodes: int = 16
    jobs: int = 100
    load: float = 0.9
    speedup: float = 60.0


TINY = Size(nodes=5, jobs=6, speedup=2400.0)


def chosen(contestants: Iterable[str]) -> list[str]:
    """Of those of the race, whoever takes part here, in order; we do in four ways."""
    wanted = set(contestants)
    return [name for name in CONTESTANTS if name.partition(" ")[0] in wanted]


class Gang(Struct, frozen=True):
    """One job; times are seconds of real time, GPUs and pods those that were asked for."""

    name: str
    arrival: float
    seconds: float
    """From the last pod bound to the end."""
    gpus: int
    job: Object
    """The LLMTrainingJob, of fixed size."""

    @property
    def pods(self) -> int:
        return math.ceil(self.gpus / GPUS_PER_NODE)


class Change(Struct, frozen=True):
    """GPUs that a gang got (or gave back: less than 0), at a moment of the monotonic clock."""

    moment: float
    gang: str
    gpus: int


class Story(Struct):
    """What was seen of all gangs, moments of the monotonic clock."""

    born: dict[str, float] = {}
    """Gang -> when it was handed in."""
    whole: dict[str, float] = {}
    """When it had all its GPUs for the first time."""
    ended: dict[str, float] = {}
    changes: list[Change] = []


class Quality(Struct):
    """What became of the jobs of one contestant; hours are those of the jobs, not of the clock."""

    contestant: str
    jobs: int
    ended: int
    avg_jct: float
    p95_jct: float
    makespan: float
    in_vain: float
    """Part of the cluster's GPU time that gangs held which were not whole; NaN where a gang has no fixed size."""
    idle: float
    """Part of the GPUs that was free, while a gang waited: mean over that time."""


class Stream(Struct):
    """All contestants, the same jobs for each."""

    size: Size
    found: list[Quality]
    left_out: dict[str, str] = {}
    """Contestants that did not run, and why."""


def gangs(size: Size, seed: int = 1) -> list[Gang]:
    """The jobs, in the order in which they come."""
    cluster = typed_cluster.typed(f"H100-SXM5-80GB={size.nodes * GPUS_PER_NODE}x{GPUS_PER_NODE}")
    drawn = generator.llm_jobs(MIX, size.jobs, cluster, size.load, seed)
    return [
        Gang(
            job.name,
            job.created / size.speedup,
            generator.ideal(job, cluster).seconds / size.speedup,
            job.requirements.gpus.high,
            _fixed(job),
        )
        for job in drawn
    ]


def quality(contestant: str, of: Sequence[Gang], story: Story, gpus: int, end: float, speedup: float) -> Quality:
    """What a story comes to on a cluster of so many GPUs; `end` is when patience ended, or the last job."""
    ended = {gang.name: story.ended.get(gang.name, end) for gang in of}
    stays = sorted(ended[name] - born for name, born in story.born.items())
    first, last = min(story.born.values()), max(ended.values())
    vain, idle = _wasted(story, gpus, end, last)
    hours = speedup / 3600
    return Quality(
        contestant,
        len(of),
        len(story.ended),
        statistics.fmean(stays) * hours,
        stays[min(len(stays) - 1, math.ceil(0.95 * len(stays)) - 1)] * hours,
        (last - first) * hours,
        math.nan if contestant in (MOLDABLE, ELASTIC) else vain / (gpus * (last - first)),
        idle,
    )


def _wasted(story: Story, gpus: int, end: float, last: float) -> tuple[float, float]:
    """GPU-seconds that were held by gangs that were not whole; part of the GPUs that was free while a gang waited."""
    changes = sorted(story.changes, key=lambda each: each.moment)
    turns = {last, *(each.moment for each in changes), *story.born.values(), *story.whole.values()}
    held: dict[str, int] = {}
    vain = idle = waited = 0.0
    at = 0
    for begins, ends in pairwise(sorted(turns)):
        while at < len(changes) and changes[at].moment <= begins:
            held[changes[at].gang] = held.get(changes[at].gang, 0) + changes[at].gpus
            at += 1
        waiting = {name for name, born in story.born.items() if born <= begins < story.whole.get(name, end)}
        if waiting:
            waited += ends - begins
            vain += (ends - begins) * sum(held.get(name, 0) for name in waiting)
            idle += (ends - begins) * (gpus - sum(held.values())) / gpus
    return vain, idle / waited if waited else 0.0


def table(found: Stream) -> Table:
    """One line for each contestant."""
    size = found.size
    title = f"stream: {size.jobs} gangs on {size.nodes} nodes of {GPUS_PER_NODE} GPUs, load {size.load:g}"
    made = Table(title=title, title_justify="left", box=None, pad_edge=False)
    made.add_column("SCHEDULER", no_wrap=True)
    for column in ("ENDED", "JCT, h", "P95, h", "ALL, h", "IN VAIN", "IDLE"):
        made.add_column(column, justify="right", no_wrap=True)
    for each in found.found:
        vain = "" if math.isnan(each.in_vain) else f"{each.in_vain:.1%}"
        hours = (f"{value:.2f}" for value in (each.avg_jct, each.p95_jct, each.makespan))
        made.add_row(each.contestant, f"{each.ended}/{each.jobs}", *hours, vain, f"{each.idle:.1%}")
    return made


# --- one contestant -------------------------------------------------------------------------------------------------
class Stage:
    """One cluster, contestant after contestant."""

    def __init__(self, where: Lab, size: Size, of: Sequence[Gang]) -> None:
        self._lab, self._size, self._gangs = where, size, of

    async def ours(self, name: str) -> Quality:
        """Our controller, whose jobs end by themselves."""
        story, settings = Story(), OURS[name] | paced(self._size.speedup)

        async def hand_in(gang: Gang) -> None:
            await self._lab.client.create(JOBS.path(NAMESPACE), varied(gang, name, self._size.speedup))

        def see(event: str, job: Object, moment: float) -> None:
            if complete(job):
                story.ended.setdefault(job["metadata"]["name"], moment)

        try:
            async with self._lab.controller(variables=settings), following(self._lab.client, JOBS, see):
                return await self._played(name, story, hand_in, Watcher(story, self._gangs))
        finally:
            await self._lab.clear()

    async def rival(self, rival: Rival, program: Path | None) -> Quality:
        """Another scheduler, whose gangs we end. Raises LocalClusterError."""
        removed = (*rival.kinds, PODS) if rival.creator else (PODS, *rival.kinds)
        if rival.stock:
            await self._lab.restart(SCHEDULER)
        story, runs = Story(), set[asyncio.Task[None]]()

        def run(gang: Gang, watcher: Watcher) -> None:
            runs.add(asyncio.create_task(self._run(gang, watcher)))

        async with rival.running(self._lab, program):
            try:
                hand_in = partial(self._handed_to, rival)
                return await self._played(rival.name, story, hand_in, Watcher(story, self._gangs, run))
            finally:  # while it runs: what it holds, it must let go
                for task in runs:
                    task.cancel()
                await asyncio.gather(*runs, return_exceptions=True)
                for kind in removed:
                    await self._lab.remove(kind)

    async def _handed_to(self, rival: Rival, gang: Gang) -> None:
        client, tasks = self._lab.client, pods(gang, rival.scheduler)
        if rival.creator:
            for job in rival.jobs(tasks):
                await client.create(rival.kinds[0].path(NAMESPACE), job)
            return
        if rival.kinds:
            await client.create(rival.kinds[0].path(NAMESPACE), rival.group(gang.name, gang.pods))
        await asyncio.gather(*(client.create(PODS.path(NAMESPACE), rival.member(each).body) for each in tasks))

    async def _played(
        self, name: str, story: Story, hand_in: Callable[[Gang], Awaitable[None]], watcher: Watcher
    ) -> Quality:
        """Hand all gangs in at their times, and wait for their ends."""
        async with following(self._lab.client, PODS, watcher.see):
            began = time.monotonic()
            for gang in self._gangs:
                await asyncio.sleep(max(0.0, began + gang.arrival - time.monotonic()))
                story.born[gang.name] = time.monotonic()
                await hand_in(gang)
            longest = max(gang.seconds for gang in self._gangs)
            patience = PATIENCE * (time.monotonic() - began) + longest

            async def done() -> bool:
                return len(story.ended) == len(self._gangs) or time.monotonic() - began > patience

            await until("all jobs have ended, or patience has", done, math.inf)
        gpus = self._size.nodes * GPUS_PER_NODE
        return quality(name, self._gangs, story, gpus, time.monotonic(), self._size.speedup)

    async def _run(self, gang: Gang, watcher: Watcher) -> None:
        """A gang that is whole, until its pods are to end."""
        await asyncio.sleep(gang.seconds)
        over = {"metadata": {"annotations": {COMPLETE_DELAY: "0s"}}}
        for pod in watcher.pods_of(gang.name):
            await self._lab.client.merge_patch(PODS.path(NAMESPACE, pod), over)


class Watcher:
    """What pods show: who has GPUs, which gangs are whole, and, where it is we who end them, which have ended."""

    def __init__(self, story: Story, of: Iterable[Gang], whole: Callable[[Gang, Watcher], None] | None = None) -> None:
        """`whole` is called with each gang once all of its pods are bound; None: its jobs say when they have ended."""
        self._story, self._gangs, self._whole = story, {gang.name: gang for gang in of}, whole
        self._held: dict[str, dict[str, int]] = {}
        """Gang -> pods that are on a node, and their GPUs."""
        self._over: dict[str, set[str]] = {}

    def pods_of(self, gang: str) -> list[str]:
        """Those that are on a node."""
        return list(self._held.get(gang, ()))

    def see(self, event: str, pod: Object, moment: float) -> None:
        """Take an event of a watch."""
        meta = pod["metadata"]
        gang = self._gangs.get(meta.get("labels", {}).get(names.LABEL_JOB, ""))
        if gang is None or event not in ("ADDED", "MODIFIED", "DELETED"):
            return
        name, held = meta["name"], self._held.setdefault(gang.name, {})
        over = pod.get("status", {}).get("phase") == "Succeeded"
        if name in held and (over or event == "DELETED"):
            self._story.changes.append(Change(moment, gang.name, -held.pop(name)))
        elif name not in held and not over and event != "DELETED" and pod["spec"].get("nodeName"):
            held[name] = _gpus(pod)
            self._story.changes.append(Change(moment, gang.name, held[name]))
        if gang.name not in self._story.whole and sum(held.values()) >= self._least(gang):
            self._story.whole[gang.name] = moment
            if self._whole:
                self._whole(gang, self)
        if over and self._whole:
            self._over.setdefault(gang.name, set()).add(name)
            if len(self._over[gang.name]) == gang.pods:
                self._story.ended.setdefault(gang.name, moment)

    def _least(self, gang: Gang) -> int:
        """GPUs with which a gang is whole; one that may have half of what it asked for has at least that."""
        return gang.gpus if self._whole else max(1, gang.gpus // 2)


def pods(gang: Gang, scheduler: str) -> list[Task]:
    """The pods of a gang for another scheduler; full nodes where it needs more than one."""
    return [
        Task(f"{gang.name}-{rank}", NAMESPACE, "", gang.name, _pod(gang, rank, scheduler)) for rank in range(gang.pods)
    ]


def varied(gang: Gang, contestant: str, speedup: float) -> Object:
    """Its job as this contestant of ours has it: what may vary starts with half to twice the GPUs."""
    if contestant not in (MOLDABLE, ELASTIC):
        return gang.job
    elasticity: Object = {"policy": "Moldable"}
    if contestant == ELASTIC:
        kept = round(Elasticity().min_runtime_seconds / speedup)
        elasticity = {"policy": "Elastic", "checkpoint": {"resharding": True}, "minRuntimeSeconds": kept}
    gpus = {"min": max(1, gang.gpus // 2), "max": 2 * gang.gpus}
    return {**gang.job, "spec": {**gang.job["spec"], "resources": {"gpus": gpus}, "elasticity": elasticity}}


def paced(speedup: float) -> dict[str, str]:
    """Settings of a controller whose jobs run so many times as fast: what it says of time is said of theirs."""
    often, moved = ElasticitySettings().interval_seconds, PreemptionSettings().per_job_per_hour
    return {
        "TRIMTAB_FAKE__ENABLED": "true",
        "TRIMTAB_FAKE__SPEEDUP": str(speedup),
        "TRIMTAB_ELASTICITY__INTERVAL_SECONDS": str(often / speedup),
        "TRIMTAB_PREEMPTION__PER_JOB_PER_HOUR": str(math.ceil(moved * speedup)),
    }


def _pod(gang: Gang, rank: int, scheduler: str) -> Object:
    gpus = str(gang.gpus // gang.pods)
    container = {
        "name": "trainer",
        "image": "example.com/trainer:1",
        "resources": {"limits": {names.NVIDIA_GPU: gpus}, "requests": {names.NVIDIA_GPU: gpus}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{gang.name}-{rank}", "namespace": NAMESPACE, "labels": {names.LABEL_JOB: gang.name}},
        "spec": {
            "schedulerName": scheduler,
            "restartPolicy": "Never",
            "containers": [container],
            "tolerations": [{"key": names.NVIDIA_GPU, "operator": "Exists"}],
        },
    }


def _fixed(job: Job) -> Object:
    made = as_manifest(job)
    return {**made, "spec": made["spec"] | {"elasticity": {"policy": "Fixed"}}}


def _gpus(pod: Object) -> int:
    return sum(int(each["resources"]["limits"].get(names.NVIDIA_GPU, 0)) for each in pod["spec"]["containers"])


# --- all of them ----------------------------------------------------------------------------------------------------
async def measure(
    size: Size, contestants: Sequence[str], programs: Mapping[str, Path], *, fresh: bool = False
) -> Stream:
    """Every contestant once, one after the other. An interrupted stream goes on, unless it is to begin anew."""
    digest = kept.digest("stream", repr(size), repr(contestants), programs=programs.values())
    file: kept.Kept[Stream] = kept.Kept(kept.directory(), digest)
    if fresh:
        file.forget()
    found, of = file.read(Stream(size, [])), gangs(size)
    known = {*found.left_out, *(each.contestant for each in found.found)}
    if left := [name for name in contestants if name not in known]:
        await _go_on(found, of, left, programs, file)
    return found


async def _go_on(
    found: Stream, of: Sequence[Gang], left: Sequence[str], programs: Mapping[str, Path], file: kept.Kept[Stream]
) -> None:
    size = found.size
    async with lab("stream", lambda name: OPTIONS) as where:
        pool = NodePool(
            name="h100", count=size.nodes, product="NVIDIA-H100-80GB-HBM3", gpus=GPUS_PER_NODE, cpu=192, memory="2Ti"
        )
        await where.add_nodes(FakeCluster(name="stream", pools=(pool,)))
        await until("no node is tainted as not ready any more", partial(untainted, where))
        stage = Stage(where, size, of)
        for name in left:
            print(f"  stream: {name}", file=sys.stderr)
            try:
                found.found.append(await _one(stage, name, programs, size.nodes * GPUS_PER_NODE))
            except (LocalClusterError, OSError) as error:
                found.left_out[name] = str(error) or type(error).__name__
            file.write(found)


async def _one(stage: Stage, name: str, programs: Mapping[str, Path], gpus: int) -> Quality:
    if name in OURS:
        return await stage.ours(name)
    rival = Kueue("kueue", gpus) if name == "kueue" else RIVALS[name]
    return await stage.rival(rival, (programs.get(name) or rival.built()) if rival.program else None)
