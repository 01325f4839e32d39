"""The controller as a process of its own, as its own service account, and words to say what a job should do."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests import forkserver
from tests.live.api import Api

from trimtab_local.control_plane.cluster import LocalCluster
from trimtab_local.control_plane.kubeconfig import service_account_kubeconfig

NAMESPACE = "default"
PATIENCE = 5.0
"""A wait gives up after so many times what it takes where there is nothing else to do: a machine may have a quarter of
that speed. Only a test that fails lasts so long."""
QUIET = 2.0
"""Seconds from a small job's creation to its end on two cores with nothing else to do."""
SETTINGS = {
    "leadership": {"identity": "live-test", "lease_seconds": 6, "renew_seconds": 4, "retry_seconds": 0.3},
    "metrics": {"host": "127.0.0.1", "port": 0},
    "gang": {"backoff_initial_seconds": 0.2, "backoff_max_seconds": 2.0, "node_grace_seconds": 2.0},
    "fake": {"enabled": True, "speedup": 1000.0},
    "policy": {"name": "best_fit", "fallback": "fcfs"},
    "monitor": {"period_seconds": 0.0},
}
"""These tests are about what becomes of decisions, so a rule decides, which no training changes. What decides where
nobody says otherwise is tested in `test_live_policies`, by the demo and by README's way on kind. Nor is a policy
replaced in the middle of a test, but in that of the monitor."""


class ControllerProcess:
    """`trimtab controller` with a kubeconfig and settings of its own."""

    def __init__(
        self,
        kubeconfig: Path,
        directory: Path,
        *,
        environment: Mapping[str, str] | None = None,
        forge: forkserver.Forge | None = None,
        **overrides: dict[str, Any],
    ) -> None:
        self._kubeconfig = kubeconfig
        self._forge = forge or forkserver.shared()
        self._environment = {**os.environ, **(environment or {})}
        self._directory = directory
        self.log = directory / f"controller-{id(self)}.log"
        settings = {section: dict(values) for section, values in SETTINGS.items()}
        for section, values in overrides.items():
            settings.setdefault(section, {}).update(values)
        self._config = directory / f"settings-{id(self)}.yaml"
        self._config.write_text(yaml.safe_dump(settings))
        self._process: forkserver.Forged | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> ControllerProcess:
        arguments = ["controller", "--config", str(self._config), "--kubeconfig", str(self._kubeconfig)]
        self._process = self._forge.spawn(arguments, self.log, self._directory, self._environment)
        return self

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    async def died(self, seconds: float = 30) -> None:
        """Wait until the process has ended."""
        await eventually(lambda: not self.alive, seconds, f"the controller to end\n{self.tail()}")

    def stop(self) -> None:
        """End it as Kubernetes would: SIGTERM, then SIGKILL."""
        if self._process is None or not self.alive:
            return
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self._process.kill()
        self._process.wait()

    def metric(self, name: str, **labels: str) -> float:
        """Sum of all samples of a metric that have these labels."""
        found = re.search(r"metrics=(http://\S+/metrics)", self.log.read_text(errors="replace"))
        assert found, self.tail()
        with urlopen(found[1], timeout=5) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        samples = (sample for family in families for sample in family.samples if sample.name == name)
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())

    def tail(self, lines: int = 30) -> str:
        if not self.log.exists():
            return "(never started)"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    async def __aenter__(self) -> ControllerProcess:
        return self.start()

    async def __aexit__(self, *_: object) -> None:
        self.stop()


class Live:
    """A cluster in words."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self._api = Api(cluster)
        self.excuse: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
        """While a controller cannot do its work, the witness that watches (if one does) does not ask for progress."""

    def kubeconfig(self, directory: Path) -> Path:
        """Credentials of the controller's own service account."""
        path = directory / "controller.kubeconfig"
        service_account_kubeconfig(self.cluster.kubeconfig, "trimtab-system", "trimtab-controller", path)
        return path

    def token(self, directory: Path) -> str:
        content = yaml.safe_load(self.kubeconfig(directory).read_text())
        return str(content["users"][0]["user"]["token"])

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """An object, or an empty one when it does not exist."""
        if (object_ := self._api.get(kind, name, NAMESPACE)) is not None:
            return object_
        found = self.cluster.kubectl("get", kind, name, "-n", NAMESPACE, "-o", "json", "--ignore-not-found")
        return json.loads(found) if found else {}

    def list(self, kind: str, selector: str = "") -> list[dict[str, Any]]:
        if (objects := self._api.list(kind, NAMESPACE, selector)) is not None:
            return objects
        arguments = ["get", kind, "-n", NAMESPACE, "-o", "json", *(["-l", selector] if selector else [])]
        items: list[dict[str, Any]] = json.loads(self.cluster.kubectl(*arguments))["items"]
        return items

    def apply(self, *objects: dict[str, Any]) -> None:
        there = [each for each in objects if not self._api.create(each, NAMESPACE)]
        if there:
            document = {"apiVersion": "v1", "kind": "List", "items": there}
            self.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(document))

    def patch(self, kind: str, name: str, patch: dict[str, Any], *arguments: str) -> None:
        at = {(): "", ("--subresource=status",): "status"}.get(arguments)
        if at is not None and self._api.patch(kind, name, patch, NAMESPACE, at):
            return
        self.cluster.kubectl("patch", kind, name, "--type=merge", "-p", json.dumps(patch), "-n", NAMESPACE, *arguments)

    def delete(self, kind: str, name: str, *arguments: str) -> None:
        if self._api.delete(kind, name, NAMESPACE, *arguments):
            return
        self.cluster.kubectl("delete", kind, name, "-n", NAMESPACE, "--ignore-not-found", *arguments)

    def status(self, job: str) -> dict[str, Any]:
        status: dict[str, Any] = self.get("ltj", job).get("status", {})
        return status

    def holds(self, job: str, condition: str) -> bool:
        conditions = self.status(job).get("conditions", [])
        return any(c["type"] == condition and c["status"] == "True" for c in conditions)

    def pods(self, job: str) -> list[dict[str, Any]]:
        return self.list("pods", f"trimtab.dev/job={job}")

    def events(self, name: str) -> list[str]:
        """Reasons of the events about an object."""
        return [event["reason"] for event in self.list("events") if event["involvedObject"]["name"] == name]

    async def until(self, job: str, condition: str, seconds: float = 30) -> None:
        """Wait until a condition of the job holds."""
        await eventually(
            lambda: self.holds(job, condition), seconds, lambda: f"{job} to be {condition}: {self.status(job)}"
        )

    async def gone(self, job: str, seconds: float = 90) -> None:
        """Delete a job and wait until nothing of it is left. The garbage collector learns of new CRDs every 30 s."""
        self.delete("ltj", job, "--wait=false")
        await eventually(
            lambda: not self.get("ltj", job) and not self.pods(job) and not self.get("service", job),
            seconds,
            lambda: f"{job} and its pods to be gone: {[p['metadata']['name'] for p in self.pods(job)]}",
        )


async def eventually(
    happened: Callable[[], bool], seconds: float = 20, what: str | Callable[[], str] = "", pause: float = 0.15
) -> None:
    """Wait until something is so. Fails with `what` was waited for, after PATIENCE times so many seconds."""
    limit = time.monotonic() + PATIENCE * seconds
    while not await asyncio.to_thread(happened):
        if time.monotonic() > limit:
            raise AssertionError(f"waited {PATIENCE * seconds:g} s for {what() if callable(what) else what}")
        await asyncio.sleep(pause)


async def pace(live: Live) -> float:
    """How much slower than on a quiet machine a job passes through the controller just now, 1 to 8.

    Where a test is about jobs that come while another runs, that one runs so much longer: its pods' time is a clock's,
    and does not stretch with what a slow machine still has to do. Nothing is asserted about it.
    """
    live.apply(training_job("pace", gpus=8, seconds=0.1))
    started = time.monotonic()
    await live.until("pace", "Complete")
    slowness = (time.monotonic() - started) / QUIET
    await live.gone("pace")
    return min(max(slowness, 1.0), 8.0)


def wait_until(happened: Callable[[], bool], what: str | Callable[[], str], seconds: float = 30) -> None:
    """The same, of what cannot be asynchronous."""
    limit = time.monotonic() + PATIENCE * seconds
    while not happened():
        if time.monotonic() > limit:
            raise AssertionError(f"waited {PATIENCE * seconds:g} s for {what() if callable(what) else what}")
        time.sleep(0.05)


def gpu_node(name: str, gpus: int = 8, product: str = "NVIDIA-A100-SXM4-80GB", **labels: str) -> dict[str, Any]:
    """A fake GPU node, kept Ready by KWOK."""
    capacity = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {
                "kubernetes.io/hostname": name,
                "topology.kubernetes.io/zone": "z",
                "topology.kubernetes.io/rack": "r",
                "nvidia.com/gpu.product": product,
                "nvidia.com/gpu.memory": "81920",
                "nvidia.com/gpu.present": "true",
                **labels,
            },
        },
        "status": {"allocatable": capacity, "capacity": capacity},
    }


def training_job(name: str, *, gpus: int = 16, seconds: float = 2.0, **spec: Any) -> dict[str, Any]:
    """A job of exactly so many A100s whose fake pods run for about so long (speed-up 1000)."""
    return {
        "apiVersion": "trimtab.dev/v1alpha1",
        "kind": "LLMTrainingJob",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "model": {"preset": "llama3-8b"},
            "training": {"sequenceLength": 8192, "globalBatchSize": 128, "steps": max(1, round(seconds * 1000 / 20))},
            "resources": {"gpus": {"max": gpus}},
            "elasticity": {"policy": "Fixed"},
            "template": {"spec": {"containers": [{"name": "trainer", "image": "example.test/trainer:1"}]}},
            **spec,
        },
    }
