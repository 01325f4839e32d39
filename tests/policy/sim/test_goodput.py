"""Jobs whose goodput was measured: what runs, what a change costs, and what each form of them is told."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest
from tests.policy.sim import toy_profiles
from tests.policy.sim.toy_jobs import SLOWDOWN, WORK, one, run, speeds, workload
from tests.policy.sim.toy_profiles import cluster, placed, seconds

from trimtab_lab import workloads
from trimtab_lab.goodput import BadJob, Form, Knowledge, Regime, jobs
from trimtab_lab.goodput.profiles import Profiles
from trimtab_lab.goodput.site import Site, pools
from trimtab_lab.workloads.clusters import preset
from trimtab_lab.workloads.trace import Trace, code, constant, trace

SIA = Path(__file__).resolve().parents[3] / "../shared/sia"
needs_sia = pytest.mark.skipif(not SIA.is_dir(), reason="the Sia artifact's data are not at ../shared/sia")


@pytest.fixture
def profiles(tmp_path: Path) -> Profiles:
    return toy_profiles.profiles(tmp_path)


# Life


def test_a_tuned_job_takes_its_steps_at_the_measured_speed(profiles: Profiles) -> None:
    job = one(profiles, Form.TUNED)
    job.place(placed("T4", 2))
    step = seconds((2,), 32)[0] * SLOWDOWN
    gains = 4 / (3 / 4 + 1), 8 / (7 / 4 + 1)
    assert job.advance(100) == 100
    assert job.progress == pytest.approx(100 * gains[0] / step / WORK)
    expected = (1000 / gains[0] + 1016 / gains[1]) * step
    assert job.finish_in() == pytest.approx(expected - 100)
    assert 100 + run(job) == pytest.approx(expected, abs=1), "epochs end on whole seconds"
    assert job.progress == 1
    assert job.advance(60) == 0


def test_its_steps_are_iterations_at_the_requested_batch(profiles: Profiles) -> None:
    job = one(profiles, Form.TUNED)
    assert (job.seen().training.steps, job.seen().training.global_batch_size) == (250, 64)
    job.place(placed("T4", 2))
    assert speeds(job)["T4", 2] == pytest.approx(1 / (seconds((2,), 32)[0] * SLOWDOWN))
    run(job)
    assert job.steps_done() == 250


def test_steps_of_adaptive_jobs_are_progress(profiles: Profiles) -> None:
    job = one(profiles, knowledge=Knowledge(Regime.EXACT))
    job.place(placed("RTX-2080-Ti", 8))
    rate = speeds(job)["RTX-2080-Ti", 8]
    job.advance(10)
    assert job.steps_done() == int(10 * rate)
    assert job.seen().training.steps == 2016


def test_a_new_job_starts_with_the_smallest_batch_and_learns_better(profiles: Profiles) -> None:
    job = one(profiles)
    job.place(placed("T4", 4))
    job.advance(1)
    slow = job.progress
    assert slow == pytest.approx(4 / (3 / 2 + 1) / (seconds((4,), 8)[0] * SLOWDOWN) / WORK)
    job.advance(1)
    assert job.progress - slow > 1.1 * slow


def test_a_stopped_job_stands_still(profiles: Profiles) -> None:
    job = one(profiles)
    assert (job.advance(60), job.finish_in(), job.progress) == (0, math.inf, 0)
    job.place(placed("T4", 1))
    job.advance(60)
    before = job.progress
    job.place(None)
    assert (job.advance(60), job.finish_in(), job.progress) == (0, math.inf, before)


def test_a_straggler_slows_the_whole_gang(profiles: Profiles) -> None:
    usual, slowed = one(profiles, Form.TUNED), one(profiles, Form.TUNED)
    usual.place(placed("T4", 2))
    slowed.place(placed("T4", 2), speed=0.5)
    usual.advance(10)
    slowed.advance(20)
    assert usual.progress == pytest.approx(slowed.progress)


def test_every_start_and_every_other_split_costs_the_restart_time(profiles: Profiles) -> None:
    job = one(profiles)
    wide = placed("T4", 4, 2)
    assert job.pause(None, wide) == 40
    assert job.pause(wide, placed("T4", 4, 2, first_node=2)) == 0, "other nodes are free"
    assert job.pause(wide, placed("T4", 2, 4)) == 40, "the order of the parts counts"
    assert job.pause(wide, placed("T4", 3, 3)) == 40
    assert job.pause(placed("T4", 4), placed("RTX-2080-Ti", 4)) == 40


def test_moving_to_other_nodes_of_the_same_split_changes_nothing(profiles: Profiles) -> None:
    moved, stayed = one(profiles), one(profiles)
    for job in (moved, stayed):
        job.place(placed("T4", 4))
        job.advance(60)
    moved.place(None)
    moved.place(placed("T4", 4, first_node=1))
    assert moved.advance(30) == stayed.advance(30)
    assert moved.progress == stayed.progress


def test_a_gang_on_more_nodes_than_profiled_runs_as_if_packed(profiles: Profiles) -> None:
    scattered = one(profiles, knowledge=Knowledge(Regime.EXACT), cluster=cluster(rtx=8))
    packed = one(profiles, knowledge=Knowledge(Regime.EXACT), cluster=cluster(rtx=8))
    scattered.place(placed("RTX-2080-Ti", 4, 4, 4, 2, 2))
    packed.place(placed("RTX-2080-Ti", 6, 6, 4))
    assert (scattered.advance(5), packed.advance(5)) == (5, 5)
    assert scattered.progress == packed.progress


def test_a_failure_loses_the_work_since_the_last_epoch_or_stop(profiles: Profiles) -> None:
    job = one(profiles, Form.TUNED)
    job.place(placed("T4", 2))
    job.advance(50)
    assert job.fail() == pytest.approx(50)
    assert job.progress == 0
    job.advance(50)
    job.place(None)
    job.place(placed("T4", 2))
    saved = job.progress
    job.advance(20)
    assert job.fail() == pytest.approx(20)
    assert job.progress == saved
    job.advance(450)
    assert job.progress > 1000 / WORK
    job.fail()
    assert job.progress == 1000 / WORK


def test_alone_is_the_time_that_the_best_batches_take_on_each_configuration(profiles: Profiles) -> None:
    job = one(profiles, knowledge=Knowledge(Regime.EXACT))
    alone = job.alone("RTX-2080-Ti")
    assert list(alone) == [1, 2, 4, 8, 16]
    job.place(placed("RTX-2080-Ti", 8, 8))
    assert run(job, 5.0) == alone[16].seconds, "on whole seconds"
    assert job.alone("A100-SXM4-40GB") == {}
    tuned = one(profiles, Form.TUNED)
    assert list(tuned.alone("T4")) == [2]
    tuned.place(placed("T4", 2))
    assert run(tuned) == tuned.alone("T4")[2].seconds


def test_the_best_rate_alone_is_that_of_the_best_epoch(profiles: Profiles) -> None:
    job = one(profiles, knowledge=Knowledge(Regime.EXACT))
    job.place(placed("T4", 4))
    rates = []
    for _ in range(2):
        rates.append(speeds(job)["T4", 4] / WORK)
        job.advance(job.finish_in() * 0.6)
    assert job.alone("T4")[4].best_rate == pytest.approx(max(rates), rel=1e-3)


# Forms


def test_a_type_with_too_few_gpus_is_told_as_the_artifact_tells_gavel(profiles: Profiles) -> None:
    job = one(profiles, Form.TUNED, trace=workload(gpus=3, batch=48), cluster=cluster(t4=4, rtx=0))
    assert list(speeds(job)) == [("T4", 3)]
    job = one(profiles, Form.TUNED, trace=workload(gpus=8), cluster=cluster(t4=1, rtx=1))
    assert speeds(job)["T4", 8] == 0.1
    assert speeds(job)["RTX-2080-Ti", 8] == pytest.approx(1 / (seconds((8,), 8, 2)[0] * SLOWDOWN))
    assert (job.seen().requirements.gpus.low, job.seen().requirements.gpus.high) == (8, 8)
    assert job.alone("T4") == {}
    assert job.seen().restart_seconds == 40, "Gavel is told the true restart time"


def test_on_one_gpu_gavels_table_accumulates_and_execution_does_not(profiles: Profiles) -> None:
    job = one(profiles, Form.TUNED, trace=workload(gpus=1, batch=16))
    table = 1 / (2 * seconds((1,), 8)[0] * SLOWDOWN)
    assert speeds(job)["T4", 1] == pytest.approx(table)
    job.place(placed("T4", 1))
    job.advance(10)
    assert job.progress == pytest.approx(10 / (seconds((1,), 16)[0] * SLOWDOWN) / WORK)


def test_what_pollux_sees_does_not_tell_types_apart(profiles: Profiles) -> None:
    job = one(profiles, Form.UNAWARE)
    rows = job.seen().speeds or ()
    assert {row.gpu_type for row in rows} == {"*"}
    assert all(row.steps_per_second == row.gpus for row in rows), "nothing is known yet"
    gangs = {(row.nodes, row.gpus) for row in rows}
    assert {(2, 2), (1, 4), (2, 8), (8, 16)} <= gangs
    assert not {(2, 9), (9, 8), (1, 33)} & gangs
    assert {(1, gpus) for gpus in range(1, 33)} <= gangs, "fair shares"
    assert (job.seen().requirements.gpus.high, job.seen().restart_seconds) == (1, 30)


def test_pollux_fits_one_model_to_the_steps_of_all_types(profiles: Profiles) -> None:
    slow, fast, mixed = (one(profiles, Form.UNAWARE) for _ in range(3))
    for job, types in ((slow, ["T4"]), (fast, ["RTX-2080-Ti"]), (mixed, ["T4", "RTX-2080-Ti"])):
        for count, gpu_type in enumerate(types, start=1):
            job.place(placed(gpu_type, *[1] * count))
            job.advance(1)
    rates = [speeds(job)["*", 1] for job in (slow, mixed, fast)]
    assert rates == sorted(rates)
    assert rates[2] == pytest.approx(2 * rates[0], rel=0.05)
    assert mixed.seen().requirements.gpus.high == 4, "twice what it tried, on whichever type"
    mixed.place(placed("RTX-2080-Ti", 8, 8))
    mixed.advance(1)
    assert mixed.seen().requirements.gpus.high == 16, "what the smaller pool has"


def test_pollux_can_only_be_told_what_can_be_fitted(profiles: Profiles) -> None:
    with pytest.raises(ValueError, match="form Unaware knows regimes Fit and Pooled, not Exact"):
        one(profiles, Form.UNAWARE, Knowledge(Regime.EXACT))


@pytest.mark.parametrize("form", Form)
def test_jobs_carry_what_the_trace_says(profiles: Profiles, form: Form) -> None:
    rows = trace(
        ["a", "b"],
        [5.0, 7.0],
        [2, 2],
        application=constant("toy", 2),
        batch_size=[32, 64],
        queue=code(["", "vision"]),
        deadline=[math.nan, 900.0],
    )
    first, second = jobs(rows, profiles, form, cluster=cluster())
    assert (first.uid, first.submitted, first.application, first.seen().deadline) == ("a", 5.0, "toy", None)
    told = second.seen()
    assert (told.name, told.created, told.queue, told.deadline) == ("b", 7.0, "vision", 900.0)
    assert (told.model.name, told.requirements.gpu_types) == ("toy", ("T4", "RTX-2080-Ti"))


@pytest.mark.parametrize(
    ("rows", "form", "complaint"),
    [
        (workload(batch=0), Form.ADAPTIVE, "toy-0: batch_size 0, where 16 to 128 were profiled"),
        (workload(batch=256), Form.TUNED, "toy-0: batch_size 256"),
        (workload(application="gpt_pmp"), Form.ADAPTIVE, "gpt_pmp-0: application 'gpt_pmp' cannot be simulated"),
        (workload(gpus=64), Form.TUNED, "toy-0: toy: 64 GPUs with a global batch of 64 fit on no GPU type"),
        (workload(gpus=16, batch=32), Form.TUNED, "toy-0: toy: 16 GPUs with a global batch of 32 fit on no GPU type"),
        (workload(category="rigid"), Form.ADAPTIVE, "toy-0: category 'rigid' is not simulated"),
    ],
)
def test_jobs_that_cannot_be_simulated_are_named(profiles: Profiles, rows: Trace, form: Form, complaint: str) -> None:
    with pytest.raises(BadJob, match=complaint):
        jobs(rows, profiles, form, cluster=cluster())


def test_parameters_of_a_regime_are_checked() -> None:
    with pytest.raises(ValueError, match="sigma must be finite and not negative"):
        Knowledge(Regime.MODEL, sigma=-1)
    with pytest.raises(ValueError, match="sigma is the error of regime Model, the regime is Fit"):
        Knowledge(sigma=0.2)


# The artifact's own profiles


@needs_sia
def test_cifar10_alone_on_one_2080_takes_what_its_files_say() -> None:
    rows = workload(gpus=1, batch=128, application="cifar10")
    job = one(Profiles(SIA / "profiles"), Form.TUNED, trace=rows, cluster=preset("sia-heterogeneous"))
    job.place(placed("RTX-2080-Ti", 1))
    directory = SIA / "profiles/cifar10"
    with (directory / "placements-rtx.csv").open() as lines:
        rows_of_one_gpu = [row for row in csv.DictReader(lines) if row["placement"] == "1"]
    local, times = ([float(row[column]) for row in rows_of_one_gpu] for column in ("local_bsz", "step_time"))
    ends = []
    for path in directory.glob("validation-*.csv"):
        with path.open() as lines:
            ends.append(float(list(csv.DictReader(lines))[-1]["progress"]))
    expected = min(ends) * np.interp(128, local, times) * 1.8
    assert run(job) == pytest.approx(expected, abs=0.5 * 100), "each of 100 epochs ends on a whole second"


@needs_sia
@pytest.mark.parametrize("form", Form)
def test_every_job_of_the_artifacts_workloads_can_be_built(form: Form) -> None:
    profiles = Profiles(SIA / "profiles")
    for family in ("philly", "saturn", "newtrace"):
        rows, _ = workloads.read_trace(SIA / family / "workload-1.csv")
        built = jobs(rows, profiles, form, cluster=preset("sia-heterogeneous"))
        assert all(job.seen().speeds for job in built)


@needs_sia
def test_true_speeds_grow_with_gpus_and_the_a100_is_the_fastest() -> None:
    site = Site(Profiles(SIA / "profiles").application("bert"), pools(preset("sia-heterogeneous")))
    rates = {(each.gpu_type, each.gpus): each.steps_per_second for each in site.true_speeds(0)}
    for (gpu_type, gpus), rate in rates.items():
        assert rate >= rates.get((gpu_type, gpus // 2), 0)
        assert rate <= rates.get(("A100-SXM4-40GB", gpus), math.inf)
