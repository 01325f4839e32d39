"""A cluster of kind with Trimtab in it, made by hack/kind/up, and words to say what happens there."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from trimtab.names import LEASE_NAME, SYSTEM_NAMESPACE

ROOT = Path(__file__).resolve().parents[2]
WORKERS, GPUS = 4, 1
"""Nodes, and fake GPUs of each: every rank is a pod on a node of its own, and a gang of two that loses one of its nodes
finds another."""
SILENT_SECONDS = 20
"""From when Kubernetes has given a node up until what is left there of a gang is let go."""
SETTINGS = (
    f"--set settings.gang.node_grace_seconds=5,settings.failures.silent_node_seconds={SILENT_SECONDS}"
    " --set policy.name=best_fit,policy.fallback=fcfs"
)
"""Kubernetes' own patience, of 50 s, is enough; and a rule decides, which no training changes."""
POLL_SECONDS = 0.5


class Kind:
    """A cluster, and the commands of who looks after it."""

    def __init__(self, name: str, environment: dict[str, str]) -> None:
        self.name = name
        self.environment = environment
        """With its kubeconfig, and a kubectl and helm that fit."""

    def run(self, *command: str, stdin: str = "", check: bool = True) -> str:
        """Its stdout."""
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, check=False, env=self.environment, cwd=ROOT
        )
        assert not check or done.returncode == 0, f"{' '.join(command)[:300]}: {done.stdout[-2000:]}{done.stderr}"
        return done.stdout

    def kubectl(self, *arguments: str, stdin: str = "", check: bool = True) -> str:
        return self.run("kubectl", *arguments, stdin=stdin, check=check)

    def helm(self, *arguments: str) -> str:
        return self.run("helm", "--namespace", SYSTEM_NAMESPACE, *arguments)

    def upgrade(self, *arguments: str) -> None:
        """`helm upgrade` of what there is, and wait until all of it runs."""
        self.helm("upgrade", "trimtab", "charts/trimtab", "--reuse-values", "--wait", "--timeout=5m", *arguments)

    def get(self, *arguments: str) -> dict[str, Any]:
        return dict(json.loads(self.kubectl("get", "--output=json", *arguments)))

    def items(self, *arguments: str) -> list[dict[str, Any]]:
        return list(self.get(*arguments)["items"])

    def system_pods(self, part: str) -> list[dict[str, Any]]:
        """Pods of a part of Trimtab, e.g. trimtab-controller."""
        return self.items("pods", "--namespace", SYSTEM_NAMESPACE, "--selector", f"app.kubernetes.io/name={part}")

    def leader(self) -> dict[str, Any]:
        """The pod of the controller that leads: of several one holds the Lease, under its host name and a suffix."""
        lease = self.get("lease", LEASE_NAME, "--namespace", SYSTEM_NAMESPACE)
        name = lease["spec"]["holderIdentity"].rpartition("_")[0]
        (found,) = (pod for pod in self.system_pods("trimtab-controller") if pod["metadata"]["name"] == name)
        return dict(found)

    def eventually(self, wanted: Callable[[], Any], seconds: float, what: str) -> Any:
        """What `wanted` returns once that is true; fails, with what the cluster looks like, when it stays false."""
        deadline = time.monotonic() + seconds
        while not (found := wanted()):
            if time.monotonic() > deadline:
                pytest.fail(f"waited {seconds:.0f} s for {what}\n{self.state()}")
            time.sleep(POLL_SECONDS)
        return found

    def state(self) -> str:
        """For whoever reads a failure."""
        commands = (
            ("get", "nodes,ltj,pods", "--all-namespaces", "--output=wide"),
            ("get", "events", "--sort-by=.lastTimestamp"),
            ("logs", "--namespace", SYSTEM_NAMESPACE, "deployment/trimtab-controller", "--tail=40"),
        )
        return "\n".join(self.kubectl(*command, check=False)[-6000:] for command in commands)


class Job:
    """A job of the tests, in the namespace `default`."""

    def __init__(self, kind: Kind, name: str) -> None:
        self._kind = kind
        self.name = name

    @property
    def status(self) -> dict[str, Any]:
        return dict(self._kind.get("ltj", self.name).get("status", {}))

    @property
    def epoch(self) -> int:
        """Of its plan; 0 while there is none."""
        return int((self.status.get("plan") or {}).get("epoch", 0))

    def has(self, condition: str) -> bool:
        conditions = self.status.get("conditions", [])
        return any(each["type"] == condition and each["status"] == "True" for each in conditions)

    def wait(self, condition: str, seconds: float = 180) -> None:
        self._kind.eventually(lambda: self.has(condition), seconds, f"{self.name} to be {condition}")

    def pods(self) -> list[dict[str, Any]]:
        """By rank."""
        found = self._kind.items("pods", "--selector", f"trimtab.dev/job={self.name}")
        return sorted(found, key=lambda pod: int(pod["metadata"]["labels"]["trimtab.dev/node-rank"]))

    def said(self, pod: dict[str, Any]) -> str:
        return self._kind.kubectl("logs", pod["metadata"]["name"])

    def delete(self) -> None:
        self._kind.kubectl("delete", "ltj", self.name, "--ignore-not-found", "--wait")
        self._kind.eventually(lambda: not self.pods(), 90, f"the pods of {self.name} to go")


@pytest.fixture(scope="session")
def kind() -> Iterator[Kind]:
    """The cluster trimtab-tests, whose workers have a GPU each; $TRIMTAB_KIND_KEEP keeps it, and takes a kept one."""
    name = "trimtab-tests"
    given = {**os.environ, "NAME": name, "WORKERS": str(WORKERS), "GPUS": str(GPUS), "HELM_ARGS": SETTINGS}
    keep = os.environ.get("TRIMTAB_KIND_KEEP")
    if not keep:  # what a run that was cut off has left is in no state to be judged
        subprocess.run([ROOT / "hack/kind/down"], check=True, env=given)
    with subprocess.Popen([ROOT / "hack/kind/up"], stdout=subprocess.PIPE, text=True, env=given) as up:
        exports, _ = up.communicate()
    assert up.returncode == 0, "hack/kind/up has failed; its words are above"
    programs = subprocess.run(
        [ROOT / ".venv/bin/python", "-m", "hack.kind.programs"], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.strip()
    said = dict(line.removeprefix("export ").split("=", 1) for line in exports.splitlines())
    yield Kind(name, {**given, **said, "PATH": f"{programs}:{os.environ['PATH']}"})
    if not keep:
        subprocess.run([ROOT / "hack/kind/down"], check=True, env=given)


@pytest.fixture(scope="session")
def trainer(kind: Kind) -> None:
    """The trainer's image is on the workers; it is large."""
    image = kind.run("hack/kind/images", "trainer").strip()
    workers = [each["metadata"]["name"] for each in kind.items("nodes", "--selector=nvidia.com/gpu.count")]
    kind.run("hack/kind/load", kind.name, image, *workers)


@pytest.fixture
def submit(kind: Kind) -> Iterator[Callable[[dict[str, Any]], Job]]:
    """submit(manifest) -> the job, which is gone after the test."""
    made: list[Job] = []

    def send(manifest: dict[str, Any]) -> Job:
        kind.kubectl("apply", "--filename=-", stdin=yaml.safe_dump(manifest))
        made.append(Job(kind, manifest["metadata"]["name"]))
        return made[-1]

    yield send
    for job in made:
        job.delete()
