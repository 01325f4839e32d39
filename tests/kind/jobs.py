"""The jobs of these tests: gangs that only meet, and trainings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trimtab

MEETING = (Path(__file__).parent / "meeting.py").read_text()
SHARED = "/shared"
"""What hack/kind/up mounts on all nodes: one directory of the machine."""


def meeting(name: str, *, seconds: float, gpus: int = 2) -> dict[str, Any]:
    """Of a pod per GPU, since nodes have one each; all of them meet for so long."""
    container = {"image": _image("operator"), "command": ["python", "-c", MEETING, str(seconds)]}
    return _job(name, gpus, "Custom", container)


def training(name: str, *, steps: int, gpus: int = 2) -> dict[str, Any]:
    """torchrun on CPUs: a tiny GPT, with checkpoints and a history in the directory that all pods share."""
    files = [f"--checkpoints={SHARED}/{name}", f"--history={SHARED}/{name}.jsonl"]
    container = {
        "image": _image("trainer"),
        "command": ["torchrun", "/opt/trimtab/train.py", *files, "--pause=0.3"],
        "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
        "volumeMounts": [{"name": "shared", "mountPath": SHARED}, {"name": "tmp", "mountPath": "/tmp"}],
    }
    job = _job(name, gpus, "Torchrun", container)
    spec = job["spec"]
    spec["training"] = {"sequenceLength": 64, "globalBatchSize": 16, "steps": steps}
    spec["parallelism"] = {"mode": "Data", "zeroStage": 0}
    spec["elasticity"] = {
        "policy": "Elastic",
        "minRuntimeSeconds": 0,
        "checkpoint": {"graceSeconds": 300, "resharding": True},
    }
    spec["resources"]["gpus"]["min"] = gpus
    spec["template"]["spec"]["volumes"] = [
        {"name": "shared", "hostPath": {"path": SHARED}},
        {"name": "tmp", "emptyDir": {}},
    ]
    return job


def _job(name: str, gpus: int, launcher: str, container: dict[str, Any]) -> dict[str, Any]:
    usual = {"name": "trainer", "imagePullPolicy": "Never", "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}}}
    return {
        "apiVersion": "trimtab.dev/v1alpha1",
        "kind": "LLMTrainingJob",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "model": {"preset": "gpt2"},
            "training": {"sequenceLength": 1024, "globalBatchSize": 64, "steps": 100000},
            "resources": {"gpus": {"max": gpus}},
            "elasticity": {"policy": "Fixed"},
            "launcher": launcher,
            "template": {"spec": {"containers": [usual | container], "terminationGracePeriodSeconds": 5}},
        },
    }


def _image(target: str) -> str:
    return f"trimtab-{target}:{trimtab.__version__}"
