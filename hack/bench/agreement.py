"""The simulator against the live system: one trace of LLM jobs through both, under the same policy.

Live, jobs are created over time on a real control plane with fake nodes, whose pods run for the predicted time divided
by a speed-up; the clock of a job starts when the request to create it is sent and stops when a watch shows it Complete.
Simulated, the very same manifests run on the very same snapshot of the empty cluster. What it takes from a job's
creation to running pods, and from their end to Complete, does not shrink with the speed-up: it is measured on jobs that
are alone, before the trace, and given to the simulator as the time that a launch takes. The result without it is there,
too.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from hack.bench.cluster_fixture import NAMESPACE, Lab, create_jobs, following, lab, until
from msgspec import Struct
from msgspec.structs import replace

from trimtab import names
from trimtab.commands.live import look
from trimtab.kube.objects import JobObject, Meta
from trimtab.kube.resources import JOBS, NODES
from trimtab.observe import jobs as job_facts
from trimtab.observe.eligibility import eligible
from trimtab.observe.snapshot import Observation
from trimtab.settings import KubeSettings
from trimtab_lab.workloads import generator
from trimtab_lab.workloads.generator import LlmClass, LlmMix
from trimtab_local.checkout import checkout
from trimtab_local.fake.profile import load_profile
from trimtab_policy.policy import load
from trimtab_policy.sim import llm
from trimtab_policy.sim.engine import simulate
from trimtab_policy.sim.llm import LlmRules
from trimtab_policy.types import Job

POLICIES = ("best_fit", "fcfs")
MIX = LlmMix(
    classes=(
        LlmClass("small", 0.5, ("gpt3-1.3b", "llama3.2-1b"), (2048,), (64,), (4e7, 2e8), (4, 8)),
        LlmClass("large", 0.5, ("llama3.2-3b", "qwen2.5-7b"), (4096,), (64,), (4e7, 2e8), (8, 16)),
    )
)
"""Jobs of some minutes to an hour: long enough for the live clock, short enough to wait for."""
LOAD, SEED = 1.0, 1
LONE_JOBS = 5
LONGEST_SECONDS = 900.0

Manifest = dict[str, Any]


class Outcome(Struct):
    """Hours of simulated time."""

    avg_jct: float
    makespan: float


Choices = dict[str, tuple[str, int]]
"""Job -> GPU type and count."""


class Agreement(Struct):
    """One policy, live and simulated."""

    policy: str
    jobs: int
    speedup: float
    launch_seconds: float
    """What creation, start and end of a lone job take beside its run, real time."""
    live: Outcome
    simulated: Outcome
    without_launch: Outcome
    """Simulated as if launches took no time."""
    alike: int
    """Jobs that got the same number of GPUs of the same type."""

    @property
    def jct_error(self) -> float:
        return self.simulated.avg_jct / self.live.avg_jct - 1

    @property
    def makespan_error(self) -> float:
        return self.simulated.makespan / self.live.makespan - 1


async def measure(count: int, speedup: float) -> list[Agreement]:
    """So many jobs under each policy."""
    async with lab("agreement") as where:
        await where.add_nodes(load_profile(checkout() / "manifests" / "fake" / "heterogeneous.yaml"))
        await until("no node is tainted as not ready any more", lambda: untainted(where))
        return [await _compare(where, policy, count, speedup) for policy in POLICIES]


async def untainted(where: Lab) -> bool:
    """Taints outlast the condition that they stand for, and jobs are not for tainted nodes."""
    return not any(node["spec"].get("taints") for node in await where.items(NODES))


async def _compare(where: Lab, policy: str, count: int, speedup: float) -> Agreement:
    empty = await look(KubeSettings(kubeconfig=where.kubeconfig))
    jobs = generator.llm_jobs(MIX, count, replace(empty.snapshot, time=0.0), LOAD, SEED)
    arrivals = _on_whole_seconds([job.created for job in jobs], speedup)
    trace = list(zip(arrivals, map(as_manifest, jobs), strict=True))
    variables = {
        "TRIMTAB_FAKE__ENABLED": "true",
        "TRIMTAB_FAKE__SPEEDUP": str(speedup),
        "TRIMTAB_POLICY__NAME": policy,
    }
    async with where.controller(variables=variables):
        launch = await _launch(where, trace[0][1], speedup)
        jcts, makespan = await _live(where, trace, speedup)
    chosen = await _choices(where)
    await where.clear()
    live = Outcome(statistics.fmean(jcts) * speedup / 3600, makespan * speedup / 3600)
    simulated, ours = _simulated(policy, trace, empty, launch * speedup)
    without, _ = _simulated(policy, trace, empty, 0.0)
    alike = sum(choice == chosen[name] for name, choice in ours.items())
    return Agreement(policy, count, speedup, launch, live, simulated, without, alike)


def _on_whole_seconds(arrivals: Sequence[float], speedup: float) -> list[float]:
    """Put off, so that no two jobs come in the same second: the API server knows no finer time, and order counts."""
    found: list[float] = []
    for arrival in arrivals:
        soonest = found[-1] + speedup if found else 0.0
        found.append(max(soonest, math.ceil(arrival / speedup) * speedup))
    return found


async def _choices(where: Lab) -> Choices:
    plans = {job["metadata"]["name"]: job["status"]["plan"] for job in await where.items(JOBS)}
    return {name: (plan["gpuType"], plan["gpus"]) for name, plan in plans.items()}


def _simulated(
    policy: str, trace: Sequence[tuple[float, Manifest]], empty: Observation, launch: float
) -> tuple[Outcome, Choices]:
    cluster = replace(empty.snapshot, time=0.0)
    rules = LlmRules(preemptible=False, schedule_seconds=launch, startup_seconds=0.0)
    jobs = [_job(manifest, created, empty) for created, manifest in trace]
    run = simulate(load(policy), llm.jobs(jobs, cluster, rules), cluster)
    stays = [(record.finished or run.end) - record.submitted for record in run.jobs]
    first = min(record.submitted for record in run.jobs)
    held = {run.jobs[span.job].uid: (span.gpu_type, sum(share.gpus for share in span.shares)) for span in run.spans}
    return Outcome(statistics.fmean(stays) / 3600, (run.end - first) / 3600), held


def _job(manifest: Manifest, created: float, empty: Observation) -> Job:
    """The job as the controller observes it."""
    meta = Meta(name=manifest["metadata"]["name"], namespace=NAMESPACE, uid=manifest["metadata"]["name"])
    facts = job_facts.facts(JobObject(meta, msgspec.Raw(msgspec.json.encode(manifest["spec"]))))
    nodes = [empty.nodes[node.name] for node in empty.snapshot.nodes]
    return facts.as_job(created=created, eligible=eligible(facts.template["spec"], nodes))


async def _launch(where: Lab, manifest: Manifest, speedup: float) -> float:
    """Median real time that a lone job takes beside its run.

    Start times of pods are whole seconds, rounded down, and KWOK counts from them: a run is half a second short on
    average, which can hide the launch.
    """
    found = []
    for number in range(LONE_JOBS):
        alone = manifest | {"metadata": {"name": f"alone-{number}", "namespace": NAMESPACE}}
        [stay], _ = await _live(where, [(0.0, alone)], speedup)
        made = msgspec.json.decode(await where.client.get(JOBS.path(NAMESPACE, f"alone-{number}")))
        found.append(stay - made["status"]["plan"]["predicted"]["runSeconds"] / speedup)
    return max(0.0, statistics.median(found))


async def _live(where: Lab, trace: Sequence[tuple[float, Manifest]], speedup: float) -> tuple[list[float], float]:
    """Real seconds that each job was there, and from the first creation to the last end."""
    ends: dict[str, float] = {}

    def see(event: str, job: Manifest, moment: float) -> None:
        if complete(job):
            ends.setdefault(job["metadata"]["name"], moment)

    async with following(where.client, JOBS, see):
        began, submitted = time.monotonic(), {}
        for created, manifest in trace:
            await asyncio.sleep(max(0.0, began + created / speedup - time.monotonic()))
            submitted[manifest["metadata"]["name"]] = time.monotonic()
            await create_jobs(where.client, [manifest])

        async def done() -> bool:
            return submitted.keys() <= ends.keys()

        await until("all jobs are complete", done, LONGEST_SECONDS)
    stays = [ends[name] - at for name, at in submitted.items()]
    return stays, max(ends[name] for name in submitted) - min(submitted.values())


def complete(job: Manifest) -> bool:
    """Whether a job has run to its end."""
    conditions = job.get("status", {}).get("conditions", ())
    return any((each["type"], each["status"]) == ("Complete", "True") for each in conditions)


def as_manifest(job: Job) -> Manifest:
    """The generated job as a user would write it."""
    training, need = job.training, job.requirements
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.JOB_KIND,
        "metadata": {"name": job.name, "namespace": NAMESPACE},
        "spec": {
            "model": {"preset": job.model.name},
            "training": {
                "sequenceLength": training.sequence_length,
                "globalBatchSize": training.global_batch_size,
                "steps": training.steps,
                "precision": training.precision.value,
            },
            "resources": {"gpus": {"min": need.gpus.low, "max": need.gpus.high}},
            "launcher": "Megatron",
            "template": {"spec": {"containers": [{"name": "trainer", "image": "example.com/trainer:1"}]}},
        },
    }
