"""Jobs of every kind are read: counts, trainers, configs beside them, and what they leave open."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from trimtab.errors import UsageError
from trimtab.foreign.job import ForeignJob
from trimtab.foreign.read import Source, read
from trimtab.foreign.tables import kinds, trainers
from trimtab.names import STATED

MEGATRON = (
    "torchrun --nproc_per_node=8 --nnodes=$SLURM_NNODES pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
    "--num-attention-heads 32 --ffn-hidden-size 14336 --vocab-size 128256 --swiglu --seq-length 8192 "
    "--micro-batch-size 1 --global-batch-size 256 --train-iters 1000 --tensor-model-parallel-size 4 "
    "--pipeline-model-parallel-size 2 --bf16 --use-distributed-optimizer"
)


def pod(command: list[str], gpus: int | str = 8, resource: str = "nvidia.com/gpu", **spec: Any) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "main", "image": "trainer:1", "command": command}
    container["resources"] = {"limits": {resource: gpus}} if gpus else {}
    return {"spec": {"containers": [container], **spec}}


def manifest(version: str, kind: str, spec: dict[str, Any], **annotations: str) -> str:
    meta = {"name": "llama-job", "annotations": {STATED[field]: value for field, value in annotations.items()}}
    return yaml.safe_dump({"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec})


def values(job: ForeignJob) -> dict[str, str]:
    return {field: each.value for field, each in job.fields.items()}


def read_script(text: str, **options: Any) -> ForeignJob:
    return read(Source("job.sh", text, options.pop("beside", {})), **options)


def read_yaml(text: str, **options: Any) -> ForeignJob:
    return read(Source("job.yaml", text, options.pop("beside", {})), **options)


COMMAND = ["bash", "-c", MEGATRON.replace("$SLURM_NNODES", "4")]
KINDS = {
    "Job": ("batch/v1", "Job", {"parallelism": 4, "template": pod(COMMAND)}),
    "JobSet": (
        "jobset.x-k8s.io/v1alpha2",
        "JobSet",
        {
            "replicatedJobs": [
                {"name": "a", "replicas": 2, "template": {"spec": {"parallelism": 2, "template": pod(COMMAND)}}}
            ]
        },
    ),
    "PyTorchJob": (
        "kubeflow.org/v1",
        "PyTorchJob",
        {
            "pytorchReplicaSpecs": {
                "Master": {"template": pod(COMMAND)},
                "Worker": {"replicas": 3, "template": pod(COMMAND)},
            }
        },
    ),
    "MPIJob": (
        "kubeflow.org/v2beta1",
        "MPIJob",
        {
            "mpiReplicaSpecs": {
                "Launcher": {"template": pod(["mpirun", *COMMAND], 0)},
                "Worker": {"replicas": 4, "template": pod(["sleep", "1"])},
            }
        },
    ),
    "MPIJob v1": (
        "kubeflow.org/v1",
        "MPIJob",
        {
            "mpiReplicaSpecs": {
                "Launcher": {"template": pod(["mpirun", *COMMAND], 0)},
                "Worker": {"replicas": 4, "template": pod(["sleep", "1"])},
            }
        },
    ),
    "Volcano Job": (
        "batch.volcano.sh/v1alpha1",
        "Job",
        {"tasks": [{"name": "w", "replicas": 4, "template": pod(COMMAND)}]},
    ),
    "RayJob": (
        "ray.io/v1",
        "RayJob",
        {
            "entrypoint": COMMAND[2],
            "rayClusterSpec": {
                "headGroupSpec": {"template": pod([], 0)},
                "workerGroupSpecs": [{"groupName": "g", "replicas": 4, "template": pod([])}],
            },
        },
    ),
    "TrainJob": (
        "trainer.kubeflow.org/v1alpha1",
        "TrainJob",
        {
            "runtimeRef": {"name": "torch"},
            "trainer": {"numNodes": 4, "command": COMMAND, "resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}}},
        },
    ),
    "LeaderWorkerSet": (
        "leaderworkerset.x-k8s.io/v1",
        "LeaderWorkerSet",
        {"replicas": 1, "leaderWorkerTemplate": {"size": 4, "workerTemplate": pod(COMMAND)}},
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_says_how_many_gpus_and_what_is_trained(kind: str) -> None:
    job = read_yaml(manifest(*KINDS[kind]))
    found = values(job)
    assert (job.kind, job.trainer, job.refused, job.missing) == (kind, "megatron", "", ())
    assert (found["nodes"], found["gpus_per_node"], found["gpus"]) == ("4", "8", "32")
    assert (found["tensor"], found["pipeline"], found["data"], found["zero_stage"]) == ("4", "2", "4", "1")
    assert (found["sequence_length"], found["global_batch_size"], found["steps"], found["precision"]) == (
        "8192",
        "256",
        "1000",
        "bf16",
    )


def test_a_ray_cluster_says_how_many_gpus_alone() -> None:
    spec = KINDS["RayJob"][2]["rayClusterSpec"]
    job = read_yaml(manifest("ray.io/v1", "RayCluster", spec))
    assert values(job) == {"nodes": "4", "gpus_per_node": "8", "gpus": "32"}
    assert job.missing == ("sequence_length", "global_batch_size", "steps", "model")


def test_every_kind_of_the_table_is_tried() -> None:
    groups = {name for name, row in kinds().items() if row.members}  # controller/test_place_groups.py
    assert {*kinds()} == {*KINDS, "RayCluster", "LLMTrainingJob", *groups}


def test_a_train_job_is_laid_over_its_runtime() -> None:
    template = {
        "spec": {
            "containers": [
                {"name": "node", "image": "i", "command": COMMAND, "resources": {"limits": {"nvidia.com/gpu": 8}}}
            ]
        }
    }
    labels = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}
    jobs = [{"name": "node", "template": {"metadata": labels, "spec": {"template": template}}}]
    runtime = manifest(
        "trainer.kubeflow.org/v1alpha1",
        "TrainingRuntime",
        {"mlPolicy": {"numNodes": 2}, "template": {"spec": {"replicatedJobs": jobs}}},
    )
    runtime = runtime.replace("llama-job", "mine")
    text = manifest("trainer.kubeflow.org/v1alpha1", "TrainJob", {"runtimeRef": {"name": "mine"}, "trainer": {}})
    for job in (read_yaml(runtime + "---\n" + text), read_yaml(text, beside={"runtime.yaml": runtime})):
        assert values(job)["gpus"] == "16"
        assert job.missing == ()
    assert any("runtime" in note for note in read_yaml(text).notes)


@pytest.mark.parametrize(
    ("options", "nodes", "per_node", "gpu_type"),
    [
        ("-N 2\n#SBATCH --gres=gpu:h100:8", "2", "8", "H100"),
        ("--nodes=2 --gpus-per-node=a100:4", "2", "4", "A100"),
        ("--nodes 2\n#SBATCH --gres gpu:8", "2", "8", ""),
        ("--nodes=2 --ntasks-per-node=4 --gpus-per-task=1", "2", "4", ""),
        ("--nodes=2\n#SBATCH --ntasks=8 --gpus-per-task=2", "2", "8", ""),
        ("--nodes=4\n#SBATCH --gpus=32   # all of them", "4", "8", ""),
        ("--nodes=2 -G v100:16", "2", "8", "V100"),
        ("--nodes=2 --gpus-per-node=8 --constraint=h200", "2", "8", "H200"),
        ("--nodes=NUM_NODES --gres=gpu:PER_NODE", "", "8", ""),
    ],
)
def test_slurm_options(options: str, nodes: str, per_node: str, gpu_type: str) -> None:
    found = values(read_script(f"#!/bin/bash\n#SBATCH {options}\nsrun {MEGATRON}\n"))
    assert (found.get("nodes", ""), found.get("gpus_per_node", ""), found.get("gpu_type", "")) == (
        nodes,
        per_node,
        gpu_type,
    )


TRAINERS = {
    "torchtitan": (
        "torchrun --nproc_per_node=8 -m torchtitan.train --job.config_file llama3_8b.toml --training.steps=20",
        {
            "llama3_8b.toml": "[training]\nlocal_batch_size = 2\nseq_len = 8192\nsteps = 9\n"
            "[parallelism]\ntensor_parallel_degree = 2\ndata_parallel_shard_degree = 4\n"
        },
        {
            "model": "llama3_8b",
            "steps": "20",
            "micro_batch_size": "2",
            "sequence_length": "8192",
            "tensor": "2",
            "data": "4",
        },
    ),
    "axolotl": (
        "accelerate launch -m axolotl.cli.train conf/qwen.yml",
        {
            "qwen.yml": "base_model: Qwen/Qwen2.5-7B\nsequence_len: 4096\nmicro_batch_size: 2\n"
            "gradient_accumulation_steps: 4\nnum_epochs: 3\nbf16: auto\n"
        },
        {"model": "Qwen/Qwen2.5-7B", "sequence_length": "4096", "micro_batch_size": "2", "epochs": "3"},
    ),
    "hugging-face": (
        "accelerate launch --num_machines 2 --num_processes 16 sft.py --model_name_or_path meta-llama/Llama-3.1-8B "
        "--per_device_train_batch_size 2 --gradient_accumulation_steps 4 --max_steps 100 "
        "--max_seq_length 2048 --bf16 True --deepspeed ds.json",
        {"ds.json": json.dumps({"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}})},
        {
            "model": "meta-llama/Llama-3.1-8B",
            "gpus": "16",
            "nodes": "2",
            "global_batch_size": "128",
            "zero_stage": "3",
            "precision": "bf16",
        },
    ),
    "torchtune": (
        "tune run --nproc_per_node 4 full_finetune_distributed --config my.yaml batch_size=4 epochs=2",
        {"my.yaml": "tokenizer: {max_seq_len: 4096}\nbatch_size: 2\ndtype: bf16\n"},
        {"micro_batch_size": "4", "epochs": "2", "sequence_length": "4096", "precision": "bf16", "gpus_per_node": "4"},
    ),
    "nanotron": (
        "torchrun --nproc_per_node=8 nanotron/run_train.py --config-file c.yaml",
        {
            "c.yaml": "parallelism: {tp: 2, pp: 2, dp: 2}\ntokens: {micro_batch_size: 2, "
            "batch_accumulation_per_replica: 4, sequence_length: 2048, train_steps: 50}\n"
        },
        {"tensor": "2", "pipeline": "2", "data": "2", "steps": "50", "global_batch_size": "16"},
    ),
    "nemo": (
        "python /opt/NeMo/examples/nlp/language_modeling/megatron_gpt_pretraining.py trainer.num_nodes=2 "
        "trainer.devices=8 "
        "++model.tensor_model_parallel_size=4 model.pipeline_model_parallel_size=1 model.global_batch_size=64 "
        "model.encoder_seq_length=4096 trainer.max_steps=10 trainer.precision=bf16-mixed",
        {},
        {
            "nodes": "2",
            "gpus": "16",
            "tensor": "4",
            "data": "4",
            "global_batch_size": "64",
            "sequence_length": "4096",
            "steps": "10",
        },
    ),
    "olmo": (
        "torchrun --nproc_per_node=8 OLMo/scripts/train.py configs/OLMo-1B.yaml --max_duration=100",
        {
            "OLMo-1B.yaml": "global_train_batch_size: 512\n"
            "model: {d_model: 2048, n_heads: 16, n_layers: 16, max_sequence_length: 2048}\n"
        },
        {"steps": "100", "global_batch_size": "512", "layers": "16", "sequence_length": "2048"},
    ),
    "megatron": (MEGATRON, {}, {"layers": "32", "tensor": "4"}),
}


@pytest.mark.parametrize("trainer", TRAINERS)
def test_trainers_are_told_by_arguments_and_configs(trainer: str) -> None:
    command, files, expected = TRAINERS[trainer]
    job = read_script(f"#!/bin/bash\n{command}\n", beside=files)
    assert job.trainer == trainer
    assert {field: values(job).get(field) for field in expected} == expected


@pytest.mark.parametrize("wrapped", ["python -m trimtab.launch --", "python3 -m trimtab.launch --wait 9 --optional --"])
@pytest.mark.parametrize("trainer", ["megatron", "torchtitan"])
def test_what_hands_the_plan_over_is_read_through(trainer: str, wrapped: str) -> None:
    command, files, _ = TRAINERS[trainer]
    plain, job = (read_script(f"#!/bin/bash\n{words}\n", beside=files) for words in (command, f"{wrapped} {command}"))
    assert (job.trainer, values(job)) == (plain.trainer, values(plain))


def test_a_config_that_is_not_there_is_asked_for() -> None:
    command, _, _ = TRAINERS["torchtune"]
    job = read_script(f"#!/bin/bash\n{command}\n")
    assert any("my.yaml" in note and "--with" in note for note in job.notes)
    assert "sequence_length" not in job.fields


def test_what_is_known_only_when_it_runs_is_told_and_never_guessed() -> None:
    job = read_script("#!/bin/bash\ntorchrun pretrain_gpt.py --seq-length $LENGTH --num-layers $(count)\n")
    assert {"sequence_length", "layers"} <= job.unknown.keys()
    assert not {"sequence_length", "layers"} & job.fields.keys()


def test_arguments_alone_and_the_model_of_a_train_job_are_read() -> None:
    spec = {
        "initializer": {"model": {"storageUri": "hf://meta-llama/Llama-3.2-1B-Instruct"}},
        "trainer": {"args": ["epochs=1.0", "dtype=bf16", "max_steps=1e3"], "numNodes": 2},
    }
    job = read_yaml(manifest("trainer.kubeflow.org/v1alpha1", "TrainJob", spec))
    found = values(job)
    assert (found["model"], found["epochs"], found["steps"]) == ("meta-llama/Llama-3.2-1B-Instruct", "1", "1000")
    assert job.fields["model"].source == "spec.initializer.model.storageUri"


def test_runs_that_differ_are_told_and_one_can_be_picked() -> None:
    script = f"#!/bin/bash\nfor T in 2 4; do {MEGATRON.replace('size 4', 'size $T')}; done\n"
    job = read_script(script)
    assert "tensor" not in job.fields
    assert job.unknown["tensor"] == "its runs differ"
    assert any("--run" in note for note in job.notes)
    assert values(read_script(script, choice=2))["tensor"] == "4"
    with pytest.raises(UsageError, match="2 different runs"):
        read_script(script, choice=3)


def test_what_the_user_states_counts_first_then_annotations() -> None:
    text = manifest(*KINDS["Job"], steps="7", model="llama3-8b")
    assert values(read_yaml(text))["steps"] == "7"
    assert values(read_yaml(text, stated={"steps": "9"}))["steps"] == "9"
    with pytest.raises(UsageError, match="no such field"):
        read_yaml(text, stated={"stepz": "9"})
    with pytest.raises(UsageError, match=r"steps.*no whole number"):
        read_yaml(text, stated={"steps": "many"})
    with pytest.raises(UsageError, match=r"job.yaml: trimtab.dev/steps is 'x'"):
        read_yaml(manifest(*KINDS["Job"], steps="x"))


@pytest.mark.parametrize(
    ("command", "image", "why"),
    [
        ("python mnist.py --epochs 3", "pytorch", "MNIST"),
        ("torchrun main.py --arch resnet50", "pytorch", "image model"),
        (
            "python -m vllm.entrypoints.openai.api_server --model meta-llama/Llama-3.1-8B",
            "vllm/vllm-openai",
            "inference",
        ),
        ("nginx -g daemon", "nginx:1", "web server"),
        ("all_reduce_perf -b 8", "nccl-tests", "network"),
        ("sleep infinity", "ubuntu", "train nothing"),
        ("nvidia-smi", "nvidia/cuda", "train nothing"),
        ("python train.py --image-size 224 --num-layers 12", "pytorch", "image"),
    ],
)
def test_what_trains_no_llm_is_refused(command: str, image: str, why: str) -> None:
    text = (
        manifest("batch/v1", "Job", {"template": pod(command.split())})
        .replace("trainer:1", image)
        .replace("llama-job", "demo")
    )
    assert why in read_yaml(text).refused


def test_no_accelerator_and_no_model_is_no_training_of_an_llm() -> None:
    assert (
        "no accelerator"
        in read_yaml(
            manifest("batch/v1", "Job", {"template": pod(["python", "x.py"], 0)}).replace("llama-job", "a")
        ).refused
    )


@pytest.mark.parametrize(
    ("resource", "called"),
    [("google.com/tpu", "Google TPU"), ("aws.amazon.com/neuron", "AWS Neuron (Trainium or Inferentia)")],
)
def test_other_accelerators_are_told(resource: str, called: str) -> None:
    job = read_yaml(manifest("batch/v1", "Job", {"template": pod(COMMAND, resource=resource)}))
    assert job.unsupported == called
    assert values(job)["gpus"] == "8"


@pytest.mark.parametrize(
    ("spec", "gpu_type"),
    [
        ({"nodeSelector": {"cloud.google.com/gke-accelerator": "nvidia-h100-mega-80gb"}}, "H100-SXM5-80GB"),
        ({"nodeSelector": {"node.kubernetes.io/instance-type": "p5en.48xlarge"}}, "H200-SXM5-141GB"),
        ({"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}}, "A100-SXM4-40GB"),
        ({"nodeSelector": {"accelerator": "a100"}}, "A100"),
        ({"nodeSelector": {"pool": "x"}}, ""),
    ],
)
def test_node_selectors_name_gpu_types(spec: dict[str, Any], gpu_type: str) -> None:
    assert (
        values(read_yaml(manifest("batch/v1", "Job", {"template": pod(COMMAND, **spec)}))).get("gpu_type", "")
        == gpu_type
    )


def test_pods_and_trainer_that_contradict_one_another_are_told() -> None:
    command = [
        "python",
        "megatron_gpt_pretraining.py",
        "trainer.num_nodes=2",
        "trainer.devices=4",
        "exp_manager.exp_dir=/x",
    ]
    job = read_yaml(manifest("batch/v1", "Job", {"parallelism": 8, "template": pod(command, 1)}))
    assert any("8 × 1" in note and "2 × 4" in note for note in job.notes)
    assert values(job)["gpus"] == "8"
    assert "nodes" not in job.fields


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("apiVersion: v1\nkind: Pod\n", "it holds Pod"),
        ("kind: Job\nspec: {{ .Values.x }}\n", "render it first"),
        ("kind: Job\n  x: [", "no YAML"),
        ("kind: Job\na: &a [*a, *a]\n", "no YAML"),
        ("", "it holds nothing"),
    ],
)
def test_what_cannot_be_read_is_refused_by_the_name_of_the_file(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=r"job\.yaml") as error:
        read_yaml(text)
    assert why in str(error.value)


def test_the_tables_name_only_fields_that_are_known() -> None:
    known = {
        *STATED,
        "micro_batch_size",
        "gradient_accumulation",
        "data",
        "data_shard",
        "data_replicate",
        "samples",
        "epochs",
    }
    known |= {
        "global_batch_tokens",
        "micro_batch_tokens",
        "sharding",
        "distributed_type",
        "family",
        "flavor",
        "recipe",
        "config",
        "duration",
    }
    used = {field for trainer in trainers().trainers.values() for field in trainer.names} | {*trainers().common}
    assert used - known == set()


def test_who_states_the_model_is_believed_whatever_the_words_of_the_command() -> None:
    container = {"name": "t", "image": "i", "command": ["sklearn"], "resources": {"limits": {"nvidia.com/gpu": 8}}}
    job: dict[str, Any] = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "j"},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }
    source = Source("j.yaml", yaml.safe_dump(job))
    assert "sklearn" in read(source).refused
    assert read(source, {"model": "llama3-8b"}).refused == ""
    job["metadata"]["annotations"] = {"trimtab.dev/model": "llama3-8b"}
    assert read(Source("j.yaml", yaml.safe_dump(job))).refused == ""


def test_a_model_is_not_read_out_of_a_name_of_which_that_very_part_is_not_known() -> None:
    """`gpt`, and then what only the running script knows."""
    assert "model" not in read_script('torchrun --nproc_per_node=8 "pretrain_gpt$X.py"').fields
    said = read_script('torchrun --nproc_per_node=8 "$X/train_llama2_7b_$Y.py"').fields["model"]
    assert (said.value, said.source) == ("llama2_7b", "the name of train_llama2_7b_$(Y).py")
