"""GPUs that come by dynamic resource allocation, on a real control plane: kube-scheduler allocates what the plan says.

The slices are those of a driver that nobody runs; kubelets are played by KWOK, which asks no driver to prepare a claim.
The witness watches here, too: it counts what drivers offer and what claims hold.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.builders import changed, owned_by
from tests.devices import nvidia_gpu, slice_manifest
from tests.faults.watcher import Watcher
from tests.live.extender.front import Front
from tests.live.extender.gangs import bound, foreign_pod, gang, gone
from tests.live.extender.process import ExtenderProcess
from tests.live.harness import ControllerProcess, Live, eventually, gpu_node, wait_until
from typer.testing import CliRunner

from trimtab import names
from trimtab.errors import LocalClusterError
from trimtab_local.checkout import checkout
from trimtab_local.commands.fake_nodes import app as fake_nodes

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
DRA = ["dra-0", "dra-1"]
"""Eight H100 each, of which no device plugin and no labeller speaks."""


WHOLE = {"deviceClassName": names.NVIDIA_DRIVER, "allocationMode": "ExactCount", "count": 8}
OF_A_GANG: dict[str, Any] = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {
        "name": "job-1",
        "namespace": "default",
        "labels": {names.LABEL_JOB: "job", names.LABEL_EPOCH: "1"},
        "ownerReferences": [owned_by("job")],
    },
    "spec": {"spec": {"devices": {"requests": [{"name": "gpus", "exactly": WHOLE}]}}},
}
ADMINISTRATORS = "administrators-of-devices"
"""A namespace in which Kubernetes lets claims have admin access."""


def node(name: str) -> dict[str, Any]:
    made = gpu_node(name, pool="dra")
    labels = made["metadata"]["labels"]
    made["metadata"]["labels"] = {key: value for key, value in labels.items() if not key.startswith("nvidia.com/")}
    for table in made["status"].values():
        table.pop(names.NVIDIA_GPU, None)
    return made


def device_class(resource: str) -> dict[str, Any]:
    chosen = "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'"
    spec: dict[str, Any] = {"selectors": [{"cel": {"expression": chosen}}]}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": names.NVIDIA_DRIVER},
        "spec": spec | ({"extendedResourceName": resource} if resource else {}),
    }


@pytest.fixture(scope="module")
def devices(live_cluster: Live) -> Iterator[Live]:
    """The cluster with two such nodes, and the policies by which the API server holds the controller."""
    cluster = live_cluster.cluster
    admission = str(checkout() / "manifests" / "admission.yaml")
    cluster.kubectl("apply", "--server-side", "-f", admission)
    live_cluster.apply(*(node(name) for name in DRA))
    live_cluster.apply(*(slice_manifest(name, [nvidia_gpu(index) for index in range(8)]) for name in DRA))
    cluster.kubectl("wait", "--for=condition=Ready", *(f"node/{name}" for name in DRA), "--timeout=30s")
    label = {"resource.kubernetes.io/admin-access": "true"}
    live_cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": ADMINISTRATORS, "labels": label}})
    wait_until(lambda: _refused(live_cluster), "the admission policies to be in force")
    yield live_cluster
    cluster.kubectl("delete", "namespace", ADMINISTRATORS, "--wait=false")
    cluster.kubectl("delete", "resourceslices", "--all")
    cluster.kubectl("delete", "node", *DRA)
    cluster.kubectl("delete", "--ignore-not-found", "-f", admission)


@pytest.fixture(autouse=True)
async def witness(devices: Live) -> AsyncIterator[Watcher]:
    """A test fails if an invariant was ever violated while it ran."""
    async with Watcher(devices.cluster.kubeconfig) as watcher:
        devices.excuse = watcher.excuse
        yield watcher
    assert not watcher.violations, watcher.violations


def _refused(live: Live) -> bool:
    try:
        make(live, changed(OF_A_GANG, {"metadata.ownerReferences": []}))
    except LocalClusterError:
        return True
    return False


@pytest.fixture
def asked_by(devices: Live) -> Iterator[Callable[[str], None]]:
    """Install the DeviceClass with an extended resource, or with none."""
    yield lambda resource: devices.apply(device_class(resource))
    devices.delete("deviceclass", names.NVIDIA_DRIVER)


@pytest.fixture
async def controller(devices: Live, extender: ExtenderProcess, tmp_path: Path) -> AsyncIterator[ControllerProcess]:
    async with ControllerProcess(devices.kubeconfig(tmp_path), tmp_path, binding={"mode": "Extender"}) as process:
        yield process
        assert process.alive, process.tail()


def dra_gang(name: str, pods: int) -> dict[str, Any]:
    job = gang(name, pods, pool="deep")
    job["spec"]["template"]["spec"]["nodeSelector"] = {"pool": "dra"}
    return job


def allocated(live: Live) -> Counter[str]:
    """Devices by node that claims hold. No device is held twice."""
    held = [
        (result["pool"], result["device"])
        for claim in live.list("resourceclaims")
        for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    ]
    assert len(set(held)) == len(held)
    return Counter(pool for pool, _ in held)


@pytest.mark.parametrize("resource", [names.NVIDIA_GPU, ""], ids=["extended resource", "claim template"])
async def test_gangs_get_devices_on_the_nodes_of_their_plan_and_leave_nothing(
    devices: Live, asked_by: Callable[[str], None], controller: ControllerProcess, resource: str
) -> None:
    asked_by(resource)
    devices.apply(dra_gang("first", 2))
    await devices.until("first", "PodsReady", 60)
    assert bound(devices, "first") == DRA
    assert devices.status("first")["plan"]["gpuType"] == "H100-SXM5-80GB"
    assert allocated(devices) == {"dra-0": 8, "dra-1": 8}
    templates = [each["metadata"]["name"] for each in devices.list("resourceclaimtemplates")]
    assert templates == ([] if resource else ["first-1"])
    devices.apply(dra_gang("second", 1))
    await waits(devices, "second")
    assert allocated(devices) == {"dra-0": 8, "dra-1": 8}
    await gone(devices, "first")
    await devices.until("second", "PodsReady", 60)
    assert sum(allocated(devices).values()) == 8
    await gone(devices, "second")
    await eventually(lambda: not devices.list("resourceclaims"), 60, "the claims to be gone")
    await eventually(lambda: not devices.list("resourceclaimtemplates"), 60, "the templates to be gone")


async def test_gpus_that_a_claim_of_somebody_else_holds_are_not_free(
    devices: Live, asked_by: Callable[[str], None], controller: ControllerProcess
) -> None:
    asked_by(names.NVIDIA_GPU)
    request = {"name": "gpus", "exactly": {"deviceClassName": names.NVIDIA_DRIVER, "count": 3}}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "theirs", "namespace": "default"},
        "spec": {"devices": {"requests": [request]}},
    }
    claims = [{"name": "gpus", "resourceClaimName": "theirs"}]
    devices.apply(
        claim, foreign_pod("foreign", nodeSelector={"kubernetes.io/hostname": "dra-0"}, resourceClaims=claims)
    )
    await eventually(lambda: allocated(devices) == {"dra-0": 3}, 60, "the foreign claim to be allocated")
    devices.apply(dra_gang("whole", 2))
    await waits(devices, "whole")
    devices.apply(dra_gang("half", 1))
    await devices.until("half", "PodsReady", 60)
    assert bound(devices, "half") == ["dra-1"]
    assert not devices.pods("whole")
    await gone(devices, "half", "whole")
    devices.delete("pod", "foreign")
    devices.delete("resourceclaim", "theirs")
    await eventually(lambda: not allocated(devices), 60, "the foreign claim to be gone")


def _has_read(controller: ControllerProcess, plural: str) -> bool:
    """Whether a kind was listed; the metrics have an address once the controller runs."""
    running = controller.log.exists() and "metrics=http" in controller.log.read_text(errors="replace")
    return running and controller.metric("trimtab_reflector_relists_total", resource=plural) >= 1


async def test_gpus_that_an_administrator_taints_take_no_gang_until_the_rule_is_gone(
    devices: Live, asked_by: Callable[[str], None], controller: ControllerProcess
) -> None:
    asked_by(names.NVIDIA_GPU)
    rule = {
        "apiVersion": "resource.k8s.io/v1beta2",
        "kind": "DeviceTaintRule",
        "metadata": {"name": "broken-gpu"},
        "spec": {
            "deviceSelector": {"driver": names.NVIDIA_DRIVER, "pool": "dra-0", "device": "gpu-3"},
            "taint": {"key": "example.com/unhealthy", "value": "ecc", "effect": "NoSchedule"},
        },
    }
    await eventually(lambda: _has_read(controller, "devicetaintrules"), 90, "the controller to read rules")
    devices.apply(rule)
    try:
        devices.apply(dra_gang("spared", 2))
        await waits(devices, "spared")
        devices.apply(dra_gang("beside", 1))
        await devices.until("beside", "PodsReady", 60)
        assert bound(devices, "beside") == ["dra-1"], "the other node has a GPU that takes no pods"
        await gone(devices, "beside")
    finally:
        devices.delete("devicetaintrule", "broken-gpu")
    await devices.until("spared", "PodsReady", 90)
    assert allocated(devices) == {"dra-0": 8, "dra-1": 8}
    await gone(devices, "spared")


async def test_a_controller_that_is_killed_while_a_gang_claims_its_gpus_is_followed_by_one_that_goes_on(
    devices: Live, asked_by: Callable[[str], None], extender: ExtenderProcess, front: Front, tmp_path: Path
) -> None:
    asked_by("")
    front.down()
    mode = {"binding": {"mode": "Extender"}}
    kubeconfig = devices.kubeconfig(tmp_path)
    async with ControllerProcess(kubeconfig, tmp_path, **mode) as first:
        devices.apply(dra_gang("killed", 2))
        await eventually(lambda: len(devices.pods("killed")) == 2, 60, "the pods to be made")
        first.signal(signal.SIGKILL)
        await first.died()
    front.to(extender.port)
    async with ControllerProcess(kubeconfig, tmp_path, **mode) as second:
        await devices.until("killed", "PodsReady", 60)
        assert allocated(devices) == {"dra-0": 8, "dra-1": 8}
        await gone(devices, "killed")
        await eventually(lambda: not devices.list("resourceclaimtemplates"), 60, "the template to be gone")
        assert second.alive, second.tail()


async def test_without_kube_scheduler_the_job_is_told_what_it_needs(
    devices: Live, asked_by: Callable[[str], None], tmp_path: Path
) -> None:
    asked_by(names.NVIDIA_GPU)
    async with ControllerProcess(devices.kubeconfig(tmp_path), tmp_path) as controller:
        devices.apply(dra_gang("direct", 1))
        await waits(devices, "direct")
        assert "set binding.mode to Extender" in json.dumps(devices.status("direct")["pending"])
        assert not devices.pods("direct")
        await gone(devices, "direct")
        assert controller.alive, controller.tail()


async def test_the_fake_profile_is_taken_by_the_api_server_and_its_amd_gpus_are_claimed_by_their_class(
    devices: Live, controller: ControllerProcess
) -> None:
    connection = ("--kubeconfig", str(devices.cluster.kubeconfig))
    profile = str(checkout() / "manifests" / "fake" / "dra.yaml")
    for _ in range(2):  # once more changes nothing
        applied = await asyncio.to_thread(CliRunner().invoke, fake_nodes, ["apply", "-f", profile, *connection])
        assert applied.exit_code == 0, applied.output
    job = dra_gang("instinct", 2)
    job["spec"]["template"]["spec"]["nodeSelector"] = {"fake.trimtab.dev/pool": "dra-mi300x"}
    devices.apply(job)
    await devices.until("instinct", "PodsReady", 60)
    assert devices.status("instinct")["plan"]["gpuResource"] == "deviceclass.resource.kubernetes.io/gpu.amd.com"
    assert allocated(devices) == {"dra-mi300x-0": 8, "dra-mi300x-1": 8}
    await gone(devices, "instinct")
    deleted = await asyncio.to_thread(CliRunner().invoke, fake_nodes, ["delete", "--profile", "dra", *connection])
    assert deleted.exit_code == 0, deleted.output
    assert "6 fake nodes" in deleted.output
    assert len(devices.list("resourceslices")) == len(DRA)


FORBIDDEN: dict[str, dict[str, Any]] = {
    "of no job": {"metadata.ownerReferences": []},
    "called like nobody's gang": {"metadata.name": "other-1"},
    "called like another plan of its job": {"metadata.name": "job-2"},
    "with the label of another job": {"metadata.labels": {names.LABEL_JOB: "other", names.LABEL_EPOCH: "1"}},
    "of another class": {"spec.spec.devices.requests.0.exactly.deviceClassName": "everything.example"},
    "as an administrator": {
        "metadata.namespace": ADMINISTRATORS,
        "spec.spec.devices.requests.0.exactly.adminAccess": True,
    },
    "with a second request": {"spec.spec.devices.requests": [{"name": name, "exactly": WHOLE} for name in ("a", "b")]},
    "with parameters for the driver": {
        "spec.spec.devices.config": [{"opaque": {"driver": names.NVIDIA_DRIVER, "parameters": {}}}]
    },
}


@pytest.mark.parametrize("changes", FORBIDDEN.values(), ids=FORBIDDEN)
async def test_a_stolen_token_of_the_controller_makes_no_claim_but_for_whole_gpus_of_a_gang(
    devices: Live, changes: dict[str, Any]
) -> None:
    make(devices, OF_A_GANG)
    with pytest.raises(LocalClusterError, match="the controller m"):
        make(devices, changed(OF_A_GANG, changes))


def make(live: Live, template: dict[str, Any]) -> None:
    """As the controller's account, and without an effect. Raises LocalClusterError where that is refused."""
    account = f"system:serviceaccount:{names.SYSTEM_NAMESPACE}:{names.CONTROLLER_ACCOUNT}"
    live.cluster.kubectl("create", "--dry-run=server", "-f", "-", "--as", account, stdin=json.dumps(template))


async def waits(live: Live, job: str) -> None:
    """Wait until the job is told why it waits."""
    await eventually(lambda: bool(live.status(job).get("pending")), 30, lambda: f"{job} to wait: {live.status(job)}")
