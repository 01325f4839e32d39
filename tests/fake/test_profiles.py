"""A profile expands to nodes that look as if real device plugins and labellers had made them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.json import JSONSnapshotExtension
from tests.builders import NOW

from trimtab.errors import UsageError
from trimtab.kube.objects import DeviceClassObject, NodeCondition, NodeObject, ResourceSliceObject
from trimtab.observe.snapshot import Caches, ClusterObserver
from trimtab_local.checkout import checkout
from trimtab_local.fake.nodes import devices, expand
from trimtab_local.fake.profile import FakeCluster, NodePool, load_profile, shipped_profiles
from trimtab_policy import catalog
from trimtab_policy.types import Node

POOL = {"name": "a", "count": 2, "product": "Tesla-T4", "gpus": 4, "cpu": 8, "memory": "64Gi"}


def shipped(name: str) -> FakeCluster:
    return load_profile(checkout() / "manifests" / "fake" / f"{name}.yaml")


def gpus_by_product(nodes: list[dict[str, Any]]) -> dict[str, int]:
    """As an observer would count them: product label times allocatable resource."""
    counts: Counter[str] = Counter()
    for node in nodes:
        labels, allocatable = node["metadata"]["labels"], node["status"]["allocatable"]
        product = labels.get("nvidia.com/gpu.product") or labels["amd.com/gpu.product-name"]
        counts[product] += int(allocatable.get("nvidia.com/gpu") or allocatable["amd.com/gpu"])
    return dict(counts)


def test_heterogeneous_has_six_products_on_24_nodes_in_12_racks() -> None:
    nodes = expand(shipped("heterogeneous"))
    assert len(nodes) == 24
    assert gpus_by_product(nodes) == {
        "Tesla-V100-SXM2-16GB": 32,
        "Tesla-T4": 24,
        "NVIDIA-A100-SXM4-40GB": 32,
        "NVIDIA-A100-SXM4-80GB": 32,
        "NVIDIA-H100-80GB-HBM3": 32,
        "AMD_Instinct_MI300X_OAM": 16,
    }
    assert len({node["metadata"]["labels"]["topology.kubernetes.io/rack"] for node in nodes}) == 12


def test_adlro_is_the_cluster_of_the_paper() -> None:
    generations: Counter[str] = Counter()
    for product, count in gpus_by_product(expand(shipped("adlro"))).items():
        spec = catalog.by_product(product)
        assert spec is not None
        generations[spec.architecture] += count
    assert generations == {"Volta": 8, "Turing": 4, "Vega20": 4}


def test_large_has_a_thousand_nodes_and_whole_nvlink_domains() -> None:
    nodes = expand(shipped("large"))
    cliques = Counter(node["metadata"]["labels"].get("nvidia.com/gpu.clique") for node in nodes)
    assert len(nodes) == 1000
    assert cliques.pop(None) == 1000 - 144
    assert set(cliques.values()) == {18}, "an NVL72 is 18 nodes with 4 GPUs each"


def test_nvl72_has_eight_domains_of_which_four_lack_trays() -> None:
    cliques = Counter(node["metadata"]["labels"]["nvidia.com/gpu.clique"] for node in expand(shipped("nvl72")))
    assert sorted(cliques.values()) == [16, 17, 17, 17, 18, 18, 18, 18]
    racks = Counter(node["metadata"]["labels"]["topology.kubernetes.io/rack"] for node in expand(shipped("nvl72")))
    assert sorted(racks.values()) == sorted(cliques.values()), "a rack is a domain"


def test_mixed_is_of_three_vendors() -> None:
    types = {node.gpu_type for node in observed(shipped("mixed"))}
    assert {"MI250X", "MI300X", "Max_1550", "RTX-3090", "RTX-4090", "RTX-A6000", "L40S"} == types


def test_dra_is_seen_by_slices_alone_and_asked_for_as_the_charts_of_the_drivers_have_it() -> None:
    profile = shipped("dra")
    assert not observed(profile, told=False)
    assert Counter(node.gpu_type for node in observed(profile)) == {"H100-SXM5-80GB": 4, "MI300X": 2}
    classes = {each["metadata"]["name"]: each["spec"] for each in devices(profile) if each["kind"] == "DeviceClass"}
    assert classes["gpu.nvidia.com"]["extendedResourceName"] == "nvidia.com/gpu"
    assert "extendedResourceName" not in classes["gpu.amd.com"]


def observed(profile: FakeCluster, *, told: bool = True) -> tuple[Node, ...]:
    """The nodes as policies see them; without what drivers have `told`, those of device plugins only."""
    made = devices(profile) if told else []
    nodes = [msgspec.convert(node, NodeObject) for node in expand(profile)]
    ready = NodeCondition("Ready", "True")
    caches = Caches(
        [replace(node, status=replace(node.status, conditions=(ready,))) for node in nodes],
        (),
        (),
        slices=[msgspec.convert(each, ResourceSliceObject) for each in made if each["kind"] == "ResourceSlice"],
        device_classes=[msgspec.convert(each, DeviceClassObject) for each in made if each["kind"] == "DeviceClass"],
    )
    return ClusterObserver(()).observe(caches, NOW).snapshot.nodes


@pytest.mark.parametrize("path", shipped_profiles(), ids=lambda path: path.stem)
def test_every_shipped_node_is_unique_known_and_valid(path: Path) -> None:
    profile = load_profile(path)
    nodes = expand(profile)
    assert len({node["metadata"]["name"] for node in nodes}) == len(nodes) == profile.nodes
    assert sum(node.gpus for node in observed(profile)) == profile.gpus
    for node in nodes:
        assert node["status"]["allocatable"] == node["status"]["capacity"]
        assert all(len(value) <= 63 for value in node["metadata"]["labels"].values())


def test_the_same_profile_gives_the_same_nodes() -> None:
    assert expand(shipped("large")) == expand(shipped("large"))


def test_nodes_look_like_those_of_nvidia_amd_and_intel(snapshot: SnapshotAssertion) -> None:
    common: dict[str, Any] = {"count": 1, "gpus": 8, "cpu": 192, "memory": "2Ti"}
    profile = FakeCluster(
        "golden",
        (
            NodePool("hopper", product="NVIDIA-H100-80GB-HBM3", machine="NVIDIA-DGX-H100", tainted=True, **common),
            NodePool("nvl72", product="NVIDIA-GB200", clique_nodes=18, **common),
            NodePool("instinct", product="AMD_Instinct_MI300X_OAM", **common),
            NodePool("ponte-vecchio", product="Max_1550", **common),
        ),
    )
    assert expand(profile, prefix="test-") == snapshot(extension_class=JSONSnapshotExtension)


def test_slices_look_like_those_of_nvidia_and_amd(snapshot: SnapshotAssertion) -> None:
    common: dict[str, Any] = {"count": 1, "gpus": 2, "cpu": 192, "memory": "2Ti", "devices": True}
    profile = FakeCluster(
        "golden",
        (
            NodePool("hopper", product="NVIDIA-H100-80GB-HBM3", **common),
            NodePool("instinct", product="AMD_Instinct_MI300X_OAM", **common),
        ),
    )
    assert devices(profile, prefix="test-") == snapshot(extension_class=JSONSnapshotExtension)
    assert devices(profile, prefix="test-") == devices(profile, prefix="test-")


def test_pools_take_new_racks_unless_they_name_one() -> None:
    pools = [{**POOL, "nodesPerRack": 1}, {**POOL, "name": "b"}, {**POOL, "name": "c", "rack": 1}]
    nodes = expand(profile_of({"name": "p", "racksPerBlock": 2, "pools": pools}))
    racks = [node["metadata"]["labels"]["topology.kubernetes.io/rack"] for node in nodes]
    blocks = [node["metadata"]["labels"]["topology.kubernetes.io/block"] for node in nodes]
    assert racks == ["zone-a-r1", "zone-a-r2", "zone-a-r3", "zone-a-r3", "zone-a-r1", "zone-a-r1"]
    assert blocks == ["zone-a-b1", "zone-a-b1", "zone-a-b2", "zone-a-b2", "zone-a-b1", "zone-a-b1"]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            {"product": "Max_1550", "devices": True},
            r"pool 'a', field devices: there is no driver of dynamic resource allocation for 'Max_1550'",
        ),
        ({"count": 0}, r"pool 'a', field count: Expected `int` >= 1"),
        ({"count": "two"}, r"pool 'a', field count: Expected `int`, got `str`"),
        ({"memory": "lots"}, r"pool 'a', field memory: .*matching regex"),
        ({"gpu": 3}, r"pool 'a': Object contains unknown field `gpu`"),
        ({"product": "Tesla-T5"}, r"pool 'a', field product: unknown GPU product 'Tesla-T5'"),
        ({"name": "Not_A_Name"}, r"pool 'Not_A_Name', field name: "),
    ],
)
def test_mistakes_are_named_by_file_pool_and_field(tmp_path: Path, change: dict[str, object], complaint: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(str({"name": "p", "pools": [{**POOL, **change}]}))
    with pytest.raises(UsageError, match=rf"mine\.yaml: {complaint}"):
        load_profile(path)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("pools: [", r"cannot read the profile .*mine\.yaml"),
        ("", r"mine\.yaml: Expected `object`, got `null`"),
        ("name: p\npools: []", r"mine\.yaml: field pools: Expected `array` of length >= 1"),
        (str({"name": "p", "pools": [POOL, POOL]}), r"pool 'a', field name: there is another pool of this name"),
    ],
)
def test_files_that_are_no_profiles_are_refused(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=complaint):
        load_profile(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read the profile .*none\.yaml"):
        load_profile(tmp_path / "none.yaml")


def profile_of(content: dict[str, object]) -> FakeCluster:
    return msgspec.convert(content, FakeCluster)
