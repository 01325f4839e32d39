"""`trimtab submit --dry-run`: the manifest that options come to, and what is said about wrong ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from trimtab.cli import app

BASE = ("submit", "--model", "llama3-8b", "--image", "trainer:1")


def ran(*words: str) -> Result:
    return CliRunner(env={"KUBECONFIG": "/nonexistent"}).invoke(app, words, prog_name="trimtab")


def made(*words: str) -> dict[str, Any]:
    found = ran(*BASE, *words)
    assert found.exit_code == 0, found.output
    manifest: dict[str, Any] = yaml.safe_load(found.stdout)
    return manifest


def test_the_job_that_the_options_say() -> None:
    command = ("torchrun", "-m", "torchtitan.train", "--lr", "1e-4")
    job = made("--tokens", "2B", "--gpus", "8-64", "--gpu-type", "H100", "--queue", "research", "-n", "team-a",
               "--name", "mine", "--memory-per-gpu", "64Gi", "-e", "NCCL_DEBUG=WARN", "--mount", "saved:/checkpoints",
               "--elastic", "--dry-run", "--", *command)  # fmt: skip
    assert job == {
        "apiVersion": "trimtab.dev/v1alpha1",
        "kind": "LLMTrainingJob",
        "metadata": {"name": "mine", "namespace": "team-a"},
        "spec": {
            "model": {"preset": "llama3-8b"},
            "training": {"sequenceLength": 4096, "globalBatchSize": 128, "tokens": 2_000_000_000},
            "resources": {"gpus": {"min": 8, "max": 64}, "gpuTypes": ["H100"], "memoryPerGpu": "64Gi"},
            "elasticity": {"policy": "Elastic"},
            "queue": "research",
            "launcher": "Torchtitan",
            "template": {
                "spec": {
                    "containers": [
                        {
                            "name": "trainer",
                            "image": "trainer:1",
                            "command": list(command),
                            "env": [{"name": "NCCL_DEBUG", "value": "WARN"}],
                            "volumeMounts": [{"name": "saved", "mountPath": "/checkpoints"}],
                        }
                    ],
                    "volumes": [{"name": "saved", "persistentVolumeClaim": {"claimName": "saved"}}],
                }
            },
        },
    }


def test_what_is_printed_is_a_manifest_that_can_be_planned(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    printed = ran(*BASE, "--steps", "1000", "--gpus", "8", "--dry-run").stdout
    file.write_text(printed)
    planned = ran("plan", "-f", str(file), "--gpus", "H100=8", "-o", "json")
    assert planned.exit_code == 0, planned.output
    assert json.loads(planned.stdout)["decision"]["gpu_type"] == "H100-SXM5-80GB"


def test_one_number_of_gpus_is_fixed_and_a_plain_script_divides_data_only() -> None:
    spec = made("--steps", "10k", "--gpus", "8", "--dry-run", "--", "python", "train.py")["spec"]
    assert (spec["training"]["steps"], spec["resources"]["gpus"]) == (10_000, {"max": 8})
    assert (spec["elasticity"], spec["parallelism"]) == ({"policy": "Fixed"}, {"mode": "Data"})
    assert made("--steps", "9", "--mode", "hybrid", "--dry-run")["spec"]["parallelism"] == {"mode": "Hybrid"}


def test_a_name_is_made_of_the_model_and_is_another_each_time() -> None:
    names = {made("--steps", "1", "--dry-run")["metadata"]["name"] for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith("llama3-8b-") for name in names)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--model", "llama3-8", "--steps", "1"], "--model: unknown model preset 'llama3-8': did you mean llama3-8b"),
        (["--tokens", "2X"], "--tokens '2X'"),
        (["--tokens", "0"], "--tokens '0'"),
        (["--tokens", "0.2"], "--tokens '0.2'"),
        ([], "give one of --tokens and --steps"),
        (["--steps", "1", "--tokens", "1"], "give one of --tokens and --steps"),
        (["--steps", "1", "--gpus", "64-8"], "--gpus '64-8'"),
        (["--steps", "1", "--gpus", "0"], "--gpus '0'"),
        (["--steps", "1", "--gpus", "8", "--elastic"], "--elastic needs a range"),
        (["--steps", "1", "--gpu-type", "H1000"], "--gpu-type: 'H1000' is no GPU type"),
        (["--steps", "1", "--launcher", "torch"], "--launcher 'torch': choose one of Torchrun, Torchtitan"),
        (["--steps", "1", "--mode", "x"], "--mode 'x': choose one of Auto"),
        (["--steps", "1", "--mount", "saved"], "--mount 'saved': write CLAIM:/PATH"),
        (["--steps", "1", "-e", "A"], "--env 'A': write NAME=VALUE"),
        (["--steps", "1", "--memory-per-gpu", "lots"], "resources.memoryPerGpu"),
        (["--steps", "1", "--queue", "No Queue"], "queue"),
    ],
)
def test_a_wrong_option_is_told_by_its_name(words: list[str], told: str) -> None:
    found = ran(*BASE, *words, "--dry-run")
    assert found.exit_code == 2
    assert told in found.stderr
