"""LLM jobs in the simulator: predicted speeds, and what restarts, errors and wide gangs make of them."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from tests.builders import A100, H100, job, node, snapshot

from trimtab_policy.perf.restarts import checkpoint_bytes
from trimtab_policy.policy import load
from trimtab_policy.sim import llm
from trimtab_policy.sim.engine import SimRules, simulate
from trimtab_policy.sim.llm import LlmRules
from trimtab_policy.types import Decision, Job, Placement, Snapshot

RACKS = [node(f"n{i}", topology=("z", f"rack{i // 2}")) for i in range(4)]


def here(**changes: object) -> Snapshot:
    return replace(snapshot([*RACKS, node("h0", H100)]), time=0.0, **changes)


def started(gpus: int = 8) -> tuple[Snapshot, Placement]:
    """What best fit makes of one job with so many GPUs."""
    now = here(jobs=(job("one", model="gpt3-1.3b", gpus=(gpus, gpus), gpu_types=(A100,), created=0.0),))
    [placement] = load("best_fit").decide(now).placements
    return now, placement


def test_a_job_takes_what_the_performance_model_says_plus_its_launch() -> None:
    now, placement = started()
    rules = LlmRules(schedule_seconds=7.0, startup_seconds=3.0)
    run = simulate(load("best_fit"), llm.jobs(now.jobs, here(), rules), here())

    assert run.jobs[0].finished == pytest.approx(placement.prediction.run_seconds + 10.0)
    assert run.jobs[0].restarts == 0


def test_errors_of_the_model_are_drawn_once_a_job_and_type() -> None:
    now, placement = started()
    many = [replace(now.jobs[0], uid=f"u{i}") for i in range(3000)]
    found = llm.jobs(many, here(), LlmRules(error_sigma=0.2), seed=3)
    times = []
    for each in found:
        each.place(placement)
        times.append(each.finish_in())

    assert np.std(np.log(times)) == pytest.approx(0.2, rel=0.05)
    assert np.median(times) == pytest.approx(placement.prediction.run_seconds, rel=0.02)


def test_what_jobs_state_of_their_length_may_be_wrong_and_changes_nothing_about_it() -> None:
    now, placement = started()
    many = [replace(now.jobs[0], uid=f"u{i}") for i in range(3000)]
    right, wrong = (llm.jobs(many, here(), LlmRules(size_sigma=sigma), seed=3) for sigma in (0.0, 0.5))
    steps = now.jobs[0].training.steps
    assert {each.seen().training.steps for each in right} == {steps}
    assert np.std(np.log([each.seen().training.steps / steps for each in wrong])) == pytest.approx(0.5, rel=0.05)
    for honest, mistaken in zip(right[:3], wrong[:3], strict=True):
        for each in (honest, mistaken):
            each.place(placement)
        assert mistaken.finish_in() == honest.finish_in()
        assert mistaken.alone(A100) == honest.alone(A100)


def test_who_is_longer_than_it_states_has_made_all_of_that_and_some_steps_beyond() -> None:
    now, placement = started()
    one, run = now.jobs[0], placement.prediction.run_seconds
    late = replace(one, uid="late", created=0.95 * run)
    drawn = (llm.jobs((one, late), here(), LlmRules(size_sigma=0.5), seed=seed) for seed in range(100))
    models = next(each for each in drawn if each[0].seen().training.steps < 0.8 * one.training.steps)
    told: dict[float, Job] = {}

    class Listener:
        name = "listener"

        def decide(self, shown: Snapshot) -> Decision:
            for each in shown.jobs:
                if each.uid == one.uid:
                    told[shown.time] = each
            return load("best_fit").decide(shown)

    simulate(Listener(), models, here())
    stated = models[0].seen().training.steps
    assert told[0.0].steps_done == told[0.0].steps_beyond == 0
    then = told[late.created]
    assert then.steps_done == stated
    assert 0 < then.steps_beyond < one.training.steps - stated


def test_a_gang_that_leaves_its_rack_pays_for_the_oversubscribed_network() -> None:
    now, placement = started(16)
    [each] = llm.jobs(now.jobs, here(), LlmRules(oversubscription=8.0))

    def time_on(*names: str) -> float:
        shares = tuple(replace(share, node=name) for share, name in zip(placement.shares, names, strict=True))
        each.place(replace(placement, shares=shares))
        return each.finish_in()

    assert time_on("n0", "n1") == pytest.approx(placement.prediction.run_seconds)
    assert time_on("n1", "n2") > 1.05 * time_on("n0", "n1")


def test_a_restart_costs_a_large_model_more() -> None:
    _, placement = started()
    small, large = llm.jobs([job("a", model="gpt2"), job("b", model="llama3-70b")], here())

    for each in (small, large):
        each.place(placement if each is small else None)
        each.advance(1.0)
    small.place(None)
    assert 45 < small.pause(None, placement) < 50
    assert large.seen().restart_seconds > 10 * small.seen().restart_seconds
    parameters = 70.6e9
    assert checkpoint_bytes(large.seen().model, large.seen().training) == pytest.approx(14 * parameters, rel=0.01)


def test_alone_it_takes_the_best_plan_for_each_number_of_gpus() -> None:
    now, placement = started(8)
    [each] = llm.jobs(now.jobs, here())

    assert each.alone(A100)[8].seconds == pytest.approx(placement.prediction.run_seconds)
    assert each.alone(A100)[8].best_rate == pytest.approx(1 / placement.prediction.run_seconds)
    assert each.alone(H100) == {}


def test_a_job_of_a_live_snapshot_keeps_its_age_and_its_progress() -> None:
    live = replace(here(), time=1_000_000.0)
    [each] = llm.jobs([job("old", created=999_000.0, steps=1000, steps_done=250, deadline=1_003_600.0)], live)

    assert each.submitted == 0.0
    assert each.seen().created == -1000.0
    assert each.seen().deadline == 3600.0
    assert each.progress == 0.25


def test_every_job_of_a_busy_cluster_ends_under_the_live_policy() -> None:
    jobs = [
        job(f"j{i}", model="gpt3-1.3b" if i % 3 else "llama3-8b", gpus=(1, 16), created=100.0 * i, steps=500)
        for i in range(12)
    ]
    run = simulate(load("best_fit"), llm.jobs(jobs, here()), here(), SimRules())

    assert all(record.finished is not None for record in run.jobs)
    assert sum(record.gpu_seconds for record in run.jobs) > 0


@pytest.mark.parametrize(
    "field", ["schedule_seconds", "storage_bandwidth", "oversubscription", "error_sigma", "size_sigma"]
)
def test_rules_that_make_no_sense_are_refused_by_name(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        LlmRules(**{field: -1.0})
