"""Figures of the page on what is proven are those of the pages that commands write; so are the README's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trimtab_local.checkout import checkout

ROOT = checkout()
PERF = ROOT / "policy/trimtab_policy/perf/RESULTS.md"
RUDDER = ROOT / "hack/decisions/0043-score-then-solve.md"
RESULTS, README = ROOT / "docs/results.md", ROOT / "README.md"
FIGURES = [
    (r"\| median error of a run \| ([\d.]+) %", "median error of a run {} %", RESULTS),
    (r"\| median error of a run \| ([\d.]+) %", "median error of a run is {} %", README),
    (r"\| MAPE, mean over sources \(vTrain-single apart\) \| ([\d.]+) %", "mean over sources {} %", RESULTS),
    (r"\| MAPE, mean over sources \(vTrain-single apart\) \| ([\d.]+) %", "mean over sources {} %", README),
    (r"\| MAPE of the worst source: [\w-]+ \| ([\d.]+)", "of the worst source {} %", RESULTS),
    (r"\| inside their 80 % interval, at least \| ([\d.]+) %", "{} % of the runs lie inside", RESULTS),
    (r"\| inside their 80 % interval, at least \| ([\d.]+) %", "{} % of the runs lie inside", README),
    (r"\| MAPE \| ([\d.]+) % .* 679 runs", "mean error {} %", RESULTS),
    (r"\| largest error of a golden value's peak \| ([\d.]+) %", "worst golden value {} % off", RESULTS),
    (r"\| MAPE, mean over generations \| ([\d.]+) %", "generation left out {} %", RESULTS),
    (r"\| MAPE of the other runs, after three \| ([\d.]+) %", "from 20 to {} %", RESULTS),
]
"""What stands in PERF, how it is told, where; a figure is told as exactly as it is measured, or rounded."""


@pytest.mark.parametrize(("measured", "told", "page"), FIGURES)
def test_a_figure_is_the_one_that_was_measured(measured: str, told: str, page: Path) -> None:
    found = re.search(measured, PERF.read_text())
    assert found, measured
    text = " ".join(page.read_text().split())
    figure = found[1]
    ways = {figure, f"{float(figure):.1f}", f"{float(figure):.0f}"}
    assert any(told.format(way) in text for way in ways), f"{told.format(figure)} stands nowhere"


def test_the_gain_of_the_default_policy_is_that_of_its_record() -> None:
    rows = re.findall(r"^\| .*, \.?[\d.]+ \|(.*)\|$", RUDDER.read_text(), re.MULTILINE)
    gains = [float(ratio) for row in rows for ratio in re.findall(r"(\.\d\d) \(", row)]
    assert len(gains) > 10
    for page in (RESULTS, README):
        assert f"{min(gains):.2f} to {max(gains):.2f} of" in " ".join(page.read_text().split())
