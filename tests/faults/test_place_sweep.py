"""The crash sweep of jobs whose pods others make: a Job, JobSet, TrainJob, MPIJob, RayJob or PodGroup starts; a Job
gives way, or is shaped."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.faults import witness_state
from tests.faults.raw_client import path
from tests.faults.sweep import EACH, MODES, reference, sweep
from tests.faults.testbed import Stand
from tests.faults.watcher import Watcher
from tests.faults.workloads import JOBS, LONG, PATIENT, URGENT, Workload, whole
from tests.live import their_controllers
from tests.live.harness import Live, training_job
from tests.live.theirs import PLACE, group, job, jobset, member, mpijob, placed, rayjob, runtime, shaped, trainjob

from trimtab import names
from trimtab.controller.place.stand_in import name_of
from trimtab.kube.objects import Meta

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

Json = dict[str, Any]
RUNTIME = "placed"


class Placed(Workload):
    """A gang of two nodes is planned, its pods are taken in and bound, run and end."""

    kind = "jobs"
    pods = 2
    steps = 1
    """Pods of fake nodes run for up to a second, by chance, and each tenth of the steps is a write: there is none."""

    def __init__(self, name: str) -> None:
        super().__init__(name, settings={"interop": dict(PLACE)})
        self._stand_in: dict[str, str] = {}

    def jobs(self, life: str) -> tuple[str, ...]:
        return tuple(filter(None, [self._stand_in.get(life)]))

    def anonymous(self, name: str, life: str) -> str:
        """Names end with what is drawn, or follows from a UID."""
        return re.sub(rf"^{life}((-worker|-node)?(-[0-9]+)*)-[a-z0-9]{{5}}$", r"LIFE\1", name)

    def made(self, life: str) -> Json:
        """The object that is made."""
        return job(life, nodes=self.pods)

    async def makes(self, stand: Stand, life: str) -> None:
        made = self.made(life)
        made["metadata"].setdefault("annotations", {})[names.STATED["steps"]] = str(self.steps)
        await stand.hands.create(self.kind, made)
        uid = (await stand.hands.get(self.kind, life))["metadata"]["uid"]
        self._stand_in[life] = name_of(Meta(name=life, uid=uid))

    async def act(self, stand: Stand, life: str) -> None:
        await self.makes(stand, life)

    def over(self, seen: Watcher, life: str) -> bool:
        return witness_state.holds(seen.job(self._stand_in[life]), "Complete")

    async def clean(self, stand: Stand, life: str) -> None:
        await stand.hands.ask("DELETE", f"{path(self.kind, life)}?propagationPolicy=Background")
        await stand.clear(*self.jobs(life))


class PlacedJobSet(Placed):
    """The same gang, whose pods are those of two Jobs of a JobSet."""

    kind = "jobsets"

    def made(self, life: str) -> Json:
        return jobset(life, jobs=self.pods)


class PlacedTrainJob(Placed):
    """The same gang, whose pods are those of a Job of a JobSet, which Trainer has made of the runtime."""

    kind = "trainjobs"

    def made(self, life: str) -> Json:
        return trainjob(life, RUNTIME, nodes=self.pods)


class Runs(Placed):
    """A gang that is over once it runs as a whole: when it ends, another program says."""

    steps = 10_000_000

    def anonymous(self, name: str, life: str) -> str:
        return re.sub(rf"^{life}(-[a-z0-9]{{5}}(-gpu-worker-[a-z0-9]{{5}})?)?", "LIFE", name)

    def over(self, seen: Watcher, life: str) -> bool:
        return whole(seen, self._stand_in[life], 1)


class PlacedMPIJob(Runs):
    """The gang of the workers of an MPIJob, which the MPI operator makes beside a launcher."""

    kind = "mpijobs"

    def made(self, life: str) -> Json:
        return mpijob(life, nodes=self.pods, api="v2beta1")


class PlacedRayJob(Runs):
    """The gang of the workers of a RayJob, which KubeRay makes by a RayCluster."""

    kind = "rayjobs"

    def made(self, life: str) -> Json:
        return rayjob(life, nodes=self.pods)


class PlacedGroup(Placed):
    """The same gang, of pods that name a PodGroup. Nobody makes a lost one anew."""

    kind = "podgroups"

    def anonymous(self, name: str, life: str) -> str:
        return super().anonymous(name, life).replace(life, "LIFE")

    def made(self, life: str) -> Json:
        return group(life, self.pods)

    async def act(self, stand: Stand, life: str) -> None:
        await super().act(stand, life)
        maker = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": life}}
        await stand.hands.create("configmaps", maker)
        uid = (await stand.hands.get("configmaps", life))["metadata"]["uid"]
        await stand.hands.create("pods", *(member(life, number, uid) for number in range(self.pods)))

    async def clean(self, stand: Stand, life: str) -> None:
        await stand.hands.delete("configmaps", life)
        await super().clean(stand, life)


class Shaped(Placed):
    """The same gang, of a Job that has one pod of eight GPUs at first, and is suspended to get two of four."""

    def made(self, life: str) -> Json:
        return shaped(job(life, nodes=1), gpus="8-8", gpus_per_node="4-4")


class GivesWay(Placed):
    """A Job fills the cluster; one of ours with a higher priority arrives, and gets what it needs of it."""

    pods = 4
    steps = 1_000_000

    async def prepare(self, stand: Stand, life: str) -> None:
        kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1000}
        await stand.hands.create("priorityclasses", {**kind, "metadata": {"name": URGENT}})
        await self.makes(stand, life)
        await stand.runs(self._stand_in[life])
        at_once = {"spec": {"elasticity": {"minRuntimeSeconds": 0}}}
        await stand.hands.patch(JOBS, self._stand_in[life], at_once)

    async def act(self, stand: Stand, life: str) -> None:
        urgent = training_job(f"{life}-up", gpus=32, seconds=LONG, priorityClassName=URGENT, elasticity=PATIENT)
        await stand.hands.create(JOBS, urgent)

    def jobs(self, life: str) -> tuple[str, ...]:
        return (*super().jobs(life), f"{life}-up")

    def anonymous(self, name: str, life: str) -> str:
        return super().anonymous(name, life).replace(life, "LIFE")

    def over(self, seen: Watcher, life: str) -> bool:
        low = self._stand_in[life]
        return (
            not seen.pods(low) and "pending" in witness_state.status_of(seen.job(low)) and whole(seen, f"{life}-up", 1)
        )


@pytest.fixture(scope="module", autouse=True)
def placing(live_cluster: Live) -> Iterator[None]:
    with placed(live_cluster, their_controllers.MPI_OPERATOR.user, their_controllers.KUBERAY.user):
        yield


@pytest.fixture(scope="module")
def their_controllers_run(live_cluster: Live, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    both = their_controllers.JOBSET, their_controllers.TRAINER
    with their_controllers.running(live_cluster.cluster, tmp_path_factory.mktemp("theirs"), *both):
        live_cluster.apply(runtime(RUNTIME))
        yield
        live_cluster.delete("trainingruntime", RUNTIME)  # while Trainer runs, whose finalizer it has


@pytest.fixture(scope="module")
def operators_run(live_cluster: Live, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    both = their_controllers.MPI_OPERATOR, their_controllers.KUBERAY
    with their_controllers.running(live_cluster.cluster, tmp_path_factory.mktemp("operators"), *both):
        yield


WORKLOADS = {"placed": Placed, "gives-way": GivesWay, "shaped": Shaped, "group": PlacedGroup}
OTHERS = {"jobset": PlacedJobSet, "trainjob": PlacedTrainJob}
OPERATORS = {"mpijob": PlacedMPIJob, "rayjob": PlacedRayJob}
WAYS = {"placed": tuple(MODES)}
"""In which each is struck; kill-after for all others."""


async def strike(stand: Stand, workload: Workload, name: str) -> None:
    """A crash at every write, one at a time: the same in the end."""
    calm = await reference(stand, workload)
    for mode in WAYS.get(name, ("kill-after",)):
        lives = [life async for life in sweep(stand, workload, mode, calm)]
        assert {life.write: (life.what, life.problems) for life in lives if life.problems} == {}
        assert len(lives) >= calm.writes["PATCH pods"] + calm.writes["POST bindings"], "none does with fewer than these"


@pytest.mark.parametrize("name", WORKLOADS)
async def test_a_crash_at_any_write_changes_nothing_in_the_end(stand: Stand, name: str) -> None:
    await strike(stand, WORKLOADS[name](name), name)


@pytest.mark.parametrize("name", OTHERS)
async def test_nor_does_one_at_any_write_about_what_has_jobs_of_its_own(
    stand: Stand, their_controllers_run: None, name: str
) -> None:
    await strike(stand, OTHERS[name](name), name)


@pytest.mark.long
@pytest.mark.parametrize("name", OPERATORS)
async def test_nor_does_one_at_any_write_about_what_an_operator_makes(
    stand: Stand, operators_run: None, name: str
) -> None:
    await strike(stand, OPERATORS[name](name), name)


@pytest.mark.parametrize("name", WORKLOADS)
async def test_a_crash_after_every_single_write_changes_nothing_in_the_end(stand: Stand, name: str) -> None:
    await strike_each(stand, WORKLOADS[name](name))


@pytest.mark.parametrize("name", OPERATORS)
async def test_nor_do_those_about_what_an_operator_makes(stand: Stand, operators_run: None, name: str) -> None:
    await strike_each(stand, OPERATORS[name](name))


async def strike_each(stand: Stand, workload: Workload) -> None:
    """No controller survives its first write: the same in the end."""
    calm = await reference(stand, workload)
    [life] = [life async for life in sweep(stand, workload, EACH, calm)]
    assert life.problems == []
    assert life.crashes >= 3, "writes that are made side by side die together"
