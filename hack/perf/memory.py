"""Memory: Megatron-LM's golden values, published readings, runs that ran and runs that did not fit.

How each framework holds its bytes, and which golden values are beyond the model, is written down where it is asserted:
`tests/policy/perf/test_memory_measured.py`. The figures are those of the tests, from their functions.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from hack.perf.figures import Figure, Section
from tests.policy.perf import test_memory_measured as held

from trimtab_policy.perf import memory, plan_arrays
from trimtab_policy.perf.plan_arrays import FULL
from trimtab_policy.specs import TrainingSpec

GOLDENS, RUNS = "megatron_goldens.csv", "llm_training_throughput.csv"


def figures(tables: Path) -> Section:
    """All about memory, of the tables in this folder."""
    return Section("Memory", [*_goldens(_rows(tables / GOLDENS)), *_runs(_rows(tables / RUNS)), _failures()])


def _rows(path: Path) -> list[held.Row]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _goldens(rows: list[held.Row]) -> list[Figure]:
    explained = [row for row in rows if held.reason(row["case"])]
    errors = np.abs([held.golden(row).error for row in rows if not held.reason(row["case"])])
    excuse = f"{len(errors)} readings; {len(explained)} more need what the model leaves out (named in the tests)"
    return [
        Figure("largest error of a golden value's peak", float(errors.max()), 0.05, note=excuse),
        Figure("mean error of the golden values' peaks", float(errors.mean())),
    ]


def _runs(rows: list[held.Row]) -> list[Figure]:
    ran = held.runs([row for row in rows if row["act_recompute"] != "selective-op"])
    lowest = ran.plans._replace(recompute=np.where(held.stated(rows, ran), ran.plans.recompute, FULL))
    room = np.array([gpu.memory_bytes for gpu in ran.gpus], dtype=np.float64)
    refused = {ran.names[i] for i in np.flatnonzero(held.found_for(ran, lowest).required > room)}
    published = ran.take(np.isfinite(ran.memory))
    errors = held.errors_by_source(published, held.found_for(published).required)
    mean = float(np.abs(held.found_for(published).required / published.memory - 1).mean())
    worst = max(errors, key=lambda name: errors[name])
    at_odds = f"{len(refused & set(held.AT_ODDS))} more whose table does not say how they fitted (named in the tests)"
    return [
        Figure(
            "runs that ran and are called infeasible",
            len(refused - set(held.AT_ODDS)) / len(ran.names),
            0,
            note=at_odds,
        ),
        Figure("error of other published readings, mean", mean, 0.12, note=f"{len(published.names)} readings"),
        Figure(f"error of the worst source of them: {worst}", errors[worst]),
    ]


def _failures() -> Figure:
    refused = [_needs(failure) > failure.capacity for failure in held.OUT_OF_MEMORY.values()]
    share = sum(refused) / len(refused)
    return Figure(
        "published out-of-memory cases that are refused", share, 1.0, at_least=True, note=f"{len(refused)} cases"
    )


def _needs(failure: held.Failure) -> float:
    """Bytes that the formulas ask for at least."""
    job = plan_arrays.work(failure.model, TrainingSpec(failure.sequence, 2240, 1, failure.precision))
    eager = float(failure.eager)
    plan = plan_arrays.columns([failure.plan])
    found = memory.footprint(job, plan, fused_attention=1 - eager, dropout=eager, loss_bytes=memory.IN_PLACE)
    return float(found.required[0])
