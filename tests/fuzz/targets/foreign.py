"""Training jobs of other kinds, and the scripts in them: whatever strangers wrote is read, or refused in words.

Nothing is executed, and nothing takes long: not loops that unfold, not variables that double, not patterns, not YAML
that refers to itself. What is read can be told, converted or asked for.
"""

from __future__ import annotations

import json
from typing import Any

import yaml
from tests.fuzz.draw import Draw, Json
from tests.fuzz.target import Target

from trimtab.errors import UsageError
from trimtab.foreign import convert
from trimtab.foreign.read import Source, read

_WORDS = (
    *(
        "torchrun",
        "srun",
        "python",
        "-m",
        "torchtitan.train",
        "pretrain_gpt.py",
        "bash",
        "-c",
        "sbatch",
        "eval",
        "tune run",
    ),
    *(
        "--nnodes=2",
        "--tensor-model-parallel-size",
        "8",
        "--seq-length",
        "$X",
        "${X:-4}",
        "$((X*2))",
        "$(echo 8)",
        "`id`",
    ),
    *(
        "X=8",
        "X+=1",
        "A=(1 2)",
        "A+=(3)",
        "${A[@]}",
        '"${A[@]}"',
        "${X//a/b}",
        "${X%%*a*a*a*}",
        "${X,,}",
        "${#A[@]}",
        "export",
    ),
    *(
        "if",
        "[",
        "]",
        "[[",
        "]]",
        "-z",
        "=",
        "==",
        "then",
        "else",
        "elif",
        "fi",
        "for",
        "in",
        "do",
        "done",
        "while",
        "case",
    ),
    *(
        "esac",
        "x)",
        ";;",
        "{",
        "}",
        "(",
        ")",
        "&&",
        "||",
        "|",
        ";",
        "\n",
        "\\\n",
        "'",
        '"',
        "<<EOF\n",
        "\nEOF\n",
        "<<<",
        ">f.sh",
    ),
    *(
        "f()",
        "f",
        "return",
        "exit",
        "1",
        "shift",
        "set",
        "--",
        "read",
        "#SBATCH --nodes=2\n",
        "#SBATCH --gres=gpu:h100:8\n",
    ),
    *(
        "model.tensor_model_parallel_size=4",
        "--config",
        "c.yaml",
        "${",
        "$(",
        "$((",
        "<PATH TO X>",
        "\x00",
        "((i++))",
        ".",
    ),
)
_KINDS = (
    ("batch/v1", "Job"),
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"),
    ("jobset.x-k8s.io/v1alpha2", "JobSet"),
    ("kubeflow.org/v1", "PyTorchJob"),
    ("kubeflow.org/v2beta1", "MPIJob"),
    ("batch.volcano.sh/v1alpha1", "Job"),
    ("ray.io/v1", "RayJob"),
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"),
)
_STATED = {
    "model": "gpt2",
    "sequence_length": "1024",
    "global_batch_size": "64",
    "steps": "10",
    "gpus": "8",
    "image": "i",
}


def _script(draw: Draw) -> str:
    return "#!/bin/bash\n" + "".join(
        draw.pick(_WORDS) + draw.pick((" ", " ", "\n", "")) for _ in range(draw.below(120))
    )


def _object(draw: Draw) -> Json:
    version, kind = draw.pick(_KINDS)
    container: Json = {"name": "node", "image": "i", "command": ["bash", "-c", _script(draw)]}
    container["resources"] = {
        "limits": {draw.pick(("nvidia.com/gpu", "amd.com/gpu", "google.com/tpu")): draw.pick((8, "1", "x", None))}
    }
    template: Any = {"metadata": draw.json(1), "spec": {"containers": [container], "nodeSelector": draw.json(1)}}
    inner = {"spec": {"parallelism": draw.pick((2, "2", -1)), "template": template}}
    spec: Json = {
        "template": template,
        "replicatedJobs": [{"name": "a", "replicas": draw.pick((1, 10**30, "9")), "template": inner}],
        "pytorchReplicaSpecs": {"Worker": {"replicas": 2, "template": template}},
        "mpiReplicaSpecs": {"Worker": {"replicas": 2, "template": template}},
        "tasks": [{"replicas": 1, "template": template}],
        "entrypoint": _script(draw),
        "trainer": {"numNodes": draw.pick((2, None, "x")), "command": draw.json(2)},
        "leaderWorkerTemplate": {"size": 2, "workerTemplate": template},
    }
    return {"apiVersion": version, "kind": kind, "metadata": draw.json(1), "spec": draw.spoiled(spec)}


def _source(draw: Draw, data: bytes) -> Source:
    beside = {"c.yaml": draw.pick(("training: {steps: 3}", "a: &a [*a]", "[" * 90, "x: 1")), "f.sh": _script(draw)}
    match draw.below(4):
        case 0:
            return Source("job.sh", data.decode("utf-8", "replace"), beside)
        case 1:
            return Source("job.yaml", data.decode("utf-8", "replace"), beside)
        case 2:
            return Source("job.sh", _script(draw), beside)
    return Source("job.yaml", yaml.safe_dump(json.loads(json.dumps(_object(draw), default=str))), beside)


def run(data: bytes) -> None:
    """One file is read, and converted where it says enough."""
    draw = Draw(data)
    source = _source(draw, data)
    for stated in ({}, _STATED):
        try:
            job = read(source, stated)
        except UsageError as error:
            assert str(error)
            continue
        assert all(each.source and "\x00" not in each.value for each in job.fields.values()), job.fields
        assert not {*job.missing} & {"gpus"} or "gpus" not in job.fields
        for make in convert.TARGETS.values():
            try:
                made = make(job)
            except UsageError as error:
                assert str(error)
            else:
                assert all(yaml.safe_dump(document) for document in made.documents)


TARGET = Target("training jobs of other kinds and their scripts: read, and converted", run)
