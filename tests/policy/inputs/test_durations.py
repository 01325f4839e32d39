"""Durations, and names that are nearly right."""

from __future__ import annotations

import pytest

from trimtab_policy.inputs import durations
from trimtab_policy.inputs.nearest import did_you_mean


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2", 2), ("2s", 2), ("5m", 300), ("1h30m", 5400), ("250ms", 0.25), ("7d", 604_800)],
)
def test_a_duration_is_seconds(text: str, seconds: float) -> None:
    assert durations.seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "5x", "5 m", "m", "1h30", "-5m", "٣m"])
def test_what_is_no_duration_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="is no duration: write seconds, or 2s, 5m, 1h30m"):
        durations.seconds(text)


def test_names_that_look_alike_are_offered() -> None:
    assert did_you_mean("llama3-8", ["llama3-8b", "gpt2"]) == "; did you mean llama3-8b?"
    assert did_you_mean("LLAMA", ["llama3-8b", "gpt2"]) == "; did you mean llama3-8b?"
    assert did_you_mean("xyz", ["llama3-8b", "gpt2"]) == did_you_mean("", ["a"]) == ""
