"""`trimtab doctor` against a real API server: a healthy installation has nothing wrong, and what is broken is found.

Where a remedy is a command, it is run as it is told, and mends what was broken. The cluster is one of its own: what
other tests leave behind is not healthy.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests import forkserver
from tests.forkserver import Ran
from tests.live.harness import NAMESPACE, ControllerProcess, Live, eventually, gpu_node, training_job

from trimtab.doctor.checks import queues
from trimtab_local.checkout import checkout
from trimtab_local.control_plane.build import build
from trimtab_local.control_plane.cluster import LocalCluster
from trimtab_local.control_plane.kubeconfig import kubectl, service_account_kubeconfig

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

ROOT = checkout()
SYSTEM = "trimtab-system"
CRD = "llmtrainingjobs.trimtab.dev"
START_SECONDS = 60.0
"""For a controller to lead: imports take seconds where the machine is busy."""
CPU_SECONDS = 10.0
"""Of one run, at most: how long it takes beside that is up to whatever else the machine does."""


@pytest.fixture(scope="module")
def installation(state_home: Path) -> Iterator[Live]:
    """A control plane with what README's `By hand` installs, and two GPU nodes."""
    build()
    with LocalCluster(f"tests-doctor-{os.getpid()}") as cluster:
        live, manifests = Live(cluster), ROOT / "manifests"
        cluster.kubectl("apply", "--server-side", "-f", str(manifests / "crds"), "-f", str(manifests / "rbac.yaml"))
        cluster.kubectl("apply", "--server-side", "-f", str(manifests / "admission.yaml"))
        cluster.kubectl("wait", "--for=condition=Established", "-f", str(manifests / "crds"), "--timeout=30s")
        live.apply(gpu_node("doctor-0"), gpu_node("doctor-1"))
        cluster.kubectl("wait", "--for=condition=Ready", "node", "--all", "--timeout=30s")
        yield live


@contextmanager
def bounded(live: Live) -> Iterator[None]:
    """Somebody has said how many jobs there may be. Only after jobs are made: where
    there is a quota of a kind that is new, none is made for minutes."""
    live.cluster.kubectl("create", "quota", "jobs", f"--hard={queues.COUNTED}=200", "-n", NAMESPACE)
    yield
    live.cluster.kubectl("delete", "quota", "jobs", "-n", NAMESPACE)


@pytest.fixture
async def controller(installation: Live, tmp_path: Path) -> AsyncIterator[ControllerProcess]:
    """One that leads. Its Lease goes with it: it counts changes, and so many in so few minutes are no good sign."""
    async with ControllerProcess(installation.kubeconfig(tmp_path), tmp_path) as process:
        await eventually(lambda: "leading" in process.tail(1000), START_SECONDS, lambda: process.tail())
        yield process
    installation.cluster.kubectl("delete", "lease", "trimtab-controller", "-n", SYSTEM, "--ignore-not-found")


def doctor(kubeconfig: Path, *arguments: str) -> Ran:
    """Run the command as a user would, in little time."""
    done = forkserver.shared().run(["doctor", "--kubeconfig", str(kubeconfig), *arguments], ROOT)
    assert done.cpu_seconds < CPU_SECONDS
    assert "Traceback" not in done.stderr, done.stderr
    return done


def findings(live: Live, *arguments: str, expected: int = 0, kubeconfig: Path | None = None) -> list[dict[str, Any]]:
    """All that it says but what is well; `expected` is its exit code."""
    done = doctor(kubeconfig or live.cluster.kubeconfig, "-o", "json", *arguments)
    assert done.returncode == expected, done.stdout + done.stderr
    told: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
    return [each for each in told if each["level"] != "ok"]


def faults(live: Live, *arguments: str, expected: int) -> list[dict[str, Any]]:
    """What is wrong."""
    return [each for each in findings(live, *arguments, expected=expected) if each["level"] != "notChecked"]


def remedy(live: Live, finding: dict[str, Any]) -> None:
    """Do what the fix says: the command up to what is remarked behind it."""
    words = str(finding["fix"]).partition("; ")[0].partition(" (")[0]
    assert words.startswith("kubectl ")
    environment = {**os.environ, "KUBECONFIG": str(live.cluster.kubeconfig)}
    environment["PATH"] = f"{live.cluster.binaries}:{environment['PATH']}"
    subprocess.run(words, shell=True, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)


async def test_a_healthy_installation_has_nothing_wrong(installation: Live, controller: ControllerProcess) -> None:
    installation.apply(training_job("healthy", seconds=600))
    try:
        await installation.until("healthy", "PodsReady", START_SECONDS)
        with bounded(installation):
            assert [each["check"] for each in findings(installation, "--strict")] == ["version"], (
                "it is no pod: its version"
            )
            shown = doctor(installation.cluster.kubeconfig).stdout
        assert "live-test leads" in shown
        assert "this machine and the API server agree" in shown
        assert re.search(r"controller: trimtab-controller has its \d+ rights", shown), shown
        assert "2 GPU nodes understood" in shown
        assert shown.rstrip().endswith("ok, 1 not checked")
    finally:
        await installation.gone("healthy")


async def test_a_crd_of_another_version_is_told_by_what_it_drops(
    installation: Live, controller: ControllerProcess
) -> None:
    schema = "/spec/versions/0/schema/openAPIV3Schema/properties"
    cut = [
        {"op": "remove", "path": f"{schema}/status/properties/trainerStatus"},
        {"op": "replace", "path": f"{schema}/metadata/properties/name/maxLength", "value": 30},
    ]
    installation.cluster.kubectl("patch", "crd", CRD, "--type=json", "-p", json.dumps(cut))
    pruned, differs = faults(installation, expected=2)
    assert (pruned["reason"], pruned["objects"]) == ("CrdPrunesFields", [f"CustomResourceDefinition/{CRD}"])
    assert "lacks status.trainerStatus:" in pruned["message"]
    assert differs["reason"] == "CrdDiffers"
    assert "metadata.name: maxLength" in differs["message"]
    remedy(installation, pruned)
    assert faults(installation, expected=0) == []


async def test_a_rule_that_is_missing_is_told_with_what_it_is_for(
    installation: Live, controller: ControllerProcess
) -> None:
    role = json.loads(installation.cluster.kubectl("get", "clusterrole", "trimtab-controller", "-o", "json"))
    index = next(index for index, rule in enumerate(role["rules"]) if rule["resources"] == ["pods/binding"])
    cut = json.dumps([{"op": "remove", "path": f"/rules/{index}"}])
    installation.cluster.kubectl("patch", "clusterrole", "trimtab-controller", "--type=json", "-p", cut)
    (missing,) = faults(installation, expected=2)
    assert missing["reason"] == "RightMissing"
    assert missing["message"] == "trimtab-controller may not create pods/binding: it cannot bind pods"
    remedy(installation, missing)
    assert faults(installation, expected=0) == []


async def test_rules_for_authors_that_are_missing_or_bound_to_nothing(
    installation: Live, controller: ControllerProcess
) -> None:
    kubectl = installation.cluster.kubectl
    kubectl("delete", "validatingadmissionpolicybinding", "trimtab-marks")
    kubectl("delete", "validatingadmissionpolicy", "trimtab-pods")
    found = {each["reason"]: each for each in faults(installation, expected=0)}
    assert found.keys() == {"AdmissionPoliciesAbsent", "AdmissionPolicyNotInForce"}
    assert found["AdmissionPoliciesAbsent"]["objects"] == ["ValidatingAdmissionPolicy/trimtab-pods"]
    assert found["AdmissionPolicyNotInForce"]["objects"] == ["ValidatingAdmissionPolicy/trimtab-marks"]
    remedy(installation, found["AdmissionPoliciesAbsent"])
    assert faults(installation, expected=0) == []


async def test_a_gpu_node_without_labels_is_a_warning_that_strict_counts(
    installation: Live, controller: ControllerProcess
) -> None:
    bare = gpu_node("doctor-bare")
    del bare["metadata"]["labels"]["nvidia.com/gpu.product"]
    plain = gpu_node("doctor-plain")
    plain["status"] = {"capacity": {"cpu": "8"}, "allocatable": {"cpu": "8"}}
    installation.apply(bare, plain)
    try:
        found = {each["reason"]: each for each in faults(installation, expected=0)}
        assert found.keys() == {"UnlabelledGpuNode", "DevicePluginMissing"}
        assert found["UnlabelledGpuNode"]["objects"] == ["Node/doctor-bare"]
        assert "kubectl label node NAME nvidia.com/gpu.product=" in found["UnlabelledGpuNode"]["fix"]
        assert found["DevicePluginMissing"]["objects"] == ["Node/doctor-plain"]
        assert len(faults(installation, "--strict", expected=1)) == 2
    finally:
        installation.cluster.kubectl("delete", "node", "doctor-bare", "doctor-plain")


async def test_a_controller_that_was_stopped_and_one_that_was_killed(
    installation: Live, controller: ControllerProcess
) -> None:
    controller.signal(signal.SIGKILL)
    await controller.died()
    await eventually(lambda: bool(lease_age_of(installation) > 7), what="the Lease to run out")
    (dead,) = faults(installation, expected=2)
    assert dead["reason"] == "NoLeader"
    assert "live-test has not renewed Lease trimtab-controller in trimtab-system for" in dead["message"]
    controller.start()
    await eventually(lambda: controller.tail(1000).count(" leading ") > 1, START_SECONDS, lambda: controller.tail())
    assert faults(installation, expected=0) == []
    controller.stop()
    (stopped,) = faults(installation, expected=2)
    assert "its last leader gave it back" in stopped["message"]


async def test_a_policy_that_nobody_knows(installation: Live, controller: ControllerProcess) -> None:
    installation.cluster.kubectl(
        "create", "configmap", "trimtab-policy", "-n", SYSTEM, "--from-literal=policy=best_fitt"
    )
    try:
        (refused,) = faults(installation, expected=2)
        assert refused["reason"] == "PolicyRefused"
        assert "best_fitt" in refused["message"]
        assert refused["fix"].startswith("kubectl -n trimtab-system edit configmap trimtab-policy")
    finally:
        installation.cluster.kubectl("delete", "configmap", "trimtab-policy", "-n", SYSTEM)


async def test_a_namespace_whose_jobs_nobody_bounds(installation: Live, controller: ControllerProcess) -> None:
    installation.apply(training_job("bounded", seconds=600, suspend=True))
    try:
        (unbounded,) = faults(installation, expected=0)
        assert (unbounded["reason"], unbounded["objects"]) == ("JobsUnbounded", [f"Namespace/{NAMESPACE}"])
        remedy(installation, unbounded)
        assert faults(installation, expected=0) == []
    finally:
        installation.cluster.kubectl("delete", "quota", "jobs", "-n", NAMESPACE, "--ignore-not-found")
        await installation.gone("bounded")


async def test_a_lease_from_a_backup_is_mended_by_the_command_that_is_told(installation: Live, tmp_path: Path) -> None:
    kubeconfig = installation.kubeconfig(tmp_path)
    installation.apply(training_job("fenced", seconds=600))
    try:
        async with ControllerProcess(kubeconfig, tmp_path) as first:
            await eventually(lambda: "leading" in first.tail(1000), START_SECONDS, lambda: first.tail())
            await installation.until("fenced", "PodsReady", START_SECONDS)
        old = json.dumps({"spec": {"leaseTransitions": 0}})
        installation.cluster.kubectl("patch", "lease", "trimtab-controller", "-n", SYSTEM, "--type=merge", "-p", old)
        with bounded(installation):
            found = {each["reason"]: each for each in faults(installation, expected=2)}
            assert found.keys() == {"NoLeader", "EpochBehind"}
            assert found["EpochBehind"]["objects"] == [f"LLMTrainingJob/{NAMESPACE}/fenced"]
            remedy(installation, found["EpochBehind"])
            assert [each["reason"] for each in faults(installation, expected=2)] == ["NoLeader"]
    finally:
        await installation.gone("fenced")
        installation.cluster.kubectl("delete", "lease", "trimtab-controller", "-n", SYSTEM, "--ignore-not-found")


def test_who_may_not_look_is_told_the_right_that_is_missing_and_gets_it_by_the_role_that_is_printed(
    installation: Live, tmp_path: Path
) -> None:
    admin = installation.cluster.kubeconfig
    kubectl(admin, "create", "serviceaccount", "curious", "-n", NAMESPACE)
    path = tmp_path / "curious.kubeconfig"
    service_account_kubeconfig(admin, NAMESPACE, "curious", path)
    blind = findings(installation, kubeconfig=path)
    needed = " ".join(str(each["fix"]) for each in blind if each["level"] == "notChecked")
    for right in (
        "list nodes", "list pods", "list leases.coordination.k8s.io in kube-node-lease",
        "get leases.coordination.k8s.io 'trimtab-controller' in trimtab-system", "list serviceaccounts",
        f"get customresourcedefinitions.apiextensions.k8s.io '{CRD}'",
    ):  # fmt: skip
        assert right in needed, right
    roles = doctor(admin, "--roles-for", f"system:serviceaccount:{NAMESPACE}:curious").stdout
    assert {each["kind"] for each in yaml.safe_load_all(roles)} >= {"ClusterRole", "RoleBinding"}
    kubectl(admin, "apply", "-f", "-", stdin=roles)
    seeing = doctor(path, "-o", "json").stdout
    unseen = [each for each in json.loads(seeing)["findings"] if each["level"] == "notChecked"]
    assert not [each for each in unseen if "may not" in each["message"]], unseen


def test_a_server_that_is_not_there_is_an_error_and_no_traceback(tmp_path: Path, installation: Live) -> None:
    content = yaml.safe_load(installation.cluster.kubeconfig.read_text())
    content["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    path = tmp_path / "nowhere.kubeconfig"
    path.write_text(yaml.safe_dump(content))
    (nobody,) = findings(installation, expected=2, kubeconfig=path)
    assert nobody["reason"] == "Unreachable"


def lease_age_of(live: Live) -> float:
    """Seconds since the controller's Lease was renewed; it runs on this machine, whose clock is the same."""
    from trimtab.doctor.inventory import posix

    renewed = live.cluster.kubectl(
        "get", "lease", "trimtab-controller", "-n", SYSTEM, "-o", "jsonpath={.spec.renewTime}"
    )
    return time.time() - (posix(renewed) or time.time())
