"""What was learned, in its ConfigMap: read, kept, left alone when somebody else's, and applied to jobs that wait."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.builders import A100, NOW, job, job_object, node, placement, plan_of, running, snapshot
from tests.fakeserver import FakeApiServer

from trimtab.api.status import JobStatus
from trimtab.apply import transitions
from trimtab.apply.transitions import GangReport
from trimtab.controller.cluster import Cluster
from trimtab.controller.event_recorder import EventRecorder
from trimtab.controller.reports.calibration import Calibration
from trimtab.controller.reports.progress import MeasuredSteps
from trimtab.kube.client import KubeClient
from trimtab.kube.metrics_hooks import Silent
from trimtab.observe import calibration as stored
from trimtab.observe.jobs import facts
from trimtab.observe.snapshot import ClusterObserver, Observation
from trimtab.observe.stragglers import Verdict
from trimtab.settings import KubeSettings, ReflectorSettings, ReportSettings
from trimtab.telemetry.metrics import REGISTRY
from trimtab_policy.perf.lessons import Locality, State
from trimtab_policy.specs import ParallelPlan, Prediction
from trimtab_policy.types import Job, Node

GB200 = "GB200-186GB"
KEY = "trimtab-system/trimtab-calibration"
SETTINGS = ReportSettings(host="127.0.0.1", port=0, url="http://reports.test")
EMPTY = '{"known": [{"key": {"model": "m", "gpu_type": "H100", "plan": "p"}, "seen": []}]}'
PLAN = ParallelPlan(data=8, zero_stage=1)


class Bench:
    """A calibration on an API server of its own, whose turns the test takes."""

    def __init__(self, server: FakeApiServer, client: KubeClient, settings: ReportSettings = SETTINGS) -> None:
        self.server = server
        self.client = client
        self.leads = True
        self.cluster = Cluster(client, ReflectorSettings(), lambda: None, Silent())
        self.recorder = EventRecorder(client, "test")
        self.calibration = Calibration(
            settings,
            client,
            self.cluster,
            ClusterObserver(()),
            self.recorder,
            news=lambda _: None,
            leading=lambda: self.leads,
            write_seconds=0.0,
        )

    def measure(
        self,
        name: str = "job",
        times: float = 1.5,
        *,
        nodes: dict[str, int] | None = None,
        settled: bool = True,
        **plan: Any,
    ) -> None:
        """A job's steps take so many times the half second of the performance model."""
        said = Prediction(
            plan.pop("predicted", 0.5), 65_536 / 0.5, 1 << 33, 500.0, correction=plan.pop("correction", 1.0)
        )
        said = replace(said, tokens_per_second=65_536 / said.step_seconds)
        held = replace(placement(f"uid-{name}", nodes or {"n1": 8}, plan=PLAN, prediction=said), **plan)
        known = facts(job_object(name, status=JobStatus(plan=plan_of(held), last_epoch=1)))
        assert known.status.plan
        self.calibration.learn(MeasuredSteps(known, known.status.plan, 0.5 * times, settled))

    async def turn(self) -> None:
        await self.calibration._turn()

    def again(self, **changes: Any) -> Bench:
        """A successor of the controller."""
        return Bench(self.server, self.client, SETTINGS.model_copy(update=changes))

    def kept(self) -> State:
        return stored.read_calibration(self.server.store.get("configmaps", KEY)["data"])

    def writes(self) -> int:
        return sum(event["object"]["metadata"]["name"] == "trimtab-calibration" for _, event in
                   self.server.store.events("configmaps", 0))  # fmt: skip

    def factor(self, gpu_type: str = A100) -> float:
        [found] = [each for key, each in self.calibration.known.factors().items() if key.gpu_type == gpu_type]
        return found


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with (
        FakeApiServer() as server,
        await KubeClient.connect(KubeSettings(kubeconfig=server.kubeconfig(tmp_path))) as client,
    ):
        yield Bench(server, client)


def sample(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, labels)


def observed(*nodes: Node, jobs: tuple[Job, ...] = (), slow: tuple[str, ...] = ()) -> Observation:
    seen = snapshot(nodes or [node("n1")], jobs)
    return Observation(seen, {}, {}, {}, {}, (), stragglers=tuple(Verdict(name, "GPU-0", A100, 0.7) for name in slow))


# --- kept -------------------------------------------------------------------------------------------------------------
async def test_what_is_learned_outlives_the_controller(bench: Bench) -> None:
    await bench.calibration.load()
    bench.measure()
    await bench.turn()
    factor = bench.factor()
    assert 1.1 < factor < 1.5
    successor = bench.again()
    await successor.calibration.load()
    assert successor.factor() == factor
    assert successor.calibration.state == bench.calibration.state == bench.kept()


async def test_nothing_new_is_nothing_to_write(bench: Bench) -> None:
    await bench.calibration.load()
    await bench.turn()
    assert bench.writes() == 0
    bench.measure()
    for _ in range(3):
        await bench.turn()
    assert bench.writes() == 1


async def test_the_end_of_the_process_writes_what_is_not_written_yet(bench: Bench) -> None:
    await bench.calibration.load()
    bench.measure()
    await bench.calibration.stop()
    assert bench.kept().count == 1
    bench.measure("other")
    bench.leads = False
    await bench.calibration.stop()
    assert bench.kept().count == 1


@pytest.mark.parametrize(
    "data",
    [{}, {"state.json": "{"}, {"state.json": '{"version": 7}'}, {"state.json": '{"known": 3}'}, {"state.json": EMPTY}],
    ids=str,
)
async def test_what_is_not_understood_stays_as_it_is_and_is_told(data: dict[str, str], bench: Bench) -> None:
    meta = {"namespace": "trimtab-system", "name": "trimtab-calibration"}
    bench.server.store.create("configmaps", {"metadata": meta, "data": data})
    recording = asyncio.create_task(bench.recorder.run())
    await bench.calibration.load()
    bench.measure()
    await bench.turn()
    assert bench.server.store.get("configmaps", KEY)["data"] == data
    assert sample("trimtab_calibration_problem", reason="unreadable") == 1
    assert bench.factor() > 1.1  # it learns for as long as it lives
    async with asyncio.timeout(10):
        while not (events := bench.server.store.list("events")):
            await bench.server.store.changed.wait()
    assert (events[0]["reason"], events[0]["regarding"]["kind"]) == ("CalibrationNotUnderstood", "ConfigMap")
    recording.cancel()
    await asyncio.gather(recording, return_exceptions=True)
    bench.server.store.delete("configmaps", KEY)
    await bench.turn()
    assert bench.kept().count == 1
    assert sample("trimtab_calibration_problem", reason="unreadable") is None


async def test_deleting_the_config_map_makes_it_forget(bench: Bench) -> None:
    await bench.calibration.load()
    bench.measure("early")
    await bench.turn()
    bench.server.store.delete("configmaps", KEY)
    bench.measure("late")
    await bench.turn()
    await bench.turn()
    assert bench.kept().count == 1


async def test_what_a_person_writes_meanwhile_is_built_upon(bench: Bench) -> None:
    await bench.calibration.load()
    for name in "ab":
        bench.measure(name)
        await bench.turn()
    obj = bench.server.store.get("configmaps", KEY)
    edited = json.loads(obj["data"]["state.json"])
    edited["known"][0]["seen"] = edited["known"][0]["seen"][:1]
    bench.server.store.update("configmaps", KEY, obj | {"data": {"state.json": json.dumps(edited)}})
    bench.measure("c")
    await bench.turn()
    await bench.turn()
    assert len(bench.kept().known[0].seen) == 2


async def test_a_job_that_is_measured_again_replaces_what_it_had_shown(bench: Bench) -> None:
    await bench.calibration.load()
    bench.measure(times=3.0)
    bench.measure(times=1.0)
    await bench.turn()
    assert bench.kept().count == 1
    assert bench.factor() == pytest.approx(1.0, abs=1e-3)


async def test_it_does_nothing_where_nobody_listens(bench: Bench) -> None:
    silent = bench.again(url="")
    await silent.calibration.load()
    await silent.calibration.stop()
    task = asyncio.create_task(silent.calibration.run())
    await asyncio.sleep(0)
    assert not task.done()
    assert bench.server.store.list("configmaps") == []
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_the_text_stays_within_what_a_config_map_holds(monkeypatch: pytest.MonkeyPatch, bench: Bench) -> None:
    await bench.calibration.load()
    bench.measure("a")
    state = bench.calibration.state
    many = replace(state, known=tuple(replace(state.known[0], key=replace(state.known[0].key, model=str(number)))
                                      for number in range(50)))  # fmt: skip
    monkeypatch.setattr(stored, "LARGEST", 3000)
    kept = stored.read_calibration(stored.written(many))
    assert 0 < len(kept.known) < 50
    assert kept.known == many.known[-len(kept.known) :]


# --- learned, and not -------------------------------------------------------------------------------------------------
async def test_what_a_prediction_was_corrected_by_is_not_learned_again(bench: Bench) -> None:
    bench.measure("a", 1.5)
    [first] = [seen.error for known in bench.calibration.state.known for seen in known.seen]
    bench.measure("b", 1.5, predicted=0.6, correction=1.2)
    errors = [seen.error for known in bench.calibration.state.known for seen in known.seen]
    assert errors == pytest.approx([first, first], abs=1e-3)
    assert first == pytest.approx(math.log(1.5), abs=1e-3)


async def test_gangs_with_a_card_that_is_known_to_be_slow_teach_nothing(bench: Bench) -> None:
    bench.measure("planned-so", speed=0.7)
    bench.calibration.corrected(observed(node("n2"), slow=("n1",)))  # n1 is cordoned, and slow all the same
    bench.measure("slow-since")
    assert bench.calibration.state.count == 0
    bench.measure("elsewhere", nodes={"n2": 8})
    assert bench.calibration.state.count == 1


async def test_what_a_gang_taught_before_its_card_was_found_slow_is_forgotten_for_good(bench: Bench) -> None:
    await bench.calibration.load()
    gangs = running("slow-since", {"n1": 8}), running("well", {"n2": 8})
    for name in ("slow-since", "well"):
        bench.measure(name)
    await bench.turn()
    assert len(bench.kept().known[0].seen) == 2
    bench.calibration.corrected(observed(node("n1"), node("n2"), jobs=gangs, slow=("n1",)))
    bench.measure("slow-since", 3.0)
    await bench.turn()
    assert bench.kept() == bench.calibration.state
    assert bench.kept().known[0].seen == (bench.calibration.state.known[0].seen[0],)
    assert bench.calibration.state.count == 2


async def test_a_counter_of_alarms_is_there_before_the_first_one(bench: Bench) -> None:
    bench.measure(settled=False)
    assert sample("trimtab_prediction_drift_alarms_total", type=A100) is not None


async def test_factors_and_drift_are_metrics(bench: Bench) -> None:
    bench.measure(times=1.5)
    labels = {"model": "gpt2", "type": A100, "plan": "other/BF16/Data/zero1"}
    assert sample("trimtab_prediction_factor", **labels) == bench.factor()
    assert sample("trimtab_prediction_drift", type=A100) == 1.0
    before = sample("trimtab_prediction_drift_alarms_total", type=A100) or 0.0
    for number in range(20):
        bench.measure(f"job-{number}", times=1.5)
    assert (sample("trimtab_prediction_drift_alarms_total", type=A100) or 0.0) == before
    for number in range(20, 40):
        bench.measure(f"job-{number}", times=3.0)
    assert sample("trimtab_prediction_drift_alarms_total", type=A100) == before + 1
    assert (sample("trimtab_prediction_drift", type=A100) or 0.0) > 1.3


# --- applied ----------------------------------------------------------------------------------------------------------
async def test_jobs_that_wait_know_what_their_predictions_are_to_be_corrected_by(bench: Bench) -> None:
    waiting, held = job("waits", software="other"), running("runs", {"n1": 8})
    look = observed(jobs=(waiting, held))
    assert bench.calibration.corrected(look) is look
    bench.measure()
    after = bench.calibration.corrected(look).snapshot
    assert [bool(each.corrections) for each in after.jobs] == [True, False]
    assert {each.gpu_type for each in after.jobs[0].corrections} == {"", A100}
    assert bench.again(correct=False).calibration.corrected(look) is look


async def test_running_jobs_that_drift_are_counted(bench: Bench) -> None:
    meta = job_object().metadata
    status = transitions.planned(JobStatus(), meta, plan_of(placement(), 1), NOW)
    slow = transitions.reported(status, meta, GangReport(1, 100, 1000, NOW, step_seconds=1.0, ratio=2.0), NOW)
    items = bench.cluster.jobs.items
    for name, each in (("slow", slow), ("usual", status), ("over", transitions.completed(slow, meta, NOW))):
        items[f"default/{name}"] = job_object(name, status=each)
    await bench.turn()
    assert sample("trimtab_drifted_jobs") == 1


async def test_a_lesson_says_how_the_gang_lay_in_link_domains(bench: Bench) -> None:
    def lay() -> Locality:
        return bench.calibration.state.known[-1].key.locality

    bench.measure("early")
    assert lay() is Locality.UNKNOWN, "nothing was looked at yet"
    racks = [node(f"r{number % 2}-{number}", GB200, gpus=4, link_domain=f"r{number % 2}") for number in range(4)]
    wide = replace(PLAN, data=16)
    bench.calibration.corrected(observed(node("n1"), node("n2"), *racks))
    bench.measure("one-node")
    assert lay() is Locality.LINKED
    bench.measure("two-nodes", nodes={"n1": 8, "n2": 8}, plan=wide)
    assert lay() is Locality.SCATTERED
    names = [each.name for each in racks]
    bench.measure("racks", nodes=dict.fromkeys(names, 4), gpu_type=GB200, plan=wide)
    assert lay() is Locality.PARTS
    after = snapshot([node("n1"), *racks[1:]])
    bench.calibration.corrected(replace(observed(), snapshot=replace(after, unavailable={names[0]: "cordoned"})))
    bench.measure("cordoned", nodes=dict.fromkeys(names, 4), gpu_type=GB200, plan=wide)
    assert lay() is Locality.PARTS, "a node that takes no pods is linked as before"
    bench.calibration.corrected(replace(observed(), snapshot=after))
    bench.measure("gone", nodes=dict.fromkeys(names, 4), gpu_type=GB200, plan=wide)
    assert lay() is Locality.UNKNOWN
