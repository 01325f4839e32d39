"""`trimtab profile gpt`: what it prints, what it writes, and how it refuses."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from msgspec.structs import replace
from typer.testing import CliRunner, Result

from trimtab_lab.commands import profile
from trimtab_lab.profiling import loader, machine, measure, run
from trimtab_lab.profiling.training import Trainer
from trimtab_policy import catalog

app = typer.Typer()
app.add_typer(profile.app, name="profile")

SMALL = ("--sequence-length", "16", "--batch-size", "2", "--steps", "2", "--device", "cpu")


@pytest.fixture(autouse=True)
def small_world(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """gpt2 is tiny here, and the processor's rates are measured by little work."""
    tiny = {"hidden_size": 64, "attention_heads": 4, "kv_heads": 4, "head_dim": 16, "ffn_hidden_size": 128}
    gpt2, known = replace(catalog.model("gpt2"), vocab_size=251, **tiny), catalog.model
    monkeypatch.setattr(catalog, "model", lambda name: gpt2 if name == "gpt2" else known(name))
    for module, name, value in ((machine, "_WIDTH", 256), (machine, "_COPIED", 1 << 20), (loader, "_TEXT_WORDS", 1000)):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(loader, "_MERGES", 20)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def profiled(out: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["profile", "gpt", *SMALL, "--layers", "2", "--out", str(out), *arguments])


@pytest.fixture
def refused(tmp_path: Path) -> Any:
    """Run the command, and give what it said in its one line, and its exit code."""

    def run_it(*arguments: str) -> tuple[str, int]:
        result = profiled(tmp_path / "out", *arguments)
        assert result.stdout == ""
        lines = [line for line in result.stderr.splitlines() if line.startswith("trimtab: ")]
        assert len(lines) == 1, result.stderr
        assert "Traceback" not in result.stderr
        return lines[0], result.exit_code

    return run_it


def test_programs_get_all_of_it_as_json(tmp_path: Path) -> None:
    result = profiled(tmp_path, "-o", "json")
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    shape = {
        "preset": "gpt2",
        "layers": 2,
        "device": "cpu",
        "precision": "FP32",
        "sequence_length": 16,
        "batch_size": 2,
    }
    assert {key: told[key] for key in shape} == shape
    assert [(row["micro_batch"], row["recompute"]) for row in told["rows"]] == [
        (1, "None"), (2, "None"), (1, "Full"), (2, "Full"),
    ]  # fmt: skip
    for row in told["rows"]:
        assert row["step_ratio"] == pytest.approx(row["measured"]["step_seconds"] / row["predicted"]["step_seconds"])
        assert row["memory_ratio"] == pytest.approx(row["measured"]["allocated"] / row["predicted"]["allocated"])
        assert len(row["measured"]["steps"]) == 2
    rates = [row["measured"]["tokens_per_second"] for row in told["rows"]]
    assert rates[told["traced"]] == max(rates) == told["profile"]["tokens_per_second"][-1]
    assert {part["of"] for part in told["parts"]} == {"step", "memory"}
    assert "measured on this processor" in told["notes"][0]


def test_the_files_are_where_it_says(tmp_path: Path) -> None:
    told = json.loads(profiled(tmp_path / "new" / "folder", "-o", "json").stdout)
    assert told["files"] == [str(tmp_path / "new" / "folder" / name) for name in run.FILES]
    trace, written, report = (json.loads(Path(file).read_text()) for file in told["files"])
    assert any(event.get("name") == "aten::addmm" for event in trace["traceEvents"])
    assert written == [told["profile"]] == [report["profile"]]


def test_people_get_measured_beside_predicted_and_the_fastest_taken_apart_in_eighty_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trimtab.ui.output.WIDE_ENOUGH", 80)
    result = profiled(tmp_path, "--micro-batch", "2")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    rows = [line.split() for line in lines if line.startswith(("→ 2 ", "  2 "))]
    assert [len(row) - row.count("→") for row in rows] == [11, 11]  # two times and two sizes come with their units
    assert sum("→" in row for row in rows) == 1
    for word in ("RATIO", "TOKENS/S", "optimizer", "activations, logits, loss", "matmul", "aten::addmm", "trace.json"):
        assert word in result.stdout
    assert "training steps: " in result.stderr


def test_people_see_what_did_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def step(self: Trainer, tokens: torch.Tensor) -> float:
        if self.plan.micro_batch > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return 1.0

    monkeypatch.setattr(measure.Trainer, "step", step)
    lines = profiled(tmp_path).stdout.splitlines()
    assert [line.split()[0] for line in lines if "out of memory" in line] == ["2", "2"]


def test_other_formats_can_be_asked_for(tmp_path: Path) -> None:
    told = json.loads(profiled(tmp_path, "--micro-batch", "2", "--precision", "bf16", "-o", "json").stdout)
    assert told["precision"] == "BF16"
    assert told["gpu"]["peak_flops"].keys() == {"BF16"}
    assert "Under autocast weights" in told["notes"][-1]


def test_help_has_examples_and_defaults() -> None:
    said = " ".join(CliRunner().invoke(app, ["profile", "gpt", "--help"], env={"COLUMNS": "200"}).stdout.split())
    for words in (
        "trimtab profile gpt --device cpu --sequence-length 64",
        "by default 1024, on a CPU 128",
        "RLAlloc-v0",
    ):
        assert words in said


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (("--preset", "bert-base"), "bert-base is no GPT (attends both ways): use one of gpt2, gpt2-medium", 2),
        (("--preset", "gpt-2"), "unknown model preset 'gpt-2': did you mean gpt2", 1),
        (("--micro-batch", "3"), "--micro-batch 3 must divide --batch-size 2", 2),
        (("--sequence-length", "2000"), "sequence_length must be 1 to 1024 for gpt2: 2000", 2),
        (("--precision", "fp16"), "precision must be FP32 or BF16 on cpu: FP16", 2),
        (("--precision", "fp8"), "precision must be FP32 or BF16 on cpu: FP8", 2),
    ],
)
def test_what_cannot_be_profiled_is_said_in_one_line(
    refused: Any, arguments: tuple[str, ...], said: str, code: int
) -> None:
    line, exit_code = refused(*arguments)
    assert said in line
    assert exit_code == code


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_cuda_device_it_is_said(refused: Any) -> None:
    line, code = refused("--device", "cuda")
    assert "no CUDA device was found" in line
    assert "use --device cpu" in line
    assert code == 2


def test_without_torch_it_is_said_what_to_install(refused: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trimtab_lab.profiling.measure", None)
    line, code = refused()
    assert "pip install 'trimtab[sim,train]'" in line
    assert code == 2


def test_too_little_memory_is_an_error_that_says_what_to_try(refused: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Trainer, tokens: torch.Tensor) -> float:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(measure.Trainer, "step", full)
    line, code = refused("--micro-batch", "2")
    assert "out of memory: gpt2 with micro-batch 2 does not fit" in line
    assert "try --micro-batch 1" in line
    assert code == 1


def test_a_folder_that_cannot_be_made_is_named(refused: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    line, code = refused("--out", str(tmp_path / "file" / "out"))
    assert "cannot write" in line
    assert code == 2
