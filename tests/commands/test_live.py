"""One look at a cluster sees devices as the controller does, and says what it cannot see."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from tests.builders import A100, H100, node_object
from tests.devices import nvidia_gpu, slice_manifest

from trimtab import names
from trimtab.commands import live
from trimtab.doctor.rbac import BINDING_MODE
from trimtab.errors import Forbidden, NotFound
from trimtab.kube.resources import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Resource,
)
from trimtab.settings import KubeSettings

Json = dict[str, Any]
READY = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"cpu": "128", "memory": "1Ti"}}
CLASS = {"metadata": {"name": names.NVIDIA_DRIVER}, "spec": {"extendedResourceName": names.NVIDIA_GPU}}
CLAIM = {
    "metadata": {"name": "c", "namespace": "default"},
    "status": {
        "allocation": {"devices": {"results": [{"driver": names.NVIDIA_DRIVER, "pool": "d1", "device": "gpu-0"}]}}
    },
}


def controller(mode: str) -> Json:
    env = [{"name": BINDING_MODE, "value": mode}]
    meta = {"name": "c", "namespace": "trimtab-system", "labels": {names.LABEL_PART: names.CONTROLLER_ACCOUNT}}
    return {"metadata": meta, "spec": {"containers": [{"name": "c", "env": env}]}}


class Server:
    """Nodes by a device plugin (p1) and by slices (d1, d2), one of which has a GPU taken."""

    def __init__(self, mode: str = "Extender") -> None:
        plugin = node_object("p1", A100)
        by_plugin = {"metadata": {"name": "p1", "labels": plugin.metadata.labels}}
        by_plugin["status"] = READY | {"allocatable": plugin.status.allocatable}
        eight = [nvidia_gpu(index) for index in range(8)]
        self.items: dict[Resource, list[Json]] = {
            NODES: [by_plugin, *({"metadata": {"name": name}, "status": READY} for name in ("d1", "d2"))],
            PODS: [controller(mode)],
            RESOURCE_SLICES: [slice_manifest(name, eight) for name in ("d1", "d2")],
            RESOURCE_CLAIMS: [CLAIM],
            DEVICE_CLASSES: [CLASS],
            DEVICE_TAINT_RULES: [],
        }
        self.failures: dict[Resource, Exception] = {}
        self._open = False

    async def __aenter__(self) -> Server:
        self._open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self._open = False

    async def pages(self, path: str, page_size: int, params: Mapping[str, str] | None = None) -> AsyncIterator[bytes]:
        assert self._open, "a client that is closed answers nobody"
        kind = next((each for each in self.items if each.path() == path), None)
        if kind in self.failures:
            raise self.failures[kind]
        yield json.dumps({"items": self.items[kind] if kind else []}).encode()


async def looked(server: Server, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[str, int]]:
    """Type and free GPUs by node."""

    async def connect(kube: KubeSettings) -> Server:
        return server

    monkeypatch.setattr(live.KubeClient, "connect", connect)
    seen = await live.look(KubeSettings())
    return {node.name: (node.gpu_type, node.free_gpus) for node in seen.snapshot.nodes}


ALL = {"p1": (A100, 8), "d1": (H100, 7), "d2": (H100, 8)}


async def test_devices_are_seen_as_by_the_controller(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await looked(Server(), monkeypatch) == ALL
    assert await looked(Server(mode="Direct"), monkeypatch) == {"p1": ALL["p1"]}, "nobody would allocate them"
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("kind", [RESOURCE_SLICES, RESOURCE_CLAIMS, DEVICE_CLASSES])
@pytest.mark.parametrize(("error", "told"), [(NotFound("no such kind"), ""), (Forbidden("not yours"), "not yours")])
async def test_where_they_are_not_served_or_not_to_be_read_there_are_none_and_the_latter_is_told(
    kind: Resource, error: Exception, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Server()
    server.failures[kind] = error
    assert await looked(server, monkeypatch) == {"p1": ALL["p1"]}
    out, err = capsys.readouterr()
    assert (out, told in err, bool(err)) == ("", True, bool(told))


async def test_a_taint_rule_takes_gpus_and_where_there_are_none_to_read_all_count(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Server()
    taint = {"key": "k", "effect": "NoExecute"}
    rule = {"metadata": {"name": "r"}, "spec": {"deviceSelector": {"pool": "d2", "device": "gpu-1"}, "taint": taint}}
    server.items[DEVICE_TAINT_RULES] = [rule]
    assert await looked(server, monkeypatch) == ALL | {"d2": (H100, 7)}
    for error in (NotFound("no such kind"), Forbidden("not yours")):
        server.failures[DEVICE_TAINT_RULES] = error
        assert await looked(server, monkeypatch) == ALL
    assert capsys.readouterr() == ("", "")


async def test_what_cannot_be_read_costs_its_node_and_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Server()
    server.items[RESOURCE_SLICES][1]["spec"]["devices"] = "many"
    server.items[RESOURCE_SLICES].append({"spec": 1})
    assert await looked(server, monkeypatch) == {"p1": ALL["p1"], "d1": ALL["d1"]}
    out, err = capsys.readouterr()
    assert out == ""
    assert f"resourceslices {server.items[RESOURCE_SLICES][1]['metadata']['name']}" in err
