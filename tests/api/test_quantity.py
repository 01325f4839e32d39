"""Quantities against the grammar of k8s.io/apimachinery/pkg/api/resource."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.errors import QuantityError
from trimtab.kube.quantity import MOST, parse, to_int, to_milli


@pytest.mark.parametrize(
    ("suffix", "factor"),
    [
        *[("n", Fraction(1, 10**9)), ("u", Fraction(1, 10**6)), ("m", Fraction(1, 1000)), ("", 1)],
        *[("k", 10**3), ("M", 10**6), ("G", 10**9), ("T", 10**12), ("P", 10**15), ("E", 10**18)],
        *[("Ki", 2**10), ("Mi", 2**20), ("Gi", 2**30), ("Ti", 2**40), ("Pi", 2**50), ("Ei", 2**60)],
        *[("e3", 1000), ("E3", 1000), ("e+3", 1000), ("e-3", Fraction(1, 1000))],
    ],
)
def test_every_suffix(suffix: str, factor: Fraction) -> None:
    assert parse(f"3{suffix}") == 3 * factor


@pytest.mark.parametrize(("text", "value"), [("0.5Gi", 2**29), (".5", Fraction(1, 2)), ("5.", 5), (16, 16), ("007", 7)])
def test_numbers_are_read_exactly(text: int | str, value: Fraction) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    "text", ["", ".", "Gi", "1gi", "1K", "1 Gi", "64GB", "-1", "+1", "1e", "0x10", "1_000", "٣", "1\n", "nan"]
)
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(QuantityError, match="no quantity"):
        parse(text)


def test_whole_numbers_are_rounded_up_like_the_kubernetes_library() -> None:
    assert to_int("1500m") == 2
    assert to_int("0.1Ki") == 103
    assert to_milli("1.5") == 1500
    assert to_milli("1u") == 1


@given(st.integers(0, 2**63))
def test_integers_mean_themselves(number: int) -> None:
    assert to_int(number) == to_int(str(number)) == min(number, MOST)
    assert to_milli(number) == min(number * 1000, MOST)


def test_no_sum_of_amounts_leaves_64_bits() -> None:
    assert 4096 * to_milli("9" * 32) == 4096 * to_int("1e99") == 4096 * MOST < 1 << 63
