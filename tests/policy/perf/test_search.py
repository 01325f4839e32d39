"""The vectorised search: its bounds hold, and leaving plans untimed changes nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.policy.perf.architectures import models

from trimtab_policy import catalog
from trimtab_policy.perf import hardware, plan_space, search
from trimtab_policy.perf.hardware import GpuRates
from trimtab_policy.perf.search import PlanTable
from trimtab_policy.specs import GpuSpec, ModelSpec, Precision, TrainingSpec
from trimtab_policy.types import Bounds, Requirements

GPUS = [gpu for gpu in catalog.all_gpus() if Precision.FP16 in gpu.peak_flops]


@st.composite
def tables(draw: st.DrawFn) -> tuple[PlanTable, list[GpuRates], list[GpuSpec]]:
    """A small job of any architecture, and some GPU types for it."""
    batch, sequence = draw(st.sampled_from([8, 24, 64])), draw(st.sampled_from([2048, 16384]))
    training = TrainingSpec(sequence, batch, 1, Precision.FP16)
    need = Requirements(gpus=Bounds(1, draw(st.sampled_from([4, 16]))))
    gpus = draw(st.lists(st.sampled_from(GPUS), min_size=1, max_size=3))
    machines = [hardware.machine(gpu, Precision.FP16) for gpu in gpus]
    return search.table(draw(models()), training, need, plan_space.gangs(need, 8)), machines, gpus


@settings(max_examples=60)
@given(tables(), st.floats(0.05, 1.0))
def test_leaving_out_what_cannot_win_changes_nothing(
    case: tuple[PlanTable, list[GpuRates], list[GpuSpec]], share: float
) -> None:
    found, machines, gpus = case
    room = np.array([gpu.memory_bytes * share for gpu in gpus])
    every, chosen = search.fitting(found, machines, room), search.fastest(found, machines, room)
    best: dict[tuple[int, int], tuple[float, int]] = {}
    for machine, pair, seconds in zip(every.machine, every.pair, every.seconds, strict=True):
        key = int(machine), int(found.gang[pair])
        best[key] = min(best.get(key, (np.inf, 0)), (float(seconds), int(pair)))
    picked = zip(chosen.machine, chosen.pair, chosen.seconds, strict=True)
    assert {(int(m), int(found.gang[pair])): (float(s), int(pair)) for m, pair, s in picked} == best


@settings(max_examples=60)
@given(tables())
def test_no_plan_is_faster_than_its_bound(case: tuple[PlanTable, list[GpuRates], list[GpuSpec]]) -> None:
    found, machines, _ = case
    every = search.fitting(found, machines, np.full(len(machines), np.inf))
    least = search.bounds(found, machines)
    assert least.size == len(every.seconds)
    assert (least[every.machine, every.pair] <= every.seconds).all()
    assert (least > 0).all()


@settings(max_examples=30)
@given(models(), st.sampled_from([1, 4, 8]))
def test_every_pair_is_a_plan_on_a_gang_of_its_size(model: ModelSpec, width: int) -> None:
    gangs = [(2, 4), (1, 8), (16 // width, width), (4, 3)]
    found = search.table(model, TrainingSpec(2048, 48, 1), Requirements(gpus=Bounds(1, 64)), gangs)
    plans, gpus_per_node = found.plans.take(found.plan), found.widths[found.gang]
    assert (plans.gpus == found.nodes[found.gang] * gpus_per_node).all()
    assert (gpus_per_node % plans.tensor == 0).all()
    assert ((plans.shard == 0) | (plans.shard * plans.tensor == gpus_per_node)).all()
    possible = sum(
        int(((found.plans.gpus == n * w) & (w % found.plans.tensor == 0) & (found.plans.shard == 0)).sum())
        for n, w in gangs
    )
    assert (plans.shard == 0).sum() == possible
    assert (np.diff(found.gang) >= 0).all()


def test_little_of_a_large_space_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """70B on six GPU types and up to 1,024 GPUs: the bounds leave a tenth of what fits, and what repeats."""
    timed: list[int] = []
    step_time = search.speed.step_time

    def counted(*arguments: object) -> object:
        result = step_time(*arguments)
        timed.append(result.compute.size)
        return result

    need, training = Requirements(gpus=Bounds(1, 1024)), TrainingSpec(8192, 1024, 1)
    names = ["A100-SXM4-40GB", "A100-SXM4-80GB", "H100-SXM5-80GB", "H200-SXM5-141GB", "L40S", "MI300X"]
    gpus = [catalog.gpu(name) for name in names]
    machines = [hardware.machine(gpu, training.precision) for gpu in gpus]
    room = np.array([gpu.memory_bytes for gpu in gpus])
    found = search.table(catalog.model("llama3-70b"), training, need, plan_space.gangs(need, 8))
    every = len(search.fitting(found, machines, room).pair)
    monkeypatch.setattr(search.speed, "step_time", counted)
    search.fastest(found, machines, room)
    assert every > 40_000
    assert sum(timed) < 0.2 * every


def test_nothing_fits_into_no_room() -> None:
    need = Requirements(gpus=Bounds(1, 8))
    found = search.table(catalog.model("gpt2"), TrainingSpec(1024, 8, 1), need, plan_space.gangs(need, 8))
    machine = hardware.machine(catalog.gpu("T4"), Precision.FP16)
    assert len(search.fastest(found, [machine], np.zeros(1)).pair) == 0
    assert len(search.fitting(found, [machine], np.zeros(1)).pair) == 0


def test_a_job_that_nothing_divides_has_an_empty_table() -> None:
    need = Requirements(gpus=Bounds(7, 7), tensor=Bounds(7, 7))
    model = replace(catalog.model("gpt2"), layers=1)
    found = search.table(model, TrainingSpec(1024, 8, 1), need, plan_space.gangs(need, 8))
    assert len(found.plan) == 0
    machine = hardware.machine(catalog.gpu("T4"), Precision.FP16)
    assert len(search.fastest(found, [machine], np.full(1, 1e12)).pair) == 0
