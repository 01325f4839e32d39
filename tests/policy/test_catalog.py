"""The catalogue: facts that must be right, labels that must be recognised, guesses that must not promise too much."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab_policy import catalog
from trimtab_policy.specs import GpuSpec, ModelSpec, Precision

MIB = 1 << 20


@pytest.mark.parametrize("name", catalog.model_names())
def test_parameter_counts_agree_with_the_published_ones_to_half_a_percent(name: str) -> None:
    published = catalog.published_parameters()[name]
    assert catalog.parameters(catalog.model(name)) == pytest.approx(published, rel=0.005)


@pytest.mark.parametrize(
    ("name", "released"),
    [
        ("gpt2", 124_439_808),
        ("gpt-neox-20b", 20_554_567_680),
        ("opt-30b", 29_974_540_288),
        ("llama3-8b", 8_030_261_248),
        ("llama3.1-405b", 405_853_388_800),
        ("mixtral-8x7b", 46_702_792_704),
        ("qwen2.5-7b", 7_615_616_512),  # biases of q, k and v
        ("gemma-2b", 2_506_172_416),
        ("deepseek-v2-lite", 15_706_484_224),  # keys and values from a latent vector, queries not
        ("deepseek-v2", 235_741_434_880),
    ],
)
def test_parameter_counts_of_released_weights_are_exact(name: str, released: int) -> None:
    assert catalog.parameters(catalog.model(name)) == released


@pytest.mark.parametrize(
    ("name", "released", "left_out"),
    [
        ("t5-11b", 11_307_321_344, 2 * 32 * 128),  # relative position biases: 32 per head in encoder and decoder
        ("t5-v1.1-xxl", 11_135_332_352, 2 * 32 * 64),
        ("qwen3-8b", 8_190_735_360, 36 * 2 * 128),  # norms of queries and keys
        ("deepseek-v3", 671_026_419_200, 58 * 256),  # biases of the routing
        ("bloom-176b", 176_247_271_424, 2 * 14336),  # norm behind the embedding
    ],
)
def test_what_is_left_out_of_a_count_is_what_the_file_says(name: str, released: int, left_out: int) -> None:
    assert catalog.parameters(catalog.model(name)) + left_out == released


@pytest.mark.parametrize("name", catalog.published_active_parameters())
def test_active_parameters_agree_with_the_published_ones_to_two_percent(name: str) -> None:
    model = catalog.model(name)
    assert model.experts
    assert catalog.active_parameters(model) == pytest.approx(catalog.published_active_parameters()[name], rel=0.02)


def test_every_parameter_of_a_dense_model_is_active() -> None:
    dense = catalog.model("llama3-8b")
    assert catalog.active_parameters(dense) == catalog.parameters(dense)


def test_presets_have_no_misspelt_fields() -> None:
    known = {*ModelSpec.__struct_fields__, "published", "published_active"}
    assert all(known.issuperset(row) for row in catalog._load("models.yaml").values())


def test_counts_are_whole_numbers() -> None:
    model = catalog.model("deepseek-v3")
    assert isinstance(catalog.parameters(model), int)
    assert isinstance(catalog.active_parameters(model), int)


@pytest.mark.parametrize(
    ("name", "precision", "dense_tflops"),
    [
        ("V100-SXM2-32GB", Precision.FP16, 125),
        ("T4", Precision.FP16, 65),
        ("A100-SXM4-80GB", Precision.BF16, 312),
        ("A40", Precision.BF16, 149.7),
        ("RTX-3090", Precision.BF16, 71),
        ("L40", Precision.BF16, 181.05),
        ("L40S", Precision.FP8, 733),
        ("RTX-4090", Precision.BF16, 165.2),
        ("H100-SXM5-80GB", Precision.BF16, 989.4),
        ("H100-PCIE-80GB", Precision.BF16, 756),
        ("H20-96GB", Precision.BF16, 148),
        ("B200-SXM-180GB", Precision.BF16, 2250),
        ("B300-SXM-288GB", Precision.FP8, 4500),
        ("GB200-186GB", Precision.BF16, 2500),
        ("GB300-288GB", Precision.FP8, 5000),
        ("MI250X", Precision.BF16, 191.5),
        ("MI300X", Precision.BF16, 1307.4),
        ("MI355X", Precision.FP8, 5033.2),
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
    assert "://" not in spec.source
    assert 7 << 30 < spec.memory_bytes < 400 << 30
    assert 2e11 < spec.memory_bandwidth < 1e13
    assert spec.network_bandwidth <= spec.link_bandwidth <= 1e12
    assert 50 < spec.power_watts <= 1500
    rates = spec.peak_flops
    assert all(1e12 < rate < 1e16 for rate in rates.values())
    assert rates.get(Precision.FP32, 0) < rates[Precision.FP16]
    # FP8 is twice 16 bit everywhere but on Gaudi 3, whose matrix engine is equally fast in both.
    if Precision.FP8 in rates and spec.name != "Gaudi3":
        assert rates[Precision.FP8] == pytest.approx(2 * rates[Precision.BF16], rel=0.02)


def test_generations_appear_in_order() -> None:
    released = {entry.name: entry.released for entry in catalog._gpu_file().gpus}
    assert all(re.fullmatch(r"20[12]\d-(0[1-9]|1[0-2])", month) for month in released.values())
    generations = ["V100-SXM2-16GB", "T4", "A100-SXM4-40GB", "H100-SXM5-80GB", "B200-SXM-180GB", "B300-SXM-288GB"]
    assert sorted(generations, key=released.__getitem__) == generations


def test_a_card_in_a_slot_has_the_slower_link_of_the_same_chip() -> None:
    for module, card in (
        ("V100-SXM2-32GB", "V100-PCIE-32GB"),
        ("A100-SXM4-80GB", "A100-PCIE-80GB"),
        ("H100-SXM5-80GB", "H100-PCIE-80GB"),
        ("H200-SXM5-141GB", "H200-NVL-141GB"),
    ):
        assert catalog.gpu(module).link_bandwidth > 5 * catalog.gpu(card).link_bandwidth


@pytest.mark.parametrize(
    ("one", "other", "differs"),
    [
        ("A800-SXM4-80GB", "A100-SXM4-80GB", "link_bandwidth"),
        ("A800-PCIE-80GB", "A100-PCIE-80GB", ""),
        ("H800-SXM5-80GB", "H100-SXM5-80GB", "link_bandwidth"),
        ("Quadro-RTX-6000", "Quadro-RTX-8000", "memory_bytes"),
        ("V100-SXM2-16GB", "V100-SXM2-32GB", "memory_bytes"),
    ],
)
def test_variants_of_one_product_differ_in_nothing_but_what_sets_them_apart(one: str, other: str, differs: str) -> None:
    apart = {"name", "released", "source", differs}
    left, right = (msgspec.structs.asdict(catalog.gpu(name)) for name in (one, other))
    assert {key: left[key] for key in left.keys() - apart} == {key: right[key] for key in right.keys() - apart}


def test_racks_of_72_share_one_link_and_all_others_end_at_the_node() -> None:
    domains = {spec.name: spec.link_domain for spec in catalog.all_gpus() if spec.link_domain}
    assert domains == {"GB200-186GB": 72, "GB300-288GB": 72}


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
        ("NVIDIA-H100-NVL", "H100-NVL-94GB"),
        ("NVIDIA-H20-3e", "H20-141GB"),
        ("NVIDIA-GH200-480GB", "GH200-96GB"),
        ("NVIDIA-B300-SXM6-AC", "B300-SXM-288GB"),
        ("NVIDIA GB300", "GB300-288GB"),
        ("NVIDIA-RTX-6000-Ada-Generation", "RTX-6000-Ada"),
        ("NVIDIA-GeForce-RTX-2080-Ti", "RTX-2080-Ti"),
        ("NVIDIA-TITAN-RTX", "TITAN-RTX"),
        ("nvidia-h100-mega-80gb", "H100-SXM5-80GB"),
        ("nvidia-tesla-v100", "V100-SXM2-16GB"),
        ("a10g", "A10G"),
        ("rtx-pro-server-6000", "RTX-PRO-6000-Blackwell"),
        ("A100_NVLINK_80GB", "A100-SXM4-80GB"),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "A100-SXM4-40GB"),
        ("AMD_Instinct_MI300X_OAM", "MI300X"),
        ("AMD_Instinct_MI250X", "MI250X"),
        ("AMD INSTINCT MI250 (MCM) OAM AC MBA", "MI250"),
        ("AMD_Instinct_MI355_OAM", "MI355X"),
        ("74a1", "MI300X"),
        ("7408", "MI250X"),
        ("AMD_Radeon_VII", "Radeon-VII"),
        ("HL-225", "Gaudi2"),
    ],
)
def test_product_labels_map_to_their_entry(label: str, name: str) -> None:
    spec = catalog.by_product(label)
    assert spec is not None
    assert spec.name == name


def test_no_product_string_belongs_to_two_entries() -> None:
    entries = catalog._gpu_file().gpus
    strings = [catalog._normal(product) for entry in entries for product in entry.products]
    assert len(strings) == len(set(strings))
    assert not {catalog._normal(name) for entry in entries for name in entry.ambiguous} & set(strings)


@pytest.mark.parametrize(
    ("label", "gibibytes", "name"),
    [
        ("a100", 40, "A100-SXM4-40GB"),
        ("a100", 80, "A100-SXM4-80GB"),
        ("v100", 32, "V100-SXM2-32GB"),
        ("NVIDIA-H100", 80, "H100-SXM5-80GB"),
        ("NVIDIA-H100", 95.6, "H100-SXM5-96GB-500W"),
        ("66a1", 16, "Radeon-Pro-VII"),
    ],
)
def test_memory_decides_whose_name_an_ambiguous_one_is(label: str, gibibytes: float, name: str) -> None:
    spec = catalog.by_product(label, int(gibibytes * (1 << 30)))
    assert spec is not None
    assert spec.name == name


def test_a_name_that_memory_does_not_decide_belongs_to_no_entry() -> None:
    assert catalog.by_product("a100") is None
    assert catalog.by_product("a100", 64 << 30) is None
    assert catalog.by_product("v100", 16 << 30) is None  # SXM2 or PCIe
    assert catalog.by_product("66a1", 32 << 30) is None  # an MI50


def test_memory_does_not_change_what_an_unambiguous_name_means() -> None:
    assert catalog.by_product("Tesla-T4", 1 << 30) == catalog.gpu("T4")


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


def capability(gpu: GpuSpec) -> tuple[int, int]:
    if gpu.name.startswith(("A100", "A800", "A30")):
        return 8, 0
    if gpu.architecture == "Blackwell" and gpu.name.startswith("RTX"):
        return 12, 0
    known = {"Volta": (7, 0), "Turing": (7, 5), "Ampere": (8, 6), "Ada": (8, 9), "Hopper": (9, 0), "Blackwell": (10, 0)}
    return known.get(gpu.architecture, (0, 0))


NVIDIA = [gpu for gpu in catalog.all_gpus() if gpu.vendor == "NVIDIA"]
NOT_CUT_FOR_EXPORT = [gpu for gpu in NVIDIA if not gpu.name.startswith("H20-")]


@pytest.mark.parametrize("known", NOT_CUT_FOR_EXPORT, ids=lambda spec: spec.name)
def test_an_estimate_promises_no_more_than_the_known_cards_of_its_class(known: GpuSpec) -> None:
    guess = catalog.estimate("unlisted", known.memory_bytes, capability(known), known.vendor)
    assert guess.architecture == known.architecture
    assert set(guess.peak_flops) == set(known.peak_flops)
    assert all(guess.peak_flops[precision] <= rate for precision, rate in known.peak_flops.items())
    assert guess.memory_bandwidth <= known.memory_bandwidth
    assert guess.link_bandwidth <= known.link_bandwidth
    assert guess.network_bandwidth <= known.network_bandwidth


@pytest.mark.parametrize(
    ("name", "units", "core_mhz", "memory_mhz", "bus_bits"),
    [
        ("V100-SXM2-32GB", 80, 1530, 877, 4096),
        ("T4", 40, 1590, 5001, 256),
        ("TITAN-RTX", 72, 1770, 7001, 384),
        ("A100-SXM4-40GB", 108, 1410, 1215, 5120),
        ("A30", 56, 1440, 1215, 3072),
        ("A40", 84, 1740, 7251, 384),
        ("L4", 58, 2040, 6251, 192),
        ("H100-SXM5-80GB", 132, 1830, 2619, 5120),
        ("B200-SXM-180GB", 148, 1850, 3800, 8192),
        ("RTX-PRO-6000-Blackwell", 188, 2430, 14001, 512),
    ],
)
def test_clocks_give_the_figures_of_the_datasheet(
    name: str, units: int, core_mhz: float, memory_mhz: float, bus_bits: int
) -> None:
    known = catalog.gpu(name)
    clocks = catalog.Clocks(units, core_mhz * 1e6, memory_mhz * 1e6, bus_bits)
    guess = catalog.estimate("unlisted", known.memory_bytes, capability(known), known.vendor, clocks)
    # Datasheets quote FP32 at a higher clock than the tensor cores keep.
    assert guess.peak_flops == pytest.approx(known.peak_flops, rel=0.08)
    assert guess.peak_flops[Precision.FP16] == pytest.approx(known.peak_flops[Precision.FP16], rel=0.02)
    assert guess.memory_bandwidth == pytest.approx(known.memory_bandwidth, rel=0.02)


@pytest.mark.parametrize(
    ("name", "units", "core_mhz"),
    [
        ("RTX-2080-Ti", 68, 1545),
        ("RTX-3060", 28, 1777),
        ("RTX-3090", 82, 1695),
        ("RTX-4090", 128, 2520),
        ("RTX-5090", 170, 2407),
    ],
)
def test_a_geforce_card_accumulates_in_single_precision_at_half_rate(name: str, units: int, core_mhz: float) -> None:
    known = catalog.gpu(name)
    clocks = catalog.Clocks(units, core_mhz * 1e6)
    guess = catalog.estimate(f"NVIDIA-GeForce-{name}", known.memory_bytes, capability(known), clocks=clocks)
    assert guess.peak_flops == pytest.approx(known.peak_flops, rel=0.02)


def test_an_estimate_says_what_it_was_made_from() -> None:
    core, memory = catalog.Clocks(units=60, core_hz=1.5e9), catalog.Clocks(memory_hz=5e9, bus_bits=256)
    both = catalog.Clocks(60, 1.5e9, 5e9, 256)
    said = [catalog.estimate("x", 1 << 34, (8, 6), clocks=clocks) for clocks in (catalog.Clocks(), core, memory, both)]
    assert [spec.source for spec in said] == [
        "estimated from node labels",
        "estimated from node labels, number and clock of its units",
        "estimated from node labels, memory clock and bus width",
        "estimated from node labels, number and clock of its units, memory clock and bus width",
    ]
    assert said[1].memory_bandwidth == said[0].memory_bandwidth
    assert said[2].peak_flops == said[0].peak_flops
    assert said[2].memory_bandwidth == 320e9


@given(
    major=st.integers(0, 15),
    minor=st.integers(0, 9),
    vendor=st.sampled_from(["NVIDIA", "AMD", "Intel"]),
    clocks=st.builds(
        catalog.Clocks, st.integers(0, 300), st.floats(0, 4e9), st.floats(0, 2e10), st.integers(0, 10_000)
    ),
)
def test_any_product_can_be_estimated(major: int, minor: int, vendor: str, clocks: catalog.Clocks) -> None:
    spec = catalog.estimate("x", 1 << 34, (major, minor), vendor, clocks)
    assert spec.memory_bandwidth > 0
    assert all(rate > 0 for rate in spec.peak_flops.values())
    assert Precision.FP32 in spec.peak_flops


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


def test_a_short_name_is_what_a_cluster_has_of_it_and_else_must_mean_one() -> None:
    nvl, own = catalog.gpu("H100-NVL-94GB"), catalog.estimate("T4-own", 1 << 34)
    assert catalog.one_of("h100", {nvl.name: nvl}) == nvl
    assert catalog.one_of("H100-80GB-PCIe", {nvl.name: nvl}) == catalog.gpu("H100-PCIE-80GB")
    assert catalog.one_of("T4", {own.name: own}) == catalog.gpu("T4")
    assert catalog.one_of("t4-OWN", {own.name: own}) == own
    with pytest.raises(catalog.UnknownGpu, match="'H200' may be H200-SXM5-141GB or H200-NVL-141GB: name one"):
        catalog.one_of("H200", {nvl.name: nvl})
    with pytest.raises(catalog.UnknownGpu, match=r"did you mean .*H100-SXM5-80GB"):
        catalog.one_of("H10", {})


def test_specs_are_hashable_although_their_peaks_are_a_dict() -> None:
    spec = catalog.gpu("T4")
    assert hash(spec) == hash(msgspec.structs.replace(spec))
    assert len({spec, msgspec.structs.replace(spec), msgspec.structs.replace(spec, power_watts=1.0)}) == 2
