"""What can be said of hack/kind without a cluster: nodes and their fake GPUs, and what is compiled for them."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hack.chart.render import KUBERNETES
from hack.kind import config, fake_gpus, programs

HERE = Path(config.__file__).parent
VERSION = re.compile(r"^(?:require )?\s*(\S+) (v\S+)", re.MULTILINE)


def options(**given: Any) -> argparse.Namespace:
    usual = {"name": "n", "image": "i", "workers": 2, "gpus": 4, "shared": "/s", "cgroup_v1": False}
    return argparse.Namespace(**usual | {"no_oom_scores": False} | given)


def test_workers_say_what_they_have_and_agents_play_the_same() -> None:
    nodes = config.cluster(options())["nodes"]
    assert [node["role"] for node in nodes] == ["control-plane", "worker", "worker"]
    assert nodes[1]["labels"][fake_gpus.COUNT] == "4"
    played = yaml.safe_load((HERE / "values.yaml").read_text())["agent"]["profile"]["product"]
    assert nodes[1]["labels"]["nvidia.com/gpu.product"] == played
    assert "nvidia.com/gpu.present" not in nodes[0].get("labels", {})


@pytest.mark.parametrize(
    ("given", "patched"),
    [
        ({}, {}),
        ({"cgroup_v1": True}, {"KubeletConfiguration": {"failCgroupV1": False}}),
        (
            {"no_oom_scores": True},
            {"KubeletConfiguration": {"oomScoreAdj": 0}, "KubeProxyConfiguration": {"oomScoreAdj": 0}},
        ),
    ],
    ids=["usual", "cgroup-v1", "no-oom-scores"],
)
def test_kubelets_are_told_only_what_this_machine_needs(given: dict[str, bool], patched: dict[str, Any]) -> None:
    patches = [json.loads(text) for text in config.cluster(options(**given))["kubeadmConfigPatches"]]
    assert {patch.pop("kind"): patch for patch in patches if patch.pop("apiVersion")} == patched


@pytest.mark.parametrize(
    ("status", "patch"),
    [
        ({"capacity": {"cpu": "2"}, "allocatable": {"cpu": "2"}}, {"capacity", "allocatable"}),
        ({"capacity": {"nvidia.com/gpu": "2"}, "allocatable": {"nvidia.com/gpu": "1"}}, {"allocatable"}),
        ({"capacity": {"nvidia.com/gpu": "2"}, "allocatable": {"nvidia.com/gpu": "2"}}, set()),
    ],
    ids=["new", "half", "right"],
)
def test_a_node_gets_the_gpus_that_its_label_counts(status: dict[str, Any], patch: set[str]) -> None:
    node = {"metadata": {"labels": {fake_gpus.COUNT: "2"}}, "status": status}
    wanted = {"status": {part: {"nvidia.com/gpu": "2"} for part in patch}} if patch else None
    assert fake_gpus.missing(node) == wanted


def test_a_nodes_kubernetes_is_compiled_from_what_the_local_cluster_is() -> None:
    """Or Go's cache would be of no use, and the kubelet of another version than its API server."""
    ours = dict(VERSION.findall((HERE / "node-image" / "kubernetes" / "go.mod").read_text()))
    theirs = dict(VERSION.findall((HERE.parent / "cluster" / "go.mod").read_text()))
    assert ours["k8s.io/kubernetes"] == KUBERNETES
    assert {
        name: (ours[name], theirs[name]) for name in ours.keys() & theirs.keys() if ours[name] != theirs[name]
    } == {}


def test_tools_are_read_in_both_ways_to_write_them_and_our_sources_count() -> None:
    kind = programs.plain(HERE / "cli", "kind")
    assert kind.names == ("kind",)
    runtime = programs.plain(HERE / "node-image" / "runtime", "the runtime")
    assert {"containerd", "crictl", "ptp", "coredns", "pause", "podnet"} <= set(runtime.names)
    assert runtime.go >= (1, 26)


def test_what_is_built_has_another_name_when_a_source_of_ours_changes(tmp_path: Path) -> None:
    for name in ("go.mod", "go.sum"):
        (tmp_path / name).write_text("go 1.26.0\n\ntool example.dev/x\n")
    source = tmp_path / "x" / "main.go"
    source.parent.mkdir()
    source.write_text("package main")
    before = programs.plain(tmp_path, "x").digest
    assert programs.plain(tmp_path, "x").digest == before
    source.write_text("package main // changed")
    assert programs.plain(tmp_path, "x").digest != before
