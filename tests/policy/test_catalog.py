"""The catalogue: facts that must be right, labels that must be recognised, guesses that must not promise too much."""

from __future__ import annotations

import msgspec
import pytest

from trimtab_policy import catalog
from trimtab_policy.types import GpuSpec, Precision

MIB = 1 << 20


@pytest.mark.parametrize("name", catalog.model_names())
def test_parameter_counts_agree_with_the_published_ones_to_half_a_percent(name: str) -> None:
    published = catalog.published_parameters()[name]
    assert catalog.parameters(catalog.model(name)) == pytest.approx(published, rel=0.005)


@pytest.mark.parametrize(
    ("name", "released"),
    [
        ("gpt2", 124_439_808),
        ("llama3-8b", 8_030_261_248),
        ("mixtral-8x7b", 46_702_792_704),
        ("gemma-2b", 2_506_172_416),
    ],
)
def test_parameter_counts_of_released_weights_are_exact(name: str, released: int) -> None:
    assert catalog.parameters(catalog.model(name)) == released


def test_a_mixture_of_experts_uses_a_part_of_its_parameters_per_token() -> None:
    mixtral = catalog.model("mixtral-8x7b")
    assert catalog.active_parameters(mixtral) == pytest.approx(12.9e9, rel=0.005)
    dense = catalog.model("llama3-8b")
    assert catalog.active_parameters(dense) == catalog.parameters(dense)


@pytest.mark.parametrize(
    ("name", "precision", "dense_tflops"),
    [
        ("V100-SXM2-32GB", Precision.FP16, 125),
        ("T4", Precision.FP16, 65),
        ("A100-SXM4-80GB", Precision.BF16, 312),
        ("L40S", Precision.FP8, 733),
        ("H100-SXM5-80GB", Precision.BF16, 989.4),
        ("H100-PCIE-80GB", Precision.BF16, 756),
        ("B200-SXM-180GB", Precision.BF16, 2250),
        ("MI250X", Precision.BF16, 191.5),
        ("MI300X", Precision.BF16, 1307.4),
    ],
)
def test_peaks_are_dense(name: str, precision: Precision, dense_tflops: float) -> None:
    assert catalog.gpu(name).peak_flops[precision] == pytest.approx(dense_tflops * 1e12)


def test_formats_that_the_hardware_lacks_are_absent() -> None:
    for name in ("V100-SXM2-16GB", "T4", "RTX-2080-Ti", "Radeon-VII"):
        assert Precision.BF16 not in catalog.gpu(name).peak_flops
    assert Precision.FP8 not in catalog.gpu("A100-SXM4-80GB").peak_flops
    assert Precision.FP8 in catalog.gpu("L4").peak_flops


@pytest.mark.parametrize("spec", catalog.all_gpus(), ids=lambda spec: spec.name)
def test_every_entry_is_plausible_and_names_its_source(spec: GpuSpec) -> None:
    assert spec.source
    assert 8 << 30 < spec.memory_bytes < 400 << 30
    assert 2e11 < spec.memory_bandwidth < 1e13
    assert spec.network_bandwidth <= spec.link_bandwidth <= 1e12
    assert 50 < spec.power_watts <= 1500
    rates = spec.peak_flops
    assert all(1e12 < rate < 1e16 for rate in rates.values())
    assert rates.get(Precision.FP32, 0) < rates[Precision.FP16]
    # FP8 is twice 16 bit everywhere but on Gaudi 3, whose matrix engine is equally fast in both.
    if Precision.FP8 in rates and spec.name != "Gaudi3":
        assert rates[Precision.FP8] == pytest.approx(2 * rates[Precision.BF16], rel=0.02)


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("NVIDIA-H100-80GB-HBM3", "H100-SXM5-80GB"),
        ("NVIDIA-H100-PCIe", "H100-PCIE-80GB"),
        ("NVIDIA-A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("A100-SXM4-40GB", "A100-SXM4-40GB"),
        ("NVIDIA-A100-80GB-PCIe", "A100-PCIE-80GB"),
        ("Tesla-V100-SXM2-32GB", "V100-SXM2-32GB"),
        ("Tesla-T4", "T4"),
        ("Tesla-T4-SHARED", "T4"),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "A100-SXM4-40GB"),
        ("AMD_Instinct_MI300X_OAM", "MI300X"),
        ("AMD_Instinct_MI250X", "MI250X"),
        ("AMD_Radeon_VII", "Radeon-VII"),
        ("HL-225", "Gaudi2"),
    ],
)
def test_product_labels_map_to_their_entry(label: str, name: str) -> None:
    spec = catalog.by_product(label)
    assert spec is not None
    assert spec.name == name


def test_no_product_string_belongs_to_two_entries() -> None:
    strings = [catalog._normal(product) for entry in catalog._gpu_file().gpus for product in entry.products]
    assert len(strings) == len(set(strings))


def test_labels_are_taken_apart_into_product_mig_profile_and_sharing() -> None:
    parse = catalog.parse_product
    assert parse("Tesla-T4") == catalog.Product("Tesla-T4")
    assert parse("Tesla-T4-SHARED") == catalog.Product("Tesla-T4", shared=True)
    assert parse("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED") == catalog.Product(
        "NVIDIA-A100-SXM4-40GB", shared=True, mig_profile="1g.5gb"
    )
    assert parse("NVIDIA-A100-SXM4-40GB-MIG-INVALID").mig_profile == "INVALID"


def test_an_unknown_product_is_estimated_under_its_own_name_and_says_so() -> None:
    assert catalog.by_product("NVIDIA-H950-999GB") is None
    spec = catalog.estimate("NVIDIA-H950-999GB", 999 << 30, (9, 5))
    assert spec.name == "NVIDIA-H950-999GB"
    assert spec.memory_bytes == 999 << 30
    assert spec.source == catalog.ESTIMATED
    assert spec.architecture == "Hopper"


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("V100-PCIE-16GB", (7, 0)),
        ("T4", (7, 5)),
        ("RTX-2080-Ti", (7, 5)),
        ("A100-PCIE-40GB", (8, 0)),
        ("RTX-3090", (8, 6)),
        ("A10", (8, 6)),
        ("L4", (8, 9)),
        ("H100-PCIE-80GB", (9, 0)),
        ("B200-SXM-180GB", (10, 0)),
    ],
)
def test_an_estimate_promises_no_more_than_the_known_cards_of_its_class(name: str, capability: tuple[int, int]) -> None:
    known = catalog.gpu(name)
    guess = catalog.estimate("unlisted", known.memory_bytes, capability, known.vendor)
    assert set(guess.peak_flops) == set(known.peak_flops)
    assert all(guess.peak_flops[precision] <= rate for precision, rate in known.peak_flops.items())
    assert guess.memory_bandwidth <= known.memory_bandwidth
    assert guess.link_bandwidth <= known.link_bandwidth
    assert guess.network_bandwidth <= known.network_bandwidth


def test_without_a_compute_capability_the_estimate_is_the_most_cautious_of_the_vendor() -> None:
    assert catalog.estimate("old", 8 << 30).peak_flops == {Precision.FP32: 4e12}
    assert catalog.estimate("Radeon", 16 << 30, None, "amd").vendor == "AMD"


def test_bad_input_to_the_estimate_names_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="memory must be known"):
        catalog.estimate("x", 0)
    with pytest.raises(ValueError, match="unknown vendor 'Acme'"):
        catalog.estimate("x", 1 << 30, None, "Acme")


def test_unknown_names_are_errors_that_list_near_matches() -> None:
    with pytest.raises(catalog.UnknownGpu, match=r"did you mean .*H100-SXM5-80GB"):
        catalog.gpu("H100")
    with pytest.raises(catalog.UnknownModel, match=r"did you mean .*llama3-8b"):
        catalog.model("lama3-8b")
    with pytest.raises(KeyError, match="known are V100-SXM2-16GB"):
        catalog.gpu("")


def test_names_are_found_whatever_their_case() -> None:
    assert catalog.gpu("mi300x") is catalog.gpu("MI300X")
    assert catalog.model("GPT2") == catalog.model("gpt2")


def test_specs_are_hashable_although_their_peaks_are_a_dict() -> None:
    spec = catalog.gpu("T4")
    assert hash(spec) == hash(msgspec.structs.replace(spec))
    assert len({spec, msgspec.structs.replace(spec), msgspec.structs.replace(spec, power_watts=1.0)}) == 2
