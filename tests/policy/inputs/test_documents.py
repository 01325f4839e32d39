"""YAML of strangers is read, or refused in one line, whatever it is."""

from __future__ import annotations

import pytest

from trimtab_policy.inputs import documents
from trimtab_policy.inputs.documents import NotYaml


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"\xff", "invalid start byte"),
        (b"x: 2001-99-99", "month must be in 1..12"),
        (b"!!timestamp x", "groupdict"),
        (b"!!bool x", "'x'"),
        (b"!!int x", "invalid literal"),
        (b"{" * 2000, "nested too deeply"),
        (b"[" * 100 + b"]" * 100, "nested too deeply, or holds itself"),
        (b"&a [*a]", "nested too deeply, or holds itself"),
        (b'"\\ud800"', "half of a surrogate pair"),
        (b'{"\\udfff": 1}', "half of a surrogate pair"),
        (b"a: [", "flow node"),
        (b"--- 1\n--- 2", "single document"),
        (
            "\n".join(["a0: &a0 x", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12))]),
            "aliases",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_line(text: bytes | str, says: str) -> None:
    with pytest.raises(NotYaml) as refusal:
        documents.parse(text)
    assert says in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_all_else_is_what_it_says() -> None:
    assert documents.parse("a: &x [1, 2.5, é]\nb: *x\nc: {d: null}") == {
        "a": [1, 2.5, "é"],
        "b": [1, 2.5, "é"],
        "c": {"d": None},
    }
    assert documents.parse(b"") is None
