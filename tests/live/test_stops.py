"""A running job is asked before it is stopped: one that answers goes on where it was, one that does not has its time.

The trainers are fake ones, which answer or not as an annotation of their job says (`trimtab.plan.fake`).
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from tests.live.harness import ControllerProcess, Live, eventually, training_job

from trimtab import names
from trimtab.plan.fake import COMPLETE_DELAY, IGNORES

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

LONG = 600.0


def variables(pod: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in pod["spec"]["containers"][0]["env"]}


def seconds_of(pod: dict[str, Any]) -> float:
    """How long its fake trainer will run."""
    return float(pod["metadata"]["annotations"][COMPLETE_DELAY].removesuffix("ms")) / 1000


async def until_suspended(live: Live, job: str) -> dict[str, Any]:
    await live.until(job, names.SUSPENDED)
    await eventually(lambda: not live.pods(job), what="its pods to be gone")
    return live.status(job)


async def test_a_job_that_answers_goes_on_from_the_step_that_it_saved(live: Live, tmp_path: Path) -> None:
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path) as process:
        live.apply(training_job("answers", seconds=LONG))
        await live.until("answers", names.PODS_READY)
        [first, *_] = live.pods("answers")
        assert "TRIMTAB_RESUME_STEP" not in variables(first)
        live.patch("ltj", "answers", {"spec": {"elasticity": {"checkpoint": {"graceSeconds": 60}}}})
        live.patch("ltj", "answers", {"spec": {"suspend": True}})
        status = await until_suspended(live, "answers")
        saved = status["observed"]["lastCheckpointStep"]
        assert status["observed"]["stepsDone"] == saved > 0
        assert [record["cause"] for record in status["stops"]] == ["Suspended"]
        assert "stop" not in status
        assert {"CheckpointRequested", "Suspended"} <= {*live.events("answers")}
        assert process.metric("trimtab_stops_total", cause="Suspended", result="acknowledged") == 1
        assert process.metric("trimtab_lost_gpu_seconds_total") == 0
        live.patch("ltj", "answers", {"spec": {"suspend": False}})
        await live.until("answers", names.PODS_READY)
        status, pods = live.status("answers"), live.pods("answers")
        assert (status["plan"]["epoch"], status.get("restarts", 0), status.get("setbacks", 0)) == (2, 0, 0)
        assert {variables(pod)["TRIMTAB_RESUME_STEP"] for pod in pods} == {str(saved)}
        assert seconds_of(pods[0]) < seconds_of(first)
        await live.gone("answers")


async def test_a_deaf_job_is_stopped_in_time_though_its_controller_was_killed_meanwhile(
    live: Live, tmp_path: Path
) -> None:
    credentials = live.kubeconfig(tmp_path)
    job = training_job("deaf", seconds=LONG, elasticity={"policy": "Fixed", "checkpoint": {"graceSeconds": 6}})
    job["metadata"]["annotations"] = {names.ANNOTATION_FAKE_CHECKPOINT: IGNORES}
    async with ControllerProcess(credentials, tmp_path) as process:
        live.apply(job)
        await live.until("deaf", names.PODS_READY)
        live.patch("ltj", "deaf", {"spec": {"suspend": True}})
        await live.until("deaf", names.CHECKPOINT_REQUESTED)
        stop = live.status("deaf")["stop"]
        assert (stop["epoch"], stop["cause"]) == (1, "Suspended")
        process.signal(signal.SIGKILL)
        await process.died()
    assert len(live.pods("deaf")) == 2
    async with ControllerProcess(credentials, tmp_path) as process:
        told = [{"trimtab.dev/checkpoint-requested": stop["deadlineTime"]}] * 2

        def asked() -> list[dict[str, str]]:
            annotations = [pod["metadata"]["annotations"] for pod in live.pods("deaf")]
            return [{name: each[name] for name in told[0] if name in each} for each in annotations]

        await eventually(lambda: asked() in (told, []), what=lambda: f"every pod to be told: {asked()}")
        status = await until_suspended(live, "deaf")
        assert (status.get("restarts", 0), len(status["stops"])) == (0, 1)
        assert process.metric("trimtab_stops_total", cause="Suspended", result="deadline") == 1
        assert process.metric("trimtab_lost_gpu_seconds_total", cause="Suspended") > 0
        await live.gone("deaf")
