"""Tables of measurements: what their words mean, what is filled in, and what is refused with a reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.policy.perf.runs import cells, runs

from trimtab_policy import catalog
from trimtab_policy.perf import measured, model_flops
from trimtab_policy.perf.measurements import software_of
from trimtab_policy.perf.plan_arrays import FULL, NONE, SELECTIVE
from trimtab_policy.specs import Precision


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("A100-SXM-80GB", "A100-SXM4-80GB"),
        ("A100-SXM-40GB", "A100-SXM4-40GB"),
        ("A100-80GB", "A100-SXM4-80GB"),
        ("V100-SXM-16GB", "V100-SXM2-16GB"),
        ("H100-SXM-96GB-HBM2e-500W", "H100-SXM5-96GB-500W"),
        ("H200", "H200-SXM5-141GB"),
        ("B200-SXM", "B200-SXM-180GB"),
        ("GB200", "GB200-186GB"),
        ("MI300X-192GB", "MI300X"),
        ("NVIDIA-L40S", "L40S"),
    ],
)
def test_gpus_are_known_by_the_names_that_tables_use(said: str, meant: str) -> None:
    assert runs(cells(gpu_type=said)).gpus[0].name == meant


def test_a_mixture_of_gpus_is_as_slow_as_the_slowest_of_them() -> None:
    (gpu,) = runs(cells(gpu_type="H100-SXM-80GB+A100-SXM-40GB")).gpus
    assert gpu.peak_flops == {Precision.FP32: 19.5e12, Precision.FP16: 312e12, Precision.BF16: 312e12}
    assert gpu.memory_bytes < 41 << 30


@pytest.mark.parametrize(
    ("said", "stage", "shard"),
    [
        ("DDP", 0, 0),
        ("none", 0, 0),
        ("", 0, 0),
        ("dist-optimizer(ZeRO-1)", 1, 0),
        ("ZeRO-1(intra-node 8)", 1, 8),
        ("FSDP-SHARD_GRAD_OP", 2, 0),
        ("FSDP-FULL_SHARD", 3, 0),
        ("ZeRO-3", 3, 0),
        ("HSDP", 3, 8),
        ("HSDP-16", 3, 16),
        ("HSDP-128", 3, 0),  # no more ranks than that hold the parameters: the same as FSDP
    ],
)
def test_sharding_goes_by_many_names(said: str, stage: int, shard: int) -> None:
    plans = runs(cells(zero_or_fsdp=said, n_gpus=64, dp=64)).plans
    assert (plans.zero_stage[0], plans.shard[0]) == (stage, shard)


@pytest.mark.parametrize(
    ("framework", "notes", "software"),
    [
        ("Megatron-LM (SC21 Table 1)", "", "megatron-lm"),
        ("NeMo/Megatron-Core", "", "megatron-core"),
        ("Megatron-DeepSpeed", "", "megatron-deepspeed"),
        ("PyTorch FSDP + torch.compile", "", "fsdp-compiled"),
        ("torchtitan", "torch.compile; seq_len 8192", "torchtitan"),
        ("torchtitan", "eager; seq_len 8192", "torchtitan-eager"),
        ("torchtitan", "async TP", "torchtitan-async"),
        ("nanotron", "", "nanotron"),
        ("PaddleNLP", "", "paddlenlp"),
        ("Megatron-DeepSpeed (flash attention)", "", "megatron-deepspeed-flash"),
        ("Megatron-DeepSpeed (Habana)", "", "megatron-habana"),
        ("FlagScale (Megatron-Core fork)", "", "megatron-core-fork"),
        ("somebody's own", "", "other"),
    ],
)
def test_frameworks_belong_to_generations_of_software(framework: str, notes: str, software: str) -> None:
    assert software_of(framework, notes) == software


def test_what_is_stated_is_taken() -> None:
    found = runs(cells(tp=2, pp=2, vpp=4, cp=1, n_gpus=16, dp=4, act_recompute="selective", sp=0, micro_batch=2))
    plan = found.plans.plan(0)
    assert (plan.data, plan.tensor, plan.pipeline, plan.virtual, plan.micro_batch) == (4, 2, 2, 4, 2)
    assert found.plans.recompute[0] == SELECTIVE
    assert found.plans.sequence_parallel[0] == 0
    assert found.seconds[0] == 4.0
    assert found.work.sequence[0] * found.work.batch[0] == 4096 * 64


DEEPSEEK = {
    "head_dim": 192, "shared_experts": 1, "dense_layers": 3, "dense_ffn_hidden": 18432,
    "query_rank": 1536, "kv_rank": 512, "rope_head_dim": 64, "value_head_dim": 128,
}  # fmt: skip


def test_what_columns_cannot_say_of_a_model_stands_in_columns_of_its_own_or_in_the_notes() -> None:
    known = {
        "gpu_type": "H100", "layers": 61, "hidden": 7168, "heads": 128, "ffn_hidden": 2048, "vocab": 129280,
        "n_experts": 256, "topk": 8,
    }  # fmt: skip
    noted = "source TFLOPS 174; arch: " + " ".join(f"{name}={value}" for name, value in DEEPSEEK.items())
    expected = model_flops.of(catalog.model("deepseek-v3"))
    for row in (cells(**known, **DEEPSEEK), cells(**known, notes=noted)):
        shape = runs(row).work.shape
        assert {name: np.ravel(value)[0] for name, value in shape._asdict().items()} == expected._asdict()
    assert runs(cells(notes="arch: head_dim=96")).work.shape.query[0] == 32 * 96


def test_recipes_of_bridge_capture_graphs_since_a_release_and_a_column_can_say_otherwise() -> None:
    bridge = {"framework": "Megatron-Bridge", "gpu_type": "H100"}
    old, new, said = runs(
        cells(**bridge, date="rel 26.04.01"), cells(**bridge, date="rel 26.06"),
        cells(**bridge, date="rel 26.06", cuda_graphs=0),
    ).captured  # fmt: skip
    assert (old, new, said) == (0, 1, 0)


def test_several_tables_are_read_as_one(tmp_path: Path) -> None:
    rows = [cells(id="a"), cells(id="b", date="2024-01")]
    files = [tmp_path / "first.csv", tmp_path / "second.csv"]
    for file, row in zip(files, rows, strict=True):
        file.write_text(f"{','.join(row)}\n{','.join(row.values())}\n")
    assert measured.read_measured(*files).names == ["a", "b"]


def test_tokens_per_second_serve_where_no_step_time_is_stated() -> None:
    assert runs(cells(step_time_s="", tokens_per_s_per_gpu=8192)).seconds[0] == pytest.approx(4.0)


def test_recomputation_that_is_not_stated_is_none_unless_the_run_would_not_have_fitted() -> None:
    small, large = runs(cells(act_recompute=""), cells(act_recompute="", micro_batch=8, seq_len=16384)).plans.recompute
    assert (small, large) == (NONE, FULL)


def test_micro_batches_that_are_not_stated_fill_the_card_but_not_a_pipeline() -> None:
    alone, piped = runs(cells(micro_batch=""), cells(micro_batch="", pp=8)).plans.micro_batch
    assert (alone, piped) == (2, 1)


def test_a_gpu_without_bf16_ran_fp16() -> None:
    assert runs(cells(gpu_type="V100-SXM-32GB")).precisions == [Precision.FP16]


def test_ages_count_from_the_first_gpu_of_the_generation() -> None:
    ages = runs(cells(date="2021-05"), cells(date="v24.11.1"), cells(date="soon")).ages
    assert ages[:2] == pytest.approx([1.0, 4.5], abs=0.1)
    assert np.isnan(ages[2])


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ({"gpu_type": "H99"}, "unknown GPU type 'H99'"),
        ({"step_time_s": ""}, "neither step time nor tokens per second"),
        ({"hidden": ""}, "hidden is not stated"),
        ({"tp": "3"}, "tp x pp x cp = 3 does not divide 8 GPUs"),
        ({"dp": "4"}, "dp x tp x pp x cp = 4, but 8 GPUs"),
        ({"usable_dense": "0", "exclude_reason": "CPU offload"}, "CPU offload"),
        ({"precision": "nvfp4"}, "A100-SXM4-80GB has no FP4"),
        ({"precision": "fp8"}, "A100-SXM4-80GB has no FP8"),
    ],
)
def test_rows_that_tell_too_little_are_left_out_with_the_reason(cell: dict[str, str], reason: str) -> None:
    found = runs(cells(), cells(id="odd", **cell))
    assert len(found.seconds) == 1
    assert reason in found.skipped["odd"]


@pytest.mark.parametrize(
    ("cell", "said"), [({"layers": "many"}, "layers"), ({"tp": "-2"}, "tp"), ({"pp": "1.5"}, "pp")]
)
def test_cells_in_disorder_are_errors_that_name_row_and_column(cell: dict[str, str], said: str) -> None:
    with pytest.raises(measured.MeasurementError, match=f"line 3, column {said}: "):
        runs(cells(), cells(**cell))


def test_a_file_that_is_no_table_is_an_error_that_names_it(tmp_path: Path) -> None:
    file = tmp_path / "runs.csv"
    with pytest.raises(measured.MeasurementError, match=r"runs\.csv: .*No such file"):
        measured.read_measured(file)
    file.write_text("gpu_type,layers\nA100,32\n")
    with pytest.raises(measured.MeasurementError, match=r"runs\.csv: no column source_kind, n_gpus, hidden, heads"):
        measured.read_measured(file)


def test_rows_taken_out_are_the_same_rows() -> None:
    whole = runs(cells(), cells(hidden=8192, heads=64, id="b"), cells(seq_len=2048))
    part = whole.take(np.array([1]))
    assert part.names == ["b"]
    assert part.work.shape.hidden[0] == 8192
    assert part.plans.data[0] == whole.plans.data[1]
    assert len(whole.take(np.zeros(3, dtype=np.bool_)).seconds) == 0
