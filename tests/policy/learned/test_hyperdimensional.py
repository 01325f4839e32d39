"""The algebra of hypervectors: what is alike, what is not, and by how much that may be off at a given dimension."""

from __future__ import annotations

from math import comb, log, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from numpy.typing import NDArray

from trimtab_policy import catalog
from trimtab_policy.learned import hyperdimensional as hd

DIMENSION = 4096
names = st.text(min_size=1, max_size=12)
parts = st.floats(0, 1)


def similarity(one: hd.Hypervectors, other: hd.Hypervectors) -> NDArray[np.float64]:
    """(...) cosine, in [-1, 1]: 0 for unrelated vectors, give or take 1 / sqrt(dimension)."""
    product: NDArray[np.float64] = np.mean(one * other, axis=-1, dtype=np.float64)
    return product


def chance_similarity(dimension: int, chance: float) -> float:
    """What the similarity of two random hypervectors exceeds with at most this chance (Hoeffding)."""
    return sqrt(2 * log(2 / chance) / dimension)


FAR = chance_similarity(DIMENSION, 1e-9)
"""0.10: nothing below is due to relation, and hypothesis will not find what goes above it by chance."""


@pytest.mark.parametrize("dimension", [64, 256, 1024, 4096])
def test_names_are_as_unlike_as_hoeffdings_inequality_says_at_every_dimension(dimension: int) -> None:
    symbols = np.stack([hd.symbol(f"name {number}", dimension) for number in range(200)])
    pairs = (symbols.astype(np.int64) @ symbols.T / dimension)[np.triu_indices(200, k=1)]
    for chance in (0.5, 0.1, 0.01, 0.001):
        assert (abs(pairs) > chance_similarity(dimension, chance)).mean() <= chance
    assert pairs.std() == pytest.approx(1 / sqrt(dimension), rel=0.1)
    assert abs(pairs.mean()) < 0.1 / sqrt(dimension)


def test_a_name_means_the_same_on_every_machine_and_for_ever() -> None:
    assert hd.symbol("GPU", 16).tolist() == [1, -1, 1, -1, -1, -1, 1, -1, 1, 1, -1, 1, -1, -1, -1, -1]
    assert hd.level("utilisation", 0.5, 8).tolist() == [-1, -1, 1, -1, -1, -1, -1, -1]


@given(names, names)
def test_what_is_bound_is_unlike_its_parts_and_comes_back_when_bound_again(one: str, other: str) -> None:
    if one == other:
        return
    a, b = hd.symbol(one, DIMENSION), hd.symbol(other, DIMENSION)
    bound = hd.bind(a, b)
    assert abs(similarity(bound, a)) < FAR
    assert abs(similarity(bound, b)) < FAR
    np.testing.assert_array_equal(hd.bind(bound, a), b)
    np.testing.assert_array_equal(bound, hd.bind(b, a))


@given(names, names, names)
def test_binding_keeps_similarity_and_goes_through_bundles(one: str, other: str, role: str) -> None:
    a, b, c, by = (hd.symbol(name, DIMENSION) for name in (one, other, "third", role))
    assert similarity(hd.bind(a, by), hd.bind(b, by)) == similarity(a, b)
    each = [hd.bind(vector, by) for vector in (a, b, c)]
    np.testing.assert_array_equal(hd.bundle(each), hd.bind(hd.bundle([a, b, c]), by))


@pytest.mark.parametrize("members", [3, 5, 7, 9])
def test_a_bundle_is_as_similar_to_each_member_as_the_binomial_says_and_to_nothing_else(members: int) -> None:
    vectors = [hd.symbol(f"member {number}", DIMENSION) for number in range(members)]
    together = hd.bundle(vectors)
    expected = comb(members - 1, (members - 1) // 2) / 2 ** (members - 1)
    for vector in vectors:
        assert similarity(together, vector) == pytest.approx(expected, abs=FAR)
    assert abs(similarity(together, hd.symbol("stranger", DIMENSION))) < FAR


@given(st.lists(names, min_size=1, max_size=6))
def test_a_bundle_has_signs_only_and_does_not_depend_on_the_order(members: list[str]) -> None:
    vectors = [hd.symbol(name, 256) for name in members]
    together = hd.bundle(vectors)
    assert set(np.unique(together)) <= {-1, 1}
    np.testing.assert_array_equal(together, hd.bundle(vectors[::-1]))


@given(names, st.integers(1, DIMENSION - 1))
def test_what_is_rotated_is_unlike_itself_and_comes_back(name: str, places: int) -> None:
    vector = hd.symbol(name, DIMENSION)
    assert abs(similarity(hd.permute(vector, places), vector)) < FAR
    np.testing.assert_array_equal(hd.permute(hd.permute(vector, places), -places), vector)


@given(names, parts, parts)
def test_levels_are_as_similar_as_they_are_near(scale: str, one: float, other: float) -> None:
    found = similarity(*hd.level(scale, [one, other], DIMENSION))
    assert found == pytest.approx(1 - abs(one - other), abs=2 / DIMENSION)


@pytest.mark.parametrize("dimension", [32, 64, DIMENSION])
@pytest.mark.parametrize("bands", [4, 8])
def test_similarity_falls_with_every_band_until_the_far_end_is_orthogonal(dimension: int, bands: int) -> None:
    vectors = hd.level("utilisation", np.linspace(0, 1, bands), dimension)
    found = similarity(vectors[0], vectors)
    assert (np.diff(found) < 0).all()
    assert found[0] == 1
    assert found[-1] == 0
    assert found[1] == pytest.approx(1 - 1 / (bands - 1), abs=2 / dimension)


@given(parts, parts)
def test_levels_of_different_scales_have_nothing_in_common(one: float, other: float) -> None:
    assert abs(similarity(hd.level("a", one, DIMENSION), hd.level("b", other, DIMENSION))) < FAR


def test_quantities_out_of_range_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"utilisation: .* got 0.5 to 1.5"):
        hd.level("utilisation", [0.5, 1.5], 64)
    with pytest.raises(ValueError, match="priority"):
        hd.level("priority", float("nan"), 64)


def test_a_situation_tells_each_of_its_three_variables_when_its_role_is_undone() -> None:
    gpus = {spec.name: hd.gpu_model(spec, DIMENSION) for spec in catalog.all_gpus()}
    bands = np.linspace(0, 1, 8)
    for gpu, use, priority in [("H100-SXM5-80GB", 2, 7), ("T4", 7, 0), ("MI300X", 0, 3)]:
        record = hd.situation(gpus[gpu], bands[use], bands[priority])
        utilisation = similarity(hd.permute(record, -1), hd.level("utilisation", bands, DIMENSION))
        rank = similarity(hd.permute(record, -2), hd.level("priority", bands, DIMENSION))
        model = max(gpus, key=lambda name: float(similarity(record, gpus[name])))
        assert (utilisation.argmax(), rank.argmax()) == (use, priority)
        np.testing.assert_array_equal(gpus[model], gpus[gpu])


def test_a_situation_is_similar_to_those_that_differ_in_one_variable_and_less_to_those_that_differ_in_more() -> None:
    gpu, other = hd.gpu_model(catalog.gpu("T4"), DIMENSION), hd.symbol("another", DIMENSION)
    same = hd.situation(gpu, 0.0, 0.0)
    one, two, all_three = (
        similarity(same, hd.situation(model, use, priority))
        for model, use, priority in [(gpu, 0.0, 1.0), (gpu, 1.0, 1.0), (other, 1.0, 1.0)]
    )
    assert one == pytest.approx(1 / 2, abs=FAR)
    assert two == pytest.approx(1 / 4, abs=FAR)
    assert all_three == pytest.approx(0, abs=FAR)


def test_relatives_are_nearer_than_other_generations() -> None:
    def alike(one: str, other: str) -> float:
        return float(similarity(*(hd.gpu_model(catalog.gpu(name), DIMENSION) for name in (one, other))))

    assert alike("A100-SXM4-80GB", "A800-SXM4-80GB") > 0.99
    assert alike("A100-SXM4-80GB", "A100-SXM4-40GB") > alike("A100-SXM4-80GB", "T4")
    assert alike("H100-SXM5-80GB", "H200-SXM5-141GB") > alike("H100-SXM5-80GB", "A100-SXM4-40GB")
    assert alike("H100-SXM5-80GB", "A100-SXM4-40GB") > alike("B200-SXM-180GB", "T4")


def test_a_gpu_that_was_never_seen_lands_near_those_with_like_figures() -> None:
    known = {spec.name: hd.gpu_model(spec, DIMENSION) for spec in catalog.all_gpus()}
    unseen = hd.gpu_model(catalog.estimate("H100-NEXT", 80 << 30, (9, 0)), DIMENSION)
    nearest = max(known, key=lambda name: float(similarity(known[name], unseen)))
    assert catalog.gpu(nearest).architecture == "Hopper"
    assert similarity(known[nearest], unseen) > 0.9 > similarity(known["T4"], unseen) + 0.3


def test_figures_beyond_the_catalogue_count_as_its_ends() -> None:
    largest = structs.replace(catalog.gpu("GB300-288GB"), memory_bytes=288 << 30)
    beyond = structs.replace(largest, memory_bytes=10 << 40)
    np.testing.assert_array_equal(hd.gpu_model(beyond, DIMENSION), hd.gpu_model(largest, DIMENSION))


def test_bands_cut_the_range_into_equal_parts() -> None:
    assert hd.band([-0.1, 0.0, 0.24, 0.25, 0.99, 1.0, 2.0], 4).tolist() == [0, 0, 0, 1, 3, 3, 3]
