"""A ComputeDomain per gang, on a real control plane: made before the pods, claimed by each, gone with the gang.

NVIDIA's driver is played by the test: it makes the template of the channel's claims, says that its daemons are ready,
and publishes channels. The CRD has the names, the fields and the rule of the driver's own
(`computedomains.resource.nvidia.com`, v1beta1). The driver's own file may take its place: TRIMTAB_COMPUTE_DOMAIN_CRD
names it (deployments/helm/dra-driver-nvidia-gpu/crds of kubernetes-sigs/dra-driver-nvidia-gpu, Apache-2.0).
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.devices import slice_manifest
from tests.live.extender.front import Front
from tests.live.extender.gangs import gang, gone
from tests.live.extender.process import ExtenderProcess
from tests.live.harness import ControllerProcess, Live, eventually, gpu_node

from trimtab import names
from trimtab_local.checkout import checkout

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
TRAYS = ["tray-0", "tray-1"]
DRIVER = names.COMPUTE_DOMAIN_DRIVER
CHANNELS = "compute-domain-default-channel.nvidia.com"
KIND = "computedomains.resource.nvidia.com"
TEXT = {"type": "string"}
TEMPLATE = {"type": "object", "required": ["name"], "properties": {"name": TEXT}}
MODES = {"type": "string", "enum": ["All", "Single"], "default": "Single"}
CHANNEL = {
    "type": "object",
    "required": ["resourceClaimTemplate"],
    "properties": {"allocationMode": MODES, "resourceClaimTemplate": TEMPLATE},
}
SPEC = {
    "type": "object",
    "required": ["channel"],
    "properties": {"channel": CHANNEL, "numNodes": {"type": "integer", "minimum": 0, "default": 0}},
    "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "A computeDomain.spec is immutable"}],
}
READY = {"type": "string", "enum": ["Ready", "NotReady"], "default": "NotReady"}
DAEMON = {
    "type": "object",
    "required": ["cliqueID", "ipAddress", "name"],
    "properties": {"name": TEXT, "cliqueID": TEXT, "ipAddress": TEXT, "index": {"type": "integer"}, "status": READY},
}
STATUS = {
    "type": "object",
    "required": ["status"],
    "properties": {
        "status": READY,
        "nodes": {
            "type": "array",
            "items": DAEMON,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
        },
    },
}
OURS: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": KIND},
    "spec": {
        "group": "resource.nvidia.com",
        "names": {
            "kind": "ComputeDomain",
            "listKind": "ComputeDomainList",
            "plural": "computedomains",
            "singular": "computedomain",
        },
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1beta1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "apiVersion": TEXT,
                            "kind": TEXT,
                            "metadata": {"type": "object"},
                            "spec": SPEC,
                            "status": STATUS,
                        },
                    }
                },
                "subresources": {"status": {}},
            }
        ],
    },
}
THEIRS = os.environ.get("TRIMTAB_COMPUTE_DOMAIN_CRD", "")


def crd() -> dict[str, Any]:
    """The driver's own definition where a file of it is named, else ours."""
    return yaml.safe_load(Path(THEIRS).read_text()) if THEIRS else OURS


def bare(schema: Any) -> Any:
    """A definition without the words in it, and without what says which program wrote it."""
    if isinstance(schema, dict):
        return {key: bare(value) for key, value in schema.items() if key not in ("description", "annotations")}
    return [bare(each) for each in schema] if isinstance(schema, list) else schema


@pytest.mark.skipif(not THEIRS, reason="TRIMTAB_COMPUTE_DOMAIN_CRD names no file of NVIDIA's driver")
def test_our_definition_is_the_drivers_own_but_for_its_words() -> None:
    assert bare(crd()) == bare(OURS)


@pytest.fixture(scope="module")
def rack(live_cluster: Live) -> Iterator[Live]:
    """Two trays of one NVLink domain: GPUs by a device plugin, and channels by the driver for ComputeDomains."""
    cluster = live_cluster.cluster
    admission = str(checkout() / "manifests" / "admission.yaml")
    cluster.kubectl("apply", "--server-side", "-f", admission)
    live_cluster.apply(crd())
    cluster.kubectl("wait", "--for=condition=Established", f"crd/{KIND}", "--timeout=30s")
    labels = {"nvidia.com/gpu.clique": "fabric.1", "pool": "rack"}
    live_cluster.apply(*(gpu_node(name, **labels) for name in TRAYS))
    chosen = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'channel'"
    live_cluster.apply(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": CHANNELS},
            "spec": {"selectors": [{"cel": {"expression": chosen}}]},
        },
        *(slice_manifest(name, [{"name": "channel-0", "attributes": {"type": {"string": "channel"}, "id": {"int": 0}}}],
                         driver=DRIVER) for name in TRAYS),
    )  # fmt: skip
    cluster.kubectl("wait", "--for=condition=Ready", *(f"node/{name}" for name in TRAYS), "--timeout=30s")
    yield live_cluster
    cluster.kubectl("delete", "resourceslices", "--all")
    live_cluster.delete("deviceclass", CHANNELS)
    cluster.kubectl("delete", "node", *TRAYS)
    cluster.kubectl("delete", "crd", KIND)
    cluster.kubectl("delete", "--ignore-not-found", "-f", admission)


def rack_gang(name: str, pods: int) -> dict[str, Any]:
    job = gang(name, pods, pool="deep")
    job["spec"]["template"]["spec"]["nodeSelector"] = {"pool": "rack"}
    return job


def domains(live: Live) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in live.list(KIND)}


def serve(live: Live, domain: dict[str, Any]) -> None:
    """What the driver does for a domain: the template by which pods claim a channel."""
    meta = domain["metadata"]
    owner = {"apiVersion": domain["apiVersion"], "kind": "ComputeDomain", "name": meta["name"], "uid": meta["uid"]}
    request = {"name": "channel", "exactly": {"deviceClassName": CHANNELS}}
    live.apply(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {
                "name": domain["spec"]["channel"]["resourceClaimTemplate"]["name"],
                "namespace": meta["namespace"],
                "ownerReferences": [owner],
            },
            "spec": {"spec": {"devices": {"requests": [request]}}},
        }
    )
    daemons = [
        {"name": name, "cliqueID": "fabric.1", "ipAddress": f"10.0.0.{index}", "index": index, "status": "Ready"}
        for index, name in enumerate(TRAYS)
    ]
    status = json.dumps({"status": {"status": "Ready", "nodes": daemons}})
    where = ("--namespace", meta["namespace"], "--subresource=status", "--type=merge")
    live.cluster.kubectl("patch", KIND, meta["name"], *where, "-p", status)


async def test_a_gang_over_nodes_of_one_domain_has_a_compute_domain_whoever_controls_it_and_leaves_none(
    rack: Live, extender: ExtenderProcess, front: Front, tmp_path: Path
) -> None:
    mode: dict[str, Any] = {"binding": {"mode": "Extender"}}
    kubeconfig = rack.kubeconfig(tmp_path)
    async with ControllerProcess(kubeconfig, tmp_path, **mode) as first:
        rack.apply(rack_gang("linked", 2))
        await eventually(lambda: len(rack.pods("linked")) == 2, 60, lambda: f"pods: {rack.status('linked')}")
        first.signal(signal.SIGKILL)
        await first.died()
    [domain] = domains(rack).values()
    assert domain["metadata"]["name"] == "linked-1"
    assert domain["metadata"]["ownerReferences"][0]["name"] == "linked"
    serve(rack, domain)
    async with ControllerProcess(kubeconfig, tmp_path, **mode) as second:
        await rack.until("linked", "PodsReady", 60)
        held = {
            (result["pool"], result["device"])
            for claim in rack.list("resourceclaims")
            for result in claim["status"]["allocation"]["devices"]["results"]
        }
        assert held == {(name, "channel-0") for name in TRAYS}
        limits = [pod["spec"]["containers"][0]["resources"]["limits"] for pod in rack.pods("linked")]
        assert [table[names.NVIDIA_GPU] for table in limits] == ["8", "8"]
        await gone(rack, "linked")
        await eventually(lambda: not domains(rack), 60, lambda: f"the domain to be gone: {json.dumps(domains(rack))}")
        await eventually(lambda: not rack.list("resourceclaims"), 60, "the claims to be gone")
        rack.apply(rack_gang("single", 1))
        await rack.until("single", "PodsReady", 60)
        assert not domains(rack), "within a node NVLink needs none"
        await gone(rack, "single")
        assert second.alive, second.tail()


async def test_a_gang_whose_compute_domain_is_refused_goes_on_without_it(
    rack: Live, extender: ExtenderProcess, front: Front, tmp_path: Path
) -> None:
    mode: dict[str, Any] = {"binding": {"mode": "Extender"}}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "domains", "namespace": "default"}}
    rack.apply({**quota, "spec": {"hard": {f"count/{KIND}": "0"}}})
    try:
        async with ControllerProcess(rack.kubeconfig(tmp_path), tmp_path, **mode) as controller:
            rack.apply(rack_gang("refused", 2))
            await rack.until("refused", "PodsReady", 60)
            assert rack.status("refused")["plan"]["epoch"] == 1
            assert not domains(rack)
            assert not any("resourceClaims" in pod["spec"] for pod in rack.pods("refused"))
            assert controller.metric("trimtab_compute_domains_refused_total") == 1
            await gone(rack, "refused")
            assert controller.alive, controller.tail()
    finally:
        rack.delete("resourcequota", "domains")
