"""What a policy would see, written to a file and read again."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from trimtab.errors import UsageError
from trimtab_policy.inputs import documents
from trimtab_policy.inputs.soundness import problem
from trimtab_policy.observation.features import (
    JOB_FEATURES,
    NODE_FEATURES,
    READING_FEATURES,
    job_features,
    named,
    node_features,
)
from trimtab_policy.types import Snapshot

NEVER = 1e12
"""POSIX seconds of a dump that stand for infinity: some 30,000 years from now."""


def as_features(now: Snapshot) -> dict[str, Any]:
    """Nodes and jobs of a snapshot by name, as `trimtab_policy.observation.features` has them."""
    nodes = named((*READING_FEATURES, *NODE_FEATURES), node_features(now))
    jobs = named(JOB_FEATURES, job_features(now, now.jobs))
    return {
        "time": now.time,
        "nodes": {node.name: row for node, row in zip(now.nodes, nodes, strict=True)},
        "jobs": {f"{job.namespace}/{job.name}": row for job, row in zip(now.jobs, jobs, strict=True)},
    }


def portable(now: Snapshot) -> Snapshot:
    """The snapshot with a number for what never comes: JSON has no infinity."""
    return _with_times(now, lambda time: min(time, NEVER))


def _with_times(now: Snapshot, told: Callable[[float], float]) -> Snapshot:
    jobs = tuple(
        job if (time := told(job.movable_from)) == job.movable_from else replace(job, movable_from=time)
        for job in now.jobs
    )
    return replace(now, jobs=jobs)


def read_snapshot(path: Path) -> Snapshot:
    """Read a dumped snapshot. Raises UsageError naming the file and the field that is wrong."""
    try:
        content = path.read_bytes()
        if path.suffix in (".yaml", ".yml"):
            found = msgspec.convert(documents.parse(content), Snapshot)
        else:
            found = msgspec.json.decode(content, type=Snapshot)
    except OSError as error:
        raise UsageError(f"cannot read snapshot {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no snapshot (make one with `trimtab snapshot -o json`): {error}") from error
    if wrong := problem(found):
        raise UsageError(f"{path} holds what cannot be: {wrong}")
    return _with_times(found, lambda time: math.inf if time >= NEVER else time)
