"""What the API server makes of our schema for users: defaults filled in, documentation in `kubectl explain`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trimtab_local.control_plane.kubeconfig import kubectl

pytestmark = pytest.mark.cluster


def test_defaults_are_filled_in(kubeconfig: Path, job: Callable[..., dict[str, Any]]) -> None:
    stored = kubectl(kubeconfig, "create", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(job()))
    spec = json.loads(stored)["spec"]
    assert spec["training"] | {"precision": "BF16", "optimizer": "AdamW"} == spec["training"]
    assert spec["parallelism"] == {"mode": "Auto"}
    assert spec["elasticity"] == {
        "policy": "Moldable",
        "checkpoint": {"graceSeconds": 120, "resharding": False},
        "minRuntimeSeconds": 600,
    }
    assert (spec["launcher"], spec["maxRestarts"], spec["suspend"]) == ("Torchrun", 3, False)


@pytest.mark.parametrize(
    "field", ["spec", "spec.resources.gpus", "spec.parallelism.mode", "status.plan", "spec.template.spec.containers"]
)
def test_explain_reads_like_documentation(kubeconfig: Path, field: str) -> None:
    text = kubectl(kubeconfig, "explain", f"ltj.{field}")
    assert "DESCRIPTION:" in text
    assert "<empty>" not in text
