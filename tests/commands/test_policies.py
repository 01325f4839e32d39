"""`trimtab policies`: every registered policy, and of learned ones what their weights are worth or what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from trimtab.cli import app
from trimtab_policy import listing, policy
from trimtab_policy.learned import store
from trimtab_policy.learned.store import ModelCard
from trimtab_policy.observation import encode
from trimtab_policy.policy import Kind

LEARNED = {name for name in policy.names() if policy.entry(name).kind is Kind.LEARNED}


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of shipped weights with those of sarsa alone."""
    monkeypatch.setattr(store, "_shipped_folder", lambda: tmp_path)
    save(tmp_path / "sarsa.safetensors")
    return tmp_path


def save(path: Path, **changes: Any) -> None:
    fields: dict[str, Any] = {
        "agent": "sarsa", "task": "offers", "schema": encode.SCHEMA, "catalogue": store.catalogue_hash(),
        "commit": "0123456789abcdef", "seeds": (3, 0, 1), "score": -1.25, "score_name": "mean return", "config": {},
    }  # fmt: skip
    store.save(path, {"table": np.zeros((2, 2))}, ModelCard(**(fields | changes)))


def told() -> dict[str, Any]:
    result = CliRunner().invoke(app, ["policies", "-o", "json"])
    assert result.exit_code == 0, result.stderr
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def table() -> str:
    return CliRunner().invoke(app, ["policies"]).stdout


def test_every_registered_policy_is_listed_with_kind_and_source() -> None:
    answer = told()
    assert list(answer) == policy.names()
    assert answer["sia"]["kind"] == "optimiser"
    assert "SOSP 2023" in answer["sia"]["source"]
    assert {name for name, each in answer.items() if each["kind"] == "learned"} == LEARNED


def test_the_weights_that_come_with_the_package_are_usable() -> None:
    answer = told()
    problems = {name: answer[name]["problem"] for name in store.shipped_names() if name in LEARNED}
    assert "rudder" in problems
    assert problems == dict.fromkeys(problems, "")


def test_rules_need_no_weights() -> None:
    assert all(not (each["weights"] or each["problem"]) for name, each in told().items() if name not in LEARNED)


@pytest.mark.usefixtures("weights")
def test_weights_are_told_with_their_score_and_where_they_come_from() -> None:
    found = told()["sarsa"]["weights"]
    assert (found["score"], found["score_name"], found["task"]) == (-1.25, "mean return", "offers")
    assert (found["commit"], found["seeds"], found["stale"]) == ("0123456789abcdef", [3, 0, 1], False)
    assert Path(found["file"]).is_file()
    shown = table()
    assert "offers, seed 3 of 3, commit 01234567" in shown
    assert "-1.25" in shown
    assert "Score: mean return; higher is better." in shown


def test_weights_that_were_made_for_another_catalogue_say_so(weights: Path) -> None:
    save(weights / "sarsa.safetensors", catalogue="older")
    assert told()["sarsa"]["weights"]["stale"]
    assert "commit 01234567, stale" in table()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"schema": "offers/0"}, "offers/0"),
        ({"agent": "q_learning"}, "weights of q_learning, not of sarsa"),
    ],
)
def test_weights_that_the_policy_would_refuse_are_told_in_one_line(
    weights: Path, change: dict[str, str], problem: str
) -> None:
    save(weights / "sarsa.safetensors", **change)
    found = told()["sarsa"]
    assert found["weights"] is None
    assert problem in found["problem"]
    assert "\n" not in found["problem"]
    assert "not usable, see below" in table()


def test_weights_that_were_cut_short_are_told_and_others_are_still_listed(weights: Path) -> None:
    path = weights / "sarsa.safetensors"
    path.write_bytes(path.read_bytes()[:-3])
    answer = told()
    assert "cut short or changed" in answer["sarsa"]["problem"]
    assert "no weights of 'vdn'" in answer["vdn"]["problem"]
    assert len(listing.listed()) == len(policy.names())
