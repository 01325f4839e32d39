"""Public job definitions are read as a reader found them: `python -m tests.foreign.score` prints the table."""

from __future__ import annotations

import pytest
from tests.foreign.score import SAMPLES, score

LEAST_RIGHT, MOST_WRONG = 0.93, 0.01
"""Of what is stated, and of what is read. What is missed stands in comments, or in the names of variables."""


def test_public_samples_are_read_right_or_not_at_all() -> None:
    if not SAMPLES.is_dir():
        pytest.skip(f"there is no {SAMPLES}")
    found = score(SAMPLES)
    print("\n".join([*found.lines(), *found.remarks]))
    assert found.stated_right() >= LEAST_RIGHT
    assert found.wrong() <= MOST_WRONG
    assert [file for file, why in found.negatives if not why] == []
    assert all("template" in why for why in found.positives_refused), found.positives_refused
