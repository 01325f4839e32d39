"""Generated workloads: as their parameters say, at the load that was asked for, and the same for the same seed."""

from __future__ import annotations

import math
import re
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab_lab.workloads import clusters
from trimtab_lab.workloads.arrivals import HOUR, WEEK, Arrivals, times
from trimtab_lab.workloads.generator import (
    LlmClass,
    LlmMix,
    RigidClass,
    RigidMix,
    arrivals_of,
    ideal,
    llm_jobs,
    llm_names,
    rigid_names,
    rigid_trace,
    too_large,
)
from trimtab_lab.workloads.trace import FloatArray
from trimtab_lab.workloads.windows import offered_load
from trimtab_policy.placement.candidates import weight
from trimtab_policy.types import Job

H100 = clusters.preset("h100-64")


def arriving(name: str | Arrivals, count: int = 40_000, rate: float = 0.01) -> FloatArray:
    process = arrivals_of(name) if isinstance(name, str) else name
    return times(process, count, rate, np.random.default_rng(5))


def dispersion(arrived: FloatArray, width: float) -> float:
    """Variance over mean of the counts in intervals: 1 for a Poisson process."""
    counts = np.bincount((arrived // width).astype(int))[:-1]
    return float(counts.var() / counts.mean())


# --- arrivals --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["poisson", "bursts", "days", "bursts-and-days"])
def test_jobs_arrive_in_order_at_the_stated_rate(name: str) -> None:
    arrived = arriving(name)
    assert np.all(np.diff(arrived) >= 0)
    assert len(arrived) / arrived[-1] == pytest.approx(0.01, rel=0.08)


def test_gaps_of_a_poisson_process_are_exponential() -> None:
    gaps = np.diff(arriving("poisson"))
    assert gaps.std() / gaps.mean() == pytest.approx(1, rel=0.03)
    assert np.mean(gaps > gaps.mean()) == pytest.approx(math.exp(-1), abs=0.01)


def test_bursts_make_counts_vary_as_the_two_states_say() -> None:
    """Over long times the index of dispersion is 1 + 2 (variance of the rate / mean rate) x relaxation time."""
    process = Arrivals(burst_share=0.1, burst_ratio=16, burst_seconds=6000)
    calm = 1 / (1 + 0.1 * 15)
    variance = 0.1 * 0.9 * (15 * calm) ** 2
    expected = 1 + 2 * 0.01 * variance * (0.9 * 6000)
    assert dispersion(arriving("poisson"), HOUR) == pytest.approx(1, abs=0.1)
    assert dispersion(arriving(process, 400_000), 30 * HOUR) == pytest.approx(expected, rel=0.2)


def test_the_hours_of_the_day_and_the_weekend_have_their_rates() -> None:
    process = arrivals_of("days")
    arrived = arriving("days", 200_000)
    weekday = arrived[arrived % WEEK < 5 * 24 * HOUR]
    by_hour = np.bincount((weekday // HOUR % 24).astype(int), minlength=24)
    assert by_hour / by_hour.mean() == pytest.approx(
        np.array(process.hours) / np.mean(process.hours), rel=0.1, abs=0.02
    )
    assert len(arrived) - len(weekday) == pytest.approx(len(weekday) * 2 / 5 * process.weekend, rel=0.02)


def test_a_batch_is_there_at_once() -> None:
    assert arriving("batch", 5).tolist() == [0] * 5


@pytest.mark.parametrize(
    "wrong",
    [{"burst_share": 1.0}, {"burst_ratio": 0.5}, {"burst_seconds": 0.0}, {"hours": (1.0,)}, {"hours": (0.0,) * 24},
     {"weekend": -1.0}],
)  # fmt: skip
def test_impossible_arrivals_are_refused_by_field(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Arrivals(**wrong)  # type: ignore[arg-type]


# --- rigid traces ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", rigid_names())
@pytest.mark.parametrize("load", [0.5, 1.3])
def test_a_rigid_trace_has_its_load(name: str, load: float) -> None:
    found = rigid_trace(name, 500, 64, load)
    assert offered_load(found, 64) == pytest.approx(load)
    assert (found.submitted[0], len(set(found.name.tolist()))) == (0, 500)


def test_only_jobs_that_the_cluster_has_gpus_for_are_drawn_at_the_same_load() -> None:
    found = rigid_trace("philly-like", 5000, 64, 0.7, largest=4)
    assert set(found.gpus.tolist()) == {1, 2, 4}
    assert offered_load(found, 64) == pytest.approx(0.7)
    assert too_large("philly-like", 4) == [8, 16, 32]
    assert rigid_trace("philly-like", 50, 64, 0.7, largest=32).seconds.tolist() == (
        rigid_trace("philly-like", 50, 64, 0.7).seconds.tolist()
    )
    with pytest.raises(ValueError, match="every job of this workload needs more than 0 GPUs"):
        rigid_trace("philly-like", 50, 64, 0.7, largest=0)


def test_sizes_and_run_times_are_distributed_as_their_classes_say() -> None:
    mix = RigidMix((RigidClass(1, 3, mu=6, sigma=1.5), RigidClass(8, 1, mu=8, sigma=0.5)), longest=1e5)
    found = rigid_trace(mix, 40_000, 64, 1.0)
    assert np.mean(found.gpus == 8) == pytest.approx(0.25, abs=0.01)
    assert set(zip(found.gpus.tolist(), found.application, strict=True)) == {(1, "1gpu"), (8, "8gpu")}
    large = np.log(found.seconds[found.gpus == 8])
    assert (large.mean(), large.std()) == (pytest.approx(8, abs=0.02), pytest.approx(0.5, abs=0.02))
    assert 1 <= found.seconds.min() <= found.seconds.max() <= 1e5


def test_run_times_have_a_heavy_tail_that_is_cut_off() -> None:
    found = rigid_trace("philly-like", 50_000, 64, 1.0)
    largest = np.sort(found.gpu_seconds)[-500:]
    assert largest.sum() > 0.25 * found.gpu_seconds.sum()
    assert found.seconds.max() <= 4.6e6


def test_deadlines_and_queues_go_to_the_stated_shares() -> None:
    mix = RigidMix((RigidClass(1, 1, 6, 1),), 1e5, queues={"a": 3, "b": 1}, deadline_share=0.4, slack=(2, 3))
    found = rigid_trace(mix, 10_000, 64, 1.0)
    slack = (found.deadline - found.submitted) / found.seconds
    given_one = slack[~np.isnan(slack)]
    assert len(given_one) / 10_000 == pytest.approx(0.4, abs=0.02)
    assert 2 <= given_one.min() <= given_one.max() <= 3
    assert np.mean([each == "a" for each in found.queue]) == pytest.approx(0.75, abs=0.02)


@given(st.integers(0, 2**63), st.floats(0.1, 2))
def test_another_load_is_the_same_jobs_at_other_times(seed: int, load: float) -> None:
    one, other = rigid_trace("philly-like", 40, 64, 1.0, seed), rigid_trace("philly-like", 40, 64, load, seed)
    assert one.seconds.tolist() == other.seconds.tolist()
    assert one.gpus.tolist() == other.gpus.tolist()
    assert list(one.queue) == list(other.queue)


def fingerprint(seed: int) -> tuple[list[float], list[Job]]:
    return (
        rigid_trace("philly-like", 50, 64, 1.0, seed).submitted.tolist(),
        llm_jobs("llm-small", 20, H100, 1.0, seed),
    )


def test_one_seed_is_one_workload_in_every_process() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as elsewhere:
        assert elsewhere.submit(fingerprint, 7).result() == fingerprint(7)
    assert fingerprint(8) != fingerprint(7)


# --- LLM jobs --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", llm_names())
def test_every_llm_job_can_be_trained_on_the_cluster_and_has_a_valid_name(name: str) -> None:
    jobs = llm_jobs(name, 80, H100, 0.9)
    assert all(ideal(job, H100).work < math.inf for job in jobs)
    assert all(re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?", job.name) for job in jobs)
    assert len({job.uid for job in jobs}) == 80
    assert [job.created for job in jobs] == sorted(job.created for job in jobs)


@settings(max_examples=10)
@given(load=st.floats(0.2, 2), cluster=st.sampled_from(["h100-64", "llm-mixed", "h100-512"]), seed=st.integers(0, 99))
def test_the_load_of_llm_jobs_is_their_least_work_over_what_the_cluster_can_do(
    load: float, cluster: str, seed: int
) -> None:
    snapshot = clusters.preset(cluster)
    jobs = llm_jobs("llm", 30, snapshot, load, seed)
    work = sum(ideal(job, snapshot).work for job in jobs)
    capacity = sum(count * weight(snapshot.gpu_types[name]) for name, count in clusters.gpus_by_type(snapshot).items())
    assert work / (capacity * jobs[-1].created) == pytest.approx(load)


def test_the_large_classes_are_left_out_where_they_do_not_fit() -> None:
    kinds = Counter(job.name.rsplit("-", 1)[0] for job in llm_jobs("llm", 2000, H100, 1.0))
    assert "pretrain-large" not in kinds
    assert kinds["finetune-small"] / kinds["debug"] == pytest.approx(0.35 / 0.30, rel=0.15)


def test_tokens_bounds_priorities_and_deadlines_are_those_of_the_class() -> None:
    only = LlmClass("one", 1, ("gpt2",), (1024,), (32,), (1e7, 1e8), (2, 4), priority=3)
    jobs = llm_jobs(LlmMix((only,), deadline_share=1.0, slack=(2, 3)), 200, H100, 1.0)
    tokens = np.array([job.training.steps * job.training.tokens_per_step for job in jobs])
    assert 0.99e7 < tokens.min() < 2e7
    assert 5e7 < tokens.max() < 1.01e8
    assert np.mean(np.log10(tokens)) == pytest.approx(7.5, abs=0.1)
    assert {(job.requirements.gpus.low, job.requirements.gpus.high, job.priority) for job in jobs} == {(2, 4, 3)}
    slack = [((job.deadline or 0) - job.created) / ideal(job, H100).seconds for job in jobs]
    assert 2 <= min(slack) <= max(slack) <= 3


def test_a_cluster_that_can_train_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="can train none of the models"):
        llm_jobs("llm", 10, clusters.cluster("T4=4"), 1.0)


# --- refusals --------------------------------------------------------------------------------------------------------
def test_unknown_names_are_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown rigid trace 'x', known are philly-like, kalos-like"):
        rigid_trace("x", 10, 64, 1.0)
    with pytest.raises(ValueError, match="unknown LLM workload 'x', known are llm, llm-small"):
        llm_jobs("x", 10, H100, 1.0)
    with pytest.raises(ValueError, match="unknown arrivals 'x', known are poisson"):
        arrivals_of("x")


@pytest.mark.parametrize(("jobs", "gpus", "load"), [(0, 64, 1.0), (5, 0, 1.0), (5, 64, 0.0), (5, 64, math.nan)])
def test_numbers_that_make_no_workload_are_refused(jobs: int, gpus: int, load: float) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        rigid_trace("philly-like", jobs, gpus, load)


def test_classes_that_make_no_jobs_are_refused_by_field() -> None:
    with pytest.raises(ValueError, match="sigma"):
        RigidClass(1, 1, 6, 0)
    with pytest.raises(ValueError, match="tokens of x"):
        LlmClass("x", 1, ("gpt2",), (1024,), (8,), (0, 5), (1, 1))
    with pytest.raises(ValueError, match="gpus of x"):
        LlmClass("x", 1, ("gpt2",), (1024,), (8,), (1, 5), (2, 1))
    with pytest.raises(ValueError, match="weights"):
        rigid_trace(RigidMix((RigidClass(1, 0, 6, 1),), 1e5), 5, 64, 1.0)
