"""A training reports its steps to a running controller: its status shows them, the next job of its kind is predicted
better, and what was learned outlives the controller.

The pods are KWOK's, so the test speaks in the place of the trainer, with tokens bound to the real pods of the gangs.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.live.harness import ControllerProcess, Live, eventually, training_job
from tests.live.trainings import AT_ONCE, REPORTS, desk, forget, tells, token

from trimtab import names, report
from trimtab.observe import calibration
from trimtab_policy.perf.lessons import State

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

JOBS = ("teacher", "pupil", "late")
ELSEWHERE = "reports-elsewhere"
ONE_CLASS = {"parallelism": {"mode": "Data"}, "resources": {"gpus": {"max": 8}, "maxNodes": 1}}
"""Corrections are by class of plan and by where it lies: a free choice would take the pupil out of the class whose
lesson it is to heed, to two nodes, of which nobody has said that they are slow."""


@pytest.fixture
async def controller(live: Live, tmp_path: Path) -> AsyncIterator[ControllerProcess]:
    """A controller that listens; jobs and what was learned are gone afterwards."""
    forget(live)
    process = ControllerProcess(live.kubeconfig(tmp_path), tmp_path, reports=REPORTS, telemetry=AT_ONCE).start()
    yield process
    for job in JOBS:
        await live.gone(job)
    live.cluster.kubectl("delete", "namespace", ELSEWHERE, "--ignore-not-found", "--wait=false")
    process.stop()
    forget(live)


def kept(live: Live) -> State | None:
    where = ("-n", names.SYSTEM_NAMESPACE, "-o", "json", "--ignore-not-found")
    found = live.cluster.kubectl("get", "configmap", names.CALIBRATION_CONFIG_MAP, *where)
    return calibration.read_calibration(json.loads(found)["data"]) if found else None


async def started(live: Live, job: str) -> dict[str, Any]:
    """Apply a job that runs for long, wait until it does; its plan."""
    live.apply(training_job(job, seconds=600, **ONE_CLASS))
    await live.until(job, names.PODS_READY)
    plan: dict[str, Any] = live.status(job)["plan"]
    return plan


def trimtab(live: Live, *arguments: str) -> str:
    command = [sys.executable, "-m", "trimtab", *arguments, "--kubeconfig", str(live.cluster.kubeconfig)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


async def test_a_job_that_reports_teaches_the_next_one(live: Live, controller: ControllerProcess) -> None:
    plan = await started(live, "teacher")
    expected = plan["predicted"]["stepMilliseconds"] / 1000
    assert "correctionPermille" not in plan["predicted"]
    slow = 1.5 * expected
    await tells(
        live, controller, "teacher", stepSeconds=slow, checkpointStep=90, metrics=[{"name": "loss", "value": "2.5"}]
    )

    await eventually(lambda: live.holds("teacher", names.DRIFTED), 30, lambda: str(live.status("teacher")))
    status = live.status("teacher")
    assert status["observed"]["stepMilliseconds"] == pytest.approx(1000 * slow, rel=0.01)
    assert status["observed"]["lastCheckpointStep"] == 90
    assert status["trainerStatus"]["metrics"] == [{"name": "loss", "value": "2.5"}]
    assert status["conditions"][-1]["type"] == names.PODS_READY
    await eventually(lambda: "Drifted" in live.events("teacher"), 20, "the event")
    await eventually(lambda: controller.metric("trimtab_drifted_jobs") == 1, 20, "the metric")
    assert controller.metric("trimtab_prediction_factor", model="llama3-8b") > 1.1

    predicted = (await started(live, "pupil"))["predicted"]
    factor = predicted["correctionPermille"] / 1000
    assert 1.1 < factor < 1.5
    assert predicted["stepMilliseconds"] / 1000 == pytest.approx(factor * expected, rel=0.01)

    await eventually(lambda: (kept(live) or State()).count == 1, 30, "the ConfigMap")
    told = json.loads(trimtab(live, "explain", "pupil", "-o", "json"))
    assert told["learned"]["jobs"] == 1
    assert told["learned"]["low"] < factor < told["learned"]["high"]
    said = trimtab(live, "explain", "teacher")
    assert "step 150 of 30000; checkpoint at step 90" in said
    assert "1.50 times what was expected" in said

    controller.stop()
    controller.start()
    later = (await started(live, "late"))["predicted"]
    assert later["correctionPermille"] == predicted["correctionPermille"]
    assert controller.alive


async def test_the_client_of_a_training_script_is_heard(
    live: Live, controller: ControllerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await started(live, "pupil")
    [pod] = [pod for pod in live.pods("pupil") if pod["metadata"]["name"] == "pupil-1-0"]
    trainer = pod["spec"]["containers"][0]
    env = {entry["name"]: entry.get("value", "") for entry in trainer["env"]}
    assert env["TRIMTAB_REPORT_URL"] == REPORTS["url"]
    [mount] = [mount for mount in trainer["volumeMounts"] if mount["mountPath"] == names.REPORT_TOKEN_DIRECTORY]
    [volume] = [volume for volume in pod["spec"]["volumes"] if volume["name"] == mount["name"]]
    source = volume["projected"]["sources"][0]["serviceAccountToken"]
    assert (source["audience"], mount["readOnly"]) == (names.REPORT_AUDIENCE, True)

    path = tmp_path / source["path"]
    path.write_text(token(live, "pupil"))
    for name, value in (env | {"TRIMTAB_REPORT_URL": desk(controller), "TRIMTAB_REPORT_SECONDS": "1.1"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("RANK", raising=False)
    reporter = report.Reporter(str(path))
    for step in range(10, 30):
        reporter.step(step, loss=1.5)
        await asyncio.sleep(0.005)
    reporter.checkpoint(20)
    await eventually(lambda: "observed" in live.status("pupil"), 30, lambda: controller.tail())
    observed = live.status("pupil")["observed"]
    assert (observed["epoch"], observed["lastCheckpointStep"]) == (1, 20)
    assert 10 <= observed["stepsDone"] <= 29
    await asyncio.to_thread(reporter.close)


async def test_what_one_namespace_reports_moves_no_prediction_of_another(
    live: Live, controller: ControllerProcess
) -> None:
    live.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": ELSEWHERE}})
    plan = await started(live, "teacher")
    lie = 1000 * plan["predicted"]["stepMilliseconds"] / 1000
    await tells(live, controller, "teacher", stepSeconds=min(lie, 86_400.0))
    await eventually(lambda: controller.metric("trimtab_prediction_factor", model="llama3-8b") > 1.1, 20, "a lesson")
    other = training_job("pupil", seconds=600, **ONE_CLASS)
    other["metadata"]["namespace"] = ELSEWHERE
    live.apply(other)

    def predicted() -> dict[str, Any]:
        found = json.loads(live.cluster.kubectl("get", "ltj", "pupil", "-n", ELSEWHERE, "-o", "json"))
        said: dict[str, Any] = found.get("status", {}).get("plan", {}).get("predicted", {})
        return said

    await eventually(lambda: bool(predicted()), 30, "a plan")
    assert "correctionPermille" not in predicted()
    assert predicted()["stepMilliseconds"] == plan["predicted"]["stepMilliseconds"]
    pupil = await started(live, "pupil")
    assert pupil["predicted"]["correctionPermille"] > 1100, "its own namespace is told what it said"
