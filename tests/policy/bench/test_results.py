"""Results are kept for as long as nothing that they follow from changes, and the page is made of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from trimtab_lab import bench
from trimtab_lab.bench import BenchEntry, page, results
from trimtab_lab.bench.report import BenchReport
from trimtab_lab.bench.results import Result
from trimtab_lab.evaluation import sources

ENTRY = BenchEntry("How long things take.", "cluster", (0, 1, 2, 7), {}, ("trimtab train sarsa --config offers",))
REPORT = BenchReport("Times", ("policy", "hours"), (("fcfs", 1.5), ("sjf", float("nan"))), ("A note.",))


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> list[BenchEntry]:
    """Entries that were carried out."""
    seen: list[BenchEntry] = []

    def run(entry: BenchEntry, progress: bench.Progress, folder: Path) -> BenchReport:
        seen.append(entry)
        return REPORT

    monkeypatch.setattr(bench, "make_entry", run)
    return seen


def make(folder: Path, name: str = "times", entry: BenchEntry = ENTRY) -> Result:
    return results.make_result(folder, name, entry, lambda text: None)


def test_a_result_is_kept_with_what_it_was_made_of(tmp_path: Path) -> None:
    result = make(tmp_path)
    kept = results.known(tmp_path, "times", ENTRY)
    assert kept is not None
    assert (kept.entry, kept.commit, kept.digest) == (ENTRY, result.commit, result.digest)
    assert kept.report.rows == (("fcfs", 1.5), ("sjf", None))


def test_another_entry_or_other_code_makes_it_count_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path)
    assert results.known(tmp_path, "times", replace(ENTRY, seeds=(0,))) is None
    assert results.known(tmp_path, "other", ENTRY) is None
    monkeypatch.setattr(sources, "of_package", lambda: b"newer")
    assert results.known(tmp_path, "times", ENTRY) is None


def test_a_file_that_was_cut_short_counts_as_none(tmp_path: Path) -> None:
    make(tmp_path)
    path = tmp_path / "times.json"
    path.write_bytes(path.read_bytes()[:100])
    assert results.known(tmp_path, "times", ENTRY) is None


def test_the_page_has_tables_commands_seeds_and_what_people_say(tmp_path: Path) -> None:
    notes = tmp_path / "results"
    notes.mkdir()
    (notes / "head.md").write_text("# Numbers\n")
    (notes / "times.md").write_text("They are long.\n")
    page.write(tmp_path / "RESULTS.md", {"times": ENTRY, "later": ENTRY}, [make(tmp_path)])
    text = (tmp_path / "RESULTS.md").read_text()
    for part in (
        "# Numbers", "How long things take.", "| fcfs | 1.50 |", "| sjf | – |", "- A note.", "They are long.",
        "trimtab train sarsa --config offers\ntrimtab bench --only times", "Seeds 0–2, 7. Made at commit `",
    ):  # fmt: skip
        assert part in text
    assert "later" not in text


def test_results_of_other_entries_stay_on_the_page(tmp_path: Path) -> None:
    entries = {"first": ENTRY, "second": ENTRY}
    page.write(tmp_path / "RESULTS.md", entries, [make(tmp_path, "second")])
    page.write(tmp_path / "RESULTS.md", entries, [make(tmp_path, "first")])
    text = (tmp_path / "RESULTS.md").read_text()
    assert text.index("## first") < text.index("## second")
