"""Which jobs arrive when: the samples, one after another, so that later ones find GPUs taken and choose or wait."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct

from trimtab.names import JOB_KIND
from trimtab_local.checkout import checkout

PROFILE = "heterogeneous"
"""The fake nodes: manifests/fake/heterogeneous.yaml."""
SPEEDUP = 1800.0
"""One second of the demo is half an hour of training."""


class Arrival(Struct, frozen=True):
    """A manifest of manifests/samples and when it is applied: not before the job before it was decided about."""

    pause: float
    """Seconds after the answer to the last one. Counting from the answer makes the run the same on a slow machine."""
    sample: str
    name: str = ""
    """Name of the job where it differs from the sample's."""
    completes: bool = True
    """False for the job that can never run."""

    @property
    def file(self) -> Path:
        return checkout() / "manifests" / "samples" / f"{self.sample}.yaml"

    def manifest(self) -> dict[str, Any]:
        """The object to apply."""
        document: dict[str, Any] = yaml.safe_load(self.file.read_text())
        if self.name:
            document["metadata"]["name"] = self.name
        return document

    def job(self) -> str:
        """Name of the job; empty for anything else."""
        document = self.manifest()
        return str(document["metadata"]["name"]) if document["kind"] == JOB_KIND else ""


ARRIVALS = (
    Arrival(0.0, "queue-research"),
    Arrival(0.0, "llama3-70b"),
    Arrival(1.2, "mixtral-8x7b"),
    Arrival(0.3, "opt-13b-fixed"),
    Arrival(0.3, "llama3-8b"),
    Arrival(0.3, "qwen-7b-elastic"),
    Arrival(0.3, "gpt3-13b"),
    Arrival(0.3, "gpt2-124m"),
    Arrival(0.3, "bert-finetune"),
    Arrival(0.3, "opt-13b-fixed", name="opt-13b-again"),
    Arrival(0.3, "llama-405b-impossible", completes=False),
)
