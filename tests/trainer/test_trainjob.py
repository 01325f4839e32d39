"""The sample with two faces: one training as Kubeflow's TrainJob and as our job, each as its own API has it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hack.trainer import train

import trimtab
from trimtab.api.convert import to_model_spec, to_training
from trimtab.api.v1alpha1 import JobSpec
from trimtab.errors import LocalClusterError
from trimtab_local.control_plane.build import find_go
from trimtab_policy import catalog

pytestmark = pytest.mark.timeout(600)

SAMPLES = Path(__file__).resolve().parents[2] / "manifests" / "samples" / "trainjob"
TRAINER = "github.com/kubeflow/trainer/v2@v2.3.0"
CRD = "trainjobs.trainer.kubeflow.org"
THEIRS: dict[str, Any] = yaml.safe_load((SAMPLES / "trainjob.yaml").read_text())
OURS: dict[str, Any] = yaml.safe_load((SAMPLES / "llmtrainingjob.yaml").read_text())
(CONTAINER,) = OURS["spec"]["template"]["spec"]["containers"]


def test_both_run_the_same_command_in_the_same_image_of_this_version() -> None:
    trainer = THEIRS["spec"]["trainer"]
    assert (CONTAINER["image"], CONTAINER["command"]) == (trainer["image"], trainer["command"])
    assert CONTAINER["image"] == f"trimtab-trainer:{trimtab.__version__}"


def test_both_train_the_same_whether_the_script_is_told_by_options_or_by_the_plan() -> None:
    training = to_training(JobSpec.model_validate(OURS["spec"]).training)
    told = {"STEPS": training.steps, "GLOBAL_BATCH_SIZE": training.global_batch_size}
    told |= {"SEQUENCE_LENGTH": training.sequence_length}
    plan = {f"TRIMTAB_{name}": str(value) for name, value in told.items()}
    assert train.options_of(CONTAINER["args"], plan) == train.options_of(THEIRS["spec"]["trainer"]["args"], {})


def test_both_have_the_same_storage_and_ours_has_their_gpus_in_its_range() -> None:
    (patch,) = THEIRS["spec"]["runtimePatches"]
    (job,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = job["template"]["spec"]["template"]["spec"]
    assert pod["volumes"] == OURS["spec"]["template"]["spec"]["volumes"]
    assert pod["containers"][0]["volumeMounts"] == CONTAINER["volumeMounts"]
    trainer, gpus = THEIRS["spec"]["trainer"], OURS["spec"]["resources"]["gpus"]
    assert trainer["resourcesPerNode"]["limits"]["nvidia.com/gpu"] == trainer["numProcPerNode"]
    assert gpus["min"] <= trainer["numNodes"] * trainer["numProcPerNode"] == gpus["max"]


def test_the_model_that_is_predicted_is_the_one_that_the_script_makes() -> None:
    options = train.options_of(THEIRS["spec"]["trainer"]["args"], {})
    made = train.Gpt(options.layers, options.width, options.heads, options.sequence)
    predicted = to_model_spec(JobSpec.model_validate(OURS["spec"]).model)
    assert catalog.parameters(predicted) == sum(each.numel() for each in made.parameters())


@pytest.mark.cluster
def test_a_real_api_server_takes_both_by_their_own_crds(kubectl: Callable[..., str], tmp_path: Path) -> None:
    """Kubeflow's is in its Go module."""
    command = [str(find_go((1, 21))), "mod", "download", "-json", TRAINER]
    got = json.loads(subprocess.run(command, cwd=tmp_path, check=True, capture_output=True).stdout)
    crds = Path(got["Dir"]) / "manifests" / "base" / "crds" / "trainer.kubeflow.org_trainjobs.yaml"
    kubectl("apply", "--server-side", "-f", str(crds))
    try:
        for sign in ("jsonpath={.status.acceptedNames.kind}=TrainJob", "condition=Established"):  # none, at first
            kubectl("wait", f"--for={sign}", f"crd/{CRD}", "--timeout=30s")
        taken = kubectl("apply", "--server-side", "--dry-run=server", "-o", "name", "-f", str(SAMPLES))
        assert sorted(taken.split()) == [
            "llmtrainingjob.trimtab.dev/tiny-gpt",
            "persistentvolumeclaim/checkpoints",
            "trainjob.trainer.kubeflow.org/tiny-gpt",
        ]
        odd = THEIRS | {"spec": THEIRS["spec"] | {"podSpecOverrides": []}}
        with pytest.raises(LocalClusterError, match="podSpecOverrides"):
            kubectl("apply", "--server-side", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(odd))
    finally:
        kubectl("delete", "crd", CRD)
