"""What the tests of the API share: the repository's manifests, and a job to vary."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trimtab_local.control_plane.kubeconfig import kubectl

REPOSITORY = Path(__file__).resolve().parents[2]

_JOB = {
    "apiVersion": "trimtab.dev/v1alpha1",
    "kind": "LLMTrainingJob",
    "metadata": {"name": "job", "namespace": "default"},
    "spec": {
        "model": {
            "architecture": {
                "layers": 8,
                "hiddenSize": 512,
                "attentionHeads": 8,
                "ffnHiddenSize": 2048,
                "vocabSize": 32000,
            }
        },
        "training": {"sequenceLength": 1024, "globalBatchSize": 64, "steps": 100},
        "resources": {"gpus": {"min": 2, "max": 16}},
        "template": {"spec": {"containers": [{"name": "trainer", "image": "trainer:1"}]}},
    },
}

Manifest = dict[str, Any]


def changed(manifest: Manifest, changes: dict[str, Any]) -> Manifest:
    """Return a copy with values set by dotted path (numbers index lists); None takes the field away."""
    result = copy.deepcopy(manifest)
    for path, value in changes.items():
        *parents, last = path.split(".")
        place: Any = result
        for name in parents:
            place = place[int(name)] if isinstance(place, list) else place.setdefault(name, {})
        if value is None:
            place.pop(last, None)
        else:
            place[last] = value
    return result


@pytest.fixture(scope="session")
def job() -> Callable[..., Manifest]:
    """A valid job with changes: `job({"spec.resources.gpus.max": 4})`."""
    return lambda changes=None: changed(_JOB, changes or {})


@pytest.fixture(scope="session")
def repository() -> Path:
    """Root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def kubeconfig(cluster: Any, repository: Path) -> Path:
    """Kubeconfig of the session's cluster, with our CRDs served."""
    path = Path(cluster.kubeconfig)
    kubectl(path, "apply", "--server-side", "--force-conflicts", "-f", str(repository / "manifests" / "crds"))
    kubectl(path, "wait", "--for=condition=Established", "crd/llmtrainingjobs.trimtab.dev", "crd/queues.trimtab.dev")
    return path
