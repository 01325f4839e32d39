"""What is known of a job whose goodput was measured, in each regime: fitted, pooled, a model with error, the truth."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.policy.sim import toy_profiles
from tests.policy.sim.toy_jobs import WORK, one, run, speeds, workload
from tests.policy.sim.toy_profiles import cluster, placed

from trimtab_lab.goodput import Knowledge, Regime, jobs
from trimtab_lab.goodput.profiles import Profiles
from trimtab_policy.types import Speed

REGIMES = [Knowledge(), Knowledge(Regime.POOLED), Knowledge(Regime.MODEL, sigma=0.3), Knowledge(Regime.EXACT)]


@pytest.fixture
def profiles(tmp_path: Path) -> Profiles:
    return toy_profiles.profiles(tmp_path)


def test_before_anything_is_known_one_gpu_of_each_type_is_alike(profiles: Profiles) -> None:
    seen = one(profiles).seen()
    assert seen.speeds == (Speed("T4", 1, 1, 1.0), Speed("RTX-2080-Ti", 1, 1, 1.0))
    assert (seen.requirements.gpus.low, seen.requirements.gpus.high) == (1, 1)
    assert (seen.preemptible, seen.restart_seconds) == (True, 30)


def test_a_fitting_job_may_double_what_it_tried(profiles: Profiles) -> None:
    job = one(profiles)
    for tried, most in ((1, 2), (2, 4)):
        job.place(placed("T4", tried))
        job.advance(60)
        assert {gpus for _, gpus in speeds(job)} == {1, most // 2, most}
        assert job.seen().requirements.gpus.high == most


def test_types_that_it_has_not_run_on_are_guessed_by_the_ratio_of_single_gpus(profiles: Profiles) -> None:
    job = one(profiles)
    job.place(placed("T4", 1))
    job.advance(60)
    known = speeds(job)
    assert known["RTX-2080-Ti", 2] == pytest.approx(2 * known["T4", 2])


def test_without_guessing_an_untried_type_is_as_good_as_the_worst_known_choice(profiles: Profiles) -> None:
    job = one(profiles, knowledge=Knowledge(project=False))
    job.place(placed("T4", 1))
    job.advance(60)
    known = speeds(job)
    assert set(known) == {("T4", 1), ("T4", 2), ("RTX-2080-Ti", 1)}
    assert known["RTX-2080-Ti", 1] == min(known.values())


def test_what_is_fitted_comes_close_to_the_truth(profiles: Profiles) -> None:
    exact = one(profiles, knowledge=Knowledge(Regime.EXACT))
    job = one(profiles, knowledge=Knowledge(capped=False))
    for gpus in (1, 2, 4):
        job.place(placed("T4", gpus))
        job.advance(30)
        job.advance(30)
    assert job.progress < 1000 / WORK, "both are in the first epoch"
    for gpus in (1, 2, 4):
        assert speeds(job)["T4", gpus] == pytest.approx(speeds(exact)["T4", gpus], rel=0.1)


def test_the_batch_of_the_trace_caps_what_is_seen_and_not_what_runs(profiles: Profiles) -> None:
    capped, free = (one(profiles, knowledge=Knowledge(capped=each), trace=workload(batch=16)) for each in (True, False))
    for job in (capped, free):
        job.place(placed("T4", 4))
        job.advance(60)
        job.advance(60)
    assert capped.progress == free.progress
    assert speeds(capped)["T4", 4] < 0.9 * speeds(free)["T4", 4]


def test_only_pooled_jobs_know_what_others_of_their_application_saw(profiles: Profiles) -> None:
    for regime in (Regime.FIT, Regime.POOLED):
        first, second = jobs(workload(2), profiles, knowledge=Knowledge(regime), cluster=cluster())
        first.place(placed("T4", 4))
        first.advance(60)
        expected = speeds(first) if regime is Regime.POOLED else {("T4", 1): 1.0, ("RTX-2080-Ti", 1): 1.0}
        assert speeds(second) == expected


def test_exact_speeds_are_those_that_it_runs_at(profiles: Profiles) -> None:
    for gpu_type, split in (("T4", (4, 4)), ("RTX-2080-Ti", (8,)), ("RTX-2080-Ti", (8, 8))):
        job = one(profiles, knowledge=Knowledge(Regime.EXACT))
        expected = speeds(job)[gpu_type, sum(split)]
        job.place(placed(gpu_type, *split))
        job.advance(2)
        assert job.progress * WORK == pytest.approx(2 * expected)
    assert job.seen().requirements.gpus.high == 16, "what the largest batch can be divided among"


def test_an_exact_model_knows_the_epoch(profiles: Profiles) -> None:
    job = one(profiles, knowledge=Knowledge(Regime.EXACT))
    job.place(placed("T4", 4))
    before = speeds(job)["T4", 4]
    job.advance(1000 / before + 2)
    assert speeds(job)["T4", 4] > before, "a larger batch gains more in the second epoch"


def test_a_model_with_error_is_corrected_where_it_was_observed(profiles: Profiles) -> None:
    truth = speeds(one(profiles, knowledge=Knowledge(Regime.EXACT)))
    knowledge = Knowledge(Regime.MODEL, sigma=0.5, seed=7)
    job = one(profiles, knowledge=knowledge)
    wrong = speeds(job)
    assert max(abs(math.log(wrong[each] / truth[each])) for each in truth) > 0.1
    job.place(placed("T4", 4))
    job.advance(1)
    corrected = speeds(job)
    assert corrected["T4", 4] == pytest.approx(truth["T4", 4])
    assert corrected["RTX-2080-Ti", 4] == wrong["RTX-2080-Ti", 4]
    slope = math.log(wrong["T4", 2] / truth["T4", 2]) - math.log(wrong["T4", 4] / truth["T4", 4])
    assert math.log(corrected["T4", 2] / truth["T4", 2]) == pytest.approx(slope)
    assert speeds(one(profiles, knowledge=knowledge)) == wrong, "the same seed"
    assert speeds(one(profiles, knowledge=Knowledge(Regime.MODEL, sigma=0.5, seed=8))) != wrong
    assert speeds(one(profiles, knowledge=Knowledge(Regime.MODEL))) == truth, "no error"


def test_errors_are_log_normal_and_differ_from_job_to_job(profiles: Profiles) -> None:
    many = jobs(workload(400), profiles, knowledge=Knowledge(Regime.MODEL, sigma=0.2), cluster=cluster())
    truth = speeds(one(profiles, knowledge=Knowledge(Regime.EXACT)))
    for config, spread in ((("T4", 1), 0.2), (("RTX-2080-Ti", 8), 0.2 * math.sqrt(2))):
        errors = [math.log(speeds(job)[config] / truth[config]) for job in many]
        assert np.mean(errors) == pytest.approx(0, abs=4 * spread / math.sqrt(400))
        assert np.std(errors) == pytest.approx(spread, rel=0.15)


@pytest.mark.parametrize("knowledge", REGIMES, ids=lambda knowledge: knowledge.regime)
def test_a_job_looks_the_same_until_it_has_learned_something(profiles: Profiles, knowledge: Knowledge) -> None:
    job = one(profiles, knowledge=knowledge)
    job.place(placed("T4", 4))
    for _ in range(5):
        job.advance(5)
    before = job.seen()
    job.advance(5)
    assert job.seen() is before
    job.place(placed("T4", 2))
    job.advance(5)
    assert job.seen() is before or knowledge.regime is not Regime.EXACT
    run(job)
    assert job.seen() is not before


@pytest.mark.parametrize("knowledge", REGIMES, ids=lambda knowledge: knowledge.regime)
@settings(max_examples=25)
@given(
    moves=st.lists(
        st.tuples(
            st.sampled_from(
                [None, ("T4", 1), ("T4", 3), ("T4", 4, 4), ("T4", 1, 2), ("RTX-2080-Ti", 4), ("RTX-2080-Ti", 8, 8)]
            ),
            st.floats(0.1, 90),
        ),
        max_size=12,
    )
)
def test_whatever_happens_to_it_progress_only_grows_and_ends(
    tmp_path_factory: pytest.TempPathFactory, knowledge: Knowledge, moves: list[tuple[tuple[str, int] | None, float]]
) -> None:
    job = one(toy_profiles.profiles(tmp_path_factory.mktemp("toy")), knowledge=knowledge)
    for where, time in moves:
        before = job.progress
        job.place(placed(*where) if where else None)
        assert 0 <= job.advance(time) <= time
        assert before <= job.progress <= 1
        assert (job.progress > before) == (where is not None and before < 1)
        assert all(each.steps_per_second > 0 for each in job.seen().speeds or ())
        assert 0 <= job.steps_done() <= job.seen().training.steps
        if job.progress == 1:
            break
    else:
        job.place(placed("RTX-2080-Ti", 8))
        run(job)
    assert job.progress == 1
