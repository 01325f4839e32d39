"""The alerts that ship: they ask for metrics that there are, and tell what to do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((ROOT / "manifests/alerts.yaml").read_text())["spec"]["groups"]
    for rule in group["rules"]
]
DEFINED = "\n".join(path.read_text() for path in (ROOT / "operator/trimtab/telemetry").glob("*.py"))
LABELS = re.compile(r"\$labels\.(\w+)|by \(([\w, ]+)\)|\{(\w+)[=!]")


def metrics_of(rule: dict[str, Any]) -> set[str]:
    """Names of the metrics that an alert asks for; of a histogram, without the suffix of its series."""
    return {re.sub(r"_(count|sum|bucket)$", "", name) for name in re.findall(r"\btrimtab_\w+", rule["expr"])}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_every_metric_of_an_alert_exists(rule: dict[str, Any]) -> None:
    assert metrics_of(rule)
    assert [name for name in metrics_of(rule) if f'"{name}"' not in DEFINED] == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_every_label_of_an_alert_is_one_of_its_metric(rule: dict[str, Any]) -> None:
    text = rule["expr"] + rule["annotations"]["summary"]
    labels = {name.strip() for found in LABELS.findall(text) for group in found for name in group.split(",") if name}
    definitions = [DEFINED[DEFINED.index(f'"{name}"') :].partition("\n)\n")[0] for name in metrics_of(rule)]
    assert [label for label in labels if not any(f'"{label}"' in each for each in definitions)] == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_every_alert_says_how_bad_it_is_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("info", "warning", "critical")
    assert rule["annotations"].keys() == {"summary", "description"}
    assert rule["alert"].startswith("Trimtab")


def test_no_alert_is_there_twice() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(names) == len(set(names))
