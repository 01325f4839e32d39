"""Who decides, on a running controller: policies changed, watched and failing, all of them under one process.

The controller of this module is never restarted. Its registry also has the policies of `tests/rogues`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.live.harness import ControllerProcess, Live, eventually, gpu_node, training_job, wait_until

from trimtab import names
from trimtab.controller.loop.shadow import PAUSE_SECONDS
from trimtab_policy.policy import Kind, entry
from trimtab_policy.policy import names as policy_names

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

ROGUES = Path(__file__).resolve().parents[1] / "rogues"
LEARNED = [name for name in policy_names() if entry(name).kind is Kind.LEARNED]
H100_NODES = ["policy-h100-0", "policy-h100-1"]
WHERE = ("-n", names.SYSTEM_NAMESPACE)
Choose = Callable[..., None]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that `rogue_missing` cannot do without; it is not there."""
    return tmp_path_factory.mktemp("weights") / "missing.safetensors"


@pytest.fixture(scope="module")
def controller(
    live_cluster: Live, weights: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControllerProcess]:
    """One controller for all tests, and GPUs of a second type for it to choose from."""
    directory = tmp_path_factory.mktemp("policies")
    live_cluster.apply(*(gpu_node(name, product="NVIDIA-H100-80GB-HBM3") for name in H100_NODES))
    environment = {"PYTHONPATH": str(ROGUES), "ROGUE_WEIGHTS": str(weights)}
    process = ControllerProcess(live_cluster.kubeconfig(directory), directory, environment=environment).start()
    pid = process.pid
    wait_until(lambda: "leading" in process.tail(), "it does not lead")
    yield process
    assert process.alive, process.tail()
    assert process.pid == pid
    process.stop()
    live_cluster.cluster.kubectl("delete", "node", *H100_NODES)


@pytest.fixture
def choose(live: Live, controller: ControllerProcess) -> Iterator[Choose]:
    """Write the ConfigMap, and wait until the controller has taken notice; it is deleted after the test."""

    def write(**data: str) -> None:
        before = _changes(controller)
        meta = {"name": names.POLICY_CONFIG_MAP, "namespace": names.SYSTEM_NAMESPACE}
        live.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data})
        wait_until(lambda: _changes(controller) > before, "it took no notice of the ConfigMap")

    yield write
    live.cluster.kubectl("delete", "configmap", names.POLICY_CONFIG_MAP, *WHERE, "--ignore-not-found")
    wait_until(
        lambda: controller.metric("trimtab_policy_info", policy="best_fit", role="policy") == 1,
        "it took no notice that the ConfigMap has gone",
    )
    assert controller.alive, controller.tail()


def _changes(controller: ControllerProcess) -> float:
    return controller.metric("trimtab_policy_changes_total")


def told(live: Live, reason: str) -> list[str]:
    """What the events of this reason about the ConfigMap say."""
    found = json.loads(live.cluster.kubectl("get", "events", *WHERE, "-o", "json"))["items"]
    return [event["message"] for event in found if event["reason"] == reason]


def decided_by(live: Live, job: str) -> str:
    return str(live.status(job).get("plan", {}).get("policy", ""))


def moldable(name: str, low: int, high: int, seconds: float, **spec: Any) -> dict[str, Any]:
    """A job that may have between so many GPUs of any type."""
    job = training_job(name, gpus=high, seconds=seconds, **spec)
    job["spec"]["resources"]["gpus"]["min"] = low
    job["spec"]["elasticity"]["policy"] = "Moldable"
    return job


async def completes(live: Live, job: dict[str, Any]) -> dict[str, Any]:
    """Apply a job, wait for its end, clean up; its last status."""
    name = job["metadata"]["name"]
    live.apply(job)
    await live.until(name, "Complete")
    status = live.status(name)
    live.delete("ltj", name, "--wait=false")
    return status


# --- changes ----------------------------------------------------------------------------------------------------------
async def test_policies_change_without_a_restart_and_back_when_the_config_map_goes(live: Live, choose: Choose) -> None:
    assert (await completes(live, training_job("as-started", seconds=0.1)))["plan"]["policy"] == "best_fit"
    choose(policy="srtf", deadlineSeconds="1.5")
    assert (await completes(live, training_job("changed", seconds=0.1)))["plan"]["policy"] == "srtf"
    assert any("srtf decides within 1.5 s, else fcfs (before: best_fit" in note for note in told(live, "PolicyChanged"))
    choose(policy="strf")
    [warning] = told(live, "PolicyNotUnderstood")
    assert "policy: 'strf' is not understood: unknown policy 'strf'; did you mean srtf, srsf?" in warning
    assert (await completes(live, training_job("misspelt", seconds=0.1)))["plan"]["policy"] == "srtf"
    live.cluster.kubectl("delete", "configmap", names.POLICY_CONFIG_MAP, *WHERE)
    await eventually(lambda: any("(before: srtf" in note for note in told(live, "PolicyChanged")), what="the way back")
    assert (await completes(live, training_job("as-before", seconds=0.1)))["plan"]["policy"] == "best_fit"


# --- shadow mode ------------------------------------------------------------------------------------------------------
async def test_what_a_shadow_policy_would_do_is_recorded_once_and_changes_nothing(
    live: Live, choose: Choose, controller: ControllerProcess
) -> None:
    choose(shadow="fcfs")
    live.apply(moldable("watched", 2, 16, 600))
    await live.until("watched", "PodsReady")
    await eventually(lambda: "shadow" in live.status("watched"), what=lambda: f"shadow: {live.status('watched')}")
    status = live.status("watched")
    plan, shadow = status["plan"], status["shadow"]
    assert (plan["policy"], shadow["policy"]) == ("best_fit", "fcfs")
    assert shadow["summary"].startswith(f"{shadow['gpus']}×{shadow['gpuType']} ")
    assert len(shadow["nodes"]) * shadow["nodes"][0]["gpus"] == shadow["gpus"]
    assert "differenceSeconds" in shadow
    assert "predictedFinishTime" in shadow
    version = live.get("ltj", "watched")["metadata"]["resourceVersion"]
    live.apply(moldable("neighbour", 2, 4, 0.1))
    await live.until("neighbour", "Complete")
    await eventually(
        lambda: controller.metric("trimtab_shadow_answers_total", policy="fcfs") >= 2,
        what="the answer about the neighbour, which nobody waits for",
    )
    assert live.get("ltj", "watched")["metadata"]["resourceVersion"] == version, "told again without news"
    live.patch("ltj", "watched", {"spec": {"suspend": True}})  # its pods go at once: nobody waits for a collector
    await live.until("watched", "Suspended")
    assert "shadow" not in live.status("watched"), "it is about a plan that does not stand any more"
    for job in ("watched", "neighbour"):
        live.delete("ltj", job, "--wait=false")


@pytest.mark.parametrize(
    ("shadow", "reason"), [("rogue_crash", "crash"), ("rogue_raise", "error"), ("rogue_nan", "nan")]
)
async def test_a_shadow_policy_that_fails_is_counted_and_disturbs_nobody(
    live: Live, choose: Choose, controller: ControllerProcess, shadow: str, reason: str
) -> None:
    def failed() -> float:
        return controller.metric("trimtab_shadow_failures_total", policy=shadow, reason=reason)

    choose(shadow=shadow)
    await eventually(lambda: failed() >= 1, what="the failure on trial to be counted")
    for number in range(10):  # a round that comes in its pause, or while a process of it begins, it is not asked about
        await asyncio.sleep(PAUSE_SECONDS)
        status = await completes(live, training_job(f"beside-{reason}-{number}", seconds=0.1))
        assert (status["plan"]["policy"], status.get("restarts", 0)) == ("best_fit", 0)
        if failed() >= 2:
            break
    await eventually(lambda: failed() >= 2, what="the failure in a round to be counted")
    assert controller.metric("trimtab_policy_fallbacks_total", policy=shadow) == 0


async def test_a_shadow_policy_that_never_ends_delays_nobody_and_its_rounds_are_skipped(
    live: Live, choose: Choose, controller: ControllerProcess
) -> None:
    choose(shadow="rogue_late")
    for number in range(3):
        await completes(live, training_job(f"beside-late-{number}", seconds=0.1))
    assert controller.metric("trimtab_shadow_skipped_total", reason="busy") >= 2


# --- policies that fail -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("policy", "reason"), [("rogue_raise", "error"), ("rogue_nan", "nan"), ("rogue_slow", "deadline")]
)
async def test_the_fallback_decides_for_a_policy_that_fails_and_says_so(
    live: Live, choose: Choose, controller: ControllerProcess, policy: str, reason: str
) -> None:
    choose(policy=policy, deadlineSeconds="0.3")
    job = f"fallback-{reason}"
    assert (await completes(live, training_job(job, seconds=0.1)))["plan"]["policy"] == "fcfs"
    assert "PolicyFallback" in live.events(job)
    assert controller.metric("trimtab_policy_fallbacks_total", policy=policy, reason=reason) >= 1


async def test_a_policy_whose_weights_are_missing_takes_over_as_soon_as_they_are_there(
    live: Live, choose: Choose, controller: ControllerProcess, weights: Path
) -> None:
    choose(policy="rogue_missing")
    assert (await completes(live, training_job("without-weights", seconds=0.1)))["plan"]["policy"] == "fcfs"
    assert controller.metric("trimtab_policy_fallbacks_total", policy="rogue_missing", reason="unloadable") >= 1
    assert any("missing.safetensors" in warning for warning in told(live, "PolicyUnavailable"))
    await asyncio.to_thread(weights.write_bytes, b"")
    assert (await completes(live, training_job("with-weights", seconds=0.1)))["plan"]["policy"] == "rogue_missing"


# --- policies that were learned ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("policy", LEARNED)
async def test_every_learned_policy_schedules_jobs_to_completion(
    live: Live, choose: Choose, controller: ControllerProcess, policy: str
) -> None:
    fallbacks = controller.metric("trimtab_policy_fallbacks_total")
    refused = controller.metric("trimtab_shield_rejections_total")
    choose(policy=policy, deadlineSeconds="10")  # this machine may have other things to do
    name = policy.replace("_", "-")
    jobs = [
        moldable(f"{name}-elastic", 2, 16, 0.3),
        training_job(f"{name}-fixed", gpus=16, seconds=0.3),
        moldable(f"{name}-small", 1, 2, 0.02, model={"preset": "gpt2"}),
        training_job(f"{name}-large", gpus=32, seconds=0.3),
        moldable(f"{name}-again", 4, 16, 0.3),
    ]
    live.apply(*jobs)
    for job in jobs:
        await live.until(job["metadata"]["name"], "Complete", 40)
    statuses = [live.status(job["metadata"]["name"]) for job in jobs]
    assert {status["plan"]["policy"] for status in statuses} == {policy}
    assert controller.metric("trimtab_policy_fallbacks_total") == fallbacks, controller.tail()
    assert controller.metric("trimtab_shield_rejections_total") == refused, controller.tail()
    for job in jobs:
        live.delete("ltj", job["metadata"]["name"], "--wait=false")
