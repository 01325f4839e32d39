"""What a scenario says is what happens in its run, and what it does not say makes no difference."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from trimtab_lab.evaluation import run_scenario, workload
from trimtab_lab.evaluation.contestant import contestant
from trimtab_lab.evaluation.scenario import Scenario, ScenarioResult
from trimtab_policy.types import Quota

HEADER = "job_id,submit_time_s,n_gpus,duration_s,estimate_s,user_vc\n"
JOBS = ((0, 8, 600, 900, "red"), (1, 8, 300, 100, "red"), (2, 8, 100, 300, "blue"), (3, 4, 50, 80, "blue"))
"""The second says that it is the shortest of those that wait, and is the longest."""


@pytest.fixture
def told(tmp_path: Path) -> Scenario:
    file = tmp_path / "jobs.csv"
    file.write_text(HEADER + "".join(f"j{n},{','.join(map(str, job))}\n" for n, job in enumerate(JOBS)))
    return Scenario(policy="sjf", trace=str(file), cluster="T4=8", spans=True)


def ends(outcome: ScenarioResult) -> list[float | None]:
    return [job.finished for job in outcome.jobs]


def test_estimates_in_a_trace_are_shown_only_to_whom_they_shall_be(told: Scenario) -> None:
    true, users = run_scenario.run_scenario(told), run_scenario.run_scenario(replace(told, estimates="user"))
    assert (true.regime, users.regime) == ("run times known", "users' estimates")
    assert ends(true) == pytest.approx([600, 1050, 750, 650])
    assert ends(users) == pytest.approx([600, 950, 1050, 650])
    assert run_scenario.run_scenario(replace(told, estimates="0.5")).regime == "run times estimated, spread of ln 0.5"
    assert true.bounds_h == users.bounds_h


def test_the_kernel_is_told_of_no_estimates_either(told: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = run_scenario.run_scenario(told)
    monkeypatch.setattr(run_scenario, "MANY", 1)
    fast = run_scenario.run_scenario(told)
    assert ends(fast) == pytest.approx(ends(slow))
    assert fast.summary["decision_ms_p50"] != fast.summary["decision_ms_p50"]  # NaN: the kernel measures none
    assert ends(run_scenario.run_scenario(replace(told, estimates="user"))) != pytest.approx(ends(slow))


def test_measured_jobs_have_no_users_who_estimate_them(told: Scenario) -> None:
    with pytest.raises(ValueError, match="jobs with --profiles bring no estimates"):
        workload.workload(replace(told, estimates="user", profiles="profiles"))


def test_queues_are_told_apart(told: Scenario) -> None:
    queues = run_scenario.run_scenario(told).queues
    assert {name: part.jobs for name, part in queues.items()} == {"red": 2, "blue": 2}
    assert queues["blue"].avg_jct_h == pytest.approx((748 + 647) / 2 / 3600)


def test_a_quota_holds(told: Scenario) -> None:
    Path(told.trace).write_text(HEADER + "a,0,4,100,100,blue\nb,0,4,100,100,blue\n")
    assert ends(run_scenario.run_scenario(told)) == pytest.approx([100, 100])
    assert ends(run_scenario.run_scenario(replace(told, quotas=(Quota("blue", "*", 4),)))) == pytest.approx([100, 200])


def test_gavel_reckons_with_the_rounds_that_are_kept(told: Scenario) -> None:
    seen = run_scenario._policy(contestant("gavel"), 120.0)
    assert isinstance(seen, run_scenario._KnowsRounds)
    assert seen.round_seconds == 120.0
    assert run_scenario.run_scenario(replace(told, policy="gavel")).round_seconds == 360.0
    assert run_scenario.run_scenario(told).round_seconds is None


def test_elastic_jobs_are_resized_and_the_others_left_alone_unless_somebody_needs_their_gpus() -> None:
    """Under the controller, by a policy that resizes whenever it may."""
    jobs = Scenario(policy="sia", trace="generator:llm", cluster="h100-64", load=0.8, windows=2, window_jobs=20)
    few, many = (
        run_scenario.run_scenario(replace(jobs, elastic=share)).summary["restarts_per_job"] for share in (0.0, 1.0)
    )
    assert many > few + 0.5


def test_who_is_elastic_at_a_share_is_at_a_larger_one(told: Scenario) -> None:
    jobs = workload.workload(Scenario(policy="", trace="generator:llm", cluster="h100-64", load=0.8, window_jobs=50))
    some, more = (
        {job.uid for job in jobs.described if run_scenario.elastic(replace(told, elastic=share))(job)}
        for share in (0.3, 0.6)
    )
    assert set() < some < more < {job.uid for job in jobs.described}


def test_who_decides_alone_asks_nobody_what_is_elastic(told: Scenario) -> None:
    with pytest.raises(ValueError, match=r"^--elastic: sjf decides alone here; write sjf\+controller$"):
        run_scenario.run_scenario(replace(told, elastic=0.5))
