"""Which GPUs a node has: labels of all vendors as they really come, and as they come when something is wrong."""

from __future__ import annotations

import pytest
from tests.builders import A100, H100

from trimtab import names
from trimtab.observe.gpus import NodeGpus, Obstacle, read_gpus

NVIDIA = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559"}
EIGHT = {names.NVIDIA_GPU: "8"}


def found(labels: dict[str, str], allocatable: dict[str, str]) -> NodeGpus:
    gpus = read_gpus(labels, allocatable)
    assert gpus
    assert (gpus.spec is None) == bool(gpus.unusable) == (gpus.obstacle is not None)
    return gpus


def type_of(labels: dict[str, str], allocatable: dict[str, str]) -> str:
    gpus = found(labels, allocatable)
    assert gpus.spec, gpus.unusable
    return gpus.spec.name


def remarks(gpus: NodeGpus) -> list[str]:
    return [reason for reason, _ in gpus.remarks]


# --- as they should be ---------------------------------------------------------------------------------------------
def test_nvidia_as_gpu_feature_discovery_labels_it() -> None:
    gpus = found(NVIDIA, EIGHT)
    assert gpus.spec
    assert (gpus.spec.name, gpus.resource, gpus.count, gpus.remarks) == (H100, names.NVIDIA_GPU, 8, ())


def test_amd_as_its_labeller_labels_it() -> None:
    labels = {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM", "amd.com/gpu.vram": "192G"}
    gpus = found(labels, {names.AMD_GPU: "8"})
    assert gpus.spec
    assert (gpus.spec.name, gpus.spec.vendor, gpus.resource, gpus.remarks) == ("MI300X", "AMD", names.AMD_GPU, ())


def test_amd_as_older_labellers_put_the_value_into_the_key() -> None:
    labels = {"beta.amd.com/gpu.product-name.AMD_Radeon_VII": "8", "beta.amd.com/gpu.vram.16G": "8"}
    gpus = found(labels, {names.AMD_GPU: "8"})
    assert gpus.spec
    assert (gpus.spec.name, gpus.remarks) == ("Radeon-VII", ())


def test_amd_nodes_with_cards_of_two_kinds_are_set_aside() -> None:
    labels = {f"beta.amd.com/gpu.product-name.{name}": "4" for name in ("AMD_Radeon_VII", "AMD_Instinct_MI100")}
    assert "no label names the GPU product" in found(labels, {names.AMD_GPU: "8"}).unusable


def test_intel_is_estimated_from_its_labels() -> None:
    labels = {"gpu.intel.com/product": "Max_1550", "gpu.intel.com/memory.max": str(128 << 30)}
    gpus = found(labels, {"gpu.intel.com/xe": "4"})
    assert gpus.spec
    assert (gpus.spec.name, gpus.spec.vendor, gpus.spec.memory_bytes) == ("Max_1550", "Intel", 128 << 30)


def test_the_resource_that_has_gpus_counts_where_a_driver_offers_two() -> None:
    labels = {"gpu.intel.com/product": "Max_1550", "gpu.intel.com/memory.max": str(128 << 30)}
    assert found(labels, {"gpu.intel.com/xe": "0", "gpu.intel.com/i915": "4"}).resource == "gpu.intel.com/i915"


@pytest.mark.parametrize("key", ["cloud.google.com/gke-accelerator", "karpenter.k8s.aws/instance-gpu-name"])
def test_cloud_labels_fill_in_where_there_is_no_labeller(key: str) -> None:
    assert type_of({key: "nvidia-l4"}, EIGHT) == "L4"
    assert type_of({key: "nvidia-l4"} | NVIDIA, EIGHT) == H100


def test_a_name_that_several_products_share_is_told_apart_by_memory() -> None:
    aws = {"karpenter.k8s.aws/instance-gpu-name": "a100"}
    assert type_of(aws | {"karpenter.k8s.aws/instance-gpu-memory": "81920"}, EIGHT) == A100
    assert type_of(aws | {"karpenter.k8s.aws/instance-gpu-memory": "40960"}, EIGHT) == "A100-SXM4-40GB"
    assert found(aws, EIGHT).unusable.startswith("unknown GPU product 'a100' and no usable label")


def test_amd_cards_are_known_by_their_device_id_where_the_labeller_says_no_name() -> None:
    assert type_of({"amd.com/gpu.device-id": "74a1"}, {"amd.com/gpu": "8"}) == "MI300X"


@pytest.mark.parametrize("product", ["NVIDIA-A100-SXM4-80GB", "nvidia-a100-sxm4-80gb", "NVIDIA_A100_SXM4_80GB"])
def test_case_and_blanks_of_product_names_do_not_matter(product: str) -> None:
    assert type_of({"nvidia.com/gpu.product": product, "nvidia.com/gpu.memory": "81920"}, EIGHT) == A100


def test_a_node_without_gpus_is_no_gpu_node() -> None:
    assert read_gpus({}, {"cpu": "8"}) is None
    assert read_gpus({"nvidia.com/gpu.present": "false"}, {}) is None


# --- as they are when something is wrong ----------------------------------------------------------------------------
@pytest.mark.parametrize("memory", ["80GB", "", "-1", "0", "lots", "1e999"])
def test_a_known_product_is_used_whatever_the_memory_label_says(memory: str) -> None:
    gpus = found(NVIDIA | {"nvidia.com/gpu.memory": memory}, EIGHT)
    assert gpus.spec
    assert gpus.spec.name == H100
    assert remarks(gpus) == (["MalformedLabel"] if memory else ["NoMemoryLabel"])
    assert "nvidia.com/gpu.memory" in gpus.remarks[0][1]


def test_an_unknown_product_is_estimated_from_memory_and_compute_capability() -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-X1", "nvidia.com/gpu.memory": "65536"}
    old = found(labels, EIGHT)
    new = found(labels | {"nvidia.com/gpu.compute.major": "9", "nvidia.com/gpu.compute.minor": "0"}, EIGHT)
    odd = found(labels | {"nvidia.com/gpu.compute.major": "nine", "nvidia.com/gpu.compute.minor": "0"}, EIGHT)
    assert old.spec
    assert new.spec
    assert (old.spec.name, old.spec.memory_bytes, old.spec.source) == (
        "NVIDIA-X1",
        64 << 30,
        "estimated from node labels",
    )
    assert (new.spec.architecture, odd.spec) == ("Hopper", old.spec)
    assert remarks(old) == ["UnknownGpuProduct"]
    assert "NVIDIA-X1" in old.remarks[0][1]


@pytest.mark.parametrize("memory", [{}, {"nvidia.com/gpu.memory": "much"}])
def test_an_unknown_product_without_memory_cannot_be_used(memory: dict[str, str]) -> None:
    gpus = found({"nvidia.com/gpu.product": "NVIDIA-X1"} | memory, EIGHT)
    assert gpus.unusable == (
        "unknown GPU product 'NVIDIA-X1' and no usable label nvidia.com/gpu.memory: its memory is not known"
    )
    assert (gpus.count, gpus.obstacle) == (8, Obstacle.UNKNOWN_PRODUCT)


def test_a_node_whose_labeller_does_not_run_cannot_be_used() -> None:
    gpus = found({}, EIGHT)
    assert gpus.unusable == "no label names the GPU product: is the NVIDIA labeller running?"
    assert gpus.obstacle is Obstacle.NO_PRODUCT


PRODUCT = "nvidia.com/gpu.product"
SLICES = {
    "MIG single": ({PRODUCT: "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"}, "its GPUs are partitioned (MIG 1g.5gb)"),
    "MIG shared": ({PRODUCT: "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED"}, "its GPUs are partitioned (MIG 1g.5gb)"),
    "shared": ({PRODUCT: "NVIDIA-H100-80GB-HBM3-SHARED"}, "its GPUs are shared (time-slicing or MPS)"),
    "time-sliced": ({"nvidia.com/gpu.replicas": "4"}, "its GPUs are time-sliced (4 replicas)"),
}


@pytest.mark.parametrize(("labels", "why"), SLICES.values(), ids=SLICES)
def test_slices_of_gpus_are_no_gpus(labels: dict[str, str], why: str) -> None:
    gpus = found(NVIDIA | labels, {names.NVIDIA_GPU: "56"})
    assert (gpus.unusable, gpus.obstacle) == (f"{why}: gangs need whole GPUs", Obstacle.SLICED)


def test_one_replica_is_a_whole_gpu() -> None:
    assert type_of(NVIDIA | {"nvidia.com/gpu.replicas": "1"}, EIGHT) == H100


def test_mixed_mig_says_where_the_gpus_have_gone() -> None:
    gpus = found(NVIDIA, {names.NVIDIA_GPU: "0", "nvidia.com/mig-1g.10gb": "7", "nvidia.com/mig-3g.40gb": "1"})
    assert "partitioned (nvidia.com/mig-1g.10gb, nvidia.com/mig-3g.40gb)" in gpus.unusable
    assert gpus.obstacle is Obstacle.SLICED


def test_no_healthy_gpu() -> None:
    gpus = found(NVIDIA, {names.NVIDIA_GPU: "0"})
    assert gpus.unusable.startswith("allocatable nvidia.com/gpu is 0")
    assert gpus.obstacle is Obstacle.NONE_ALLOCATABLE


@pytest.mark.parametrize("amount", ["eight", "-8", ""])
def test_an_amount_that_cannot_be_read(amount: str) -> None:
    assert found(NVIDIA, {names.NVIDIA_GPU: amount}).unusable.startswith("allocatable nvidia.com/gpu: ")


def test_labels_without_a_device_plugin() -> None:
    gpus = found({"nvidia.com/gpu.present": "true"} | NVIDIA, {"cpu": "8"})
    assert gpus.unusable == (
        "labelled with GPUs, but no nvidia.com/gpu is allocatable and no ResourceSlice has one: is the device"
        " plugin, or the driver, running?"
    )
    assert (gpus.count, gpus.obstacle) == (0, Obstacle.NO_DEVICE_PLUGIN)
