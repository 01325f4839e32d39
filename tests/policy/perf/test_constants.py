"""Fitted constants: a file that says what each one means, and a rule for GPUs and software without data."""

from __future__ import annotations

from pathlib import Path

import pytest

from trimtab_policy import catalog
from trimtab_policy.perf import constants, hardware
from trimtab_policy.perf.constants import KINDS, ConstantsError, generation
from trimtab_policy.specs import Precision


@pytest.fixture
def packaged() -> constants.Constants:
    return constants.load()


def test_every_constant_lies_inside_its_interval(packaged: constants.Constants) -> None:
    assert set(packaged.families) == set(KINDS)
    for family in packaged.families.values():
        for one in (family, *family.each.values()):
            assert 0 < one.low < one.value < one.high


def test_shares_are_shares(packaged: constants.Constants) -> None:
    for name, kind in KINDS.items():
        if kind.share:
            family = packaged.families[name]
            assert all(one.high < 1 for one in (family, *family.each.values()))


def test_a_member_that_never_was_measured_is_the_middle_moved_by_what_is_known(packaged: constants.Constants) -> None:
    middle = packaged.families["gemm"].value
    assert packaged.lookup("Rubin", "other", "")("gemm") == middle
    assert packaged.lookup("Ada", "other", "")("gemm") == pytest.approx(0.86 * middle)
    assert not packaged.measured("Ada")
    assert packaged.measured("Ampere")


def test_a_column_is_the_look_ups_one_below_the_other(packaged: constants.Constants) -> None:
    generations, software = ["Ampere", "Hopper", "Rubin"], ["composer", "megatron-core", "other"]
    for name in KINDS:
        one_by_one = [packaged.lookup(g, s, "fp8")(name) for g, s in zip(generations, software, strict=True)]
        assert list(packaged.columns(generations, software, ["fp8"] * 3)(name)) == one_by_one


def test_cards_with_graphics_memory_count_as_a_generation_of_their_own() -> None:
    names = ("A100-SXM4-80GB", "A10", "RTX-3090", "L40S", "B200-SXM-180GB")
    assert [generation(catalog.gpu(name)) for name in names] == [
        "Ampere",
        "Ampere card",
        "Ampere card",
        "Ada",
        "Blackwell",
    ]


def test_less_power_means_less_speed_of_products_but_not_of_memory(packaged: constants.Constants) -> None:
    full, held_back = (
        hardware.machine(catalog.gpu(name), Precision.BF16) for name in ("H100-SXM5-80GB", "H100-SXM5-96GB-500W")
    )
    exponent = packaged.families["power"].value
    assert held_back.product / full.product == pytest.approx((500 / 700) ** exponent)
    assert held_back.link == full.link


def test_what_was_saved_is_loaded_again(packaged: constants.Constants, tmp_path: Path) -> None:
    file = tmp_path / "constants.yaml"
    packaged.save(file)
    again = constants.load(file)
    assert again.families == packaged.families
    assert again.interval == packaged.interval
    assert again.seen == packaged.seen
    assert again.source == packaged.source
    assert "# share of the matrix peak that large products reach over a step" in file.read_text()


def test_the_process_predicts_with_the_constants_in_use(packaged: constants.Constants) -> None:
    a100 = catalog.gpu("A100-SXM4-80GB")
    before = hardware.machine(a100, Precision.BF16)
    constants.use(constants.beliefs())
    try:
        assert hardware.machine(a100, Precision.BF16) != before
    finally:
        constants.use(packaged)
    assert hardware.machine(a100, Precision.BF16) == before


@pytest.mark.parametrize("value", [2e-06, 1e-3, 0.1234567, 12345.6, 1.0])
def test_any_number_is_saved_so_that_it_can_be_loaded(
    packaged: constants.Constants, tmp_path: Path, value: float
) -> None:
    odd = constants.Family(value, value / 2, value * 2)
    file = tmp_path / "odd.yaml"
    constants.Constants({**packaged.families, "hop": odd}).save(file)
    assert constants.load(file).families["hop"].value == pytest.approx(value, rel=1e-3)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("  gemm:", "  gem:", "no constant gemm"),
        ("families:", "family:", "unknown field `family`"),
        ("    middle: [", "    centre: [", "has no middle"),
        ("base: ", "base: x", "interval.base"),
    ],
)
def test_a_file_in_disorder_is_an_error_that_names_it_and_the_field(
    packaged: constants.Constants, tmp_path: Path, old: str, new: str, said: str
) -> None:
    file = tmp_path / "mine.yaml"
    packaged.save(file)
    file.write_text(file.read_text().replace(old, new, 1))
    with pytest.raises(ConstantsError, match=r"mine\.yaml: ") as error:
        constants.load(file)
    assert said in str(error.value)


def test_impossible_values_are_refused(packaged: constants.Constants, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    text = constants.render(packaged)
    share = packaged.families["tensor_overlap"]
    for value in ("0", "-1", "1.5", ".nan"):
        file.write_text(text.replace(f"middle: [{share.value:.4g},", f"middle: [{value},", 1))
        with pytest.raises(ConstantsError, match=r"families\.tensor_overlap\.middle must be above 0 and at most 1"):
            constants.load(file)


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConstantsError, match=r"none\.yaml"):
        constants.load(tmp_path / "none.yaml")


def test_youth_fades() -> None:
    assert constants.fading(0.0) == 1
    assert constants.fading(1.0) == pytest.approx(0.368, abs=1e-3)
    assert constants.fading(float("nan")) == 0
