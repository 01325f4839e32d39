"""Jobs of one kind become jobs of another, and what was stated survives the way there and back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.foreign.test_read import COMMAND, KINDS, MEGATRON, manifest, pod, read_script, read_yaml
from typer.testing import CliRunner

from trimtab.api.convert import to_model_spec, to_requirements, to_training
from trimtab.api.v1alpha1 import JobSpec
from trimtab.cli import app as trimtab
from trimtab.commands.convert import convert as command
from trimtab.errors import UsageError
from trimtab.foreign import convert
from trimtab.foreign.convert import Converted
from trimtab_local.checkout import checkout

SAMPLES = checkout() / "manifests" / "samples"
app = typer.Typer(pretty_exceptions_enable=False)
app.command()(command)


def spec_of(made: Converted) -> JobSpec:
    return JobSpec.model_validate(made.documents[-1]["spec"])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "LeaderWorkerSet"])
def test_every_kind_becomes_a_job_that_can_be_planned(kind: str) -> None:
    spec = spec_of(convert.to_own(read_yaml(manifest(*KINDS[kind]), stated={"image": "trainer:1"})))
    assert to_training(spec.training).steps == 1000
    assert to_model_spec(spec.model).layers == 32
    found = to_requirements(spec)
    assert (found.gpus.low, found.gpus.high, found.tensor.high, found.pipeline.high) == (32, 32, 4, 2)
    assert spec.launcher.value == "Megatron"


def test_pods_lose_what_the_plan_sets() -> None:
    template = pod(["torchrun", "--nnodes", "4", "--nproc_per_node=8", "--rdzv_backend=c10d", "t.py"], 8)
    template["spec"] |= {
        "schedulerName": "volcano",
        "restartPolicy": "OnFailure",
        "nodeSelector": {"pool": "a"},
        "hostname": "x",
    }
    template["spec"]["containers"][0]["env"] = [{"name": "PET_NNODES", "value": "4"}, {"name": "A", "value": "1"}]
    template["spec"]["affinity"] = {"podAffinity": {}, "nodeAffinity": {}}
    stated = {"model": "gpt2", "sequence_length": "1024", "global_batch_size": "8", "steps": "3"}
    made = convert.to_own(read_yaml(manifest("batch/v1", "Job", {"template": template}), stated=stated))
    (container,) = made.documents[0]["spec"]["template"]["spec"]["containers"]
    assert container == {
        "name": "main",
        "image": "trainer:1",
        "command": ["torchrun", "t.py"],
        "env": [{"name": "A", "value": "1"}],
    }
    assert made.documents[0]["spec"]["template"]["spec"] == {
        "containers": [container],
        "nodeSelector": {"pool": "a"},
        "affinity": {"nodeAffinity": {}},
    }
    assert {"schedulerName", "hostname"} <= {word for note in made.notes for word in note.split()}


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("Job", {}),
        ("Volcano Job", {"priorityClassName": "high", "queue": "their-own"}),
        ("PyTorchJob", {"runPolicy": {"schedulingPolicy": {"priorityClass": "high", "queue": "their-own"}}}),
    ],
)
def test_a_job_keeps_its_priority_and_who_admits_it(kind: str, more: dict[str, Any]) -> None:
    """A queue of another scheduler is none of ours: it is told, and the annotation names one of ours."""
    version, called, spec = KINDS[kind]
    if not more:
        spec = {**spec, "template": pod(COMMAND, priorityClassName="high")}
    there = yaml.safe_load(manifest(version, called, {**spec, **more}))
    there["metadata"] |= {"namespace": "team-a", "labels": {"kueue.x-k8s.io/queue-name": "gpus", "app": "x"}}
    made = convert.to_own(read_yaml(yaml.safe_dump(there)))
    [document] = made.documents
    assert document["metadata"]["namespace"] == "team-a"
    assert document["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "gpus"}
    assert document["spec"]["priorityClassName"] == "high"
    assert "queue" not in document["spec"]
    assert any("their-own" in note for note in made.notes) == bool(more)
    [jobset] = convert.to_jobset(read_yaml(yaml.safe_dump(there))).documents
    assert jobset["metadata"]["labels"] == document["metadata"]["labels"]
    there["metadata"]["annotations"] = {"trimtab.dev/queue": "ours"}
    made = convert.to_own(read_yaml(yaml.safe_dump(there)))
    assert made.documents[0]["spec"]["queue"] == "ours"
    assert not any("their-own" in note for note in made.notes)


def test_pods_of_one_job_have_one_priority() -> None:
    version, called, spec = KINDS["PyTorchJob"]
    both = {role: {"template": pod(COMMAND, priorityClassName=role.lower())} for role in ("Master", "Worker")}
    with pytest.raises(UsageError, match="master, worker"):
        convert.to_own(read_yaml(manifest(version, called, {**spec, "pytorchReplicaSpecs": both})))


@pytest.mark.parametrize(("words", "told"), [(["--use_peft", "true", "--lora_r", "16"], "lora_r"), ([], "")])
def test_adapters_that_are_not_read_are_told(words: list[str], told: str) -> None:
    command = ["torchrun", "run_clm.py", "--model_name_or_path", "meta-llama/Llama-3.1-8B", *words]
    stated = {"sequence_length": "1024", "global_batch_size": "8", "steps": "3"}
    made = convert.to_own(read_yaml(manifest("batch/v1", "Job", {"template": pod(command)}), stated=stated))
    assert [told in note for note in made.notes if "spec.training.adapters" in note] == [True] * bool(told)


def test_what_slurm_alone_knows_is_told() -> None:
    options = "#SBATCH -N 4 -p research -t 24:00:00 --requeue"
    made = convert.to_own(read_script(f"#!/bin/bash\n{options}\nsrun --container-image=x:1 {MEGATRON}\n"))
    assert any("--partition, --time:" in note for note in made.notes)


def test_a_script_becomes_a_pod_with_its_command() -> None:
    script = f"#!/bin/bash\n#SBATCH -N 4\nsrun --container-image=nvcr.io/x:1 {MEGATRON} --load $CKPT\n"
    made = convert.to_own(read_script(script))
    (container,) = made.documents[0]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "nvcr.io/x:1"
    assert container["command"][:2] == ["torchrun", "pretrain_gpt.py"]
    assert "$(CKPT)" in container["command"]
    assert any("CKPT" in note for note in made.notes)
    with pytest.raises(UsageError, match="--set image="):
        convert.to_own(read_script(script.replace("--container-image=nvcr.io/x:1", "")))


def test_what_is_missing_is_asked_for_by_name() -> None:
    job = read_yaml(
        manifest("batch/v1", "Job", {"template": pod(["torchrun", "pretrain_gpt.py", "--seq-length", "$(N)"])})
    )
    with pytest.raises(UsageError) as error:
        convert.to_own(job)
    for said in (
        "model",
        "--set steps=VALUE",
        "trimtab.dev/global-batch-size",
        "sequence_length: pretrain_gpt.py seq-length",
    ):
        assert said in str(error.value)


def test_other_accelerators_and_other_work_are_refused() -> None:
    for template, why in (
        (pod(COMMAND, resource="google.com/tpu"), "Google TPU"),
        (pod(["python", "mnist.py"]), "MNIST"),
    ):
        text = manifest("batch/v1", "Job", {"template": template})
        with pytest.raises(UsageError, match=why):
            convert.to_own(read_yaml(text.replace("llama-job", "job")))


# --- there and back ---------------------------------------------------------------------------------------------------
WIDTH = st.sampled_from([1, 2, 4])
SHAPE = {"layers": 8, "hiddenSize": 512, "attentionHeads": 8, "ffnHiddenSize": 2048, "vocabSize": 32000}


def some_of(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Each of these fields, or not."""
    return st.fixed_dictionaries({}, optional=fields)


FLAGS = {"gatedFfn": st.booleans(), "tiedEmbeddings": st.booleans(), "biases": st.booleans()}
SHAPES = some_of(kvHeads=WIDTH, headDim=st.just(64), **FLAGS)
NUMBERS = some_of(
    precision=st.sampled_from(["BF16", "FP16", "FP8", "FP32"]), optimizer=st.sampled_from(["AdamW", "SGD", "Muon"])
)
LIMITS = some_of(
    **dict.fromkeys(("tensor", "pipeline", "context", "expert"), st.builds(dict, fixed=WIDTH)),
    zeroStage=st.integers(0, 3),
    recompute=st.sampled_from(["None", "Full"]),
    mode=st.sampled_from(["Auto", "Data", "Hybrid"]),
)
TYPES = st.lists(st.sampled_from(["H100-SXM5-80GB", "A100-SXM4-80GB", "MI300X"]), unique=True, min_size=1, max_size=2)
WORD = st.text(st.characters(codec="utf-8", exclude_categories=("C",)), min_size=1, max_size=8)
WORDS = st.lists(WORD, min_size=1, max_size=3)
CONTAINERS = some_of(
    command=WORDS,
    args=WORDS,
    env=st.builds(lambda value: [{"name": "A", "value": value}], WORD),
    resources=st.just({"limits": {"memory": "8Gi", "rdma/ib": 1}}),
)
PODS = some_of(nodeSelector=st.just({"pool": "a"}), volumes=st.just([{"name": "v", "emptyDir": {}}]))
SIDECARS = st.sampled_from([[], [{"name": "side", "image": "s"}]])


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Any]:
    """An LLMTrainingJob whose number of GPUs is fixed."""
    container = {"name": "trainer", "image": "trainer:1"} | draw(CONTAINERS)
    length = draw(st.sampled_from([{"steps": 10}, {"tokens": 10**12}]))
    training = {"sequenceLength": draw(st.integers(1, 1 << 20)), "globalBatchSize": draw(st.integers(1, 4096))}
    presets = [{"preset": "llama3-8b"}, {"preset": "gpt2"}, {"architecture": SHAPE | draw(SHAPES)}]
    spec = {
        "model": draw(st.sampled_from(presets)),
        "training": training | length | draw(NUMBERS),
        "resources": {"gpus": {"max": 8 * draw(st.integers(1, 64))}} | draw(some_of(gpuTypes=TYPES)),
        "parallelism": draw(LIMITS),
        "elasticity": {"policy": "Fixed"},
        "launcher": draw(st.sampled_from(["Torchrun", "Torchtitan", "Megatron", "DeepSpeed", "Custom"])),
        "template": {"spec": {"containers": [container, *draw(SIDECARS)]} | draw(PODS)},
    }
    return {"apiVersion": "trimtab.dev/v1alpha1", "kind": "LLMTrainingJob", "metadata": {"name": "job"}, "spec": spec}


def there_and_back(document: dict[str, Any], make: Any) -> dict[str, Any]:
    job = convert.with_stated(convert.job_of(document), {"gpus_per_node": "8"})
    there = make(job)
    back: dict[str, Any] = convert.to_own(
        read_yaml("---\n".join(yaml.safe_dump(each) for each in there.documents))
    ).documents[0]
    return back


@settings(max_examples=120, deadline=None)
@given(jobs())
def test_a_job_survives_the_way_to_a_jobset_and_back(document: dict[str, Any]) -> None:
    back = there_and_back(document, convert.to_jobset)
    assert JobSpec.model_validate(back["spec"]) == JobSpec.model_validate(document["spec"])
    assert back["spec"]["template"] == document["spec"]["template"]


@settings(max_examples=120, deadline=None)
@given(jobs())
def test_a_job_survives_the_way_to_a_trainjob_and_back(document: dict[str, Any]) -> None:
    back = there_and_back(document, convert.to_trainjob)
    back["spec"]["template"]["spec"]["containers"][0]["name"] = "trainer"  # Kubeflow Trainer calls it node
    assert JobSpec.model_validate(back["spec"]) == JobSpec.model_validate(document["spec"])
    assert back["spec"]["template"] == document["spec"]["template"]


@settings(max_examples=40, deadline=None)
@given(jobs())
def test_what_is_read_again_is_what_was_written(document: dict[str, Any]) -> None:
    once = there_and_back(document, convert.to_jobset)
    assert there_and_back(once, convert.to_jobset) == once


def test_the_split_into_pods_is_asked_for() -> None:
    document = yaml.safe_load((SAMPLES / "llama3-8b.yaml").read_text())
    with pytest.raises(UsageError, match="--set gpus_per_node"):
        convert.to_jobset(convert.job_of(document))
    with pytest.raises(UsageError, match="no multiple"):
        convert.to_jobset(convert.with_stated(convert.job_of(document), {"gpus_per_node": "7"}))
    made = convert.to_jobset(convert.with_stated(convert.job_of(document), {"gpus_per_node": "8"}))
    assert any("spec.queue" in note for note in made.notes)


# --- the commands -----------------------------------------------------------------------------------------------------
@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "train.sbatch"
    file.write_text(f"#!/bin/bash\n#SBATCH -N 4 --gpus-per-node=h100:8\nsrun {MEGATRON}\n")
    return file


def test_convert_writes_yaml_and_tells_notes_apart(script: Path) -> None:
    told = CliRunner().invoke(app, ["-f", str(script), "--set", "image=x:1"])
    assert told.exit_code == 0, told.stderr
    assert yaml.safe_load(told.stdout)["spec"]["resources"]["gpus"] == {"max": 32}
    assert CliRunner().invoke(app, ["-f", str(script)]).exit_code == 2
    both = CliRunner().invoke(app, ["-f", str(script), "-o", "trainjob", "--set", "image=x:1"])
    assert [each["kind"] for each in yaml.safe_load_all(both.stdout)] == ["TrainingRuntime", "TrainJob"]


def test_convert_tells_what_was_read_and_where(script: Path) -> None:
    told = json.loads(CliRunner().invoke(app, ["-f", str(script), "-o", "json"]).stdout)
    assert told["fields"]["tensor"] == {"value": "4", "source": "pretrain_gpt.py tensor-model-parallel-size"}
    assert told["missing"] == []
    assert "pretrain_gpt.py seq-length" in CliRunner().invoke(app, ["-f", str(script), "-o", "fields"]).stdout


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--set", "steps"], "FIELD=VALUE"),
        (["--with", "nowhere.yaml"], "cannot read nowhere.yaml"),
        (["--set", "colour=red"], "no such field"),
        (["--run", "9"], "--run 9"),
    ],
)
def test_wrong_options_are_told(script: Path, arguments: list[str], why: str) -> None:
    told = CliRunner().invoke(app, ["-f", str(script), *arguments])
    assert told.exit_code == 2
    assert why in told.stderr


def test_plan_reads_other_kinds(script: Path) -> None:
    told = CliRunner().invoke(trimtab, ["plan", "-f", str(script), "--gpus", "H100-SXM5-80GB=32", "-o", "json"])
    assert told.exit_code == 0, told.stderr
    decision = json.loads(told.stdout)["decision"]
    assert (decision["gpu_type"], decision["plan"]["tensor"], decision["plan"]["pipeline"]) == ("H100-SXM5-80GB", 4, 2)


def test_plan_of_our_own_kind_does_not_load_the_readers() -> None:
    loaded = "[name for name in sys.modules if name.startswith('trimtab.foreign')]"
    check = f"import sys, trimtab.commands.plan; assert not {loaded}"
    subprocess.run([sys.executable, "-c", check], check=True)
