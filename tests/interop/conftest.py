"""Golden files: what is said to Kueue, as JSON next to the tests. `pytest --snapshot-update` writes them anew."""

from __future__ import annotations

from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.json import JSONSnapshotExtension
from syrupy.location import PyTestLocation


class Golden(JSONSnapshotExtension):
    """One file per test, in `golden/` and the name of the module."""

    @classmethod
    def dirname(cls, *, test_location: PyTestLocation) -> str:
        return str(Path(test_location.filepath).parent / "golden" / test_location.basename)


@pytest.fixture
def golden(snapshot: SnapshotAssertion) -> SnapshotAssertion:
    return snapshot.use_extension(Golden)
