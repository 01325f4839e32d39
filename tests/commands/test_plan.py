"""`trimtab plan` on a cluster that was typed in: what people and programs are told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.builders import A100, H100, T4
from typer.testing import CliRunner, Result

from trimtab.cli import app
from trimtab.commands import cluster_option
from trimtab.errors import UsageError
from trimtab_local.checkout import checkout

SAMPLES = checkout() / "manifests" / "samples"
GPUS = f"{H100}=64,{A100}=32x4,{T4}=8"


def plan(*arguments: str, sample: str = "llama3-8b", gpus: str = GPUS) -> Result:
    file = str(SAMPLES / f"{sample}.yaml")
    return CliRunner().invoke(app, ["plan", "-f", file, *(["--gpus", gpus] if gpus else []), *arguments])


def told(*arguments: str, **case: str) -> dict[str, Any]:
    result = plan("-o", "json", *arguments, **case)
    assert result.exit_code == 0, result.stderr
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    file = tmp_path / "prices.yaml"
    file.write_text(f"currency: EUR\nper_gpu_hour: {{{H100}: 2.5}}\n")
    return file


# --- the typed cluster -----------------------------------------------------------------------------------------------
def test_nodes_have_eight_gpus_unless_said_otherwise_and_the_last_one_what_is_left() -> None:
    cluster = cluster_option.snapshot(f"{H100}=20, {A100}=8x4")
    sizes = [(node.gpu_type, node.gpus, node.free_gpus) for node in cluster.nodes]
    assert sizes == [(H100, 8, 8), (H100, 8, 8), (H100, 4, 4), (A100, 4, 4), (A100, 4, 4)]
    assert set(cluster.gpu_types) == {H100, A100}


def test_names_of_products_are_understood_too() -> None:
    assert set(cluster_option.snapshot("NVIDIA-A100-SXM4-80GB=8").gpu_types) == {A100}


def test_nodes_of_one_rack_share_its_links() -> None:
    domains = [node.link_domain for node in cluster_option.snapshot("GB200-186GB=144x4").nodes]
    assert len(domains) == 36
    assert len(set(domains)) == 2
    assert {node.link_domain for node in cluster_option.snapshot(f"{H100}=16").nodes} == {""}


@pytest.mark.parametrize("text", ["", "H100", "H100=", f"{H100}=0", f"{H100}=8x0", f"{H100}=-8", f"{H100}=8,{H100}=8"])
def test_what_cannot_be_read_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="--gpus"):
        cluster_option.snapshot(text)


def test_a_type_that_nobody_knows_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--gpus H1000: .*H100"):
        cluster_option.snapshot("H1000=8")


# --- what programs are told ------------------------------------------------------------------------------------------
def test_every_gpu_type_is_answered_for_and_the_chosen_plan_comes_first() -> None:
    choices = told()["choices"]
    assert {choice["gpu_type"] for choice in choices} == {H100, A100, T4}
    assert [choice["chosen"] for choice in choices] == [True] + [False] * (len(choices) - 1)
    assert choices[0]["why_not"] == ""
    assert all(choice["why_not"] for choice in choices[1:])


def test_parts_add_up_to_what_was_predicted() -> None:
    for choice in told()["choices"]:
        if choice["plan"]:
            apart, prediction = choice["breakdown"], choice["prediction"]
            assert sum(apart["step"].values()) == pytest.approx(prediction["step_seconds"])
            assert sum(apart["memory"].values()) == pytest.approx(prediction["memory_bytes"], abs=1)
            assert prediction["memory_bytes"] <= apart["card_bytes"]
            assert 0 < apart["mfu"] < 1


def test_cost_and_energy_are_gpus_times_hours(prices: Path) -> None:
    answer = told("--prices", str(prices))
    assert answer["currency"] == "EUR"
    priced = [choice for choice in answer["choices"] if choice["gpu_type"] == H100]
    for choice in priced:
        gpu_hours = choice["gpus"] * 1e9 / choice["prediction"]["tokens_per_second"] / 3600
        assert choice["breakdown"]["cost_per_billion"] == pytest.approx(2.5 * gpu_hours)
        assert choice["breakdown"]["kwh_per_billion"] == pytest.approx(0.7 * gpu_hours)
    others = [choice for choice in answer["choices"] if choice["gpu_type"] == A100]
    assert [choice["breakdown"]["cost_per_billion"] for choice in others] == [None] * len(others)


def test_prices_may_come_from_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMTAB_PRICES__PER_GPU_HOUR", json.dumps({H100: 2.0}))
    monkeypatch.setenv("TRIMTAB_PRICES__CURRENCY", "USD")
    answer = told()
    assert answer["currency"] == "USD"
    assert all(choice["breakdown"]["cost_per_billion"] for choice in answer["choices"] if choice["gpu_type"] == H100)


def test_types_that_the_job_excludes_are_shown_and_called_so() -> None:
    choices = told(sample="bert-finetune")["choices"]
    [excluded] = [choice for choice in choices if choice["gpu_type"] == H100]
    assert excluded["why_not"] == "not among spec.resources.gpuTypes"
    assert excluded["plan"]
    assert choices[0]["gpu_type"] == T4


def test_a_job_that_fits_nowhere_is_told_so_for_every_type() -> None:
    answer = told(sample="llama-405b-impossible")
    assert answer["decision"] is None
    assert all("needs at least" in choice["why_not"] for choice in answer["choices"])


# --- what people are told --------------------------------------------------------------------------------------------
def test_eighty_columns_are_enough(monkeypatch: pytest.MonkeyPatch, prices: Path) -> None:
    monkeypatch.setattr("trimtab.ui.output.WIDE_ENOUGH", 80)
    shown = plan("--prices", str(prices), sample="llama3-70b").stdout
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in shown
    for word in ("WHY NOT", "MFU", "EUR", "kWh", "compute", "activations", "upper estimate", "not among"):
        assert word in shown


def test_a_price_for_a_gpu_that_nobody_knows_is_no_price(tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text("per_gpu_hour: {H1000: 2.5}\n")
    result = plan("--prices", str(file))
    assert result.exit_code == 2
    assert "prices.per_gpu_hour: " in result.stderr
    assert "H1000" in result.stderr


@pytest.mark.parametrize("content", ["per_gpu_hour: {T4: -1}", "per_hour: {T4: 1}", "[1]"])
def test_prices_that_are_none_are_refused_and_the_file_named(tmp_path: Path, content: str) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(content)
    result = plan("--prices", str(file))
    assert result.exit_code == 1
    assert str(file) in result.stderr


def test_two_clusters_are_one_too_many() -> None:
    result = plan("--snapshot", "now.json")
    assert result.exit_code == 2
    assert "name one" in result.stderr


def test_neither_planning_nor_the_command_line_loads_what_only_fitting_and_drawing_need() -> None:
    program = (
        "import sys; from trimtab.cli import app; from trimtab_policy.perf import plans\n"
        f"app(['plan', '-f', {str(SAMPLES / 'gpt2-124m.yaml')!r}, '--gpus', 'T4=8', '-o', 'json'], "
        "standalone_mode=False)\n"
        "print(sorted({'scipy', 'matplotlib', 'torch', 'pandas'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
