"""Every target holds on what is kept (crashes of the past among it), and on a few inputs that are always the same.

`hack/fuzz` is where millions are run; here it is seconds.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fuzz import target
from tests.fuzz.draw import Draw

ROOT = Path(__file__).resolve().parents[2]
FEW = 60

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.parametrize("name", target.NAMES)
def test_a_target_holds_on_what_is_kept(name: str) -> None:
    inputs = list(target.kept(name))
    assert len(inputs) > 10
    found = target.load(name)
    for data in inputs:
        target.execute(found, data)


@pytest.mark.parametrize("name", target.NAMES)
def test_a_target_holds_on_a_few_others(name: str) -> None:
    found = target.load(name)

    @settings(max_examples=FEW, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.binary(max_size=500))
    def holds(data: bytes) -> None:
        target.execute(found, data)

    holds()


def test_every_target_is_one_of_the_list() -> None:
    modules = {path.stem for path in (ROOT / "tests/fuzz/targets").glob("*.py") if "\nTARGET = " in path.read_text()}
    assert modules == {*target.NAMES}
    assert {path.stem for path in target.CORPUS.glob("*.txt")} == {*target.NAMES}


def test_what_is_kept_is_small() -> None:
    assert sum(path.stat().st_size for path in target.CORPUS.iterdir()) < 700_000


def test_the_same_bytes_make_the_same_value_and_none_make_the_usual() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0}, "b": {"type": "string"}}}
    data = bytes(range(0, 250, 7))
    assert Draw(data).json() == Draw(data).json()
    assert Draw(data).of(schema) == Draw(data).of(schema)
    assert Draw(b"").of(schema) == {}
    assert Draw(b"").tweaked({"a": [1]}) == {"a": [1]}


def test_a_late_input_is_a_finding() -> None:
    def busy(data: bytes) -> None:
        sum(range(100_000))

    with pytest.raises(target.Late):
        target.execute(target.Target("", busy, deadline=0.0), b"")


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(target, "CORPUS", tmp_path)
    return tmp_path


def test_crashes_outlive_the_corpus_that_they_were_found_in(corpus: Path) -> None:
    target.keep("queues", [b"long", b"b"])
    target.keep("queues", [b"boom"], remark="it went wrong")
    target.keep("queues", [b"c", b"boom"])
    assert list(target.kept("queues")) == [b"c", b"boom"]
    assert "# crash: it went wrong" in (corpus / "queues.txt").read_text()


def test_one_command_runs_a_target_and_says_how_far_it_came() -> None:
    """Without atheris, as on a machine that cannot have it."""
    told = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "tokens", "--runs", "1000", "--unguided"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    assert "1,000 executions" in told.stdout
    assert "no crash" in told.stdout
