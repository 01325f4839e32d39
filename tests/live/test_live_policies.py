"""Policies that stop, move and resize running jobs, as the policy of a running controller: all jobs end, nobody's steps
are lost, and nobody has to go more often than the budget allows.

One controller for all of them. What they may do to whom is up to the shield; that it had nothing to refuse is asked,
too. Jobs of `elasticity.policy: Elastic` alone are theirs to stop.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.live.accounts import clear
from tests.live.harness import NAMESPACE, ControllerProcess, Live, pace, training_job, wait_until

from trimtab import names
from trimtab.settings import PreemptionSettings

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

PREEMPTIVE = ["las", "srtf", "sia", "gavel", "rudder"]
BUDGET = PreemptionSettings().per_job_per_hour
COUNTED = ("trimtab_policy_fallbacks_total", "trimtab_shield_rejections_total", "trimtab_driver_errors_total")
"""What must not happen."""
URGENT = "policies-urgent"
GAVE_WAY = {"Preempted", "Reclaimed", "Yielded", "Moved", "Resized"}
WHERE = ("-n", names.SYSTEM_NAMESPACE)
AGE = timedelta(minutes=10)


@pytest.fixture(autouse=True)
def clean(live_cluster: Live) -> Iterator[None]:
    """No job of one test is in the way of the next one."""
    yield
    clear(live_cluster)


@pytest.fixture(scope="module", autouse=True)
def priority(live_cluster: Live) -> Iterator[None]:
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1000}
    live_cluster.apply({**kind, "metadata": {"name": URGENT}})
    yield
    live_cluster.cluster.kubectl("delete", "priorityclass", URGENT)


@pytest.fixture(scope="module")
def controller(live_cluster: Live, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControllerProcess]:
    """Nothing but the policy stops or resizes anybody."""
    directory = tmp_path_factory.mktemp("preemptive")
    calm = {"enabled": False, "reclaim": False, "consolidation": False}
    process = ControllerProcess(
        live_cluster.kubeconfig(directory), directory, preemption=calm, elasticity={"interval_seconds": 3600.0}
    ).start()
    wait_until(lambda: "leading" in process.tail(), process.tail)
    yield process
    assert process.alive, process.tail()
    process.stop()


@pytest.fixture
def choose(live: Live, controller: ControllerProcess) -> Iterator[Callable[[str], None]]:
    """Put a policy in force by the ConfigMap, which is deleted after the test."""

    def decides(policy: str) -> Callable[[], bool]:
        return lambda: controller.metric("trimtab_policy_info", policy=policy, role="policy") == 1

    def choose(policy: str) -> None:
        meta = {"name": names.POLICY_CONFIG_MAP, "namespace": names.SYSTEM_NAMESPACE}
        data = {names.KEY_POLICY: policy, names.KEY_DEADLINE: "10"}  # this machine may have other things to do
        live.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data})
        wait_until(decides(policy), controller.tail)

    yield choose
    live.cluster.kubectl("delete", "configmap", names.POLICY_CONFIG_MAP, *WHERE, "--ignore-not-found")
    wait_until(decides("best_fit"), controller.tail)


def elastic(name: str, low: int, high: int, seconds: float, **spec: Any) -> dict[str, Any]:
    """A job that policies may stop, move and resize at any time, and that answers."""
    checkpoint = {"graceSeconds": 60, "resharding": True}
    elasticity = {"policy": "Elastic", "minRuntimeSeconds": 0, "checkpoint": checkpoint}
    gpus = {"gpus": {"min": low, "max": high}}
    return training_job(name, gpus=high, seconds=seconds, elasticity=elasticity, resources=gpus, **spec)


def looks_older(live: Live, job: str) -> None:
    """As if it had run for minutes: who is asked to share looks at that, and a speed-up does not make jobs older."""
    started = (datetime.now(UTC) - AGE).strftime("%Y-%m-%dT%H:%M:%SZ")
    patch = json.dumps({"status": {"startTime": started}})
    live.cluster.kubectl("patch", "ltj", job, "-n", NAMESPACE, "--subresource=status", "--type=merge", "-p", patch)


@pytest.mark.parametrize("policy", PREEMPTIVE)
async def test_a_preemptive_policy_brings_all_jobs_to_their_end(
    live: Live, choose: Callable[[str], None], controller: ControllerProcess, policy: str
) -> None:
    before = {name: controller.metric(name) for name in COUNTED}
    await asyncio.to_thread(choose, policy)
    hog = f"{policy}-hog"
    live.apply(elastic(hog, 8, 32, 12 * await pace(live)))
    await live.until(hog, names.PODS_READY)
    looks_older(live, hog)
    jobs = [hog, *(f"{policy}-{kind}" for kind in ("fixed", "elastic", "small", "again"))]
    live.apply(
        training_job(jobs[1], gpus=16, seconds=1, priorityClassName=URGENT),
        elastic(jobs[2], 4, 16, 1),
        training_job(jobs[3], gpus=1, seconds=0.1, model={"preset": "gpt2"}),
        elastic(jobs[4], 8, 16, 1),
    )
    for job in jobs:
        await live.until(job, names.COMPLETE, 60)
    statuses = {job: live.status(job) for job in jobs}
    for job, status in statuses.items():
        stops = [record for record in status.get("stops", []) if record["cause"] in GAVE_WAY]
        for_others = [record for record in stops if "beneficiary" in record]  # to grow is up to itself
        assert len(for_others) <= BUDGET, (job, stops)
        assert status["plan"]["epoch"] <= len(stops) + 1, f"a gang has ended that nobody had asked to: {status}"
        assert (status["plan"]["policy"], status.get("restarts", 0), status.get("setbacks", 0)) == (policy, 0, 0)
    assert any(status.get("stops") for status in statuses.values()), "it never had its way"
    after = {name: controller.metric(name) for name in COUNTED}
    assert after == before, controller.tail()
